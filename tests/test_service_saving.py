"""Saved state at a hub: jobs that save, end, and come back, also after the hub's end."""

import json
import os
import re
import resource
import shutil
import signal
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from served import SECONDS, SHAPES, TOKENS, VALUES, Served, asking, command, join, joining, numbers, run, said, train

import hpcomm
from hpcomm.checkpoint import files
from hpcomm.checkpoint.files import Label
from hpcomm.service.config import Namespace, read_config
from hpcomm.service.store import Store

pytest_plugins = ["served"]
pytestmark = pytest.mark.xdist_group("group service saving")  # one hub for all tests
HUB = {"checkpoints": "saved"}

ZEROS = {name: np.zeros_like(value) for name, value in VALUES.items()}
QUOTAS = Namespace("a", b"", jobs=1, ranks=1, memory=1, descriptors=1, weight=1.0, checkpoints=1, disk=1 << 20)
RULES: dict[str, Any] = {
    "adam": hpcomm.Adam(lr=0.125),
    "momentum": {"w": hpcomm.Momentum(lr=0.5), "b": hpcomm.Nesterov(lr=0.25), "big": hpcomm.SGD(lr=0.5)},
}
CASES: dict[str, dict[str, Any]] = {
    "adam": {"rule": RULES["adam"]},
    "rules": {"rule": RULES["momentum"], "codec": "float16", "reduce": "sum"},
    "schemes": {"rule": RULES["adam"], "consistency": {"b": hpcomm.SSP(0)}},
    "pieces": {"rule": RULES["adam"], "codec": {"w": hpcomm.codec.TopK(0.1, kernel="c"), "big": hpcomm.codec.OneBit()}},
    "async": {"rule": RULES["momentum"], "consistency": hpcomm.ASYNC},
    "quorum": {"rule": RULES["adam"], "consistency": hpcomm.Consistency(quorum=1)},
}


def exchange(ctx: hpcomm.ServiceContext, case: str, values: dict[str, Any] = VALUES) -> Any:
    return hpcomm.parameter_hub(ctx, values, servers="hub", **CASES[case])


def go(ex: Any, first: int, last: int, rank: int) -> None:
    for step in range(first, last):
        ex.step({name: numbers(shape, 100 * rank + step) for name, shape in SHAPES.items()})


def bits(ex: Any) -> str:
    return "".join(ex.params[name].tobytes().hex()[:4000] + str(float(ex.params[name].sum())) for name in SHAPES)


def begin(handle: str, token: str, case: str, save_at: int, last: int, folder: str = "") -> tuple[int, str]:
    """Trains from the start to step last, and saves at a step. Returns the clock that was saved, and the bits. folder:
    gets what the codecs have kept back."""
    with join(handle, token) as ctx, exchange(ctx, case) as ex:
        go(ex, 0, 2, ctx.rank)
        ex.set(lr=0.25)
        go(ex, 2, save_at, ctx.rank)
        saved = ex.save()
        if folder:
            np.savez(f"{folder}/{ctx.rank}.npz", **ex.kept_back())
        go(ex, save_at, last, ctx.rank)
        return saved, bits(ex)


def go_on(handle: str, token: str, case: str, last: int, folder: str = "") -> tuple[int, str, str]:
    """Comes back, and trains to step last. Returns the clock at first, the bits at first, and the bits at last."""
    with join(handle, token) as ctx, exchange(ctx, case, ZEROS) as ex:
        clock, first = ex.clock, bits(ex)
        if folder:
            ex.put_back(np.load(f"{folder}/{ctx.rank}.npz"))
        go(ex, clock, last, ctx.rank)
        assert ex.clock == last
        return clock, first, bits(ex)


def has_ended(hub: Served, *jobs: str) -> None:
    """Waits until no job of these runs."""
    hub.wait(lambda: all(hub.jobs().get(job, "saved") == "saved" for job in jobs))


def resumed(hub: Served, job: str) -> str:
    has_ended(hub, f"a/{job}")
    return hpcomm.create_service(hub.where, "a", TOKENS["a"], job, resume=True)


# ---- coming back -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_a_job_that_comes_back_has_the_bits_of_one_that_stayed(hub: Served, tmp_path: Path, case: str) -> None:
    n = 1 if case in ("async", "quorum") else 2  # with one worker these give the same bits in every run
    saved = run(n, begin, hub.create("a", case), case, 3, 5, str(tmp_path))
    assert [clock for clock, _ in saved] == [3] * n
    at_3 = run(n, begin, hub.create("a", f"{case}-3"), case, 3, 3)
    back = run(n, go_on, resumed(hub, case), case, 5, str(tmp_path))
    assert back == [[3, at_3[0][1], saved[0][1]]] * n


def save_at_once(handle: str, token: str, lr: float, steps: int) -> list[Any]:
    """Saves before the first step; then trains."""
    with join(handle, token) as ctx, hpcomm.parameter_hub(ctx, VALUES, servers="hub", rule=hpcomm.SGD(lr=lr)) as ex:
        ex.save()
        go(ex, 0, steps, ctx.rank)
        return [bits(ex), ex.rule.lr]  # type: ignore[union-attr]


def test_hyper_parameters_come_back_although_nothing_was_pushed(hub: Served) -> None:
    first = run(1, save_at_once, hub.create("a", "early"), 0.25, 1)
    for _ in range(2):
        assert run(1, save_at_once, resumed(hub, "early"), 0.5, 1) == first


def test_a_library_that_cannot_resume_is_refused(hub: Served) -> None:
    run(1, begin, hub.create("a", "old"), "adam", 2, 2)
    handle = resumed(hub, "old")
    with closing(asking(hub)) as one:
        told = said(lambda: one.ask(joining(handle, 0, 1)))
    sentence = "a/old: rank 0 has a library that cannot resume a job: give it the hub's version of hpcomm"
    assert told == ["ConfigError", sentence]


def test_a_fresh_start_replaces_what_was_saved(hub: Served) -> None:
    for save_at in (3, 4):
        has_ended(hub, "a/twice")
        run(1, begin, hub.create("a", "twice"), "adam", save_at, save_at)
        assert run(1, go_on, resumed(hub, "twice"), "adam", 5)[0][0] == save_at
    assert os.listdir(hub.folder / "saved/a/twice") == ["run-2"]


def save_twice(handle: str, token: str) -> list[int]:
    with join(handle, token) as ctx, exchange(ctx, "adam") as ex:
        found = []
        for step in range(3):
            go(ex, step, step + 1, ctx.rank)
            found.append(ex.save())
        return found


def test_two_saves_are_kept(hub: Served) -> None:
    assert run(1, save_twice, hub.create("a", "often")) == [[1, 2, 3]]
    names = sorted(os.listdir(hub.folder / "saved/a/often/run-1/exchange-0"))
    assert names == ["step-000002.rank-000.ckpt", "step-000003.rank-000.ckpt"]


# ---- hubs that end ---------------------------------------------------------------------------------------------------


def save_when_told(handle: str, token: str) -> list[Any]:
    """Trains until the hub says that it drains; then saves, and leaves."""
    with join(handle, token) as ctx, exchange(ctx, "adam") as ex:
        print("trains", flush=True)
        while not any(ctx.allgather(bytes([bool(ctx.notices)]))[rank] != b"\0" for rank in range(ctx.size)):
            go(ex, ex.clock, ex.clock + 1, ctx.rank)
        return [ex.save(), bits(ex)]


def come_back(handle: str, token: str) -> list[Any]:
    with join(handle, token) as ctx, exchange(ctx, "adam", ZEROS) as ex:
        found = [ex.clock, bits(ex)]
        go(ex, ex.clock, ex.clock + 1, ctx.rank)
        return found


def test_a_job_outlives_a_hub_that_drains_and_one_that_is_killed(tmp_path: Path) -> None:
    hub = Served(tmp_path, drain_seconds=40, checkpoints="saved")
    with Background(run, 2, save_when_told, hub.create("a", "long")) as job:
        hub.wait(lambda: any(one["exchanges"] for one in hub.ask(op="jobs")["jobs"]))
        hub.process.terminate()
        told = job.value()
    assert hub.process.wait(SECONDS) == 0
    assert told[0] == told[1]
    for workers in (1, 3):
        hub = Served(tmp_path, checkpoints="saved")
        assert run(workers, come_back, resumed(hub, "long")) == [told[0]] * workers
        hub.process.kill()
        hub.process.wait(SECONDS)


class Background:
    """A call in a thread."""

    def __init__(self, call: Callable[..., Any], *args: Any) -> None:
        self._pool = ThreadPoolExecutor(1)
        self._future = self._pool.submit(call, *args)

    def value(self) -> Any:
        return self._future.result(SECONDS)

    def __enter__(self) -> "Background":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=False)


def save_until_it_fails(handle: str, token: str, pid: int) -> list[Any]:
    """Saves after step 1, while a hub may write files of 4 KiB only; after step 2; and after step 3, while that hub is
    killed."""
    ctx = join(handle, token)
    ex = exchange(ctx, "adam")
    go(ex, 0, 1, ctx.rank)
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (4096, hard))
    ctx.barrier()
    full = said(ex.save)
    ctx.barrier()
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))
    go(ex, 1, 2, ctx.rank)
    found = [ex.save(), bits(ex)]
    go(ex, 2, 3, ctx.rank)
    told = said(ex.save)
    ctx.abort(told[1])
    return [*found, told[0], full[0]]


def test_a_save_counts_if_all_hubs_have_written_it(hub: Served, tmp_path: Path) -> None:
    die = (
        "import os, signal\nreplace, calls = os.replace, []\n"
        "def replaced(*given):\n    calls.append(given)\n"
        "    os.kill(os.getpid(), signal.SIGKILL) if len(calls) == 2 else replace(*given)\nos.replace = replaced"
    )
    other = Served(tmp_path, die, checkpoints="saved")
    handle = hpcomm.create_service([hub.where, other.where], "a", TOKENS["a"], "wide")
    told = run(2, save_until_it_fails, handle, other.process.pid)
    assert [one[2:] for one in told] == [["PeerFailed", "CheckpointError"]] * 2
    other.process.wait(SECONDS)
    hub.until("a/wide has ended")
    names = sorted(path.name for path in (hub.folder / "saved/a/wide").rglob("*.ckpt"))
    assert names == ["step-000001.rank-000.ckpt", "step-000002.rank-000.ckpt"]
    other = Served(tmp_path, checkpoints="saved")
    back = hpcomm.create_service([hub.where, other.where], "a", TOKENS["a"], "wide", resume=True)
    assert run(2, come_back, back) == [told[0][:2]] * 2
    other.process.kill()
    other.process.wait(SECONDS)
    kind, sentence = run(1, refused, resumed(hub, "wide"))[0]
    assert kind == "ConfigError"
    assert "2 hubs saved its exchange 0, and these 1 do not see the files of all" in sentence
    where = "saved/a/wide/run-1/exchange-0/step-000001.rank-001.ckpt"
    shutil.copy(tmp_path / where, hub.folder / where)  # as if the hubs shared a folder
    assert run(1, come_back, resumed(hub, "wide")) == [told[0][:2]]


def refused(handle: str, token: str, rule: Any = RULES["adam"], shapes: Any = SHAPES) -> list[str]:
    """What a job is told that makes an exchange; then it tries once more."""
    values = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    with join(handle, token) as ctx:

        def make() -> None:
            hpcomm.parameter_hub(ctx, values, servers="hub", rule=rule).close()

        told = said(make)
        assert said(make) == told
        return told


@pytest.mark.parametrize("step", ["zlib.crc32", "os.fsync", "os.replace", "files._sync"])
def test_a_hub_that_is_killed_in_a_save_keeps_the_one_before(tmp_path: Path, step: str) -> None:
    store = Store(tmp_path, lambda _: QUOTAS, lambda _: None).job("a", "x")
    shard = {"params": np.arange(9, dtype=np.float32)}
    store.write(1, 0, Label(1, 0, 1, "1", "", 0, 5), shard, 1000)
    child = os.fork()
    if child == 0:
        of, _, name = step.rpartition(".")
        setattr({"zlib": zlib, "os": os, "files": files}[of], name, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        store.write(1, 0, Label(2, 0, 1, "1", "", 1, 6), {"params": np.zeros(9, np.float32)}, 1000)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    last = 2 if step == "files._sync" else 1
    saves = store.saves(0, 0, 8)
    assert [save.number for save in saves] == list(range(last, 0, -1))
    assert store.shards(1, 0, 1)[0]["params"].tolist() == list(range(9))
    store.write(1, 0, Label(3, 0, 1, "1", "", last, 6), shard, 1000)
    assert sorted(os.listdir(tmp_path / "a/x/run-1/exchange-0")) == [f"step-{n:06d}.rank-000.ckpt" for n in (last, 3)]


# ---- refusals --------------------------------------------------------------------------------------------------------


def save_in_vain(handle: str, token: str) -> list[list[str]]:
    """What a job is told whose saves are refused; it saves at last."""
    with join(handle, token) as ctx, exchange(ctx, "adam") as ex:
        if ctx.rank == 1:
            ex.push("b", np.ones(70, np.float32))
        told = [said(ex.save), said(ex.state_dict), said(lambda: ex.load_state_dict({}))]
        if ctx.rank == 0:
            ex.push("b", np.ones(70, np.float32))
        ex.pull("b")
        with hpcomm.parameter_hub(ctx, VALUES, servers="hub", rule=hpcomm.SGD(), apply_at="receivers") as other:
            told.append(said(other.save))
        told.append([str(ex.save()), ""])
        return told


def test_saves_are_refused_on_every_rank(hub: Served) -> None:
    ours, theirs = run(2, save_in_vain, hub.create("a", "in-vain"))
    assert [kind for kind, _ in ours] == ["InvalidArgument", "NotSupported", "NotSupported", "NotSupported", "1"]
    assert [kind for kind, _ in theirs] == [kind for kind, _ in ours]
    assert ours[0] == theirs[0]
    assert ours[0][1].startswith("rank 1: save: key 'b' is under way")
    assert "call save" in ours[1][1]
    assert "resume=True" in ours[2][1]
    assert "apply_at is 'receivers'" in ours[3][1]


def test_a_job_comes_back_to_its_own_state_alone(hub: Served) -> None:
    sentence = "a/never has no saved state here to resume"
    assert said(lambda: resumed(hub, "never")) == ["ConfigError", sentence]
    run(2, begin, hub.create("a", "own"), "adam", 2, 2)
    for more, part in (
        ({"rule": hpcomm.SGD()}, "a shard is of rule 'adam' with 2 values of state an element"),
        ({"shapes": {**SHAPES, "w": (3, 70)}}, "a shard and the exchange differ in keys"),
    ):
        told = run(2, refused, resumed(hub, "own"), *({"rule": RULES["adam"], "shapes": SHAPES} | more).values())
        assert told[0] == told[1]
        assert told[0][0] == "InvalidArgument"
        assert told[0][1].startswith(f"a/own: its exchange 0 cannot come back: {part}")
    (path,) = (hub.folder / "saved/a/own").rglob("*.ckpt")
    whole = path.read_bytes()
    for spoilt, part in ((whole[:-100], "is torn"), (whole[:-100] + b"x" + whole[-99:], "is damaged")):
        path.write_bytes(spoilt)
        told = run(2, refused, resumed(hub, "own"))
        assert told[0] == told[1]
        assert told[0][0] == "CheckpointError"
        assert part in told[0][1]
    path.write_bytes(whole)
    assert run(2, come_back, resumed(hub, "own"))[0][0] == 2


def make_another(handle: str, token: str) -> list[Any]:
    """Makes an exchange that was saved, and one that was not."""
    with join(handle, token) as ctx, exchange(ctx, "adam") as ex:
        return [ex.clock, *said(lambda: exchange(ctx, "adam"))]


def train_two(handle: str, token: str, last: int) -> list[Any]:
    """Trains two exchanges side by side from where they are to step last, and one to a step more; then saves both."""
    found: list[Any] = []
    with join(handle, token) as ctx, exchange(ctx, "adam") as first, exchange(ctx, "rules") as second:
        for ex, end in ((second, last + 1), (first, last)):
            found += [ex.clock, bits(ex)]
            go(ex, ex.clock, end, ctx.rank)
            ex.save()
            found.append(bits(ex))
    return found


def test_each_exchange_of_a_job_comes_back(hub: Served) -> None:
    before = run(2, train_two, hub.create("a", "both"), 2)[0]
    after = run(2, train_two, resumed(hub, "both"), 2)[0]
    assert before[0::3] == [0, 0]
    assert after[0::3] == [3, 2]
    assert after[1::3] == after[2::3] == before[2::3]


def test_an_exchange_that_was_not_saved_does_not_come_back(hub: Served) -> None:
    run(1, begin, hub.create("a", "one"), "adam", 2, 2)
    clock, kind, sentence = run(1, make_another, resumed(hub, "one"))[0]
    assert (clock, kind) == (2, "ConfigError")
    assert sentence.startswith("a/one has no saved state of its exchange 1: save every exchange")


def save_some(handle: str, token: str, elements: int) -> list[str]:
    """What a job is told that saves so many elements."""
    with join(handle, token, transport="tcp") as ctx:
        values = {"x": np.zeros(elements, np.float32)}
        with hpcomm.parameter_hub(ctx, values, servers="hub", rule=hpcomm.SGD()) as ex:
            return said(ex.save)


def test_quotas_of_saved_state(hub: Served) -> None:
    def saved(job: str, elements: int) -> list[Any]:
        has_ended(hub, "small/first", "small/second")
        return list(run(1, save_some, hub.create("small", job), elements, token=TOKENS["small"])[0])

    assert saved("first", 9) == ["", ""]
    for job, elements, sentence in (
        ("first", 120_000, r"first: the save needs \d+ bytes, and namespace 'small' has \d+ of 524288 on disk left: "),
        ("second", 9, r"second: 1 other jobs of namespace 'small' have saved state, and 1 may: remove one by"),
        ("second", 200_000, r"the save needs \d+ bytes, and namespace 'small' has \d+ of 6291456 left"),
    ):
        kind, text = saved(job, elements)
        assert kind == "ConfigError"
        assert re.search(sentence, text)
    counts = ("disk quota", "checkpoint quota", "memory quota")
    assert [hub.counts(f"refused: {what}") for what in counts] == [1, 1, 1]
    found = json.loads(command(hub, "jobs", hub.where, "--json"))
    (one,) = (one for one in found if one["job"] == "small/first")
    assert (one["state"], one["saved"]["step"]) == ("saved", 0)
    assert re.search(r"small/first +saved +0 +0 +0 +0 +0 +\d+ +\d+ *$", command(hub, "jobs", hub.where), re.MULTILINE)
    assert one["saved"]["bytes"] == sum(path.stat().st_size for path in (hub.folder / "saved/small").rglob("*.ckpt"))
    has_ended(hub, "small/second")
    assert command(hub, "forget", hub.where, "small/first", token="small").endswith("its saved state is removed\n")
    assert not (hub.folder / "saved/small/first").exists()
    assert saved("second", 9) == ["", ""]
    has_ended(hub, "small/second")
    command(hub, "forget", hub.where, "small/second", token="small")


def test_only_its_namespace_and_the_administrator_remove_saved_state(hub: Served) -> None:
    run(1, begin, hub.create("a", "gone"), "adam", 2, 2)
    has_ended(hub, "a/gone")
    for job, sentence in (
        ("a/..", "job is '..'"),
        ("../a", "namespace is '..'"),
        ("a/never", "a/never has no saved state here"),
        ("b/gone", "b/gone has no saved state here"),
    ):
        assert sentence in command(hub, "forget", hub.where, job, code=1)
    with closing(asking(hub, "b")) as one:
        told = said(lambda: one.ask({"op": "forget", "job": "a/gone"}))
    assert told == ["ConfigError", "namespace 'b' has no job a/gone"]
    hub.create("a", "gone")
    assert "a/gone runs" in command(hub, "forget", hub.where, "a/gone", code=1)
    hub.ask(op="evict", job="a/gone")
    has_ended(hub, "a/gone")
    command(hub, "forget", hub.where, "a/gone")
    assert said(lambda: resumed(hub, "gone"))[0] == "ConfigError"


def save_on_a_full_disk(handle: str, token: str, pid: int) -> list[Any]:
    """Saves three times; the hub may write files of 4 KiB only at the second."""
    with join(handle, token) as ctx, exchange(ctx, "adam") as ex:
        found: list[Any] = [ex.save()]
        _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        for most in (4096, hard):
            go(ex, ex.clock, ex.clock + 1, ctx.rank)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, hard))
            ctx.barrier()
            found.append(said(ex.save))
            ctx.barrier()
        return found


def test_a_full_disk_is_told_on_every_rank_and_the_job_goes_on(hub: Served) -> None:
    told = run(2, save_on_a_full_disk, hub.create("a", "full"), hub.process.pid)
    sentence = "a/full: the hub cannot write its file: File too large: this save is lost, those before it are kept"
    assert told == [[0, ["CheckpointError", sentence], ["", ""]]] * 2
    assert run(2, come_back, resumed(hub, "full"))[0][0] == 2


# ---- tenants beside each other, and the file -------------------------------------------------------------------------


def test_a_save_holds_up_no_other_tenant(tmp_path: Path) -> None:
    wait = (
        "import os\nfsync = os.fsync\n"
        f"def synced(fd):\n    open({str(tmp_path / 'came')!r}, 'w').close()\n"
        f"    while not os.path.exists({str(tmp_path / 'go')!r}): os.sched_yield()\n    fsync(fd)\nos.fsync = synced"
    )
    hub = Served(tmp_path, wait, drain_seconds=0, checkpoints="saved")
    with Background(run, 1, begin, hub.create("a", "slow"), "adam", 2, 2) as job:
        hub.wait((tmp_path / "came").exists)
        assert len(run(1, train, hub.create("b"), 1, token=TOKENS["b"])) == 1
        assert hub.jobs()["a/slow"] == "runs"
        (tmp_path / "go").touch()
        assert job.value()[0][0] == 2
    assert hub.end() == 0


def test_a_wrong_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "t").touch(0o600)
    (tmp_path / "t").write_text("sixteen bytes and more", encoding="utf-8")
    for value, sentence in (
        ("7", "checkpoints is 7: must be the path of a folder"),
        ('"t"', "cannot be made: File exists"),
    ):
        (tmp_path / "hub.toml").write_text(f'checkpoints = {value}\n[namespaces.a]\ntoken_file = "t"', encoding="utf-8")
        with pytest.raises(hpcomm.ConfigError, match=sentence):
            read_config(tmp_path / "hub.toml")
    (tmp_path / "hub.toml").write_text('checkpoints = "x/y"\nmemory = 100\n[namespaces.a]\ntoken_file = "t"')
    found = read_config(tmp_path / "hub.toml")
    assert (found.checkpoints, found.namespaces["a"].disk) == (tmp_path / "x/y", 1600)
    assert (tmp_path / "x/y").is_dir()
