"""Windows: what is put is what the peer sees, signals follow data, and what is refused."""

import array
import gc
import threading
from typing import Any

import mpi
import numpy as np
import pytest
from conftest import Left, on_both, run_threads
from hypothesis import given, settings
from hypothesis import strategies as st

import hpcomm

# ---- data ----------------------------------------------------------------------------------------------------------


def test_array_has_the_shape_and_dtype_asked_for(alone: hpcomm.Context) -> None:
    window = alone.window((3, 5), "float64", signals=2)
    assert window.array.shape == (3, 5)
    assert window.array.dtype == "float64"
    assert (window.nbytes, window.signals) == (120, 2)
    assert not window.array.any()
    assert window.array.flags.writeable
    plain = alone.window(7)
    assert plain.array.shape == (7,)
    assert plain.array.dtype == "uint8"
    assert plain.nbytes == 7
    assert alone.window(4, np.int16).array.shape == (4,)


@pytest.mark.parametrize("shape", [0, (0,), (4, 0, 2)])
def test_empty_windows(alone: hpcomm.Context, shape: Any) -> None:
    window = alone.window(shape, "float32", signals=1)
    assert window.array.size == 0
    window.put_signal(0, b"", signal=0, value=1)
    assert window.test_signal(0, 1)


def test_everybody_puts_to_everybody(transport: dict[str, Any]) -> None:
    """Each rank owns a row of every window; the signal of a row comes after its data."""
    n, rounds, width = 3, 5, 1000

    def body(context: hpcomm.Context) -> None:
        window = context.window((n, width), "int64", signals=n)
        row = width * 8 * context.rank
        for value in range(1, rounds + 1):
            for peer in range(n):
                data = np.arange(width) * value + context.rank  # a temporary: the window keeps what is read late
                window.put_signal(peer, data, row, signal=context.rank, value=value)
            for peer in range(n):
                assert window.wait_signal(peer, value, peer=peer) >= value
                if window.wait_signal(peer, value) == value:
                    np.testing.assert_array_equal(window.array[peer], np.arange(width) * value + peer)
            context.barrier()

    run_threads(n, body, **transport)


def test_late_sources_stay_alive_until_they_are_read() -> None:
    """Thousands of temporaries that transport loop reads as late as it may, on two lanes, and never flushed by hand."""

    def body(context: hpcomm.Context) -> int:
        window = context.window((3000,), "uint64", signals=2)
        lane = context.lane()
        for i in range(1500):
            window.put(1 - context.rank, np.array([i + 1], "uint64"), 8 * i)
            window.put(1 - context.rank, np.array([i + 1], "uint64"), 8 * (1500 + i), lane=lane)
        window.put_signal(1 - context.rank, None, signal=0, value=1)
        window.put_signal(1 - context.rank, None, signal=1, value=1, lane=lane)
        window.wait_signal(0, 1)
        window.wait_signal(1, 1)
        return int(window.array.sum())

    assert run_threads(2, body, transport="loop", loop_seed=3) == [1500 * 1501] * 2


def test_large_sources_stay_alive_until_the_wire_has_them() -> None:
    """Temporaries that no socket buffer holds, for a peer that takes its time."""
    rows, width = 6, 1 << 20

    def body(context: hpcomm.Context) -> list[tuple[int, int]]:
        window = context.window((rows, width), "int64", signals=1)
        if context.rank == 0:
            for row in range(rows):
                window.put(1, np.full(width, row + 1), row * width * 8)
            window.put_signal(1, None, signal=0, value=1)
        else:
            window.wait_signal(0, 1)
        context.barrier()
        return [(int(row.min()), int(row.max())) for row in window.array]

    assert run_threads(2, body, transport="tcp")[1] == [(row + 1, row + 1) for row in range(rows)]


def test_late_sources_of_a_rank_alone() -> None:
    with hpcomm.init(transport="loop", loop_seed=5) as context:
        window = context.window((1000,), "uint64")
        for i in range(1000):
            window.put(0, np.array([i], "uint64"), 8 * i)
        window.flush()
        assert list(window.array) == list(range(1000))


def test_put_that_is_never_flushed_may_be_dropped() -> None:
    def body(context: hpcomm.Context) -> None:
        window = context.window(1 << 16)
        window.put(1 - context.rank, np.ones(1 << 13))
        del window
        gc.collect()

    run_threads(2, body, transport="loop", loop_seed=11)


def test_flush_is_remote_completion(transport: dict[str, Any]) -> None:
    def body(context: hpcomm.Context) -> None:
        window = context.window(64)
        source = bytearray(b"a" * 64)
        window.put(1 - context.rank, source)
        window.flush(1 - context.rank)
        source[:] = b"b" * 64  # its owner's again
        context.barrier()
        assert bytes(window.array) == b"a" * 64
        window.flush()

    run_threads(2, body, **transport)


def test_sources_of_every_kind(alone: hpcomm.Context) -> None:
    window = alone.window(16)
    read_only = np.arange(2.0)
    read_only.flags.writeable = False
    sources: list[Any] = [
        b"0123456789abcdef",
        bytearray(b"fedcba9876543210"),
        memoryview(b"xx0123456789abcdefxx")[2:18],
        array.array("i", [1, 2, 3, 4]),
        np.arange(16, dtype=np.uint8),
        np.arange(4, dtype=np.float32).reshape(2, 2),
        read_only,
        np.float64(2.5),
        np.array(7, np.int16),
        np.zeros((3, 0)),
        np.ma.masked_array([1.0, 2.0]),
        Exported(np.array([3, 4], np.int64)),
    ]
    for source in sources:
        want = np.asarray(getattr(source, "of", source)).tobytes() if not isinstance(source, bytes) else source
        window.array[:] = 255
        window.put(0, source)
        assert bytes(window.array) == want + b"\xff" * (16 - len(want))


class Exported:
    """What has DLPack and no buffer: a tensor of another library."""

    def __init__(self, of: np.ndarray[Any, Any]) -> None:
        self.of = of

    def __dlpack__(self, **options: Any) -> Any:
        return self.of.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.of.__dlpack_device__()


class OnAnotherDevice(Exported):
    def __dlpack__(self, **options: Any) -> Any:
        raise BufferError("the memory is a GPU's")


def test_peer_view(transport: dict[str, Any]) -> None:
    def body(context: hpcomm.Context) -> None:
        window = context.window((4,), "float32")
        window.array[:] = context.rank
        context.barrier()
        view = window.peer_view(1 - context.rank)
        if transport["transport"] == "shm":
            assert view is not None
            assert list(view) == [1 - context.rank] * 4
            assert view.dtype == np.float32
        else:
            assert view is None
        context.barrier()
        own = window.peer_view(context.rank)
        assert own is not None
        own[0] = 9
        assert window.array[0] == 9
        context.barrier()

    run_threads(2, body, **transport)


def test_arrays_outlive_window_and_context() -> None:
    context = hpcomm.init()
    window = context.window((1 << 16,), "float64")
    queue = context.receive_queue([], [], (1 << 16,), "float64", buffers=2)
    arrays = [window.array, window.array[1:].reshape(-1, 5)[2], window.peer_view(0), *queue.buffers]
    context.close()
    del context, window, queue
    gc.collect()
    for array_ in arrays:
        assert array_ is not None
        array_[...] = 1.5
        assert array_.sum() == 1.5 * array_.size


def test_memory_is_given_back_with_the_last_array(alone: hpcomm.Context) -> None:
    nbytes = 11 << 20  # no other test's window is as large, and what they leave may be freed meanwhile

    def mapped() -> int:
        gc.collect()
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            spans = [line.split()[0].split("-") for line in maps if "memfd:hpcomm" in line]
        return sum(nbytes <= int(end, 16) - int(start, 16) < nbytes + (4 << 20) for start, end in spans)

    before = mapped()
    window = alone.window(nbytes)
    part = window.array[100:200]
    del window
    assert mapped() > before
    del part
    assert mapped() == before


@settings(max_examples=60)
@given(data=st.data())
def test_put_changes_its_bytes_and_no_others(data: st.DataObject) -> None:
    size = data.draw(st.integers(0, 200))
    offset = data.draw(st.integers(0, size))
    source = data.draw(st.binary(max_size=size - offset))
    with hpcomm.init() as context:
        window = context.window(size)
        window.array[:] = 170
        window.put(0, source, offset)
        window.flush()
        assert bytes(window.array) == b"\xaa" * offset + source + b"\xaa" * (size - offset - len(source))


# ---- signals -------------------------------------------------------------------------------------------------------


def test_signal_values(alone: hpcomm.Context) -> None:
    window = alone.window(8, signals=3)
    assert not window.test_signal(2, 1)
    assert window.test_signal(2, 0)
    window.put_signal(0, None, signal=2, value=2**64 - 1)
    assert window.wait_signal(2, 5) == 2**64 - 1
    assert not window.test_signal(1, 1)
    assert window.wait_signal(1, 0) == 0


@pytest.mark.parametrize(("timeout", "told"), [(0, "0 s"), (0.02, "0.02 s"), (0.15, "0.15 s")])
def test_wait_tells_the_whole_timeout(alone: hpcomm.Context, timeout: float, told: str) -> None:
    window = alone.window(8, signals=1)
    with pytest.raises(hpcomm.Timeout, match=f"wait_signal: nothing came from rank 0 in {told}") as raised:
        window.wait_signal(0, 1, timeout)
    assert (raised.value.op, raised.value.waiting_for) == ("wait_signal", (0,))


def test_default_timeout_is_the_contexts() -> None:
    with hpcomm.init(timeout=0.03) as context:
        window = context.window(8, signals=1)
        with pytest.raises(hpcomm.Timeout, match=r"in 0.03 s"):
            window.wait_signal(0, 1)


def test_threads_wait_for_signals_at_once(alone: hpcomm.Context) -> None:
    """Each gets the value of its own word."""
    window = alone.window(8, signals=8)
    got: dict[int, int] = {}

    def wait(signal: int) -> None:
        for value in range(1, 30):
            got[signal] = window.wait_signal(signal, 100 * signal + value, timeout=20)
            assert got[signal] >= 100 * signal + value

    threads = [threading.Thread(target=wait, args=(signal,)) for signal in range(8)]
    for thread in threads:
        thread.start()
    for value in range(1, 30):
        for signal in range(8):
            window.put_signal(0, None, signal=signal, value=100 * signal + value)
    for thread in threads:
        thread.join(30)
    assert got == {signal: 100 * signal + 29 for signal in range(8)}


# ---- what is refused -----------------------------------------------------------------------------------------------

REFUSED = {
    "peer too large": (lambda w: w.put(1, b"x"), r"peer 1 .* 0 to 0"),
    "peer negative": (lambda w: w.put(-1, b"x"), r"peer -1 .* 0 to 0"),
    "peer no C int": (lambda w: w.put(2**31, b"x"), r"peer is 2147483648: must be from 0 to 0"),
    "offset negative": (lambda w: w.put(0, b"x", -8), r"offset is -8: must be from 0 to 32"),
    "offset at the end": (lambda w: w.put(0, b"x", 32), r"1 bytes at offset 32 .* 32 bytes"),
    "offset no C size": (lambda w: w.put(0, b"x", 2**64), r"offset is 18446744073709551616"),
    "too long": (lambda w: w.put(0, bytes(33)), r"33 bytes at offset 0 .* 32 bytes"),
    "too long at offset": (lambda w: w.put(0, np.zeros(4), 8), r"32 bytes at offset 8"),
    "signal too large": (lambda w: w.put_signal(0, b"", signal=2, value=1), r"signal 2 .* has 2"),
    "signal negative": (lambda w: w.put_signal(0, b"", signal=-1, value=1), r"signal"),
    "value negative": (lambda w: w.put_signal(0, b"", signal=0, value=-1), r"value is -1"),
    "value too large": (lambda w: w.put_signal(0, b"", signal=0, value=2**64), r"value is 18446744073709551616"),
    "imm too large": (lambda w: w.put_notify(0, b"", imm=2**32), r"imm is 4294967296: must be from 0 to 4294967295"),
    "wait for no signal": (lambda w: w.wait_signal(2, 1), r"signal 2"),
    "wait for no rank": (lambda w: w.wait_signal(0, 1, peer=5), r"peer 5"),
    "wait negative": (lambda w: w.wait_signal(0, -1), r"at_least is -1"),
    "timeout negative": (lambda w: w.wait_signal(0, 1, -0.5), r"timeout is -0.5"),
    "timeout no number": (lambda w: w.flush(timeout=float("nan")), r"timeout is nan"),
    "test no signal": (lambda w: w.test_signal(2, 1), r"signal 2"),
    "flush no rank": (lambda w: w.flush(3), r"peer 3"),
    "view of no rank": (lambda w: w.peer_view(1), r"peer is 1: must be from 0 to 0"),
    "columns": (lambda w: w.put(0, np.zeros((2, 2))[:, 0]), r"shape \(2,\) and strides \(16,\) is not C-contiguous"),
    "Fortran order": (lambda w: w.put(0, np.zeros((2, 2)).T), r"not C-contiguous"),
    "reversed": (lambda w: w.put(0, np.zeros(3)[::-1]), r"not C-contiguous"),
    "strided memoryview": (lambda w: w.put(0, memoryview(b"abcdef")[::2]), r"must be C-contiguous"),
    "objects": (lambda w: w.put(0, np.array([None, 1])), r"dtype object"),
    "fields that are objects": (lambda w: w.put(0, np.zeros(1, [("a", "O")])), r"Python objects"),
    "another dtype": (lambda w: w.put(0, np.zeros(2, np.float32)), r"src is float32, the window float64"),
    "text": (lambda w: w.put(0, "abc"), r"a str has neither"),
    "nothing": (lambda w: w.put(0, None), r"a NoneType has neither"),
    "another device": (
        lambda w: w.put(0, OnAnotherDevice(np.zeros(2))),
        r"cannot be read through DLPack: the memory is a GPU's",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(alone: hpcomm.Context, case: str) -> None:
    call, told = REFUSED[case]
    window = alone.window((4,), "float64", signals=2)
    with pytest.raises(hpcomm.InvalidArgument, match=told) as raised:
        call(window)  # type: ignore[no-untyped-call]
    assert isinstance(raised.value, ValueError)
    assert not window.array.any()


def test_array_that_was_accepted_is_looked_at_again(alone: hpcomm.Context) -> None:
    """The window knows small arrays again; what may have changed meanwhile is still checked at every put."""
    window = alone.window(64)
    source = np.zeros((4, 2), np.float32)
    window.put(0, source)
    source.resize((40, 2), refcheck=False)
    source[:] = 1
    with pytest.raises(hpcomm.InvalidArgument, match="320 bytes"):
        window.put(0, source)
    source.resize((2, 2), refcheck=False)
    window.put(0, source)
    assert window.array.view(np.float32).sum() == 4


@pytest.mark.parametrize("wrong", [1.5, "1", None, (1, 2)])
def test_number_of_another_type_is_a_type_error(alone: hpcomm.Context, wrong: Any) -> None:
    window = alone.window(8, signals=1)
    for call in (
        lambda: window.put(wrong, b"x"),
        lambda: window.put(0, b"x", wrong),
        lambda: window.put_signal(0, b"x", signal=wrong, value=1),
        lambda: window.wait_signal(0, wrong),
    ):
        with pytest.raises(TypeError):
            call()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((-1,), "negative"),
        (((2, -3), "float32"), "negative"),
        (("x",), "give a dtype"),
        (((2, 2),), "give a dtype"),
        ((1.5, "float32"), "must be an int"),
        ((4, "object"), "plain bytes"),
        ((4, "no such"), "dtype is 'no such'"),
        ((2**62, "float64"), "bytes"),
        ((8, "V0"), "plain bytes"),
    ],
)
def test_windows_that_cannot_be(alone: hpcomm.Context, arguments: Any, told: str) -> None:
    with pytest.raises(hpcomm.InvalidArgument, match=told):
        alone.window(*arguments)
    alone.barrier()


@pytest.mark.parametrize("signals", [-1, 2**31, 1.5])
def test_signals_that_cannot_be(alone: hpcomm.Context, signals: Any) -> None:
    with pytest.raises(hpcomm.InvalidArgument, match="signals"):
        alone.window(8, signals=signals)


def test_too_little_memory_is_told_at_creation(alone: hpcomm.Context) -> None:
    with pytest.raises(hpcomm.OutOfMemory, match=str(2**50)) as raised:
        alone.window(2**50)
    assert isinstance(raised.value, MemoryError)
    alone.window(8).put(0, b"still")


@on_both
@pytest.mark.parametrize(
    ("wants", "told"),
    [
        (((4,), "float32", 1), ("float32", "int32")),
        (((8,), "int32", 1), ("32", "16")),
        (((2, 2), "int32", 1), (r"(2, 2)", r"(4,)")),
        (((4,), "int32", 2), ("2", "1")),
    ],
    ids=["dtype", "size", "shape", "signals"],
)
def test_ranks_that_disagree_are_all_told_both_values(wants: Any, told: tuple[str, str]) -> None:
    def body(context: hpcomm.Context) -> None:
        shape, dtype, signals = wants if context.rank == 1 else ((4,), "int32", 1)
        with pytest.raises(hpcomm.ConfigError) as raised:
            context.window(shape, dtype, signals=signals)
        assert all(value in str(raised.value) for value in told)
        context.close()
        raise Left

    run_threads(2, body)


integers = st.one_of(st.integers(-3, 40), st.integers(-(2**70), 2**70), st.sampled_from([2**31, 2**32, 2**63, 2**64]))


@settings(max_examples=150)
@given(peer=integers, offset=integers, nbytes=st.integers(0, 40), signal=integers, value=integers)
def test_no_argument_writes_out_of_bounds(peer: int, offset: int, nbytes: int, signal: int, value: int) -> None:
    """A put is done when everything is in range, else refused and nothing is written."""
    window = bounded()
    window.array[:] = 0
    fits = peer == 0 and 0 <= offset <= 32 and offset + nbytes <= 32 and 0 <= signal < 2 and 0 <= value < 2**64
    try:
        window.put_signal(peer, b"\1" * nbytes, offset, signal=signal, value=value)
    except hpcomm.InvalidArgument:
        assert not fits
        assert not window.array.any()
    else:
        assert fits
        assert window.array.sum() == nbytes


def bounded() -> hpcomm.Window:
    if not _bounded:
        _bounded.append(hpcomm.init().window(32, signals=2))
    return _bounded[0]


_bounded: list[hpcomm.Window] = []


# ---- processes -----------------------------------------------------------------------------------------------------


def pass_on(rounds: int) -> list[float]:
    """A token goes round the ring, and each rank adds to what it carries."""
    context = hpcomm.init(mpi.world())
    window = context.window((1024,), "float64", signals=1)
    right = (context.rank + 1) % context.size
    sums = []
    for value in range(1, rounds + 1):
        if context.rank > 0 or value > 1:
            window.wait_signal(0, value - (context.rank == 0))
        sums.append(float(window.array[-1]))  # before it may come round again
        window.put_signal(right, window.array + 1, signal=0, value=value)
    context.barrier()
    view = window.peer_view(right)
    if context.config.transport == "shm":
        assert view is not None
        sums.append(float(view[0]))
    else:
        assert view is None
    context.barrier()
    context.close()
    return sums


@pytest.mark.full
def test_token_goes_round_the_ranks_of_mpi(ranks_by: str) -> None:
    values = mpi.run(4, pass_on, 50)
    for rank, sums in enumerate(values):
        assert sums[:50] == [float(rank + 4 * value) for value in range(50)]
        assert sums[50:] == ([197.0 + rank] if ranks_by == "shm" else [])


def no_mpi_call() -> int:
    """Counts what mpi4py is asked after init: nothing."""
    from mpi4py import MPI  # noqa: PLC0415

    context = hpcomm.init(MPI.COMM_WORLD)
    MPI.Finalize()  # any call from here on ends the process
    window = context.window((1 << 18,), "float32", signals=2)
    queue = context.receive_queue([1 - context.rank], [1 - context.rank], 8)
    queue.send(1 - context.rank, np.zeros(8, np.float32))
    queue.reduce(np.zeros(8, np.float32))
    window.put_signal(1 - context.rank, np.ones(1 << 18, np.float32), signal=1, value=1)
    window.wait_signal(1, 1)
    window.flush()
    context.barrier()
    context.close()
    return int(window.array.sum())


@pytest.mark.some(1)
@on_both
def test_no_mpi_call_after_init() -> None:
    assert mpi.run(2, no_mpi_call) == [1 << 18] * 2
