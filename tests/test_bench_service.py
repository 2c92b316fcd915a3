"""The benchmark of the hub as a service: its lines, wrong values, and the figures that it makes of streams."""

import json
import os
import random
import signal
import time
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from bench.common.judge import table
from bench.service import __main__ as service
from bench.service import strangers
from bench.service.crew import Crew, Failed, together
from bench.service.field import HERE, Team, count_at, operations, rates
from bench.service.killed import BESIDE, End, Storm
from bench.service.options import judged, percentile, turns
from bench.service.sharing import told
from bench.service.work import Model

PLANTED = 2  # values of a job: one on each worker


def test_every_line_is_measured_and_the_spoilt_values_alone_are_wrong(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    picture = tmp_path / "service.png"
    assert service.main(["--quick", "--place", "shm", "--plant", "--json", "--plot", str(picture)]) == 1
    document = json.loads(capsys.readouterr().out)
    rows = {(row["line"], row["name"]): row for row in document["rows"]}
    assert {line for line, _ in rows} == {promise["what"][0] for promise in document["promises"]} == set("abcdefgh")
    wrong = {line: sum(row["wrong"] for row in document["rows"] if row["line"] == line) for line in "abcdeh"}
    jobs = {"a": 2 * 2, "b": (1 + 2) * 2 + 2, "c": 2, "d": 2, "e": 2 * 2, "h": 1 + 4}
    assert wrong == {line: PLANTED * n for line, n in jobs.items()}
    assert all(min(map(min, row["rates"])) > 0 for (line, _), row in rows.items() if line == "b")
    assert rows["b", "2 tenants"]["jain"][0] > 0.5
    ended, killed, met = (rows[key] for key in (("d", "2 jobs"), ("f", BESIDE), ("g", strangers.BESIDE)))
    for before, after in ((ended["before"], ended["after"][-1]), (killed["before"], killed["after"])):
        assert after["descriptors"] <= before["descriptors"]
        assert after["jobs"] == 0
    assert killed["errors"] == []
    assert killed["wrong"] == PLANTED * (1 + killed["counts"]["done"])
    assert met["wrong"] > PLANTED
    assert min(met["strangers"][kind] for kind in strangers.KINDS) > 0
    assert not met["strangers"].get("admitted")
    assert met["refused"]["refused: wrong token"] > 0
    assert all(row["steps"][0] > 0 for (line, _), row in rows.items() if line == "h")
    if find_spec("matplotlib"):
        assert picture.stat().st_size > 0


def shifted(ends: list[float], by: float) -> tuple[float, list[float]]:
    return by, [by + end for end in ends]


def test_a_rate_counts_the_operations_in_the_time_in_which_all_run() -> None:
    model = Model(2, 1 << 20)
    teams = [Team(name, [], model, None, []) for name in ("a", "b")]
    even = [0.5 * i for i in range(1, 21)]
    slow = [1.0 * i for i in range(1, 11)]
    found = rates(teams, [[shifted(even, 3.0)], [shifted(slow, 3.25)]], 10.0)
    assert found == pytest.approx([2 * model.nbytes, model.nbytes])
    apart = rates(teams, [[shifted(even, 0.0)], [shifted(slow, 9.0)]], 10.0)  # too late to count together
    assert apart == pytest.approx([2 * model.nbytes, model.nbytes])
    assert count_at((1.0, [2.0, 4.0]), 3.0) == 1.5
    assert operations([shifted([1.0, 3.0, 4.5], 0.0)]) == [2.0, 1.5]


def test_each_cycle_begins_with_the_next_arrangement() -> None:
    assert list(turns(["a", "b", "c"], 2)) == ["a", "b", "c", "b", "c", "a"]
    assert percentile([3.0, 1.0, 2.0], 50) == 2.0
    assert percentile([], 99) == 0.0


def test_a_figure_that_misses_its_target_says_so() -> None:
    fast, slow = ({"name": name, "cycles": cycles} for name, cycles in (("hub", [1.0, 2.0]), ("own", [3.0, 2.0])))
    assert judged("a", fast, slow, 0.97).verdict == "met"
    assert judged("a", slow, fast, 0.97).verdict == "MISSED"
    assert judged("a", slow, fast, None).verdict == ""
    assert "1.67" in table([judged("a", fast, slow, 0.97)])
    assert [told(2e9), told(5e6)] == ["2.000 GB/s", "5.0 MB/s"]


@pytest.mark.parametrize(
    ("status", "last", "found"),
    [
        (0, "wrong 3", "killed"),
        (1, "-5 rank 1: wait: rank 0 failed", "killed"),
        (1, "-4 rank 1: a connection broke", "errors"),
        (-11, "push", "errors"),
    ],
)
def test_the_others_of_a_killed_job_may_end_or_be_told_of_a_death(status: int, last: str, found: str) -> None:
    field: Any = None
    storm = Storm(field, HERE, False, random.Random(1))
    other, dead = End(status, "pull", last), End(-signal.SIGKILL, "push", "push")
    storm.count([other, dead])
    storm.count([other, End(0, "close", "wrong 1")])
    assert storm.counts == Counter({found: 1} if status else {found: 1, "done": 1}) + Counter(errors=bool(status))
    assert (storm.wrong, storm.stages["push"]) == (0 if status else 4, 1)


def test_a_call_that_fails_and_a_process_that_dies_are_told_apart() -> None:
    with Crew() as crew:
        first, second = crew.fork(2)
        assert together([first, second], os.getpid) == [first.pid, second.pid]
        with pytest.raises(Failed, match="ValueError: invalid literal") as failed:
            first.call(int, "no number")
        assert failed.value.kind == "ValueError"
        second.start(time.sleep, 60)
        second.signal(signal.SIGKILL)
        with pytest.raises(Failed, match="died") as died:
            second.result()
        assert died.value.kind == ""
