"""The HTTP interface against its own description: generated requests get a described answer, never a 500."""

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import response_schema_conformance

from served import TOKEN, local, saved

HEADERS = {"Authorization": f"Bearer {TOKEN}"}
CHECKS = [not_a_server_error, response_schema_conformance]
FEW = settings(
    max_examples=5, deadline=None, derandomize=True, database=None, phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)  # fmt: skip


def check(operation, statuses: set[int]) -> None:
    @FEW
    @given(case=operation.as_strategy())
    def every(case) -> None:
        found = case.call(headers=HEADERS)
        case.validate_response(found, checks=CHECKS)
        assert "Traceback" not in found.text
        statuses.add(found.status_code)

    every()


def test_answers_are_as_described(tmp_path) -> None:
    statuses: dict[str, set[int]] = {}
    with local(saved(tmp_path / "policies", 0, 1), host="0.0.0.0", log=tmp_path / "log") as server:
        schema = schemathesis.openapi.from_asgi("/openapi.json", server.app, headers=HEADERS)
        for found in schema.get_all_operations():
            check(found.ok(), statuses.setdefault(found.ok().path, set()))
    assert set(statuses) >= {
        "/rank",
        "/feedback",
        "/policies",
        "/split",
        "/rollback",
        "/status",
        "/metrics",
        "/explain",
    }
    assert 200 in statuses["/rank"]
    assert 200 in statuses["/feedback"]
