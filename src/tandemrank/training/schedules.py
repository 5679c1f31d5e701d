"""Baseline, Independent and Joint as data: a schedule is a sequence of phases, a phase is what happens for each minibatch.

Every phase is a sequence of steps, each of which improves one stage on the exposure by the pair, or by the stage alone.
"""

from typing import Literal, NamedTuple

import torch

from tandemrank.policies.two_stage import TwoStagePolicy

Stage = Literal["candidate", "ranker"]
View = Literal["pair", "candidate", "ranker"]
Method = Literal["baseline", "independent", "joint"]
JointStart = Literal["mean", "alone", "start"]


class Step(NamedTuple):
    """Improve `stage` on the exposure by `view`: the pair, or the stage alone."""

    stage: Stage
    view: View


class Phase(NamedTuple):
    """The steps of each minibatch, and whose lists are judged at the end of an epoch.

    With `from_mean` both stages begin from the mean of their weights, at the pace of `joint_rate` and `joint_epochs`.
    """

    name: str
    steps: tuple[Step, ...]
    judged: View
    from_mean: bool = False


GENERATOR_ALONE = Phase("generator alone", (Step("candidate", "candidate"),), "candidate")
RANKER_ALONE = Phase("ranker alone", (Step("ranker", "ranker"),), "ranker")
BOTH = Phase("both", (Step("candidate", "pair"), Step("ranker", "pair")), "pair")

SCHEDULES: dict[Method, tuple[Phase, ...]] = {
    # Ma et al. 2020: the re-ranker alone first; then the generator, for the frozen re-ranker.
    "baseline": (RANKER_ALONE, Phase("generator for the ranker", (Step("candidate", "pair"),), "pair")),
    "independent": (GENERATOR_ALONE, RANKER_ALONE),
    # The paper's method, each stage for the other, from stages that know their clicks already.
    "joint": (GENERATOR_ALONE, RANKER_ALONE, BOTH),
}


def schedule_of(method: Method, joint_start: JointStart, policy: TwoStagePolicy) -> tuple[Phase, ...]:
    """The phases of a method, for this policy to start from."""
    *alone, last = SCHEDULES[method]
    if method != "joint":
        return (*alone, last)
    if joint_start == "start":
        return (BOTH,)
    # Weights have a mean that means something only where both stages come from the same ones.
    return (*alone, last._replace(from_mean=joint_start == "mean" and _are_same(policy)))


def _are_same(policy: TwoStagePolicy) -> bool:
    """Whether the two stages are one model twice."""
    ours, theirs = policy.generator.state_dict(), policy.ranker.state_dict()
    return (
        type(policy.generator) is type(policy.ranker)
        and policy.generator.sizes() == policy.ranker.sizes()
        and all(torch.equal(ours[name], theirs[name]) for name in ours)
    )
