"""The short way of collectives: plain calls take it, all others take the longer way, which writes the errors.

The values that calls give are tested in test_collectives.py, whose calls take both ways."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from conftest import run_threads
from test_collectives import DTYPES, OPS, SIZES, dtype_of, inputs

import hpcomm
from hpcomm import _core

Made = Callable[[hpcomm.Context], object]


class Spy:
    """Records what the short way answers: True for each call that it made, False for each that it left."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._all: dict[int, list[bool]] = {}
        make = _core.quick_calls

        def spied(*args: Any) -> Any:
            quick, *others = make(*args)

            def asked(*args: Any) -> bool:
                made = quick(*args)
                self._all.setdefault(threading.get_ident(), []).append(made)
                return made

            return asked, *others

        monkeypatch.setattr(_core, "quick_calls", spied)

    def took(self, call: Callable[[], object]) -> list[bool]:
        """Returns the answers during a call, on this thread."""
        mine = self._all.setdefault(threading.get_ident(), [])
        mine.clear()
        call()
        return list(mine)


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> Spy:
    return Spy(monkeypatch)


def plain(ctx: hpcomm.Context, name: str, size: int) -> Iterator[tuple[str, Made]]:
    """Every call that is plainly right; arrays have rows of `size` elements."""
    n, root = ctx.size, 1
    block, blocks = np.zeros((2, size), dtype_of(name)), np.zeros((2 * n, size), dtype_of(name))
    out, outs = np.zeros_like(block), np.zeros_like(blocks)
    for op in OPS[name]:
        yield f"allreduce {op}", lambda c, op=op: c.allreduce(block, op, out)  # type: ignore[misc]
        yield f"allreduce in place {op}", lambda c, op=op: c.allreduce(out, op, out=out)  # type: ignore[misc]
        yield f"reduce {op}", lambda c, op=op: c.reduce(block, op, root, out)  # type: ignore[misc]
        yield f"reduce_scatter {op}", lambda c, op=op: c.reduce_scatter(blocks, op, out)  # type: ignore[misc]
    yield "broadcast", lambda c: c.broadcast(out, root)
    yield "allgather", lambda c: c.allgather(block, outs)
    yield "allgather by rows", lambda c: c.allgather(block, outs.reshape(n, 2, size))
    yield "gather", lambda c: c.gather(block, root, outs if c.rank == root else None)
    yield "scatter", lambda c: c.scatter(blocks if c.rank == root else None, root, out)
    yield "alltoall", lambda c: c.alltoall(blocks, outs)
    yield "allreduce without out", lambda c: c.allreduce(block)
    yield "allreduce of no axes", lambda c: c.allreduce(np.array(1, dtype_of(name)))
    yield "reduce without out", lambda c: c.reduce(block, root=root)
    yield "reduce_scatter without out", lambda c: c.reduce_scatter(blocks)
    yield "allgather without out", lambda c: c.allgather(block)
    yield "allgather of no axes", lambda c: c.allgather(np.array(1, dtype_of(name)), np.zeros(n, dtype_of(name)))
    yield "gather without out", lambda c: c.gather(block, root)
    yield "alltoall without out", lambda c: c.alltoall(blocks)


def test_plain_calls_take_the_short_way(spy: Spy) -> None:
    def body(ctx: hpcomm.Context) -> None:
        ctx.allreduce(1)
        for name in DTYPES:
            for size in (0, 1, 7, 9000):
                for what, call in plain(ctx, name, size):
                    took = spy.took(lambda call=call: call(ctx))  # type: ignore[misc]
                    assert took == [name != "bfloat16"], (what, name, size)  # NumPy exports no buffers of bfloat16

    run_threads(2, body)


def test_a_float_takes_the_short_way(spy: Spy, alone: hpcomm.Context) -> None:
    alone.allreduce(1)
    assert spy.took(lambda: alone.allreduce(2.5)) == [True]
    assert float(alone.allreduce(2.5)) == 2.5


def test_an_op_is_found_by_its_letters(spy: Spy, alone: hpcomm.Context) -> None:
    op = "".join(["m", "ax"])  # equal to "max", another object
    assert spy.took(lambda: alone.allreduce(np.ones(3), op)) == [True]


def test_both_ways_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def body(ctx: hpcomm.Context) -> list[bytes]:
        ctx.allreduce(1)
        found = []
        for name in DTYPES:
            for size in SIZES:
                mine = inputs(ctx.size, 6 * size, name, 4, real=True)[ctx.rank]
                for op in OPS[name]:
                    found += [ctx.allreduce(mine, op), ctx.reduce_scatter(mine, op), ctx.reduce(mine, op, 1)]
                found += [ctx.allgather(mine), ctx.gather(mine, 1), ctx.alltoall(mine)]
                found += [ctx.broadcast(mine.copy(), 1), ctx.scatter(mine, 1, np.empty_like(mine[: 2 * size]))]
        return [b"" if array is None else array.tobytes() for array in found]

    short = run_threads(3, body)
    monkeypatch.setattr(_core, "quick_calls", lambda *_: (lambda *_: False,) * 3)
    assert run_threads(3, body) == short


class Sub(np.ndarray[Any, Any]):
    pass


def doubtful() -> Iterator[tuple[str, Made]]:
    """Calls of a rank alone that are right, and are not plainly so."""
    four = np.ones(4)
    shifted = np.zeros(33, np.uint8)[1:].view(np.float64)
    yield "a number", lambda c: c.allreduce(3)
    yield "an object with a buffer", lambda c: c.broadcast(bytearray(4))
    yield "a subclass", lambda c: c.allreduce(four.view(Sub), out=four.view(Sub))
    yield "a subclass as out", lambda c: c.allreduce(four, out=np.ones(4).view(Sub))
    yield "an address that is no multiple of the elements' size", lambda c: c.allreduce(shifted, out=shifted)
    yield "a root that is no int", lambda c: c.broadcast(four, np.int64(0))
    yield "counts", lambda c: c.allgather(four, counts=[4])
    yield "a scatter without out", lambda c: c.scatter(four)


def test_doubtful_calls_take_the_longer_way(spy: Spy, alone: hpcomm.Context) -> None:
    assert spy.took(lambda: alone.allreduce(np.ones(3))) == [True]
    for what, call in doubtful():
        assert True not in spy.took(lambda call=call: call(alone)), what  # type: ignore[misc]


def impossible() -> Iterator[tuple[str, Made]]:
    four, read_only = np.ones(4), np.ones(4)
    read_only.flags.writeable = False
    yield "out is read-only", lambda c: c.allreduce(four, out=read_only)
    yield "array is read-only", lambda c: c.allreduce(read_only, out=read_only)
    yield "must be float64 (4,)", lambda c: c.allreduce(four, out=np.ones(4, np.float32))
    yield "must be float64 (4,)", lambda c: c.allreduce(four, out=np.ones((2, 2)))
    yield "must be float64 (4,)", lambda c: c.allreduce(four, out=np.ones(5))
    yield "must be float64 (4,)", lambda c: c.reduce(four, out=np.ones((4, 1)))
    yield "must be float64 (4,)", lambda c: c.alltoall(four, np.ones(3))
    yield "must be float64 (4,) or (1, 4)", lambda c: c.allgather(four, np.ones((4, 1)))
    yield "must be float64 (4,) or (1, 4)", lambda c: c.gather(four, 0, np.ones((2, 4)))
    yield "must be float64 (4,)", lambda c: c.reduce_scatter(four, out=np.ones((1, 4)))
    yield "must be float64 (4,)", lambda c: c.scatter(four, out=np.ones(3))
    yield "overlap", lambda c: c.allreduce(four[:3], out=four[1:])
    yield "overlap", lambda c: c.alltoall(four, four)
    yield "not C-contiguous", lambda c: c.allreduce(np.ones((2, 3)).T, out=np.ones((3, 2)))
    yield "not C-contiguous", lambda c: c.allreduce(np.ones((2, 3)).T)
    yield "no axis", lambda c: c.alltoall(np.array(1.0), np.array(2.0))
    yield "dtype >f8", lambda c: c.allreduce(four.astype(">f8"), out=four.astype(">f8"))
    yield "dtype timedelta64", lambda c: c.broadcast(np.zeros(3, "m8[s]"))
    yield "dtype object", lambda c: c.allreduce(np.array([None]))
    yield "takes no float64", lambda c: c.allreduce(four, "and", four)
    yield "op is ['sum']", lambda c: c.allreduce(four, ["sum"], four)  # type: ignore[arg-type]
    yield "root is 1", lambda c: c.broadcast(four, 1)
    yield "root is -1", lambda c: c.reduce(four, "sum", -1, four)
    yield "root is 4294967296", lambda c: c.broadcast(four, 2**32)
    yield "timeout is -2", lambda c: c.allreduce(four, out=four, timeout=-2)
    yield "timeout is 'x'", lambda c: c.allreduce(four, out=four, timeout="x")  # type: ignore[arg-type]


def test_errors_are_those_of_the_longer_way(alone: hpcomm.Context) -> None:
    alone.allreduce(1)
    for part, call in impossible():
        with pytest.raises(hpcomm.InvalidArgument) as raised:
            call(alone)
        assert part in str(raised.value), (part, str(raised.value))
    assert alone.allreduce(np.ones(4))[0] == 1  # nothing was sent


def test_a_started_call_is_looked_at_first(spy: Spy) -> None:
    """While a started call is not over, others take the longer way, which compares the memory of the two."""
    seen = threading.Barrier(2)

    def body(ctx: hpcomm.Context) -> None:
        ctx.allreduce(1)
        array, other = np.ones(1000), np.ones(1000)
        if ctx.rank == 1:
            seen.wait(20)
        work = ctx.allreduce_nb(array, out=array)
        if ctx.rank == 0:
            with pytest.raises(hpcomm.InvalidArgument, match="allreduce: its memory overlaps that of a started allred"):
                ctx.allreduce(array, out=array)
            seen.wait(20)
            assert spy.took(lambda: ctx.allreduce(other, out=other)) == [False]
        else:
            ctx.allreduce(other, out=other)
        assert work.wait() is array
        assert array[0] == other[0] == 2
        ctx.allreduce(other)
        assert spy.took(lambda: ctx.allreduce(other)) == [True]

    run_threads(2, body)


def test_a_wait_lets_other_threads_run() -> None:
    """Ranks that are threads of one process would wait for each other for ever otherwise."""

    def body(ctx: hpcomm.Context) -> None:
        ctx.allreduce(1)
        for size in (1, 200_000):
            array = np.full(size, ctx.rank + 1.0)
            for _ in range(20):
                ctx.allreduce(array, "max", out=array)
            assert array[0] == ctx.size

    run_threads(4, body)


def test_a_long_wait_names_the_ranks_that_hold_it_up() -> None:
    """Its slices are one wait: the error has the whole time."""
    missed = threading.Event()

    def body(ctx: hpcomm.Context) -> None:
        ctx.allreduce(1)
        if ctx.rank == 1:
            assert missed.wait(20)
            raise hpcomm.NotSupported("it has not come")
        with pytest.raises(hpcomm.Timeout, match=r"allreduce: .*0\.3") as raised:
            ctx.allreduce(np.ones(3), timeout=0.35)
        assert raised.value.waiting_for == (1,)
        assert [one.rank for one in raised.value.culprits] == [1]
        with pytest.raises(hpcomm.ConfigError):
            ctx.allreduce(np.ones(3))
        missed.set()

    with pytest.raises(hpcomm.NotSupported):
        run_threads(2, body)
