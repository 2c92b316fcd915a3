"""Rules, with which the owner of a chunk changes the parameters by a folded update (PHub, section 3.2.2).

A rule is a value: it names machine code, of the C library or of a user, and has the hyper-parameters for it. All
arithmetic is float32, in the order of the formulas and without fused multiply-adds, so every instruction set gives the
same bits. In the formulas w is a parameter and g its folded update. A rule raises InvalidArgument for a hyper-parameter
that is negative or not finite, and for a momentum or beta of 1 or more.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field
from typing import Any, TypeAlias

from . import _core
from .errors import InvalidArgument
from .log import logger
from .prox import L2, ElasticNet, Prox
from .stage import check_number, checked_args, checked_title

MOST_ARGS = _core.RULE_ARGS - 1  # hyper-parameters of a rule; C's first argument is the step
MOST_SLOTS = _core.RULE_SLOTS  # float32 values of state for each parameter

TORCH_NAMES = {"beta1": "betas[0]", "beta2": "betas[1]", "epsilon": "eps"}  # names that torch spells differently
_BELOW_1 = ("momentum", "beta1", "beta2")


@dataclass(frozen=True)
class BuiltIn:
    """A rule of the C library. Its name in C is the class's name in lower case; its fields are the hyper-parameters."""

    def __post_init__(self) -> None:
        for name in names_of(type(self)):
            below_1 = name in _BELOW_1
            check_number(self, name, 0, 1 if below_1 else math.inf, open_high=below_1)


@dataclass(frozen=True)
class SGD(BuiltIn):
    """Stochastic gradient descent: g += weight_decay * w; w -= lr * g. Raises InvalidArgument for a momentum: use
    Momentum."""

    lr: float = 0.01
    weight_decay: float = 0.0
    _: KW_ONLY
    momentum: InitVar[float] = 0.0
    nesterov: InitVar[bool] = False

    def __post_init__(self, momentum: float, nesterov: bool) -> None:
        if momentum or nesterov:
            kind = "Nesterov" if nesterov else "Momentum"
            raise InvalidArgument(
                f"SGD has no momentum: give hpcomm.{kind}(lr={self.lr!r}, momentum={momentum or 0.9!r})"
            )
        super().__post_init__()


@dataclass(frozen=True)
class Momentum(BuiltIn):
    """SGD with momentum: g += weight_decay * w; m = momentum * m + g; w -= lr * m."""

    lr: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 0.0


@dataclass(frozen=True)
class Nesterov(BuiltIn):
    """Nesterov's accelerated gradient, the rule of PHub's evaluation (section 4.2): g += weight_decay * w;
    m = momentum * m + g; w -= lr * (g + momentum * m)."""

    lr: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 0.0


def _numbers_of_adam(rule: "Adam | AdamW", betas: Any, eps: Any) -> None:
    """Sets beta1, beta2 and epsilon from torch's names, if these are given, and checks all numbers."""
    if betas is not None:
        if not isinstance(betas, tuple | list) or len(betas) != 2:
            raise InvalidArgument(f"{type(rule).__name__}: betas is {betas!r}: must be two numbers, beta1 and beta2")
        object.__setattr__(rule, "beta1", betas[0])
        object.__setattr__(rule, "beta2", betas[1])
    if eps is not None:
        object.__setattr__(rule, "epsilon", eps)
    BuiltIn.__post_init__(rule)


@dataclass(frozen=True)
class Adam(BuiltIn):
    """Adam (Kingma and Ba, algorithm 1), after g += weight_decay * w. It also accepts torch's names betas=(beta1,
    beta2) and eps=epsilon."""

    lr: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    _: KW_ONLY
    betas: InitVar[tuple[float, float] | None] = None
    eps: InitVar[float | None] = None

    def __post_init__(self, betas: tuple[float, float] | None, eps: float | None) -> None:
        _numbers_of_adam(self, betas, eps)


@dataclass(frozen=True)
class AdamW(BuiltIn):
    """Adam with decoupled weight decay (Loshchilov and Hutter, algorithm 2): w *= 1 - lr * weight_decay, then a step of
    Adam without weight decay. It accepts betas and eps as Adam does."""

    lr: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.01
    _: KW_ONLY
    betas: InitVar[tuple[float, float] | None] = None
    eps: InitVar[float | None] = None

    def __post_init__(self, betas: tuple[float, float] | None, eps: float | None) -> None:
        _numbers_of_adam(self, betas, eps)


@dataclass(frozen=True)
class Average(BuiltIn):
    """The folded update replaces the parameters. On a graph, ranks push models and pull the average of these and
    the neighbours' models. With servers it gives the mean of arrays, as MPI_Allreduce does."""


@dataclass(frozen=True)
class Assign(BuiltIn):
    """The folded update replaces the parameters, as with Average, but ranks push updates: any codec may encode them,
    also one that sends a part of each update later. `push_pull` then returns the mean of the updates."""


@dataclass(frozen=True)
class ProxSGD(BuiltIn):
    """Proximal SGD (SFB, section 2.1): g += weight_decay * w; w -= lr * g; then the prox, with step size lr, maps each
    row of the matrix W.

    A key with a prox must be a matrix; its chunks have whole rows of the matrix. A NaN in the result of the prox ends
    the exchange with an error that names the key and the row.
    """

    lr: float = 0.01
    prox: Prox | None = None
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _check_prox(self)


@dataclass(frozen=True)
class Dual(BuiltIn):
    """The rule of SDCA (SFB, section 2.1): g += weight_decay * Z; Z -= lr * g; W = prox(Z), where prox is the gradient
    of the conjugate of the regularizer h; without a prox, W = Z.

    Z is state of the rule: float32 of the key's shape, zero at first, kept by the key's owners and in checkpoints. W
    keeps its initial value until the first update. A NaN in W ends the exchange with an error, as with ProxSGD. Raises
    InvalidArgument if h is not strongly convex, that is if lam of L2 or l2 of ElasticNet is 0.
    """

    prox: Prox | None = None
    lr: float = 1.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _check_prox(self)
        least = {L2: "lam", ElasticNet: "l2"}.get(type(self.prox))
        if least is not None and getattr(self.prox, least) == 0:
            raise InvalidArgument(f"Dual: {least} of {self.prox} is 0: must be more, as h is to be strongly convex")


def _check_prox(rule: "ProxSGD | Dual") -> None:
    BuiltIn.__post_init__(rule)
    if rule.prox is not None and not isinstance(rule.prox, Prox):
        raise InvalidArgument(
            f"{type(rule).__name__}: prox is {rule.prox!r}: must be a value of hpcomm.prox such as L1(0.1), or None"
        )


@dataclass(frozen=True)
class Rule:
    """A user's rule: machine code with the signatures in hpcomm.h. The engine's cores call it without the interpreter.
    `hpcomm.kernels` makes a Rule from a Python function.

    All ranks must give the same code, name, slots and args; hpcomm checks all but the code. Raises InvalidArgument for
    a value that is not a function, and for slots or args out of range.

    Attributes:
        apply: `int apply(float *param, const float *acc, int64_t count, float *state, const double *args, int64_t n)`.
            It must return 0; any other number ends the exchange with an error. Give an address, a ctypes function
            pointer, or an object with an `address`, such as a Numba cfunc; the exchange keeps it alive.
        slots: float32 values of state for each parameter, 0 to 4; they begin as zero.
        args: at most 7 hyper-parameters. The machine code gets them as args[1], args[2] and so on; args[0] is the
            number of the step, from 1. If args is a mapping, `Exchange.set(name=value)` changes single values; if it is
            a sequence, `Exchange.set(args=(...))` changes all.
        fold: `int fold(float *acc, int64_t n, const void *in, int64_t nbytes, double weight, const double *args)`. It
            must add `weight` times the update `in` to the n values of acc. None: hpcomm's weighted sum. A fold made by
            `hpcomm.kernels` declares which wire formats it reads; other code must infer the format from n and nbytes.
        name: the name in errors and checkpoints.
    """

    apply: Any
    slots: int = 0
    args: Mapping[str, float] | Sequence[float] = field(default=())
    fold: Any = None
    name: str | None = None

    def __post_init__(self) -> None:
        _core.function_address(self.apply, "apply")
        if self.fold is not None:
            _core.function_address(self.fold, "fold")
        if not isinstance(self.slots, int) or not 0 <= self.slots <= MOST_SLOTS:
            raise InvalidArgument(f"Rule: slots is {self.slots!r}: must be an int from 0 to {MOST_SLOTS}")
        object.__setattr__(self, "args", checked_args("Rule", self.args, MOST_ARGS))
        object.__setattr__(self, "name", checked_title("Rule: name", self.name, self.apply, "rule", 63))


AnyRule: TypeAlias = BuiltIn | Rule

RuleOrRules: TypeAlias = AnyRule | Mapping[str, AnyRule]


def check_rule(rule: object) -> None:
    if not isinstance(rule, AnyRule):
        known = ", ".join(kind.__name__ for kind in (*BuiltIn.__subclasses__(), Rule))
        slip = f": {rule.__name__}() makes one" if isinstance(rule, type) and issubclass(rule, BuiltIn) else ""
        raise InvalidArgument(f"rule is {rule!r}: must be one of {known}{slip}")


_told: set[AnyRule] = set()  # default rules that this process has warned about


def or_default(rule: RuleOrRules | None, default: AnyRule, rank: int) -> RuleOrRules:
    """Returns the argument rule. If it is None, returns default, and rank 0 warns once."""
    if rule is not None:
        return rule
    if rank == 0 and default not in _told:
        _told.add(default)
        logger.warning("rule is not given: updates are applied by %r: give one, as in rule=hpcomm.SGD(lr=0.1)", default)
    return default


def by_key(rule: RuleOrRules, names: Iterable[str]) -> dict[str, AnyRule]:
    """Returns the rule of each key. Raises InvalidArgument for a value that is not a rule, and for a missing or unknown
    key."""
    keys = list(names)
    if not isinstance(rule, Mapping):
        check_rule(rule)
        return dict.fromkeys(keys, rule)
    for name, one in rule.items():
        if name not in keys:
            raise InvalidArgument(f"rule has {name!r}, which is not a key: the keys are {', '.join(keys[:8])}")
        check_rule(one)
    missing = [name for name in keys if name not in rule]
    if missing:
        raise InvalidArgument(f"rule has none for key {missing[0]!r}: a mapping gives every key its rule")
    return {name: rule[name] for name in keys}


def gathered(rules: Mapping[str, AnyRule]) -> RuleOrRules:
    """Returns the single rule if all keys have the same, otherwise a dict by key."""
    every = list(rules.values())
    return every[0] if all(one == every[0] for one in every) else dict(rules)


def c_name(rule: AnyRule) -> str:
    """Returns the rule's name in C, with the name of its prox."""
    if isinstance(rule, Rule):
        return str(rule.name)
    prox = prox_of(rule)
    own = "" if prox is None else f"({prox.title(isinstance(rule, Dual))})"
    return type(rule).__name__.lower() + own


def prox_of(rule: AnyRule) -> Prox | None:
    return rule.prox if isinstance(rule, ProxSGD | Dual) else None


def _all_names(rule: BuiltIn) -> tuple[str, ...]:
    """The names of the hyper-parameters of a built-in rule and of its prox, in C's order."""
    prox = prox_of(rule)
    return names_of(type(rule)) + (() if prox is None else tuple(prox.numbers))


def told_names(rule: AnyRule) -> tuple[str, ...]:
    """Returns the names of a rule's hyper-parameters for errors, in C's order. If torch has another name for one, both
    are given."""
    if isinstance(rule, Rule):
        return tuple(rule.args) if isinstance(rule.args, Mapping) else ()
    return tuple(f"{name}/{TORCH_NAMES[name]}" if name in TORCH_NAMES else name for name in _all_names(rule))


def _replaced(rule: BuiltIn, changes: Mapping[str, Any]) -> BuiltIn:
    of_rule = {name: value for name, value in changes.items() if name in names_of(type(rule))}
    prox = prox_of(rule)
    if prox is not None and len(of_rule) < len(changes):
        of_rule["prox"] = prox.with_numbers(list({**prox.numbers, **_without(changes, of_rule)}.values()))
    return dataclasses.replace(rule, **of_rule)


def _without(changes: Mapping[str, Any], some: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in changes.items() if name not in some}


def names_of(kind: type[BuiltIn]) -> tuple[str, ...]:
    """Returns the names of a built-in rule's hyper-parameters, in C's order."""
    return _core.RULES[kind.__name__.lower()]


def arguments(rule: AnyRule) -> tuple[float, ...]:
    """Returns the values of a rule's hyper-parameters, in C's order."""
    if isinstance(rule, Rule):
        return tuple(rule.args.values() if isinstance(rule.args, Mapping) else rule.args)
    prox = prox_of(rule)
    own = () if prox is None else tuple(prox.numbers.values())
    return tuple(getattr(rule, name) for name in names_of(type(rule))) + own


def with_arguments(rule: AnyRule, values: Sequence[float]) -> AnyRule:
    if len(values) != len(arguments(rule)):
        raise InvalidArgument(f"{c_name(rule)} has {len(arguments(rule))} arguments: {len(values)} are given")
    if isinstance(rule, Rule):
        named = dict(zip(rule.args, values, strict=True)) if isinstance(rule.args, Mapping) else tuple(values)
        return dataclasses.replace(rule, args=named)
    return _replaced(rule, dict(zip(_all_names(rule), values, strict=True)))


def changed(rule: AnyRule, changes: Mapping[str, Any]) -> AnyRule:
    """Returns the rule with some hyper-parameters changed. Raises InvalidArgument for an unknown name or a wrong
    value."""
    if isinstance(rule, Rule):
        names = tuple(rule.args) if isinstance(rule.args, Mapping) else ("args",)
    else:
        names = _all_names(rule)
    for name in changes:
        if name not in names:
            title = c_name(rule) if isinstance(rule, Rule) else type(rule).__name__
            raise InvalidArgument(f"{title} has no {name!r} to set: it has {', '.join(names) or 'none'}")
    if not isinstance(rule, Rule):
        return _replaced(rule, changes)
    args = {**rule.args, **changes} if isinstance(rule.args, Mapping) else changes.get("args", rule.args)
    if len(args) != len(rule.args):
        raise InvalidArgument(f"{c_name(rule)}: args are {args!r}: must be {len(rule.args)} numbers")
    return dataclasses.replace(rule, args=args)
