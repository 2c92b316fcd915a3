"""The description of an exchange that a tenant sends to its hubs in one message: keys, rules, consistency and codecs by
name. It holds no code and no addresses of code."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from numbers import Integral, Real
from typing import Any

from .. import _core, optim, prox
from ..codec import Codec, ErrorFeedback, Factors, Float4, OneBit, Threshold, TopK, WireFormat
from ..consistency import Consistency
from ..errors import HpcommError, InvalidArgument
from ..exchange.options import EngineOptions, PlanOptions
from ..optim import SGD, Adam, AdamW, Assign, Average, Dual, Momentum, Nesterov, ProxSGD
from ..topology import ParameterServer
from ..topology.parameter_server import depth_at_receivers
from ..topology.protocol import Request

MOST_BYTES = 8 << 20  # of a description
MOST_KEYS = 100_000
_MOST_ROWS = 1 << 20
_LEAST_CHUNK = 16 << 10  # bytes, where hpcomm chooses the chunks
_JOB_BYTES, _ROW_BYTES = 4 << 20, 512  # of an exchange at its hub, and of each row, beside what grows with elements

_KINDS: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        *(SGD, Momentum, Nesterov, Adam, AdamW, Average, Assign, ProxSGD, Dual),
        *(prox.L1, prox.L2, prox.ElasticNet, prox.L2Ball, prox.Simplex),
        *(Codec, Threshold, TopK, OneBit, Float4, ErrorFeedback, Factors),
        Consistency,
    )
}
_PLAN = ("chunk_bytes", "depth", "codec", "codec_out", "reduce", "cores")
_ENGINE = ("shared_params", "check_finite", "split", "groups")
_SERVERS = ("affinity", "interfaces", "apply_at")


@dataclass(frozen=True)
class Described:
    """An exchange at hubs: the arguments of Exchange on which workers and hubs must agree, without the values.

    Attributes:
        shapes: the shape of each key, in the order of the keys.
        servers: fields of ParameterServer.
    """

    shapes: Mapping[str, tuple[int, ...]]
    servers: Mapping[str, Any]
    consistency: Consistency | Mapping[str, Consistency]
    rule: optim.RuleOrRules
    plan: PlanOptions
    engine: EngineOptions

    @property
    def plan_in_c(self) -> PlanOptions:
        """The plan's options with codecs that select elements by code of the library, which gives the same bytes as
        Numba's: a hub needs no compiler."""
        codec = self.plan.codec
        if isinstance(codec, Mapping):
            return replace(self.plan, codec={name: _in_c(one) for name, one in codec.items()})
        return replace(self.plan, codec=_in_c(codec))

    @property
    def elements(self) -> int:
        return sum(math.prod(shape) for shape in self.shapes.values())

    def topology(self, workers: int, hubs: int) -> ParameterServer:
        """Returns the topology among workers, which have the first ranks, and hubs, which only serve."""
        return ParameterServer("NCS", servers=range(workers, workers + hubs), **self.servers)

    def text(self) -> str:
        """Returns the message. Raises InvalidArgument for values that a hub does not take: those that hold code."""
        message = {
            "keys": [[name, list(shape)] for name, shape in self.shapes.items()],
            "servers": _packed("servers", dict(self.servers)),
            "consistency": _packed("consistency", self.consistency),
            "rule": _packed("rule", self.rule),
            "plan": {name: _packed(name, getattr(self.plan, name)) for name in _PLAN},
            "engine": {name: _packed(name, getattr(self.engine, name)) for name in _ENGINE},
        }
        text = json.dumps(message, separators=(",", ":"))
        if len(text) > MOST_BYTES or len(self.shapes) > MOST_KEYS:
            raise InvalidArgument(
                f"params has {len(self.shapes)} keys, whose description has {len(text)} bytes: a hub takes {MOST_KEYS} "
                f"keys and {MOST_BYTES} bytes at most"
            )
        return text

    def memory(self, workers: int, far: int, elements: int) -> int:
        """Returns a bound on the bytes that a hub needs.

        Args:
            workers: the number of workers.
            far: the number of workers whose memory the hub does not map.
            elements: the number of elements that the hub owns. The plan has the rows of all hubs.
        """
        consistencies = self.consistency.values() if isinstance(self.consistency, Mapping) else (self.consistency,)
        rules = self.rule.values() if isinstance(self.rule, Mapping) else (self.rule,)
        slots = max((_slots(rule) for rule in rules), default=0)
        apart = any(one.staleness != 0 or one.quorum is not None for one in consistencies)
        receives = self.servers.get("apply_at", "owners") != "owners"
        depth = max((_depth(self, one) if receives else max(self.plan.depth, 1) for one in consistencies), default=1)
        pieces = self.plan.codec not in ("float32", "float16", "bfloat16")
        each = 1 + slots + int(self.engine.split) + 2 * int(pieces) + int(self.plan.codec_out != "float32")
        each += 2 * depth if receives else 0  # sums of versions, and their encodings
        each += far * (depth + int(apart))  # slots for updates, and a copy for puts
        rows = len(self.shapes) + 4 * self.elements // (self.plan.chunk_bytes or _LEAST_CHUNK)
        return _JOB_BYTES + 4 * each * elements + rows * (_ROW_BYTES + 64 * workers + 64 * far * depth)


def _in_c(codec: Any) -> Any:
    if isinstance(codec, ErrorFeedback):
        return replace(codec, codec=_in_c(codec.codec))
    return replace(codec, kernel="c") if isinstance(codec, Threshold | TopK) else codec


def _depth(described: Described, consistency: Consistency) -> int:
    request = Request({"": (1,)}, 2, consistency=consistency, depth=described.plan.depth)
    return max(depth_at_receivers(request), 2)


def _slots(rule: Any) -> int:
    """Returns how many float32 values of state a built-in rule has for each element."""
    return int(_core.rule_found(type(rule).__name__.lower(), optim.arguments(rule), _core.ISAS["best"]).slots)


def described(
    shapes: Mapping[str, tuple[int, ...]],
    servers: Mapping[str, Any],
    consistency: Any,
    rule: Any,
    plan: PlanOptions,
    engine: EngineOptions,
) -> Described:
    """Returns the description of an exchange. Raises InvalidArgument for values that a hub does not take."""
    if engine.in_place:
        raise InvalidArgument("in_place is True: it is for graphs, and at a hub servers apply the rule")
    for one in plan.codec.values() if isinstance(plan.codec, Mapping) else (plan.codec,):
        if one == "auto" or type(one).__name__ == "Auto":
            raise InvalidArgument("codec is 'auto': a hub measures no codecs; give one, such as TopK(0.01)")
    found = Described(shapes, servers, consistency, rule, plan, engine)
    found.topology(1, 1)  # checks its fields
    return found


def parsed(text: str | bytes) -> Described:
    """Returns the description in a message of a stranger, checked value by value.

    Raises:
        InvalidArgument: the message is no description, or has a value out of range.
    """
    try:
        if len(text) > MOST_BYTES:
            raise InvalidArgument(f"it has {len(text)} bytes: a hub takes {MOST_BYTES} at most")
        message = json.loads(text)
        plan = {name: _value(message["plan"][name]) for name in _PLAN}
        engine = {name: _value(message["engine"][name]) for name in _ENGINE}
        servers = _value(message["servers"])
        shapes = dict(_shapes(message["keys"]))
        made = described(
            shapes,
            {name: servers[name] for name in _SERVERS if name in servers},
            _value(message["consistency"]),
            _value(message["rule"]),
            PlanOptions(**plan),
            EngineOptions(**{name: value for name, value in engine.items() if value is not None}),
        )
        _check_kinds(made)
    except HpcommError as wrong:
        raise InvalidArgument(f"the description of an exchange: {wrong}") from None
    except (AttributeError, KeyError, OverflowError, RecursionError, TypeError, ValueError) as wrong:
        raise InvalidArgument(f"the description of an exchange is not one: {type(wrong).__name__}: {wrong}") from None
    return made


def _shapes(keys: Any) -> Iterator[tuple[str, tuple[int, ...]]]:
    if not isinstance(keys, list) or not 1 <= len(keys) <= MOST_KEYS or len({name for name, _ in keys}) < len(keys):
        raise InvalidArgument("keys must be a list with other names each")
    for name, shape in keys:
        good = isinstance(name, str) and name and isinstance(shape, list) and len(shape) <= 32
        if not good or not all(type(n) is int and 0 < n < 1 << 48 for n in shape) or math.prod(shape) >= 1 << 48:
            raise InvalidArgument(f"key {str(name)[:80]!r} has shape {str(shape)[:80]}")
        yield name, tuple(shape)


def _check_kinds(made: Described) -> None:
    """Refuses values that have the right form in the wrong place."""
    optim.by_key(made.rule, made.shapes)
    of = made.consistency
    for one in of.values() if isinstance(of, Mapping) else (of,):
        if not isinstance(one, Consistency):
            raise InvalidArgument(f"consistency is {one!r}: must be a Consistency")
    for codecs in (made.plan.codec, made.plan.codec_out):
        for codec in codecs.values() if isinstance(codecs, Mapping) else (codecs,):
            if not isinstance(codec, str | WireFormat):
                raise InvalidArgument(f"codec is {codec!r}: must be a codec")
    if 4 * made.elements // max(made.plan.chunk_bytes or _LEAST_CHUNK, 1) > _MOST_ROWS:
        raise InvalidArgument(f"chunk_bytes is {made.plan.chunk_bytes}: a hub takes {_MOST_ROWS} chunks at most")
    numbers = (made.plan.depth, made.plan.chunk_bytes, made.plan.cores)
    if numbers[0] is None or not all(n is None or (type(n) is int and 0 <= n < 1 << 40) for n in numbers):
        raise InvalidArgument(f"depth, chunk_bytes and cores are {numbers}: must be whole numbers")


def _packed(what: str, value: Any) -> Any:
    """Returns a value as JSON has it."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    if isinstance(value, Mapping):
        return {"map": [[str(name), _packed(f"{what} of {name!r}", one)] for name, one in value.items()]}
    if isinstance(value, list | tuple):
        return {"list": [_packed(what, one) for one in value]}
    kind = type(value)
    if not is_dataclass(value) or _KINDS.get(kind.__name__) is not kind:
        raise InvalidArgument(
            f"{what} is {value!r}: a hub runs none of its tenants' code: give a rule or a codec of hpcomm"
        )
    own = {one.name: _packed(f"{what}: {one.name}", getattr(value, one.name)) for one in fields(value) if one.init}
    return {"is": kind.__name__, "fields": own}


def _value(packed: Any) -> Any:
    if packed is None or isinstance(packed, bool | str | int | float):
        return packed
    if "map" in packed:
        return {str(name): _value(one) for name, one in packed["map"]}
    if "list" in packed:
        return tuple(_value(one) for one in packed["list"])
    kind = _KINDS.get(packed["is"])
    if kind is None:
        raise InvalidArgument(f"there is no {str(packed['is'])[:80]!r}")
    known = {one.name for one in fields(kind) if one.init}
    given = {name: _value(value) for name, value in packed["fields"].items()}
    if not known >= set(given):
        raise InvalidArgument(f"{kind.__name__} has no {min(set(given) - known)!r}")
    if not isinstance(given.get("kernel", ""), str):  # a number would be an address of code
        raise InvalidArgument(f"{kind.__name__}: kernel is {given['kernel']!r}: a hub runs none of its tenants' code")
    return kind(**given)


def with_cores(plan: PlanOptions, cores: int) -> PlanOptions:
    """Returns plan with the hub's number of cores, unless the user gave one. Raises InvalidArgument for more cores than
    the hub has."""
    if plan.cores is not None and plan.cores > cores:
        raise InvalidArgument(f"cores is {plan.cores}: the hub has {cores}")
    return replace(plan, cores=cores) if plan.cores is None else plan
