"""The schemes of an exchange, made from the user's topology and consistency; and the arguments of an exchange, from
which recover() makes it again."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ..consistency import ASYNC, BSP, Consistency, on_graph, with_servers
from ..context import Context
from ..errors import InvalidArgument
from ..optim import AnyRule, Average, Rule, RuleOrRules
from ..plan import Plan
from ..topology.by_key import by_names, check_names, joined
from ..topology.given import as_topology
from ..topology.planned import Planned
from ..topology.planned_trees import trees_for
from ..topology.protocol import Job, Topology
from .options import EngineOptions, PlanOptions

OWN_MODELS = ("neighbours", "hosts")  # values of Topology.updates_of that mean: models of ranks or hosts differ


@dataclass(frozen=True)
class Scheme:
    """Keys of an exchange with one consistency: all with servers, all on one graph, or all among the same peers.

    Attributes:
        names: the names of the keys, in the order of the exchange's keys.
        topology: the topology of all these keys, resolved for the hosts of the job.
        consistency: the consistency of all these keys.
    """

    names: tuple[str, ...]
    topology: Topology
    consistency: Consistency

    def among(self, ranks: Sequence[int], size: int) -> "Scheme":
        """Returns the scheme for the remaining ranks, in their new order. size: the number of ranks before. A quorum
        that is larger than the remaining number of inputs becomes that number.

        Raises:
            NotSupported: as Topology.among.
        """
        topology, consistency = self.topology.among(ranks, size), self.consistency
        if consistency.quorum is not None:
            most = topology.inputs(len(ranks))
            consistency = replace(consistency, quorum=min(consistency.quorum, most))
        return Scheme(self.names, topology, consistency)


@dataclass(frozen=True)
class Made:
    """The arguments of an exchange, from which another exchange like it can be made. An exchange that recover() makes
    keeps the Made of the job's first exchange: every rank has that one, but only some ranks took part in later
    exchanges.

    Attributes:
        schemes: the schemes, as settled returns them.
        ranks: the numbers that the topology's ranks had in the job's first context.
        inline: whether any rank has progress "inline"; owners then have one core for each interface. Before
            any_is_inline has asked the other ranks, it tells only whether this rank has it.
    """

    schemes: tuple[Scheme, ...]
    rule: RuleOrRules
    plan: PlanOptions
    engine: EngineOptions
    ranks: tuple[int, ...]
    inline: bool = False


def applies_at_peers(topology: Topology) -> bool:
    """Returns whether each rank applies the updates that it receives to its own copy (PeerToPeer)."""
    return getattr(topology, "apply_at", None) == "peers"


def unmeasured(hierarchy: Any) -> Any:
    """Returns the hierarchy without its request to measure bandwidths."""
    return replace(hierarchy, bandwidths=None)


def settled(
    ctx: Context,
    topology: Any,
    consistency: Any,
    engine: EngineOptions,
    rules: Mapping[str, AnyRule],
    plan: Plan | None = None,
    measure: Callable[[Any], Any] = unmeasured,
) -> tuple[Scheme, ...]:
    """Returns the schemes, in the order of their first keys. Each key is in exactly one scheme.

    Keys with servers that have the same consistency form one scheme, even if their topologies differ. Keys on equal
    graphs with the same consistency form a scheme too, and so do keys of equal peers. With a quorum, keys of different
    groups are in different schemes.

    Args:
        ctx: the context of the ranks. A topology without hosts uses the hosts of these ranks.
        topology: a value that as_topology takes, or a mapping from names of keys to such values.
        consistency: the consistency of all keys; or a mapping from names of keys, which gives BSP to keys that it
            lacks.
        engine: the options that have the groups.
        rules: the rule of each key, for all keys.
        plan: a plan that was made earlier, and is used in place of the topology.
        measure: the function that becomes Job.measured.

    Raises:
        InvalidArgument: topology or consistency has a wrong value, a mapping names an unknown key, a key is not in
            exactly one group, or a topology refuses the job.
    """
    names = tuple(rules)
    topologies = _topologies(names, as_topology(topology), plan)
    consistencies = _consistencies(names, consistency)
    if plan is not None and len(set(map(with_servers, consistencies.values()))) > 1:
        raise InvalidArgument("plan is a Plan, which is of one scheme: give all keys the same consistency")
    group_of = _group_of(names, engine.groups)
    if plan is not None and len({group_of[name] for name in names if _counts_versions(consistencies[name])}) > 1:
        raise InvalidArgument("plan is a Plan, which is of one scheme: with a quorum leave out plan, or groups")
    groups: list[tuple[Consistency, Topology | None, int, dict[str, Topology]]] = []
    for name, one in topologies.items():
        peers = applies_at_peers(one)
        averages = one.updates_of == "neighbours" and not peers
        its = (on_graph if averages else with_servers)(consistencies[name])
        model = one if one.updates_of in OWN_MODELS or peers else None
        number = group_of[name] if _counts_versions(its) else 0
        for found, other, of_group, group in groups:
            if found == its and of_group == number and (other is model or other == model):
                group[name] = one
                break
        else:
            groups.append((its, model, number, {name: one}))
    schemes = [Scheme(tuple(group), joined(group), its) for its, _, _, group in groups]
    jobs = [_job(ctx, scheme, engine, rules, measure) for scheme in schemes]
    for scheme, job in zip(schemes, jobs, strict=True):
        refused = scheme.topology.refuses(job)
        if refused is not None:
            raise InvalidArgument(refused if len(schemes) == 1 else f"{_told(scheme.names)}: {refused}")
    return tuple(
        replace(scheme, topology=scheme.topology.resolved(job)) for scheme, job in zip(schemes, jobs, strict=True)
    )


def _topologies(names: Sequence[str], topology: Topology, plan: Plan | None) -> dict[str, Topology]:
    if plan is None:
        return by_names(topology, names)
    if topology.updates_of in OWN_MODELS:
        raise InvalidArgument(
            f"plan is a Plan, and topology {topology!r} makes one of its own: leave one of the two out"
        )
    return dict.fromkeys(names, Planned(plan))


def _consistencies(names: Sequence[str], consistency: Any) -> dict[str, Consistency]:
    if not isinstance(consistency, Mapping):
        return dict.fromkeys(names, _checked("consistency", consistency))
    check_names("consistency", consistency, names)
    given = {name: _checked(f"consistency of {name!r}", one) for name, one in consistency.items()}
    return {name: given.get(name, BSP) for name in names}


def _counts_versions(consistency: Consistency) -> bool:
    """Returns whether the engine counts one version for all keys of a scheme. It does so with a quorum. (ASYNC has a
    field quorum too, which does not count.)"""
    return consistency.quorum is not None and consistency != ASYNC


def _group_of(names: Sequence[str], groups: Sequence[Sequence[str]] | None) -> dict[str, int]:
    """Returns the number of each key's group."""
    if groups is None:
        return dict.fromkeys(names, 0)
    found: dict[str, int] = {}
    for number, group in enumerate(groups):
        check_names("groups", group, names)
        for name in group:
            if name in found:
                raise InvalidArgument(f"groups has key {name!r} twice: each key is in exactly one group")
            found[name] = number
    missing = [name for name in names if name not in found]
    if missing:
        raise InvalidArgument(f"groups leaves out key {missing[0]!r}: each key is in exactly one group")
    return found


def _checked(what: str, consistency: object) -> Consistency:
    if not isinstance(consistency, Consistency):
        raise InvalidArgument(f"{what} is {consistency!r}: must be a Consistency")
    return consistency


def _job(
    ctx: Context,
    scheme: Scheme,
    engine: EngineOptions,
    rules: Mapping[str, AnyRule],
    measure: Callable[[Any], Any],
) -> Job:
    own = [rules[name] for name in scheme.names]
    return Job(
        ctx.size,
        ctx.hosts,
        ctx.racks,
        scheme.consistency,
        next((rule.name for rule in own if isinstance(rule, Rule) and rule.fold is not None), None),
        all(isinstance(rule, Average) for rule in own),
        measure,
        partial(trees_for, size=ctx.size, hosts=ctx.hosts),
    )


def _told(names: Sequence[str]) -> str:
    return f"key {names[0]!r}" if len(names) == 1 else f"key {names[0]!r} and {len(names) - 1} more"
