"""Exchanges: push and pull over every transport and placement, where gradients and parameters lie, what is refused."""

import array
import gc
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import mpi
import numpy as np
import pytest
from conftest import on_both, run_threads
from flat import grouped
from hypothesis import given, settings
from hypothesis import strategies as st
from test_window import Exported

import hpcomm
from hpcomm import ASYNC, BSP, SGD, Average, Exchange, InvalidArgument, ParameterServer, PlanOptions, _core
from hpcomm.exchange import calls
from hpcomm.topology import Request

F32 = np.float32
SHAPES = {"conv": (3, 5, 2), "fc": (40, 70), "bias": (7,), "scale": ()}
PLACEMENTS = {
    "CC": ParameterServer("CC"),
    "CC on 1": ParameterServer("CC", servers=[1]),
    "CS": ParameterServer("CS"),
    "CS on 2": ParameterServer("CS", servers=2),
    "NCC": ParameterServer("NCC"),
    "NCS": ParameterServer("NCS", servers=[0, 2]),
}


def values(seed: int = 0, shapes: Mapping[str, tuple[int, ...]] | None = None) -> dict[str, Any]:
    """Whole numbers, so that sums are exact in whatever order."""
    rng = np.random.default_rng(seed)
    return {name: rng.integers(-8, 8, shape).astype(F32) for name, shape in (shapes or SHAPES).items()}


def grads(rank: int, step: int, shapes: Mapping[str, tuple[int, ...]] | None = None) -> dict[str, Any]:
    return values(1000 * rank + step + 1, shapes)


def works(context: hpcomm.Context, topology: ParameterServer) -> bool:
    """Whether this rank is a worker; one that is not serves until the others have closed."""
    return context.rank in topology.roles(context.size)[0]


def each_rank(n: int, body: Callable[[hpcomm.Context, Exchange], Any], **options: Any) -> list[Any]:
    """run_threads with an exchange, which servers serve and which every rank closes."""
    config = {name: options.pop(name) for name in ("transport", "loop_seed", "timeout") if name in options}
    topology = options.get("topology", ParameterServer())
    shapes = options.pop("shapes", SHAPES)

    def rank(context: hpcomm.Context) -> Any:
        with Exchange(
            context, values(shapes=shapes), **grouped({"rule": SGD(lr=1), "progress": "inline", **options})
        ) as ex:
            if works(context, topology):
                return body(context, ex)
            ex.serve(20)
            return None

    return run_threads(n, rank, **config)


def assert_same(have: Any, want: Any) -> None:
    assert list(have) == list(want)
    for name, value in want.items():
        np.testing.assert_array_equal(have[name], value, err_msg=name)


# ---- bulk synchronous ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("progress", ["inline", "thread"])
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_every_placement_sums(placement: str, progress: Any, transport: dict[str, Any]) -> None:
    topology = PLACEMENTS[placement]
    workers = topology.roles(3)[0]

    def body(context: hpcomm.Context, ex: Exchange) -> None:
        want = values()
        for step in range(4):
            for name, grad in grads(context.rank, step).items():
                if step % 2:
                    ex.gradient(name)[...] = grad
                    assert ex.push_pull(name) is ex.params[name]
                else:
                    assert ex.push_pull(name, grad) is ex.params[name]
            for worker in workers:
                for name, grad in grads(worker, step).items():
                    want[name] = want[name] - grad
            assert_same(ex.params, want)

    each_rank(3, body, topology=topology, reduce="sum", progress=progress, **transport)


@on_both
@pytest.mark.parametrize("n", [1, 2, 4])
def test_mean_of_powers_of_two_is_exact(n: int) -> None:
    def body(context: hpcomm.Context, ex: Exchange) -> None:
        ex.step(grads(context.rank, 0))
        want = {name: values()[name] - sum(grads(r, 0)[name] for r in range(n)) / F32(n) for name in SHAPES}
        assert_same(ex.params, want)

    each_rank(n, body)


@on_both
def test_params_start_as_rank_0_gave_them() -> None:
    def rank(context: hpcomm.Context) -> None:
        given = values() if context.rank == 0 else {name: np.full(shape, 9, F32) for name, shape in SHAPES.items()}
        ex = Exchange(context, given, topology=ParameterServer("CC", servers=[1]))
        assert_same(ex.params, values())
        given["fc"][:] = -1  # a copy was made
        context.barrier()
        assert_same(ex.params, values())

    run_threads(3, rank)


@on_both
def test_push_then_pull_and_nonblocking() -> None:
    def body(context: hpcomm.Context, ex: Exchange) -> None:
        mine = grads(context.rank, 0)
        want = {name: values()[name] - grads(0, 0)[name] - grads(1, 0)[name] for name in SHAPES}
        for name in SHAPES:
            ex.push(name, mine[name])
        for name in reversed(SHAPES):
            np.testing.assert_array_equal(ex.pull(name), want[name])
        handles = [ex.push_pull_nb(name, grad) for name, grad in grads(context.rank, 1).items()]
        assert [handle.name for handle in handles] == list(SHAPES)
        assert "under way" in repr(handles[0])
        for handle in reversed(handles):
            want[handle.name] = want[handle.name] - grads(0, 1)[handle.name] - grads(1, 1)[handle.name]
            np.testing.assert_array_equal(handle.wait(), want[handle.name])
            assert handle.done
            assert handle.test()
            assert handle.wait(0) is ex.params[handle.name]
        pushed = ex.push_nb("fc", mine["fc"])
        while not pushed.test():
            pass
        assert pushed.wait() is None
        assert ex.pull_nb("fc").wait() is ex.params["fc"]
        np.testing.assert_array_equal(ex.params["fc"], want["fc"] - grads(0, 0)["fc"] - grads(1, 0)["fc"])

    each_rank(2, body, reduce="sum")


@on_both
def test_push_waits_for_no_other_rank_and_pull_does() -> None:
    gate = threading.Event()

    def body(context: hpcomm.Context, ex: Exchange) -> None:
        if context.rank == 1:
            assert gate.wait(20)
            ex.push_pull("fc", grads(1, 0)["fc"])
            return
        ex.push("fc", grads(0, 0)["fc"])
        handle = ex.pull_nb("fc")
        assert not handle.test()
        assert not handle.done
        with pytest.raises(hpcomm.Timeout) as raised:
            handle.wait(0.02)
        assert raised.value.waiting_for == (1,)
        with pytest.raises(hpcomm.Timeout, match=r"in 0\.15 s"):
            ex.pull("fc", timeout=0.15)  # more than a slice
        with pytest.raises(InvalidArgument, match=r"fc.*under way"):
            ex.push("fc", grads(0, 0)["fc"])
        with pytest.raises(InvalidArgument, match=r"fc.*under way"):
            ex.push_pull("fc")
        gate.set()
        handle.wait()
        np.testing.assert_array_equal(ex.params["fc"], values()["fc"] - grads(0, 0)["fc"] - grads(1, 0)["fc"])

    each_rank(2, body, reduce="sum")


@on_both
def test_step_takes_keys_in_any_order_and_partly_in_place() -> None:
    def body(context: hpcomm.Context, ex: Exchange) -> None:
        want = values()
        for step in range(6):
            mine = grads(context.rank, step)
            if step % 3 == 0:
                given: Any = dict(reversed(mine.items()))
            else:
                for name, grad in mine.items():
                    ex.gradient(name)[...] = grad
                given = None if step % 3 == 1 else {"fc": None, "scale": mine["scale"], "bias": None, "conv": None}
            assert ex.step(given) is ex.params
            for rank in range(2):
                want = {name: value - grads(rank, step)[name] for name, value in want.items()}
            assert_same(ex.params, want)
        stats = ex.stats()
        assert (stats.pushes, stats.pulls) == (24, 24)
        assert stats.bytes_folded > 0
        assert stats.bytes_written > 0
        assert stats.applied > 0
        assert min(stats.wait, stats.busy) >= 0
        assert stats.threads == 0

    each_rank(2, body, reduce="sum")


@pytest.mark.parametrize("again", ["no gradients", "the same gradients"])
@pytest.mark.parametrize("depth", [1, 2])
def test_step_that_timed_out_goes_on_when_called_again(depth: int, again: str, transport: dict[str, Any]) -> None:
    gate = threading.Event()

    def body(context: hpcomm.Context, ex: Exchange) -> None:
        mine = grads(context.rank, 0)
        if context.rank == 1:
            assert gate.wait(20)
            ex.step(mine)
        else:
            with pytest.raises(hpcomm.Timeout, match=r"in 0\.15 s"):
                ex.step(mine, timeout=0.15)
            for call in (ex.push, ex.pull, ex.push_pull_nb, ex.gradient):
                with pytest.raises(
                    InvalidArgument, match=r"rank 0: key 'fc': the last step has not ended: call step\(\)"
                ):
                    call("fc")
            for refused in (lambda: ex.set(lr=1), ex.state_dict, lambda: ex.step(grads(0, 1))):
                with pytest.raises(InvalidArgument, match="the last step has not ended"):
                    refused()
            with pytest.raises(hpcomm.Timeout):
                ex.step(timeout=0.02)
            gate.set()
            assert ex.step(mine if again == "the same gradients" else None) is ex.params
        want = {name: value - grads(0, 0)[name] - grads(1, 0)[name] for name, value in values().items()}
        assert_same(ex.params, want)
        assert ex.stats().pushes == len(SHAPES)
        ex.step(mine)
        assert_same(ex.params, {name: want[name] - grads(0, 0)[name] - grads(1, 0)[name] for name in SHAPES})

    each_rank(2, body, reduce="sum", depth=depth, **transport)


@on_both
def test_step_that_ctrl_c_cut_short_goes_on_when_called_again(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    call = _core.exchange_step

    def interrupted(*args: Any) -> int:
        call(*args)  # what was sent is sent
        monkeypatch.setattr(calls, "_step", call)
        raise KeyboardInterrupt

    def body(context: hpcomm.Context, ex: Exchange) -> None:
        if context.rank == 1:
            assert gate.wait(20)
            ex.step(grads(1, 0))
        else:
            monkeypatch.setattr(calls, "_step", interrupted)
            with pytest.raises(KeyboardInterrupt):
                ex.step(grads(0, 0))
            gate.set()
            ex.step()
        assert_same(ex.params, {name: values()[name] - grads(0, 0)[name] - grads(1, 0)[name] for name in SHAPES})

    each_rank(2, body, reduce="sum")


@on_both
def test_close_ends_a_step_that_timed_out() -> None:
    gate = threading.Event()

    def body(context: hpcomm.Context, ex: Exchange) -> None:
        if context.rank == 1:
            assert gate.wait(20)
            ex.step(grads(1, 0))
        else:
            with pytest.raises(hpcomm.Timeout):
                ex.step(grads(0, 0), timeout=0)
            gate.set()
            ex.close()
            with pytest.raises(InvalidArgument, match="closed"):
                ex.pull("fc")
        assert_same(ex.params, {name: values()[name] - grads(0, 0)[name] - grads(1, 0)[name] for name in SHAPES})

    each_rank(2, body, reduce="sum")


def many(n: int) -> dict[str, Any]:
    """More keys than a ring of 16 events takes at once."""
    return {f"key {i}": np.full(3, i, F32) for i in range(n)}


@pytest.mark.some(1)
@on_both
@pytest.mark.parametrize("call", ["push", "push_pull"])
def test_push_that_a_full_ring_cut_short_is_ended_by_pull(call: str) -> None:
    """The other rank takes nothing for a while: at some key the ring is full, and the push is sent in part or not."""
    gate = threading.Event()
    shapes = {name: value.shape for name, value in many(400).items()}

    def body(context: hpcomm.Context, ex: Exchange) -> None:
        start = values(shapes=shapes)
        if context.rank == 1:
            assert gate.wait(20)
            for name in shapes:
                ex.push_pull(name, many(400)[name])
        else:
            cut = 0
            for name, grad in many(400).items():
                before = ex.gradient(name)
                before[...] = grad
                try:
                    getattr(ex, call)(name, before, timeout=0)
                except hpcomm.Timeout:
                    if ex.stats().pushes == cut:  # the ring is full: not even sent
                        break
                cut = ex.stats().pushes
            assert 0 < cut < len(shapes)
            with pytest.raises(hpcomm.Timeout):
                ex.gradient(name, timeout=0)  # is not handed out while an owner may read it
            with pytest.raises(InvalidArgument, match=r"was cut short: make it again, or pull\('key \d+'\)"):
                getattr(ex, "push" if call == "push_pull" else "push_pull")(name)
            gate.set()
            for done in list(shapes)[: cut + 1]:
                ex.pull(done)
            assert ex.stats().pushes == cut + 1
            for rest in list(shapes)[cut + 1 :]:
                ex.push_pull(rest, many(400)[rest])
        assert_same(ex.params, {name: start[name] - 2 * many(400)[name] for name in shapes})

    each_rank(2, body, topology=ParameterServer("CC", servers=[1]), shapes=shapes, reduce="sum")


@on_both
def test_timeout_is_for_the_whole_step() -> None:
    """Not for each key of it: 30 keys that wait for the ring and then for rank 1."""
    gate = threading.Event()
    shapes = {name: value.shape for name, value in many(400).items()}

    def body(context: hpcomm.Context, ex: Exchange) -> None:
        if context.rank == 1:
            assert gate.wait(20)
            ex.step(many(400))
        else:
            start = time.monotonic()
            with pytest.raises(hpcomm.Timeout, match=r"in 0\.25 s"):
                ex.step(many(400), timeout=0.25)
            assert time.monotonic() - start < 2
            gate.set()
            ex.step()
        start_values = values(shapes=shapes)
        assert_same(ex.params, {name: start_values[name] - 2 * many(400)[name] for name in shapes})

    each_rank(2, body, topology=ParameterServer("CC", servers=[1]), shapes=shapes, reduce="sum")


@settings(max_examples=30)
@given(
    n=st.integers(1, 4),
    sizes=st.lists(st.integers(1, 300), min_size=1, max_size=5),
    chunk=st.integers(1, 8),
    cores=st.integers(1, 3),
    placement=st.sampled_from(["CC", "CS", "NCC", "NCS"]),
    seed=st.integers(0, 2**31),
    transport=st.sampled_from(["shm", "tcp", "loop"]),
    affinity=st.sampled_from(["key", "worker"]),
    interfaces=st.integers(1, 3),
)
def test_any_exchange_is_its_reference(
    n: int,
    sizes: list[int],
    chunk: int,
    cores: int,
    placement: str,
    seed: int,
    transport: str,
    affinity: str,
    interfaces: int,
) -> None:
    """Random keys, chunk sizes, cores, NICs, placements and orders of arrival, with values whose sums are exact."""
    n += placement.startswith("N")
    shapes = {f"key {i}": (size,) for i, size in enumerate(sizes)}
    servers = [n - 1] if placement == "NCS" else None
    topology = ParameterServer(placement, servers, affinity=affinity, interfaces=min(interfaces, cores))
    workers = topology.roles(n)[0]

    def body(context: hpcomm.Context, ex: Exchange) -> None:
        order = np.random.default_rng([seed, context.rank])
        want = values(shapes=shapes)
        for step in range(3):
            mine = grads(context.rank, step, shapes)
            handles = [ex.push_pull_nb(name, mine[name]) for name in order.permutation(list(shapes)).tolist()]
            for i in order.permutation(len(handles)):
                handles[i].wait()
            for worker in workers:
                want = {name: value - grads(worker, step, shapes)[name] for name, value in want.items()}
            assert_same(ex.params, want)

    each_rank(
        n,
        body,
        topology=topology,
        shapes=shapes,
        chunk_bytes=64 * chunk,
        cores=cores,
        reduce="sum",
        transport=transport,
        loop_seed=seed if transport == "loop" else 0,
    )


# ---- asynchronous --------------------------------------------------------------------------------------------------


@pytest.mark.some(8)
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_async_applies_each_update_as_it_comes(placement: str, transport: dict[str, Any]) -> None:
    topology = PLACEMENTS[placement]
    workers = topology.roles(3)[0]
    arrived: list[int] = []

    def body(context: hpcomm.Context, ex: Exchange) -> None:
        for step in range(5):
            for name, grad in grads(context.rank, step).items():
                ex.push_pull(name, grad)
        arrived.append(context.rank)
        while len(arrived) < len(workers):  # the others' pushes may need this rank's cores
            ex.progress()
        for name, value in values().items():
            want = value - sum(grads(rank, step)[name] for rank in workers for step in range(5))
            np.testing.assert_array_equal(ex.pull(name), want)
        assert (ex.stats().pushes, ex.stats().pulls) == (20, 24)

    each_rank(3, body, topology=topology, consistency=ASYNC, **transport)


@on_both
def test_async_worker_goes_on_alone() -> None:
    gate = threading.Event()

    def body(context: hpcomm.Context, ex: Exchange) -> None:
        if context.rank == 1:
            for step in range(10):
                ex.push_pull("fc", grads(1, step)["fc"])
            np.testing.assert_array_equal(ex.params["fc"], values()["fc"] - sum(grads(1, s)["fc"] for s in range(10)))
            gate.set()
        else:
            while not gate.is_set():
                ex.progress()
            np.testing.assert_array_equal(ex.params["fc"], values()["fc"])  # only who pulls gets them
            ex.pull("fc")
            np.testing.assert_array_equal(ex.params["fc"], values()["fc"] - sum(grads(1, s)["fc"] for s in range(10)))

    each_rank(2, body, topology=ParameterServer("CC"), consistency=ASYNC)


# ---- where gradients and parameters lie ----------------------------------------------------------------------------


def test_gradient_in_place_is_not_copied(transport: dict[str, Any]) -> None:
    def body(context: hpcomm.Context, ex: Exchange) -> None:
        first = ex.gradient("fc")
        assert (first.shape, first.dtype.name, first.flags.c_contiguous) == ((40, 70), "float32", True)
        assert ex.gradient("scale").shape == ()
        want = values()["fc"]
        for step in range(3):
            mine = ex.gradient("fc")
            assert mine is first  # the one slot
            mine[...] = grads(context.rank, step)["fc"]
            ex.push_pull("fc", [mine, first, None, mine.reshape(-1).reshape(40, 70)][step + context.rank])
            want = want - grads(0, step)["fc"] - grads(1, step)["fc"]
            np.testing.assert_array_equal(ex.params["fc"], want)

    each_rank(2, body, reduce="sum", **transport)


@pytest.mark.parametrize("consistency", [BSP, ASYNC], ids=str)
def test_gradients_rotate(consistency: hpcomm.Consistency, transport: dict[str, Any]) -> None:
    """With depth 2 the next gradient may be written while the last one is under way."""

    def body(context: hpcomm.Context, ex: Exchange) -> None:
        seen = []
        for step in range(6):
            mine = ex.gradient("fc")
            assert mine is ex.gradient("fc")
            seen.append(mine)
            mine[...] = step + 1
            handle = ex.push_pull_nb("fc", mine)
            following = ex.gradient("fc")
            assert following is not mine
            following[...] = 1000  # it is not what is under way
            handle.wait()
        assert [a.ctypes.data for a in seen] == [seen[i % 2].ctypes.data for i in range(6)]
        assert seen[0].ctypes.data != seen[1].ctypes.data
        context.barrier()
        np.testing.assert_array_equal(ex.pull("fc"), values()["fc"] - 2 * 21)
        context.barrier()
        old = ex.gradient("fc")
        old[...] = 3
        ex.push_pull("fc", old)
        ex.gradient("fc")[...] = 4
        ex.push_pull("fc", old)  # the slot of another push: a source as any other
        context.barrier()
        np.testing.assert_array_equal(ex.pull("fc"), values()["fc"] - 2 * 21 - 2 * 6)

    each_rank(2, body, reduce="sum", depth=2, consistency=consistency, **transport)


@on_both
def test_gradients_rotate_with_steps() -> None:
    def body(context: hpcomm.Context, ex: Exchange) -> None:
        seen = []
        for step in range(5):
            for name in SHAPES:
                ex.gradient(name)[...] = step
            seen.append(ex.gradient("fc"))
            ex.step()
        assert [a.ctypes.data for a in seen] == [seen[i % 3].ctypes.data for i in range(5)]
        assert len({a.ctypes.data for a in seen}) == 3
        assert_same(ex.params, {name: value - 20 for name, value in values().items()})

    each_rank(2, body, reduce="sum", depth=3)


@on_both
def test_gradient_waits_until_its_slot_is_free() -> None:
    gate = threading.Event()

    def body(context: hpcomm.Context, ex: Exchange) -> None:
        if context.rank == 1:
            assert gate.wait(20)
        else:
            ex.gradient("fc")[...] = 2
            ex.push("fc")
            with pytest.raises(hpcomm.Timeout) as raised:
                ex.gradient("fc", timeout=0.15)
            assert raised.value.waiting_for == (1,)
            gate.set()
            ex.gradient("fc")[...] = 7
            np.testing.assert_array_equal(ex.pull("fc"), values()["fc"] - 3)
            return
        ex.push_pull("fc", np.full((40, 70), 1, F32))

    each_rank(2, body, reduce="sum")


@on_both
def test_foreign_gradient_is_free_on_return() -> None:
    def body(context: hpcomm.Context, ex: Exchange) -> None:
        mine = grads(context.rank, 0)["fc"]
        handle = ex.push_nb("fc", mine)
        mine[...] = 99
        handle.wait()
        np.testing.assert_array_equal(ex.pull("fc"), values()["fc"] - grads(0, 0)["fc"] - grads(1, 0)["fc"])

    each_rank(2, body, reduce="sum")


def test_gradients_of_other_libraries(alone: hpcomm.Context) -> None:
    ex = Exchange(alone, {"w": np.zeros(3, F32)}, rule=SGD(lr=1))
    ex.push_pull("w", array.array("f", [1, 2, 3]))
    ex.push_pull("w", Exported(np.array([1, 1, 1], F32)))
    read_only = np.array([1, 0, 0], F32)
    read_only.flags.writeable = False
    assert list(ex.push_pull("w", read_only)) == [-3, -3, -4]


def test_small_gradient_that_is_pushed_again_is_read_again(alone: hpcomm.Context) -> None:
    ex = Exchange(alone, {"w": np.zeros(3, F32)}, rule=SGD(lr=1))
    grad = np.ones(3, F32)
    for step in range(3):
        grad[:] = step
        ex.push_pull("w", grad)
    assert list(ex.params["w"]) == [-3, -3, -3]
    grad.resize(6, refcheck=False)
    with pytest.raises(InvalidArgument, match="24 bytes instead of 12"):
        ex.push_pull("w", grad)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_shared_params_are_one_read_only_copy(placement: str) -> None:
    topology = PLACEMENTS[placement]
    workers = topology.roles(3)[0]
    addresses = []

    def body(context: hpcomm.Context, ex: Exchange) -> None:
        with pytest.raises(ValueError, match="read-only"):
            ex.params["fc"][0, 0] = 1
        with pytest.raises(ValueError, match="WRITEABLE"):
            ex.params["fc"].flags.writeable = True
        want = values()
        for step in range(3):
            ex.step(grads(context.rank, step))
            want = {name: value - sum(grads(r, step)[name] for r in workers) for name, value in want.items()}
            assert_same(ex.params, want)
            context_free_barrier(ex, meeting)
        addresses.append(ex.params["fc"].ctypes.data)

    meeting: list[int] = []

    def context_free_barrier(ex: Exchange, met: list[int]) -> None:
        """Nobody pushes before all have looked: the one copy would change under them."""
        met.append(0)
        aim = -(-len(met) // len(workers)) * len(workers)
        while len(met) < aim:
            ex.progress()

    each_rank(3, body, topology=topology, reduce="sum", shared_params=True)
    assert len(addresses) == len(workers)


def test_arrays_outlive_everything(transport: dict[str, Any]) -> None:
    def body(context: hpcomm.Context, ex: Exchange) -> None:
        ex.step({name: np.ones(shape, F32) for name, shape in SHAPES.items()})
        kept.append((ex.params, ex.gradient("fc"), ex.params["fc"]))
        context.barrier()

    kept: list[Any] = []
    each_rank(2, body, **transport)
    gc.collect()
    for params, gradient, fc in kept:
        assert_same(params, {name: value - 1 for name, value in values().items()})
        gradient[...] = 1
        fc[...] = 2
        assert params["fc"][39, 69] == 2


def test_params_is_a_mapping_that_knows_its_names(alone: hpcomm.Context) -> None:
    ex = Exchange(alone, values())
    assert list(ex.params) == list(ex.params.keys()) == list(SHAPES)
    assert len(ex.params) == 4
    assert "fc" in ex.params
    assert "fd" not in ex.params
    assert ex.params.get("fd") is None
    assert "fc (40, 70)" in repr(ex.params)
    assert "4 keys" in repr(ex)
    with pytest.raises(InvalidArgument, match=r"'biaz' is not a key of this exchange: did you mean 'bias'\?"):
        ex.params["biaz"]
    with pytest.raises(InvalidArgument, match=r"they are 'conv', 'fc', 'bias', 'scale'"):
        ex.params["?"]
    with pytest.raises(TypeError):
        ex.params["fc"] = 1  # type: ignore[index]


@on_both
def test_rank_that_only_serves_has_no_params() -> None:
    def rank(context: hpcomm.Context) -> None:
        with Exchange(context, values(), ParameterServer("NCC")) as ex:
            if context.rank == 0:
                assert len(ex.params) == 0
                with pytest.raises(InvalidArgument, match="rank 0 only serves"):
                    ex.params["fc"]
                for call in (ex.push, ex.pull, ex.push_pull, ex.gradient):
                    with pytest.raises(InvalidArgument, match="rank 0 only serves"):
                        call("fc")
                with pytest.raises(InvalidArgument, match="rank 0 only serves"):
                    ex.step()
                ex.serve()
            else:
                ex.push_pull("fc", values()["fc"])

    run_threads(3, rank)


# ---- plans and presets ---------------------------------------------------------------------------------------------


@on_both
def test_plan_is_told_and_may_be_given() -> None:
    def rank(context: hpcomm.Context) -> None:
        first = Exchange(
            context, values(), chunk_bytes=64, plan=PlanOptions(cores=2), depth=2, codec="float16", reduce="sum"
        )
        assert len(first.plan.rows) > 100
        again = Exchange(context, values(), rule=Average(), plan=first.plan)
        assert again.plan is first.plan
        assert again.gradient("fc").dtype == np.float16
        again.step({name: np.full(shape, context.rank, F32) for name, shape in SHAPES.items()})
        assert_same(again.params, {name: np.full(shape, 1, F32) for name, shape in SHAPES.items()})

    run_threads(2, rank)


@pytest.mark.parametrize(
    ("progress", "spare", "cores"), [("inline", 7, 3), ("auto", 0, 3), ("auto", 2, 3), ("auto", 7, 6)]
)
def test_every_interface_has_as_many_cores(
    progress: Any, spare: int, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_core, "spare_cores", lambda *_: spare)

    def rank(context: hpcomm.Context) -> None:
        for affinity in ("key", "worker"):
            with hpcomm.parameter_hub(
                context, values(), affinity=affinity, interfaces=3, rule=SGD(lr=1), chunk_bytes=64, progress=progress
            ) as ex:
                assert ex.plan.affinity == affinity
                assert ex.plan.places == tuple((r, core) for r in range(2) for core in range(cores))
                ex.step(values())
                assert_same(ex.params, {name: np.zeros(shape, F32) for name, shape in SHAPES.items()})

    run_threads(2, rank)


@on_both
def test_interfaces_are_what_the_servers_have(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def two(_: Any, servers: tuple[int, ...]) -> int:
        asked.append(servers)
        return 2

    def rank(context: hpcomm.Context) -> None:
        assert _core.interfaces(context._handle, (0, 1)) == 1  # the ranks share memory
        context.barrier()
        if context.rank == 0:
            monkeypatch.setattr(_core, "interfaces", two)
        context.barrier()
        with Exchange(context, values(), ParameterServer("CC"), progress="inline", chunk_bytes=64) as ex:
            assert ex.plan == ParameterServer("CC", interfaces=2).compile(Request(values(), 2, cores=2, chunk_bytes=64))
        with Exchange(context, values(), ParameterServer("CC"), plan=PlanOptions(cores=1)) as ex:
            assert ex.plan.places == ((0, 0),)

    run_threads(2, rank)
    assert asked == [(0,)] * 4


@on_both
def test_parameter_hub_is_its_parts() -> None:
    def rank(context: hpcomm.Context) -> None:
        for placement in ("CC", "CS", "NCC", "NCS"):
            servers = [0] if placement == "NCS" else None
            with hpcomm.parameter_hub(
                context, values(), placement=placement, servers=servers, rule=SGD(lr=1), chunk_bytes=128
            ) as ex:
                if placement.startswith("N") and context.rank == 0:
                    ex.serve()
                    continue
                ex.step(values())
                assert_same(ex.params, {name: np.zeros(shape, F32) for name, shape in SHAPES.items()})
                assert ex.plan.rows[0].count == 30

    run_threads(2, rank)


# ---- processes -----------------------------------------------------------------------------------------------------


def train(placement: str, progress: Any, wire: str) -> list[Any]:
    """A model that learns to be its mean target, from arrays in place."""
    context = hpcomm.init(mpi.world())
    topology = ParameterServer(placement, servers=[0] if placement == "NCS" else None)
    with Exchange(
        context, {"w": np.zeros(3000, F32), "b": np.zeros(2, F32)}, topology, rule=SGD(lr=0.5),
        progress=progress, codec=wire, chunk_bytes=1024,
    ) as ex:  # fmt: skip
        if works(context, topology):
            for _ in range(20):
                for name in ("b", "w"):
                    ex.gradient(name)[...] = ex.params[name] - context.rank
                    ex.push_pull_nb(name)
                ex.pull("w")
                ex.pull("b")
        else:
            ex.serve()
        found = [float(ex.params[name].mean()) for name in ex.params]
    context.close()
    return found


@pytest.mark.some(3)
@on_both
@pytest.mark.parametrize(
    ("placement", "progress", "wire"),
    [
        ("CC", "thread", "float32"),
        ("CS", "inline", "float16"),
        ("CS", "auto", "float32"),
        ("NCC", "inline", "float32"),
        ("NCS", "thread", "bfloat16"),
    ],
)
def test_processes_train(placement: str, progress: Any, wire: str) -> None:
    ranks = mpi.spawn(3, train, placement, progress, wire).values
    want = 1.5 if placement.startswith("N") else 1.0
    for found in ranks[placement.startswith("N") :]:
        assert found == pytest.approx([want, want], abs=1e-2)
