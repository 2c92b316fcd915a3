"""The benchmark of figure 4 of Parameter Flow: the hybrid form, what the libraries make of it, and its table."""

import ctypes
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.parameter_flow import compression
from bench.parameter_flow.compression import back, hybrid, vector
from bench.parameter_flow.libraries import Compressor, compressors

ROOT = Path(__file__).resolve().parent.parent
N = 20_000


@pytest.mark.parametrize("zeros", [0.0, 0.5, 0.8, 0.9, 0.999])
def test_a_vector_has_indices_above_80_percent_zeros(zeros: float) -> None:
    x = vector(N, zeros, 1)
    assert np.count_nonzero(x == 0) == round(zeros * N)
    form = hybrid(x)
    assert form.nbytes == (4 * N if zeros <= 0.8 else 8 * np.count_nonzero(x))
    np.testing.assert_array_equal(back(form, N), x)


def test_libraries_give_back_what_they_got() -> None:
    form = hybrid(vector(N, 0.8, 2))
    for one in compressors():
        if isinstance(one, Compressor):
            packed, seconds = one.timed(form)
            assert packed.nbytes < form.nbytes / 2, one.name
            assert seconds > 0
            np.testing.assert_array_equal(one.restored(packed, form.nbytes), form)


def test_a_missing_library_is_told_with_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(file: str) -> None:
        raise OSError(file)

    monkeypatch.setattr("ctypes.CDLL", nothing)
    told = [str(one) for one in compressors()]
    assert "lzo: liblzo2.so.2 is missing: apt-get install -y liblzo2-2" in told
    assert len(told) == 4


def rows(plant: bool) -> list[dict[str, Any]]:
    options = Namespace(vector=N, zeros=[0.8, 0.99], run_cycles=1, seed=3, plant=plant)
    return compression.run(options)


def test_the_figure_has_hpcomm_beside_the_libraries() -> None:
    document = {"rows": rows(False)}
    assert [row["wrong"] for row in document["rows"]] == [0] * len(document["rows"])
    found = {(row["name"], row["zeros"]): row for row in compression.measured(document)}
    dense, sparse = (found["hpcomm bytes, plain", zeros]["bytes"][0] for zeros in (0.8, 0.99))
    assert sparse < dense / 10
    for compress in ("snappy", "zlib", "lz4"):
        if ("hpcomm paper, " + compress, 0.8) in found and (compress, 0.8) in found:
            assert found[f"hpcomm paper, {compress}", 0.99]["bytes"][0] <= found[compress, 0.99]["bytes"][0]
    lines = compression.table(document)
    assert sum("hpcomm bytes, plain" in line for line in lines) == 2
    if ("snappy", 0.8) in found:
        assert [line.split()[-2] for line in lines if line.startswith("  snappy ")] == ["3.1", "0.62"]
        assert 2.8 < compression.factor(found["snappy", 0.8]) < 3.2  # 3.3.1: 3.1


def test_a_planted_wrong_value_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Encoders that need a library which is missing, here snappy, are left out."""
    load = ctypes.CDLL

    def without_snappy(file: str) -> ctypes.CDLL:
        if "snappy" in file:
            raise OSError(file)
        return load(file)

    monkeypatch.setattr("ctypes.CDLL", without_snappy)
    document = {"rows": rows(True)}
    measured = compression.measured(document)
    names = {row["name"] for row in measured}
    assert {"hpcomm paper, plain", "hpcomm bytes, plain"} <= names
    assert not [name for name in names if "snappy" in name]
    assert "snappy: libsnappy.so.1 is missing" in str([row["missing"] for row in document["rows"] if "missing" in row])
    assert all(row["wrong"] >= 1 for row in measured)


@pytest.mark.parametrize(("given", "told"), [("--vector=0", "must be 1 or more"), ("--zeros=0.5,1", "below 1")])
def test_options_out_of_range_are_refused(given: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        compression.main([given])
    assert told in capsys.readouterr().err


def test_it_runs_by_itself(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot = tmp_path / "figure4.png"
    command = [sys.executable, "-m", "bench.parameter_flow.compression", "--quick", "--plot", str(plot)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "figure 4" in ended.stdout
    assert plot.read_bytes().startswith(b"\x89PNG")
