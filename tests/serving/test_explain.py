"""What a query is explained by: candidates alone, with the server's own examination curve."""

import pytest

from served import K2, D, K, local, saved


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("policies"), 0)


@pytest.mark.parametrize("strategy", ["trained", "deterministic", "uniform"])
def test_candidates_alone_are_listed(folder, tmp_path, strategy) -> None:
    from tandemrank.serving.drawing import Exploration

    with local(folder, log=tmp_path, exploration=Exploration(strategy)) as server:
        [found] = server.post("/explain", {"query_id": 11}).json()["policies"]
    listed = found["candidates"]
    assert (found["candidates_total"], found["K2"]) == (D, K2)
    assert sorted(c["generator_rank"] for c in listed) == list(range(1, K2 + 1))
    assert sorted(c["place"] for c in listed if c["place"]) == list(range(1, K + 1))


def test_exposure_is_by_the_curve_of_the_server(folder, tmp_path) -> None:
    from tandemrank.serving.drawing import Exploration

    theta = (0.9, 0.2, 0.1)
    with local(folder, log=tmp_path, theta=theta, exploration=Exploration("deterministic")) as server:
        [found] = server.post("/explain", {"query_id": 11}).json()["policies"]
    exposed = {c["place"]: c["exposure"] for c in found["candidates"] if c["place"]}
    assert found["others_exposure"] == pytest.approx(0, abs=1e-6)
    assert exposed == {k + 1: pytest.approx(x) for k, x in enumerate(theta)}
