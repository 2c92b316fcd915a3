"""examples/train_local_steps.py: its seconds are those of its caption, its bytes are counted, and its ranks agree."""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import mpi
import pytest
from click.testing import CliRunner

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
EXAMPLE = EXAMPLES / "train_local_steps.py"
SMALL = "--pretrain=2 --every=10 --delay=2 --width=8 --layers=1 --batch=2 --context=16 --held-out=8 --points=3"

pytest.importorskip("torch")
sys.path.insert(0, str(EXAMPLES))
example: Any = importlib.import_module("train_local_steps")


def clock(sent: list[int], delay: int = 0, behind: float = 0.0) -> list[float]:
    """The ends of steps that compute a second each, over a link of 1 byte a second."""
    return example.clock(sent, 1.0, 1.0, delay, behind)  # type: ignore[no-any-return]


def test_a_step_waits_for_the_part_of_an_exchange_that_nothing_hides() -> None:
    assert clock([0, 3, 0]) == [1, 5, 6]
    assert clock([0, 3, 0, 0], delay=2) == [1, 2, 3, 5]  # begun at 2, there at 5, awaited by the 4th step
    assert clock([0, 2, 0, 0], delay=2) == [1, 2, 3, 4]
    assert clock([1, 1], behind=0.75) == [1.25, 2.5]


def test_exchanges_on_one_link_go_one_after_the_other() -> None:
    assert clock([2, 2, 0, 0], delay=2) == [1, 2, 3, 5]
    assert clock([0, 4], delay=1) == [1, 6], "the last exchanges are awaited too"


def test_a_curve_has_its_points_where_all_ranks_have_just_exchanged() -> None:
    plan = example.Plan(100, 15, 0, 0.1, 2, 1e-3, 0.7, 0.9, points=3, seed=0)
    assert plan.judged == [30, 60, 90, 100]
    assert plan.factor(99) == pytest.approx(example.LAST_RATE, rel=0.01)
    assert max(plan.factor(step) for step in range(100)) <= 1


@pytest.mark.full
def test_ranks_train_by_each_way(tmp_path: Path) -> None:
    options = f"{SMALL} --steps=20 --ways=sync,diloco,streaming".split()
    files = ["--json", str(tmp_path / "figures"), "--plot", str(tmp_path / "curves.png")]
    ended = mpi.program(2, EXAMPLE, *files, *options, env={"PATH": str(tmp_path)})
    assert ended.returncode == 0, ended.stdout + ended.stderr  # all ranks have the same weights
    assert ended.stdout.startswith("no apt lists here: Python's help pages")
    curves = {one["way"]: one for one in json.loads((tmp_path / "figures").read_text())["curves"]}
    for one in curves.values():
        assert one["loss"][-1] < one["loss"][0]
        assert one["tokens"] == [0, 640, 1280]
        assert one["synced"] < one["loss"][0]
        assert len({len(one[name]) for name in ("loss", "tokens", "seconds", "sent")}) == 1
    exchange = curves["sync"]["step_bytes"]
    assert 20 * curves["diloco"]["step_bytes"] == pytest.approx(exchange * 2)
    assert curves["streaming"]["step_bytes"] < 0.5 * curves["diloco"]["step_bytes"]
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("--ways sync,often", "'often' is no way"),
        ("--bandwidth 5", "'5' is no bandwidth"),
        ("--bandwidth 1.1.1mbit", ""),
    ],
)
def test_bad_arguments_end_it_at_once(options: str, told: str) -> None:
    ended = CliRunner().invoke(example.main, options.split())
    assert ended.exit_code == 2, ended.output
    assert told in " ".join(ended.output.split())
