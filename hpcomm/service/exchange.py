"""Exchanges at a hub, on the side of a worker."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from .. import _core
from ..context import Context
from ..errors import HpcommError, InvalidArgument, NotSupported, PeerFailed
from ..exchange import Exchange
from ..exchange.arguments import refuse
from ..exchange.options import Consistencies, EngineOptions, check_keywords, engine_options, plan_options
from ..graphs.places import as_list
from ..optim import RuleOrRules
from ..plan import Plan
from ..stage import whole
from ..topology import Hierarchy, ParameterServer
from ..topology.given import Given
from ..topology.protocol import Topology
from .context import HubSide, ServiceContext
from .described import check, with_cores

if TYPE_CHECKING:
    from ..exchange.options import More


class HubExchange(Exchange):
    """An exchange whose owners are hubs. They save and restore no state."""

    __slots__ = ()

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
        """Waits; adds the hub's sentence to the error, since ranks that fail together blame each other too."""
        try:
            return super()._until(call, limit, deadline, status)
        except PeerFailed as failed:
            assert isinstance(self.context, HubSide)
            why = self.context.meeting.ended()
            if why:
                failed.args = (f"{failed}; the hub: {why}",)
            raise

    def state_dict(self, out: dict[str, Any] | None = None) -> NoReturn:
        raise NotSupported(
            "state_dict: the parameters and the rule's state are at the hub, which writes no checkpoints: save "
            "Exchange.params on one worker"
        )

    def load_state_dict(self, shards: Any, timeout: float | None = None) -> NoReturn:
        raise NotSupported(
            "load_state_dict: the parameters and the rule's state are at the hub, which reads no checkpoints: make the "
            "exchange with the saved parameters"
        )


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
        given: fields of ParameterServer that the user gave, without servers.
        racks: racks[i] are the workers whose rack has hub i. None: all hubs serve all workers.
        top: as in Hierarchy. None: "sharded".
    """
    if not isinstance(ctx, ServiceContext) or ctx._served is None:
        raise InvalidArgument(f"servers is 'hub' and ctx {ctx!r}: must be a context of connect_service")
    served = ctx._served
    meeting, plan = served.meeting, options.get("plan")
    try:
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


def _check_left_out(topology: Given, given: Mapping[str, Any], plan: object) -> None:
    """Refuses arguments that have no use where the hubs alone serve."""
    if topology not in ("auto", "flat"):
        raise InvalidArgument(f"topology is {topology!r} and servers 'hub': the hubs alone serve; leave topology out")
    wrong = next((name for name in ("placement", "tree") if name in given), None)
    if wrong is not None:
        raise InvalidArgument(f"{wrong} is {given[wrong]!r} and servers 'hub': leave {wrong} out")
    if isinstance(plan, Plan):
        raise InvalidArgument("plan is a Plan: a hub makes plans of its own; give PlanOptions")
