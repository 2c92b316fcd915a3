"""hpcomm graph."""

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from hpcomm import graphs
from hpcomm.cli import graph
from hpcomm.cli import main as command

ROOT = Path(__file__).resolve().parents[1]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command, ["graph", *arguments], catch_exceptions=False)


def rows(*arguments: str) -> list[dict[str, Any]]:
    result = run(*arguments, "--json")
    assert result.exit_code in (0, 1), result.output
    found: list[dict[str, Any]] = json.loads(result.output)
    return found


def test_table_compares_kinds_and_sizes() -> None:
    result = run("root_expander", "complete", "6", "25", "--bytes", "1K")
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert lines[1].split()[:3] == ["graph", "gap", "sigma"]
    cells = [line.split() for line in lines[2:]]
    assert [row[0] for row in cells] == ["root_expander(6)", "complete(6)", "root_expander(25)", "complete(25)"]
    assert cells[2] == ["root_expander(25)", "0.1419", "0.858089", "8", "2", "2", "fair", "2048", "ok"]
    assert cells[3] == ["complete(25)", "1", "0", "1", "24", "24", "fair", "24576", "ok"]


def test_json_has_what_the_functions_find() -> None:
    (row,) = rows("star:2", "5", "--bytes", "100")
    star = graphs.star(5, center=2)
    influence = graphs.influence(star)
    assert row == {
        "graph": "star(5, center=2)",
        "ranks": 5,
        "phases": 1,
        "gap": graphs.spectral_gap(star),
        "sigma_2": graphs.second_singular(star),
        "diameter": 2,
        "in_degree": [1, 4],
        "out_degree": [1, 4],
        "influence": [influence.min(), influence.max()],
        "bytes_per_step": 400,
        "findings": graphs.check(star),
    }


def test_seconds_of_a_step_are_told_for_a_bandwidth(tmp_path: Path) -> None:
    """As recommend predicts them; without a link's bandwidth there is nothing to predict by."""
    given = ("--bytes", "28M", "--bandwidth", "1.25e9", "--latency", "1e-3", "--compute", "0.5")
    kinds = ("complete", "ring", "one_peer_exponential")
    found = {row["graph"]: row["seconds_per_step"] for row in rows(*kinds, "25", *given)}
    choices = graphs.recommend(25, 28 << 20, 1.25e9, latency=1e-3, compute=0.5)
    expected = {choice.name: choice.seconds_per_step for choice in choices}
    assert found == {name: expected[name] for name in found}
    assert len(found) == 3
    (_, heading, line) = run("ring", "25", *given).output.splitlines()
    assert heading.split()[-2:] == ["s/step", "check"]
    assert line.split()[-2:] == ["0.524", "ok"]
    assert "seconds_per_step" not in rows("ring", "25")[0]
    edges = tmp_path / "edges"
    edges.write_text("0 2\n1 2\n2 0\n")  # two come to rank 2, and one goes out
    (row,) = rows("--edges", str(edges), "--bytes", "100", "--bandwidth", "100", "--latency", "0")
    assert (row["bytes_per_step"], row["seconds_per_step"]) == (100, 2)
    assert run("ring", "25", "--bandwidth", "0").exit_code == 2


def test_findings_are_printed_and_exit_with_1() -> None:
    result = run("chain", "ring", "25")
    assert result.exit_code == 1
    for finding in graphs.check(graphs.chain(25)):
        assert f"chain(25): {finding}\n" in result.output
    assert "0.00214" in result.output
    assert " inf " in result.output
    assert run("star", "5", "--metropolis").exit_code == 0
    assert rows("star", "5", "--metropolis")[0]["graph"] == "metropolis(star(5))"


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("complete", graphs.complete(16)),
        ("ring", graphs.ring(16)),
        ("ring:both", graphs.ring(16, directed=False)),
        ("chain", graphs.chain(16)),
        ("chain:both", graphs.chain(16, directed=False)),
        ("star", graphs.star(16)),
        ("star:3", graphs.star(16, center=3)),
        ("root_expander", graphs.root_expander(16)),
        ("root-expander:3", graphs.root_expander(16, degree=3)),
        ("hypercube", graphs.hypercube(16)),
        ("exponential", graphs.exponential(16)),
        ("torus", graphs.torus(4, 4)),
        ("torus:2", graphs.torus(2, 8)),
        ("random_regular", graphs.random_regular(16, 4)),
        ("random_regular:5", graphs.random_regular(16, 5)),
        ("one_peer_exponential", graphs.one_peer_exponential(16)),
        ("random_matchings", graphs.random_matchings(16, 4)),
        ("random_matchings:3", graphs.random_matchings(16, 3)),
    ],
)
def test_kinds_are_the_constructors(kind: str, expected: Any) -> None:
    assert graph.make(kind, 16) == expected


def test_all_kinds_that_there_are() -> None:
    names = {row["graph"].partition("(")[0] for row in rows("all", "16")}
    assert names == set(graph.KINDS) - {"spread"}
    assert {row["graph"].partition("(")[0] for row in rows("all", "7")} == names - {"hypercube"}


def test_the_guide_shows_what_the_command_prints() -> None:
    guide = (ROOT / "docs" / "topology.md").read_text(encoding="utf-8").splitlines()
    printed = [line.rstrip() for line in run("all", "64", "--bytes", "1").output.splitlines()[1:]]
    told = [line for line in printed if ": not " not in line and not line.startswith("random")]
    assert len(told) == 1 + 11  # a heading, and no random graphs
    assert [line for line in told if line not in guide] == []


def test_phases_have_no_diameter() -> None:
    (row,) = rows("one_peer_exponential", "8")
    assert (row["phases"], row["gap"], row["diameter"], row["influence"]) == (3, 1.0, None, None)
    assert " fair " in run("one_peer_exponential", "8").output


def test_seeds_draw() -> None:
    (one,) = rows("random_regular", "20", "--seeds", "1")
    (best,) = rows("random_regular", "20", "--seeds", "30")
    assert best["gap"] > one["gap"]
    assert rows("random_regular", "20", "--seeds", "1", "--seed", "5")[0]["gap"] != one["gap"]


def test_edges_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "racks.txt"
    path.write_text("# two racks\n0 1\n1 0\n\n1 2  # between them\n2 1\n", encoding="utf-8")
    (row,) = rows("--edges", str(path))
    assert (row["graph"], row["ranks"], row["diameter"]) == ("racks", 3, 2)
    assert rows("--edges", str(path), "4")[0]["ranks"] == 4
    path.write_text("0 1 0.25\n1 0 0.5\n", encoding="utf-8")
    (row,) = rows("--edges", str(path))
    expected = graphs.from_edges(2, [(0, 1), (1, 0)], [0.25, 0.5])
    assert row["influence"] == [graphs.influence(expected).min(), graphs.influence(expected).max()]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("0 1\n0\n", "line 2 is '0': must be source, target"),
        ("0 one\n", "line 1 is '0 one'"),
        ("0 1 0.5 2\n", "line 1 is '0 1 0.5 2'"),
        ("0 1\n1 0 0.5\n", "line 2 is '1 0 0.5': all lines have a weight"),
        ("0 1\n0 1\n", "edge 0 -> 1 is given twice"),
    ],
)
def test_wrong_files_are_usage_errors(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "edges"
    path.write_text(text, encoding="utf-8")
    result = run("--edges", str(path))
    assert result.exit_code == 2
    assert sentence in " ".join(result.output.split())


def test_recommend_ranks() -> None:
    result = run("--recommend", "25", "--bytes", "28M", "--bandwidth", "1.25e9")
    assert result.exit_code == 0
    expected = graphs.recommend(25, 28 << 20, 1.25e9)
    names = [line.rpartition(")")[0] + ")" for line in result.output.splitlines()[2:]]
    assert names == [choice.name for choice in expected]
    found = rows(
        "--recommend", "25", "--bytes", "28M", "--bandwidth", "1.25e9", "--accuracy", "0.1", "--compute", "0.5"
    )
    expected = graphs.recommend(25, 28 << 20, 1.25e9, accuracy=0.1, compute=0.5)
    assert [(row["name"], row["seconds"]) for row in found] == [(choice.name, choice.seconds) for choice in expected]
    assert all(math.isfinite(row["seconds"]) for row in found)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["ring"],
        ["8"],
        ["rong", "8"],
        ["ring", "0"],
        ["ring:3", "8"],
        ["hypercube", "6"],
        ["hypercube:1", "8"],
        ["torus:3", "8"],
        ["torus:x", "8"],
        ["torus", "0"],
        ["star:8", "8"],
        ["ring", "8", "--bytes", "3X"],
        ["ring", "8", "--bytes", "inf"],
        ["ring", "8", "--bytes", "-1"],
        ["ring", "8", "--seeds", "0"],
        ["ring", "8", "--metropolis"],
        ["ring", "8", "--colour"],
        ["ring", "8", "--png", "no/such/folder.png"],
        ["ring", "8", "--png", "graph.nothing"],
        ["--edges", "no-such-file"],
        ["--recommend", "8"],
        ["--recommend", "ring", "8", "--bandwidth", "1e9"],
        ["--recommend", "8", "--bandwidth", "0"],
        ["--recommend", "8", "--bandwidth", "1e9", "--accuracy", "1"],
    ],
)
def test_wrong_usage_exits_with_2(arguments: list[str]) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert "Error: " in result.output


def test_png_is_drawn(tmp_path: Path) -> None:
    path = tmp_path / "graph.png"
    assert run("star", "one_peer_exponential", "5", "--png", str(path)).exit_code == 1
    assert path.read_bytes().startswith(b"\x89PNG")
    small = path.stat().st_size
    assert run("complete", "25", "--png", str(path)).exit_code == 0
    assert path.stat().st_size > small / 2
    assert run("--recommend", "4", "--bandwidth", "1e9", "--png", str(path)).exit_code == 0
    assert run("complete", "200", "--png", str(path)).exit_code == 2


def test_what_a_picture_needs_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "networkx", None)
    result = run("ring", "5", "--png", str(tmp_path / "graph.png"))
    assert result.exit_code == 2
    assert "pip install matplotlib 'networkx>=3' 'scipy>=1.12'" in " ".join(result.output.split())


def test_tree_is_priced_and_drawn(tmp_path: Path) -> None:
    picture = tmp_path / "tree.png"
    given = ("tree", "--ranks", "5", "--racks", "2", "--depth", "2")
    (row,) = [json.loads(run(*given, "--json", "--png", str(picture)).output)]
    best = graphs.cheapest_tree(graphs.rack_costs([[0, 1, 2], [3, 4]]), degree=2, depth=2)
    assert (row["parents"], row["cost"], row["optimal"]) == (list(best.parents), best.cost, True)
    assert (row["degree"], row["depth"], row["leaves"], row["gap"]) == (2, 2, 2, 0)
    assert picture.read_bytes()[:4] == b"\x89PNG"
    lines = run(*given).output.splitlines()
    assert lines[0] == "cost 1.32, the least of all trees; degree 2, depth 2, 2 leaves"
    assert lines[1].strip() == "rank 0"
    assert len(lines) == 6


def test_tree_of_costs_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "links.csv"
    path.write_text("0,2e8,1e8\n2e8,0,1e9\n1e8,1e9,0\n", encoding="utf-8")
    row = json.loads(run("tree", "--costs", str(path), "--bandwidths", "--json").output)
    assert row["parents"] == [-1, 0, 1]
    assert json.loads(run("tree", "--costs", str(path), "--json", "--degree", "3").output)["parents"] == [-1, 0, 0]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ((), "there are no costs: give --ranks, or --costs with a file"),
        (("--ranks", "9", "--depth", "2"), "use degree 3 or depth 3"),
        (("--ranks", "4", "--racks", "5"), "do not go together"),
        (("--ranks", "4", "--root", "4"), "root is 4: must be 0 to 3"),
        (("--ranks", "4", "--costs", "no such file"), "no such file is no matrix of numbers"),
    ],
)
def test_a_tree_that_cannot_be_is_wrong_usage(given: tuple[str, ...], told: str) -> None:
    result = run("tree", *given)
    assert result.exit_code == 2
    assert told in " ".join(result.output.replace("│", " ").split())
