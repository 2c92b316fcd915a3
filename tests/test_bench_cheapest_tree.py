"""bench.parameter_flow.cheapest_tree: what it counts as wrong."""

import json

import pytest

from bench.parameter_flow import cheapest_tree


def test_the_benchmark_finds_nothing_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert cheapest_tree.main(["--quick", "--costs", "racks", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert (row["instances"], row["optimal"], row["wrong"]) == (4, 4, 0)
    assert row["search_ratio"] <= 1.1
