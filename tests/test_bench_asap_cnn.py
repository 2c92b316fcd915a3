"""The benchmark of figure 9 of ASAP: what it makes of its rows, and a tiny training by two ranks."""

import json
import sys
from pathlib import Path
from typing import Any

import mpi
import pytest

from bench.asap import cnn
from hpcomm.bench import plots

ROOT = Path(__file__).resolve().parent.parent


def row(name: str, losses: list[list[float]], wrong: int = 0, **inputs: int) -> dict[str, Any]:
    """Of two ranks with models after 0, 2 and 4 seconds, and 0, 3 and 5."""
    facts = {"group": "shm", "cycle": 0, "model": "network", "parameters": 10, "batch": 4, "steps": 5, "name": name}
    found = {"seconds": [4.0, 6.0], "computed": [1.0, 1.0], "waited": [1.0, 4.0], "score": [0.5, 0.75], "wrong": wrong}
    found |= {"processor": [2.0, 4.0], "training": [1.0, 1.0]}
    counts = {kind: inputs.get(kind, 0) for kind in ("whole", "torn", "stale", "missing")}
    return {**facts, **found, "inputs": counts, "times": [[0, 2, 4], [0, 3, 5]], "losses": losses}


def document() -> dict[str, Any]:
    rows = [
        row("NOTIFY_ACK", [[2, 1, 0.5], [2, 1, 0.5]], whole=10),
        row("ASYNC", [[2, 2, 1], [2, 2, 2]], whole=5, torn=2, stale=2, missing=1),
    ]
    facts = {"hpcomm": "1", "ranks": 2, "cores": 2, "rate": "1gbit", "aim": 0.75}
    return {**facts, "rows": rows}


def test_a_curve_is_the_mean_of_what_the_ranks_have_at_each_moment() -> None:
    times, losses = cnn.curve(document()["rows"][0])
    assert times == [0, 2, 3, 4, 5]
    assert losses == [2, 1.5, 1, 0.75, 0.5]


def test_consistencies_are_compared_by_seconds_inputs_and_images() -> None:
    sync, free = cnn.lines(document()["rows"], 0.9)
    assert sync.seconds == pytest.approx(3.4)  # between the points at 3 and 4 seconds
    assert (sync.rate, sync.exchanging, sync.loss, sync.accuracy) == (8.0, 0.5, 0.5, 0.625)
    assert (sync.processor, sync.moving) == (0.6, 0.4)
    one = row("one rank", [[2, 1, 0.9], [2, 1, 0.9]])  # 5 seconds to the aim
    assert [line.alone for line in cnn.lines(document()["rows"], 0.9, [one])] == [pytest.approx(5 / 3.4), None]
    assert (free.seconds, free.loss) == (None, 1.5)
    assert (free.whole, free.torn, free.stale, free.missing) == (0.5, 0.2, 0.2, 0.1)
    two = [*document()["rows"], row("NOTIFY_ACK", [[2, 2, 2], [2, 2, 2]], whole=10)]
    assert next(cnn.lines(two, 0.9)).seconds is None  # it was missed in one cycle


def test_the_table_tells_the_paper_s_figures() -> None:
    lines = cnn.table(document())
    assert next(line for line in lines if line.startswith("NOTIFY_ACK")).split()[1:3] == ["4.00", "s"]
    assert "never" in next(line for line in lines if line.startswith("ASYNC"))
    assert any("229.3" in line for line in lines)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["--groups", "shm,moon"], "--groups: there is no moon: alone, shm, hosts"),
        (["--consistencies", "SSP"], "--consistencies: there is no SSP"),
        (["--ranks", "1"], "--ranks is 1: must be 2 or more"),
        (["--batch", "0"], "--batch is 0: must be 1 or more"),
        (["--eta", "nan"], "--eta is nan: must be above 0"),
        (["--quick", "--paper-size"], "--paper-size and --quick"),
    ],
)
def test_options_out_of_range_are_refused(given: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cnn.parsed(given)
    assert told in capsys.readouterr().err


def test_the_paper_s_size_is_a_vgg_of_its_parameters() -> None:
    pytest.importorskip("torch")
    from bench.asap import cnn_ranks  # noqa: PLC0415

    options = cnn.parsed(["--paper-size"])
    from flow import data  # noqa: PLC0415 - examples is on the path by now

    network = cnn_ranks.Vgg(data.pictures(0), options.width, options.channels)
    start = network.start()
    assert cnn_ranks.Shapes(start).flat.size == pytest.approx(7.5e6, rel=0.01)
    assert sum(name.endswith("weight") for name in start) == 11
    assert network.scores(start, network.pictures.x[:1]).shape == (1, 10)


def test_the_curves_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert plots.figure(tmp_path / "plot.png", cnn.panels(document()), "two ranks", columns=2)


def test_two_ranks_train_under_each_consistency() -> None:
    pytest.importorskip("torch")
    mpi.mpirun()  # skips where there is none
    command = [sys.executable, "-m", "bench.asap.cnn", "--quick", "--ranks", "2", "--json"]
    ended = mpi.command(*command, timeout=240, cwd=ROOT)
    assert ended.returncode == 0, ended.stderr
    rows = {row["name"]: row for row in json.loads(ended.stdout)["rows"]}
    alone = rows.pop("one rank")
    assert (alone["group"], alone["steps"], alone["sent"]) == ("alone", 2 * 6, [0])  # as many images as two ranks
    assert len(set(alone["losses"][0])) == 4  # it learns
    assert alone["losses"][0][0] == rows["BSP"]["losses"][0][0]  # from the same model
    assert list(rows) == list(cnn.NAMES)
    for name, found in rows.items():
        assert found["wrong"] == 0
        assert sum(found["inputs"].values()) == 2 * 6  # ranks, steps
        assert [len(times) for times in found["times"]] == [4, 4]
        if name in ("NOTIFY_ACK", "BSP"):
            assert found["by_inputs"] == [0, 12]
            assert found["losses"][0] == found["losses"][1]
    assert rows["NOTIFY_ACK"]["losses"] == rows["BSP"]["losses"]  # the same bits
