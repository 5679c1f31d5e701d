"""A re-ranker that is handed the generator's score: summed with its own, or stacked, as one more input.

    sum        score(q, d) = r(q, d) + s(q, d)
    stacked    score(q, d) = r(q, d) + c s(q, d),     c learnt, 0 before training;
               a cross network and trees, with a memory or without, have s(q, d) among their inputs instead

s is the generator's score as it stands, and no gradient of the re-ranker reaches the generator through it. Which generator that
is says the pair: a `TwoStagePolicy` links its own.
"""

import copy
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from tandemrank.errors import PolicyError
from tandemrank.policies.scorers import Scorer

How = Literal["sum", "stacked"]


class Stacked(Scorer):
    """The scores of `base` and the generator's.  Shapes: q [B], items [B, M] -> [B, M]."""

    kind = "stacked"
    needs_generator = True

    def __init__(self, base: Scorer, how: How) -> None:
        super().__init__()
        if how not in ("sum", "stacked"):
            raise PolicyError(f"the generator's score is summed or stacked (sum, stacked); {str(how)[:60]!r} came")
        if isinstance(base, Stacked):
            raise PolicyError("this scorer has the generator's score already: give its base.")
        self.base, self.how = base, how
        self.scores_everything = base.scores_everything
        learnt = how == "stacked" and not base.takes_score
        self.weight = nn.Parameter(torch.zeros(1)) if learnt else None
        self._generator: tuple[Scorer, ...] = ()  # in a tuple: none of its weights are this scorer's

    def linked(self, generator: Scorer) -> "Stacked":
        """The same scorer, its weights shared, for the candidates of this generator."""
        if self._generator and self._generator[0] is generator:
            return self
        other = copy.copy(self)
        other._generator = (generator,)
        return other

    def __deepcopy__(self, memo: dict[int, Any]) -> "Stacked":
        """Weights of its own, and no generator: the pair that it becomes part of links its own."""
        other = Stacked(copy.deepcopy(self.base, memo), self.how)
        other.load_state_dict(self.state_dict())
        return other

    @property
    def generator(self) -> Scorer:
        """Whose scores it is handed."""
        if not self._generator:
            raise PolicyError("a stacked re-ranker needs its generator: make it the ranker of a `TwoStagePolicy`.")
        return self._generator[0]

    def forward(self, q: Tensor) -> Tensor:
        with torch.no_grad():
            s = self.generator(q)
        return self._with(self.base(q), s)

    def score(self, q: Tensor, items: Tensor) -> Tensor:
        with torch.no_grad():
            s = self.generator.score(q, items)
        if self.how == "stacked" and self.base.takes_score:
            return self.base.score_with(q, items, _finite(s))
        return self._with(self.base.score(q, items), s)

    def _with(self, r: Tensor, s: Tensor) -> Tensor:
        return r + s if self.weight is None else r + self.weight * _finite(s)

    def spec(self) -> dict[str, Any]:
        own = self.base.spec()
        return {"Q": own["Q"], "D": own["D"], "how": self.how, "base": {"kind": self.base.kind, "sizes": own}}

    @classmethod
    def from_spec(cls, spec: dict[str, Any]) -> "Stacked":
        base = spec["base"]
        return cls(Scorer.kinds[base["kind"]].from_spec(base["sizes"]), spec["how"])

    def per_query_parameters(self) -> Sequence[nn.Parameter]:
        return self.base.per_query_parameters()

    def owners(self) -> Sequence[Tensor]:
        return self.base.owners()

    def check(self) -> None:
        """Refuses what the base refuses, and a weight that is no number."""
        self.base.check()
        if self.weight is not None and not bool(torch.isfinite(self.weight).all()):
            raise PolicyError("the weight of the generator's score is not finite")


def _finite(s: Tensor) -> Tensor:
    """What is not available to the generator is no candidate: its score says nothing."""
    return torch.where(s == -torch.inf, 0.0, s)
