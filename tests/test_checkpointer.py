"""Checkpoints of a job that goes on: whole or not there at all, one cut of all ranks, found again after any end."""

import hashlib
import os
import random
import resource
import shutil
import signal
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import mpi
import numpy as np
import pytest
from conftest import Left, on_both, run_threads
from told import logs

import hpcomm
from hpcomm import (
    ASYNC,
    SGD,
    SSP,
    Adam,
    Checkpointer,
    CheckpointError,
    Context,
    Exchange,
    InvalidArgument,
    ParameterServer,
    Plan,
    graphs,
    latest,
    restore,
)
from hpcomm.checkpoint import files
from hpcomm.checkpoint.files import Label
from hpcomm.plan import Edge, Row

F32 = np.float32
SHAPES = {"w": (61, 53), "b": (53,), "s": ()}


def zeros() -> dict[str, Any]:
    return {name: np.zeros(shape, F32) for name, shape in SHAPES.items()}


def drawn(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(shape).astype(F32) for name, shape in SHAPES.items()}


def exchange(context: Context, **options: Any) -> Exchange:
    return Exchange(context, zeros(), **{"rule": Adam(), "chunk_bytes": 1024, "progress": "inline", **options})


def train(ex: Exchange, ckpt: Checkpointer, first: int, last: int) -> None:
    """Steps first + 1 to last, saved as ckpt says."""
    for step in range(first, last):
        ex.step(drawn(100 * step + ex.context.rank))
        ckpt.after(step + 1, {"last": step + 1})


def saved(folder: Path, n: int, last: int, every: int = 2, **options: Any) -> list[Any]:
    """A job of n ranks that saves into folder; the parameters that it ends with."""

    def body(context: Context) -> Any:
        with exchange(context, **options) as ex, Checkpointer(ex, folder, every=every) as ckpt:
            if not ex.params:
                ckpt.serve()
                return None
            train(ex, ckpt, 0, last)
            return {name: value.copy() for name, value in ex.params.items()}

    return run_threads(n, body)


def on_disk(folder: Path) -> dict[int, set[int]]:
    """The ranks that have a file, by step."""
    found: dict[int, set[int]] = {}
    for one in files.listed(folder):
        found.setdefault(one.step, set()).add(one.rank)
    return found


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


# ---- the whole job is killed -----------------------------------------------------------------------------------------


def job(folder: str | None, last: int, placement: str, kill_at: int, delay: float) -> Any:
    """Trains on from the newest checkpoint to step last; from kill_at steps on and after a delay no rank lives."""
    with hpcomm.init(mpi.world(), timeout=30) as context:
        params = {"w": np.zeros((500, 300), F32), "b": np.zeros(300, F32)}
        if placement == "graph":
            ex = hpcomm.stochastic_reduce(context, params, rule=Adam(lr=0.01))
        else:
            ex = hpcomm.parameter_hub(context, params, placement=placement, rule=Adam(lr=0.01))
        found = restore(ex, folder) if folder is not None else None
        rng = np.random.default_rng(context.rank)
        if found is not None:
            rng.bit_generator.state = found.extra["rng"] if ex.params else rng.bit_generator.state
        first = found.step if found is not None else 0
        killing = threading.Event()
        if kill_at and context.rank == 1:
            threading.Thread(target=kill, args=(context, killing, delay), daemon=True).start()
        ckpt = Checkpointer(ex, folder, every=2) if folder is not None else None
        if not ex.params:
            (ckpt or ex).serve()
        end = min(last, first + kill_at + 8) if kill_at else last  # a quick job may be further when it is killed
        for step in range(first, end if ex.params else first):
            ex.step({name: rng.standard_normal(value.shape).astype(F32) for name, value in params.items()})
            if ckpt is not None:
                ckpt.after(step + 1, lambda: {"rng": rng.bit_generator.state})
            if step + 1 - first == kill_at:
                killing.set()
        if kill_at:
            signal.pause()
        if ckpt is not None:
            ckpt.close()
        ex.close()
        return [first, hashlib.sha256(b"".join(value.tobytes() for value in ex.params.values())).hexdigest()]


def kill(context: Context, killing: threading.Event, delay: float) -> None:
    pids = [peer.pid for peer in context.peers if peer.rank != context.rank]
    killing.wait()
    time.sleep(delay)  # any moment will do
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)  # none hears of another's end
    for pid in [*pids, os.getpid()]:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.some(1)
@pytest.mark.parametrize("placement", ["CS", "NCC", "graph"])
@on_both
def test_a_job_that_is_killed_again_and_again_ends_with_the_same_bits(tmp_path: Path, placement: str) -> None:
    last = 80
    want = mpi.spawn(3, job, None, last, placement, 0, 0.0).values
    lot = random.Random(placement)
    firsts: list[int] = []
    for _ in range(4):
        ended = mpi.spawn(3, job, str(tmp_path), last, placement, lot.randint(6, 9), lot.uniform(0, 0.03), check=False)
        assert ended.codes == [-signal.SIGKILL] * 3, ended.err
        for one in files.listed(tmp_path):
            assert not one.whole or files.read(one.path), "a file that has its name is whole"
        firsts.append(latest(tmp_path) or 0)
    assert [0, *firsts] == sorted({0, *firsts}), "each job comes further than the one before"
    have = mpi.spawn(3, job, str(tmp_path), last, placement, 0, 0.0).values
    assert [value[0] for value in have] == [firsts[-1]] * 3
    assert [value[1] for value in have] == [value[1] for value in want]
    assert latest(tmp_path) == last


# ---- one cut ---------------------------------------------------------------------------------------------------------


@pytest.mark.some(4)
@pytest.mark.parametrize("progress", ["inline", "thread"])
@pytest.mark.parametrize(
    "topology",
    [ParameterServer("CS"), ParameterServer("CC"), ParameterServer("NCC"), ParameterServer("NCS", servers=[1, 3])],
    ids=lambda topology: topology.placement,
)
@on_both
def test_every_file_of_a_step_is_of_that_step(tmp_path: Path, topology: ParameterServer, progress: str) -> None:
    saved(tmp_path, 4, 12, every=1, topology=topology, progress=progress)
    found = [files.read(one.path) for one in files.listed(tmp_path)]
    assert {label.step for label, _ in found} >= {11, 12}
    for label, sections in found:
        assert set(sections["shard"]["row_step"]) <= {label.step}
        assert label.size == 4


@pytest.mark.parametrize("consistency", [ASYNC, SSP(3)], ids=str)
@on_both
def test_asynchronous_owners_save_at_their_own_steps(tmp_path: Path, consistency: hpcomm.Consistency) -> None:
    for placed in (ParameterServer("CS"), ParameterServer("NCC")):
        folder = tmp_path / placed.placement
        options: dict[str, Any] = {"topology": placed, "consistency": consistency, "progress": "thread", "rule": SGD()}
        saved(folder, 3, 8, **options)

        def again(context: Context, folder: Path = folder, options: dict[str, Any] = options) -> None:
            with exchange(context, **options) as ex:
                found = restore(ex, folder)
                assert found is not None
                assert found.step == 8
                assert ex.clock == (8 if ex.params else 0)
                if not ex.params:
                    ex.serve()

        run_threads(3, again)


@on_both
def test_on_a_graph_each_rank_goes_on_from_its_own_replica(tmp_path: Path) -> None:
    """Under another graph too, where every rank reads all files."""
    want: list[Any] = [None] * 4

    def before(context: Context) -> None:
        with exchange(context, topology=graphs.ring(4), consistency=hpcomm.NOTIFY_ACK) as ex:
            with Checkpointer(ex, tmp_path, every=2) as ckpt:
                train(ex, ckpt, 0, 6)
            want[context.rank] = {name: value.copy() for name, value in ex.params.items()}

    def after(context: Context, graph: Any) -> None:
        with exchange(context, topology=graph, consistency=hpcomm.NOTIFY_ACK) as ex:
            found = restore(ex, tmp_path)
            assert found is not None
            assert found.step == 6
            for name, value in ex.params.items():
                np.testing.assert_array_equal(value, want[context.rank][name])
            assert set(ex.state_dict()["row_step"]) == {6}

    run_threads(4, before)
    assert any((want[0][name] != want[1][name]).any() for name in SHAPES), "replicas differ"
    for graph in (graphs.ring(4), graphs.complete(4)):
        run_threads(4, partial(after, graph=graph))

    def fewer(context: Context) -> None:
        ex = exchange(context, topology=graphs.ring(3), consistency=hpcomm.NOTIFY_ACK)
        found = restore(ex, tmp_path)
        assert found is not None
        np.testing.assert_array_equal(ex.params["w"], want[context.rank]["w"])

    run_threads(3, fewer)


@pytest.mark.parametrize(
    ("placed", "refuses", "why"),
    [
        (ParameterServer("NCC"), 2, "rank 2: after: key 'w' is under way: wait for its handle"),
        (ParameterServer("CS"), 1, r"extra\['f'\] is a builtin_function_or_method"),
    ],
    ids=["a rank without rows", "an owner"],
)
@on_both
def test_a_step_that_a_rank_refuses_is_told_to_all(
    tmp_path: Path, placed: ParameterServer, refuses: int, why: str
) -> None:
    """Nobody waits for its file of step 2, and step 4 is whole."""
    refused = threading.Event()

    def body(context: Context) -> None:
        ex = exchange(context, topology=placed)
        ckpt = Checkpointer(ex, tmp_path, every=2)
        if not ex.params:
            ckpt.serve()
        else:
            train(ex, ckpt, 0, 1)
            if context.rank == refuses:
                handles = [ex.push_nb(name, value) for name, value in drawn(refuses).items()]
                for handle in handles if "handle" not in why else []:
                    handle.wait()
                with pytest.raises(InvalidArgument, match=why):
                    ckpt.after(2, {"f": len})
                refused.set()
                for handle in handles:
                    handle.wait()
            else:
                assert "handle" not in why or refused.wait(20)
                ex.step(drawn(context.rank))
                ckpt.after(2)
            train(ex, ckpt, 2, 4)
        if context.rank != refuses:
            ckpt._window.wait_signal(context.size + refuses, 2)  # it has heard
        ex.close()
        ckpt.close()

    with logs() as told:
        run_threads(3, body)
    others = {0, 1, 2} - {refuses}
    assert set(told) == {
        f"rank {rank}: the checkpoint of step 2 stays incomplete: rank {refuses} has no file of it, and was told why"
        for rank in others
    }
    assert refuses not in on_disk(tmp_path).get(2, set())
    assert latest(tmp_path) == 4


@on_both
def test_a_server_whose_disk_is_full_keeps_nobody_waiting(tmp_path: Path) -> None:
    """It learns of it at the next step, which it saves."""

    def body(context: Context) -> None:
        ex = exchange(context, topology=ParameterServer("NCC"))
        ckpt = Checkpointer(ex, tmp_path / str(context.rank), every=2, keep=5)
        if not ex.params:
            with pytest.raises(CheckpointError, match=r"rank 0: cannot write .*step-000002"):
                ckpt.serve()
            ckpt.serve()
        else:
            train(ex, ckpt, 0, 1)
            if context.rank == 1:
                shutil.rmtree(tmp_path / "0")
            train(ex, ckpt, 1, 2)
            ckpt._window.wait_signal(context.size, 2)  # rank 0 has not written it
            (tmp_path / "0").mkdir(exist_ok=True)
            train(ex, ckpt, 2, 6)
        ex.close()
        ckpt.close()

    with logs("rank 2: the checkpoint of step 2 stays incomplete: rank 0"):
        run_threads(3, body)
    assert [sorted(on_disk(tmp_path / str(rank)))[-2:] for rank in range(3)] == [[4, 6]] * 3
    assert 2 not in on_disk(tmp_path / "0")


def test_a_server_that_does_not_save_is_named(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        ex = exchange(context, topology=ParameterServer("NCC"))
        ckpt = Checkpointer(ex, tmp_path, every=1, timeout=5)
        if context.rank == 0:
            ex.serve()
            return
        ex.step(drawn(context.rank))
        if context.rank == 1:
            ckpt._timeout = 0.1
            with pytest.raises(hpcomm.Timeout, match=r"rank 0 only serves: it must call Checkpointer\.serve"):
                ckpt.after(1)
        ex.close()

    run_threads(3, body)


def test_a_plan_that_tells_no_step_is_refused(tmp_path: Path) -> None:
    """Rank 1 owns what only rank 0 pushes."""

    def body(context: Context) -> None:
        rows = [
            Row(0, 1, 0, 0, 16, (Edge(0),), (Edge(0),)),
            Row(1, 0, 0, 0, 16, (Edge(0), Edge(1)), (Edge(0), Edge(1))),
        ]
        params = {"a": np.zeros(16, F32), "b": np.zeros(16, F32)}
        ex = Exchange(context, params, plan=Plan(params, rows, 2), rule=SGD())
        with pytest.raises(
            hpcomm.HpcommError, match="row 0 of the plan, which rank 1 owns, gets no update from rank 1"
        ):
            Checkpointer(ex, tmp_path)
        context.barrier()

    run_threads(2, body)


def layers(depth: int) -> list[Row]:
    """Of key a ranks 0 and 1 have a row in each layer, fed by both of the one before it: 2 ** depth paths to the last
    row, which is rank 2's. Rank 2 pushes key b alone."""
    rows = []
    for layer in range(depth):
        before = tuple(Edge(rank, 2 * layer - 2 + rank if layer else -1) for rank in (0, 1))
        after = [Edge(rank, 2 * layer + 2 + rank) for rank in (0, 1)] if layer < depth - 1 else [Edge(2, 2 * depth)]
        rows += [Row(0, owner, 0, 0, 16, before, tuple(after), "forward") for owner in (0, 1)]
    last = Row(0, 2, 0, 0, 16, tuple(Edge(rank, 2 * depth - 2 + rank) for rank in (0, 1)), (Edge(0), Edge(1)))
    return [*rows, last, Row(1, 2, 0, 0, 16, (Edge(2),), (Edge(2),))]


def chain(length: int) -> list[Row]:
    """Of key a rank 0 forwards to itself. The last row is rank 2's, as above."""
    links = [Edge(0, row - 1) for row in range(length)]
    afters = [Edge(0, row + 1) for row in range(length - 1)] + [Edge(2, length)]
    rows = [Row(0, 0, 0, 0, 16, (b,), (a,), "forward") for b, a in zip(links, afters, strict=True)]
    last = Row(0, 2, 0, 0, 16, (Edge(0, length - 1),), (Edge(0),))
    return [*rows, last, Row(1, 2, 0, 0, 16, (Edge(2),), (Edge(2),))]


@pytest.mark.parametrize(("rows", "last"), [(layers(40), 80), (chain(5000), 5000)], ids=["layers", "chain"])
def test_a_plan_of_many_stages_is_looked_through_once(tmp_path: Path, rows: list[Row], last: int) -> None:
    def body(context: Context) -> None:
        params = {"a": np.zeros(16, F32), "b": np.zeros(16, F32)}
        ex = Exchange(context, params, plan=Plan(params, rows, 3), rule=SGD(), progress="inline")
        told = f"row {last} of the plan, which rank 2 owns, gets no update from rank 2"
        with pytest.raises(hpcomm.HpcommError, match=told):
            Checkpointer(ex, tmp_path)
        context.barrier()

    run_threads(3, body)


# ---- what is on disk -------------------------------------------------------------------------------------------------


def test_every_bit_of_a_file_counts(tmp_path: Path) -> None:
    label = Label(7, 2, 3, "abcd", "0123", 5)
    sections: dict[str, Any] = {
        "shard": {"format": 1, "params": np.arange(50, dtype=F32)},
        "extra": {"x": [1, {"y": None}]},
    }
    n = files.write(tmp_path, label, sections)
    path = tmp_path / label.name
    whole = path.read_bytes()
    assert len(whole) == n
    have, values = files.read(path)
    assert have == label
    np.testing.assert_array_equal(values["shard"].pop("params"), np.arange(50, dtype=F32))
    assert values == {"shard": {"format": 1}, "extra": {"x": [1, {"y": None}]}}
    for at in range(n):
        for bit in (1, 32, 128):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1 :])
            with pytest.raises(CheckpointError, match=r"torn|damaged"):
                files.read(path)
    for length in range(n):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match="is torn"):
            files.label(path)


def test_extra_values_come_back(tmp_path: Path) -> None:
    values: dict[str, Any] = {
        "epoch": 3,
        "loss": 0.1,
        "name": "später",
        "rng": np.random.default_rng(0).bit_generator.state,
        "order": np.arange(6).reshape(2, 3).T,
        "empty": np.zeros((0, 4), np.int8),
        "count": np.int64(5),
        "mean": np.float64(0.1),
        "texts": np.array(["a", "bcd"]),
        "none": None,
    }
    found: list[Any] = []

    def body(context: Context) -> None:
        with exchange(context) as ex, Checkpointer(ex, tmp_path, every=1) as ckpt:
            ex.step(drawn(0))
            ckpt.after(1, values)
            values["order"][:] = 0  # it is a copy that is written
        ex = exchange(context)
        found.append(restore(ex, tmp_path))

    run_threads(1, body)
    have = found[0].extra
    assert have.keys() == values.keys()
    np.testing.assert_array_equal(have["order"], np.arange(6).reshape(2, 3).T)
    for name, value in values.items():
        if isinstance(value, np.ndarray | np.int64):
            assert (have[name].dtype, have[name].shape) == (value.dtype, value.shape)
        else:
            assert have[name] == value


@pytest.mark.parametrize("own", [False, True], ids=["one directory", "each its own"])
def test_as_many_are_kept_as_were_asked_for(tmp_path: Path, own: bool) -> None:
    def body(context: Context) -> None:
        folder = tmp_path / str(context.rank) if own else tmp_path
        for run in range(2):
            with exchange(context) as ex, Checkpointer(ex, folder, every=3, keep=2) as ckpt:
                train(ex, ckpt, 12 * run, 12 * run + 11)
                ckpt.after(12 * run + 12)

    run_threads(3, body)
    for rank in range(3):
        steps = [step for step, ranks in on_disk(tmp_path / str(rank) if own else tmp_path).items() if rank in ranks]
        assert steps[-2:] == [21, 24]
        assert set(steps) <= {15, 18, 21, 24}  # others may have been two behind when this rank looked last
    assert own or latest(tmp_path) == 24


def test_nothing_is_removed_for_what_is_not_complete(tmp_path: Path) -> None:
    """Rank 1's disk goes and comes back: for so long what all have had before is all that is whole."""

    def body(context: Context) -> None:
        folder = tmp_path / str(context.rank)
        with exchange(context) as ex:
            ckpt = Checkpointer(ex, folder, every=1, keep=1)
            train(ex, ckpt, 0, 2)
            ckpt._finish()
            context.barrier()
            if context.rank == 1:
                shutil.rmtree(folder)
            context.barrier()
            for step in range(3, 6):
                ex.step(drawn(step))
                ckpt.after(step)
                if context.rank == 1:
                    with pytest.raises(
                        CheckpointError, match=rf"write .*/1/step-00000{step}\.rank-001\.ckpt: No such f"
                    ):
                        ckpt._finish()
            ckpt._finish()
            assert context.rank == 1 or set(on_disk(folder)) >= {2, 3, 4, 5}
            context.barrier()
            if context.rank == 1:
                folder.mkdir()
            train(ex, ckpt, 5, 6)
            ckpt.close()
            context.barrier()
            assert [step for step in range(1, 7) if ckpt._is_complete(step)] == [6]

    with logs("stays incomplete: rank 1 has no file of it"):
        run_threads(3, body)


@pytest.mark.parametrize("refused", [True, False], ids=["refused", "passed over"])
@on_both
def test_a_step_that_one_rank_has_not_saved_makes_none_before_it_go(tmp_path: Path, refused: bool) -> None:
    """Rank 1 has files of steps 1 and 3, rank 0 of 1 and 2: step 1 is the newest complete one."""

    def body(context: Context) -> None:
        with exchange(context) as ex, Checkpointer(ex, tmp_path, every=1, keep=1) as ckpt:
            ckpt.after(1)
            if context.rank == 0:
                ckpt.after(2)
            elif refused:
                with pytest.raises(InvalidArgument, match="extra is a list"):
                    ckpt.after(2, [1])  # type: ignore[arg-type]
            if context.rank == 1:
                ckpt.after(3)
            for rank, written in enumerate((2, 3)):
                ckpt._window.wait_signal(rank, written)
            ckpt._writer.submit(ckpt._remove_old).result()
            context.barrier()

    with logs("rank 0: the checkpoint of step 2 stays incomplete: rank 1"):
        run_threads(2, body)
    assert on_disk(tmp_path) == {1: {0, 1}, 2: {0}, 3: {1}}
    assert latest(tmp_path) == 1


def test_two_that_become_complete_at_once_are_both_kept(tmp_path: Path) -> None:
    """Rank 1's disk stands still until rank 0 has written two more."""
    moves = threading.Event()

    def body(context: Context) -> None:
        with exchange(context) as ex, Checkpointer(ex, tmp_path, every=1, keep=2) as ckpt:
            train(ex, ckpt, 0, 1)
            ckpt._finish()
            context.barrier()
            if context.rank == 1:
                ckpt._writer.submit(moves.wait, 20)
            train(ex, ckpt, 1, 3)
            ckpt._finish()
            moves.set()
            context.barrier()
            ckpt._writer.submit(ckpt._remove_old).result()

    run_threads(2, body)
    assert on_disk(tmp_path) == {2: {0, 1}, 3: {0, 1}}


def test_older_runs_of_more_ranks_go_too(tmp_path: Path) -> None:
    saved(tmp_path, 5, 4)
    saved(tmp_path, 2, 16, every=4)
    assert {rank for ranks in on_disk(tmp_path).values() for rank in ranks} == {0, 1}


# ---- what goes wrong -------------------------------------------------------------------------------------------------


def full(folder: str) -> Any:
    """Rank 1 may write files of 4 KiB only, for a while."""
    with hpcomm.init(mpi.world(), timeout=30) as context:
        ex = exchange(context)
        ckpt = Checkpointer(ex, folder, every=2)
        train(ex, ckpt, 0, 2)
        ckpt._finish()
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        if context.rank == 1:
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
        train(ex, ckpt, 2, 4)
        ex.step(drawn(5))
        told: list[Any] = []
        if context.rank == 1:
            while not told:  # the thread may still be at it
                try:
                    ckpt._look()
                except CheckpointError as wrong:
                    told = [str(wrong), str(wrong.path)]
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        there = sorted(os.listdir(folder))
        train(ex, ckpt, 5, 6)
        ckpt.close()
        ex.close()
        return told, there


def test_a_full_disk_is_told_with_the_path_and_the_next_checkpoint_is_whole(tmp_path: Path) -> None:
    (_, _), (told, there) = mpi.spawn(2, full, str(tmp_path)).values
    path = str(tmp_path / "step-000004.rank-001.ckpt")
    assert told == [
        f"rank 1: cannot write {path}: File too large: the checkpoint of step 4 is lost, those before it are kept",
        path,
    ]
    assert {"step-000002.rank-000.ckpt", "step-000002.rank-001.ckpt"} <= set(there)
    assert not any(name.endswith(".part") for name in there if "rank-001" in name)
    assert latest(tmp_path) == 6


def test_an_error_is_told_when_the_context_closes_at_the_latest(tmp_path: Path) -> None:
    def body(context: Context) -> Checkpointer:
        ckpt = Checkpointer(exchange(context), tmp_path / "gone", every=1)
        shutil.rmtree(tmp_path / "gone")
        ckpt.after(1)
        return ckpt  # and so it lives

    with pytest.raises(CheckpointError, match=r"rank 0: cannot write .*gone/step-000001"):
        run_threads(1, body)


def test_a_rank_that_serves_learns_of_the_end_from_the_context(tmp_path: Path) -> None:
    def body(context: Context) -> Any:
        ex = exchange(context, topology=ParameterServer("NCC"))
        ckpt = Checkpointer(ex, tmp_path, every=1)
        if context.rank == 0:
            ckpt.serve()
        else:
            train(ex, ckpt, 0, 2)
        context.close()
        raise Left

    run_threads(3, body)
    assert latest(tmp_path) == 2


def locked_out(folder: str) -> str:
    with hpcomm.init(mpi.world(), timeout=30) as context:
        ex = exchange(context)
        if context.rank == 1 and os.geteuid() == 0:
            os.seteuid(65534)  # root may write anywhere
        try:
            Checkpointer(ex, folder if context.rank == 1 else f"{folder}/0")
        except CheckpointError as wrong:
            return str(wrong)
        except InvalidArgument as wrong:
            return f"told: {wrong}"
        finally:
            if os.geteuid() != os.getuid():
                os.seteuid(os.getuid())
            context.barrier()
        return "made"


def test_a_directory_that_a_rank_may_not_write_is_told_to_all(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    try:
        (tmp_path / "0").mkdir(exist_ok=True) if os.geteuid() == 0 else None
        values = mpi.spawn(3, locked_out, str(tmp_path)).values
    finally:
        tmp_path.chmod(0o755)
    why = f"rank 1: cannot write into {tmp_path}: Permission denied: give a directory that this rank may write"
    assert values[1] == why
    if os.geteuid() == 0:
        assert values[0] == values[2] == f"told: rank 1 refuses the checkpointer: {why}"


def test_what_is_refused(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        ex = exchange(context)
        with pytest.raises(InvalidArgument, match="every is 0: must be 1 to"):
            Checkpointer(ex, tmp_path, every=0)
        with pytest.raises(InvalidArgument, match=r"keep is 1\.5: must be an int"):
            Checkpointer(ex, tmp_path, keep=1.5)  # type: ignore[arg-type]
        with pytest.raises(hpcomm.ConfigError, match=r"every and keep are \[6, 2\] on rank 1 and \[5, 2\] on rank 0"):
            Checkpointer(ex, tmp_path, every=5 + context.rank)
        ckpt = Checkpointer(ex, tmp_path, every=2)
        with pytest.raises(InvalidArgument, match="is a worker, which serves the others in its waits and in close"):
            ckpt.serve()
        assert not ckpt.after(1)
        with pytest.raises(InvalidArgument, match="step is 1: must be 2 to"):
            ckpt.after(1)
        with pytest.raises(InvalidArgument, match=r"extra\['f'\] is a builtin_function_or_method: must be an array"):
            ckpt.after(2, {"f": len})
        with pytest.raises(InvalidArgument, match="extra is a list: must map names"):
            ckpt.after(4, [1])  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match=r"extra\['o'\] is object: give a view"):
            ckpt.after(6, {"o": np.array([object()])})
        context.barrier()
        handle = ex.push_nb("w", np.ones(SHAPES["w"], F32)) if context.rank == 0 else None
        if handle is not None:
            with pytest.raises(InvalidArgument, match="rank 0: after: key 'w' is under way"):
                ckpt.after(8)
        context.barrier()
        ex.push("w", np.ones(SHAPES["w"], F32)) if handle is None else handle.wait()
        ckpt.close()
        ckpt.close()
        with pytest.raises(InvalidArgument, match="after: the checkpointer is closed"):
            ckpt.after(10)

    run_threads(2, body)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"timeout": -1.0}, r"timeout is -1\.0: must be 0 or more seconds"),
        ({"directory": 3}, "directory is 3: must be a path"),
        ({"step": 0.5}, r"step is 0\.5: must be an int"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_one_rank_cannot_take_is_told_to_all(tmp_path: Path, wrong: dict[str, Any], why: str) -> None:
    def body(context: Context) -> None:
        ex = exchange(context)
        given: dict[str, Any] = {"directory": tmp_path, **(wrong if context.rank == 1 else {})}
        own: tuple[Any, str] = (InvalidArgument, f"^{why}")
        told = (CheckpointError, f"^rank 1 cannot restore: {why}") if context.rank == 0 else own
        with pytest.raises(told[0], match=told[1]):
            restore(ex, **given)
        if "step" not in wrong:
            told = (InvalidArgument, f"^rank 1 refuses the checkpointer: {why}") if context.rank == 0 else own
            with pytest.raises(told[0], match=told[1]):
                Checkpointer(ex, **given)

    run_threads(2, body)


def test_stats(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        with exchange(context) as ex:
            ckpt = Checkpointer(ex, tmp_path, every=2)
            train(ex, ckpt, 0, 7)
            ckpt.close()
            stats = ckpt.stats()
            assert stats.saved == 3
            assert stats.nbytes == os.path.getsize(tmp_path / f"step-000006.rank-{context.rank:03d}.ckpt")
            assert 0 < stats.longest <= stats.pause <= 3 * stats.longest
            assert stats.waited >= 0
            assert stats.writing > 0

    run_threads(2, body)
