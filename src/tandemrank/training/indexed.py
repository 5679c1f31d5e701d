"""Draws of training through cells of items instead of a pass over all of them (`race = indexed`, docs/scale.md).

The cells of an epoch are made of the items where they are when it begins, and what is known of each follows them every so many
minibatches. So they are functions of the weights at the start of the epoch: a training that is resumed has the same.
"""

from dataclasses import dataclass, field, replace

from tandemrank.errors import ConfigError
from tandemrank.gradients import cells
from tandemrank.gradients.products import Cells, GeneratorScores, Products, Tally
from tandemrank.policies.retrieval import has_products
from tandemrank.policies.scorers import Scorer
from tandemrank.training.team import Team

FEWEST = 100_000  # items from which on cells may be asked for: among fewer a pass over all of them is faster, and exact
FOLLOW = 16  # draws between two looks at where the items are


def check(generator: Scorer) -> None:
    """Refuses a generator whose draws an index cannot serve."""
    if not has_products(generator):
        raise ConfigError(
            f"race = indexed needs a generator whose scores are products; those of a {generator.kind} are none. Use auto; or "
            "start from a factorisation or towers (initial = given)."
        )
    if (D := int(generator.spec()["D"])) < FEWEST:
        raise ConfigError(
            f"race = indexed is for at least {FEWEST:,} items, and there are {D:,}: a pass over so few is faster, and loses "
            "nothing. Use auto."
        )


@dataclass
class _Known:
    cells: Cells
    draws: int = 0


@dataclass
class Index:
    """The cells of each stage that draws in an epoch, and what the draws lost."""

    tally: Tally = field(default_factory=Tally)
    _known: dict[Scorer, _Known] = field(default_factory=dict)

    def on(self, model: Scorer, scores: GeneratorScores) -> GeneratorScores:
        """The same scores with cells to draw by, where they are products.  Shapes: scores [B, D]."""
        if not isinstance(scores, Products):
            return scores
        known = self._known.get(model)
        if known is None:
            known = self._known[model] = _Known(replace(cells.partition(scores.items), tally=self.tally))
        elif known.draws % FOLLOW == 0:
            known.cells = cells.follow(known.cells, scores.items)
        known.draws += 1
        return replace(scores, cells=known.cells)

    def lost_share(self, team: Team) -> float | None:
        """Of all arrivals of the epoch those that caps kept away, over the team; None where nothing was drawn by cells."""
        arrived, lost = team.total(self.tally.arrived), team.total(self.tally.lost)
        return lost / (arrived + lost) if arrived + lost > 0 else None
