"""Collectives of arrays against NumPy, by real ranks: every call with every dtype and op it takes, sizes from 0, uneven
blocks, started calls; calls that do not match; ranks that die or stop in the middle; arguments that are refused.

One job runs many cases, as its start takes longer than they do. A case that fails says what it was.
"""

import itertools
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import mpi
import numpy as np
import pytest
from conftest import Left, is_gone_soon, on_both, run_threads, thread_worlds
from numpy.typing import NDArray
from test_context import interrupted

import hpcomm
from hpcomm import _core

Array = NDArray[Any]
KILLED = -signal.SIGKILL
SIZES = (0, 1, 7, 1000)
LARGE = 100_003
GUARD = 64  # bytes before and behind an array that a call writes
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
FLOATS = ("float16", "float32", "float64", *(("bfloat16",) if find_spec("ml_dtypes") else ()))
COMPLEX = ("complex64", "complex128")
DTYPES = ("bool", *INTEGERS, *FLOATS, *COMPLEX)
BITWISE = ("and", "or", "xor")
OPS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("bool", *INTEGERS), ("sum", "prod", "min", "max", *BITWISE)),
    **dict.fromkeys(FLOATS, ("sum", "mean", "prod", "min", "max")),
    **dict.fromkeys(COMPLEX, ("sum", "mean", "prod")),
}


def dtype_of(name: str) -> np.dtype[Any]:
    if name != "bfloat16":
        return np.dtype(name)
    import ml_dtypes  # noqa: PLC0415

    found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return found


# ---- what NumPy finds ------------------------------------------------------------------------------------------------


def inputs(n: int, size: int, name: str, seed: int, *, real: bool = False) -> list[Array]:
    """The arrays of n ranks: any integers, and floats that are small integers; or with real any floats."""
    lot, dtype = np.random.default_rng([seed, size]), dtype_of(name)
    if name == "bool":
        return list(lot.integers(0, 2, (n, size)).astype(bool))
    if name in INTEGERS:
        limits = np.iinfo(name)
        return list(lot.integers(limits.min, limits.max, (n, size), dtype, endpoint=True))
    draw = lot.standard_normal if real else lambda shape: lot.integers(-3, 4, shape)
    found = draw((n, size)).astype(np.float64)
    return list((found + 1j * draw((n, size)) if name in COMPLEX else found).astype(dtype))


def folded(parts: list[Array], op: str) -> Array:
    """The parts as one, in the order of ranks; 16-bit floats in float32, rounded once."""
    dtype = parts[0].dtype
    is_bool, is_short = dtype.kind == "b", dtype.name in ("float16", "bfloat16")
    by: dict[str, Any] = {
        "sum": np.logical_or if is_bool else np.add,
        "mean": np.add,
        "prod": np.logical_and if is_bool else np.multiply,
        "min": np.minimum,
        "max": np.maximum,
        "and": np.bitwise_and,
        "or": np.bitwise_or,
        "xor": np.bitwise_xor,
    }
    total = parts[0].astype(np.float32) if is_short else parts[0].copy()
    for part in parts[1:]:
        total = by[op](total, part.astype(np.float32) if is_short else part)
    if op == "mean":
        floats = total.view(total.real.dtype)
        floats /= floats.dtype.type(len(parts))
    return total.astype(dtype)


def same(found: Array, want: Array, *case: object) -> None:
    """Bit by bit; complex numbers by value, as the sign of a zero is then anyone's choice."""
    assert found.dtype == want.dtype, case
    assert found.size == want.size, case
    if want.dtype.kind == "c":
        np.testing.assert_array_equal(found.ravel(), want.ravel(), str(case))
    elif found.tobytes() != want.tobytes():
        wrong = np.flatnonzero(found.ravel().view(f"V{want.itemsize}") != want.ravel().view(f"V{want.itemsize}"))
        raise AssertionError(f"{case}: {wrong.size} elements differ, the first at {wrong[0]}")


class Guarded:
    """An array between bytes that no call may write."""

    def __init__(self, values: Array) -> None:
        self._whole = np.full(values.nbytes + 2 * GUARD, 0xA5, np.uint8)
        self.array: Array = self._whole[GUARD : GUARD + values.nbytes].view(values.dtype).reshape(values.shape)
        self.array[...] = values

    def ends_with(self, want: Array, *case: object) -> None:
        same(self.array, want, *case)
        guards = np.concatenate([self._whole[:GUARD], self._whole[-GUARD:]])
        assert (guards == 0xA5).all(), (*case, "wrote outside of its array")


def noise(shape: Any, name: str) -> Guarded:
    """An out, whose bytes are no result."""
    dtype = dtype_of(name)
    return Guarded(np.ones(shape, dtype) if name == "bool" else np.full(shape, 77, dtype))


# ---- every call ------------------------------------------------------------------------------------------------------


def reductions(ctx: hpcomm.Context) -> None:
    pairs = [(name, op) for name in DTYPES for op in OPS[name]]
    for i, (name, op) in enumerate(pairs):
        for size in (*SIZES, *((LARGE,) if op in ("sum", "mean") or i % 5 == 0 else ())):
            reduced(ctx, size, name, op, i % ctx.size, real=False)
    for i, (name, op) in enumerate(itertools.product((*FLOATS, "complex64"), ("sum", "mean"))):
        for size in (7, LARGE):
            reduced(ctx, size, name, op, i % ctx.size, real=True)
    for name in FLOATS:  # NaN of any rank
        parts = inputs(ctx.size, 100, name, 3)
        for rank, part in enumerate(parts):
            part[rank::7] = np.nan
        for op in ("min", "max"):
            found = ctx.allreduce(parts[ctx.rank], op)
            np.testing.assert_array_equal(found.astype(np.float64), folded(parts, op).astype(np.float64))


def reduced(ctx: hpcomm.Context, size: int, name: str, op: str, root: int, *, real: bool) -> None:
    n, rank, case = ctx.size, ctx.rank, (size, name, op, root, real)
    parts = inputs(n, size, name, 1, real=real)
    mine, want = parts[rank], folded(parts, op)
    before = mine.copy()

    out = noise(size, name)
    assert ctx.allreduce(mine, op, out.array) is out.array
    out.ends_with(want, "allreduce", *case)
    same(ctx.allreduce(mine, op), want, "allreduce", *case)
    place = Guarded(mine)
    ctx.allreduce(place.array, op, place.array)
    place.ends_with(want, "allreduce in place", *case)

    out = noise(size, name)
    found = ctx.reduce(mine, op, root, out.array)
    assert (found is out.array) if rank == root else (found is None)
    out.ends_with(want if rank == root else noise(size, name).array, "reduce", *case)
    place = Guarded(mine)
    ctx.reduce(place.array, op, root, out=place.array)
    place.ends_with(want if rank == root else mine, "reduce in place", *case)

    block = size // n
    whole, own = mine[: block * n], slice(block * rank, block * (rank + 1))
    out = noise(block, name)
    ctx.reduce_scatter(whole, op, out.array)
    out.ends_with(want[own], "reduce_scatter", *case)
    same(mine, before, "an input", *case)
    place = Guarded(whole)
    ctx.reduce_scatter(place.array, op, place.array[own])
    same(place.array[own], want[own], "reduce_scatter in place", *case)


def copies(ctx: hpcomm.Context) -> None:
    n, rank = ctx.size, ctx.rank
    for i, name in enumerate(DTYPES):
        for size in (*SIZES, LARGE):
            root, case = (i + size) % n, (size, name)
            parts = inputs(n, size, name, 2)
            mine, joined, own = parts[rank], np.concatenate(parts), slice(size * rank, size * (rank + 1))

            place = Guarded(mine)
            assert ctx.broadcast(place.array, root) is place.array
            place.ends_with(parts[root], "broadcast", root, *case)

            out = noise(n * size, name)
            assert ctx.allgather(mine, out.array) is out.array
            out.ends_with(joined, "allgather", *case)
            out.array[...] = noise(n * size, name).array
            out.array[own] = mine
            ctx.allgather(out.array[own], out.array)
            out.ends_with(joined, "allgather in place", *case)
            out = noise((n, size), name)
            ctx.allgather(mine, out.array)
            out.ends_with(joined, "allgather by rows", *case)

            out = noise(n * size, name)
            found = ctx.gather(mine, root, out.array)
            assert (found is out.array) if rank == root else (found is None)
            out.ends_with(joined if rank == root else noise(n * size, name).array, "gather", root, *case)
            if rank == root:
                out.array[...] = noise(n * size, name).array
                out.array[own] = mine
            ctx.gather(out.array[own] if rank == root else mine, root, out.array)
            out.ends_with(joined if rank == root else noise(n * size, name).array, "gather in place", root, *case)

            out = noise(size, name)
            assert ctx.scatter(joined if rank == root else None, root, out.array) is out.array
            out.ends_with(mine, "scatter", root, *case)
            place, out = Guarded(joined), noise(size, name)
            found = ctx.scatter(place.array, root, place.array[own] if rank == root else out.array)
            same(found, mine, "scatter in place", root, *case)
            place.ends_with(joined, "scatter in place", root, *case)

            block = size // n
            out = noise(block * n, name)
            ctx.alltoall(mine[: block * n], out.array)
            blocks = [part[block * rank : block * (rank + 1)] for part in parts]
            out.ends_with(np.concatenate(blocks), "alltoall", *case)


def uneven(ctx: hpcomm.Context) -> None:
    """Rows of three elements; some ranks have none."""
    n, rank = ctx.size, ctx.rank
    for name, scale in itertools.product(("int32", "float64", "bool"), (1, 4001)):
        rows = [(3 * r + 2) % 4 * scale for r in range(n)]
        ends = np.cumsum([0, *rows])
        own = slice(ends[rank], ends[rank + 1])
        wholes = [part.reshape(-1, 3) for part in inputs(n, 3 * ends[-1], name, 5)]
        for root in range(n):
            whole = wholes[root]
            same(ctx.allgather(whole[own], counts=rows), whole, "allgather", name, rows)
            found = ctx.gather(whole[own], root, counts=rows)
            assert (found is None) == (rank != root)
            if found is not None:
                assert found.shape == whole.shape
                same(found, whole, "gather", name, rows)
            out = noise((rows[rank], 3), name)
            ctx.scatter(whole if rank == root else None, root, out.array, counts=rows)
            out.ends_with(whole[own], "scatter", name, rows)
        found = ctx.reduce_scatter(wholes[rank], "max", counts=rows)
        assert found.shape == (rows[rank], 3)
        same(found, folded(wholes, "max")[own], "reduce_scatter", name, rows)

        table = [[(i + 2 * j) % 3 * scale for j in range(n)] for i in range(n)]  # [i][j]: from i to j
        sent = [part.reshape(-1, 3) for part in (inputs(n, 3 * sum(row), name, 6)[i] for i, row in enumerate(table))]
        blocks = [np.split(part, np.cumsum(row)[:-1])[rank] for part, row in zip(sent, table, strict=True)]
        recv = [row[rank] for row in table]
        found = ctx.alltoall(sent[rank], send_counts=table[rank], recv_counts=recv)
        assert found.shape == (sum(recv), 3)
        same(found, np.concatenate(blocks), "alltoall", name, table)


def started(ctx: hpcomm.Context) -> None:
    """Several calls at once, awaited in another order than that of their starts, tested, or dropped."""
    n, rank = ctx.size, ctx.rank
    for round_ in range(3):
        sizes = (LARGE, 0, 5, 40_000, 1)
        parts = [inputs(n, size, "float32", 10 + round_, real=True) for size in sizes]
        works = [ctx.allreduce_nb(part[rank], "mean") for part in parts]
        array = parts[0][rank].copy()
        works.append(ctx.broadcast_nb(array, n - 1))
        gathered = ctx.allgather_nb(parts[3][rank])
        others = [
            ctx.reduce_nb(parts[2][rank], "max", n - 1),
            ctx.gather_nb(parts[2][rank]),
            ctx.reduce_scatter_nb(parts[3][rank][: 100 * n]),
            ctx.alltoall_nb(parts[3][rank][: 100 * n]),
            ctx.scatter_nb(parts[0][0][: 10 * n], out=np.empty(10, np.float32)),
        ]
        ctx.allreduce_nb(parts[3][rank])  # dropped
        if round_ == 0:
            while not all(work.test() for work in works):
                pass
        if round_ == 1:
            ctx.allreduce(1.0)  # which the others come before
        same(others[-1].wait(), parts[0][0][10 * rank : 10 * (rank + 1)])
        for part, work in reversed(list(zip(parts, works, strict=False))):
            same(work.wait(), folded(part, "mean"), "started", round_)
        assert works[-1].wait() is array
        same(array, parts[0][-1])
        same(gathered.wait(), np.concatenate(parts[3]))
        most = others[0].wait()
        assert (most is None) == (rank != n - 1)
        assert (others[1].wait() is None) == (rank != 0)
        same(others[2].wait(), folded(parts[3], "sum")[100 * rank : 100 * (rank + 1)])
        same(others[3].wait(), np.concatenate([p[100 * rank : 100 * (rank + 1)] for p in parts[3]]))
        for work in (*works, gathered, *others):
            assert work.test()
    assert "done" in repr(works[0])


def objects(ctx: hpcomm.Context) -> None:
    n, rank = ctx.size, ctx.rank
    mine = {"rank": rank, "text": "x" * (1000 * rank)}
    every = [{"rank": r, "text": "x" * (1000 * r)} for r in range(n)]
    for root in range(n):
        assert ctx.broadcast_object(mine if rank == root else None, root) == every[root]
        assert ctx.gather_objects(mine, root) == (every if rank == root else None)
    assert ctx.allgather_objects(mine) == every
    assert ctx.broadcast_object(None) is None


def mixed(ctx: hpcomm.Context) -> None:
    """Shapes are kept, numbers are arrays without axes, and other collectives may come in between."""
    n, rank = ctx.size, ctx.rank
    window = ctx.window(8, signals=1)
    assert ctx.allgather(bytes([rank])) == [bytes([r]) for r in range(n)]
    assert ctx.allgather(bytes([rank]), 5.0) == [bytes([r]) for r in range(n)]
    total = ctx.allreduce(float(rank), "mean")
    assert total.shape == ()
    assert float(total) == (n - 1) / 2
    assert ctx.allgather(rank).tolist() == list(range(n))
    ctx.barrier()
    cube = np.arange(24.0).reshape(2, 3, 4)
    assert ctx.allreduce(cube).shape == cube.shape
    assert ctx.allgather(cube).shape == (2 * n, 3, 4)
    window.put_signal((rank + 1) % n, b"12345678", signal=0, value=1)
    window.wait_signal(0, 1)
    data = bytearray(bytes([rank] * 5))  # any object with the buffer protocol
    ctx.broadcast(data, n - 1)
    assert data == bytes([n - 1] * 5)


EVERY = (reductions, copies, uneven, started, objects, mixed)


def every_case() -> None:
    with hpcomm.init(mpi.world()) as ctx:
        for cases in EVERY:
            cases(ctx)
        ctx.barrier()


@pytest.mark.some(3)
@on_both
@pytest.mark.parametrize("n", [2, 3, 5])
def test_every_call_dtype_op_and_size(n: int) -> None:
    mpi.spawn(n, every_case, timeout=180)


def test_ranks_that_are_threads(transport: dict[str, Any]) -> None:
    def body(ctx: hpcomm.Context) -> None:
        for cases in (copies, uneven, started, objects, mixed):
            cases(ctx)

    run_threads(3, body, **transport)


def test_a_rank_alone(alone: hpcomm.Context) -> None:
    for cases in EVERY:
        cases(alone)


def test_sizes_of_elements() -> None:
    for name in DTYPES:
        assert _core.element_size(_core.ELEMENTS[name]) == dtype_of(name).itemsize, name
    assert set(_core.ELEMENTS) >= set(DTYPES)
    assert _core.element_size(99) == 0


def more_than_2_gib() -> None:
    size = 2**31 + 1
    with hpcomm.init(mpi.world(), timeout=150) as ctx:
        array = np.zeros(size, np.uint8)
        if ctx.rank == 0:
            array[:: 1 << 20] = 3
            array[-1] = 7
        ctx.broadcast(array)
        assert array[-1] == 7
        assert (array[: -1 : 1 << 20] == 3).all()
        ctx.allreduce(array, out=array)
        assert array[-1] == 14
        assert int(np.count_nonzero(array)) == 2049


@pytest.mark.full
@pytest.mark.serial
def test_more_than_2_gib() -> None:
    if _core.memory_available() < 7 << 30:
        pytest.skip("two arrays of 2 GiB and what lies beside them need 7 GiB of free memory")
    mpi.spawn(2, more_than_2_gib, timeout=180)


# ---- calls that do not match -----------------------------------------------------------------------------------------

Made = Callable[[Any], object]  # of a context


def floats(n: int) -> Array:
    return np.ones(n, np.float32)


# The call of ranks 0 and 2, that of rank 1, and words of the error, which all ranks get.
DIFFERENT: dict[str, tuple[Made, Made, tuple[str, ...]]] = {
    "first call": (lambda c: c.reduce(floats(9)), lambda c: c.allgather(floats(9)), ("reduce", "allgather")),
    "call": (lambda c: c.allreduce(floats(9)), lambda c: c.broadcast(floats(9)), ("allreduce", "broadcast")),
    "call and size": (lambda c: c.reduce(floats(9)), lambda c: c.allgather(floats(50_000)), ("reduce", "allgather")),
    "size": (lambda c: c.allreduce(floats(9)), lambda c: c.allreduce(floats(10)), ("9", "10")),
    "large size": (lambda c: c.allreduce(floats(LARGE)), lambda c: c.allreduce(floats(7)), (str(LARGE), "7")),
    "nothing": (lambda c: c.allgather(floats(0)), lambda c: c.allgather(floats(1)), ("0", "1")),
    "dtype": (lambda c: c.allreduce(floats(8)), lambda c: c.allreduce(np.ones(4)), ("float32", "float64")),
    "dtype of one size": (
        lambda c: c.alltoall(np.ones(6, np.int32)),
        lambda c: c.alltoall(floats(6)),
        ("int32", "float32"),
    ),
    "op": (lambda c: c.allreduce(floats(8)), lambda c: c.allreduce(floats(8), "max"), ("sum", "max")),
    "root": (lambda c: c.broadcast(floats(8)), lambda c: c.broadcast(floats(8), 2), ("root 2",)),
    "blocks": (
        lambda c: c.alltoall(floats(6), send_counts=[1, 2, 3], recv_counts=[1 + c.rank] * 3),
        lambda c: c.alltoall(floats(6), send_counts=[2, 2, 2], recv_counts=[3, 2, 3]),
        ("alltoall",),
    ),
    "started": (lambda c: c.allreduce_nb(floats(9)).wait(), lambda c: c.gather(floats(9), 1), ("allreduce", "gather")),
}


def told_by(call: Made, ctx: hpcomm.Context, name: str) -> str:
    """The error of a call; where it needed nothing from other ranks, that of the next one."""
    for make in (call, lambda c: c.allreduce(1.0)):
        try:
            make(ctx)
        except hpcomm.ConfigError as told:
            return str(told)
    raise AssertionError(f"{name}: rank {ctx.rank} got no error")


def different() -> list[str]:
    """Tries all of DIFFERENT, each in a context of its own, and returns what was told."""
    told = []
    with hpcomm.init(mpi.world(), timeout=15) as ctx:
        for name, (usual, other, _) in DIFFERENT.items():
            with ctx.shrink() as fresh:
                if name != "first call":
                    fresh.allreduce(1)
                told.append(told_by(other if ctx.rank == 1 else usual, fresh, name))
                if name != "first call":
                    told_by(lambda c: c.allreduce(1.0), fresh, f"after {name}")
                ctx.barrier()
    return told


@on_both
def test_different_calls_are_named_on_every_rank() -> None:
    for told in mpi.spawn(3, different).values:
        for (name, (_, _, words)), sentence in zip(DIFFERENT.items(), told, strict=True):
            assert "rank 1" in sentence, (name, sentence)
            for word in words:
                assert re.search(rf"\b{word}\b", sentence), (name, word, sentence)


# ---- ranks that die or stop ------------------------------------------------------------------------------------------


def unfinished(ctx: hpcomm.Context, what: str, root: int) -> hpcomm.collective.Work:
    """Starts a call that no rank can finish without the rank root."""
    array = np.ones((ctx.size, 1 << 18), np.float32)
    if what == "allreduce":
        return ctx.allreduce_nb(array)
    if what == "broadcast":
        return ctx.broadcast_nb(array, root)
    if what == "reduce_scatter":
        return ctx.reduce_scatter_nb(array)
    return ctx.alltoall_nb(array)


DEATHS = ("allreduce", "broadcast", "reduce_scatter", "alltoall")


def dies() -> list[int]:
    """In each round the last rank dies in the middle of a call, and the others go on without it. They begin their part
    when it is dead, as else the call may be over before."""
    ctx = hpcomm.init(mpi.world(), timeout=30)
    ctx.allreduce(1)
    for what in DEATHS:
        last = ctx.size - 1
        pid = ctx.peers[last].pid
        if ctx.rank == last:
            for rank in range(last):  # all others have ended the call before: a death may end it on a slow one
                ctx.recv(np.empty(1, np.int8), rank)
            unfinished(ctx, what, last)
            os.kill(os.getpid(), signal.SIGKILL)
        ctx.send(np.zeros(1, np.int8), last)
        assert is_gone_soon(pid)
        with pytest.raises(hpcomm.PeerFailed) as raised:
            unfinished(ctx, what, last).wait()
        assert last in raised.value.ranks, (what, raised.value)
        assert what in str(raised.value), str(raised.value)
        with pytest.raises(hpcomm.HpcommError):
            ctx.allreduce(1.0)
        old, ctx = ctx, ctx.shrink()
        old.close()
        got = int(ctx.allreduce(1))
        assert got == last, (what, got, last, ctx.ranks)
    ctx.close()
    return list(ctx.ranks)


@on_both
def test_a_death_in_the_middle_is_told() -> None:
    n = len(DEATHS) + 1
    ended = mpi.spawn(n, dies, check=False)
    assert ended.codes == [0] + [KILLED] * (n - 1), ended.err
    assert ended.values[0] == [0]


def wait_until_stopped(pid: int) -> None:
    deadline = time.monotonic() + 20
    while Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "T":
        assert time.monotonic() < deadline
        os.sched_yield()


def stopped() -> bool:
    """Rank 1 stops in the middle of a call. The others name it after their timeout, and wait again."""
    ctx = hpcomm.init(mpi.world(), timeout=30)
    window = ctx.window(8, signals=1)
    pid, array = ctx.peers[1].pid, np.ones(1 << 20, np.float32)
    ctx.allreduce(1)
    if ctx.rank != 1:
        wait_until_stopped(pid)
    work = ctx.allreduce_nb(array, out=array)
    if ctx.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    else:
        with pytest.raises(hpcomm.Timeout, match="allreduce") as raised:
            work.wait(timeout=1.0)
        assert [(one.rank, one.state) for one in raised.value.culprits] == [(1, "stopped")], raised.value
    if ctx.rank == 2:
        window.put_signal(0, None, signal=0, value=1)
    if ctx.rank == 0:
        window.wait_signal(0, 1, peer=2)
        os.kill(pid, signal.SIGCONT)
    same(work.wait(), np.full(1 << 20, 3, np.float32))  # a wait that timed out goes on
    ctx.barrier()
    ctx.close()
    return True


@on_both
def test_a_stopped_rank_is_named_and_may_go_on() -> None:
    assert mpi.spawn(3, stopped).values == [True] * 3


@pytest.mark.parametrize("before", [0, 1])
def test_a_rank_that_does_not_come_times_out(before: int) -> None:
    missed = threading.Event()

    def body(ctx: hpcomm.Context) -> None:
        for _ in range(before):
            ctx.allreduce(1)
        if ctx.rank == 1:
            assert missed.wait(20)
            raise Left
        with pytest.raises(hpcomm.Timeout, match="reduce") as raised:
            ctx.reduce(np.ones(5), timeout=0.2)
        assert raised.value.waiting_for == (1,)
        with pytest.raises(hpcomm.ConfigError, match=r"no further collectives|earlier collective"):
            ctx.reduce(np.ones(5))
        ctx.close()
        missed.set()
        raise Left

    run_threads(2, body)


@pytest.mark.parametrize(("before", "size"), [(0, 8), (1, 8), (1, LARGE)])
def test_keyboard_interrupt_ends_a_call(before: int, size: int) -> None:
    mine, other = thread_worlds(2)
    done, seen = threading.Event(), []

    def peer() -> None:
        with hpcomm.init(other) as ctx:
            for _ in range(before):
                ctx.allreduce(1)
            seen.append(done.wait(15))

    thread = threading.Thread(target=peer)
    thread.start()
    try:
        with hpcomm.init(mine) as ctx:
            for _ in range(before):
                ctx.allreduce(1)
            with interrupted(), pytest.raises(KeyboardInterrupt):
                ctx.allreduce(np.ones(size))
            with pytest.raises(hpcomm.ConfigError, match=r"no further collectives .*: allreduce was cut short"):
                ctx.broadcast(np.ones(8))
            assert ctx.peers[1].state == "alive"
    finally:
        done.set()
        thread.join(30)
    assert seen == [True]  # the interrupt came before the peer lost its patience


# ---- what is refused -------------------------------------------------------------------------------------------------


def read_only() -> Array:
    array = np.ones(4, np.float32)
    array.flags.writeable = False
    return array


def wrong() -> Iterator[tuple[Made, str]]:
    """Calls of rank 0 of two, with a part of the error."""
    four, shared = floats(4), np.ones(8, np.float32)
    yield lambda c: c.allreduce(np.ones((4, 4))[:, 1]), r"shape \(4,\) and strides \(32,\), which is not C-contiguous"
    yield lambda c: c.allreduce(four, out=shared[::2]), "out has shape .* not C-contiguous"
    yield lambda c: c.allreduce([1.0, 2.0]), r"array is a list: .*see np\.asarray"
    yield lambda c: c.allreduce(np.array([None, 1])), "dtype object: must be bool, an integer"
    yield lambda c: c.allreduce(np.array(["a"])), "dtype <U1: must be bool, an integer"
    yield lambda c: c.allreduce(np.ones(3, ">f4")), "dtype >f4: must be .* in the machine's order of bytes"
    yield lambda c: c.allreduce(np.ones(3, np.longdouble)), "must be bool, an integer"
    yield lambda c: c.allreduce(four, out=np.ones(4)), r"out is float64 \(4,\): must be float32 \(4,\)"
    yield lambda c: c.allreduce(four, out=floats(5)), r"out is float32 \(5,\): must be float32 \(4,\)"
    yield lambda c: c.allreduce(four, out=read_only()), "out is read-only"
    yield lambda c: c.allreduce(four, out=3.0), "out is 3.0: must be an array"
    yield lambda c: c.allreduce(shared[:4], out=shared[2:6]), "array and out overlap: give another out, or out=array"
    yield lambda c: c.allreduce(four, "average"), "op is 'average': must be one of .*; the name here is 'mean'"
    yield lambda c: c.allreduce(four, "ReduceOp.AVG"), "the name here is 'mean'"
    yield lambda c: c.allreduce(four, np.add), "op is <ufunc 'add'>: must be one of 'sum', 'mean'"
    yield lambda c: c.allreduce(np.ones(4, int), "mean"), "op 'mean' takes no int64: convert to float32"
    yield lambda c: c.allreduce(np.ones(4, complex), "max"), "op 'max' takes no complex128"
    yield lambda c: c.allreduce(four, "xor"), "op 'xor' takes no float32"
    yield lambda c: c.allreduce(four, timeout=-1), "timeout is -1: must be"
    yield lambda c: c.reduce(four, root=2), "reduce: root is 2: must be from 0 to 1"
    yield lambda c: c.broadcast(four, -1), "broadcast: root is -1: must be from 0 to 1"
    yield lambda c: c.broadcast(four, 0.5), "root is 0.5: must be a rank"
    yield lambda c: c.broadcast(read_only(), 1), "broadcast: array is read-only"
    yield lambda c: c.broadcast(3.0, 1), "broadcast: array is a float: must be an array that can be written"
    yield lambda c: c.broadcast(b"abcd", 1), "read-only"
    yield lambda c: c.reduce_scatter(floats(5)), r"shape \(5,\): 2 ranks cannot have equally many rows"
    yield lambda c: c.reduce_scatter(np.float32(5)), "array has no axis to divide"
    yield lambda c: c.reduce_scatter(four, counts=[1, 2]), r"counts is \(1, 2\), with the sum 3: array has 4 rows"
    yield lambda c: c.reduce_scatter(four, counts=[4]), r"counts is \(4,\): must be 2 numbers of rows"
    yield lambda c: c.reduce_scatter(four, counts=[5, -1]), r"counts is \(5, -1\): must be 2 numbers of rows, 0 or more"
    yield lambda c: c.reduce_scatter(four, counts=3), "counts is 3: must be a number of rows for each rank"
    yield lambda c: c.reduce_scatter(shared, out=shared[4:]), "overlap: give another out, or this rank's block of array"
    yield lambda c: c.allgather(four, floats(4)), r"out is float32 \(4,\): must be float32 \(8,\) or \(2, 4\)"
    yield lambda c: c.allgather(four, counts=[3, 4]), r"counts gives rank 0 3 rows: its array has shape \(4,\)"
    yield lambda c: c.allgather(shared[4:], shared), "overlap: give another out, or array as this rank's block of out"
    yield lambda c: c.allgather(b"abc", counts=[1, 2]), "bytes take no out and no counts"
    yield lambda c: c.gather(four, 0, floats(9)), r"must be float32 \(8,\) or \(2, 4\)"
    yield lambda c: c.scatter(), "rank 0, the root, gives no array"
    yield lambda c: c.scatter(None, 1), "rank 0 gives no out: give an array for the block"
    yield lambda c: c.scatter(four, out=floats(3)), r"out is float32 \(3,\): must be float32 \(2,\)"
    yield lambda c: c.alltoall(four, send_counts=[2, 2]), "recv_counts is missing: give both counts"
    yield lambda c: c.alltoall(four, four), "array and out overlap: give another out$"
    yield lambda c: c.alltoall(four, floats(5), send_counts=[1, 3], recv_counts=[1, 3]), r"must be float32 \(4,\)"
    yield lambda c: c.alltoall(four, send_counts=[1, 3], recv_counts=[2, 2]), "differ for this rank itself"
    yield lambda c: c.broadcast_object(1, 7), "broadcast_object: root is 7"
    yield lambda c: c.allreduce_nb(four, "nand"), "op is 'nand'"


@pytest.mark.parametrize("before", [0, 1])
def test_what_is_wrong_is_refused_before_anything_is_sent(before: int) -> None:
    def body(ctx: hpcomm.Context) -> None:
        for _ in range(before):
            ctx.allreduce(1)
        if ctx.rank == 0:
            for call, part in wrong():
                with pytest.raises(hpcomm.InvalidArgument, match=part):
                    call(ctx)
            with pytest.raises(AttributeError):  # pickle's own: a function within this one
                ctx.broadcast_object(body)
        assert ctx.allreduce(1).item() == 2

    run_threads(2, body)


@pytest.mark.parametrize("before", [0, 1])
def test_a_closed_context_makes_no_calls(before: int) -> None:
    ctx = hpcomm.init()
    for _ in range(before):
        ctx.allreduce(1)
    ctx.close()
    for call in (ctx.allreduce, ctx.broadcast_object, ctx.allgather_nb):
        for array in (1.0, floats(3)):
            with pytest.raises(hpcomm.InvalidArgument):
                call(array)


def test_memory_of_a_started_call_is_refused() -> None:
    """Rank 1 starts its call when rank 0 has been refused."""
    refused = threading.Event()

    def body(ctx: hpcomm.Context) -> None:
        array = np.ones(1000, np.float32)
        ctx.allreduce(1)
        if ctx.rank == 1:
            assert refused.wait(20)
        work = ctx.allreduce_nb(array)
        if ctx.rank == 0:
            with pytest.raises(hpcomm.InvalidArgument, match="broadcast: its memory overlaps that of a started allred"):
                ctx.broadcast(array[3:], 1)
            with pytest.raises(hpcomm.InvalidArgument, match="give other arrays"):
                ctx.allreduce_nb(floats(3), out=array[-3:])
            refused.set()
        again = ctx.allreduce_nb(array)  # which both only read
        assert work.wait()[0] == again.wait()[0] == 2
        ctx.broadcast(array, 1)

    run_threads(2, body)


def test_torch_tensors_are_arrays(alone: hpcomm.Context) -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.arange(6.0)
    assert alone.allreduce(tensor, out=tensor) is tensor
    assert alone.broadcast(tensor) is tensor
    assert alone.allgather(tensor).tolist() == tensor.tolist()
