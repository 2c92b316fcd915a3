"""Workers in C++ of a job at a hub: alone, and beside workers in Python, with the same bits; and what they are told."""

import importlib.util
import math
import os
import re
import shutil
import socket
import subprocess
import threading
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import mpi
import numpy as np
import pytest
from conftest import TRANSPORTS
from served import SECONDS, TOKENS, Served, asking, join, joining, numbered, said
from sockets import Forwarder, connections, listeners
from test_service import hang_up_while_connecting
from test_service_users import LISTED, OTHER, OWNER, by_root, started

import hpcomm
from hpcomm.service import address

pytest_plugins = ["served"]
pytestmark = pytest.mark.xdist_group("group service cpp")  # one hub for all tests

SHAPES = {"w": (300, 70), "b": (70,), "big": (150_000,)}
ROOT = Path(__file__).resolve().parents[1]
INCLUDE = Path(hpcomm.__file__).parent / "include"
LIBRARY = Path(hpcomm.__file__).parent / "lib/libhpcomm.so.0"


def built(source: Path, program: Path, standard: str = "c++17") -> Path:
    """A program, built against the installed library."""
    names = ("c++", "g++", "clang++") if standard.startswith("c++") else ("cc", "gcc", "clang")
    compiler = next(filter(None, map(shutil.which, names)), None)
    if compiler is None:
        pytest.skip(f"this machine has no {' or '.join(names)}")
    flags: list[str | Path] = [f"-std={standard}", "-Wall", "-Wextra", "-pedantic", "-Werror", "-I", INCLUDE]
    done = mpi.command(compiler, *flags, f"-Wl,-rpath,{LIBRARY.parent}", source, LIBRARY, "-o", program)
    assert done.returncode == 0, done.stdout + done.stderr
    return program


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = Path(__file__).with_name("service_worker.cpp")
    return built(source, tmp_path_factory.mktemp("worker") / "service_worker")


class Worker:
    """A worker in C++, in a process."""

    def __init__(
        self,
        program: Path,
        hub: Served,
        handle: str,
        mode: str,
        *args: object,
        token: str = "a",
        last: str = "shm",
        user: int = -1,
    ) -> None:
        """args: the rank and the size, if they are not 0 and 1. last: the transport. user: another user than this
        process's, which must be root's."""
        other = {} if user < 0 else {"WORKER_USER": str(user)}
        its = {"HPCOMM_SERVICE": handle, "HPCOMM_SECRET_FILE": str(hub.folder / f"{token}.token"), **other}
        line = [str(program), mode, *map(str, args or (0, 1)), last]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        self.process = subprocess.Popen(line, env={**os.environ, **its}, text=True, **pipes)

    def until_it_holds(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "holds\n"

    def goes_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def lines(self) -> list[str]:
        """What it prints until it ends."""
        try:
            printed: str = self.process.communicate(timeout=SECONDS * mpi.PATIENCE)[0]
        finally:
            self.process.kill()
        return printed.splitlines()


# ---- the same bits -------------------------------------------------------------------------------------------------


def numbers(name: str, salt: int) -> Any:
    """As in service_worker.cpp."""
    values = (np.arange(math.prod(SHAPES[name])) * 7 + salt) % 17 - 8.0
    return values.astype(np.float32).reshape(SHAPES[name])


def values() -> dict[str, Any]:
    """The parameters at first."""
    return {name: numbers(name, 1 + i) for i, name in enumerate(SHAPES)}


def gradient(name: str, rank: int, step: int) -> Any:
    return numbers(name, 13 * rank + 5 * step + 3 * list(SHAPES).index(name))


def stepped(ex: Any, rank: int) -> list[str]:
    """The digests of the parameters after three steps."""
    for step in range(3):
        ex.step({name: gradient(name, rank, step) for name in SHAPES})
    return digests(ex)


CODECS = {"w": hpcomm.codec.TopK(0.1, kernel="c"), "big": hpcomm.codec.OneBit()}
QUORUM = hpcomm.Consistency(quorum=2, grace=math.inf)
CASES: list[dict[str, Any]] = [
    {"rule": hpcomm.Nesterov(lr=0.5)},
    {"rule": hpcomm.Adam(lr=0.125), "codec": "float16", "codec_out": "bfloat16"},
    {"rule": hpcomm.Momentum(lr=0.25), "codec": CODECS, "apply_at": "receivers", "depth": 2},
    {
        "rule": {"w": hpcomm.SGD(lr=0.5), **dict.fromkeys(("b", "big"), hpcomm.AdamW(lr=0.125, weight_decay=0.5))},
        "consistency": QUORUM,
        "engine": hpcomm.EngineOptions(groups=[["w"], ["b", "big"]]),
    },
]


def digest(array: Any) -> str:
    """A checksum of the array's bits, as in service_worker.cpp."""
    bits = array.reshape(-1).view(np.uint32).astype(np.uint64)
    return str(int((bits * (2 * np.arange(bits.size, dtype=np.uint64) + 1)).sum(dtype=np.uint64)))


def digests(ex: Any) -> list[str]:
    return [digest(ex.params[name]) for name in SHAPES]


def trained(handle: str, token: str, transport: str) -> list[str]:
    """What a worker in Python prints where one in C++ trains."""
    found = []
    with join(handle, token, transport=transport) as ctx:
        for case in CASES:
            given = dict(case)
            options = {name: given.pop(name) for name in ("codec", "codec_out", "depth") if name in given}
            plan = hpcomm.PlanOptions(chunk_bytes=4096, **options)
            with hpcomm.parameter_hub(ctx, values(), servers="hub", plan=plan, **given) as ex:
                found += stepped(ex, ctx.rank)
    return found


def run_python(ranks: list[int], handle: str, transport: str) -> list[list[str]]:
    """What workers of a job of two print."""
    variables = [numbered(2)[rank] for rank in ranks]
    return mpi.start(variables, trained, handle, TOKENS["a"], transport, timeout=SECONDS).values


@pytest.fixture(scope="module")
def expected(hub: Served) -> list[str]:
    """What each of two workers in Python prints."""
    first, second = run_python([0, 1], hub.create(), "shm")
    assert first == second
    assert len(set(first)) == 3 * len(CASES)
    return first


@pytest.mark.parametrize(("ranks", "transport"), [([0], "shm"), ([1], "tcp"), ([0, 1], "shm")])
def test_workers_in_cpp_have_the_bits_of_workers_in_python(
    hub: Served, worker: Path, expected: list[str], ranks: list[int], transport: str
) -> None:
    handle = hub.create()
    cpp = [Worker(worker, hub, handle, "train", rank, 2, last=transport) for rank in ranks]
    others = sorted({0, 1} - set(ranks))
    assert not others or run_python(others, handle, transport) == [expected]
    for one in cpp:
        assert one.lines() == expected


@by_root
def test_workers_in_cpp_are_known_by_their_users(worker: Path) -> None:
    def printed(at: Served, handle: str, number: int, transport: str) -> list[str]:
        both = [Worker(worker, at, handle, "train", rank, 2, last=transport, user=number) for rank in (0, 1)]
        first, second = (one.lines() for one in both)
        assert first == second
        return first

    with started(OWNER, OTHER) as one, started(OTHER, OWNER) as two:
        shared = printed(one, one.create(), LISTED, "shm")
        assert len(shared) == 12
        assert printed(two, two.create(), OWNER + 9, "shm,tcp") == shared
        both = hpcomm.create_service([one.where, two.where], "a", TOKENS["a"])
        assert printed(one, both, LISTED, "shm") == shared
        kind, told = printed(one, one.create(), OWNER + 9, "shm")
        assert kind == "ConfigError"
        assert f"add {OWNER + 9} to `users` of namespace 'a' in hub.toml" in told


def is_idle(hub: Served) -> bool:
    return not hub.jobs()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_worker_in_cpp_uses_two_hubs(
    hub: Served, own_hub: Served, worker: Path, expected: list[str], rank: int
) -> None:
    both = f"{hub.where},{own_hub.where}"
    handle = Worker(worker, hub, "", "create", both, "a", last="two").lines()[0]
    assert handle.startswith(f"hub://{both}/a/two/")
    one = Worker(worker, hub, handle, "train", rank, 2)
    assert run_python([1 - rank], handle, "shm") == [expected]
    assert one.lines() == expected
    for each in (hub, own_hub):
        each.wait(partial(is_idle, each))


def train_in_racks(handle: str, token: str) -> list[str]:
    """What a worker in Python prints where one in C++ trains in racks."""
    case: dict[str, Any] = {"rule": hpcomm.Nesterov(lr=0.5), "plan": hpcomm.PlanOptions(chunk_bytes=4096)}
    with join(handle, token, transport="shm") as ctx:
        found = said(lambda: hpcomm.parameter_hub(ctx, values(), servers="hub", racks=[[0, 2], [1]], **case))[1:]
        for top in ("sharded", "ring"):
            with hpcomm.parameter_hub(ctx, values(), servers="hub", racks=[[0, 2], [1, 3]], top=top, **case) as ex:
                found += stepped(ex, ctx.rank)
        return found


def test_workers_in_cpp_have_hubs_of_racks(hub: Served, own_hub: Served, worker: Path) -> None:
    handle = hpcomm.create_service([hub.where, own_hub.where], "a", TOKENS["a"])
    cpp = [Worker(worker, hub, handle, "racks", rank, 4) for rank in (0, 1)]
    python = mpi.start(numbered(4)[2:], train_in_racks, handle, TOKENS["a"], timeout=SECONDS).values
    for one in cpp:
        told, *digests = one.lines()
        assert "the rack of rank 3 is -1: must be the number of a hub, 0 to 63; name the rank in one rack" in told
        assert digests == python[0][1:] == python[1][1:]
        assert digests[:3] == digests[3:]
    assert "rank 3 is in none of racks: each worker is in one" in python[0][0]


def save(handle: str, token: str, transport: str) -> list[str]:
    """What a worker in Python prints where one in C++ saves."""
    found = []
    with join(handle, token, transport=transport) as ctx:
        plan = hpcomm.PlanOptions(chunk_bytes=4096, codec="float16", codec_out="bfloat16")
        rule = hpcomm.Adam(lr=0.125)
        with hpcomm.parameter_hub(ctx, values(), servers="hub", plan=plan, rule=rule) as ex:
            begins = ex.clock
            found += [str(begins), *digests(ex)]
            found.append(said(ex.save)[1])
            ex.push_pull("b", numbers("b", 0))
            found.append(str(ex.save()))
            for name in SHAPES:
                ex.push_pull(name, gradient(name, ctx.rank, begins))
            found += [str(ex.save()), *digests(ex)]
    return found


def test_workers_in_cpp_save_and_come_back(worker: Path, tmp_path: Path) -> None:
    hub = Served(tmp_path, drain_seconds=0, checkpoints="saved")
    handle = hub.create("a", "cpp")
    cpp = [Worker(worker, hub, handle, "save", rank, 2) for rank in range(2)]
    first, second = (one.lines() for one in cpp)
    assert first == second
    assert [first[i] for i in (0, 4, 5, 6)] == ["0", "rank 0: save: key 1 is under way: wait for it first", "1", "2"]
    hub.wait(lambda: hub.jobs()["a/cpp"] == "saved")
    handle = hpcomm.create_service(hub.where, "a", TOKENS["a"], "cpp", resume=True)
    one = Worker(worker, hub, handle, "save", 0, 2)
    (python,) = mpi.start(numbered(2)[1:], save, handle, TOKENS["a"], "shm", timeout=SECONDS).values
    again = one.lines()
    assert again == python
    assert [again[i] for i in (0, 5, 6)] == ["2", "3", "4"]
    assert again[1:4] == first[7:10]
    assert again[7:10] != first[7:10]
    assert hub.end() == 0


def hold(handle: str, token: str, where: tuple[str, int], transport: str) -> str:
    """A worker in Python that makes an exchange, and trains when it is told to."""
    with (
        join(handle, token, transport=transport) as ctx,
        hpcomm.parameter_hub(ctx, {"w": numbers("w", 1)}, servers="hub", rule=hpcomm.Nesterov(lr=0.5)) as ex,
    ):
        with closing(socket.create_connection(where, SECONDS)) as told:
            told.recv(1)
        return digest(ex.push_pull("w", numbers("w", ctx.rank)))


def hold_torch(handle: str, token: str, where: tuple[str, int], transport: str) -> str:
    """The same with a model of PyTorch."""
    import torch  # noqa: PLC0415

    import hpcomm.torch as ht  # noqa: PLC0415

    with join(handle, token, transport=transport) as ctx:
        model = torch.nn.Linear(5, 3)
        optimizer = ht.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.5), ctx, model, servers="hub")
        with closing(socket.create_connection(where, SECONDS)) as told:
            told.recv(1)
        model(torch.ones(1, 5)).sum().backward()
        optimizer.step()
        optimizer.close()
        return digest(model.weight.detach().numpy())


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_hub_serves_jobs_in_python_torch_and_cpp_at_once(hub: Served, worker: Path, transport: str) -> None:
    bodies = [hold, *([hold_torch] if importlib.util.find_spec("torch") else [])]
    found: dict[str, list[str]] = {}
    where = address(hub.where)
    with (
        closing(socket.create_server(("127.0.0.1", 0))) as server,
        closing(Forwarder((where.host, where.port))) as other,
    ):
        server.settimeout(SECONDS * mpi.PATIENCE)

        def run(body: Any) -> None:
            given = hub.create("b"), TOKENS["b"], server.getsockname(), transport
            found[body.__name__] = mpi.start(numbered(2), body, *given, timeout=SECONDS).values

        threads = [threading.Thread(target=run, args=(body,)) for body in bodies]
        for thread in threads:
            thread.start()
        handle = hub.create().replace(hub.where, f"127.0.0.1:{other.port}")  # as if the hub's port were mapped
        cpp = [Worker(worker, hub, handle, "hold", rank, 2, last=transport) for rank in range(2)]
        waiting = [server.accept()[0] for _ in range(2 * len(bodies))]
        for one in cpp:
            one.until_it_holds()
        hub.wait(lambda: sum(one["exchanges"] > 0 for one in hub.ask(op="jobs")["jobs"]) == 1 + len(bodies))
        least = 3 if transport == "tcp" else 1  # connections of a worker
        assert listeners([hub.process.pid])[0] == {where.port}
        assert {mine for mine, _ in connections([hub.process.pid])} == {where.port}
        assert all(sum(its == other.port for _, its in connections([one.process.pid])) >= least for one in cpp)
        for connection in waiting:
            connection.close()
        for one in cpp:
            one.goes_on()
        bits = [one.lines() for one in cpp]
        for thread in threads:
            thread.join()
    assert bits == [[found["hold"][0]], [found["hold"][1]]]
    assert all(one == two for one, two in found.values())


def test_ranks_of_both_languages_meet_in_the_context_of_the_workers(hub: Served, worker: Path) -> None:
    handle = hub.create()
    cpp = [Worker(worker, hub, handle, "workers", rank, 2) for rank in range(2)]
    assert [one.lines() for one in cpp] == [["rank 0 of 2", "rank 1 of 2"]] * 2


def outputs(program: Path, hub: Served) -> list[str]:
    """What two workers print, which get their numbers as arguments and as variables."""
    env = {**os.environ, "HPCOMM_SERVICE": hub.create(), "HPCOMM_SECRET_FILE": str(hub.folder / "a.token")}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    ranks = [subprocess.Popen([program, own["RANK"], "2"], env=env | own, **pipes) for own in numbered(2)]
    try:
        said = [rank.communicate(timeout=SECONDS * mpi.PATIENCE)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], said
    return said


def test_the_example_fits_a_line(hub: Served, tmp_path: Path) -> None:
    program = built(ROOT / "examples/cpp/train_service.cpp", tmp_path / "train_service")
    first, second = outputs(program, hub)
    found = re.fullmatch(r"y = (\S+) x \+ (\S+)\n", first)
    assert found is not None, first
    assert second == ""
    assert np.allclose([float(found[1]), float(found[2])], [3, -1], atol=0.05)


def test_the_program_of_the_guide_runs(hub: Served, tmp_path: Path) -> None:
    guide = (ROOT / "docs/service.md").read_text(encoding="utf-8")
    source = tmp_path / "program.c"
    source.write_text(re.findall(r"```c\n(.*?)```", guide, re.DOTALL)[0], encoding="utf-8")
    assert outputs(built(source, tmp_path / "program", "c11"), hub) == ["-0.10\n"] * 2


# ---- errors --------------------------------------------------------------------------------------------------------


def test_a_job_is_created_in_cpp(hub: Served, worker: Path) -> None:
    handle = Worker(worker, hub, "", "create", hub.where, "a", last="mine").lines()[0]
    assert handle.startswith(f"hub://{hub.where}/a/mine/")
    with join(handle, TOKENS["a"], rank=0, size=1) as ctx:
        assert ctx.size == 1
        told = Worker(worker, hub, "", "create", hub.where, "a", last="mine").lines()
        assert told == ["ConfigError", "namespace 'a' already has a job 'mine'"]


def test_calls_in_cpp_are_refused_in_the_words_of_python(hub: Served, worker: Path) -> None:
    nowhere = f"127.0.0.1:{mpi.free_port()}"
    handle, late = hub.create(), hub.create()
    elsewhere, unknown = handle.replace(hub.where, nowhere), handle.replace("/a/", "/nobody/")
    with closing(asking(hub)) as one:
        one.ask(joining(late, 0, 1, transport="shm"))
        for where, token, kind in (
            (handle, "b", "AuthError"),
            (unknown, "a", "AuthError"),
            (elsewhere, "a", "TransportError"),
            (late, "a", "ConfigError"),
            (late.replace("/a/", "/b/"), "b", "ConfigError"),
            ("hub://somewhere/a", "a", "ConfigError"),
            ("", "a", "ConfigError"),
        ):
            told = Worker(worker, hub, where, "workers", token=token).lines()
            assert told[0] == kind
            if where:
                assert told == said(partial(join, where, TOKENS[token], rank=0, size=1))
    for args, wrong in (((1, 1), "rank is 1: must be 0 to 0"), ((0, 0), "size is 0: must be 1 to 1048576")):
        told = Worker(worker, hub, handle, "workers", *args).lines()
        python = said(partial(join, handle, TOKENS["a"], rank=args[0], size=args[1]))
        assert told == python == ["InvalidArgument", wrong]


def test_a_token_file_is_read_as_in_python(hub: Served, worker: Path, tmp_path: Path) -> None:
    handle = hub.create()
    for content, mode, wrong in ((b"short", 0o600, "holds 5 bytes"), (b"x" * 20, 0o644, "may be read or written by")):
        file = hub.folder / "odd.token"
        file.write_bytes(content)
        file.chmod(mode)
        told = Worker(worker, hub, handle, "workers", token="odd").lines()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HPCOMM_SECRET_FILE", str(file))
            assert told == said(lambda: hpcomm.connect_service(handle, rank=0, size=1))
        assert wrong in told[1]
    told = Worker(worker, hub, handle, "workers", token="none").lines()
    wrong = f"HPCOMM_SECRET_FILE={hub.folder}/none.token cannot be read: No such file or directory"
    assert told == ["ConfigError", wrong]


def test_workers_that_do_not_agree_are_all_told(hub: Served, worker: Path) -> None:
    handle = hub.create("a", "unequal")
    first = Worker(worker, hub, handle, "workers", 0, 2)
    hub.wait(lambda: any(one["workers"] for one in hub.ask(op="jobs")["jobs"] if one["job"] == "a/unequal"))
    told = said(lambda: join(handle, TOKENS["a"], rank=1, size=3, transport="shm"))
    assert told[0] == "ConfigError"
    assert "rank 1 says that there are 3 workers, and rank 0 says 2" in told[1]
    assert first.lines() == told


def test_a_worker_that_waits_alone_is_told_who_is_missing(hub: Served, worker: Path) -> None:
    told = Worker(worker, hub, hub.create("a", "alone"), "alone", 0, 2).lines()
    assert told == ["Timeout", "a/alone: rank 1 did not come in 0.5 s"]


def test_a_worker_that_dies_while_ranks_connect_ends_the_wait(hub: Served, worker: Path) -> None:
    handle = hub.create("a", "dies")
    first = Worker(worker, hub, handle, "workers", 0, 2)
    with closing(asking(hub)) as second:
        second.ask(joining(handle, 1, 2, transport="shm"))
    assert first.lines() == ["ConfigError", "a/dies: rank 1 is gone: it died, gave up, or its connection broke"]


@pytest.mark.parametrize("context", [0, 1])
def test_a_worker_that_connects_to_the_others_listens_to_the_hub(
    hub: Served, worker: Path, tmp_path: Path, context: int
) -> None:
    handle = hub.create("a", f"hangs-up{context}")
    first = Worker(worker, hub, handle, "workers", 0, 2, last=os.environ.get("HPCOMM_TRANSPORT", ""))
    given = numbered(2)[1:], hang_up_while_connecting, handle, TOKENS["a"], context, str(tmp_path)
    other = threading.Thread(target=partial(mpi.start, *given, timeout=SECONDS))
    other.start()
    told = first.lines()
    (tmp_path / f"{context}").touch()
    other.join()
    wrong = f"a/hangs-up{context}: rank 1 is gone: it died, gave up, or its connection broke"
    assert told == ["ConfigError", wrong]


def test_a_hub_that_dies_ends_the_wait_of_a_worker(own_hub: Served, worker: Path) -> None:
    handle = own_hub.create("a", "orphan")
    first = Worker(worker, own_hub, handle, "workers", 0, 2)
    own_hub.wait(lambda: any(one["workers"] for one in own_hub.ask(op="jobs")["jobs"]))
    own_hub.process.kill()
    told = first.lines()
    assert told[0] == "TransportError"
    assert told[1].startswith(f"the connection to the hub at {own_hub.where} broke: ")


def test_a_hub_takes_no_code_and_not_too_much_from_cpp(hub: Served, worker: Path) -> None:
    told = Worker(worker, hub, hub.create(), "refused").lines()
    wrong = "rule mine is the user's own: a hub runs none of its tenants' code: give a rule or a codec of hpcomm"
    assert told[:2] == [wrong, "cores is 2: the hub has 1"]
    assert len(told) == 5, "the exchange after them"
    told = Worker(worker, hub, hub.create("small"), "train", token="small").lines()
    assert told[3] == "InvalidArgument", "the first exchange needs less"
    assert "bytes, and namespace 'small' has" in told[4]


def test_a_forked_child_does_not_speak_for_its_parent(hub: Served, worker: Path) -> None:
    handle = hub.create()
    cpp = [Worker(worker, hub, handle, "fork", rank, 2) for rank in range(2)]
    assert [one.lines() for one in cpp] == [["the child ended with 0", "rank 0 of 2", "rank 1 of 2"]] * 2


def test_a_job_in_cpp_is_told_why_it_ends(hub: Served, worker: Path) -> None:
    one = Worker(worker, hub, hub.create("a", "evicted"), "notice")
    one.until_it_holds()
    hub.ask(op="evict", job="a/evicted")
    one.goes_on()
    why = "a/evicted: the administrator of the hub has ended it"
    assert one.lines() == ["rank 1", why]
    hub.wait(lambda: "a/evicted" not in hub.jobs())
