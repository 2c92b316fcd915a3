"""The benchmark of the hub as a service: its lines, wrong values, and the figures that it makes of streams."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from bench.common.judge import table
from bench.service import __main__ as service
from bench.service.crew import Crew, Failed, together
from bench.service.field import Team, count_at, operations, rates
from bench.service.options import judged, percentile, turns
from bench.service.sharing import told
from bench.service.work import Model

PLANTED = 2  # values of a job: one on each worker


def measured(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    status = service.main(["--quick", "--place", "shm", "--json", *words])
    document = json.loads(capsys.readouterr().out)
    assert status == int(any(row["wrong"] for row in document["rows"]))
    return document


def test_every_line_is_measured_with_right_bits(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    picture_path = tmp_path / "service.png"
    document = measured(capsys, "--only", "sharing,weights,ping,ends,beginning,neighbours", "--plot", str(picture_path))
    rows = {line: [row for row in document["rows"] if row["line"] == line] for line in "bcdeh"}
    assert sum(row["wrong"] for row in document["rows"]) == 0
    assert [row["name"] for row in rows["b"]] == ["1 tenants", "2 tenants", "weights 1 and 3"]
    assert all(min(map(min, row["rates"])) > 0 for row in rows["b"])
    assert [row["name"] for row in rows["c"]][:4] == [
        "futex ping",
        "futex ping beside copies",
        "push_pull",
        "push_pull beside a large tenant",
    ]
    assert rows["d"][0]["after"][-1]["descriptors"] <= rows["d"][0]["before"]["descriptors"]
    assert [row["name"] for row in rows["e"]] == ["hub", "own server"]
    assert len(rows["h"]) == 1 + 4 * 2
    assert all(row["steps"][0] > 0 for row in rows["h"])
    assert {promise["what"][:2] for promise in document["promises"]} == {"b:", "c:", "d:", "e:", "h:"}
    pytest.importorskip("matplotlib")
    assert picture_path.stat().st_size > 0


def test_a_spoilt_value_is_found_and_strangers_and_kills_leave_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    document = measured(capsys, "--only", "alone,killed,strangers", "--plant")
    rows = {(row["line"], row["name"]): row for row in document["rows"]}
    assert {row["wrong"] for (line, _), row in rows.items() if line == "a"} == {PLANTED}
    killed, met = rows["f", "beside jobs at its hub"], rows["g", "beside strangers"]
    assert killed["wrong"] >= PLANTED  # of the bystander, and of jobs that were not killed
    assert (killed["errors"], killed["after"]["jobs"]) == ([], 0)
    assert killed["after"]["descriptors"] <= killed["before"]["descriptors"]
    assert met["wrong"] > PLANTED
    assert met["strangers"]["garbage"] > 0
    assert met["strangers"]["replay"] > 0
    assert not met["strangers"].get("admitted")
    assert met["refused"]["strangers"] > 0


def shifted(ends: list[float], by: float) -> tuple[float, list[float]]:
    return by, [by + end for end in ends]


def test_a_rate_counts_the_operations_in_the_time_in_which_all_run() -> None:
    model = Model(2, 1 << 20)
    teams = [Team(name, [], model, None, []) for name in ("a", "b")]
    even = [0.5 * i for i in range(1, 21)]
    slow = [1.0 * i for i in range(1, 11)]
    found = rates(teams, [[shifted(even, 3.0)], [shifted(slow, 3.25)]], 10.0)
    assert found == pytest.approx([2 * model.nbytes, model.nbytes])
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


def test_a_call_that_fails_and_a_process_that_dies_are_told_apart() -> None:
    with Crew() as crew:
        first, second = crew.fork(2)
        assert together([first, second], os.getpid) == [first.pid, second.pid]
        with pytest.raises(Failed, match="ValueError: invalid literal") as failed:
            first.call(int, "no number")
        assert failed.value.kind == "ValueError"
        second.signal(signal.SIGKILL)
        with pytest.raises(Failed, match="died") as died:
            second.call(os.getpid)
        assert died.value.kind == ""
