"""`bench bounds`: what it prints."""

import json

from typer.testing import CliRunner

from tandemrank.bench import bound_worlds
from tandemrank.cli.main import app


def test_it_prints_a_row_for_each_distribution_and_bound_and_the_example() -> None:
    found = CliRunner().invoke(app, ["bench", "bounds", "--simulations", "3", "--json"])
    assert found.exit_code == 0
    printed = json.loads(found.stdout)
    by_query = {(name, "queries", "betting") for name in bound_worlds.BY_QUERY}
    by_impression = {(name, "impressions", "betting") for name in bound_worlds.USERS}
    assert {(row["distribution"], row["over"], row["bound"]) for row in printed["rows"]} == by_query | by_impression
    assert all({"coverage", "mean_bound"} <= set(row) for row in printed["rows"])
    assert printed["example"] >= 0.87
    assert printed["example_rare_clicks"] >= 0.645
    assert printed["example_bound"] == "betting"
