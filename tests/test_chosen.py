"""What a short run leaves out (tests/chosen.py): the marks, and the file that tells which bench/ has passed."""

import shutil
import subprocess
import sys
from pathlib import Path

import chosen
import pytest

CONFTEST = """
import os, pytest, chosen

def pytest_collection_modifyitems(items):
    out = chosen.left_out(items, int(os.environ["SEED"]), bench=os.environ["BENCH"] == "yes")
    items[:] = [item for item in items if item not in out]
"""
TESTS = """
import pytest

@pytest.fixture(params=["shm", "tcp"])
def ranks_by(request):
    pass

@pytest.mark.usefixtures("ranks_by")
@pytest.mark.parametrize("case", range(8))
def test_each(case):
    pass

@pytest.mark.some(3)
@pytest.mark.parametrize("case", range(20))
def test_some(case):
    pass

@pytest.mark.full
def test_full():
    pass

@pytest.mark.bench
def test_bench():
    pass

def test_always():
    pass
"""


def collected(folder: Path, seed: int, bench: str = "no") -> list[str]:
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_it.py").write_text(TESTS)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-c",
        "/dev/null",
        "--rootdir",
        ".",
        "--collect-only",
        "test_it.py",
    ]
    env = {"PYTHONPATH": str(Path(chosen.__file__).parent), "SEED": str(seed), "BENCH": bench, "PATH": "/usr/bin"}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=60, check=True)
    return [line.partition("::")[2] for line in done.stdout.splitlines() if "::" in line]


def test_a_short_run_has_some_cases_and_one_transport_of_each(tmp_path: Path) -> None:
    names = collected(tmp_path, 1)
    each = [name for name in names if name.startswith("test_each")]
    assert sorted(int(name.strip("]").rpartition("-")[2]) for name in each) == list(range(8))
    assert {name[10:13] for name in each} == {"shm", "tcp"}
    assert len([name for name in names if name.startswith("test_some")]) == 3
    assert names[-1] == "test_always"
    assert len(names) == 8 + 3 + 1
    assert collected(tmp_path, 1, "yes")[-2:] == ["test_bench", "test_always"]


def test_the_seed_chooses(tmp_path: Path) -> None:
    assert collected(tmp_path, 5) == collected(tmp_path, 5)
    every = {name for seed in range(3, 7) for name in collected(tmp_path, seed) if name.startswith("test_some")}
    assert len(every) > 5


def test_only_a_run_of_folders_is_short(tmp_path: Path) -> None:
    file = tmp_path / "test_it.py"
    file.touch()
    assert chosen.is_short([str(tmp_path)], "half")
    assert not chosen.is_short([str(tmp_path)], "all")
    for named in ([str(file)], [f"{file}::test_a"], [str(tmp_path), str(file)]):
        assert not chosen.is_short(named, "")


def test_a_benchmark_that_has_changed_has_not_passed(tmp_path: Path) -> None:
    shutil.copytree(chosen.ROOT / "bench", tmp_path / "bench")
    (tmp_path / "tests").mkdir()
    (tmp_path / ".ci").mkdir()
    assert not chosen.bench_has_passed(tmp_path)
    (tmp_path / ".ci/bench").write_text(f"{chosen.bench_digest(tmp_path)}\n")
    assert chosen.bench_has_passed(tmp_path)
    changed = tmp_path / "bench/harness.py"
    changed.write_text(changed.read_text() + "\n")
    assert not chosen.bench_has_passed(tmp_path)


def test_every_mark_is_used_as_it_is_meant(request: pytest.FixtureRequest) -> None:
    for item in request.session.items:
        mark = item.get_closest_marker("some")
        assert mark is None or (len(mark.args) == 1 and mark.args[0] >= 1), item.nodeid
