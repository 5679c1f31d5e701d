"""A verdict while it runs: right in the end, rarely wrong however often one looks, and acted on by the server."""

import numpy as np
import pytest

from served import Clock, local, policy, saved, shown
from tandemrank.serving.live_policy import digest
from tandemrank.serving.records import StoredEvent
from tandemrank.serving.verdict import LiveTest, Outcomes

K = 3


def mixture(share: float = 0.5) -> tuple[tuple[str, float], ...]:
    return ("old", 1 - share), ("new", share)


def live_test(share: float = 0.5, **options: float) -> LiveTest:
    return LiveTest(mixture(share), K, **options)


def impressions(rng, n: int, *, old: float, new: float, share: float = 0.5):
    """Outcomes of policies whose lists get clicks at these rates: Binomial(K, rate / K)."""
    for _ in range(n):
        arm = int(rng.random() < share)
        clicked = tuple(k for k in range(K) if rng.random() < (new if arm else old) / K)
        yield shown(mixture(share), arm), clicked


def test_equal_policies_are_rarely_told_apart_however_often_one_looks() -> None:
    rng, wrong = np.random.default_rng(0), 0
    runs = 20
    for _ in range(runs):
        test = live_test()
        decision = "continue"
        for outcome in impressions(rng, 100, old=0.5, new=0.5):
            test.hear(*outcome)
            decision = test.look()
            if decision != "continue":
                break
        wrong += decision == "roll back"
    assert wrong <= 0.05 * runs + 5 * np.sqrt(0.05 * 0.95 * runs)


@pytest.mark.parametrize("share", [0.5, 0.1])
def test_half_the_clicks_are_seen_within_2000_impressions(share) -> None:
    rng = np.random.default_rng(1)
    caught = 0
    for _ in range(20):
        test = live_test(share, usual=0.5)
        for n, outcome in enumerate(impressions(rng, 2000, old=0.5, new=0.25, share=share)):
            test.hear(*outcome)
            if n % 50 == 49 and test.look() == "roll back":
                caught += 1
                break
    assert caught >= 19


def test_the_interval_holds_the_truth_and_ends_on_the_right_side() -> None:
    test = live_test()
    empty = test.verdict()
    assert (empty.difference, empty.low, empty.high, empty.decision) == (None, -K, K, "continue")
    rng = np.random.default_rng(2)
    truth = 0.3
    for n, outcome in enumerate(impressions(rng, 4000, old=0.5, new=0.8)):
        test.hear(*outcome)
        if n % 400 == 0:
            found = test.verdict()
            assert found.low <= truth <= found.high
    found = test.verdict()
    assert found.decision == "promote"
    assert 0 < found.low < found.difference < found.high
    assert found.low < found.at_least < truth < found.at_most < found.high
    assert len(test.history) > 2


def test_what_is_printed_is_what_decides() -> None:
    """Rolled back exactly where the upper bound that is printed is below 0, promoted where the lower is above 0."""
    for new, ends in ((0.1, "roll back"), (1.2, "promote")):
        test, rng, seen = live_test(usual=0.5), np.random.default_rng(5), set()
        before = -K, K
        for n, outcome in enumerate(impressions(rng, 700, old=0.5, new=new)):
            test.hear(*outcome)
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
    test = live_test()
    for n in range(10):
        test.hear(shown(mixture(), n % 2, unit="somebody"), (0,))
        test.hear(shown((("old", 1.0),)), (0,))
    test.look()
    assert sum(test.seen.impressions) == 1
    test.hear(shown(mixture(0.3), 1), ())  # the share may change
    test.look()
    assert sum(test.seen.impressions) == 2


def drive(server, clock, rng, n: int, rates: dict[str, float]) -> None:
    """Users who click on the first item at a rate that depends on the policy."""
    for _ in range(n):
        found = server.post("/rank", {"query_id": 11}).json()
        if rng.random() < rates[found["policy"]]:
            body = {"impression_id": found["impression_id"], "events": [{"item": found["items"][0]}]}
            server.post("/feedback", body)
    clock.now += 100
    server.context.service.tick()


@pytest.mark.parametrize(("rate", "ends"), [(0.05, "rolled back"), (0.95, "answers everything: better")])
def test_the_server_rolls_back_a_bad_policy_and_promotes_only_if_asked(tmp_path, rate, ends) -> None:
    folder = saved(tmp_path / "policies", 0, 1)
    clock, rng = Clock(), np.random.default_rng(0)
    rates = {digest(policy(0)): 0.5, digest(policy(1)): rate}
    with local(folder, log=tmp_path / "log", clock=clock, promote=rate > 0.5) as server:
        new = server.post("/policies", {"folder": "policy-1"}, admin=True).json()["policy"]
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


def test_without_leave_a_better_policy_is_only_proposed(tmp_path) -> None:
    folder = saved(tmp_path / "policies", 0, 1)
    clock, rng = Clock(), np.random.default_rng(0)
    with local(folder, log=tmp_path / "log", clock=clock, rollback=False) as server:
        new = server.post("/policies", {"folder": "policy-1"}, admin=True).json()["policy"]
        server.post("/split", {"policy": new, "share": 0.5}, admin=True)
        for _ in range(8):
            drive(server, clock, rng, 50, {digest(policy(0)): 0.1, new: 0.9})
        status = server.get("/status").json()
        assert status["traffic"]["mode"] == "split"
        assert status["verdict"]["decision"] == "promote"
        assert status["history"]


def test_outcomes_are_settled_in_order_and_memory_is_bounded(tmp_path) -> None:
    folder = saved(tmp_path / "policies", 0)
    clock = Clock()
    heard: list[tuple[int, ...]] = []
    with local(folder, log=tmp_path / "log", clock=clock) as server:
        service = server.context.service
        outcomes = service.outcomes = service.server.outcomes = Outcomes(window=100, settle=10, most=5)

        def settle() -> list[tuple[int, ...]]:
            heard.extend(ranks for _, ranks in outcomes.settle(clock.now))
            return heard

        ids = [server.post("/rank", {"query_id": 11}).json() for _ in range(8)]
        assert len(settle()) == 3  # what no longer fits is settled as it is
        body = {"impression_id": ids[-1]["impression_id"], "events": [{"item": ids[-1]["items"][1]}]}
        assert server.post("/feedback", body).json()["counted"] == 1
        gone = {"impression_id": ids[0]["impression_id"], "events": [{"item": ids[0]["items"][1]}]}
        assert server.post("/feedback", gone).json()["unknown"] == 1
        clock.now += 20
        assert settle() == [()] * 7 + [(1,)]
        later = {"impression_id": ids[-1]["impression_id"], "events": [{"item": ids[-1]["items"][0]}]}
        assert server.post("/feedback", later).json()["counted"] == 1  # for the log, not for the verdict
        clock.now += 200
        assert settle() == [()] * 7 + [(1,)]
        assert server.post("/feedback", body).json()["unknown"] == 1


def test_an_outcome_is_settled_once() -> None:
    """By its age, and not once more where there is no room for it."""
    outcomes = Outcomes(window=100, settle=10, most=2)

    def show(name: str, time: float) -> None:
        outcomes.shown(shown(mixture(), 1, name=name, time=time))

    show("a", 0.0)
    assert outcomes.event(StoredEvent("a", "i2", "click", None, 1.0)) == "counted"
    assert [ranks for _, ranks in outcomes.settle(11.0)] == [(1,)]
    show("b", 12.0)
    show("c", 13.0)  # no room for "a"
    show("d", 14.0)  # nor for "b", which was not settled
    assert outcomes.tallies["new"].impressions == 2
    assert outcomes.tallies["new"].clicks == 1
    assert [ranks for _, ranks in outcomes.settle(200.0)] == [()] * 3


def test_what_was_shown_once_stays_shown() -> None:
    """The wealth of the bet may fall again; what it was at its peak decides."""
    test, rng = live_test(usual=0.5), np.random.default_rng(0)
    for outcome in impressions(rng, 400, old=1.5, new=0.3):
        test.hear(*outcome)
    peak = test.verdict()
    assert peak.decision == "roll back"
    for outcome in impressions(rng, 4000, old=0.3, new=1.5):
        test.hear(*outcome)
    now = test.verdict()
    assert test.seen.evidence(0.0)[1] < 0
    assert (now.at_most, now.decision) == (peak.at_most, "roll back")
    assert now.difference > 0
