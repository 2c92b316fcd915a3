"""Parameters that travel in 16 bits: the same rounded bits on every worker, and masters that are not rounded."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import on_both, run_threads
from flat import grouped
from numpy.typing import NDArray

import hpcomm
from hpcomm import ASYNC, SGD, Exchange, Momentum, ParameterServer, PlanOptions

F32 = np.float32
SHAPES = {"conv": (3, 5, 2), "fc": (400, 70), "bias": (7,), "scale": ()}
LR = 1 / 512  # whole numbers times this are exact in float32, and a step of it is lost in 16 bits


def values(seed: int) -> dict[str, NDArray[np.float32]]:
    rng = np.random.default_rng(seed)
    return {name: rng.integers(-8, 8, shape).astype(F32) for name, shape in SHAPES.items()}


def initial() -> dict[str, NDArray[np.float32]]:
    return {name: value + F32(3 / 1024) for name, value in values(0).items()}


def grads(rank: int, step: int) -> dict[str, NDArray[np.float32]]:
    return values(1000 * rank + step + 1)


def rounded(values: dict[str, NDArray[np.float32]], codec: str) -> dict[str, Any]:
    if codec == "float16":
        return {name: value.astype(np.float16).astype(F32) for name, value in values.items()}
    found = {}
    for name, value in values.items():
        bits = value.view(np.uint32)
        found[name] = ((bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)).astype(np.uint32).view(F32)
    return found


def trained(workers: tuple[int, ...], steps: int) -> dict[str, NDArray[np.float32]]:
    """By hand, in float32."""
    params = initial()
    for step in range(steps):
        for worker in workers:
            params = {name: value - F32(LR) * grads(worker, step)[name] for name, value in params.items()}
    return params


def assert_bits(ex: Exchange, want: dict[str, Any]) -> None:
    assert list(ex.params) == list(want)
    for name, value in want.items():
        np.testing.assert_array_equal(ex.params[name].view(np.uint32), np.asarray(value).view(np.uint32), err_msg=name)


def pushed_then_pulled(ex: Exchange, grads: dict[str, Any]) -> None:
    for name, grad in grads.items():
        ex.push(name, grad)
    for name in reversed(grads):
        ex.pull(name)


def nonblocking(ex: Exchange, grads: dict[str, Any]) -> None:
    for handle in [ex.push_pull_nb(name, grad) for name, grad in grads.items()]:
        while not handle.test():
            pass


def one_by_one(ex: Exchange, grads: dict[str, Any]) -> None:
    for name, grad in grads.items():
        ex.gradient(name)[...] = grad
        ex.push_pull(name)


WAYS: list[Callable[[Exchange, dict[str, Any]], Any]] = [
    lambda ex, grads: ex.step(grads),
    pushed_then_pulled,
    nonblocking,
    one_by_one,
]


def each_worker(
    n: int, topology: ParameterServer, body: Callable[[hpcomm.Context, Exchange], Any], **options: Any
) -> list[Any]:
    config = {name: options.pop(name) for name in ("transport", "loop_seed") if name in options}

    def rank(context: hpcomm.Context) -> Any:
        with Exchange(context, initial(), topology, **grouped({"rule": SGD(lr=LR), "reduce": "sum", **options})) as ex:
            if context.rank in topology.roles(n)[0]:
                body(context, ex)
            else:
                ex.serve(20)
            return ex.state_dict(), ex.stats()

    return run_threads(n, rank, **config)


@pytest.mark.some(8)
@pytest.mark.parametrize("progress", ["inline", "thread"])
@pytest.mark.parametrize("topology", [ParameterServer("CS"), ParameterServer("NCC")], ids=["CS", "NCC"])
@pytest.mark.parametrize("codec", ["float16", "bfloat16"])
def test_all_workers_have_the_bits_of_a_float32_training(
    codec: str, topology: ParameterServer, progress: str, transport: dict[str, Any]
) -> None:
    workers = topology.roles(3)[0]

    def body(context: hpcomm.Context, ex: Exchange) -> None:
        assert_bits(ex, rounded(initial(), codec))
        for step in range(4):
            WAYS[step](ex, grads(context.rank, step))
            assert_bits(ex, rounded(trained(workers, step + 1), codec))

    shards = each_worker(3, topology, body, codec_out=codec, progress=progress, **transport)
    want = {name: value.reshape(-1) for name, value in trained(workers, 4).items()}
    masters = {name: np.full(value.size, np.nan, F32) for name, value in want.items()}
    for shard, _ in shards:
        at = 0
        for key, offset, count in zip(shard["row_key"], shard["row_offset"], shard["row_count"], strict=True):
            masters[str(shard["keys"][key])][offset : offset + count] = shard["params"][at : at + count]
            at += count
    for name, value in want.items():
        np.testing.assert_array_equal(masters[name], value, err_msg=name)


@pytest.mark.parametrize("codec", ["float16", "bfloat16"])
def test_async(codec: str, transport: dict[str, Any]) -> None:
    def body(context: hpcomm.Context, ex: Exchange) -> None:
        for step in range(3):
            for name, grad in grads(context.rank, step).items():
                ex.push_nb(name, grad).wait()
            context.barrier()
            first = [ex.pull_nb(name) for name in SHAPES]
            for handle in [*[ex.pull_nb(name) for name in SHAPES], *first]:
                handle.wait()
            assert_bits(ex, rounded(trained((0, 1), step + 1), codec))
            context.barrier()

    each_worker(2, ParameterServer("CS"), body, codec_out=codec, consistency=ASYNC, progress="inline", **transport)


@on_both
def test_updates_that_16_bits_would_lose_add_up() -> None:
    def body(context: hpcomm.Context) -> None:
        ones = {"w": np.ones(5000, F32)}
        ex = Exchange(context, ones, rule=SGD(lr=1 / 2048), plan=PlanOptions(codec_out="bfloat16"), progress="inline")
        for _ in range(64):
            ex.step(ones)
        assert (ex.params["w"] == 1 - 64 / 2048).all()
        ex.close()

    run_threads(2, body)


@pytest.mark.parametrize("codec", ["float32", "float16"])
def test_parameters_take_half_the_bytes(codec: str) -> None:
    def body(context: hpcomm.Context, ex: Exchange) -> None:
        for step in range(3):
            ex.step(grads(context.rank, step))

    stats = [
        stats
        for _, stats in each_worker(
            3, ParameterServer("NCC"), body, codec_out=codec, transport="tcp", progress="inline"
        )
    ]
    elements = sum(int(np.prod(shape)) for shape in SHAPES.values())
    assert [one.bytes_written for one in stats] == [3 * 2 * elements * np.dtype(codec).itemsize, 0, 0]


@on_both
@pytest.mark.parametrize("consistency", [hpcomm.BSP, ASYNC], ids=str)
def test_a_checkpoint_goes_on_with_the_same_bits(consistency: hpcomm.Consistency) -> None:
    options: dict[str, Any] = {"rule": Momentum(lr=LR), "codec_out": "bfloat16", "consistency": consistency}
    shards: list[Any] = [None] * 2
    saved: list[Any] = [None] * 2
    want: list[Any] = [None] * 2

    def steps(context: hpcomm.Context, ex: Exchange, first: int, end: int) -> dict[str, Any]:
        """In turns, so that ASYNC repeats."""
        for step in range(first, end):
            for rank in range(2):
                if consistency != ASYNC:
                    ex.step(grads(context.rank, 2 * step + rank))
                elif context.rank == rank:
                    ex.step(grads(rank, step))
                context.barrier()
        for name in SHAPES:
            ex.pull(name)
        context.barrier()
        return {name: value.copy() for name, value in ex.params.items()}

    def before(context: hpcomm.Context) -> None:
        ex = Exchange(context, initial(), progress="inline", **grouped(options))
        saved[context.rank] = steps(context, ex, 0, 2)
        shards[context.rank] = ex.state_dict()
        context.barrier()
        want[context.rank] = steps(context, ex, 2, 4)
        ex.close()

    def after(context: hpcomm.Context) -> None:
        ex = Exchange(context, values(9), progress="inline", chunk_bytes=4096, **grouped(options))
        steps(context, ex, 7, 8)  # to be forgotten
        ex.load_state_dict(shards)
        assert_bits(ex, saved[context.rank])
        steps(context, ex, 2, 4)
        assert_bits(ex, want[context.rank])
        ex.close()

    run_threads(2, before)
    run_threads(2, after)
    assert all((want[0][name] == want[1][name]).all() for name in SHAPES)
