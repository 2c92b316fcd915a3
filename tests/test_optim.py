"""Rules: their bits against NumPy in float32, the formats on the wire, and that nothing else changes a bit."""

import ctypes
import dataclasses
import functools
import hashlib
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import on_both, run_threads
from flat import grouped

import hpcomm
from hpcomm import (
    SGD,
    Adam,
    AdamW,
    Average,
    Exchange,
    InvalidArgument,
    Momentum,
    Nesterov,
    ParameterServer,
    PlanOptions,
    _core,
    optim,
)
from hpcomm.optim import Rule

F32 = np.float32
SHAPES = {"w": (37, 113), "b": (113,)}
Array = Any  # float32


def random(seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(shape).astype(F32) for name, shape in SHAPES.items()}


def gradient(rank: int, step: int) -> dict[str, Array]:
    return random(100 * step + rank + 1)


# ---- NumPy references, in the order of operations of the formulas ----------------------------------------------------


def sgd(rule: SGD, p: Array, g: Array, state: list[Array], step: int) -> Array:
    return p - F32(rule.lr) * g


def momentum(rule: Momentum, p: Array, g: Array, state: list[Array], step: int) -> Array:
    state[0] = F32(rule.momentum) * state[0] + g
    return p - F32(rule.lr) * state[0]


def nesterov(rule: Nesterov, p: Array, g: Array, state: list[Array], step: int) -> Array:
    mu = F32(rule.momentum)
    state[0] = mu * state[0] + g
    return p - F32(rule.lr) * (g + mu * state[0])


def adam(rule: Adam, p: Array, g: Array, state: list[Array], step: int) -> Array:
    state[0] = F32(rule.beta1) * state[0] + F32(1 - rule.beta1) * g
    state[1] = F32(rule.beta2) * state[1] + F32(1 - rule.beta2) * (g * g)
    rate, unbias = F32(rule.lr / (1 - rule.beta1**step)), F32(1 / (1 - rule.beta2**step))
    return p - rate * state[0] / (np.sqrt(unbias * state[1]) + F32(rule.epsilon))


def adamw(rule: AdamW, p: Array, g: Array, state: list[Array], step: int) -> Array:
    p = F32(1 - rule.lr * rule.weight_decay) * p
    return adam(Adam(rule.lr, rule.beta1, rule.beta2, rule.epsilon), p, g, state, step)


def average(rule: Average, p: Array, g: Array, state: list[Array], step: int) -> Array:
    return g


Apply = Callable[[Any, Array, Array, list[Array], int], Array]
RULES: list[tuple[optim.AnyRule, Apply]] = [
    (SGD(lr=0.3), sgd),
    (SGD(lr=0.3, weight_decay=0.01), sgd),
    (Momentum(lr=0.1, momentum=0.7), momentum),
    (Momentum(lr=0.1, momentum=0.7, weight_decay=0.02), momentum),
    (Nesterov(lr=0.1), nesterov),
    (Nesterov(lr=0.1, momentum=0.5, weight_decay=0.1), nesterov),
    (Adam(), adam),
    (Adam(lr=0.01, beta1=0.8, beta2=0.95, epsilon=1e-6, weight_decay=0.1), adam),
    (AdamW(), adamw),
    (AdamW(lr=0.01, beta1=0.8, beta2=0.95, epsilon=1e-6, weight_decay=0.1), adamw),
    (Average(), average),
]


class Reference:
    """One rank's model under a rule, where all workers' updates are at hand."""

    def __init__(self, rule: optim.AnyRule, apply: Apply) -> None:
        self.rule, self.apply, self.params, self.steps = rule, apply, random(0), 0
        self.state = {name: [np.zeros(shape, F32) for _ in range(2)] for name, shape in SHAPES.items()}

    def step(self, updates: list[dict[str, Array]], weight: float) -> None:
        self.steps += 1
        for name, p in self.params.items():
            g = F32(weight) * updates[0][name]
            for update in updates[1:]:
                g = g + F32(weight) * update[name]
            decay = getattr(self.rule, "weight_decay", 0.0)
            if decay and not isinstance(self.rule, AdamW):
                g = g + F32(decay) * p
            self.params[name] = self.apply(self.rule, p, g, self.state[name], self.steps)


def bits(params: Any) -> str:
    return hashlib.sha256(b"".join(np.ascontiguousarray(value).tobytes() for value in params.values())).hexdigest()


@on_both
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule[0]))
@pytest.mark.parametrize("reduce", ["mean", "sum"])
def test_rule_has_the_bits_of_numpy(rule: tuple[Any, Apply], reduce: Any) -> None:
    def body(context: hpcomm.Context) -> None:
        reference = Reference(*rule)
        ex = Exchange(context, random(0), rule=rule[0], reduce=reduce, chunk_bytes=1024, progress="inline")
        for step in range(5):
            ex.step(gradient(context.rank, step))
            reference.step([gradient(r, step) for r in range(3)], 1 / 3 if reduce == "mean" else 1.0)
            for name, want in reference.params.items():
                np.testing.assert_array_equal(ex.params[name], want)

    run_threads(3, body)


@on_both
def test_hyper_parameters_change_between_steps() -> None:
    topologies = {"CS": ParameterServer("CS"), "NCC": ParameterServer("NCC", servers=[2])}

    def body(topology: ParameterServer, context: hpcomm.Context) -> None:
        reference = Reference(Nesterov(lr=0.1), nesterov)
        with Exchange(
            context, random(0), topology, rule=Nesterov(lr=0.1), plan=PlanOptions(cores=2), chunk_bytes=512
        ) as ex:
            workers = topology.roles(3)[0]
            if context.rank not in workers:
                ex.serve()
                return
            changes: list[Any] = [{}, {"lr": 0.05}, {"momentum": 0.5, "weight_decay": 0.25}, {"lr": 0}]
            for step, change in enumerate(changes):
                if change:
                    ex.set(**change)
                    reference.rule = dataclasses.replace(reference.rule, **change)
                assert ex.rule == reference.rule
                ex.step(gradient(context.rank, step))
                reference.step([gradient(r, step) for r in workers], 1 / len(workers))
                for name, want in reference.params.items():
                    np.testing.assert_array_equal(ex.params[name], want)

    for topology in topologies.values():
        run_threads(3, functools.partial(body, topology))


def test_every_rule_of_the_library_has_a_class_with_its_arguments() -> None:
    classes = {kind.__name__.lower(): kind for kind in optim.BuiltIn.__subclasses__()}
    assert classes.keys() == _core.RULES.keys()
    for name, kind in classes.items():
        assert {field.name for field in dataclasses.fields(kind)} - {"prox"} == set(_core.RULES[name])


def test_hyper_parameters_that_cannot_be_set(alone: hpcomm.Context) -> None:
    ex = Exchange(alone, random(0), rule=Nesterov(lr=0.1))
    refused: list[tuple[dict[str, Any], str]] = [
        ({"rate": 1}, r"Nesterov has no 'rate' to set: it has lr, weight_decay, momentum"),
        ({"lr": -1}, r"lr is -1: must be finite and 0 or more"),
        ({"lr": float("nan")}, r"lr is nan"),
        ({"momentum": 1}, r"momentum is 1: must be finite and from 0 to less than 1"),
        ({"lr": "fast"}, r"lr is 'fast': must be a number"),
    ]
    for changes, told in refused:
        with pytest.raises(InvalidArgument, match=told):
            ex.set(**changes)
    assert ex.rule == Nesterov(lr=0.1)
    with pytest.raises(InvalidArgument, match="Average has no 'lr' to set: it has none"):
        Exchange(alone, random(0), rule=Average()).set(lr=1)


@on_both
@pytest.mark.parametrize("graph", [False, True])
def test_a_key_is_trained_as_if_all_had_its_rule(graph: bool) -> None:
    kinds = [SGD(lr=0.5), Nesterov(lr=0.25, weight_decay=0.125), Adam()]
    names = list(random(0))
    rules = {name: kinds[i % len(kinds)] for i, name in enumerate(names)}
    options: dict[str, Any] = {"topology": hpcomm.graphs.ring(3), "consistency": hpcomm.NOTIFY_ACK} if graph else {}

    def body(rule: Any, context: hpcomm.Context) -> dict[str, Any]:
        ex = Exchange(context, random(0), rule=rule, progress="inline", **grouped(options))
        for step in range(4):
            if step == 2:
                ex.set(lr=0.0625, keys=names[0])
            ex.step(gradient(context.rank, step))
        return {name: value.copy() for name, value in ex.params.items()}

    mixed = run_threads(3, functools.partial(body, rules))
    for i, kind in enumerate(kinds):
        alone = run_threads(3, functools.partial(body, kind))
        for rank in range(3):
            for name in names[i :: len(kinds)]:
                np.testing.assert_array_equal(mixed[rank][name], alone[rank][name], err_msg=f"{name} of rank {rank}")


def test_rules_by_key_that_cannot_be(alone: hpcomm.Context) -> None:
    names = list(random(0))
    rules: dict[str, Any] = dict.fromkeys(names, SGD())
    refused: list[tuple[Any, str]] = [
        ({**rules, "other": SGD()}, r"rule has 'other', which is not a key: the keys are"),
        ({names[0]: SGD()}, rf"rule has none for key {names[1]!r}: a mapping gives every key its rule"),
        ({**rules, names[0]: "sgd"}, r"rule is 'sgd': must be one of SGD"),
    ]
    for rule, told in refused:
        with pytest.raises(InvalidArgument, match=told):
            Exchange(alone, random(0), rule=rule)
    ex = Exchange(alone, random(0), rule={**rules, names[0]: Average()})
    with pytest.raises(InvalidArgument, match="Average has no 'lr' to set"):
        ex.set(lr=1)
    with pytest.raises(InvalidArgument, match="other"):
        ex.set(lr=1, keys=[names[1], "other"])
    assert ex.rule == {**rules, names[0]: Average()}  # and nothing has changed
    ex.set(lr=1, keys=[names[1]])
    assert ex.rule == {**rules, names[0]: Average(), names[1]: SGD(lr=1)}
    assert Exchange(alone, random(0), rule=rules).rule == SGD()  # one rule, where all keys have it


def test_words_of_torch() -> None:
    for kind in (Adam, AdamW):
        given = kind(lr=0.1, betas=(0.8, 0.9), eps=1e-6)
        assert given == kind(lr=0.1, beta1=0.8, beta2=0.9, epsilon=1e-6)
        assert dataclasses.replace(given, beta1=0.5) == kind(lr=0.1, beta1=0.5, beta2=0.9, epsilon=1e-6)
        with pytest.raises(InvalidArgument, match=r"betas is 0.9: must be two numbers"):
            kind(betas=0.9)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match="beta2 is 2"):
            kind(betas=(0.9, 2))
    assert SGD(0.1, momentum=0) == SGD(0.1)
    with pytest.raises(InvalidArgument, match=r"give hpcomm.Momentum\(lr=0.1, momentum=0.8\)"):
        SGD(0.1, momentum=0.8)
    with pytest.raises(InvalidArgument, match=r"give hpcomm.Nesterov\(lr=0.1, momentum=0.9\)"):
        SGD(0.1, momentum=0.9, nesterov=True)


@on_both
def test_ranks_that_set_different_values_are_told() -> None:
    def body(context: hpcomm.Context) -> None:
        ex = Exchange(context, random(0), rule=SGD(lr=0.1), progress="inline")
        ex.set(lr=0.5 + context.rank)
        ex.step(gradient(0, 0))

    told = r"lr is 1.5 on rank 1 and 0.5 on rank 0, for push 1 of key \w by rule sgd: give the same lr on every rank"
    with pytest.raises(hpcomm.ConfigError, match=told):
        run_threads(2, body)


@pytest.mark.parametrize("kind", [SGD, Momentum, Nesterov, Adam, AdamW])
def test_limits_of_rules(kind: Any) -> None:
    for field in dataclasses.fields(kind):
        below_one = field.name in ("momentum", "beta1", "beta2")
        for wrong in (-0.1, float("inf"), float("nan"), "0.1", None, 1.0 if below_one else -1):
            with pytest.raises(InvalidArgument, match=f"{kind.__name__}: {field.name} is"):
                kind(**{field.name: wrong})
        assert getattr(kind(**{field.name: np.float32(0.5)}), field.name) == 0.5
        assert getattr(kind(**{field.name: 0}), field.name) == 0


# ---- the optimizers of torch -----------------------------------------------------------------------------------------


class TorchSGD:
    """torch.optim.SGD as its documentation defines it, in float64; dampening is 0."""

    def __init__(self, lr: float, momentum: float = 0.0, weight_decay: float = 0.0, *, nesterov: bool = False) -> None:
        self.lr, self.momentum, self.weight_decay, self.nesterov = lr, momentum, weight_decay, nesterov
        self.buffer: Array = None

    def step(self, p: Array, g: Array) -> Array:
        g = g + self.weight_decay * p
        if self.momentum:
            self.buffer = g if self.buffer is None else self.momentum * self.buffer + g
            g = g + self.momentum * self.buffer if self.nesterov else self.buffer
        return p - self.lr * g


class TorchAdam:
    """torch.optim.Adam as its documentation defines it, in float64; decoupled: torch.optim.AdamW."""

    def __init__(
        self, lr: float, betas: tuple[float, float], eps: float, weight_decay: float, *, decoupled: bool = False
    ) -> None:
        self.lr, self.betas, self.eps, self.weight_decay, self.decoupled = lr, betas, eps, weight_decay, decoupled
        self.m: Array = 0.0
        self.v: Array = 0.0
        self.t = 0

    def step(self, p: Array, g: Array) -> Array:
        self.t += 1
        if self.decoupled:
            p = p * (1 - self.lr * self.weight_decay)
        else:
            g = g + self.weight_decay * p
        beta1, beta2 = self.betas
        self.m = beta1 * self.m + (1 - beta1) * g
        self.v = beta2 * self.v + (1 - beta2) * g * g
        m_hat, v_hat = self.m / (1 - beta1**self.t), self.v / (1 - beta2**self.t)
        return p - self.lr * m_hat / (np.sqrt(v_hat) + self.eps)


BETAS = (0.8, 0.95)
TORCH: list[tuple[optim.AnyRule, Callable[[], Any]]] = [
    (SGD(lr=0.3, weight_decay=0.2), lambda: TorchSGD(0.3, weight_decay=0.2)),
    (Momentum(lr=0.1, momentum=0.7, weight_decay=0.2), lambda: TorchSGD(0.1, 0.7, 0.2)),
    (Nesterov(lr=0.1, momentum=0.7, weight_decay=0.2), lambda: TorchSGD(0.1, 0.7, 0.2, nesterov=True)),
    (Adam(lr=0.02, beta1=0.8, beta2=0.95, epsilon=1e-3, weight_decay=0.2), lambda: TorchAdam(0.02, BETAS, 1e-3, 0.2)),
    (
        AdamW(lr=0.02, beta1=0.8, beta2=0.95, epsilon=1e-3, weight_decay=0.2),
        lambda: TorchAdam(0.02, BETAS, 1e-3, 0.2, decoupled=True),
    ),
]


@pytest.mark.parametrize("case", TORCH, ids=lambda case: str(case[0]))
def test_rule_has_the_trajectory_of_torchs_optimizer(case: Any, alone: hpcomm.Context) -> None:
    """docs/python.md has the table. Every step is compared: the first one shows how the state begins."""
    rule, torch = case
    with Exchange(alone, random(0), rule=rule, progress="inline") as ex:
        want = {name: value.astype(np.float64) for name, value in random(0).items()}
        optimizers = {name: torch() for name in want}
        for step in range(30):
            grads = gradient(0, step)
            ex.step(grads)
            for name, optimizer in optimizers.items():
                want[name] = optimizer.step(want[name], grads[name].astype(np.float64))
                np.testing.assert_allclose(ex.params[name], want[name], rtol=0, atol=5e-6)


# ---- what may not change a bit ---------------------------------------------------------------------------------------


def trained(rule: optim.AnyRule, n: int, isa: str = "best", **options: Any) -> str:
    """The bits of every rank's model after some steps; ranks push in different orders."""

    transport = options.pop("transport", "shm")

    def body(context: hpcomm.Context) -> str:
        ex = Exchange(context, random(0), rule=rule, **grouped(options))
        for step in range(4):
            mine = gradient(context.rank, step)
            order = list(mine)[:: -1 if (context.rank + step) % 2 else 1]
            for handle in [ex.push_pull_nb(name, mine[name]) for name in order]:
                handle.wait()
        return bits(ex.params)

    chosen = Exchange._isa
    Exchange._isa = isa
    try:
        (found,) = set(run_threads(n, body, transport=transport))
    finally:
        Exchange._isa = chosen
    return str(found)


@pytest.mark.some(3)
@pytest.mark.parametrize("rule", [Nesterov(lr=0.1, weight_decay=0.01), Adam(), AdamW()], ids=str)
@pytest.mark.parametrize("wire", ["float32", "float16", "bfloat16"])
def test_same_bits_whatever_the_transport_cores_chunks_threads_and_instructions(rule: optim.AnyRule, wire: str) -> None:
    want = trained(rule, 3, codec=wire, progress="inline")
    ways: list[dict[str, Any]] = [{"isa": isa} for isa in _core.instruction_sets()]
    ways += [{"chunk_bytes": 64 * n} for n in (1, 5, 1000)]
    ways += [{"cores": 3, "progress": "thread", "chunk_bytes": 256}, {"cores": 2, "chunk_bytes": 128}]
    ways += [{"topology": ParameterServer("CC")}, {"topology": ParameterServer("CS", servers=[1, 2])}]
    ways += [{"depth": 2}, {"shared_params": True}]
    ways += [{"transport": "tcp", **way} for way in ({}, {"cores": 3, "progress": "thread", "chunk_bytes": 256})]
    for way in ways:
        assert trained(rule, 3, codec=wire, **{"progress": "inline", **way}) == want, way


@on_both
def test_eager_folds_are_right_though_not_in_order() -> None:
    def body(context: hpcomm.Context) -> None:
        reference = Reference(SGD(lr=0.5), sgd)
        ex = Exchange(context, random(0), rule=SGD(lr=0.5), progress="inline")
        for step in range(4):
            ex.step(gradient(context.rank, step))
            reference.step([gradient(r, step) for r in range(4)], 0.25)
            for name, want in reference.params.items():
                np.testing.assert_allclose(ex.params[name], want, rtol=1e-5, atol=1e-6)

    run_threads(4, body)


# ---- the wire --------------------------------------------------------------------------------------------------------


def rounded(x: Array, wire: str) -> Array:
    """x as it comes over the wire."""
    if wire == "float16":
        return x.astype(np.float16).astype(F32)
    whole = x.view(np.uint32).astype(np.uint64)
    return (whole + 0x7FFF + (whole >> 16 & 1) >> 16 << 16).astype(np.uint32).view(F32)


@on_both
@pytest.mark.parametrize(("wire", "dtype"), [("float16", "float16"), ("bfloat16", "bfloat16"), ("bfloat16", "uint16")])
def test_narrow_wires_round_updates_alone(wire: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes", reason="NumPy itself has no bfloat16")
    else:
        monkeypatch.setitem(sys.modules, "ml_dtypes", None)

    def body(context: hpcomm.Context) -> None:
        reference = Reference(SGD(lr=0.5), sgd)
        ex = Exchange(context, random(0), rule=SGD(lr=0.5), codec=wire, progress="inline")
        for step in range(4):
            mine = gradient(context.rank, step)
            if step % 2:
                for name, value in mine.items():
                    slot = ex.gradient(name)
                    assert (slot.shape, slot.dtype.name) == (value.shape, dtype)
                    if slot.dtype == np.uint16:
                        slot[...] = rounded(value, wire).view(np.uint32) >> 16
                    else:
                        slot[...] = value.astype(slot.dtype)
                ex.step()
            else:
                ex.step(mine)
            reference.step([{k: rounded(v, wire) for k, v in gradient(r, step).items()} for r in range(2)], 0.5)
            for name, want in reference.params.items():
                np.testing.assert_array_equal(ex.params[name], want)

    run_threads(2, body)


def test_narrow_gradient_of_another_place_is_refused(alone: hpcomm.Context) -> None:
    ex = Exchange(alone, random(0), codec="float16")
    with pytest.raises(InvalidArgument, match=r"'b' is float16: must be float32, or the float16 array that gradient"):
        ex.push("b", np.zeros(113, np.float16))
    mine = ex.gradient("b")
    ex.push_pull("b", mine)
    ex.push_pull("b", mine)  # the one slot that there is
    ex.push_pull("b", mine[:])


# ---- rules of one's own ----------------------------------------------------------------------------------------------

APPLY: Any = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.POINTER(ctypes.c_float),
    ctypes.POINTER(ctypes.c_float),
    ctypes.c_int64,
    ctypes.POINTER(ctypes.c_float),
    ctypes.POINTER(ctypes.c_double),
    ctypes.c_int64,
)


def test_rule_of_any_function_pointer(alone: hpcomm.Context) -> None:
    """A ctypes callback calls the interpreter, which inline progress allows: the caller is Python."""
    seen = []

    @APPLY  # type: ignore[untyped-decorator]
    def apply(param: Any, acc: Any, count: int, state: Any, args: Any, n: int) -> int:
        seen.append((count, n, args[0], args[1]))
        for i in range(n):
            state[i] += 1
            param[i] -= acc[i] * state[i]
        return 7 if args[1] < 0 else 0

    for function in (apply, ctypes.cast(apply, ctypes.c_void_p).value):
        seen.clear()
        rule = Rule(function, slots=1, args={"lr": 0.5}, name="counted")
        ex = Exchange(alone, {"w": np.zeros(3, F32)}, rule=rule, progress="inline")
        ex.push_pull("w", np.ones(3, F32))
        ex.set(lr=0.25)
        assert ex.rule == dataclasses.replace(rule, args={"lr": 0.25})
        assert list(ex.push_pull("w", np.ones(3, F32))) == [-3, -3, -3]
        assert seen == [(1, 3, 1.0, 0.5), (1, 3, 2.0, 0.25)]
    ex.set(lr=-1)
    with pytest.raises(InvalidArgument, match=r'apply of rule "counted" returned 7 on key w'):
        ex.push_pull("w", np.ones(3, F32))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"apply": 0}, "apply is 0: must be the address"),
        ({"apply": len}, "apply is <built-in function len>"),
        ({"apply": APPLY()}, "apply is"),
        ({"apply": 8, "fold": "sum"}, "fold is 'sum'"),
        ({"apply": 8, "slots": 5}, "slots is 5: must be an int from 0 to 4"),
        ({"apply": 8, "slots": -1}, "slots is -1"),
        ({"apply": 8, "args": [0.0] * 8}, "at most 7 finite numbers"),
        ({"apply": 8, "args": {"lr": float("inf")}}, "at most 7 finite numbers"),
        ({"apply": 8, "args": 3}, "args are 3: must be numbers"),
        ({"apply": 8, "name": "n" * 64}, "1 to 63 bytes"),
    ],
)
def test_rules_that_cannot_be(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        Rule(**arguments)


def test_arguments_without_names_are_set_as_a_whole() -> None:
    rule = Rule(8, args=(1, 2))
    assert optim.changed(rule, {"args": (3, 4)}) == Rule(8, args=(3, 4))
    with pytest.raises(InvalidArgument, match="must be 2 numbers"):
        optim.changed(rule, {"args": (3,)})
    with pytest.raises(InvalidArgument, match=r"rule has no 'lr' to set: it has args"):
        optim.changed(rule, {"lr": 1})
    kinds: list[optim.AnyRule] = [SGD(), Adam(), AdamW(), Average(), rule]
    for kind in kinds:
        assert optim.with_arguments(kind, optim.arguments(kind)) == kind
