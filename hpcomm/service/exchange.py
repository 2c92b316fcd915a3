"""Exchanges at a hub, on the side of a worker."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from ..context import Context
from ..errors import InvalidArgument, NotSupported, PeerFailed
from ..exchange import Exchange
from ..exchange.arguments import checked_params, refuse
from ..exchange.options import Consistencies, EngineOptions, check_keywords, engine_options, plan_options
from ..optim import RuleOrRules
from ..plan import Plan
from ..topology.given import Given
from .context import HubSide, ServiceContext
from .described import described, with_cores

if TYPE_CHECKING:
    from ..exchange.options import More


class HubExchange(Exchange):
    """An exchange whose owners are hubs. They save and restore no state."""

    __slots__ = ()

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
) -> HubExchange:
    """Makes an exchange whose owners are the hubs of a ServiceContext; the rest of parameter_hub.

    Args:
        given: fields of ParameterServer that the user gave, without servers.
    """
    if not isinstance(ctx, ServiceContext) or ctx._served is None:
        raise InvalidArgument(f"servers is 'hub' and ctx {ctx!r}: must be a context of connect_service")
    served = ctx._served
    meeting, plan = served.meeting, options.get("plan")
    try:
        _check_left_out(topology, given, plan)
        more = {name: value for name, value in options.items() if name not in ("plan", "engine", "timeout")}
        check_keywords(more)
        asked = described(
            {name: value.shape for name, value in checked_params(params).items()},
            given,
            consistency,
            rule,
            with_cores(plan_options(plan, more), meeting.cores),
            engine_options(options.get("engine", EngineOptions()), more),
        )
        request = {"op": "exchange", "text": asked.text()}
    except Exception as wrong:
        if ctx.rank == 0:  # the hubs take part in the refusal, as in the creation
            meeting.tell({"op": "exchange", "refused": f"{wrong}"})
        refuse(served, wrong)
        raise
    if ctx.rank == 0:
        meeting.tell(request)
    return HubExchange(
        served,
        params,
        asked.topology(meeting.size, meeting.hubs),
        asked.consistency,
        asked.rule,
        plan=asked.plan,
        engine=asked.engine,
        timeout=options.get("timeout"),
    )


def _check_left_out(topology: Given, given: Mapping[str, Any], plan: object) -> None:
    """Refuses arguments that have no use where the hubs alone serve."""
    if topology not in ("auto", "flat"):
        raise InvalidArgument(f"topology is {topology!r} and servers 'hub': the hubs alone serve; leave topology out")
    wrong = next((name for name in ("placement", "tree") if name in given), None)
    if wrong is not None:
        raise InvalidArgument(f"{wrong} is {given[wrong]!r} and servers 'hub': leave {wrong} out")
    if isinstance(plan, Plan):
        raise InvalidArgument("plan is a Plan: a hub makes plans of its own; give PlanOptions")
