"""Which topology with servers an exchange takes: the words "auto" and "flat", and the hosts of its context."""

from collections.abc import Iterable, Mapping
from typing import Any

from .. import _core
from ..consistency import ASYNC, BSP, Consistency
from ..context import Context
from ..errors import InvalidArgument
from ..measure import measured
from ..optim import Average
from ..topology import Hierarchy, HostGraph, ParameterServer, Tree
from ..topology.by_key import ByKey, Servers
from ..topology.hierarchy import MEASURED, OneTopology, automatic
from .options import EngineOptions

WORDS = ("auto", "flat")
# Staleness, at most: each version on its way has a slot of the plan, and so have the sum and the next one.
MOST_AT_RECEIVERS = _core.PLAN_DEPTH - 2
KINDS = (
    "'auto', 'flat', a ParameterServer, a Hierarchy, a Tree, a Graph, several Graphs, or a function that makes graphs "
    "for a number of ranks"
)


def has_servers(topology: Any) -> bool:
    """Whether it is no graph: a value, or a word that stands for one."""
    return isinstance(topology, Servers | HostGraph | str | Mapping)


def applies_each(consistency: Consistency) -> bool:
    """Whether servers apply each update by itself, as it comes: under ASYNC, and under SSP with a staleness."""
    return consistency == ASYNC or bool(consistency.staleness)


def goes_apart(consistency: Consistency) -> bool:
    """Whether servers need the updates of each outermost group of a hierarchy as one input: where groups may be at
    different steps, also with a quorum of them."""
    return applies_each(consistency) or consistency.quorum is not None


def updates_in_a_fold(topology: Servers | HostGraph, size: int) -> int:
    """How many updates a fold of a job of size ranks has at most, as a quorum counts them: those of workers, or of
    outermost groups."""
    if isinstance(topology, ByKey):
        return min(updates_in_a_fold(one, size) for one in _topologies(topology))
    if isinstance(topology, Hierarchy):
        return len(topology.levels(size)[-1])
    return len(topology.roles(size)[0])


def updates_one_model(topology: Any) -> bool:
    """Whether every rank's gradient counts in the parameters of all: so for parameter_hub and trainers."""
    each = topology.topologies if isinstance(topology, ByKey) else topology
    if isinstance(each, Mapping):
        return all(updates_one_model(one) for one in each.values())
    return has_servers(topology) and not isinstance(topology, HostGraph | Tree)


def settled(
    ctx: Context, topology: Any, consistency: Consistency, engine: EngineOptions, rule: Any, names: Iterable[str]
) -> Any:
    """The topology with what this context knows in the place of what was not given; graphs as they are. A mapping has
    topologies of keys; others are flat.

    "auto" folds inside hosts under plain BSP only: without a quorum, in the order of ranks, and by rules without a fold
    of their own, which would fold the sum of a host again.
    """
    rules = list(rule.values()) if isinstance(rule, Mapping) else [rule]
    if isinstance(topology, Mapping):
        found = {name: settled(ctx, one, consistency, engine, rule, ()) for name, one in topology.items()}
        for name, one in found.items():
            if not isinstance(one, OneTopology):
                raise InvalidArgument(
                    f"topology of {name!r} is {one!r}: must be 'auto', 'flat', a ParameterServer, a Hierarchy or a Tree"
                )
        by_key = ByKey(found, None if set(names) <= set(found) else ParameterServer())
        _check_mixed(by_key, consistency)
        return by_key
    if isinstance(topology, str):
        if topology not in WORDS:
            raise InvalidArgument(f"topology is {topology!r}: must be {KINDS}")
        plain = consistency == BSP and engine.deterministic
        plain = plain and all(getattr(own, "fold", None) is None for own in rules)
        return automatic(ctx.hosts, ctx.racks) if topology == "auto" and plain else ParameterServer()
    if isinstance(topology, Tree) and applies_each(consistency):
        raise InvalidArgument(
            f"consistency is {consistency}: ASYNC and SSP(s) apply the updates of several workers each by itself, and "
            "a Tree has those of one: give BSP"
        )
    if isinstance(topology, Tree) and consistency.quorum is not None:
        raise InvalidArgument(
            f"consistency is {consistency}: a quorum is one of several workers' updates, and a Tree has those of one: "
            "give BSP"
        )
    if isinstance(topology, Hierarchy) and topology.top == "ring" and goes_apart(consistency):
        what = (
            "ASYNC and SSP(s) apply the update of each host by itself"
            if applies_each(consistency)
            else "a quorum is one of the updates of hosts"
        )
        raise InvalidArgument(
            f"consistency is {consistency}: {what}, and a ring folds all into one: give BSP, or top='sharded'"
        )
    if isinstance(topology, Hierarchy | ParameterServer) and topology.apply_at != "owners":
        _check_receivers(topology, consistency, engine, rules)
    if isinstance(topology, HostGraph):
        if consistency != BSP:
            raise InvalidArgument(
                f"consistency is {consistency}: with hosts_first it must be NOTIFY_ACK or BSP, which are the same "
                "there: a rank waits for its host and the neighbours of that"
            )
        if not all(isinstance(own, Average) for own in rules):
            raise InvalidArgument("with hosts_first every rule must be Average: what is pushed are models")
        return topology.settled(ctx.hosts)
    if not isinstance(topology, Hierarchy):
        return topology
    known = topology.settled(ctx.hosts, ctx.racks)
    return measured(ctx, known) if known.bandwidths == MEASURED else known


def applies_at_receivers(topology: Any) -> bool:
    """Whether the rule is applied away from the owners, for one key or more."""
    if isinstance(topology, ByKey):
        return any(applies_at_receivers(one) for one in _topologies(topology))
    return isinstance(topology, Hierarchy | ParameterServer) and topology.apply_at != "owners"


def _topologies(topology: ByKey) -> list[OneTopology]:
    return [*topology.topologies.values(), *([] if topology.rest is None else [topology.rest])]


def _check_mixed(topology: ByKey, consistency: Consistency) -> None:
    """Under SSP(s) either all keys are applied at receivers or none is: their versions are counted differently."""
    if not consistency.staleness or not applies_at_receivers(topology):
        return
    other = next((one for one in _topologies(topology) if not applies_at_receivers(one)), None)
    if other is not None:
        raise InvalidArgument(
            f"consistency is {consistency}, and only some keys have apply_at='receivers' or 'both': give it to all of "
            f"them, also to those of {other!r}"
        )


def _check_receivers(
    topology: Hierarchy | ParameterServer, consistency: Consistency, engine: EngineOptions, rules: Iterable[Any]
) -> None:
    """Refuses what does not go with rules that are applied away from the owners."""
    apply_at, staleness = topology.apply_at, consistency.staleness
    if consistency == ASYNC or consistency.quorum is not None:
        raise InvalidArgument(
            f"consistency is {consistency}: with apply_at={apply_at!r} receivers apply one fold of all updates a step, "
            "which needs BSP or SSP(s), without a quorum"
        )
    if staleness and isinstance(topology, Hierarchy):
        raise InvalidArgument(
            f"consistency is {consistency}: with apply_at={apply_at!r} a Hierarchy needs BSP; SSP(s) needs a "
            "ParameterServer"
        )
    if staleness and staleness > MOST_AT_RECEIVERS:
        raise InvalidArgument(
            f"staleness is {staleness}: 0 to {MOST_AT_RECEIVERS} are possible with apply_at={apply_at!r}, as a plan "
            f"has {_core.PLAN_DEPTH} slots at most"
        )
    own = next((rule for rule in rules if getattr(rule, "fold", None) is not None), None)
    if own is not None:
        raise InvalidArgument(
            f"rule {own.name!r} has a fold of its own, by which receivers would fold the sum again: leave "
            f"apply_at={apply_at!r} out"
        )
