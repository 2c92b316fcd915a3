"""The description of an exchange at hubs, which a tenant sends in one message: keys, arguments of plans, consistency,
and rules and codecs by name. C writes and reads it (csrc/service). It holds no code and no addresses of code."""

import math
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from typing import Any, NamedTuple

from .. import _core, optim, prox
from ..codec import Codec, ErrorFeedback, Factors, Float4, OneBit, Threshold, TopK
from ..consistency import Consistency
from ..context import Context
from ..errors import InvalidArgument
from ..exchange.arguments import rows_of
from ..exchange.options import EngineOptions, PlanOptions
from ..exchange.shards import Kind, RuleKind, Span
from ..optim import SGD, Adam, AdamW, Assign, Average, Dual, Momentum, Nesterov, ProxSGD
from ..rows import Rows
from .work import HubWork

_KINDS = frozenset(
    (
        *(SGD, Momentum, Nesterov, Adam, AdamW, Average, Assign, ProxSGD, Dual),
        *(prox.L1, prox.L2, prox.ElasticNet, prox.L2Ball, prox.Simplex),
        *(Codec, Threshold, TopK, OneBit, Float4, ErrorFeedback, Factors),
        Consistency,
    )
)


def check(consistency: Any, rule: optim.RuleOrRules, plan: PlanOptions, engine: EngineOptions) -> None:
    """Raises InvalidArgument for arguments of an exchange that a hub does not take."""
    if engine.in_place:
        raise InvalidArgument("in_place is True: it is for graphs, and at a hub servers apply the rule")
    for one in plan.codec.values() if isinstance(plan.codec, Mapping) else (plan.codec,):
        if one == "auto" or type(one).__name__ == "Auto":
            raise InvalidArgument("codec is 'auto': a hub measures no codecs; give one, such as TopK(0.01)")
    for what, value in (("consistency", consistency), ("rule", rule), ("codec", plan.codec)):
        _check_code(what, value)


def _check_code(what: str, value: Any) -> None:
    """Refuses values that hold code."""
    if isinstance(value, Mapping):
        for name, one in value.items():
            _check_code(f"{what} of {name!r}", one)
    elif is_dataclass(value) and type(value) in _KINDS:
        for field in fields(value):
            if field.init:
                _check_code(f"{what}: {field.name}", getattr(value, field.name))
    elif callable(value) or is_dataclass(value) or isinstance(value, optim.Rule | prox.OwnProx):
        raise InvalidArgument(
            f"{what} is {value!r}: a hub runs none of its tenants' code: give a rule or a codec of hpcomm"
        )


def with_cores(plan: PlanOptions, cores: int) -> PlanOptions:
    """Returns plan with the hub's number of cores, unless the user gave one. Raises InvalidArgument for more cores than
    the hub has."""
    if plan.cores is not None and plan.cores > cores:
        raise InvalidArgument(f"cores is {plan.cores}: the hub has {cores}")
    return replace(plan, cores=cores) if plan.cores is None else plan


class Described:
    """An exchange as its hub knows it."""

    def __init__(self, message: bytes, cores: int) -> None:
        """Reads the message of a stranger, and checks it value by value. cores: the most cores of the hub.

        Raises:
            InvalidArgument: the message is no description, or has a value out of range.
        """
        self._handle = _core.description_read(message, cores)

    def memory(self, workers: int, hubs: int, far: int, rank: int = -1) -> int:
        """Returns a bound on the bytes that a hub needs.

        Args:
            workers, hubs: how many there are.
            far: the number of workers whose memory the hub does not map.
            rank: the hub's rank, after plan; -1: a hub that has an equal share of the keys.
        """
        return _core.description_memory(self._handle, workers, hubs, far, rank)

    def plan(self, workers: int, hubs: int) -> None:
        """Makes the plans among workers, which have the first ranks, and hubs, which only serve."""
        _core.description_plan(self._handle, workers, hubs)

    def descriptors(self, far: int, far_hubs: int, rank: int, streams: int) -> int:
        """Returns a bound on the descriptors of its lanes, after plan.

        Args:
            far, far_hubs: the numbers of workers, and of other hubs, whose memory the hub does not map.
            rank: the hub's rank.
            streams: the setting tcp_streams.
        """
        return _core.description_descriptors(self._handle, far, far_hubs, rank, streams)

    def exchange(self, context: Context, weight: float) -> "Served":
        """Makes the hub's end of the exchange. Collective: the workers make theirs."""
        limit = context.config.timeout
        handle = _core.description_exchange(self._handle, context._handle, weight, limit)
        return Served(handle, self, context.rank, limit)

    def keys(self, rank: int) -> "Keys":
        """Returns the keys, and the rows that a rank owns, once the plans are made."""
        every = _core.description_keys(self._handle)
        names = [key.name for key in every]
        rules = tuple(RuleKind(key.rule, key.slots, optim.MOST_ARGS) for key in every)
        rows: list[tuple[int, Span]] = []
        first = 0
        for i, key in enumerate(every):
            if key.number == 0:
                table = Rows(key.plan)
                rows += rows_of(table, names[i:], rank, first)
                first += len(table)
        return Keys(Kind(rules, {key.name: key.elements for key in every}), rows)


class Keys(NamedTuple):
    """The keys of an exchange, and the rows that a hub owns, by number and span."""

    kind: Kind
    rows: list[tuple[int, Span]]


class Served:
    """The hub's end of an exchange. One thread serves it; another one may save it meanwhile.

    Args:
        described: its description.
        rank: the hub's rank.
        timeout: seconds that close may take.
    """

    def __init__(self, handle: Any, described: Described, rank: int, timeout: float) -> None:
        self._handle, self._described, self._rank, self._timeout = handle, described, rank, timeout
        self._lock = threading.Lock()
        self._work = HubWork()

    def serve(self) -> None:
        """Serves until all workers have closed the exchange, then closes it too, and frees it."""
        try:
            _core.exchange_serve(self._handle, math.inf)
            with self._lock:
                _core.exchange_close(self._handle, self._timeout)
        finally:
            with self._lock:
                self._work = HubWork.counted(_core.exchange_stats(self._handle))
                self._handle = None

    def work(self) -> HubWork:
        """Returns the counts of the exchange. It does not wait: while the exchange is saved or closed, it returns the
        counts of the last call."""
        if self._lock.acquire(blocking=False):
            try:
                if self._handle is not None:
                    self._work = HubWork.counted(_core.exchange_stats(self._handle))
            finally:
                self._lock.release()
        return self._work

    @contextmanager
    def handle(self) -> Iterator[Any]:
        """Lends the exchange's handle, and keeps it from being closed. Raises InvalidArgument if it is closed."""
        with self._lock:
            if self._handle is None:
                raise InvalidArgument("the exchange is closed")
            yield self._handle

    def keys(self) -> Keys:
        return self._described.keys(self._rank)
