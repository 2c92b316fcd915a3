"""The hub as a service: a hub process, and jobs of worker processes that come and go."""

import gc
import json
import os
import re
import signal
import threading
import time
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import mpi
import numpy as np
import pytest
from conftest import on_both
from served import (
    CASES,
    SECONDS,
    SHAPES,
    TOKENS,
    VALUES,
    Served,
    asking,
    command,
    join,
    joining,
    numbered,
    numbers,
    run,
    said,
    train,
    trained,
)

import hpcomm
from hpcomm import launch
from hpcomm.service import ADMIN, HubConnection, address
from hpcomm.service import handle as handles

pytest_plugins = ["served"]
pytestmark = pytest.mark.xdist_group("group service")  # one hub for all tests
HUB = {"is_fresh": True}


# ---- exchanges -----------------------------------------------------------------------------------------------------


def make_all(handle: str, token: str) -> int:
    """Makes exchanges at the hub one after the other, and compares each with one whose owner is worker 0."""
    with join(handle, token) as ctx:
        for more in CASES:
            plan = replace(more.get("plan", hpcomm.PlanOptions()), cores=1)  # as at the hub: codecs look at each chunk
            case: dict[str, Any] = {"rule": hpcomm.Nesterov(lr=0.5), "interfaces": 1, **more, "plan": plan}
            place: dict[str, Any] = {"placement": "CC"}
            with hpcomm.parameter_hub(ctx, VALUES, servers="hub", **case) as ex:
                found = trained(ex, ctx.rank)
                assert ex.plan.workers == (0, 1)
                assert set(ex.plan.rows.column("owner")) >= {2}
            with hpcomm.parameter_hub(ctx, VALUES, **place, **case) as reference:
                expected = trained(reference, ctx.rank)
                assert said(reference.save)[0] == "NotSupported"
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


def save_in_vain(handle: str, token: str) -> list[Any]:
    with join(handle, token) as ctx, hpcomm.parameter_hub(ctx, VALUES, servers="hub", rule=RULE) as ex:
        told = said(ex.save)
        return [*told, float(ex.push_pull("b", np.ones(70, np.float32))[0] - VALUES["b"][0])]


def test_a_hub_without_a_folder_saves_nothing(hub: Served) -> None:
    sentence = "a/none: this hub saves nothing: its owner must give a folder, by `checkpoints` in hub.toml"
    assert run(2, save_in_vain, hub.create("a", "none")) == [["ConfigError", sentence, -1.0]] * 2
    hub.wait(lambda: "a/none" not in hub.jobs())
    told = said(lambda: hpcomm.create_service(hub.where, "a", TOKENS["a"], "none", resume=True))
    assert told == ["ConfigError", sentence]
    with pytest.raises(hpcomm.InvalidArgument, match="resume is True, and job is None"):
        hpcomm.create_service(hub.where, "a", TOKENS["a"], resume=True)


def make_in_chunks(handle: str, token: str, chunk_bytes: int) -> list[str]:
    """What a job is told that wants 2 MiB in chunks of this size."""
    with join(handle, token) as ctx:
        plan, values = hpcomm.PlanOptions(chunk_bytes=chunk_bytes), {"x": np.zeros(1 << 19, np.float32)}
        return said(lambda: hpcomm.parameter_hub(ctx, values, servers="hub", rule=RULE, plan=plan).close())


def test_a_large_chunk_counts_at_the_hub_that_has_it(hub: Served, own_hub: Served) -> None:
    hubs, told = (hub, own_hub), []
    before = sum(one.counts("refused: memory quota") for one in hubs)
    for chunk_bytes in (64 << 10, 2 << 20):
        handle = hpcomm.create_service([one.where for one in hubs], "small", TOKENS["small"])
        told += run(1, make_in_chunks, handle, chunk_bytes, token=TOKENS["small"])
        hub.wait(lambda: not any(one.jobs() for one in hubs))
    assert told[0] == ["", ""]
    assert told[1][0] == "InvalidArgument"
    assert re.search(r"the exchange needs \d+ bytes, and namespace 'small' has \d+ of 6291456 left", told[1][1])
    assert sum(one.counts("refused: memory quota") for one in hubs) == before + 1


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


PRINTS = """import gc
collect = gc.collect
gc.collect = lambda: print("collects", len(gc.get_objects()), flush=True) or collect()
"""


def test_the_end_of_a_job_collects_no_objects_of_modules(tmp_path: Path) -> None:
    hub = Served(tmp_path, PRINTS, drain_seconds=0)
    join(hub.create(), TOKENS["a"], rank=0, size=1).close()
    collected = int(hub.until("collects ").split()[-1])
    hub.wait(lambda: not hub.jobs())
    hub.until("collects ")  # again, when the last one has hung up
    assert hub.end() == 0
    assert collected < 10000  # of the 48000 that a hub has


def test_a_job_ends_with_a_connection_to_the_hub(hub: Served) -> None:
    assert run(1, cut, hub.create("a", "cut"))[0][0] == "PeerFailed"
    hub.until("a/cut has ended: a/cut: rank 0 is gone")


def drop(handle: str, token: str, half: str) -> list[str]:
    """A forked child drops what its parent needs. Then worker 0 drops its context, and worker 1 is busy with another
    job for longer than the timeout of calls, and trains on."""
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
        return []
    told = said(lambda: join(half, token, rank=0, size=2, init_timeout=1.2))
    ex.push_pull("b", np.ones(70, np.float32))
    ctx.close()
    return told


def test_a_context_may_be_dropped(hub: Served) -> None:
    told = ["Timeout", "a/half: rank 1 did not come in 1.2 s"]
    assert run(2, drop, hub.create("a", "dropped"), hub.create("a", "half")) == [[], told]
    assert hub.until("a/dropped has ended").endswith("has ended")


def push_nan(handle: str, token: str) -> bool:
    with join(handle, token) as ctx, hpcomm.parameter_hub(ctx, VALUES, servers="hub", rule=hpcomm.SGD()) as ex:
        return bool(np.isnan(ex.push_pull("b", np.full(70, np.nan, np.float32))).all())


def test_a_tenant_that_pushes_nan_harms_itself(hub: Served) -> None:
    assert run(1, push_nan, hub.create()) == [True]
    assert run(2, train, hub.create(), 1)[0] == run(2, train, hub.create("b"), 1, token=TOKENS["b"])[0]


# ---- refusals ------------------------------------------------------------------------------------------------------


def refused_at_start(handle: str, token: str, sizes: list[int], ranks: list[int], tokens: list[str]) -> list[str]:
    """What worker i is told, if it says ranks[i] of sizes[i] and has tokens[i]."""
    i = launch.numbered()[0]
    return said(lambda: join(handle, tokens[i], rank=ranks[i], size=sizes[i]))


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
    before = hub.counts("refused: memory quota")
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
    assert hub.counts("refused: memory quota") == before + 1


def test_no_hub_there() -> None:
    where = f"127.0.0.1:{mpi.free_port()}"
    kind, text = said(lambda: hpcomm.create_service(where, "a", TOKENS["a"]))
    assert (kind, text) == ("TransportError", f"there is no hub at {where}: Connection refused")
    gone = str(handles.ServiceHandle((address(where),), "a", "x", "0" * 32))
    assert said(lambda: join(gone, TOKENS["a"], rank=0, size=1)) == [kind, text]


def test_all_hubs_of_a_job_must_take_it(hub: Served, own_hub: Served) -> None:
    own_hub.create("a", "taken")
    both = [hub.where, own_hub.where]
    sentence = "namespace 'a' already has a job 'taken'"
    assert said(lambda: hpcomm.create_service(both, "a", TOKENS["a"], "taken")) == ["ConfigError", sentence]
    hub.wait(lambda: "a/taken" not in hub.jobs())
    assert own_hub.jobs() == {"a/taken": "waits"}


def test_a_job_waits_for_its_first_worker_as_long_as_the_hub_says(own_hub: Served) -> None:
    own_hub.configure(more={"wait_seconds": 0.05})
    own_hub.reload("4 namespaces")
    handle = own_hub.create("a", "unused")
    own_hub.wait(lambda: not own_hub.jobs())
    told = said(lambda: join(handle, TOKENS["a"], rank=0, size=1))
    assert told == ["ConfigError", "a/unused: no worker has come in 0.05 s"]


def test_a_worker_that_does_not_come_is_named(hub: Served) -> None:
    before = hub.counts("ended before it ran: Timeout")
    told = said(lambda: join(hub.create("a", "half"), TOKENS["a"], rank=0, size=3, init_timeout=0.3))
    assert told == ["Timeout", "a/half: rank 1, 2 did not come in 0.3 s"]
    assert hub.counts("ended before it ran: Timeout") == before + 1


def leave_at_the_start(handle: str, token: str) -> list[str]:
    if launch.numbered()[0] == 0:
        return said(lambda: join(handle, token))
    where, secret = handles.parsed(handle), token.encode()
    hub = HubConnection(where.hubs[0], where.namespace, secret, 5)
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


def by_variables() -> int:
    with hpcomm.connect_service(timeout=15) as ctx:
        return ctx.size


def test_the_environment_has_the_handle_and_the_token(hub: Served) -> None:
    own = {"HPCOMM_SERVICE": hub.create(), "HPCOMM_SECRET_FILE": str(hub.folder / "a.token")}
    assert mpi.start(numbered(2, **own), by_variables).values == [2, 2]


# ---- the administrator ---------------------------------------------------------------------------------------------


def train_until_ended(handle: str, token: str, folder: str) -> list[Any]:
    with join(handle, token) as ctx:
        ex = hpcomm.parameter_hub(ctx, VALUES, servers="hub", rule=hpcomm.SGD())
        Path(folder, str(ctx.rank)).touch()
        told = said(lambda: [ex.push_pull("b", np.ones(70, np.float32)) for _ in range(1_000_000)])
        notices = ctx.notices
        with suppress(hpcomm.HpcommError):
            ctx.close()
        return [*told, " ".join(notices)]


class Running:
    """A job of two workers that train until the hub ends it."""

    def __init__(self, hub: Served, namespace: str, job: str) -> None:
        """Waits until both train."""
        self.values: list[Any] = []
        handle, folder = hub.create(namespace, job), hub.folder / f"{namespace}.{job}"
        folder.mkdir()
        self._thread = threading.Thread(
            target=lambda: self.values.extend(
                run(2, train_until_ended, handle, str(folder), token=TOKENS[namespace]),
            ),
            daemon=True,
        )
        self._thread.start()
        hub.wait(lambda: len(list(folder.iterdir())) == 2)

    def ended(self) -> list[Any]:
        self._thread.join(SECONDS)
        assert len(self.values) == 2
        return self.values


def test_evict_ends_one_job_and_tells_its_workers(hub: Served) -> None:
    job = Running(hub, "a", "evicted")
    command(hub, "evict", hub.where, "a/evicted")
    for kind, text, notice in job.ended():
        assert kind == "PeerFailed"
        assert "the administrator of the hub has ended it" in text
        assert "the administrator of the hub has ended it" in notice
    hub.until("a/evicted has ended")


def test_a_revoked_token_ends_its_jobs_and_no_others(own_hub: Served) -> None:
    theirs, ours = (Running(own_hub, name, "one") for name in ("a", "b"))
    own_hub.file.write_text("no toml", encoding="utf-8")
    own_hub.reload("the old configuration stays")
    own_hub.token("a", "a token that is fresh")
    own_hub.configure()
    with closing(asking(own_hub)) as proven:
        own_hub.reload("4 namespaces")
        assert said(lambda: proven.ask({"op": "create"})) == ["AuthError", "the token of 'a' was revoked"]
    assert all("token of its namespace was revoked" in text for _, text, _ in theirs.ended())
    own_hub.until("a/one has ended")
    assert own_hub.jobs() == {"b/one": "runs"}
    assert said(lambda: own_hub.create("a"))[0] == "AuthError"
    own_hub.configure(("a", "small"))
    own_hub.reload("2 namespaces")
    assert all("token of its namespace was revoked" in text for _, text, _ in ours.ended())
    own_hub.until("b/one has ended")
    assert said(lambda: own_hub.create("b"))[0] == "AuthError"
    assert set(own_hub.ask(op="status")["namespaces"]) == {"a", "small"}


def test_a_revoked_administrator_asks_no_more(own_hub: Served) -> None:
    with closing(HubConnection(address(own_hub.where), ADMIN, TOKENS["admin"].encode(), SECONDS)) as proven:
        own_hub.token("admin", "a token that is fresh")
        own_hub.reload("4 namespaces")
        assert said(lambda: proven.ask({"op": "status"})) == ["AuthError", f"the token of {ADMIN!r} was revoked"]


def exceed_later(handle: str, token: str, folder: str) -> list[str]:
    """Makes an exchange before the hub has a smaller quota, and one after it."""
    with join(handle, token) as ctx:
        values = {"x": np.zeros(9, np.float32)}
        with hpcomm.parameter_hub(ctx, values, servers="hub", rule=RULE) as ex:
            Path(folder, "made").touch()
            until = time.monotonic() + SECONDS
            while not Path(folder, "read").exists() and time.monotonic() < until:
                ex.push_pull("x", np.ones(9, np.float32))
            told = said(lambda: hpcomm.parameter_hub(ctx, values, servers="hub", rule=RULE))
            ex.push_pull("x", np.ones(9, np.float32))
        return told


def test_a_smaller_quota_counts_for_what_comes_next(own_hub: Served, tmp_path: Path) -> None:
    told: list[Any] = []
    args = (own_hub.create("small"), str(tmp_path))
    job = threading.Thread(
        target=lambda: told.extend(run(1, exceed_later, args[0], args[1], token=TOKENS["small"])), daemon=True
    )
    job.start()
    own_hub.wait(lambda: Path(tmp_path, "made").exists())
    own_hub.configure(own={"small": 'memory = "1 MiB"\njobs = 2'})
    own_hub.reload("4 namespaces")
    own_hub.create("small")
    (tmp_path / "read").touch()
    job.join(SECONDS)
    assert told[0][0] == "InvalidArgument"
    assert "namespace 'small' has 0 of 1048576 left" in told[0][1]


def test_a_hub_drains(own_hub: Served) -> None:
    hub = own_hub
    job = Running(hub, "a", "last")
    hub.process.terminate()
    hub.until("drains: 1 jobs have 40 s")
    sentence = "b/new: the hub drains, and takes no new jobs"
    assert said(lambda: hub.create("b", "new")) == ["ConfigError", sentence]
    assert hub.ask(op="status")["drains_in"] > 30
    hub.process.terminate()  # now
    for kind, text, notices in job.ended():
        assert kind == "PeerFailed"
        assert "the hub ends" in text
        assert "the hub drains: it ends this job in 40 s" in notices
    assert hub.process.wait(SECONDS) == 0


def test_a_later_drain_replaces_an_earlier_one(own_hub: Served) -> None:
    hub = own_hub
    job = Running(hub, "a", "last")
    assert json.loads(command(hub, "drain", hub.where, "--seconds", "0.3", "--json"))["drains_in"] <= 0.3
    command(hub, "drain", hub.where, "--seconds", "60")
    hub.wait(lambda: hub.ask(op="status")["drains_in"] < 59.6)  # the first deadline has passed
    hub.process.terminate()  # for the first time
    hub.until("drains: 1 jobs have 40 s")
    assert hub.jobs() == {"a/last": "runs"}
    hub.ask(op="evict", job="a/last")
    job.ended()
    assert hub.process.wait(SECONDS) == 0


def test_the_command_shows_a_hub(hub: Served) -> None:
    handle = command(hub, "create", hub.where, "--namespace", "a", "--job", "shown", token="a").strip()
    assert handles.parsed(handle).job == "shown"
    (job,) = (one for one in json.loads(command(hub, "jobs", hub.where, "--json")) if one["job"] == "a/shown")
    assert (job["state"], job["exchanges"]) == ("waits", 0)
    assert re.search(r"a/shown +waits +0 ", command(hub, "jobs", hub.where))
    assert json.loads(command(hub, "status", hub.where, "--json"))["namespaces"]["small"]["memory_quota"] == 6 << 20
    assert re.search(r"small +\d of 1 +\d+ of 6291456 +\d+ of 1048576 +1 *\n", command(hub, "status", hub.where))
    assert json.loads(command(hub, "evict", hub.where, "a/shown", "--json"))["state"] == "ends"
    assert "the hub has no job 'a/shown'" in command(hub, "evict", hub.where, "a/shown", code=1)
    sentence = f"hpcomm hub: the hub at {hub.where} has no administrator with this token\n"
    assert command(hub, "status", hub.where, token="a", code=1) == sentence
