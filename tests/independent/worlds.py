"""Worlds in plain NumPy that share no code with the package: a log, the truth, what is known of queries and items, a judge.

Production has two stages and is no Plackett-Luce: the generator takes the K2 best of its scores plus normal noise, the ranker
the K best of its own scores plus normal noise, and a share of the slots shows a random candidate instead. Users look at rank
k with chance theta_k and click what they look at with chance R[q, d], unless the world says otherwise (`trust`, `stop`).

The judge counts true expected clicks, sum_k theta_k R[q, d_k], of one list per query, the queries as they come (`traffic`).
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]
ROWS = 4096  # lists drawn at once
STOPS = 0.8  # of the readers who stop, after a click


@dataclass(frozen=True)
class World:
    """The truth, production and its log, in the order of time.

    `R` is what holds after the log. `s_c`, `s_r`: production's scores, its noise `sigma` for both stages. `cold`: queries that
    are not in the log. `traffic`: how often queries come. Shapes: R, s_c, s_r [Q, D]; theta [K]; traffic [Q]; query [n];
    items, clicks [n, K]; query_features [Q, J]; item_features [D, J].
    """

    name: str
    R: Floats
    s_c: Floats
    s_r: Floats
    sigma: tuple[float, float]
    random_share: float
    K2: int
    theta: Floats
    traffic: Floats
    cold: Whole
    query: Whole = field(default_factory=lambda: np.zeros(0, np.int64))
    items: Whole = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    clicks: Whole = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    query_features: Floats | None = None
    item_features: Floats | None = None
    trust: float = 0.0
    stop: bool = False

    @property
    def known(self) -> Whole:
        """The queries that may be in the log.  Shapes: -> [n]."""
        return np.setdiff1d(np.arange(len(self.R)), self.cold)

    def clicked(self) -> NDArray[np.bool_]:
        """The pairs that were clicked.  Shapes: -> [Q, D]."""
        found = np.zeros(self.R.shape, np.bool_)
        row, place = np.nonzero(self.clicks)
        found[self.query[row], self.items[row, place]] = True
        return found


def sigmoid(x: Floats) -> Floats:
    """1 / (1 + exp(-x))."""
    return 1 / (1 + np.exp(-x))


def best(scores: Floats, n: int) -> Whole:
    """The places of the n highest of every row, the highest first.  Shapes: [B, D] -> [B, n]."""
    n = min(n, scores.shape[1])
    top = np.argpartition(-scores, n - 1, axis=1)[:, :n]
    order = np.argsort(-np.take_along_axis(scores, top, 1), axis=1, kind="stable")
    return np.take_along_axis(top, order, 1)


def shown(w: World, rows: Whole, rng: np.random.Generator, available: NDArray[np.bool_] | None = None) -> Whole:
    """Production's lists for some queries.  Shapes: rows [n]; available [D] -> [n, K]."""
    K, lists = len(w.theta), []
    for first in range(0, len(rows), ROWS):
        part = rows[first : first + ROWS]
        light = w.s_c[part] + w.sigma[0] * rng.normal(size=(len(part), w.R.shape[1]))
        if available is not None:
            light[:, ~available] = -np.inf
        candidates = best(light, w.K2)
        heavy = np.take_along_axis(w.s_r[part], candidates, 1) + w.sigma[1] * rng.normal(size=candidates.shape)
        heavy = np.where(
            rng.random(heavy.shape) < w.random_share * K / w.K2, heavy.max() + rng.random(heavy.shape), heavy
        )
        order = best(heavy, K)
        # Random candidates came first; the list's slots are shuffled so that they stand anywhere.
        lucky = np.take_along_axis(heavy, order, 1) > heavy.max() - 1
        swap = np.argsort(np.where(lucky, rng.random(order.shape) * K, np.arange(K)[None, :]), axis=1, kind="stable")
        order = np.take_along_axis(order, swap, 1)
        lists.append(np.take_along_axis(candidates, order, 1))
    return np.concatenate(lists) if lists else np.zeros((0, K), np.int64)


def production_value(w: World, q: Whole, *, samples: int = 40, seed: int = 0) -> Floats:
    """Expected clicks of production's own lists.  Shapes: q [B] -> [B]."""
    rows = np.repeat(np.arange(len(q)), samples)
    lists = shown(w, q[rows], np.random.default_rng(seed))
    gained = (w.theta * w.R[q[rows, None], lists]).sum(1)
    return np.bincount(rows, gained, len(q)) / samples


def value(w: World, lists: Whole, q: Whole) -> float:
    """The mean of sum_k theta_k R over queries as they come.  Shapes: lists [B, K]; q [B]."""
    gained = (w.theta[: lists.shape[1]] * w.R[q[:, None], lists]).sum(1)
    return float(np.average(gained, weights=w.traffic[q]))


@dataclass(frozen=True)
class Judged:
    """True clicks of the most likely lists: known queries, items not clicked before, and queries that the log has not seen."""

    all_items: float
    new_items: float
    cold: float


def judge(w: World, scores: Callable[[Whole], Floats]) -> Judged:
    """Of a learner that scores all items of some queries.  Shapes of `scores`: q [B] -> [B, D]."""
    q, K = w.known, len(w.theta)
    s = np.asarray(scores(q), np.float64)
    fresh = np.where(w.clicked()[q], -np.inf, s)
    cold = value(w, best(np.asarray(scores(w.cold), np.float64), K), w.cold) if len(w.cold) else float("nan")
    return Judged(value(w, best(s, K), q), value(w, best(fresh, K), q), cold)


def judge_production(w: World) -> Judged:
    """Production's own lists, drawn; of new items the best of its ranker's scores."""
    q, K = w.known, len(w.theta)
    fresh = np.where(w.clicked()[q], -np.inf, w.s_r[q])
    everything = float(np.average(production_value(w, q), weights=w.traffic[q]))
    cold = float(np.average(production_value(w, w.cold), weights=w.traffic[w.cold])) if len(w.cold) else float("nan")
    return Judged(everything, value(w, best(fresh, K), q), cold)


def judge_best(w: World) -> Judged:
    """What nobody can exceed."""
    return judge(w, lambda q: w.R[q])


def logged(w: World, n: int, rng: np.random.Generator, *, trust: float = 0.0, stop: bool = False) -> World:
    """The world with a log of n impressions.

    `trust`: an examined item of rank k is clicked with chance R + trust (1 - R) / k. `stop`: users read from the top, each
    next item with chance theta_k / theta_(k - 1), and stop after a click with chance STOPS.
    """
    p = w.traffic[w.known] / w.traffic[w.known].sum()
    query = rng.choice(w.known, size=n, p=p)
    items = shown(w, query, rng)
    clicks = clicks_on(w, query, items, rng, trust=trust, stop=stop)
    return replace(w, query=query, items=items, clicks=clicks, trust=trust, stop=stop)


def clicks_on(
    w: World, query: Whole, items: Whole, rng: np.random.Generator, *, trust: float = 0.0, stop: bool = False
) -> Whole:
    """Clicks on lists.  Shapes: query [n]; items [n, K] -> [n, K]."""
    R, K = w.R[query[:, None], items], len(w.theta)
    chance = R + trust * (1 - R) / np.arange(1, K + 1)
    if not stop:
        return (rng.random(items.shape) < w.theta * chance).astype(np.int64)
    reading, clicks = np.ones(len(query), np.bool_), np.zeros(items.shape, np.int64)
    for k in range(K):
        reading &= rng.random(len(query)) < (w.theta[k] / w.theta[k - 1] if k else w.theta[0])
        clicks[:, k] = reading & (rng.random(len(query)) < chance[:, k])
        reading &= (clicks[:, k] == 0) | (rng.random(len(query)) < 1 - STOPS)
    return clicks


def expected_clicks(w: World, query: Whole, lists: Whole) -> Floats:
    """Clicks that these users would give to lists; a place of -1 is empty.  Shapes: query [n]; lists [n, K] -> [n]."""
    there = lists >= 0
    R = np.where(there, w.R[query[:, None], np.maximum(lists, 0)], 0.0)
    chance = np.where(there, R + w.trust * (1 - R) / np.arange(1, lists.shape[1] + 1), 0.0)
    theta = w.theta[: lists.shape[1]]
    if not w.stop:
        return (theta * chance).sum(1)
    found, reading = np.zeros(len(query)), np.ones(len(query))
    for k in range(lists.shape[1]):
        reading = reading * (theta[k] / theta[k - 1] if k else theta[0])
        found += reading * chance[:, k]
        reading = reading * (1 - STOPS * chance[:, k])
    return found


def graded(
    name: str, rng: np.random.Generator, *, queries: int = 800, items: int = 400, top: float = 0.75, middle: float = -2.0,
    popular: float = 0.9, taste: float = 1.2, own: float = 0.6, knows: float = 0.6, zipf: float = 0.6, cold: int = 0,
    K: int = 10, K2: int = 40,
) -> World:  # fmt: skip
    """R = top sigmoid(level + popularity + taste of rank 6 + the pair's own part); production knows a share `knows` of it."""
    level = popular * rng.normal(size=items)
    u, v = rng.normal(size=(queries, 6)), rng.normal(size=(items, 6)) / np.sqrt(6)
    log_odds = middle + level + taste * u @ v.T + own * rng.normal(size=(queries, items))
    noise = np.sqrt(1 / knows**2 - 1)
    light = knows * (level + noise * popular * rng.normal(size=items)) + taste * knows * u[:, :3] @ v[:, :3].T
    u_known = u + noise * 0.7 * rng.normal(size=u.shape)
    heavy = knows**2 * (level + noise * popular * rng.normal(size=items)) + taste * knows**2 * u_known @ v.T
    heavy = heavy + 0.5 * knows * own * rng.normal(size=heavy.shape)
    traffic = 1 / np.arange(1, queries + 1) ** zipf
    theta = 1 / np.arange(1, K + 1) ** 0.7
    away = rng.permutation(queries)[:cold]
    return World(
        name=name, R=top * sigmoid(log_odds), s_c=light, s_r=heavy, sigma=(0.7, 0.5), random_share=0.05, K2=K2, theta=theta,
        traffic=traffic[rng.permutation(queries)], cold=np.sort(away),
    )  # fmt: skip


def shop(name: str, seed: int, n: int) -> World:
    """A shop with graded relevance up to .75; a production that has room to improve; five features of the items, five of
    the queries that tell a part."""
    rng = np.random.default_rng(seed)
    return logged(graded(name, rng, knows=0.4, middle=-1.2), n, rng)


def low_rates(name: str, seed: int, n: int) -> World:
    """Click rates of 2 to 3%."""
    rng = np.random.default_rng(seed)
    return logged(graded(name, rng, middle=-5.0, knows=0.5, queries=600), n, rng)


def good_production(seed: int) -> World:
    """Production is nearly the best: it knows R up to a little noise."""
    rng = np.random.default_rng(seed)
    w = graded("good production", rng, middle=-1.2, own=0.9)
    truth = np.log(w.R / (0.75 - w.R))
    w = replace(w, s_c=truth + 0.6 * rng.normal(size=truth.shape), s_r=truth + 0.4 * rng.normal(size=truth.shape))
    return logged(replace(w, sigma=(0.2, 0.2), random_share=0.02), 40_000, rng)


def nothing_to_learn(seed: int) -> World:
    """Hardly any clicks, hardly any difference between queries."""
    rng = np.random.default_rng(seed)
    return logged(graded("nothing to learn", rng, middle=-5.0, taste=0.3, own=0.2, popular=0.5, knows=0.8), 8_000, rng)


def zipf(seed: int) -> World:
    """Queries by Zipf's law of exponent 1.1; the first has a fifth of the log."""
    rng = np.random.default_rng(seed)
    return logged(graded("zipf", rng, queries=1500, zipf=1.1, knows=0.5), 100_000, rng)


def sparse(seed: int) -> World:
    """Queries seen twice in the mean."""
    rng = np.random.default_rng(seed)
    return logged(graded("sparse", rng, queries=2000, zipf=0.2, knows=0.6, middle=-1.5), 4_000, rng)


def drift(seed: int) -> World:
    """Popularity and tastes change half way; what holds at the end counts."""
    rng = np.random.default_rng(seed)
    before = graded("drift", rng, knows=0.5, middle=-1.5)
    after = graded("drift", rng, knows=0.5, middle=-1.5)
    mixed = np.log(before.R / (0.75 - before.R)) * 0.4 + np.log(after.R / (0.75 - after.R)) * 0.75
    later = replace(before, R=0.75 * sigmoid(mixed))
    first, second = logged(before, 40_000, rng), logged(later, 40_000, rng)
    return replace(
        later, query=np.concatenate([first.query, second.query]), items=np.concatenate([first.items, second.items]),
        clicks=np.concatenate([first.clicks, second.clicks]),
    )  # fmt: skip


def new_items(seed: int) -> World:
    """A fifth of the items appear in the last tenth of the log; features tell a half of what they are."""
    rng = np.random.default_rng(seed)
    w = taste_and_features("new items", rng, queries=800, items=500)
    late = np.zeros(w.R.shape[1], np.bool_)
    late[rng.permutation(len(late))[: len(late) // 5]] = True
    p = w.traffic[w.known] / w.traffic[w.known].sum()
    query = rng.choice(w.known, size=50_000, p=p)
    items = np.concatenate([shown(w, query[:45_000], rng, ~late), shown(w, query[45_000:], rng)])
    return replace(w, query=query, items=items, clicks=clicks_on(w, query, items, rng))


def trust(seed: int) -> World:
    """Trust bias: high ranks are clicked more than their relevance says."""
    rng = np.random.default_rng(seed)
    return logged(graded("trust bias", rng, knows=0.5, middle=-1.5), 60_000, rng, trust=0.15)


def stop(seed: int) -> World:
    """Readers who stop after a click."""
    rng = np.random.default_rng(seed)
    return logged(graded("readers who stop", rng, knows=0.5, middle=-1.5), 60_000, rng, stop=True)


def taste_and_features(
    name: str, rng: np.random.Generator, *, queries: int = 2000, items: int = 1500,
    shares: tuple[float, float, float] = (1, 1, 1), cold: int = 0,
) -> World:  # fmt: skip
    """Relevance = level + taste of rank 6 + a nonlinear pair term of 8 + 8 features, `shares` of the variance each."""
    z_q, z_d = rng.normal(size=(queries, 8)), rng.normal(size=(items, 8))
    u, v = rng.normal(size=(queries, 6)), rng.normal(size=(items, 6))
    hidden = rng.normal(size=(8, 6)) / np.sqrt(8), rng.normal(size=(8, 6)) / np.sqrt(8)
    pair = np.tanh(z_q @ hidden[0]) @ np.tanh(z_d @ hidden[1]).T + 0.5 * np.maximum(z_q[:, :1], 0) * z_d[:, :1].T
    parts = [np.tile(rng.normal(size=items), (queries, 1)), u @ v.T, pair]
    whole = sum(np.sqrt(share) * (x - x.mean()) / x.std() for share, x in zip(shares, parts, strict=True))
    whole = np.asarray(whole) * 1.5 / np.sqrt(sum(shares))
    knows = 0.5 * whole + 0.7 * rng.normal(size=(queries, 3)) @ rng.normal(size=(3, items)) / np.sqrt(3)
    heavy = knows + 0.5 * parts[2] / parts[2].std()
    w = World(
        name=name, R=0.75 * sigmoid(whole - 3.0), s_c=knows, s_r=heavy, sigma=(1.0, 0.7), random_share=0.05, K2=50,
        theta=1 / np.arange(1, 11) ** 0.7, traffic=1 / np.arange(1, queries + 1) ** 0.4,
        cold=np.sort(rng.permutation(queries)[:cold]), query_features=z_q, item_features=z_d,
    )  # fmt: skip
    return replace(w, traffic=w.traffic[rng.permutation(queries)])


def features_only(seed: int) -> World:
    """No taste beyond the features."""
    rng = np.random.default_rng(seed)
    w = taste_and_features("features only", rng, queries=1000, items=600, shares=(0.5, 0, 1), cold=100)
    return logged(w, 40_000, rng)


def both(seed: int, *, noise: int = 0) -> World:
    """Taste and features, a third each; a tenth of the queries is not in the log; `noise` columns that say nothing."""
    rng = np.random.default_rng(seed)
    w = logged(taste_and_features("taste and features", rng, cold=200), 100_000, rng)
    if not noise or w.query_features is None or w.item_features is None:
        return w
    more = [rng.normal(size=(n, noise)) for n in w.R.shape]
    return replace(
        w, query_features=np.hstack([w.query_features, more[0]]), item_features=np.hstack([w.item_features, more[1]])
    )


def smallest(seed: int) -> World:
    """40 queries, 30 items, 2,500 impressions per query, relevance at most .15."""
    rng = np.random.default_rng(seed)
    w = graded("forty queries", rng, queries=40, items=30, top=0.15, middle=-1.5, knows=0.4, zipf=0.8, K=5, K2=15)
    return logged(replace(w, sigma=(1.0, 0.7)), 100_000, rng)


def gowalla_like(seed: int) -> World:
    """15,000 items, 3,000 users, one clicked item per user in the mean."""
    rng = np.random.default_rng(seed)
    w = graded(
        "one click per user", rng, queries=3000, items=15_000, top=0.6, middle=-4.5, taste=1.8, popular=1.2, zipf=0.0
    )
    return logged(replace(w, K2=200), 15_000, rng)


def never_shown(seed: int) -> tuple[World, NDArray[np.bool_]]:
    """Items that no list has had: 20 are new (-> [D]), and some production thinks badly of, rightly; 15 appear late. Features
    tell most of an item's level."""
    rng = np.random.default_rng(seed)
    Q, D, J, n = 400, 300, 6, 40_000
    z_q, z_d = rng.normal(size=(Q, J)), rng.normal(size=(D, J))
    level = 0.7 * z_d[:, 0] + 0.5 * z_d[:, 1] + 0.3 * rng.normal(size=D)
    pair = z_q @ rng.normal(size=(J, J)) @ z_d.T / J
    own = rng.normal(size=(Q, 4)) @ rng.normal(size=(4, D)) / 2
    taste = 0.8 * pair / pair.std() + 0.6 * own / own.std()
    knows = level + 0.3 * taste
    w = World(
        name="never shown", R=0.8 * sigmoid(level + taste - 1.5), s_c=knows + 0.3 * rng.normal(size=taste.shape),
        s_r=knows + 0.4 * rng.normal(size=taste.shape), sigma=(0.5, 0.5), random_share=0.05, K2=30,
        theta=1 / np.arange(1, 9) ** 0.7, traffic=1 / np.arange(1, Q + 1) ** 0.5, cold=np.zeros(0, np.int64),
        query_features=z_q, item_features=z_d,
    )  # fmt: skip
    order, there = rng.permutation(D), np.ones((2, D), np.bool_)
    there[0, order[:35]] = there[1, order[:20]] = False
    query = rng.choice(Q, size=n, p=w.traffic / w.traffic.sum())
    parts = zip(np.split(query, [n * 3 // 5]), there, strict=True)
    items = np.concatenate([shown(w, part, rng, available) for part, available in parts])
    return replace(w, query=query, items=items, clicks=clicks_on(w, query, items, rng)), ~there[1]


WORLDS: dict[str, Callable[[int], World]] = {
    "shop 30k": lambda seed: shop("shop 30k", seed, 30_000),
    "shop 200k": lambda seed: shop("shop 200k", seed, 200_000),
    "low rates 60k": lambda seed: low_rates("low rates 60k", seed, 60_000),
    "low rates 200k": lambda seed: low_rates("low rates 200k", seed, 200_000),
    "good production": good_production,
    "nothing to learn": nothing_to_learn,
    "zipf": zipf,
    "sparse": sparse,
    "drift": drift,
    "new items": new_items,
    "trust bias": trust,
    "readers who stop": stop,
    "features only": features_only,
    "taste and features": both,
    "forty queries": smallest,
    "one click per user": gowalla_like,
}
