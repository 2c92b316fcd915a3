"""How the tests run side by side, and ranks that are threads of the test's own process: quick, and the only ones that
transport loop has."""

import fcntl
import gc
import importlib
import io
import json
import os
import re
import select
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import again
import chosen
import cover
import mpi
import numpy as np
import pytest
from hypothesis import settings
from told import logs

import hpcomm

pytest.register_assert_rewrite("served")  # it has fixtures, and the tests import it before pytest does
for _name in hpcomm.__all__:  # at once, for the ranks that are forked from here
    getattr(hpcomm, _name)

EXAMPLES = 100 if os.environ.get("HPC_TEST_MODES") == "all" else 15  # of a property that asks for no number of its own
# Imports and a busy machine take their time.
settings.register_profile("calm", deadline=None, print_blob=True, max_examples=EXAMPLES)
settings.load_profile("calm")


# ---- the run -------------------------------------------------------------------------------------------------------


TURNS = "TURNS_OF_TESTS"  # the files that the workers of a run lock
SHORT = "SHORT_RUN_OF_TESTS"  # "yes" where some are left out, by chosen.py
SPARED = "SPARED_SUBJECTS_OF_TESTS"  # the subjects of chosen.py whose tests a short run leaves out


def pytest_configure(config: pytest.Config) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # nohup, or a shell's &, has it ignored by all children
    config.addinivalue_line("markers", "serial: measures time, or counts what all of the machine does: runs alone")
    config.addinivalue_line("markers", "full: takes long, and finds what others find sooner: only in a full run")
    config.addinivalue_line("markers", "some(n): n of its cases a run, which the seed chooses; all in a full run")
    os.environ.setdefault("HPCOMM_TIMEOUT", "30")  # not 30 minutes, where a test hangs
    os.environ[mpi.MARK] = f"{mpi.SESSION}.{0:08}"  # whatever a test starts ends with this process
    if "PYTEST_XDIST_WORKER" not in os.environ:  # files without a name, which end with the run
        files = [os.memfd_create(name) for name in ("door", "room")]
        os.environ[TURNS] = " ".join(f"/proc/{os.getpid()}/fd/{file}" for file in files)
        is_short = chosen.is_short(config.args, os.environ.get("HPC_TEST_MODES", ""))
        is_chosen = chosen.BY_NAME in os.environ
        os.environ[SHORT] = "yes" if is_short or is_chosen else "no"
        os.environ[SPARED] = " ".join(sorted(chosen.passed())) if is_short else ""


def pytest_unconfigure() -> None:
    mpi.Server.close()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Workers of a run of everything: one more than cores, as tests also wait. A run of named tests needs none."""
    if config.args_source != pytest.Config.ArgsSource.TESTPATHS:
        return 0
    return min(len(os.sched_getaffinity(0)) + 1, 8)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    return True if chosen.is_spared(collection_path, os.environ.get(SPARED, "").split()) else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """The first worker collects alone: it compiles the tests, and the others read what it has compiled."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return (yield)
    with open(os.environ[TURNS].split()[1], "rb+", buffering=0) as room:
        fcntl.flock(room, fcntl.LOCK_EX)
        if room.read(1):
            fcntl.flock(room, fcntl.LOCK_SH)
        else:
            room.write(b"x")
        return (yield)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if os.environ.get(SHORT) == "yes":
        left_out = chosen.left_out(items, SEED)
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]
    items.sort(key=_is_serial)  # last, when no other worker has anything to do


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()  # no later collection looks at all that has been imported


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Writes .ci/passed when the tests of all subjects have passed."""
    option = session.config.option
    is_whole = session.config.args_source == pytest.Config.ArgsSource.TESTPATHS and not (
        option.keyword or option.markexpr
    )
    is_whole = is_whole and not option.collectonly
    if exitstatus == 0 and is_whole and "PYTEST_XDIST_WORKER" not in os.environ and chosen.note_passed():
        print(f"\nplease commit {chosen.PASSED}")


def _is_serial(item: pytest.Item) -> bool:
    return item.get_closest_marker("serial") is not None


@contextmanager
def _turn(*, alone: bool) -> Iterator[None]:
    """Tests of other workers run meanwhile only if none of all is to be alone. One that is to be alone holds the door
    while it waits for those inside."""
    with ExitStack() as stack:
        door, room = (os.open(path, os.O_RDWR) for path in os.environ[TURNS].split())
        stack.callback(os.close, door)
        stack.callback(os.close, room)
        fcntl.flock(door, fcntl.LOCK_EX)
        fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        if not alone:
            fcntl.flock(door, fcntl.LOCK_UN)
        yield


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    mpi.note(seed=0, ranks=1)
    with ExitStack() as stack:
        if "PYTEST_XDIST_WORKER" in os.environ:
            stack.enter_context(_turn(alone=_is_serial(item)))
        stack.enter_context(_costed(item))
        stack.enter_context(cover.of(_function(item), _shared(item), mpi.processor_seconds))
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any], request: Any) -> Generator[None, object, object]:
    """A fixture that several tests share counts for all of them, and not for the first one that asks."""
    if fixturedef.scope == "function" or cover.FOLDER not in os.environ:
        return (yield)
    with cover.of(_shared_name(request._pyfuncitem, fixturedef.argname), (), mpi.processor_seconds):
        return (yield)


def _function(item: pytest.Item) -> str:
    """The test's name without its parameters, and without the group that pytest-xdist adds."""
    return re.split(r"\[|@group ", item.nodeid)[0]


def _shared(item: Any) -> list[str]:
    """The names of its fixtures of a wider scope than a function's, and of the group whose tests one worker runs."""
    known: dict[str, Any] = item._fixtureinfo.name2fixturedefs if isinstance(item, pytest.Function) else {}
    fixtures = [_shared_name(item, name) for name, found in known.items() if found[-1].scope != "function"]
    return [*fixtures, *(f"@{mark.args[0]}" for mark in item.iter_markers("xdist_group"))]


def _shared_name(item: pytest.Item, fixture: str) -> str:
    return f"{item.nodeid.partition('::')[0]} {fixture}"


@contextmanager
def _costed(item: pytest.Item) -> Iterator[None]:
    """Adds a line to the file that again.py reads: what the test took. Fixtures count at the first test that asks."""
    if again.COSTS not in os.environ:
        yield
        return
    start, used = time.monotonic(), mpi.processor_seconds()
    try:
        yield
    finally:
        took = [round(time.monotonic() - start, 3), round(mpi.processor_seconds() - used, 3)]
        file, _, case = item.nodeid.partition("::")
        with open(os.environ[again.COSTS], "a", encoding="utf-8") as lines:  # whole: a short write at the end of a file
            lines.write(json.dumps([file, case, *took]) + "\n")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """pytest-xdist adds the group to a test's name. No other run would find the test by that name."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        report.nodeid = re.sub(r"(?<=[\w\]])@group [\w ]+$", "", report.nodeid)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        seed = getattr(getattr(item, "obj", None), "_hypothesis_internal_use_generated_seed", None)
        if seed is not None:
            mpi.note(seed=seed)
        report.sections.append(("the last job", mpi.facts()))
    return report


# ---- ranks that are threads ----------------------------------------------------------------------------------------


class ThreadWorld:
    """A communicator of threads."""

    def __init__(self, rank: int, size: int, parts: list[bytes], meeting: threading.Barrier) -> None:
        self.rank, self.size = rank, size
        self._parts, self._meeting = parts, meeting

    def allgather(self, data: bytes) -> list[bytes]:
        self._parts[self.rank] = data
        self._meeting.wait()
        parts = list(self._parts)
        self._meeting.wait()
        return parts


def thread_worlds(n: int) -> list[ThreadWorld]:
    parts, meeting = [b""] * n, threading.Barrier(n, timeout=30)
    return [ThreadWorld(rank, n, parts, meeting) for rank in range(n)]


PARSING = threading.Lock()  # CPython 3.11 may fail where two threads parse a header (SystemError: AST constructor)


def through_a_file(shard: dict[str, Any]) -> dict[str, Any]:
    """What comes back from a file that np.savez writes."""
    file = io.BytesIO()
    np.savez(file, **shard)
    file.seek(0)
    with PARSING, np.load(file) as found:
        return dict(found)


class Left(Exception):
    """Raised by a body that has closed its context and so takes no part in the last barrier."""


def leave(ctx: hpcomm.Context) -> None:
    """Closes the context of a body, which ends."""
    with suppress(hpcomm.HpcommError):
        ctx.close()
    raise Left


def run_threads(n: int, body: Callable[[hpcomm.Context], Any], **config: Any) -> list[Any]:
    """What body(context) returns in each of n threads. An exception of a rank is raised here: the cause, not what
    follows from it on other ranks."""
    mpi.note(ranks=n, seed=config.get("loop_seed", 0))
    values: list[Any] = [None] * n
    raised: list[BaseException] = []

    def rank(world: ThreadWorld) -> None:
        try:
            with hpcomm.init(world, **{"timeout": 20, **config}) as context:
                values[world.rank] = body(context)
                context.barrier()
        except Left:
            pass
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=rank, args=(world,), daemon=True) for world in thread_worlds(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads), "hang: job killed after 60 s; a rank hangs"
    if raised:
        raise min(raised, key=lambda error: isinstance(error, hpcomm.PeerFailed))
    return values


# What the tests that take any transport run on: HPC_TEST_TRANSPORTS=verbs where there is an RDMA port.
TRANSPORTS = os.environ.get("HPC_TEST_TRANSPORTS", "shm,tcp").split(",")
SEED = int(os.environ.get("HPC_TEST_SEED", "0")) or 7  # of "loop late": each commit has its own
LOOP = [] if "HPC_TEST_TRANSPORTS" in os.environ else ["loop", "loop late"]


@pytest.fixture(params=[*TRANSPORTS, *LOOP])
def transport(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The settings of each transport; "late" delays, splits and reorders what may be."""
    name, _, late = request.param.partition(" ")
    return {"transport": name, "loop_seed": SEED if late else 0}


@pytest.fixture(params=TRANSPORTS)
def ranks_by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The transport of all ranks that the test starts and gives none: threads, processes, under mpirun or not."""
    name = str(request.param)
    monkeypatch.setenv("HPCOMM_TRANSPORT", name)
    return name


on_both = pytest.mark.usefixtures("ranks_by")  # a test without it, of ranks on one host, has them on shm


@pytest.fixture
def alone() -> Any:
    """A world of one."""
    with hpcomm.init() as context:
        yield context


def is_gone_soon(pid: int) -> bool:
    """Whether a process is gone within 10 s: one that was killed gives its memory back before."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([process], [], [], 10)[0])
    finally:
        os.close(process)


def names_of(request: pytest.FixtureRequest) -> list[str]:
    """The parameters "name" of the tests of this run that use the module's fixture which asks."""
    items = [item for item in request.session.items if isinstance(item, pytest.Function)]
    mine = [item for item in items if item.module is request.module and request.fixturename in item.fixturenames]
    return [str(item.callspec.params["name"]) for item in mine]


# The jobs of modules whose cases torchcases runs: one job runs all of them. By rank what went wrong in each.


@pytest.fixture(scope="module")
def shm(request: pytest.FixtureRequest) -> list[dict[str, str]]:
    return _run_cases("on_shm", request)


@pytest.fixture(scope="module")
def one(request: pytest.FixtureRequest) -> list[dict[str, str]]:
    return _run_cases("by_one_rank", request)


@pytest.fixture(scope="module")
def wire(request: pytest.FixtureRequest) -> list[dict[str, str]]:
    return _run_cases("over_wire", request)


def _run_cases(how: str, request: pytest.FixtureRequest) -> list[dict[str, str]]:
    run: Callable[..., list[dict[str, str]]] = getattr(importlib.import_module("torchcases"), how)  # it needs torch
    return run(request.module.__name__, names_of(request))


@pytest.fixture
def told_by_logger() -> Iterator[Callable[[], str]]:
    """The lines of the logger "hpcomm" since the last call, as they go to stderr where no logging is configured."""
    with logs() as sentences:

        def told() -> str:
            lines = [f"hpcomm {sentence}\n" for sentence in sentences]
            sentences.clear()
            return "".join(lines)

        yield told
