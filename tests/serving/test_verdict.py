"""A verdict while it runs: right in the end, rarely wrong however often one looks, and acted on by the server."""

import numpy as np
import pytest

from served import Clock, local, pair, saved
from tandemrank.serving import records
from tandemrank.serving.live_policy import LivePolicy, digest
from tandemrank.serving.records import Event, Impression, Settled, ShownList
from tandemrank.serving.verdict import LiveTest, Outcomes

K = 3
OLD, NEW = LivePolicy(pair(0)), LivePolicy(pair(1))


def split(share: float = 0.5, mode: str = "split") -> records.Traffic:
    return records.split(OLD, NEW, share, salt="s", mode=mode)


def impressions(rng, n: int, *, old: float, new: float, share: float = 0.5, mode: str = "split"):
    """Outcomes of pairs whose lists get clicks at these rates: Binomial(K, rate / K)."""
    now = split(share, mode)
    for _ in range(n):
        if mode == "interleave":
            teams = tuple(int(x) for x in rng.integers(2, size=K))
            clicked = tuple(k for k in range(K) if rng.random() < (new if teams[k] else old) / K)
            yield Settled(now, 0, teams, clicked, None)
        else:
            arm = int(rng.random() < share)
            clicked = tuple(k for k in range(K) if rng.random() < (new if arm else old) / K)
            yield Settled(now, arm, None, clicked, None)


@pytest.mark.parametrize("mode", ["split", "interleave"])
def test_equal_pairs_are_rarely_told_apart_however_often_one_looks(mode) -> None:
    rng, wrong = np.random.default_rng(0), 0
    runs = 40
    for _ in range(runs):
        test = LiveTest(split(mode=mode), K)
        decision = "continue"
        for settled in impressions(rng, 100, old=0.5, new=0.5, mode=mode):
            test.hear(settled)
            decision = test.look()
            if decision != "continue":
                break
        wrong += decision == "roll back"
    assert wrong <= 0.05 * runs + 5 * np.sqrt(0.05 * 0.95 * runs)


@pytest.mark.parametrize(("mode", "share"), [("split", 0.5), ("split", 0.1), ("interleave", 0.5)])
def test_half_the_clicks_are_seen_within_2000_impressions(mode, share) -> None:
    rng = np.random.default_rng(1)
    caught = 0
    for _ in range(20):
        test = LiveTest(split(share, mode), K, usual=0.5)
        for n, settled in enumerate(impressions(rng, 2000, old=0.5, new=0.25, share=share, mode=mode)):
            test.hear(settled)
            if n % 50 == 49 and test.look() == "roll back":
                caught += 1
                break
    assert caught >= 19


@pytest.mark.parametrize("mode", ["split", "interleave"])
def test_the_interval_holds_the_truth_and_ends_on_the_right_side(mode) -> None:
    test = LiveTest(split(mode=mode), K)
    empty = test.verdict()
    assert (empty.difference, empty.low, empty.high, empty.decision) == (None, -K, K, "continue")
    rng = np.random.default_rng(2)
    truth = 0.3 if mode == "split" else 0.15  # interleaved, each pair has half of the places
    for n, settled in enumerate(impressions(rng, 4000, old=0.5, new=0.8, mode=mode)):
        test.hear(settled)
        if n % 400 == 0:
            found = test.verdict()
            assert found.low <= truth <= found.high
    found = test.verdict()
    assert found.decision == "promote"
    assert 0 < found.low < found.difference < found.high
    assert found.p_better < 0.05 < found.p_worse
    assert found.low < found.at_least < truth < found.at_most < found.high
    assert len(test.history) > 2


@pytest.mark.parametrize("mode", ["split", "interleave"])
def test_what_is_printed_is_what_decides(mode) -> None:
    """Rolled back exactly where the upper bound that is printed is below 0, promoted where the lower is above 0."""
    for new, ends in ((0.1, "roll back"), (1.2, "promote")):
        test, rng, seen = LiveTest(split(mode=mode), K, usual=0.5), np.random.default_rng(5), set()
        before = -K, K
        for n, settled in enumerate(impressions(rng, 700, old=0.5, new=new, mode=mode)):
            test.hear(settled)
            if n % 25 == 0:
                found = test.verdict()
                assert before[0] <= found.at_least  # what was sure once stays so
                assert found.at_most <= before[1]
                before = found.at_least, found.at_most
                wanted = "roll back" if found.at_most < 0 else "promote" if found.at_least > 0 else "continue"
                assert found.decision == wanted
                seen.add(found.decision)
        assert seen == {"continue", ends}


def test_a_unit_counts_once_and_other_traffic_not_at_all() -> None:
    test = LiveTest(split(), K)
    for n in range(10):
        test.hear(Settled(split(), n % 2, None, (0,), "somebody"))
        test.hear(Settled(records.single(OLD), 0, None, (0,), None))
        test.hear(Settled(split(mode="interleave"), 0, (0, 1, 0), (0,), None))
    test.look()
    assert sum(test.impressions) == 1
    test.hear(Settled(split(0.3), 1, None, (), None))  # the share may change
    test.look()
    assert sum(test.impressions) == 2


def drive(server, clock, rng, n: int, rates: dict[str, float]) -> None:
    """Users who click on the first item at a rate that depends on the pair."""
    for _ in range(n):
        found = server.post("/rank", {"query_id": 11}).json()
        if rng.random() < rates[found["policy"]]:
            body = {"impression_id": found["impression_id"], "events": [{"item": found["items"][0]}]}
            server.post("/feedback", body)
    clock.now += 100
    server.context.service.tick()


@pytest.mark.parametrize(("rate", "ends"), [(0.05, "rolled back"), (0.95, "answers everything: better")])
def test_the_server_rolls_back_a_bad_pair_and_promotes_only_if_asked(tmp_path, rate, ends) -> None:
    folder = saved(tmp_path / "pairs", 0, 1)
    clock, rng = Clock(), np.random.default_rng(0)
    rates = {digest(pair(0)): 0.5, digest(pair(1)): rate}
    with local(folder, log=tmp_path / "log", clock=clock, promote=rate > 0.5) as server:
        new = server.post("/pairs", {"folder": "pair-1"}, admin=True).json()["policy"]
        drive(server, clock, rng, 100, rates)
        server.post("/split", {"policy": new, "share": 0.5}, admin=True)
        for _ in range(20):
            drive(server, clock, rng, 50, rates)
            if server.get("/status").json()["traffic"]["mode"] == "single":
                break
        status = server.get("/status").json()
        assert ends in status["changes"][-1]["words"]
        assert status["verdict"]["decision"] == ("roll back" if rate < 0.5 else "promote")
        assert status["tallies"][new]["impressions"] > 20
        assert status["tallies"][new]["by_rank"][0] == status["tallies"][new]["clicks"]


def test_without_leave_a_better_pair_is_only_proposed(tmp_path) -> None:
    folder = saved(tmp_path / "pairs", 0, 1)
    clock, rng = Clock(), np.random.default_rng(0)
    with local(folder, log=tmp_path / "log", clock=clock, rollback=False) as server:
        new = server.post("/pairs", {"folder": "pair-1"}, admin=True).json()["policy"]
        server.post("/split", {"policy": new, "share": 0.5}, admin=True)
        for _ in range(8):
            drive(server, clock, rng, 50, {digest(pair(0)): 0.1, new: 0.9})
        status = server.get("/status").json()
        assert status["traffic"]["mode"] == "split"
        assert status["verdict"]["decision"] == "promote"
        assert status["history"]


def test_outcomes_are_settled_in_order_and_memory_is_bounded(tmp_path) -> None:
    folder = saved(tmp_path / "pairs", 0)
    clock = Clock()
    heard: list[Settled] = []
    with local(folder, log=tmp_path / "log", clock=clock) as server:
        service = server.context.service
        service.outcomes = service.server.watcher = Outcomes(window=100, settle=10, most=5, heard=heard.append)
        ids = [server.post("/rank", {"query_id": 11}).json() for _ in range(8)]
        assert len(heard) == 3  # what no longer fits is settled as it is
        body = {"impression_id": ids[-1]["impression_id"], "events": [{"item": ids[-1]["items"][1]}]}
        assert server.post("/feedback", body).json()["counted"] == 1
        gone = {"impression_id": ids[0]["impression_id"], "events": [{"item": ids[0]["items"][1]}]}
        assert server.post("/feedback", gone).json()["unknown"] == 1
        clock.now += 20
        service.tick()
        assert [s.ranks for s in heard] == [()] * 7 + [(1,)]
        later = {"impression_id": ids[-1]["impression_id"], "events": [{"item": ids[-1]["items"][0]}]}
        assert server.post("/feedback", later).json()["counted"] == 1  # for the log, not for the verdict
        assert [s.ranks for s in heard] == [()] * 7 + [(1,)]
        clock.now += 200
        service.tick()
        assert server.post("/feedback", body).json()["unknown"] == 1


@pytest.mark.parametrize("teams", [None, (0, 1, 0)])
def test_an_outcome_is_settled_once(teams) -> None:
    """By its age, and not once more where there is no room for it."""
    heard: list[Settled] = []
    outcomes = Outcomes(window=100, settle=10, most=2, heard=heard.append)
    now = split(mode="split" if teams is None else "interleave")

    def show(name: str, time: float) -> None:
        impression = Impression(
            id=name, time=time, query_id=11, items=("i1", "i2", "i3"), policy="p", strategy="trained", key=0, places=K,
            available=None, mixture=(("p", 1.0),), theta=(1.0, 0.5, 0.3),
        )  # fmt: skip
        outcomes.shown(ShownList(impression, now.by_name, 1, teams, None))

    show("a", 0.0)
    assert outcomes.event("a", Event("i2"), 1.0) == "counted"
    assert outcomes.settle(11.0) == 1
    show("b", 12.0)
    show("c", 13.0)  # no room for "a"
    show("d", 14.0)  # nor for "b", which was not settled
    assert [settled.ranks for settled in heard] == [(1,), ()]
    assert outcomes.tallies[NEW.digest].impressions == 2
    assert outcomes.tallies[NEW.digest].clicks == 1
    assert outcomes.settle(200.0) == 2
    assert len(heard) == 4


@pytest.mark.parametrize("mode", ["split", "interleave"])
def test_what_was_shown_once_stays_shown(mode) -> None:
    """The wealth of the bet may fall again; what it was at its peak decides, and the p-value is that of the peak."""
    test, rng = LiveTest(split(mode=mode), K, usual=0.5), np.random.default_rng(0)
    for settled in impressions(rng, 400, old=1.5, new=0.3, mode=mode):
        test.hear(settled)
    peak = test.verdict()
    assert peak.decision == "roll back"
    for settled in impressions(rng, 4000, old=0.3, new=1.5, mode=mode):
        test.hear(settled)
    now = test.verdict()
    assert test._evidence()[1] < 0 < -np.log(peak.p_worse)
    assert (now.p_worse, now.decision) == (peak.p_worse, "roll back")
    assert now.difference > 0
