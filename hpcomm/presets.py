"""Presets: for each paper a function that returns an Exchange configured as in the paper."""

from collections.abc import Callable, Iterable, Mapping, Sequence
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
from .service import hub_exchange, is_hub
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
    servers: int | Iterable[int] | str | None = None,
    affinity: str | None = None,
    interfaces: int | None = None,
    apply_at: str | None = None,
    tree: Trees = None,
    racks: Sequence[Sequence[int]] | None = None,
    top: str | None = None,
    consistency: Consistencies = BSP,
    rule: RuleOrRules | None = None,
    **options: "Unpack[More]",
) -> Exchange:
    """Makes an Exchange as in PHub (Luo et al., SoCC 2018): a parameter server with chunks of 32 KiB, each always
    worked on by the same core, with BSP and Nesterov's rule (sections 3.2 and 4.2).

    Arguments and errors are Exchange's, except:

    Args:
        rule: None: Nesterov(lr=0.01, momentum=0.9), and rank 0 logs one warning about it.
        topology: a Hierarchy, a ParameterServer, or a mapping from names of keys to these. "auto": "flat" if a quorum
            or one of the next six arguments is given. Otherwise "auto" is a Hierarchy (section 3.4) if there are
            several hosts and some host has several ranks, or several known racks and some rack has several hosts; in
            all other cases it is "flat".
        placement, servers, affinity, interfaces, apply_at, tree: fields of the ParameterServer. To set apply_at of a
            Hierarchy, give topology=Hierarchy(apply_at=...). servers="hub": the hubs of a context of connect_service
            serve (docs/service.md), and a HubExchange is made, which they save and restore. They take no code: rules
            and codecs are those of hpcomm. placement and tree are left out then.
        racks: with servers="hub": racks[i] are the workers of the rack that hub i of the job serves. Each host folds
            its updates, then each rack's hub, and hubs exchange the folds (section 3.4). None: the hubs share all keys.
            Elsewhere give topology=Hierarchy(racks=...).
        top: with racks, "sharded" (the default) or "ring": how hubs exchange folds, as in Hierarchy.
        options: further arguments of Exchange. If plan is given, it is used instead of a topology.
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
    if is_hub(servers):
        del named["servers"]
        hub_rule = or_default(rule, _RULE, getattr(ctx, "rank", -1))
        return hub_exchange(ctx, params, topology, named, consistency, hub_rule, options, racks, top)
    try:
        for name, value in (("racks", racks), ("top", top)):
            if value is not None:
                raise InvalidArgument(
                    f"{name} is {value!r} and servers is not 'hub': give topology=Hierarchy({name}={value!r})"
                )
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
    """Makes an Exchange as in Parameter Flow: no parameters are sent, only updates, and each worker applies their sum
    to its own parameters (UCC, section 3.2). Small elements of an update are sent later (DVF, section 3.3). Sums go to
    the workers down trees (TSB, section 3.4). Use it with BSP, SSP(s) or ASYNC.

        ex = hpcomm.parameter_flow(ctx, {"w": w0}, delta=1e-4, up=2e-4, at_least=6.25e6)
        for t, batch in enumerate(batches, 1):
            w = ex.push_pull("w", eta / math.sqrt(t) * gradient(w, batch))

    delta is compared with the pushed values. As in the paper, the pushed values contain the learning rate, and the
    default rule SGD(lr=1.0) only subtracts them. With a rule that has a learning rate, push gradients instead.
    Arguments and errors are Exchange's, except:

    Args:
        delta, up, at_least, follow, decays, form, values, compress: fields of codec.Threshold. The paper uses
            form="paper" and compress="snappy".
        tree, placement, servers: fields of ParameterServer. If none of them is given and parameter_hub would use a
            Hierarchy, parameter_flow uses one too: each host then sends one update and gets one.
        options: further arguments of Exchange, e.g. reduce="sum" as in the paper. Under SSP(s) each piece needs memory
            for s + 2 slots, on this rank and on every rank that passes the piece on.
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
    """Makes an Exchange that broadcasts: the updates that one rank pushes go to all other ranks down a tree (Parameter
    Flow, section 3.4).

        ex = hpcomm.broadcast(ctx, {"w": w0}, hpcomm.Tree(arity=1))
        w = ex.push_pull("w", new) if ctx.rank == 0 else ex.push_pull("w")

    Arguments and errors are Exchange's; the default topology is a binary tree from rank 0. Ranks other than the root
    also call push_pull, but without values: the call tells that the rank has used the last parameters, and waits for
    the next ones.
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
    """Makes an Exchange as in ASAP (Kadav and Kruus, 2016): every rank averages its model with the models of
    its in-neighbours in a sparse graph, and waits for no other rank (sections 3 and 4).

        ex = hpcomm.stochastic_reduce(ctx, {"w": w0}, in_place=True)
        w = ex.params["w"]
        for batch in batches:
            w -= lr * gradient(w, batch)    # trains the local model in the exchange's memory
            w = ex.push_pull("w")           # the weighted average of this model and the neighbours' models

    Arguments and errors are Exchange's, except:

    Args:
        topology: a Graph of hpcomm.graphs; several graphs, which the steps take in turn; or a function that takes a
            number of ranks and returns one of these, which Exchange.recover() calls again. None: root_expander, with
            two out-neighbours for each rank. Or a topology.HostGraph, whose nodes are hosts: the ranks of a host
            average their models first, so they have the same model afterwards. A HostGraph needs NOTIFY_ACK or BSP, and
            in_place=False.
        consistency: NOTIFY_ACK, BSP, SSP(s), or for comparison BARRIER or ASYNC. With Consistency(quorum=q) a fold
            needs only q updates of neighbours, so it does not wait for stragglers (docs/stochastic_reduce.md).
        rule: with Average, the default, ranks push models. With any other rule ranks push gradients: each rank folds
            its own gradient and its in-neighbours' gradients by the graph's weights, and applies the fold to its own
            parameters.
        in_place: a field of EngineOptions. True: the trainer changes Exchange.params directly. False: the trainer
            writes its update into Exchange.gradient(name), or passes it to the push.
        options: further arguments of Exchange.
    """
    given: Any = root_expander if topology is None else topology
    engine = options.get("engine", EngineOptions())
    if in_place and isinstance(engine, EngineOptions):  # Exchange refuses any other value
        options["engine"] = replace(engine, in_place=in_place)
    return Exchange(ctx, params, given, consistency, rule, **options)
