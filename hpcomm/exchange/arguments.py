"""The arguments of an exchange: checked, and brought into the form that C takes."""

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _core, optim
from ..codec import FLOAT32, Codec, by_key, by_key_out
from ..consistency import ASYNC, BARRIER, BSP, NOTIFY_ACK, SSP, Consistency
from ..context import Context
from ..errors import HpcommError, InvalidArgument, NotSupported
from ..optim import AnyRule, Average, Rule
from ..plan import Plan, graph_handle
from ..stage import whole
from ..topology import Graph, Hierarchy, HostGraph, ParameterServer
from ..topology.by_key import ByKey, Servers
from ..window import as_source
from .codecs import KeyCodecs, codecs_of
from .options import EngineOptions, Made
from .pieces import Span
from .servers import KINDS, applies_at_receivers, goes_apart, has_servers

_MOST_STALENESS = 64  # with servers


@dataclass(frozen=True)
class Checked:
    """The arguments of an exchange, in the form that C takes.

    Attributes:
        values: the keys with their initial values.
        mode: the engine's name of the consistency.
        phases: the graphs that the steps take in turn; () with servers.
        graph: C's struct of these graphs and of how keys are cut; None with servers.
        rules: by key.
        c_rules: by key: C's struct of it.
        codecs: by key.
    """

    values: dict[str, NDArray[np.float32]]
    mode: str
    plan: Plan
    phases: tuple[Graph, ...]
    graph: Any
    rules: dict[str, AnyRule]
    c_rules: list[Any]
    codecs: KeyCodecs


def checked(ctx: Context, params: Any, topology: Any, made: Made, plan: Plan | None, isa: str) -> Checked:
    """Raises what Exchange raises for arguments that cannot be. plan: one that was made earlier."""
    values = checked_params(params)
    rules = optim.by_key(made.rule, values)
    phases = graph_phases(topology, ctx.size)
    mode = engine_mode(made.consistency, bool(phases))
    check_engine(made.engine, bool(phases), rules.values())
    if not phases and (made.consistency.staleness or 0) > _MOST_STALENESS:
        raise InvalidArgument(
            f"staleness is {made.consistency.staleness}: 0 to {_MOST_STALENESS} are possible with servers"
        )
    graph = None
    if phases:
        if plan is not None:
            raise InvalidArgument("plan and a graph are given: the graph makes the plan, give one of them")
        plan, graph = _graph_plan(ctx, values, phases, made)
    elif plan is None:
        plan = _servers_plan(ctx, values, topology, made)
    else:
        check_plan(plan, values, ctx.size)
    codecs = codecs_of(plan, made.plan.codec)
    return Checked(values, mode, plan, phases, graph, rules, _c_rules(rules, isa), codecs)


def check_engine(engine: EngineOptions, on_graph: bool, rules: Iterable[AnyRule]) -> None:
    check_choice("progress", engine.progress, tuple(_core.PROGRESS))
    check_patience(engine.patience)
    if engine.in_place and not (on_graph and all(isinstance(rule, Average) for rule in rules)):
        raise InvalidArgument("in_place needs a graph and rule Average: leave it out")


def _graph_plan(
    ctx: Context, values: dict[str, NDArray[np.float32]], phases: tuple[Graph, ...], made: Made
) -> tuple[Plan, Any]:
    """The plan of the graphs, and the graphs in C."""
    options = made.plan
    if options.reduce != "mean":
        raise InvalidArgument(f"reduce is {options.reduce!r}: on a graph the weights say how updates are folded")
    if any(codec != FLOAT32 for codec in by_key_out(tuple(values), options.codec_out)):
        raise InvalidArgument(
            f"codec_out is {options.codec_out!r}: on a graph parameters stay at their rank, leave it out"
        )
    cores = options.cores
    if cores is None:  # every rank folds for itself: as many as all of them can have for threads
        cores = max(1, _spare_cores(ctx, made.engine, tuple(range(ctx.size))))
    chunk = graph_chunk(values, cores) if options.chunk_bytes is None else options.chunk_bytes
    codecs = by_key(tuple(values), options.codec)
    rotates = bool(made.engine.in_place) and all(codec.name == "float32" for codec in codecs)
    depth = graph_depth(options.depth, made.consistency.staleness or 0, rotates=rotates)
    weights = graph_weights(phases, ctx.size)
    plan = Plan.graph(values, weights, cores=cores, chunk_bytes=chunk, depth=depth, codec=options.codec)
    return plan, graph_handle(values, weights, cores, chunk, depth, codecs)


def _servers_plan(
    ctx: Context, values: dict[str, NDArray[np.float32]], topology: Servers | HostGraph, made: Made
) -> Plan:
    options, servers = made.plan, topology.roles(ctx.size)[1]
    by_topology = topology.interfaces if isinstance(topology, ParameterServer) else None
    interfaces = _core.interfaces(ctx._handle, servers) if by_topology is None else by_topology
    cores = options.cores
    if cores is None:  # the same number for each interface: a NIC needs one, and else their work would differ
        cores = max(1, _spare_cores(ctx, made.engine, servers) // interfaces) * interfaces
    more: dict[str, Any] = {}
    if isinstance(topology, ParameterServer | ByKey | Hierarchy):
        more["each"] = made.consistency == ASYNC
    if isinstance(topology, ParameterServer | ByKey):
        more["interfaces"] = interfaces
    if isinstance(topology, Hierarchy | ByKey):
        more["apart"] = goes_apart(made.consistency)
    if options.chunk_bytes is not None:
        more["chunk_bytes"] = options.chunk_bytes
    elif any(not isinstance(codec, Codec) for codec in by_key(tuple(values), options.codec)):
        more["chunk_bytes"] = pieces_chunk(values, len(servers) * cores)
    depth, staleness = options.depth, made.consistency.staleness or 0
    if staleness and applies_at_receivers(topology):  # a slot for each version that a receiver may not have applied
        depth = max(whole("depth", depth, 0), staleness + 2)
    return topology.compile(
        values,
        ctx.size,
        cores=cores,
        depth=depth,
        codec=options.codec,
        codec_out=options.codec_out,
        reduce=options.reduce,
        **more,
    )


def _spare_cores(ctx: Context, engine: EngineOptions, servers: tuple[int, ...]) -> int:
    return 0 if engine.progress == "inline" else _core.spare_cores(ctx._handle, servers)


def refuse(ctx: Context, wrong: Exception) -> None:
    """Takes part in the creation of an exchange only to tell every rank why this rank refuses it."""
    with suppress(HpcommError):  # every other rank raises it; this rank raises wrong itself
        _core.exchange_refuse(ctx._handle, f"rank {ctx.rank}: {wrong}", ctx.config.timeout)


def checked_params(params: Any) -> dict[str, NDArray[np.float32]]:
    """The keys with their initial values."""
    if not isinstance(params, Mapping) or not params:
        what = "empty" if isinstance(params, Mapping) else f"a {type(params).__name__}"
        raise InvalidArgument(f"params is {what}: must map names to float32 arrays, one or more")
    values = {}
    for name, value in params.items():
        if not isinstance(name, str) or not name:
            raise InvalidArgument(f"params: {name!r} must be a str, the name of a key")
        try:
            found = np.asarray(as_source(value))
        except InvalidArgument as wrong:
            raise InvalidArgument(f"params[{name!r}]: {wrong}") from None
        if found.dtype != np.float32 or not found.dtype.isnative or not found.flags.aligned:
            raise InvalidArgument(f"params[{name!r}] is {found.dtype}: must be float32, native and aligned")
        if found.size == 0:
            raise InvalidArgument(f"params[{name!r}] has shape {found.shape}: a key has one element or more")
        values[name] = found
    return values


def check_choice(name: str, value: Any, choices: type | tuple[str, ...]) -> None:
    if isinstance(choices, type):
        if not isinstance(value, choices):
            raise InvalidArgument(f"{name} is {value!r}: must be a {choices.__name__}")
    elif value not in choices:
        raise InvalidArgument(f"{name} is {value!r}: must be one of {', '.join(map(repr, choices))}")


def check_patience(patience: Any) -> None:
    if patience is None:
        return
    if isinstance(patience, bool) or not isinstance(patience, int | float) or not 1 <= patience < math.inf:
        raise InvalidArgument(f"patience is {patience!r}: must be a number, 1 or more, or None")


def check_plan(plan: Any, values: Mapping[str, NDArray[np.float32]], size: int) -> None:
    """Refuses a plan that was made for other keys or another number of ranks."""
    check_choice("plan", plan, Plan)
    if plan.size != size:
        raise InvalidArgument(f"plan is for {plan.size} ranks: the job has {size}")
    theirs, ours = [(key.name, key.shape) for key in plan.keys], [(name, value.shape) for name, value in values.items()]
    for i, (their, our) in enumerate(zip_longest(theirs, ours)):
        if their != our:
            raise InvalidArgument(
                f"key {i} is {their} in the plan and {our} in params: must be the same, in that order"
            )


def engine_mode(consistency: Any, on_graph: bool) -> str:
    """The name of a consistency in _core.CONSISTENCIES."""
    check_choice("consistency", consistency, Consistency)
    plain = consistency
    if consistency != ASYNC:  # others may have a quorum besides
        plain = replace(consistency, quorum=None, late=None, grace=None)
    known = {"BSP": BSP, "ASYNC": ASYNC}
    if on_graph:
        known |= {"NOTIFY_ACK": NOTIFY_ACK, "BARRIER": BARRIER}
    if consistency.staleness:
        known["SSP"] = SSP(consistency.staleness)
    for name, value in known.items():
        if plain == value:
            return name
    if on_graph:
        raise NotSupported(
            f"consistency is {consistency}: on a graph it must be BSP, NOTIFY_ACK, SSP(s), BARRIER or ASYNC"
        )
    raise NotSupported(
        f"consistency is {consistency}: with servers it must be BSP, SSP(s) or ASYNC; give a graph as the topology for "
        "others"
    )


def graph_phases(topology: Any, size: int) -> tuple[Graph, ...]:
    """The graphs of a topology for a job of size ranks, in turn; none where there are servers."""
    if has_servers(topology):
        return ()
    phases, what = topology, "topology"
    if callable(topology):
        what = f"topology: {getattr(topology, '__name__', topology)}({size})"
        try:
            phases = topology(size)
        except Exception as wrong:
            raise InvalidArgument(f"{what} cannot make a graph: {str(wrong) or type(wrong).__name__}") from wrong
    phases = (phases,) if isinstance(phases, Graph) else phases
    if not isinstance(phases, Sequence) or not phases or not all(isinstance(phase, Graph) for phase in phases):
        raise InvalidArgument(f"{what} is {phases!r}: must be {KINDS}")
    return tuple(phases)


def graph_weights(phases: tuple[Graph, ...], size: int) -> NDArray[np.float64]:
    """The weights of a topology's graphs: (phases, size, size)."""
    for phase in phases:
        if phase.size != size:
            raise InvalidArgument(f"topology is {phase!r}: must have {size} ranks, as the job has")
    return np.stack([phase.dense() for phase in phases])


def graph_chunk(values: Mapping[str, NDArray[np.float32]], cores: Any) -> int:
    """Bytes of a chunk on a graph: from 256 KiB on the cost of a row hardly counts. With several cores each gets about
    four chunks, so that none has more to do."""
    n, chunk, all_bytes = whole("cores", cores, 1), 256 << 10, sum(value.nbytes for value in values.values())
    while n > 1 and chunk > 32 << 10 and 4 * n * chunk > all_bytes:
        chunk //= 2
    return chunk


def pieces_chunk(values: Mapping[str, NDArray[np.float32]], cores: int) -> int:
    """Bytes of a chunk where updates go in pieces, of which each is a message of its own however little it keeps: so
    large that each of so many cores has eight chunks, from 32 KiB to 1 MiB."""
    chunk, all_bytes = 1 << 20, sum(value.nbytes for value in values.values())
    while chunk > 32 << 10 and 8 * cores * chunk > all_bytes:
        chunk //= 2
    return chunk


def graph_depth(depth: Any, staleness: int, *, rotates: bool) -> int:
    """Slots of a key on a graph: as many as staleness, one for the update that is folded, one for the next update, and
    where models rotate one for the model."""
    most = _core.PLAN_DEPTH - rotates
    if staleness > most - 2:
        raise InvalidArgument(f"staleness is {staleness}: 0 to {most - 2} are possible on a graph")
    if rotates:
        depth = whole("depth", depth, 1, most)
    return (max(depth, staleness + 2) if staleness else depth) + rotates  # type: ignore[no-any-return]


def owned_rows(plan: Plan, rank: int) -> list[tuple[int, Span]]:
    """The rows whose parameters a rank owns: their numbers and their spans."""
    key, offset, count = (plan.rows.column(name).tolist() for name in ("key", "offset", "count"))
    own = (plan.rows.column("owner") == rank) & (plan.rows.column("action") == _core.ACTIONS["apply"])
    return [(i, Span(plan.keys[key[i]].name, offset[i], count[i])) for i in np.flatnonzero(own).tolist()]


def has_copies(plan: Plan) -> bool:
    """Whether several rows apply the same elements."""
    _, _, first = _applied(plan)
    return not first.all()


def check_owners(plan: Plan, op: str) -> None:
    """Refuses a plan in which an element has no owner, or several. Rows that apply the same fold count as one: their
    parameters and state are copies."""
    rows, spans, first = _applied(plan)
    for i in np.flatnonzero(~first).tolist():
        first[i] = _fold_of(plan, int(rows[i])) != _fold_of(plan, int(rows[i - 1]))
    elements = np.bincount(spans[first, 0], spans[first, 2], len(plan.keys))
    for own, n in zip(plan.keys, elements.tolist(), strict=True):
        if n != own.count:
            raise NotSupported(f"{op}: the plan applies {int(n)} elements of key {own.name!r}, which has {own.count}")


def _applied(plan: Plan) -> tuple[NDArray[np.intp], NDArray[np.int64], NDArray[np.bool_]]:
    """The rows that apply, their keys, offsets and counts, and whether each is the first of its elements."""
    rows = np.flatnonzero(plan.rows.column("action") == _core.ACTIONS["apply"])
    spans = np.stack([plan.rows.column(name)[rows].astype(np.int64) for name in ("key", "offset", "count")], axis=1)
    first = np.ones(len(rows), bool)
    first[1:] = (spans[1:] != spans[:-1]).any(axis=1)
    return rows, spans, first


def _fold_of(plan: Plan, row: int) -> int:
    """The row whose fold a row has, as it came or passed on by others."""
    while True:
        edges = plan.rows.in_edges(row)
        if len(edges) != 1 or edges[0].row < 0 or edges[0].weight != 1:
            return row
        row = edges[0].row


def _c_rules(rules: Mapping[str, AnyRule], isa: str) -> list[Any]:
    """C's structs; one for all keys that were given the same object."""
    made = {id(rule): c_rule(rule, isa) for rule in rules.values()}
    return [made[id(rule)] for rule in rules.values()]


def c_rule(rule: AnyRule, isa: str) -> Any:
    if isinstance(rule, Rule):
        apply = _core.function_address(rule.apply, "apply")
        fold = 0 if rule.fold is None else _core.function_address(rule.fold, "fold")
        wires = tuple(_core.CODECS[wire] for wire in getattr(rule.fold, "wires", ()))
        return _core.rule_own(optim.c_name(rule), apply, fold, rule.slots, optim.arguments(rule), wires)
    return _core.rule_found(optim.c_name(rule), optim.arguments(rule), _core.ISAS[isa])
