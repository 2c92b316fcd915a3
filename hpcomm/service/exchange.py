"""Exchanges at a hub, on the side of a worker."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from .. import _core, optim
from .._core import seconds
from ..context import Context
from ..errors import HpcommError, InvalidArgument, NotSupported, PeerFailed
from ..exchange import Exchange
from ..exchange import encoders as encoding
from ..exchange.arguments import refuse
from ..exchange.options import Consistencies, EngineOptions, check_keywords, engine_options, plan_options
from ..exchange.shards import SHARED, Shard
from ..graphs.places import as_list
from ..optim import RuleOrRules
from ..plan import Plan
from ..stage import whole
from ..topology import Hierarchy, ParameterServer
from ..topology.given import Given
from ..topology.protocol import Topology
from . import saving
from .context import HubSide, ServiceContext
from .described import check, with_cores

if TYPE_CHECKING:
    from ..exchange.options import More


_MOST_SECONDS = 86400.0  # that a hub waits for a save


class HubExchange(Exchange):
    """An exchange whose owners are hubs: an Exchange whose state a hub saves and restores.

    In a job that was created with resume=True it begins with the parameters, the rule's state and hyper-parameters, and
    the steps of the newest save, bit for bit; clock says at which step. What codecs have kept back is the worker's own
    (kept_back), and begins with zeros.
    """

    __slots__ = ("_number",)

    def __init__(self, ctx: HubSide, *args: Any, **more: Any) -> None:
        super().__init__(ctx, *args, **more)
        self._number = ctx.made
        if ctx.meeting.resumes:
            try:
                self._come_back()
            except HpcommError:
                with suppress(HpcommError):
                    self.close()
                raise
        ctx.made += 1

    def _announce(self, plans: list[Plan], configs: list[Any]) -> None:
        assert isinstance(self.context, HubSide)
        try:
            message = _core.description_write([plan.arguments for plan in plans], configs)
        except HpcommError as wrong:
            refuse(self.context, wrong)
            raise
        if self.context.rank == 0:
            self.context.meeting.tell(b"E", message)

    def _until(self, call: Callable[[float], int], limit: float, deadline: float, status: int | None = None) -> int:
        with self._with_reason():
            return super()._until(call, limit, deadline, status)

    @contextmanager
    def _with_reason(self) -> Iterator[None]:
        """Adds the hub's words to the error of a wait, since ranks that fail together blame each other too."""
        try:
            yield
        except PeerFailed as failed:
            assert isinstance(self.context, HubSide)
            why = self.context.meeting.ended()
            if why:
                failed.args = (f"{failed}; the hub: {why}",)
            raise

    # ---- checkpoints -----------------------------------------------------------------------------------------------

    @property
    def clock(self) -> int:
        """The number of steps since the start of the training, those before a save included."""
        if self._state.any.counts_updates:
            return self._state.clock()
        return max(self._state.folds(name) for name in self._state.facts)

    def save(self, timeout: float | None = None) -> int:
        """Lets the hub save the parameters and the rule's state, and returns the number of steps that were saved.
        Collective: all workers call it after a step, and go on when the hub has written its file.

        A job with resume=True comes back to the newest save. With several hubs a save counts if all of them have
        written their files. Under BSP the state is that of a step. Under SSP, ASYNC and with a quorum no worker pushes
        meanwhile, and the state has all updates that were applied.

        Args:
            timeout: seconds for all workers to come and for the hubs to write; None means the context's default, and at
                least 600. When it has passed, the job ends.

        Raises:
            ConfigError: the hub saves nothing, or a quota has no room. The exchange goes on, as after the next two.
            CheckpointError: a hub cannot write its file, e.g. because its disk is full. The save before it is kept.
            InvalidArgument: a push or a pull of a worker is pending, or the exchange is closed.
            NotSupported: the workers keep the parameters themselves (apply_at="receivers").
            Timeout, PeerFailed: a worker did not come, or failed.
        """
        context, limit, wrong, begun = self.context, max(self._default, saving.SECONDS), None, 0
        assert isinstance(context, HubSide)
        try:
            limit = seconds(timeout, limit)
            self._check_idle("save")
            if self._state.rows:
                raise NotSupported(
                    f"rank {self._rank}: save: workers keep the parameters and the rule's state themselves, since "
                    "apply_at is 'receivers': save Exchange.params on one worker"
                )
            begun = self._state.begun() if self._state.any.counts_updates else 0
        except HpcommError as refused:
            wrong = refused
        if self._rank == 0:
            request = {"op": "save", "exchange": self._number, "seconds": min(limit, _MOST_SECONDS)}
            context.meeting.tell(b"J", json.dumps(request).encode())
        with self._with_reason():
            saving.gathered(context, (0, 0, begun), wrong, limit)
            return max(told.numbers[0] for told in saving.gathered(context, (0,), None, limit))

    def kept_back(self) -> dict[str, Any]:
        """Returns the residuals that codecs of this worker (TopK, ErrorFeedback and others) hold back: a dict of arrays
        and ints that numpy.savez takes. The hub does not save it. A worker that stores it with each save, and
        gives it to put_back when the job has come back, goes on bit for bit.

        Raises:
            InvalidArgument: a push or a pull of this worker is pending.
        """
        self._check_idle("kept_back")
        found: dict[str, Any] = {"keys": np.array(list(self._state.facts), np.str_), "replica": SHARED}
        encoding.save(self._state.handle, self._state.encoders, found)
        return found

    def put_back(self, kept: Shard | Iterable[Shard]) -> None:
        """Replaces the residuals of this worker's codecs by the result of kept_back.

        Args:
            kept: the dict of this worker; or the dicts of all workers, if their number has changed.

        Raises:
            InvalidArgument: kept is malformed, or a push or a pull of this worker is pending.
        """
        self._check_idle("put_back")
        every = [kept] if isinstance(kept, Mapping) else list(kept)
        state = self._state
        encoding.restore(state.handle, encoding.found(state.encoders, every, state.kind))

    def _come_back(self) -> None:
        """Takes the restored values of the hubs."""
        context, keys = self.context, len(self._state.facts)
        assert isinstance(context, HubSide)
        table = np.zeros((keys, optim.MOST_ARGS)).tobytes()
        with self._with_reason():
            saving.gathered(context, (0,) * saving.SEEN, None, saving.SECONDS)
            told = saving.gathered(context, (0,) * (1 + keys), None, saving.SECONDS, table)
            every = saving.arguments(told[context.meeting.size], keys)
            rules = {
                name: optim.with_arguments(rule, tuple(own.tolist())[: len(optim.arguments(rule))])
                for (name, rule), own in zip(self._state.rules.items(), every, strict=True)
            }
            numbers = np.array([(one.numbers[0], 0, *one.numbers[1:]) for one in told], np.int64)
            self._state.go_on(rules, numbers, saving.SECONDS)

    def state_dict(self, out: dict[str, Any] | None = None) -> NoReturn:
        raise NotSupported(
            "state_dict: the parameters and the rule's state are at the hub: call save, which lets the hub write them"
        )

    def load_state_dict(self, shards: Any, timeout: float | None = None) -> NoReturn:
        raise NotSupported(
            "load_state_dict: the parameters and the rule's state are at the hub: create the job with resume=True, "
            "which restores what save has written"
        )


def is_hub(servers: object) -> bool:
    """Returns whether the argument servers of parameter_hub says that the hubs of a ServiceContext serve."""
    return isinstance(servers, str) and servers == "hub"


def hub_exchange(
    ctx: Context,
    params: Mapping[str, Any],
    topology: Given,
    given: Mapping[str, Any],
    consistency: Consistencies,
    rule: RuleOrRules,
    options: "More",
    racks: Sequence[Sequence[int]] | None = None,
    top: str | None = None,
) -> HubExchange:
    """Makes an exchange whose owners are the hubs of a ServiceContext; the rest of parameter_hub.

    Args:
        topology: "auto", "flat", or a Hierarchy that gives racks and top in place of the arguments of these names.
        given: fields of ParameterServer that the user gave, without servers.
        racks: racks[i] are the workers whose rack has hub i. None: all hubs serve all workers.
        top: as in Hierarchy. None: "sharded".
    """
    if not isinstance(ctx, ServiceContext) or ctx._served is None:
        raise InvalidArgument(f"servers is 'hub' and ctx {ctx!r}: must be a context of connect_service")
    served = ctx._served
    meeting, plan = served.meeting, options.get("plan")
    try:
        if isinstance(topology, Hierarchy):
            topology, racks, top = _told_by(topology, racks, top)
        _check_left_out(topology, given, plan)
        more = {name: value for name, value in options.items() if name not in ("plan", "engine", "timeout")}
        check_keywords(more)
        chosen = with_cores(plan_options(plan, more), meeting.cores)
        engine = engine_options(options.get("engine", EngineOptions()), more)
        check(consistency, rule, chosen, engine)
        servers = _topology(served, given, racks, top)
    except Exception as wrong:
        refuse(served, wrong)
        raise
    timeout = options.get("timeout")
    return HubExchange(served, params, servers, consistency, rule, plan=chosen, engine=engine, timeout=timeout)


def _topology(
    served: HubSide, given: Mapping[str, Any], racks: Sequence[Sequence[int]] | None, top: str | None
) -> Topology:
    """Returns the topology of the workers and the hubs."""
    workers, hubs = served.meeting.size, range(served.meeting.size, served.size)
    if racks is None:
        if top is not None:
            raise InvalidArgument(f"top is {top!r} and racks None: it says how racks exchange their folds: give racks")
        return ParameterServer("NCS", servers=hubs, **given)
    if given:
        name, value = next(iter(given.items()))
        raise InvalidArgument(f"{name} is {value!r} and racks are given: leave {name} out")
    rack_of = _rack_of(racks, workers, len(hubs))
    hosts: dict[tuple[int, int], list[int]] = {}
    for rank in range(workers):  # workers of one host fold together inside their rack
        hosts.setdefault((rack_of[rank], served.hosts[rank]), []).append(rank)
    with_hubs = [[*rack, hub] for rack, hub in zip(racks, hubs, strict=True)]
    return Hierarchy(list(hosts.values()), with_hubs, servers=hubs, top="sharded" if top is None else top)


def _rack_of(racks: object, workers: int, hubs: int) -> dict[int, int]:
    """Returns the number of each worker's rack. Raises InvalidArgument unless each hub has a rack, each rack a worker,
    and each worker one rack."""
    groups = as_list("racks", racks)
    if len(groups) != hubs:
        raise InvalidArgument(
            f"racks has {len(groups)} racks and the job {hubs} hubs: give the workers of each hub's rack"
        )
    found: dict[int, int] = {}
    for i, group in enumerate(groups):
        ranks = as_list(f"racks[{i}]", group)
        if not ranks:
            raise InvalidArgument(f"racks[{i}] is empty: name a worker, or create the job with fewer hubs")
        for rank in (whole(f"racks[{i}]", one, 0, workers - 1) for one in ranks):
            if rank in found:
                raise InvalidArgument(f"rank {rank} is in racks[{found[rank]}] and racks[{i}]: name it once")
            found[rank] = i
    missing = next((rank for rank in range(workers) if rank not in found), None)
    if missing is not None:
        raise InvalidArgument(f"rank {missing} is in none of racks: each worker is in one")
    return found


def _told_by(told: Hierarchy, racks: object, top: object) -> tuple[Given, Any, str]:
    """Returns the arguments topology, racks and top in place of a Hierarchy."""
    if racks is not None or top is not None or told != Hierarchy(racks=told.racks, top=told.top):
        raise InvalidArgument(f"topology is {told!r} and servers 'hub': there a Hierarchy gives racks and top alone")
    return "auto", told.racks or None, told.top


def _check_left_out(topology: Given, given: Mapping[str, Any], plan: object) -> None:
    """Refuses arguments that have no use where the hubs alone serve."""
    if topology not in ("auto", "flat"):
        raise InvalidArgument(f"topology is {topology!r} and servers 'hub': the hubs alone serve; leave topology out")
    wrong = next((name for name in ("placement", "tree") if name in given), None)
    if wrong is not None:
        raise InvalidArgument(f"{wrong} is {given[wrong]!r} and servers 'hub': leave {wrong} out")
    if isinstance(plan, Plan):
        raise InvalidArgument("plan is a Plan: a hub makes its plans itself; give PlanOptions")
