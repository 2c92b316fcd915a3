"""bench.phub: the bounds beside its rows, and its arithmetic beside the numbers that the paper prints."""

import json
from typing import Any

import pytest

from bench.phub import paper, tables, zero_compute
from hpcomm.bench.rows import Row


def row(name: str, seconds: float, nbytes: int = 8_000_000) -> Row:
    role = "hpcomm" if name.startswith("hpcomm") else "peer"
    return {"name": name, "role": role, "size": nbytes, "cycles": [seconds] * 3, "wrong": 0}


def ran(workers: int, servers: int, **seconds: float) -> dict[str, Any]:
    rows = [row(f"hpcomm {name}", time) for name, time in seconds.items()]
    rows += [row("Allreduce + update", 9.0), row("Allreduce + update, blocks", 8.0), row("Gloo + torch SGD", 4.0)]
    return {"ranks": workers + servers, "options": {"servers": servers}, "rows": rows}


def test_points_of_placements_have_the_bound_of_the_busiest_link() -> None:
    links = (1e6, 2e6)  # a worker's and a server's: eight workers' pushes to PBox take four times theirs
    found = zero_compute.placed("8M", ran(8, 2, CS=15.0, NCC=40.0, NCS=20.0), links)
    points: Any = {p.who: (p.name, p.workers, p.rate, p.bound) for p in found}
    assert points == {
        "CS": ("hpcomm CS", 8, 8 / 15, pytest.approx(8 / 14)),  # 2 x 7/8 x 8 MB at 1 MB/s
        "NCC": ("hpcomm NCC", 8, 8 / 40, pytest.approx(8 / 32)),
        "NCS": ("hpcomm NCS", 8, 8 / 20, pytest.approx(8 / 16)),
        "Gloo": ("Gloo + torch SGD", 8, 2.0, pytest.approx(8 / 14)),
        "composite": ("Allreduce + update, blocks", 8, 1.0, pytest.approx(8 / 14)),
    }
    printed = zero_compute.table(found, 8)
    assert printed[2].split()[4:8] == ["0.2", "1.00x", "0.38x", "0.25"]  # NCC beside CS, and its bound
    (one,) = zero_compute.placed("8M", ran(1, 1, CS=0.1, NCC=9.0), links)  # one worker under CS sends nothing
    assert one.who == "NCC"
    assert one.bound == pytest.approx(1 / 8)
    shared = zero_compute.placed("8M", ran(1, 1, CS=0.1, NCC=9.0), None)
    assert [(p.who, p.bound) for p in shared][:2] == [("CS", None), ("NCC", None)]
    with pytest.raises(ValueError, match="placement is 'PBox'"):
        paper.each_way("PBox", 8, 1)


def test_the_papers_tables_are_computed_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert tables.main(["--json", "--link", "0.125", "--memory", "10"]) == 0  # hpcomm counts as the formula does
    rows = json.loads(capsys.readouterr().out)["rows"]
    least = [row for row in rows if row["item"] == "table 2"]
    assert len(least) == 4 * len(paper.NETWORKS)
    printed = [row for row in least if "printed" in row]
    # Table 3's batch times are shorter than those that table 2 was made of: few numbers agree, yet one time gives all
    # four numbers of each network by this formula.
    assert {(row["network"], row["placement"]) for row in printed if row["agrees"]} == {
        ("GoogleNet", "NCS"), ("Inception V3", "CS"), ("Inception V3", "NCS"), ("ResNet 269", "CS"),
    }  # fmt: skip
    assert all(row["implied"][0] <= row["implied"][1] for row in printed)
    longer = {row["network"]: row["milliseconds"] for row in printed}
    assert longer == pytest.approx({"AlexNet": 17.64, "GoogleNet": 106, "Inception V3": 232.5, "ResNet 269": 357}, 2e-3)

    limits = [row["workers"] for row in rows if row["item"] == "section 4.7"]
    assert limits == [120, 160, 280]  # the least is the paper's
    here = next(row for row in rows if row["item"] == "section 4.7, here" and row["network"] == "GoogleNet")
    assert here["by_link"] == pytest.approx(12.5 / 38)  # MB that a worker's 100 ms let through, each 38
    assert here["by_memory"] == pytest.approx((1000 / 38 - 4) / 3)

    assert [row["agrees"] for row in rows if row["item"] == "table 5, gain"] == [False, True, True]  # 25 %, not 26
    cells = [row for row in rows if row["item"] == "table 5"]
    assert [row["agrees"] for row in cells] == [row["given"] for row in cells]  # no reading gives another cell
    off = {row["reading"]: max(abs(r["value"] / r["printed"] - 1) for r in cells if r["reading"] == row["reading"])
           for row in cells}  # fmt: skip
    assert list(off.values()) == pytest.approx([0.112, 0.095], abs=1e-3)
    assert cells[0]["dollars"] == pytest.approx(4117 + 2 * 795 + 4 * 699 + 94 + 2 * 94 + 5 * 21077 / 32)


def test_the_tables_refuse_rates_that_cannot_be(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        tables.main(["--link", "-1"])
    assert "--link -1.0, --memory None: must be above 0, in GB/s" in capsys.readouterr().err
