"""Baseline, Independent, Stacking and Joint as data: a schedule is a sequence of phases, and a phase what a minibatch does.

Every phase is a sequence of steps, each of which improves one stage on the exposure by the pair, or by the stage alone.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch

from tandemrank.errors import ConfigError
from tandemrank.policies.scorers import Scorer

Stage = Literal["generator", "ranker"]
View = Literal["pair", "generator", "ranker"]
Method = Literal["beliefs", "baseline", "independent", "stacking", "joint"]
ScheduleName = Literal["tandem", "paper"]
UNTRAINED: Method = "beliefs"  # both stages are the beliefs of the log, as they are


def stages_of(view: View) -> tuple[Stage, ...]:
    """Whose scores a view needs."""
    return ("generator", "ranker") if view == "pair" else (view,)


class Step(NamedTuple):
    """Improve `stage` on the exposure by `view`: the pair, or the stage alone."""

    stage: Stage
    view: View


@dataclass(frozen=True)
class Phase:
    """The steps of each minibatch, and whose lists are judged at the end of an epoch.

    Seeds and checkpoints know a phase by its `key`, readers by its `name`: a better name changes no number. With
    `from_mean` both stages begin from the mean of their weights; `rate` is a share of the learning rates, `most_epochs` a
    limit below the configuration's. All steps on one view are taken from one draw
    (`at_once`), or each from its own. `among_candidates`: a generator alone is trained for a place among the K2, not for rank.
    """

    key: str
    name: str
    steps: tuple[Step, ...]
    view: View
    from_mean: bool = False
    rate: float = 1.0
    most_epochs: int | None = None
    at_once: bool = True
    among_candidates: bool = False

    @property
    def is_alone(self) -> bool:
        """Whether it concerns one stage, so that the method makes no difference."""
        return self.view != "pair"

    @property
    def knows_candidates(self) -> bool:
        """Whether K2 makes a difference."""
        return not self.is_alone or self.among_candidates

    def of(self, moving: Collection[str]) -> "Phase":
        """The phase of a policy of which only some stages have something to train."""
        return replace(self, steps=tuple(step for step in self.steps if step.stage in moving))

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages that move."""
        return tuple(dict.fromkeys(step.stage for step in self.steps))


GENERATOR_ALONE = Phase("generator alone", "generator alone", (Step("generator", "generator"),), "generator")
RANKER_ALONE = Phase("ranker alone", "re-ranker alone", (Step("ranker", "ranker"),), "ranker")
GENERATOR_FOR_RANKER = Phase(
    "generator for the ranker", "generator for the re-ranker", (Step("generator", "pair"),), "pair"
)
RANKER_FOR_GENERATOR = Phase(
    "ranker for the generator", "re-ranker for the generator's candidates", (Step("ranker", "pair"),), "pair"
)
GENERATOR_AMONG = replace(GENERATOR_ALONE, key="generator among K2", among_candidates=True)
BOTH = Phase("both", "both stages", (Step("generator", "pair"), Step("ranker", "pair")), "pair")
# Of two models: in every minibatch the generator for a place among the K2, and then both for each other. For each other alone a
# click teaches a stage only what the other one lets through; a generator that was first trained alone has settled for a
# compromise. As many passes over the log as Stacking has, and as many epochs of each stage (docs/results).
TANDEM = Phase(
    "tandem",
    "both stages",
    (Step("generator", "generator"), Step("generator", "pair"), Step("ranker", "pair")),
    "pair",
    among_candidates=True,
)
# Little is left to learn there, and at the full rate the noise of the draws takes some of it away.
BOTH_FROM_MEAN = replace(BOTH, from_mean=True, rate=0.25, most_epochs=8)

ALONE = (GENERATOR_ALONE, RANKER_ALONE)
# What is usual: the generator alone; then the re-ranker, for the candidates of the frozen generator.
STACKING = (GENERATOR_ALONE, RANKER_FOR_GENERATOR)
# Ma et al. 2020: the re-ranker alone first; then the generator, for the frozen re-ranker.
BASELINE = (RANKER_ALONE, GENERATOR_FOR_RANKER)

JOINT: dict[ScheduleName, tuple[Phase, ...]] = {
    # Each stage for the other, from stages that know their clicks already.
    "tandem": (*ALONE, BOTH_FROM_MEAN),
    # The paper's: "for each minibatch, the candidate generator and the re-ranker are updated alternatingly".
    "paper": (replace(BOTH, at_once=False),),
}


def schedule_of(method: Method, name: ScheduleName, generator: Scorer, ranker: Scorer) -> tuple[Phase, ...]:
    """The phases of a method, for these two stages to start from; none where nothing is trained.

    Weights have a mean that means something only where both stages come from the same ones; others each go on from their own.
    """
    if method == UNTRAINED:
        return ()
    if are_same(generator, ranker):
        return {"baseline": BASELINE, "independent": ALONE, "stacking": STACKING, "joint": JOINT[name]}[method]
    stages = (("generator", generator), ("ranker", ranker))
    moving = {stage for stage, one in stages if any(p.requires_grad for p in one.parameters())}
    found = (phase.of(moving) for phase in _of_two_models(method, name, generator, ranker))
    return tuple(phase for phase in found if phase.steps)


def _of_two_models(method: Method, name: ScheduleName, generator: Scorer, ranker: Scorer) -> tuple[Phase, ...]:
    """The phases where the stages are two models: the generator alone knows K2, and every stage has as many epochs in every
    method."""
    if method in ("baseline", "independent") and ranker.needs_generator:
        raise ConfigError(
            f"a re-ranker that is given the generator's score learns after the generator; {method} trains it without one. Use "
            "stacking or joint."
        )
    if method == "baseline":
        return BASELINE
    if method == "independent":
        return GENERATOR_AMONG, RANKER_ALONE
    if method == "stacking":
        return GENERATOR_AMONG, RANKER_FOR_GENERATOR
    if name == "paper":
        return JOINT["paper"]
    return (TANDEM,)


def are_same(generator: Scorer, ranker: Scorer) -> bool:
    """Whether the two stages are one model twice."""
    ours, theirs = generator.state_dict(), ranker.state_dict()
    return (
        type(generator) is type(ranker)
        and generator.spec() == ranker.spec()
        and all(torch.equal(ours[name], theirs[name]) for name in ours)
    )
