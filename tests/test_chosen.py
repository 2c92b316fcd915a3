"""What a short run leaves out (tests/chosen.py): the marks, and the files of subjects that have not changed."""

import shutil
import subprocess
import sys
from pathlib import Path

import chosen
import pytest

PROJECT = chosen.ROOT
CONFTEST = """
import os, pytest, chosen

def pytest_collection_modifyitems(items):
    out = chosen.left_out(items, int(os.environ["SEED"]))
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

def test_always():
    pass
"""


def collected(folder: Path, seed: int) -> list[str]:
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
    env = {"PYTHONPATH": str(Path(chosen.__file__).parent), "SEED": str(seed), "PATH": "/usr/bin"}
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


def test_the_seed_chooses(tmp_path: Path) -> None:
    found = [collected(tmp_path, seed) for seed in (5, 3, 4, 5)]
    assert found[0] == found[3]
    assert len({name for names in found for name in names if name.startswith("test_some")}) > 5


def test_only_a_run_of_folders_is_short(tmp_path: Path) -> None:
    file = tmp_path / "test_it.py"
    file.touch()
    assert chosen.is_short([str(tmp_path)], "half")
    assert not chosen.is_short([str(tmp_path)], "all")
    for named in ([str(file)], [f"{file}::test_a"], [str(tmp_path), str(file)]):
        assert not chosen.is_short(named, "")


@pytest.mark.parametrize(
    ("subject", "path"),
    [
        ("bench", "bench/common/harness.py"),
        ("bench", "tests/test_bench.py"),
        ("packaging", "setup.py"),
        ("cxx", "csrc/include/hpcomm/exchange.hpp"),
        ("demo", "README.md"),
        ("harness", "tests/ranks.py"),
    ],
)
def test_a_subject_that_has_changed_has_not_passed(subject: str, path: str, tmp_path: Path) -> None:
    (tmp_path / ".ci").mkdir()
    copy(tmp_path, path)
    assert subject not in chosen.passed(tmp_path)
    assert chosen.note_passed(tmp_path)
    assert chosen.passed(tmp_path) == set(chosen.SUBJECTS)
    assert not chosen.note_passed(tmp_path)
    (tmp_path / path).write_text((tmp_path / path).read_text() + "x = 1\n")
    assert subject not in chosen.passed(tmp_path)


def test_a_phase_is_owed_until_it_has_passed_on_these_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chosen, "ROOT", tmp_path)
    (tmp_path / ".ci").mkdir()
    copy(tmp_path, "csrc/base/wait.c")
    assert chosen.main("is-owed", "fuzz") == 0
    assert chosen.main("passed", "fuzz") == 0
    assert (chosen.main("is-owed", "fuzz"), chosen.main("is-owed", "sanitize")) == (1, 0)
    (tmp_path / "csrc/base/wait.c").write_text("")
    assert chosen.main("is-owed", "fuzz") == 0


@pytest.mark.parametrize(
    ("name", "before", "prose", "code"),
    [
        ("a.c", 'int a; /* "1 */ char *b = "/*";', '// 2\nint a;\nchar *b = "/*";', 'int a; char *b = "/**/";'),
        (
            "a.py",
            '"""1"""\ndef f():\n    "2"\n    return 1\n',
            "def f():\n    '3'\n    return 1\n",
            "def f():\n    return 2\n",
        ),
    ],
)
def test_comments_and_docstrings_owe_nothing(name: str, before: str, prose: str, code: str, tmp_path: Path) -> None:
    subject, digests = chosen.Subject((), (name,)), []
    for text in (before, prose, code):
        (tmp_path / name).write_text(text)
        digests.append(subject.digest(tmp_path))
    assert digests[0] == digests[1] != digests[2]


def test_of_some_files_the_name_alone_counts(tmp_path: Path) -> None:
    (tmp_path / ".ci").mkdir()
    copy(tmp_path, "csrc/base/wait.c")
    chosen.note_passed(tmp_path)
    (tmp_path / "csrc/base/wait.c").write_text("")
    assert "packaging" in chosen.passed(tmp_path)
    (tmp_path / "csrc/base/wait.c").rename(tmp_path / "csrc/base/waits.c")
    assert "packaging" not in chosen.passed(tmp_path)


def copy(root: Path, path: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(PROJECT / path, root / path)


def test_files_of_a_spared_subject_are_known() -> None:
    assert chosen.is_spared(chosen.ROOT / "tests/test_bench_rdma.py", ["bench"])
    assert not chosen.is_spared(chosen.ROOT / "tests/test_bench_rdma.py", ["packaging"])
    assert not chosen.is_spared(chosen.ROOT / "tests/test_exchange.py", chosen.SUBJECTS)


def test_every_pattern_finds_a_file() -> None:
    for subject in (*chosen.SUBJECTS.values(), *chosen.PHASES.values()):
        for pattern in (*subject.tests, *subject.watched, *subject.named):
            assert any(chosen.ROOT.glob(pattern)), pattern


def test_every_mark_is_used_as_it_is_meant(request: pytest.FixtureRequest) -> None:
    for item in request.session.items:
        mark = item.get_closest_marker("some")
        assert mark is None or (len(mark.args) == 1 and mark.args[0] >= 1), item.nodeid
