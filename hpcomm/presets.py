"""Presets: each paper as a function that returns an Exchange of that paper's parts."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .codec import Threshold
from .consistency import BSP, NOTIFY_ACK
from .context import Context
from .errors import HpcommError, InvalidArgument
from .exchange import Exchange
from .exchange.arguments import refuse
from .exchange.options import Consistencies, EngineOptions
from .graphs import root_expander
from .optim import SGD, Average, Nesterov, RuleOrRules, or_default
from .topology import HostGraph, ParameterServer, Tree
from .topology.automatic import Automatic
from .topology.given import Given, as_topology
from .topology.owner_trees import Trees
from .topology.phases import Graphs

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .exchange.options import More, MoreButCodec

_RULE = Nesterov()


def parameter_hub(
    ctx: Context,
    params: Mapping[str, Any],
    *,
    topology: Given = "auto",
    placement: str | None = None,
    servers: int | Iterable[int] | None = None,
    affinity: str | None = None,
    interfaces: int | None = None,
    apply_at: str | None = None,
    tree: Trees = None,
    consistency: Consistencies = BSP,
    rule: RuleOrRules | None = None,
    **options: "Unpack[More]",
) -> Exchange:
    """PHub (Luo et al., SoCC 2018): a parameter server whose cores each own chunks of 32 KiB for life, under BSP, with
    Nesterov's rule (sections 3.2 and 4.2). Arguments and errors are Exchange's, except:

    Args:
        rule: None: Nesterov(lr=0.01, momentum=0.9), and a warning says so once.
        topology: "auto": a Hierarchy (section 3.4) if some of several hosts have several ranks, or some of several
            known racks have several hosts, none of the six arguments below is given, and there is no quorum; otherwise
            "flat". Or a Hierarchy, a ParameterServer, or a mapping from names of keys to these.
        placement, servers, affinity, interfaces, apply_at, tree: of a ParameterServer; a Hierarchy has its own
            apply_at.
        options: Exchange's other ones. A Plan stands for the topology too.
    """
    given = {
        "placement": placement,
        "servers": servers,
        "affinity": affinity,
        "interfaces": interfaces,
        "apply_at": apply_at,
        "tree": tree,
    }
    named: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    try:
        if named and topology not in ("auto", "flat"):
            raise InvalidArgument(f"topology and {next(iter(named))} are given: give the topology alone")
        own = ParameterServer(**named) if named else topology
        if as_topology(own).updates_of != "all":
            raise InvalidArgument(
                f"topology is {own!r}: must be 'auto', 'flat', a Hierarchy or a ParameterServer; for graphs there is "
                "stochastic_reduce"
            )
    except HpcommError as wrong:
        if isinstance(ctx, Context):
            refuse(ctx, wrong)
        raise
    chosen = or_default(rule, _RULE, getattr(ctx, "rank", -1))
    return Exchange(ctx, params, own, consistency, chosen, **options)


_UPDATES = SGD(lr=1.0)


def parameter_flow(
    ctx: Context,
    params: Mapping[str, Any],
    *,
    delta: float,
    up: float | None = None,
    at_least: float | None = None,
    follow: str = "probes",
    tree: Trees = "auto",
    decays: bool = True,
    form: str = "bytes",
    values: str = "float32",
    compress: str | None = None,
    placement: str = "CS",
    servers: int | Iterable[int] | None = None,
    consistency: Consistencies = BSP,
    rule: RuleOrRules = _UPDATES,
    **options: "Unpack[MoreButCodec]",
) -> Exchange:
    """Parameter Flow: updates alone travel, and each worker applies their sum by itself (UCC, section 3.2); small
    elements wait (DVF, section 3.3); sums go down trees (TSB, section 3.4). Under BSP, SSP(s) or ASYNC.

        ex = hpcomm.parameter_flow(ctx, {"w": w0}, delta=1e-4, up=2e-4, at_least=6.25e6)
        for t, batch in enumerate(batches, 1):
            w = ex.push_pull("w", eta / math.sqrt(t) * gradient(w, batch))

    delta is compared with the pushed values. The paper pushes updates that contain the learning rate, and the rule
    SGD(lr=1.0) subtracts them; for a rule with a learning rate push gradients. Arguments and errors are Exchange's,
    except:

    Args:
        delta, up, at_least, follow, decays, form, values, compress: of codec.Threshold. form="paper" and
            compress="snappy" are the paper's.
        tree, placement, servers: of ParameterServer. If none is given, and parameter_hub would take a Hierarchy, so
            does this: each host sends one update, and gets one.
        options: Exchange's other ones, e.g. reduce="sum" as the paper has it. SSP(s) needs s + 2 slots for each piece,
            here and at every rank that passes it on.
    """
    try:
        codec = Threshold(
            delta,
            up=up,
            at_least=at_least,
            follow=follow,
            decays=decays,
            form=form,
            values=values,
            compress=compress,
        )
        topology: Given = (
            Automatic(apply_at="receivers")
            if (placement, servers, tree) == ("CS", None, "auto")
            else ParameterServer(placement, servers, apply_at="receivers", tree=tree)
        )
    except HpcommError as wrong:
        if isinstance(ctx, Context):
            refuse(ctx, wrong)
        raise
    return Exchange(ctx, params, topology, consistency, rule, codec=codec, **options)


_AVERAGE = Average()
_TREE = Tree()


def broadcast(
    ctx: Context,
    params: Mapping[str, Any],
    topology: Tree = _TREE,
    *,
    consistency: Consistencies = BSP,
    **options: "Unpack[More]",
) -> Exchange:
    """A broadcast: the pushes of one rank come to all, from rank to rank by a tree (Parameter Flow, section 3.4).
    Arguments and errors are Exchange's; topology is the Tree, by default a binary one from rank 0.

        ex = hpcomm.broadcast(ctx, {"w": w0}, hpcomm.Tree(arity=1))
        w = ex.push_pull("w", new) if ctx.rank == 0 else ex.push_pull("w")

    A rank that is not the root gives nothing: its push says that it is done with the last parameters, and waits.
    """
    try:
        if as_topology(topology).updates_of != "root":
            raise InvalidArgument(f"topology is {topology!r}: must be a Tree")
    except HpcommError as wrong:
        if isinstance(ctx, Context):
            refuse(ctx, wrong)
        raise
    return Exchange(ctx, params, topology, consistency, _AVERAGE, **options)


def stochastic_reduce(
    ctx: Context,
    params: Mapping[str, Any],
    *,
    topology: Graphs | Callable[[int], Graphs] | HostGraph | None = None,
    consistency: Consistencies = NOTIFY_ACK,
    rule: RuleOrRules = _AVERAGE,
    in_place: bool = False,
    **options: "Unpack[More]",
) -> Exchange:
    """ASAP (Kadav and Kruus, 2016): every rank averages its model with the models of its in-neighbours in a sparse
    graph, and waits for no other rank (sections 3 and 4).

        ex = hpcomm.stochastic_reduce(ctx, {"w": w0}, in_place=True)
        w = ex.params["w"]
        for batch in batches:
            w -= lr * gradient(w, batch)    # the local model, trained where it lies
            w = ex.push_pull("w")           # the weighted average of it and the neighbours' models

    Arguments and errors are Exchange's, except:

    Args:
        topology: a Graph of hpcomm.graphs, or several that the steps take in turn, or a function that gives them for a
            number of ranks, by which recover rebuilds them; None: root_expander, two out-neighbours each. Or a
            topology.HostGraph, whose nodes are the hosts: the ranks of a host average their models first, and have the
            same model then. Under NOTIFY_ACK or BSP, without in_place.
        consistency: NOTIFY_ACK, BSP, SSP(s), or for comparison BARRIER or ASYNC. Consistency(quorum=q) goes on without
            stragglers (docs/stochastic_reduce.md).
        rule: Average: ranks push models. Any other rule takes gradients, which are folded by the graph's weights and
            applied to this rank's own parameters.
        in_place: of EngineOptions: the trainer trains params where they lie. Without it the trainer writes its update
            into gradient(name).
        options: Exchange's other ones.
    """
    given: Any = root_expander if topology is None else topology
    engine = options.get("engine", EngineOptions())
    if in_place and isinstance(engine, EngineOptions):  # Exchange refuses another one
        options["engine"] = replace(engine, in_place=in_place)
    return Exchange(ctx, params, given, consistency, rule, **options)
