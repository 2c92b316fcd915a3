"""mpi.py: a rank that raises, crashes or hangs fails its test, and nothing is left of a job, however the run ends."""

import faulthandler
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import mpi
import numpy as np
import pytest
import ranks
from conftest import is_gone_soon

import hpcomm

TESTS = Path(__file__).parent


# ---- bodies ----------------------------------------------------------------------------------------------------------


def who() -> list[Any]:
    with hpcomm.init(mpi.world()) as context:
        context.barrier()
        return [context.rank, os.getpid(), os.getsid(0), os.getppid(), np.random.default_rng().random()]


def raises() -> None:
    context = hpcomm.init(mpi.world(), timeout=20)
    if context.rank == 1:
        raise ValueError("rank 1 has had enough")
    context.close()


def crashes() -> None:
    print("printed before the end", flush=True)
    faulthandler._sigsegv()  # type: ignore[attr-defined]


def exits(how: str) -> None:
    if how == "text":
        sys.exit("told at the end")
    sys.exit(3) if how == "code" else os._exit(4)


def hangs(with_children: bool) -> None:
    if with_children:
        if os.fork() == 0:
            os.setsid()
            signal.pause()
        subprocess.Popen(["sleep", "1000"], start_new_session=True)
    print("it hangs here", flush=True)
    signal.pause()


def leaves(folder: str) -> None:
    """A process that no longer has anything to do with its rank."""
    pid = os.fork()
    if pid == 0:
        os.setsid()
        signal.pause()
    Path(folder, "left").write_text(str(pid), encoding="utf-8")


def variables() -> list[str | None]:
    return [os.environ.get(name) for name in ("HPCOMM_TRANSPORT", "OF_THIS_RANK", "TMPDIR", "GONE")]


def alive(pid: int) -> bool:
    """Whether a process runs: a zombie doesn't."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


# ---- what the ranks are ----------------------------------------------------------------------------------------------


def test_ranks_are_processes_of_their_own() -> None:
    told = mpi.spawn(3, who).values
    assert [value[0] for value in told] == [0, 1, 2]
    assert len({value[1] for value in told}) == 3
    assert [value[2] for value in told] == [value[1] for value in told]  # each leads a session
    (server,) = {value[3] for value in told}
    assert server not in (os.getpid(), 1)
    assert len({value[4] for value in told}) == 3, "the ranks draw the same numbers"


def test_they_have_the_environment_of_the_test(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GONE", "before")
    mpi.spawn(1, variables)
    monkeypatch.delenv("GONE")
    monkeypatch.setenv("HPCOMM_TRANSPORT", "tcp")
    told = mpi.start([{"OF_THIS_RANK": "a", "TMPDIR": str(tmp_path)}, {"OF_THIS_RANK": "b"}], variables).values
    assert told == [["tcp", "a", str(tmp_path), None], ["tcp", "b", os.environ.get("TMPDIR"), None]]


# ---- what fails a test -----------------------------------------------------------------------------------------------


def test_a_rank_that_raises_fails_the_test() -> None:
    with pytest.raises(AssertionError, match=r"ranks ended with \[0, 1\]") as raised:
        mpi.spawn(2, raises)
    assert "ValueError: rank 1 has had enough" in str(raised.value)
    assert "in raises" in str(raised.value)


def test_a_rank_that_crashes_fails_the_test() -> None:
    with pytest.raises(AssertionError, match=r"ranks ended with \[-11, -11\]") as raised:
        mpi.spawn(2, crashes)
    assert "printed before the end" in str(raised.value)
    assert "Fatal Python error: Segmentation fault" in str(raised.value)
    assert "in crashes" in str(raised.value)


@pytest.mark.parametrize(("how", "code"), [("text", 1), ("code", 3), ("at once", 4)])
def test_exit_codes_are_kept(how: str, code: int) -> None:
    ended = mpi.spawn(2, exits, how, check=False)
    assert ended.codes == [code] * 2
    assert ended.values == [None] * 2
    assert ended.err.count("told at the end") == 2 * (how == "text")


def test_a_module_that_cannot_be_imported_fails_the_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "no_module.py").write_text("def body(): pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    body = ranks.module_of(str(tmp_path / "no_module.py")).body
    (tmp_path / "no_module.py").write_text("raise RuntimeError('not this one')\n")
    with pytest.raises(AssertionError, match="RuntimeError: not this one"):
        mpi.spawn(2, body)


@pytest.mark.parametrize("with_children", [False, True])
def test_a_rank_that_hangs_fails_the_test_and_is_killed(with_children: bool) -> None:
    servers = sorted(mpi.Server.get(more).pid for more in (False, True))
    with pytest.raises(AssertionError, match=r"hang: job killed after \S+ s; processes \[0, 1\]") as raised:
        mpi.spawn(2, hangs, with_children, timeout=1)
    assert str(raised.value).count("it hangs here") >= 2
    assert sorted(ranks.marked(f"{mpi.SESSION}.")) == servers


def test_a_command_that_hangs_is_killed_with_all_that_it_has_started() -> None:
    servers = sorted(mpi.Server.get(more).pid for more in (False, True))  # which this starts, if no test has before
    with pytest.raises(AssertionError, match="hang: job killed after"):
        mpi.command("sh", "-c", "setsid sleep 1000 & sleep 1000", timeout=0.5)
    assert sorted(ranks.marked(f"{mpi.SESSION}.")) == servers


def test_what_a_rank_leaves_is_killed(tmp_path: Path) -> None:
    mpi.spawn(1, leaves, str(tmp_path))
    assert is_gone_soon(int((tmp_path / "left").read_text(encoding="utf-8")))


def test_a_server_that_is_gone_is_replaced() -> None:
    before = mpi.Server.get()
    os.kill(before.pid, signal.SIGKILL)
    before.wait()
    assert mpi.spawn(1, variables).codes == [0]
    assert mpi.Server.get().pid != before.pid


# ---- an interrupted run ----------------------------------------------------------------------------------------------

ENDLESS = """
import signal, subprocess, sys
from pathlib import Path
import mpi, test_ranks

Path("new").write_text(str(mpi.Server.get().pid))
Path("new").rename("pid")  # whole as soon as it is there
mpi.spawn(2, test_ranks.hangs, True, timeout=60)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left_of_a_run_that_is_interrupted(tmp_path: Path, how: signal.Signals) -> None:
    env = {**os.environ, "PYTHONPATH": str(TESTS), ranks.MARK: "another session"}
    with subprocess.Popen([sys.executable, "-c", ENDLESS], cwd=tmp_path, env=env, stderr=subprocess.DEVNULL) as run:
        end = time.monotonic() + 60
        try:
            while len(started(tmp_path)) < 7:  # the server, two ranks, and two children of each
                assert run.poll() is None
                assert time.monotonic() < end
            pids = started(tmp_path)
            run.send_signal(how)
            run.wait(max(0.0, end - time.monotonic()))
        except BaseException:
            run.kill()  # else its end would be waited for
            raise
    while any(alive(pid) for pid in pids):
        assert time.monotonic() < end, [pid for pid in pids if alive(pid)]


def started(folder: Path) -> list[int]:
    """The processes of the session whose server wrote its id here."""
    told = folder / "pid"
    text = told.read_text(encoding="utf-8") if told.exists() else ""
    if not text:
        return []
    words = Path(f"/proc/{text}/environ").read_bytes().decode().split("\0")
    marks = [word.partition("=")[2] for word in words if word.startswith(ranks.MARK + "=")]
    return ranks.marked(marks[0].partition(".")[0]) if marks else []  # none while the process begins
