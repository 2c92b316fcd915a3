"""The arguments of an exchange: checks, and the form that C takes."""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate, zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _core, optim
from ..consistency import ASYNC, BARRIER, BSP, NOTIFY_ACK, SSP, Consistency
from ..context import Context
from ..errors import HpcommError, InvalidArgument, NotSupported
from ..graphs import Graph
from ..optim import AnyRule, Dual, Rule
from ..plan import Plan, Rows, c_keys
from ..prox import OwnProx
from ..stage import Key, whole
from ..topology.by_key import check_names, check_workers, join
from ..topology.protocol import Request, Topology
from ..window import as_source
from .codecs import KeyCodecs, codecs_of
from .schemes import OWN_MODELS, Made, Scheme, applies_at_peers
from .shards import Span


@dataclass(frozen=True)
class Compiled:
    """A scheme in the form that C takes.

    Attributes:
        scheme: the keys, with their topology and consistency.
        mode: the engine's name of the consistency.
        plan: the plan of these keys.
        phases: the graphs that successive steps use in turn; () with servers.
        graph: C's struct of these graphs; None with servers.
    """

    scheme: Scheme
    mode: str
    plan: Plan
    phases: tuple[Graph, ...]
    graph: Any


@dataclass(frozen=True)
class Checked:
    """The arguments of an exchange in the form that C takes.

    Attributes:
        values: the keys with their initial values, scheme after scheme. This is the order of the keys' numbers in C.
        schemes: the schemes, each with the plan of its keys.
        plan: the plan of all keys, with C's numbers of keys and rows.
        rules: the rule of each key, in the same order.
        c_rules: C's struct of each key's rule.
        codecs: the codec of each key.
    """

    values: dict[str, NDArray[np.float32]]
    schemes: tuple[Compiled, ...]
    plan: Plan
    rules: dict[str, AnyRule]
    c_rules: list[Any]
    codecs: KeyCodecs


def check_options(made: Made, names: Sequence[str]) -> None:
    """Refuses invalid options, except checks that need a plan."""
    check_choice("progress", made.engine.progress, tuple(_core.PROGRESS))
    check_patience(made.engine.patience)
    check_weight(made.engine.weight)
    for what, given in (("codec", made.plan.codec), ("codec_out", made.plan.codec_out)):
        check_names(what, given if isinstance(given, Mapping) else (), names)


def checked(
    ctx: Context,
    values: dict[str, NDArray[np.float32]],
    rules: dict[str, AnyRule],
    made: Made,
    isa: str,
    spare: Sequence[tuple[int, int]],
    kept: Sequence[Compiled] = (),
) -> Checked:
    """Returns the checked keys and rules, with the plan of each scheme. Raises the errors of Exchange for invalid
    arguments.

    Args:
        spare: the result of spare_cores for each scheme.
        kept: schemes that already have a plan.
    """
    keys = {name: _as_key(name, value, rules[name]) for name, value in values.items()}
    have = {one.scheme.names: one for one in kept}
    schemes = tuple(
        have.get(scheme.names) or _compiled(ctx, scheme, keys, made, *cores)
        for scheme, cores in zip(made.schemes, spare, strict=True)
    )
    check_workers([one.plan.workers for one in schemes])
    names = [name for one in schemes for name in one.scheme.names]
    values, rules = {name: values[name] for name in names}, {name: rules[name] for name in names}
    plan = _one_plan([one.plan for one in schemes])
    codecs = codecs_of(plan, made.plan.codec)
    return Checked(values, schemes, plan, rules, _c_rules(rules, values, isa), codecs)


def _one_plan(plans: Sequence[Plan]) -> Plan:
    """Returns one plan with the rows of all these plans, plan after plan."""
    if len(plans) == 1:
        return plans[0]
    ends = list(accumulate(len(plan.keys) for plan in plans))
    parts = [(plan, list(range(end - len(plan.keys), end))) for plan, end in zip(plans, ends, strict=True)]
    return join([key for plan in plans for key in plan.keys], plans[0].size, parts)


def _as_key(name: str, value: NDArray[np.float32], rule: AnyRule) -> NDArray[np.float32] | Key:
    """Returns the array unchanged; if the rule has a prox, a Key with the unit that the prox needs."""
    prox = optim.prox_of(rule)
    if prox is None:
        return value
    if value.ndim != 2:
        raise InvalidArgument(
            f"key {name!r} has shape {value.shape}: the prox of {type(rule).__name__} needs a matrix; give this key "
            "another rule by a mapping, such as SGD"
        )
    return Key(name, value.shape, unit=value.size if prox.takes_matrix else value.shape[1])


def _compiled(
    ctx: Context,
    scheme: Scheme,
    keys: Mapping[str, NDArray[np.float32] | Key],
    made: Made,
    spare: int,
    interfaces: int,
) -> Compiled:
    topology, options, own = scheme.topology, made.plan, {name: keys[name] for name in scheme.names}
    phases = topology.graphs(ctx.size)
    weighs = topology.updates_of in OWN_MODELS and not applies_at_peers(topology)
    mode = engine_mode(scheme.consistency, bool(phases))
    codec, codec_out = (_of(scheme.names, given) for given in (options.codec, options.codec_out))
    request = Request(
        own,
        ctx.size,
        consistency=scheme.consistency,
        in_place=bool(made.engine.in_place),
        reduce="mean" if weighs and len(made.schemes) > 1 else options.reduce,  # then reduce is for other schemes
        interfaces=interfaces,
        cores=_cores(spare, interfaces, made),
        chunk_bytes=options.chunk_bytes,
        depth=2 if (phases or weighs) and made.engine.split and options.depth == 1 else options.depth,
        codec=codec,
        codec_out=codec_out,
        over_sockets=_core.over_sockets(ctx._handle, _involved(topology, ctx.size)),
    )
    plan = topology.compile(request)
    check_plan(plan, own, ctx.size)
    c_graph = _c_graph(plan, phases) if phases else None
    return Compiled(scheme, mode, plan, phases, c_graph)


def _of(names: Sequence[str], codecs: Any) -> Any:
    """Returns the argument codec or codec_out, restricted to these keys."""
    return {name: codecs[name] for name in names if name in codecs} if isinstance(codecs, Mapping) else codecs


def _c_graph(plan: Plan, phases: Sequence[Graph]) -> Any:
    weights = np.stack([graph.dense() for graph in phases])
    return _core.plan_arguments(
        "graph", c_keys(plan.keys), n_phases=len(phases), ranks=len(weights[0]), weights=weights
    )


def _involved(topology: Topology, size: int) -> tuple[int, ...]:
    """Returns the ranks that work or fold, each once."""
    workers, servers = topology.roles(size)
    return tuple(sorted({whole("roles: a rank", rank, 0, size - 1) for rank in (*workers, *servers)}))


def _cores(spare: int, interfaces: int, made: Made) -> int:
    """Returns how many cores each rank that folds has: the number that the user gave; otherwise one for each NIC
    without threads, or spare with threads. spare is a multiple of the NICs, so that all NICs get equal work."""
    if made.plan.cores is not None:
        return made.plan.cores
    return interfaces if made.inline else spare


def spare_cores(ctx: Context, topology: Topology) -> tuple[int, int]:
    """Returns two numbers, the same on all ranks: how many processor cores each rank that folds can use for threads, a
    multiple of its number of NICs; and this number of NICs."""
    workers, servers = (
        tuple(whole("roles: a rank", rank, 0, ctx.size - 1) for rank in ranks) for ranks in topology.roles(ctx.size)
    )
    interfaces = topology.interfaces or _core.interfaces(ctx._handle, servers)
    return max(1, _core.spare_cores(ctx._handle, workers, servers) // interfaces) * interfaces, interfaces


def any_is_inline(ctx: Context, made: Made, timeout: float) -> bool:
    """Returns whether any rank has progress "inline". Collective; call it once all ranks have accepted their
    arguments."""
    return any(any(told) for told in ctx.allgather(bytes([made.inline]), timeout))


def refuse(ctx: Context, wrong: Exception) -> None:
    """Takes part in the creation of an exchange only to tell every rank why this rank refuses to make it."""
    ctx._tell_refusal(f"{wrong}")
    with suppress(HpcommError):  # every other rank raises this error; this rank raises the argument wrong
        _core.exchange_refuse(ctx._handle, f"rank {ctx.rank}: {wrong}", ctx.config.timeout)


def checked_params(params: Any) -> dict[str, NDArray[np.float32]]:
    """Returns the keys by name, with their initial values as arrays."""
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


def check_weight(weight: Any) -> None:
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < math.inf:
        raise InvalidArgument(f"weight is {weight!r}: must be a number, more than 0")


def check_plan(plan: Plan, values: Mapping[str, NDArray[np.float32] | Key], size: int) -> None:
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


def engine_mode(consistency: Consistency, on_graph: bool) -> str:
    """Returns the name of a consistency in _core.CONSISTENCIES."""
    plain = consistency
    if consistency != ASYNC:  # consistencies other than ASYNC may also have a quorum
        plain = replace(consistency, quorum=None, late=None, grace=None)
    if plain != consistency and replace(plain, quorum=ASYNC.quorum) == ASYNC:
        raise NotSupported(
            f"consistency is {consistency}: ASYNC waits for no update, so it has no quorum: leave quorum out"
        )
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


def owned_rows(plan: Plan, rank: int) -> list[tuple[int, Span]]:
    """Returns the rows whose parameters a rank owns, by number and span."""
    return rows_of(plan.rows, [key.name for key in plan.keys], rank)


def rows_of(rows: Rows, names: Sequence[str], rank: int, first: int = 0) -> list[tuple[int, Span]]:
    """Returns the rows whose parameters a rank owns. names: of the keys. first: the number of the first row."""
    key, offset, count = (rows.column(name).tolist() for name in ("key", "offset", "count"))
    own = (rows.column("owner") == rank) & (rows.column("action") == _core.ACTIONS["apply"])
    return [(first + i, Span(names[key[i]], offset[i], count[i])) for i in np.flatnonzero(own).tolist()]


def check_owners(plan: Plan, op: str) -> None:
    """Refuses a plan in which an element has no owner or several. Rows that apply the same fold, or the same pushes,
    count as one row, since their parameters and state are copies of each other."""
    rows, spans, first = _applied(plan)
    for i in np.flatnonzero(~first).tolist():
        first[i] = not _same_fold(plan, _fold_of(plan, int(rows[i])), _fold_of(plan, int(rows[i - 1])))
    elements = np.bincount(spans[first, 0], spans[first, 2], len(plan.keys))
    for own, n in zip(plan.keys, elements.tolist(), strict=True):
        if n != own.count:
            raise NotSupported(f"{op}: the plan applies {int(n)} elements of key {own.name!r}, which has {own.count}")


def _applied(plan: Plan) -> tuple[NDArray[np.intp], NDArray[np.int64], NDArray[np.bool_]]:
    """Returns the numbers of the rows that apply; their keys, offsets and counts; and for each whether it is the first
    row with its elements."""
    rows = np.flatnonzero(plan.rows.column("action") == _core.ACTIONS["apply"])
    spans = np.stack([plan.rows.column(name)[rows].astype(np.int64) for name in ("key", "offset", "count")], axis=1)
    first = np.ones(len(rows), bool)
    first[1:] = (spans[1:] != spans[:-1]).any(axis=1)
    return rows, spans, first


def _same_fold(plan: Plan, row: int, other: int) -> bool:
    """Returns whether two rows of the same elements apply the same fold of pushes, even if the pushes come over
    different paths."""
    if row == other:
        return True
    mine, theirs = (plan.rows.in_edges(one) for one in (row, other))
    pushes = all(edge.row < 0 for edge in (*mine, *theirs))
    return pushes and [(edge.rank, edge.weight) for edge in mine] == [(edge.rank, edge.weight) for edge in theirs]


def _fold_of(plan: Plan, row: int) -> int:
    """Returns the number of the row that made the fold that this row applies. Other rows may have passed the fold
    on."""
    while True:
        edges = plan.rows.in_edges(row)
        if len(edges) != 1 or edges[0].row < 0 or edges[0].weight != 1:
            return row
        row = edges[0].row


def _c_rules(rules: Mapping[str, AnyRule], values: Mapping[str, NDArray[np.float32]], isa: str) -> list[Any]:
    """Returns C's struct of each key's rule. Keys that were given the same rule object share a struct; if the rule has
    a prox, only keys with equally many columns do."""
    made: dict[tuple[int, int], Any] = {}
    found = []
    for name, rule in rules.items():
        columns = 0 if optim.prox_of(rule) is None else values[name].shape[1]
        if (id(rule), columns) not in made:
            made[id(rule), columns] = c_rule(rule, isa, columns)
        found.append(made[id(rule), columns])
    return found


def c_rule(rule: AnyRule, isa: str, columns: int = 0) -> Any:
    """Returns C's struct of a rule. columns: the number of columns of the key's matrix, if the rule has a prox."""
    return _core.with_arg_names(_nameless(rule, isa, columns), optim.told_names(rule))


def _nameless(rule: AnyRule, isa: str, columns: int) -> Any:
    if isinstance(rule, Rule):
        apply = _core.function_address(rule.apply, "apply")
        fold = 0 if rule.fold is None else _core.function_address(rule.fold, "fold")
        wires = tuple(_core.CODECS[wire] for wire in getattr(rule.fold, "wires", ()))
        return _core.rule_own(optim.c_name(rule), apply, fold, rule.slots, optim.arguments(rule), wires)
    found = _core.rule_found(type(rule).__name__.lower(), optim.arguments(rule), _core.ISAS[isa])
    prox = optim.prox_of(rule)
    if prox is None:
        return found
    own = prox if isinstance(prox, OwnProx) else None
    code = prox.title(isinstance(rule, Dual)) if own is None else _core.function_address(own.code, "prox")
    return _core.with_prox(found, optim.c_name(rule), code, columns, prox.takes_matrix, _core.ISAS[isa])
