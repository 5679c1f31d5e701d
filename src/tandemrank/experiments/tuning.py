"""Peers on the log of a world: each is tuned on held-out clicks, then learns from the whole log.

    log -> (85% to learn from, 15% held out) -> setting, clicked items first or not -> fit on all of it -> lists

Logs of one length share what the first of them chose: tuning takes ten times as long as learning, and every run of a grid
would choose anew between settings that its held-out clicks can hardly tell apart.

Every peer may have what design and world allow: production's embeddings, the exact propensities in the judgement of held-out
clicks, clicked items first where these clicks prefer it, and a setting of its own for lists of new items. Only the last fit
uses the clicks that tuned it. None of it sees the truth.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from tandemrank._base.random import derive
from tandemrank.errors import LogError
from tandemrank.experiments.config import ExperimentConfig
from tandemrank.experiments.peers import ROWS, Evidence, Peer, Scores
from tandemrank.experiments.world import World, impressions, known_users
from tandemrank.logs.counting import shown_items, tally
from tandemrank.logs.sums import merge
from tandemrank.offpolicy import propensities
from tandemrank.policies.scorers import MatrixFactorisation
from tandemrank.training.stopping import held_out_dcg

Judge = Callable[[NDArray[np.int64], NDArray[np.int32]], float]

CLICKED_FIRST = "clicked_first"
HELD_OUT = 0.15  # of the impressions, to tune on; as early stopping has it


@dataclass(frozen=True)
class PeerLog:
    """A log as peers use it: the part to learn from while tuning, all of it, and the judge of lists by held-out clicks."""

    part: Evidence
    whole: Evidence
    judge: Judge


@dataclass(frozen=True)
class Lists:
    """The best K of all items, the same with clicked items first, and the best K of items that were not clicked.

    Shapes: each [n, K]; -1 where too few are new.
    """

    plain: NDArray[np.int32]
    clicked_first: NDArray[np.int32]
    new: NDArray[np.int32]


class Choice(NamedTuple):
    """What held-out clicks chose: a setting, with `clicked_first` 0 or 1, and one for lists of new items."""

    setting: dict[str, float]
    new_setting: dict[str, float]


@dataclass(frozen=True)
class Tuned:
    """A peer after its tuning: the lists that it shows, what was chosen, the seconds of a fit and of tuning (0: none)."""

    lists: NDArray[np.int32]
    new_lists: NDArray[np.int32]
    choice: Choice
    seconds: float
    tuning_seconds: float


def peer_log(world: World, config: ExperimentConfig, N: int, seed: int) -> PeerLog:
    """The log of N impressions that `trainer.simulate_log` draws, parted for peers."""
    ids = world.task.vocabulary
    shown = (shown_items(part, ids, None) for part in impressions(world, N, seed))
    shares = (HELD_OUT, (1 - HELD_OUT) / 2)
    first, held_out, second = tally(shown, lambda: ids, shares, derive(seed, "peers", N) % 2**32)
    if not all(part.clicks.sum() for part in (first, held_out, second)):
        raise LogError(f"not enough clicks to tune peers on, in {N} impressions. Give a longer log.")
    scorer = world.production.ranker
    assert isinstance(scorer, MatrixFactorisation)
    served, items = (x.detach().numpy() for x in (scorer.queries, scorer.items))
    known = served[known_users(world.task, config, seed)]
    part = Evidence(merge([first, second]), (first, second), world.theta, items, known, served)
    halves = (merge([first, held_out]), second)
    found = propensities.resolve(
        [held_out], world.theta, kind="exact", logging_policy=world.production,
        samples=config.learning.propensity_samples or propensities.SAMPLES, seed=derive(seed, "peers rho_0") % 2**32,
    )  # fmt: skip
    judge = held_out_dcg(found.rho_0[0], held_out, world.theta)
    return PeerLog(part, replace(part, log=merge(halves), halves=halves), judge)


def tune(peer: Peer, log: PeerLog, q: NDArray[np.int64], K: int, known: Choice | None = None) -> Tuned:
    """Chooses settings on held-out clicks, unless they are known, then learns from the whole log.

    Shapes: q [n] -> lists [n, K].
    """
    start = time.perf_counter()
    choice = known or choose(peer, log, q, K)
    middle = time.perf_counter()
    setting, is_first = dict(choice.setting), bool(choice.setting[CLICKED_FIRST])
    del setting[CLICKED_FIRST]
    found = lists_of(peer.fit(log.whole, setting), q, K, log.whole.binary)
    end = time.perf_counter()
    is_same = choice.new_setting == setting
    new = found if is_same else lists_of(peer.fit(log.whole, choice.new_setting), q, K, log.whole.binary)
    lists = found.clicked_first if is_first else found.plain
    return Tuned(lists, new.new, choice, end - middle, 0.0 if known else middle - start)


def choose(peer: Peer, log: PeerLog, q: NDArray[np.int64], K: int) -> Choice:
    """The settings that held-out clicks prefer.  Shapes: q [n]."""
    found: list[tuple[float, int, bool]] = []
    new: list[tuple[float, int]] = []
    for number, setting in enumerate(peer.settings):
        lists = lists_of(peer.fit(log.part, setting), q, K, log.part.binary)
        for is_first, shown in ((False, lists.plain), (True, lists.clicked_first)):
            found.append((_known(log.judge(q, shown)), -number, is_first))
        new.append((_known(log.judge(q, lists.new)), -number))
    (_, number, is_first), (_, new_number) = max(found), max(new)
    return Choice({**peer.settings[-number], CLICKED_FIRST: float(is_first)}, dict(peer.settings[-new_number]))


def _known(judgement: float) -> float:
    """A judgement, the lowest where no list meets a held-out click."""
    return -np.inf if np.isnan(judgement) else judgement


def lists_of(scores: Scores, q: NDArray[np.int64], K: int, clicked: csr_matrix) -> Lists:
    """The lists of scores.  Shapes: q [n]; clicked [Q, D] -> [n, K] each."""
    parts: list[tuple[NDArray[np.int32], ...]] = [tuple(np.empty((0, K), np.int32) for _ in range(3))]
    for start in range(0, len(q), ROWS):
        rows = q[start : start + ROWS]
        s = np.asarray(scores(rows), np.float32)
        pairs = clicked[rows].tocoo()
        spread = np.ptp(s, axis=1)
        lifted, new = s.copy(), s.copy()
        lifted[pairs.row, pairs.col] += (
            2 * np.where(spread > 0, spread, 1)[pairs.row]
        )  # above all others, in their order
        new[pairs.row, pairs.col] = -np.inf
        parts.append(tuple(_top(x, K) for x in (s, lifted, new)))
    return Lists(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _top(s: NDArray[np.float32], K: int) -> NDArray[np.int32]:
    """The places of the K highest of every row, -1 where fewer are above -inf.  Shapes: [B, D] -> [B, K]."""
    top = np.argpartition(-s, K - 1, axis=1)[:, :K]
    value = np.take_along_axis(s, top, 1)
    order = np.argsort(-value, axis=1, kind="stable")
    found = np.where(value > -np.inf, top, -1)
    return np.take_along_axis(found, order, 1).astype(np.int32)
