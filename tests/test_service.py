"""The hub as a service: a hub process, and jobs of worker processes that come and go."""

import gc
import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import mpi
import numpy as np
import pytest
from click.testing import CliRunner
from conftest import on_both
from served import SECONDS, SHAPES, TOKENS, VALUES, Served, join, joining, numbered, numbers, run, said, train, trained

import hpcomm
from hpcomm import launch
from hpcomm.cli import main
from hpcomm.service import HubConnection, address
from hpcomm.service import handle as handles
from hpcomm.service.config import read_config
from hpcomm.service.described import described, parsed
from hpcomm.service.tenant import Tenant


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    served = Served(tmp_path_factory.mktemp("hub"), drain_seconds=0)
    yield served
    assert served.end() == 0


@pytest.fixture
def own_hub(tmp_path: Path) -> Iterator[Served]:
    served = Served(tmp_path, drain_seconds=0)
    yield served
    served.end()


# ---- exchanges -----------------------------------------------------------------------------------------------------

CASES: list[dict[str, Any]] = [
    {},
    {"rule": hpcomm.Adam(lr=0.125), "plan": hpcomm.PlanOptions(chunk_bytes=4096)},
    {"rule": {"w": hpcomm.SGD(lr=0.5), "b": hpcomm.Momentum(lr=0.25), "big": hpcomm.AdamW()}, "reduce": "sum"},
    {"codec": "float16", "plan": hpcomm.PlanOptions(codec_out="bfloat16")},
    {"codec": {"w": hpcomm.codec.TopK(0.1), "big": hpcomm.codec.OneBit()}, "apply_at": "receivers"},
    {"codec": hpcomm.codec.ErrorFeedback(hpcomm.codec.Float4())},
    {"consistency": {"w": hpcomm.SSP(0)}, "engine": hpcomm.EngineOptions(groups=[["w", "b"], ["big"]])},
]


def make_all(handle: str, token: str) -> int:
    """Makes exchanges at the hub one after the other, and compares each with one whose owner is worker 0."""
    with join(handle, token) as ctx:
        for more in CASES:
            case: dict[str, Any] = {"rule": hpcomm.Nesterov(lr=0.5), **more}
            place: dict[str, Any] = {"placement": "CC"}
            with hpcomm.parameter_hub(ctx, VALUES, servers="hub", **case) as ex:
                found = trained(ex, ctx.rank)
                assert ex.plan.workers == (0, 1)
                assert set(ex.plan.rows.column("owner")) >= {2}
            with hpcomm.parameter_hub(ctx, VALUES, **place, **case) as reference:
                expected = trained(reference, ctx.rank)
            for name in SHAPES:
                assert found[name].tobytes() == expected[name].tobytes(), (case, name)
            for op in (ex.state_dict, lambda: ex.load_state_dict({}), ex.context.barrier, lambda: hpcomm.recover(ex)):
                assert said(op)[0] == "NotSupported"
        assert ctx.size == 2
        assert [int(one[0]) for one in ctx.allgather(bytes([ctx.rank]))] == [0, 1]
    return len(CASES)


@on_both
def test_a_hub_gives_the_bits_of_a_server_in_the_job(hub: Served, ranks_by: str) -> None:
    handle = hub.create()
    assert run(2, make_all, handle) == [len(CASES)] * 2
    hub.until("has ended")
    assert hub.ask(op="jobs") == {"jobs": []}
    maps = Path(f"/proc/{hub.process.pid}/maps").read_text(encoding="utf-8")
    assert "numba" not in maps, "a tenant made the hub load a compiler"


def go_apart(handle: str, token: str) -> list[float]:
    """SSP, ASYNC and a quorum: sums of gradients of ones are exact, whatever the order."""
    sums = []
    with join(handle, token) as ctx:
        for consistency in (hpcomm.SSP(2), hpcomm.ASYNC, hpcomm.Consistency(quorum=1, grace=30.0)):
            values = {"w": np.zeros(5000, np.float32)}
            with hpcomm.parameter_hub(
                ctx, values, servers="hub", consistency=consistency, rule=hpcomm.SGD(lr=1.0), reduce="sum"
            ) as ex:
                for _ in range(5):
                    ex.push_pull("w", np.ones(5000, np.float32))
                ex.pull("w")
                ctx.barrier()
                w = ex.pull("w")
                assert (w == w[0]).all()
                sums.append(float(w[0]))
    return sums


@on_both
def test_workers_may_go_apart(hub: Served, ranks_by: str) -> None:
    assert run(2, go_apart, hub.create()) == [[-10.0] * 3] * 2


def test_two_hubs_share_a_job(hub: Served, own_hub: Served) -> None:
    handle = hpcomm.create_service([hub.where, own_hub.where], "a", TOKENS["a"])
    alone = run(2, train, hub.create())
    assert run(2, train, handle) == alone
    assert run(2, both_own, hpcomm.create_service([hub.where, own_hub.where], "a", TOKENS["a"])) == [[2, 3]] * 2
    own_hub.until("has ended")
    own_hub.until("has ended")


def both_own(handle: str, token: str) -> list[int]:
    with join(handle, token) as ctx, hpcomm.parameter_hub(ctx, VALUES, servers="hub", rule=hpcomm.SGD()) as ex:
        return sorted({int(owner) for owner in ex.plan.rows.column("owner")})


# ---- tenants beside each other -------------------------------------------------------------------------------------


def train_until_killed(handle: str, token: str, folder: str) -> None:
    """Trains; worker 1 kills itself with a push under way, at a step that the process number chooses."""
    with join(handle, token) as ctx:
        ex = hpcomm.parameter_hub(ctx, VALUES, servers="hub", rule=hpcomm.SGD())
        Path(folder, str(ctx.rank)).touch()
        for step in range(10_000):
            ex.push("big", numbers(SHAPES["big"], step))
            if ctx.rank == 1 and step == os.getpid() % 7:
                os.kill(os.getpid(), signal.SIGKILL)
            ex.pull("big")


def survive(handle: str, token: str, folder: str) -> list[str]:
    return said(lambda: train_until_killed(handle, token, folder))


def test_a_killed_job_leaves_nothing_and_disturbs_no_other(hub: Served, tmp_path: Path) -> None:
    bits = run(2, train, hub.create("b", "before"), 40, token=TOKENS["b"])
    hub.until("b/before has ended")
    before = hub.ask(op="status")
    found: list[Any] = []
    beside = threading.Thread(
        target=lambda: found.extend(run(2, train, hub.create("b", "beside"), 40, token=TOKENS["b"]))
    )
    beside.start()
    ended = mpi.start(numbered(2), survive, hub.create("a", "dies"), TOKENS["a"], str(tmp_path), check=False)
    beside.join(SECONDS)
    assert found == bits
    assert ended.codes[1] == -signal.SIGKILL
    kind, sentence = ended.values[0]
    assert kind == "PeerFailed"
    assert "rank 1" in sentence
    hub.has_only(before)
    assert run(2, train, hub.create("a", "dies"), 1)[0] == run(2, train, hub.create("a"), 1)[1]


def cut(handle: str, token: str) -> list[str]:
    """Trains on after it has lost its connection to the hub alone."""
    ctx = join(handle, token)
    ex = hpcomm.parameter_hub(ctx, VALUES, servers="hub", rule=hpcomm.SGD())
    for one in gc.get_objects():
        if isinstance(one, HubConnection):
            one.close()
    told = said(lambda: [ex.push_pull("b", np.ones(70, np.float32)) for _ in range(1_000_000)])
    ctx.abort(told[1])
    return told


def test_a_job_ends_with_a_connection_to_the_hub(hub: Served) -> None:
    assert run(1, cut, hub.create("a", "cut"))[0][0] == "PeerFailed"
    hub.until("a/cut has ended: a/cut: rank 0 is gone")


def drop(handle: str, token: str) -> str:
    """A forked child drops what its parent needs. Then worker 0 drops its context, and worker 1 trains for longer than
    the timeout of calls."""
    ctx = join(handle, token, timeout=1.0, init_timeout=15.0)
    if (child := os.fork()) == 0:
        del ctx
        gc.collect()
        os._exit(0)
    os.waitpid(child, 0)
    ex = hpcomm.parameter_hub(ctx, VALUES, servers="hub", rule=hpcomm.SGD(), consistency=hpcomm.ASYNC)
    rank = ctx.rank
    ctx.barrier()
    if rank == 0:
        ex.close()
        del ctx, ex
        gc.collect()
        return ""
    until = time.monotonic() + 1.5  # the hub gives up a job whose worker is gone after a second
    while time.monotonic() < until:
        ex.push_pull("b", np.ones(70, np.float32))
    ctx.close()
    return ""


def test_a_context_may_be_dropped(hub: Served) -> None:
    assert run(2, drop, hub.create("a", "dropped")) == ["", ""]
    assert hub.until("a/dropped has ended").endswith("has ended")


def push_nan(handle: str, token: str) -> bool:
    with join(handle, token) as ctx, hpcomm.parameter_hub(ctx, VALUES, servers="hub", rule=hpcomm.SGD()) as ex:
        return bool(np.isnan(ex.push_pull("b", np.full(70, np.nan, np.float32))).all())


def test_a_tenant_that_pushes_nan_harms_itself(hub: Served) -> None:
    assert run(1, push_nan, hub.create()) == [True]
    assert run(2, train, hub.create(), 1)[0] == run(2, train, hub.create("b"), 1, token=TOKENS["b"])[0]


def test_a_namespace_has_its_weight(hub: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    assert hub.ask(op="status")["namespaces"]["b"]["weight"] == 3.0
    made: list[dict[str, Any]] = []
    monkeypatch.setattr("hpcomm.service.tenant.Exchange", lambda *args, **options: made.append(options))
    tenant = Tenant.__new__(Tenant)
    tenant.terms = type("Terms", (), {"workers": 2, "hubs": 1, "weight": 3.0})()
    tenant._made(None, a_description())  # type: ignore[arg-type]
    assert (made[0]["engine"].weight, made[0]["engine"].progress) == (3.0, "thread")


# ---- refusals ------------------------------------------------------------------------------------------------------


def refused_at_start(handle: str, token: str, sizes: list[int], ranks: list[int], tokens: list[str]) -> list[str]:
    """What worker i is told, if it says ranks[i] of sizes[i] and has tokens[i]."""
    i = launch.numbered()[0]
    with suppress(TypeError):
        return said(lambda: join(handle, tokens[i], rank=ranks[i], size=sizes[i]))
    return []


def start(hub: Served, handle: str, sizes: list[int], ranks: list[int], tokens: list[str] | None = None) -> list[Any]:
    tokens = [TOKENS["a"]] * len(sizes) if tokens is None else tokens
    return run(len(sizes), refused_at_start, handle, sizes, ranks, tokens)


def test_workers_that_do_not_agree_are_refused_on_every_rank(hub: Served) -> None:
    ends = "give all the same size"
    for sizes, ranks, sentence in (([2, 3], [0, 1], ends), ([2, 2], [0, 0], "two workers say that they are rank 0")):
        before = hub.counts("refused: workers that do not agree")
        told = start(hub, hub.create("a", "apart"), sizes, ranks)
        assert [kind for kind, _ in told] == ["ConfigError"] * 2
        assert told[0] == told[1]
        assert sentence in told[0][1]
        assert hub.counts("refused: workers that do not agree") == before + 1


def test_a_wrong_token_and_an_unknown_namespace_are_refused(hub: Served) -> None:
    names = ("refused: wrong token", "refused: unknown namespace")
    before = [hub.counts(name) for name in names]
    told = start(hub, hub.create(), [2, 2], [0, 1], ["a token that is wrong"] * 2)
    sentence = f"the hub at {hub.where} has no namespace 'a' with this token"
    assert told == [["AuthError", sentence]] * 2
    kind, text = said(lambda: hpcomm.create_service(hub.where, "nobody", TOKENS["a"]))
    assert (kind, text) == ("AuthError", sentence.replace("'a'", "'nobody'"))
    assert [hub.counts(name) for name in names] == [before[0] + 2, before[1] + 1]


def test_a_handle_is_good_for_one_job(hub: Served) -> None:
    handle = hub.create("a", "once")
    kind, text = said(lambda: hub.create("a", "once"))
    assert (kind, text) == ("ConfigError", "namespace 'a' already has a job 'once'")
    run(1, train, handle, 1)
    hub.until("a/once has ended")
    again = hub.create("a", "once")
    told = start(hub, handle, [2, 2], [0, 1])
    assert told == [["ConfigError", "a/once has ended: a handle is good for one job"]] * 2
    assert run(1, train, again, 1) == run(1, train, hub.create(), 1)
    assert hub.counts("refused: two jobs of one name") == 1
    assert hub.counts("refused: old handles") == 2


def another_version(handle: str, token: str) -> list[str]:
    hpcomm._core.version = lambda: "9.9"
    return said(lambda: join(handle, token))


def test_another_version_is_refused_on_every_rank(hub: Served) -> None:
    told = run(2, another_version, hub.create("a", "old"))
    assert [kind for kind, _ in told] == ["ConfigError"] * 2
    assert told[0] == told[1]
    assert told[0][1].endswith(f"the hub runs hpcomm {hpcomm.__version__}, and this process 9.9")
    assert hub.counts("refused: another version")


def test_quotas_of_jobs_and_ranks(hub: Served) -> None:
    handle = hub.create("small", "first")
    kind, text = said(lambda: hub.create("small", "second"))
    assert (kind, text) == ("ConfigError", "namespace 'small' has 1 jobs, and may have no more")
    told = run(3, refused_at_start, handle, [3] * 3, [0, 1, 2], [TOKENS["small"]] * 3, token=TOKENS["small"])
    assert told == [["ConfigError", "small/first: it has 3 workers, and the namespace allows 2 for a job"]] * 3
    assert hub.counts("refused: job quota") == 1
    handle = hub.create("tiny")
    told = run(2, refused_at_start, handle, [2] * 2, [0, 1], [TOKENS["tiny"]] * 2, token=TOKENS["tiny"])
    assert told[0] == told[1]
    assert told[0][1].endswith("2 workers need 44 descriptors, and namespace 'tiny' may use 40 descriptors and no more")
    assert hub.counts("refused: descriptor quota") == 1
    hub.create("small", "second")
    hub.ask(op="evict", job="small/second")


def refused_exchanges(handle: str, token: str) -> list[list[str]]:
    """What a job is told about exchanges that the hub or another rank refuses; then it makes a good one."""
    with join(handle, token) as ctx:
        more = {"x": np.zeros(9 + ctx.rank, np.float32)}
        own = hpcomm.optim.Rule(apply=1 << 40)
        told = [
            said(lambda: hpcomm.parameter_hub(ctx, {"x": np.zeros(1 << 20, np.float32)}, servers="hub", rule=RULE)),
            said(lambda: hpcomm.parameter_hub(ctx, more, servers="hub", rule=RULE)),
            said(lambda: hpcomm.parameter_hub(ctx, VALUES, servers="hub", rule=own)),
            said(lambda: hpcomm.parameter_hub(ctx, VALUES, servers="hub", rule=RULE, codec="auto")),
            said(lambda: hpcomm.parameter_hub(ctx, VALUES, servers="hub", rule=RULE, placement="CS")),
            said(lambda: hpcomm.parameter_hub(ctx, VALUES, servers="hub", rule=RULE, topology=hpcomm.Tree())),
        ]
        with hpcomm.parameter_hub(ctx, {"x": np.zeros(9, np.float32)}, servers="hub", rule=RULE) as ex:
            told.append([str(float(ex.push_pull("x", np.ones(9, np.float32))[8])), ""])
    return told


RULE = hpcomm.SGD(lr=1.0)


def test_exchanges_that_a_hub_does_not_take_are_refused_on_every_rank(hub: Served) -> None:
    told = run(2, refused_exchanges, hub.create("small"), token=TOKENS["small"])
    for ours, theirs in zip(*told, strict=True):
        assert ours[0] == theirs[0] != ""
    quota, shapes, own, auto, placement, tree, good = told[0]
    assert "namespace 'small' has 6291456 of 6291456 left" in quota[1]
    assert told[1][0][1] == quota[1]
    assert "key 0 is x of 10 elements on rank 1 and x of 9 on rank 0" in shapes[1]
    assert told[1][1][1] == shapes[1]
    assert "a hub runs none of its tenants' code" in own[1]
    assert "a hub measures no codecs" in auto[1]
    assert "leave placement out" in placement[1]
    assert "the hubs alone serve" in tree[1]
    assert good[0] == "-1.0"
    assert hub.counts("refused: memory quota") == 1


def test_no_hub_there() -> None:
    where = f"127.0.0.1:{mpi.free_port()}"
    kind, text = said(lambda: hpcomm.create_service(where, "a", TOKENS["a"]))
    assert (kind, text) == ("TransportError", f"there is no hub at {where}: Connection refused")
    gone = str(handles.ServiceHandle((where,), "a", "x", "0" * 32))
    assert said(lambda: join(gone, TOKENS["a"], rank=0, size=1)) == [kind, text]


def test_a_worker_that_does_not_come_is_named(hub: Served) -> None:
    told = said(lambda: join(hub.create("a", "half"), TOKENS["a"], rank=0, size=3, init_timeout=0.3))
    assert told == ["Timeout", "a/half: rank 1, 2 did not come in 0.3 s"]


def leave_at_the_start(handle: str, token: str) -> list[str]:
    if launch.numbered()[0] == 0:
        return said(lambda: join(handle, token))
    where, secret = handles.parsed(handle), token.encode()
    hub = HubConnection(address(where.hubs[0]), where.namespace, secret, 5)
    hub.ask(joining(handle, 1, 3))
    hub.close()
    return ["ConfigError", ""]


def test_a_worker_that_dies_at_the_start_is_named(hub: Served) -> None:
    handle = hub.create("a", "dies-early")
    told = mpi.start(
        [{"RANK": str(rank), "WORLD_SIZE": "3"} for rank in (0, 1)], leave_at_the_start, handle, TOKENS["a"]
    )
    kind, text = told.values[0]
    assert kind == "ConfigError"
    assert text.startswith("a/dies-early: rank 1 is gone")


def hang_up_while_connecting(handle: str, token: str, context: int, folder: str) -> list[str]:
    """Worker 1 loses its connection to the hub while the ranks of its first or second context connect to each other;
    its process lives on until worker 0 knows."""
    if launch.numbered()[0] == 0:
        told = said(lambda: join(handle, token, init_timeout=60.0))
        Path(folder, f"{context}").touch()
        return told
    left, connect = [context], hpcomm._core.context_connect

    def hang_up(*given: Any) -> None:
        left[0] -= 1
        if left[0] >= 0:
            return connect(*given)
        for one in gc.get_objects():
            if isinstance(one, HubConnection):
                one.close()
        until = time.monotonic() + SECONDS
        while not Path(folder, f"{context}").exists() and time.monotonic() < until:
            os.sched_yield()
        raise hpcomm.NotSupported("hangs up")

    setattr(hpcomm._core, "context_connect", hang_up)  # noqa: B010
    return said(lambda: join(handle, token, init_timeout=60.0))


@pytest.mark.parametrize("context", [0, 1])
def test_the_hub_tells_ranks_that_wait_for_each_other(hub: Served, tmp_path: Path, context: int) -> None:
    told = run(2, hang_up_while_connecting, hub.create("a", f"hangs-up{context}"), context, str(tmp_path))
    sentence = f"a/hangs-up{context}: rank 1 is gone: it died, gave up, or its connection broke"
    assert told == [["ConfigError", sentence], ["NotSupported", "hangs up"]]
    hub.until(f"a/hangs-up{context} has ended")


# ---- the administrator ---------------------------------------------------------------------------------------------


def train_until_ended(handle: str, token: str) -> list[Any]:
    with join(handle, token) as ctx:
        ex = hpcomm.parameter_hub(ctx, VALUES, servers="hub", rule=hpcomm.SGD())
        print("trains", flush=True)
        told = said(lambda: [ex.push_pull("b", np.ones(70, np.float32)) for _ in range(1_000_000)])
        notices = ctx.notices
        with suppress(hpcomm.HpcommError):
            ctx.close()
        return [*told, " ".join(notices)]


class Running:
    """A job that trains until the hub ends it."""

    def __init__(self, handle: str, token: str) -> None:
        self.values: list[Any] = []
        self._thread = threading.Thread(
            target=lambda: self.values.extend(run(2, train_until_ended, handle, token=token)), daemon=True
        )
        self._thread.start()

    def ended(self) -> list[Any]:
        self._thread.join(SECONDS)
        assert len(self.values) == 2
        return self.values


def has_exchange(hub: Served, job: str) -> None:
    hub.wait(lambda: any(one["job"] == job and one["exchanges"] for one in hub.ask(op="jobs")["jobs"]))


def test_evict_ends_one_job_and_tells_its_workers(hub: Served) -> None:
    job = Running(hub.create("a", "evicted"), TOKENS["a"])
    has_exchange(hub, "a/evicted")
    command(hub, "evict", hub.where, "a/evicted")
    for kind, text, notice in job.ended():
        assert kind == "PeerFailed"
        assert "the administrator of the hub has ended it" in text
        assert "the administrator of the hub has ended it" in notice
    hub.until("a/evicted has ended")


def test_a_revoked_token_ends_its_jobs_and_no_others(own_hub: Served) -> None:
    theirs, ours = (Running(own_hub.create(name, "one"), TOKENS[name]) for name in ("a", "b"))
    for name in ("a/one", "b/one"):
        has_exchange(own_hub, name)
    own_hub.file.write_text("no toml", encoding="utf-8")
    own_hub.process.send_signal(signal.SIGHUP)
    own_hub.until("the old configuration stays")
    own_hub.token("a", "a token that is fresh")
    own_hub.configure()
    own_hub.process.send_signal(signal.SIGHUP)
    assert all("token of its namespace was revoked" in text for _, text, _ in theirs.ended())
    own_hub.until("a/one has ended")
    assert [one["job"] for one in own_hub.ask(op="jobs")["jobs"]] == ["b/one"]
    assert said(lambda: own_hub.create("a"))[0] == "AuthError"
    own_hub.ask(op="evict", job="b/one")
    ours.ended()


def test_a_hub_drains(tmp_path: Path) -> None:
    hub = Served(tmp_path, drain_seconds=60)
    job = Running(hub.create("a", "last"), TOKENS["a"])
    has_exchange(hub, "a/last")
    hub.process.terminate()
    hub.until("drains: 1 jobs have 60 s")
    sentence = "b/new: the hub drains, and takes no new jobs"
    assert said(lambda: hub.create("b", "new")) == ["ConfigError", sentence]
    assert hub.ask(op="status")["drains_in"] > 30
    hub.process.terminate()  # now
    for kind, text, notices in job.ended():
        assert kind == "PeerFailed"
        assert "the hub ends" in text
        assert "the hub drains: it ends this job in 60 s" in notices
    assert hub.process.wait(SECONDS) == 0


def test_a_drained_hub_ends_with_its_last_job(tmp_path: Path) -> None:
    hub = Served(tmp_path, drain_seconds=60)
    job = Running(hub.create("a", "last"), TOKENS["a"])
    has_exchange(hub, "a/last")
    hub.ask(op="drain")
    hub.ask(op="evict", job="a/last")
    job.ended()
    assert hub.process.wait(SECONDS) == 0


def command(hub: Served, *line: str, token: str = "admin", code: int = 0) -> str:
    """What `hpcomm hub LINE` prints."""
    ended = CliRunner().invoke(main, ["hub", *line, "--token-file", str(hub.folder / f"{token}.token")])
    assert ended.exit_code == code, ended.output
    return str(ended.output)


def test_the_command_shows_a_hub(hub: Served) -> None:
    handle = command(hub, "create", hub.where, "--namespace", "a", "--job", "shown", token="a").strip()
    assert handles.parsed(handle).job == "shown"
    (job,) = (one for one in json.loads(command(hub, "jobs", hub.where, "--json")) if one["job"] == "a/shown")
    assert (job["state"], job["exchanges"]) == ("waits", 0)
    assert re.search(r"a/shown +waits +0 ", command(hub, "jobs", hub.where))
    assert json.loads(command(hub, "status", hub.where, "--json"))["namespaces"]["small"]["memory_quota"] == 6 << 20
    assert re.search(r"small +\d of 1 +\d+ of 6291456 ", command(hub, "status", hub.where))
    assert json.loads(command(hub, "evict", hub.where, "a/shown", "--json"))["state"] == "ends"
    assert "the hub has no job 'a/shown'" in command(hub, "evict", hub.where, "a/shown", code=1)
    sentence = f"hpcomm hub: the hub at {hub.where} has no administrator with this token\n"
    assert command(hub, "status", hub.where, token="a", code=1) == sentence


# ---- values --------------------------------------------------------------------------------------------------------


def a_description(**more: Any) -> Any:
    given = {"rule": hpcomm.SGD(lr=0.5), "consistency": hpcomm.BSP, "plan": hpcomm.PlanOptions(cores=1), **more}
    shapes = {"w": (3, 4), **dict.fromkeys(given["rule"] if isinstance(given["rule"], dict) else (), (3, 4))}
    return described(shapes, {}, engine=hpcomm.EngineOptions(), **given)


def test_a_description_comes_back_as_it_was() -> None:
    for case in CASES:
        one = a_description(**{name: value for name, value in case.items() if name in ("rule", "consistency")})
        assert parsed(one.text()) == one
    codecs = {"w": hpcomm.codec.Threshold(0.5, up=1.0, at_least=9e9), "b": hpcomm.codec.Factors(3, blocks=2)}
    one = a_description(
        plan=hpcomm.PlanOptions(codec=codecs, cores=2, depth=3),
        rule=hpcomm.ProxSGD(prox=hpcomm.prox.ElasticNet(0.5, 0.25)),
        consistency=hpcomm.Consistency(quorum=1, grace=float("inf")),
    )
    assert parsed(one.text()) == one


def spoiled(change: Callable[[dict[str, Any]], object]) -> str:
    message = json.loads(a_description(plan=hpcomm.PlanOptions(codec=hpcomm.codec.TopK(0.5))).text())
    change(message)
    return json.dumps(message)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "[" * 100_000,
        spoiled(lambda m: m["plan"]["codec"]["fields"].update(kernel=4096)),
        spoiled(lambda m: m["rule"].update({"is": "Rule"})),
        spoiled(lambda m: m["rule"].update({"is": "Consistency", "fields": {}})),
        spoiled(lambda m: m["rule"]["fields"].update(lr="0.5")),
        spoiled(lambda m: m["rule"]["fields"].update(_state=1)),
        spoiled(lambda m: m.update(keys=[["w", [3, -4]]])),
        spoiled(lambda m: m.update(keys=[["w", [1 << 47, 1 << 47]]])),
        spoiled(lambda m: m.update(keys=[["w", [3]], ["w", [3]]])),
        spoiled(lambda m: m.update(keys=[["w", [1 << 40]]])),
        spoiled(lambda m: m.update(consistency=3)),
        spoiled(lambda m: m["plan"].update(depth={"list": [1]})),
        spoiled(lambda m: m["plan"].update(codec=7)),
        spoiled(lambda m: m.pop("engine")),
    ],
)
def test_a_hub_takes_no_other_description(text: str) -> None:
    with pytest.raises(hpcomm.InvalidArgument, match="description of an exchange"):
        parsed(text)


def test_a_bound_on_memory_grows_with_what_takes_memory() -> None:
    plain = a_description().memory(2, 0)
    assert a_description(rule=hpcomm.Adam()).memory(2, 0) == plain + 2 * 4 * 12
    assert a_description().memory(2, 2) >= plain + 2 * 4 * 12
    assert a_description(consistency=hpcomm.ASYNC).memory(2, 2) > a_description().memory(2, 2)


def test_ranks_are_found_as_the_launcher_numbers_them() -> None:
    for env, found in (
        ({}, (0, 1)),
        ({"RANK": "1", "WORLD_SIZE": "4"}, (1, 4)),
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "3", "RANK": "0", "WORLD_SIZE": "9"}, (2, 3)),
        ({"PMI_RANK": "2", "PMI_SIZE": "3"}, (2, 3)),
        ({"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_STEP_ID": "0"}, (5, 8)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, (0, 1)),  # a batch script
        (
            {
                "TORCHELASTIC_RUN_ID": "x",
                "RANK": "1",
                "WORLD_SIZE": "2",
                "SLURM_PROCID": "0",
                "SLURM_NTASKS": "1",
                "SLURM_STEP_ID": "0",
            },
            (1, 2),
        ),
        ({"JOB_COMPLETION_INDEX": "1", "WORLD_SIZE": "2"}, (1, 2)),
    ):
        assert launch.numbered(env) == found
    with pytest.raises(hpcomm.ConfigError, match="RANK=2, but WORLD_SIZE=2"):
        launch.numbered({"RANK": "2", "WORLD_SIZE": "2"})


def by_variables() -> int:
    with hpcomm.connect_service(timeout=15) as ctx:
        return ctx.size


def test_the_environment_has_the_handle_and_the_token(hub: Served) -> None:
    own = {"HPCOMM_SERVICE": hub.create(), "HPCOMM_SECRET_FILE": str(hub.folder / "a.token")}
    assert mpi.start(numbered(2, **own), by_variables).values == [2, 2]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "there are no namespaces"),
        ("[namespaces.a]", "namespaces.a has no token_file"),
        ('[namespaces.a]\ntoken_file = "none"', "cannot be read"),
        ('[namespaces.a]\ntoken_file = "t"\nquota = 3', "namespaces.a.quota is not a setting of a hub"),
        ('cors = 3\n[namespaces.a]\ntoken_file = "t"', "cors is not a setting of a hub"),
        ('cores = 0\n[namespaces.a]\ntoken_file = "t"', "cores is 0: must be a whole number from 1 to 64"),
        ('[namespaces.a]\ntoken_file = "t"\nmemory = "8 GB"', "namespaces.a.memory is '8 GB': must be bytes"),
        ('[namespaces."@admin"]\ntoken_file = "t"', "the name of a namespace is '@admin'"),
        ('[namespaces.a]\ntoken_file = "t"\n[namespaces.b]\ntoken_file = "t"', "two token files hold the same token"),
        ("no toml", "is no TOML"),
    ],
)
def test_a_wrong_configuration_is_told(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "t").touch(0o600)
    (tmp_path / "t").write_text("sixteen bytes and more", encoding="utf-8")
    (tmp_path / "hub.toml").write_text(text, encoding="utf-8")
    with pytest.raises(hpcomm.ConfigError) as told:
        read_config(tmp_path / "hub.toml")
    assert sentence in str(told.value)


def test_wrong_arguments_are_told(alone: hpcomm.Context) -> None:
    with pytest.raises(hpcomm.ConfigError, match="handle of a service is 'hub://x'"):
        hpcomm.connect_service("hub://x", "t")
    with pytest.raises(hpcomm.InvalidArgument, match="must be HOST:PORT"):
        hpcomm.create_service("here", "a", "t")
    with pytest.raises(hpcomm.InvalidArgument, match="namespace is 'a b'"):
        hpcomm.create_service("here:1", "a b", "t")
    with pytest.raises(hpcomm.InvalidArgument, match="HPCOMM_SECRET_FILE is not set"):
        hpcomm.create_service("here:1", "a")
    with pytest.raises(hpcomm.InvalidArgument, match="rank is 2 and size 2"):
        hpcomm.connect_service(f"hub://here:1/a/b/{'0' * 32}", "t", 2, 2)
    with pytest.raises(hpcomm.InvalidArgument, match="must be a context of connect_service"):
        hpcomm.parameter_hub(alone, VALUES, servers="hub", rule=RULE)
