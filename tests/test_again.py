"""A second run excuses an accident and nothing else (tests/again.py)."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import again
import conftest
import pytest

SECONDS = 120

# Passes when it is run for the second time.
ACCIDENT = "if [ -e seen ]; then exit 0; fi; touch seen; echo it was slow; exit 1"
CTEST = """add_test(good true)
add_test(other sh "-c" [==[{script}]==])
"""
PYTEST = """from pathlib import Path
def test_good(): pass
def test_other(tmp_path_factory):
    seen = Path("seen")
    if {always} or not seen.exists():
        seen.touch()
        raise AssertionError({said!r})
"""


def run(folder: Path, kind: str, *options: str) -> "subprocess.CompletedProcess[str]":
    """again.py with its folders in this one."""
    code = "import again, sys, pathlib; again.FOLDER = again.KEPT = pathlib.Path.cwd() / 'again'; "
    code += f"sys.exit(again.main({kind!r}, 'name', *sys.argv[1:]))"
    env = os.environ | {"PYTHONPATH": str(Path(again.__file__).parent), "HPC_TEST_SEED": "12345"}
    env["PATH"] = f"{Path(sys.executable).parent}:{env['PATH']}"
    command = [sys.executable, "-c", code, *options]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=SECONDS, check=False)


def ctest(folder: Path, script: str) -> "subprocess.CompletedProcess[str]":
    (folder / "CTestTestfile.cmake").write_text(CTEST.format(script=script))
    return run(folder, "ctest", ".", "-j2")


def with_pytest(folder: Path, said: str, always: bool = False) -> "subprocess.CompletedProcess[str]":
    (folder / "test_it.py").write_text(PYTEST.format(said=said, always=always))
    return run(folder, "pytest", "-q", "-c", "/dev/null", "--rootdir", ".", "test_it.py")


def test_an_accident_of_ctest_is_flaky(tmp_path: Path) -> None:
    done = ctest(tmp_path, ACCIDENT)
    assert done.returncode == 0, done.stdout
    first, *_, last = done.stdout.splitlines()
    assert first.startswith("seed=12345 load=")
    flaky, name, log = last.split()
    assert (flaky, name) == ("FLAKY", "other")
    assert "it was slow" in Path(log).read_text()
    assert (tmp_path / "again/name/flaky").read_text() == f"{last}\n"


def test_a_test_of_a_group_has_the_name_by_which_it_runs_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    for name in ("test_it.py::test_one", "test_it.py::test_one[a b]"):
        for group in ("group kernels", "group torch ways"):
            report = pytest.TestReport(f"{name}@{group}", ("", 0, ""), {}, "passed", None, "call")
            conftest.pytest_runtest_logreport(report)
            assert report.nodeid == name


def test_the_test_that_failed_is_the_one_that_runs_again(tmp_path: Path) -> None:
    """Whatever numbers the options give to the tests."""
    tests = f'add_test(left_out true)\nadd_test(always sh "-c" "exit 1")\nadd_test(other sh "-c" [==[{ACCIDENT}]==])\n'
    (tmp_path / "CTestTestfile.cmake").write_text(tests)
    done = run(tmp_path, "ctest", ".", "-E", "left_out")
    assert done.returncode != 0
    second = (tmp_path / "again/name/second.log").read_text()
    assert "1 tests failed out of 2" in second
    assert "always" in second
    assert "other" in second
    assert "left_out" not in second


def test_an_accident_of_pytest_is_flaky(tmp_path: Path) -> None:
    done = with_pytest(tmp_path, "it was slow")
    assert done.returncode == 0, done.stdout
    flaky, name, log = done.stdout.splitlines()[-1].split()
    assert (flaky, name) == ("FLAKY", "test_it::test_other")
    assert "it was slow" in Path(log).read_text()


def test_an_accident_among_named_tests_is_flaky(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(PYTEST.format(said="it was slow", always=False))
    (tmp_path / "test_beside.py").write_text("def test_that_passes(): pass\n")
    named = ["test_it.py::test_other", "test_it.py::test_good", "test_beside.py::test_that_passes"]
    done = run(tmp_path, "pytest", "-q", "-c", "/dev/null", "--rootdir", ".", *named)
    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines()[-1].startswith("FLAKY test_it::test_other ")


def test_what_fails_twice_failed(tmp_path: Path) -> None:
    done = ctest(tmp_path, "exit 1")
    assert done.returncode != 0
    assert "once more, alone: other" in done.stdout
    assert "FLAKY" not in done.stdout


def test_good_run_ends_with_its_own_summary(tmp_path: Path) -> None:
    done = ctest(tmp_path, "exit 0")
    assert done.returncode == 0
    assert "100% tests passed" in done.stdout
    assert "FLAKY" not in done.stdout
    (tmp_path / "seen").touch()
    assert with_pytest(tmp_path, "").stdout.splitlines()[-1].startswith("2 passed")


def test_red_is_not_run_again(tmp_path: Path) -> None:
    how = {
        "says": f"echo RED: wrong bytes; {ACCIDENT}",
        "crashes": "kill -SEGV $$",
        "hangs": "exec sleep 30",
        "is_missing": None,
    }
    tests = [f'add_test({name} sh "-c" [==[{script}]==])\n' for name, script in how.items() if script]
    tests += ["add_test(is_missing /nowhere)\n", "set_tests_properties(hangs PROPERTIES TIMEOUT 1)\n"]
    (tmp_path / "CTestTestfile.cmake").write_text("".join(tests))
    done = run(tmp_path, "ctest", ".", "-j4")
    assert done.returncode != 0
    assert "once more" not in done.stdout
    assert done.stdout.splitlines()[-4:] == [
        "RED says: wrong bytes",
        "RED crashes: a crash (SEGFAULT)",
        "RED hangs: a hang",
        "RED is_missing: it did not run",
    ]
    done = with_pytest(tmp_path, "the ranks took more than 60 s", always=True)
    assert done.returncode == 1
    assert "once more" not in done.stdout
    assert done.stdout.splitlines()[-1] == "RED test_it::test_other: a hang"


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("RED: something is left", "something is left"),
        ("E   RED: wrong bytes", "wrong bytes"),
        ("==7==ERROR: AddressSanitizer: heap-use-after-free", "a sanitizer's report"),
        ("==7==ERROR: LeakSanitizer: detected memory leaks", "a sanitizer's report"),
        ("WARNING: ThreadSanitizer: data race", "a sanitizer's report"),
        ("csrc/a.c:1:2: runtime error: signed integer overflow", "a sanitizer's report"),
        ("hang: ranks 1 and 2", "a hang"),
        ("Mismatched elements: 3 / 4 (75%)", "wrong bits"),
        ("left behind: processes [4]", "something left behind"),
        ("Fatal Python error: Segmentation fault", "a crash"),
        ("assert 2.1 < 2", ""),
        ("PeerFailed: barrier: rank 1 has ended; rank 0 still waits for it", ""),
    ],
)
def test_why_red(said: str, why: str) -> None:
    assert again.why_red(f"before\n{said}\nafter") == why


def test_prose_of_a_traceback_is_not_judged() -> None:
    """The source of a test that failed has its docstring, and that may speak of what is left behind, or of a hang."""
    text = 'def test_it():\n    """Nothing is left behind; it hangs: """\n>   assert wait() < 2\nE   assert 2.1 < 2\n'
    assert again.why_red(again.exception_of(text)) == ""
    assert again.why_red(again.exception_of(text.replace("E   assert", "E   left behind: a file. assert")))
    assert again.why_red(again.exception_of("worker 'gw0' crashed: Segmentation fault")) == "a crash"


def test_sigint_is_not_ignored_by_tests_of_a_background_job(tmp_path: Path) -> None:
    shell = '[ "$(python3 -c "import signal; print(signal.getsignal(2) == signal.SIG_IGN)")" = False ]'
    (tmp_path / "CTestTestfile.cmake").write_text(f'add_test(other sh "-c" [==[{shell}]==])\n')
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        done = run(tmp_path, "ctest", ".")
    finally:
        signal.signal(signal.SIGINT, before)
    assert done.returncode == 0, done.stdout


def test_costs_are_told_by_case_folder_and_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases = [again.Cost("tests/c/test_a", f"case_{i} shm", i, i / 2) for i in range(again.SLOWEST + 1)]
    for name, costs in (("ctest", cases), ("pytest", [again.Cost("tests/test_b.py", "test_it", 99.0, 7.0)])):
        (tmp_path / name).mkdir()
        again.write_costs(tmp_path / name, costs, sum(cost.processor for cost in costs) + 1)
    (tmp_path / "pytest/flaky").write_text("FLAKY test_it\n")
    again.told("ctest", "pytest", "never ran", root=tmp_path)
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split() == ["99.0", "7.0", "tests/test_b.py", "test_it"]
    assert "case_1 " not in "\n".join(lines)
    assert "    27.5  tests/c" in lines
    assert "     7.0  tests" in lines
    assert "    36.5  together" in lines
    assert lines[-1] == "FLAKY test_it"


def test_many_failures_are_no_accident() -> None:
    failures = [again.Failure(str(i), "it was slow", "") for i in range(again.MOST + 1)]
    assert again.once_more(failures, 8, lambda: pytest.fail("ran again")) == (
        8,
        ["6 tests failed: too many for accidents"],
    )


def test_seed_is_the_commits(tmp_path: Path) -> None:
    assert again.seed({"HPC_TEST_SEED": "7"}) == "7"
    assert again.seed({}, tmp_path) == "1"
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "one"]):
        subprocess.run([*git, *command], check=True, timeout=SECONDS)
    first = again.seed({}, tmp_path)
    assert first == again.seed({}, tmp_path)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "two"], check=True, timeout=SECONDS)
    assert again.seed({}, tmp_path) != first
