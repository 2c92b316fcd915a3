"""Rules and folds written in Python: compiled by Numba, run by the engine, and never by the interpreter."""

import builtins
import ctypes
import os
import sys
import threading
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import mpi
import numba
import numpy as np
import pytest
from conftest import run_threads
from flat import grouped

import hpcomm
from hpcomm import Exchange, InvalidArgument, NotSupported, ParameterServer, kernels
from hpcomm.optim import Rule
from hpcomm.plan import Edge, Plan, Row

F32 = np.float32


def heavy_ball() -> Rule:
    @kernels.rule(slots=1, args={"lr": 0.25, "mu": 0.5})
    def heavy_ball(param: Any, acc: Any, count: int, state: Any, args: Any) -> None:
        lr, mu = np.float32(args[1]), np.float32(args[2])
        for i in range(param.size):
            state[0, i] = mu * state[0, i] + acc[i]
            param[i] -= lr * state[0, i]

    return heavy_ball


def clipped() -> Rule:
    """A fold of its own: no worker moves an element by more than one."""

    @kernels.fold
    def clip(acc: Any, update: Any, weight: float, args: Any) -> None:
        for i in range(acc.size):
            acc[i] += np.float32(weight) * min(max(update[i], np.float32(-1)), np.float32(1))

    @kernels.rule(fold=clip, args=(0.5,), name="clipped sgd")
    def apply(param: Any, acc: Any, count: int, state: Any, args: Any) -> int:
        param -= np.float32(args[1]) * acc
        return 0

    return apply


# ---- what is compiled ------------------------------------------------------------------------------------------------


def test_rule_is_momentum_bit_for_bit() -> None:
    rule = heavy_ball()
    assert (rule.name, rule.slots, rule.args) == ("heavy_ball", 1, {"lr": 0.25, "mu": 0.5})

    def body(context: hpcomm.Context, which: Any, **options: Any) -> Any:
        ex = Exchange(context, {"w": np.ones(5000, F32)}, rule=which, **grouped(options))
        for step in range(4):
            if step == 2:
                ex.set(lr=0.125)
            ex.push_pull("w", np.random.default_rng([step, context.rank]).standard_normal(5000).astype(F32))
        return ex.params["w"].tobytes()

    want = run_threads(2, lambda context: body(context, hpcomm.Momentum(lr=0.25, momentum=0.5)))
    assert run_threads(2, lambda context: body(context, rule)) == want
    assert run_threads(2, lambda context: body(context, rule, progress="inline")) == want
    assert run_threads(2, lambda c: body(c, rule, progress="thread", cores=2, chunk_bytes=256)) == want


@pytest.mark.some(1)
def test_fold_of_ones_own() -> None:
    rule = clipped()

    def body(context: hpcomm.Context) -> None:
        ex = Exchange(context, {"w": np.zeros(3, F32)}, rule=rule, reduce="sum")
        ex.push_pull("w", np.array([[5, 0.25, -3], [1, 0.25, -7]][context.rank], F32))
        assert list(ex.params["w"]) == [-1, -0.25, 1]

    run_threads(2, body)


def test_fold_sees_the_bits_of_a_narrow_wire(alone: hpcomm.Context) -> None:
    @kernels.fold(dtype=np.uint16)
    def from_bfloat16(acc: Any, update: Any, weight: float, args: Any) -> None:
        bits = update.astype(np.uint32) << np.uint32(16)
        acc += np.float32(weight) * bits.view(np.float32)

    rule = Rule(heavy_ball().apply, slots=1, args=(1, 0), fold=from_bfloat16)
    ex = Exchange(alone, {"w": np.zeros(3, F32)}, rule=rule, codec="bfloat16")
    assert list(ex.push_pull("w", np.array([1, -2, 0.5], F32))) == [-1, 2, -0.5]


@cache
def bits() -> kernels.Kernel:
    @kernels.fold(dtype=np.uint16)
    def bits(acc: Any, update: Any, weight: float, args: Any) -> None:
        for i in range(update.size):
            acc[i] += np.float32(update[i])

    return bits


@cache
def summing() -> Rule:
    @kernels.rule(slots=2)
    def adding_up(param: Any, acc: Any, count: int, state: Any, args: Any) -> None:
        state[0] += acc
        state[1] += np.float32(1)
        param += acc

    return adding_up


def adding_up(fold: Any) -> Rule:
    return replace(summing(), fold=fold)


one_compilation = pytest.mark.xdist_group("group kernels")


@one_compilation
def test_fold_of_another_item_size_than_the_wire_is_refused_on_every_rank() -> None:
    rule = adding_up(bits())

    def body(context: hpcomm.Context) -> None:
        told = "fold of rule adding_up reads float16 bfloat16, and row 0 takes its inputs as float32"
        with pytest.raises(hpcomm.ConfigError, match=told):
            Exchange(context, {"w": np.zeros(6000, F32)}, rule=rule)
        Exchange(context, {"w": np.zeros(6000, F32)}, rule=rule, codec="float16").push_pull("w", np.zeros(6000, F32))

    run_threads(2, body)


@one_compilation
def test_fold_of_another_item_size_is_refused_where_a_later_stage_has_it(alone: hpcomm.Context) -> None:
    rows = [
        Row(0, 0, 0, 0, 64, (Edge(0),), (Edge(0, 1),), "forward", codec_in="bfloat16"),
        Row(0, 0, 0, 0, 64, (Edge(0, 0),), (Edge(0),)),
    ]
    plan = Plan({"w": (64,)}, rows, 1)
    with pytest.raises(hpcomm.ConfigError, match="row 1 takes its inputs as float32"):
        Exchange(alone, {"w": np.zeros(64, F32)}, plan=plan, rule=adding_up(bits()))


@one_compilation
def test_fold_given_by_its_address_refuses_another_item_size(alone: hpcomm.Context) -> None:
    """Nobody knows its dtype. It is told n and the bytes, and holds them against each other."""
    ex = Exchange(alone, {"w": np.zeros(6000, F32)}, rule=adding_up(bits().address))
    with pytest.raises(InvalidArgument, match=f'the fold of rule "adding_up" returned {kernels.MISFIT} on key w'):
        ex.push_pull("w", np.ones(6000, F32))


def test_state_and_args_are_what_the_docs_say(alone: hpcomm.Context) -> None:
    @kernels.rule(slots=2, args=(7.0,))
    def tell(param: Any, acc: Any, count: int, state: Any, args: Any) -> None:
        state[0] += acc
        state[1] = args[0]
        param[:] = state[0] + 10 * state[1] + 100 * count + 1000 * args[1] + 10000 * args.size

    ex = Exchange(alone, {"w": np.zeros(2, F32)}, rule=tell)
    assert list(ex.push_pull("w", np.array([1, 2], F32))) == [87111, 87112]
    assert list(ex.push_pull("w", np.array([1, 2], F32))) == [87122, 87124]


def test_divisions_by_zero_do_not_raise(alone: hpcomm.Context) -> None:
    @kernels.rule()
    def divide(param: Any, acc: Any, count: int, state: Any, args: Any) -> None:
        for i in range(param.size):
            param[i] = param[i] / acc[i]

    ex = Exchange(alone, {"w": np.array([1, 0, -1], F32)}, rule=divide)
    np.testing.assert_array_equal(ex.push_pull("w", np.zeros(3, F32)), np.array([np.inf, np.nan, -np.inf], F32))


@pytest.mark.some(1)
@pytest.mark.parametrize(("grad", "status"), [(1, 41), (2, -1), (3, -1)])
def test_status_of_a_kernel_ends_the_exchange_on_every_rank(grad: int, status: int) -> None:
    @kernels.rule()
    def fussy(param: Any, acc: Any, count: int, state: Any, args: Any) -> int:
        if acc[0] == 1:
            return 41
        if acc[0] == 2:
            raise ValueError("too much", acc[0])
        param[:] = acc[:-1]  # shapes do not fit
        return 0

    assert kernels.RAISED == -1

    def body(context: hpcomm.Context) -> str:
        ex = Exchange(context, {"w": np.zeros(5, F32)}, ParameterServer("CC"), rule=fussy)
        with pytest.raises((InvalidArgument, hpcomm.PeerFailed)) as raised:
            ex.push_pull("w", np.full(5, grad, F32))
        return str(raised.value)

    for told in run_threads_that_fail(body):
        assert f'the apply of rule "fussy" returned {status} on key w' in told


def run_threads_that_fail(body: Any) -> list[str]:
    """Both ranks' sentences; the context is over then."""
    told: list[str] = []

    def rank(context: hpcomm.Context) -> None:
        told.append(body(context))

    with pytest.raises(hpcomm.HpcommError):  # the last barrier
        run_threads(2, rank)
    assert len(told) == 2
    return told


# ---- what is refused -------------------------------------------------------------------------------------------------


def prints(param: Any, acc: Any, count: int, state: Any, args: Any) -> None:
    print(count)


def uses_objects(param: Any, acc: Any, count: int, state: Any, args: Any) -> None:
    with numba.objmode():
        os.getpid()


def returns_text(param: Any, acc: Any, count: int, state: Any, args: Any) -> Any:
    return "done"


def returns_sometimes(param: Any, acc: Any, count: int, state: Any, args: Any) -> Any:
    if count > 1:
        return 3
    return None


def unknown_name(param: Any, acc: Any, count: int, state: Any, args: Any) -> None:
    param[:] = nowhere  # type: ignore[name-defined]  # noqa: F821


def too_few(param: Any, acc: Any) -> None:
    param[:] = acc


@pytest.mark.filterwarnings("ignore:Code running in object mode")
@pytest.mark.parametrize(
    ("function", "told"),
    [
        (prints, "'prints' would call the interpreter"),
        (uses_objects, "'uses_objects' would call the interpreter"),
        (returns_text, "'returns_text' returns .*must return nothing, or an int from every path"),
        (returns_sometimes, "'returns_sometimes' returns .*must return nothing, or an int"),
        (unknown_name, "'unknown_name' cannot be compiled.*nowhere"),
        (too_few, "'too_few' cannot be compiled"),
        (3, "must be a function"),
    ],
)
def test_kernels_that_cannot_be(function: Any, told: str) -> None:
    with pytest.raises(InvalidArgument, match=f"(?s){told}"):
        kernels.rule()(function)


def test_kernel_settings_that_cannot_be() -> None:
    with pytest.raises(InvalidArgument, match="slots is 5"):
        kernels.rule(slots=5)
    with pytest.raises(InvalidArgument, match="at most 7"):
        kernels.rule(args=range(8))(heavy_ball().apply.function)
    with pytest.raises(InvalidArgument, match="dtype is object"):
        kernels.fold(dtype=object)(too_few)
    with pytest.raises(InvalidArgument, match="dtype is float64"):
        kernels.fold(dtype=np.float64)(too_few)


def test_missing_numba_names_the_line_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without_numba(name: str, *args: Any) -> Any:
        if name == "numba":
            raise ModuleNotFoundError(name)
        return real(name, *args)

    monkeypatch.setattr(builtins, "__import__", without_numba)
    monkeypatch.delitem(sys.modules, "numba", raising=False)
    for make in (kernels.rule(), kernels.fold):
        with pytest.raises(NotSupported) as raised:
            make(too_few)
        assert "pip install numba" in str(raised.value)


# ---- the interpreter is never entered --------------------------------------------------------------------------------


def train_while_a_server_holds_the_gil(progress: Any) -> list[Any]:
    """Rank 0 owns every chunk and holds its GIL while the others train: nobody but its engine can have worked."""
    context = hpcomm.init(mpi.world(), timeout=30)
    rng = np.random.default_rng(3)
    x = rng.standard_normal((64, 4)).astype(F32)
    y = x @ np.array([1, -2, 3, 0.5], F32)
    window = context.window(8, signals=1)
    with Exchange(context, {"w": np.zeros(4, F32)}, ParameterServer("NCC"), rule=heavy_ball(), progress=progress) as ex:
        context.barrier()
        if context.rank == 0:
            entered = hold_gil_until_signal(window)
            applied = ex.stats().applied
            ex.serve()
            return [entered, applied]
        mine = slice(context.rank - 1, None, context.size - 1)
        for _ in range(150):
            w = ex.params["w"]
            ex.push_pull("w", (x[mine].T @ (x[mine] @ w - y[mine]) / len(y[mine])).astype(F32))
        if context.rank == 1:
            window.put_signal(0, None, signal=0, value=1)
        return [float(v) for v in ex.params["w"]]


def hold_gil_until_signal(window: hpcomm.Window) -> int:
    """Waits for a signal in C without letting go of the GIL; returns how many functions of Python ran meanwhile.

    A thread that wants the interpreter would wait for ever, and what this thread calls is counted.
    """
    library = ctypes.PyDLL(str(Path(hpcomm.__file__).parent / "lib/libhpcomm.so.0"))
    wait = library.hpc_wait_signal
    wait.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64, ctypes.c_int, ctypes.c_double, ctypes.c_void_p]
    events: list[str] = []
    sys.setprofile(lambda frame, event, arg: events.append(event))
    status = wait(window._address, 0, 1, 1, 30.0, None)
    sys.setprofile(None)
    assert status == 0
    return events.count("call")


@pytest.mark.some(1)
@pytest.mark.parametrize("progress", ["thread", "inline"])
def test_server_trains_with_the_gil_held(progress: Any) -> None:
    (entered, applied), *models = mpi.spawn(3, train_while_a_server_holds_the_gil, progress).values
    assert (entered, applied) == (0, 150)
    for model in models:
        np.testing.assert_allclose(model, [1, -2, 3, 0.5], atol=0.02)


def gil_is_free() -> Rule:
    """A rule that fails where it is applied by a thread that holds the GIL."""
    held = ctypes.cast(ctypes.pythonapi.PyGILState_Check, ctypes.c_void_p).value
    return Rule(held, name="gil_is_free")


@pytest.mark.parametrize("last", ["test", "wait", "pull", "gradient", "step"])
def test_folding_of_a_large_model_leaves_the_gil_to_others(last: str) -> None:
    """Whatever call comes upon the work, and however small its own key is."""
    pushed = threading.Event()

    def body(context: hpcomm.Context) -> None:
        start = {"large": np.zeros(100_000, F32), "small": np.zeros(1, F32)}
        topology = ParameterServer("CC", servers=[0])
        with Exchange(context, start, topology, rule=gil_is_free(), progress="inline") as ex:
            if context.rank == 1:
                ex.push("large")
                ex.push("small")
                pushed.set()
                return
            assert pushed.wait(20)
            if last == "step":
                ex.step()
                return
            ex.push("large")
            handle = ex.push_nb("small")
            if last == "test":
                while not handle.test():
                    pass
            elif last == "wait":
                handle.wait()
            else:
                getattr(ex, last)("small")
            assert ex.stats().applied > 0

    run_threads(2, body)


def test_folding_of_a_small_model_keeps_the_gil(alone: hpcomm.Context) -> None:
    """The rule above can tell."""
    ex = Exchange(alone, {"small": np.zeros(1, F32)}, rule=gil_is_free(), progress="inline")
    with pytest.raises(hpcomm.HpcommError, match="gil_is_free"):
        ex.push_pull("small")
