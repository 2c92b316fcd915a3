"""The arguments of a DistributedOptimizer: each rank checks them, all ranks agree on them, and they are resolved into
one value, Asked."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from torch import nn
from torch.optim import Optimizer

from ..codec import Codecs, WireFormat
from ..consistency import BSP, Consistency, with_servers
from ..context import Context
from ..errors import InvalidArgument, NotSupported
from ..exchange import Exchange
from ..exchange.arguments import check_choice, refuse
from ..stage import whole
from ..topology.protocol import Topology
from . import state
from .buffers import KINDS
from .counts import Counts
from .key import ParamKey
from .linear import layers_of
from .local import check_local
from .mode import ROLL, check_clip
from .names import plain_keys
from .rules import Rules, rules_of
from .start import (
    Offer,
    agree,
    at_hub,
    check_hooks,
    check_no_max_norm,
    check_options,
    exchange_options,
    given_of,
    keys_of,
    made,
    offer_of,
    overlaps,
    placed,
    take_state,
    tell_refusal,
)
from .ways import Ways
from .wrapper import check_free, check_kinds

_CHOICES: dict[str, type | tuple[str, ...]] = {
    "apply": ("step", "backward", "after"),
    "buffers": KINDS,
    "sparse": ("dense", "refuse"),
    "skip_weight_grad": bool,
}


class OptimizerArguments(NamedTuple):
    """The arguments of a DistributedOptimizer, in the order of its signature. After the checks, names of parameters
    lack the prefixes of wrappers (names.py), and options have the form that Exchange takes."""

    apply: str
    clip_norm: float | None
    backward_passes_per_step: int
    buffers: str
    sparse: str
    topology: Any
    consistency: Consistency
    codec: Codecs | None
    overlap: bool | None
    way: str | Mapping[str, str] | None
    batch: int | None
    revisit: int | None
    skip_weight_grad: bool
    lossy: bool | Sequence[WireFormat]
    options: Mapping[str, Any]


class Asked(NamedTuple):
    """The arguments of a DistributedOptimizer once they are resolved.

    Attributes:
        rules: the rules of the exchange; None if the optimizer steps on each rank.
        loaded: for each key name, the state that the wrapped optimizer already had; None if it had none.
        make: a function that makes an exchange from a context, values by name, a rule and options.
        on_graph: whether the ranks' models differ.
        workers: the ranks that train.
    """

    context: Context
    keys: Sequence[ParamKey]
    counts: Counts
    args: OptimizerArguments
    optimizer: Optimizer
    rules: Rules | None
    loaded: Mapping[str, state.Loaded] | None
    make: Callable[..., Exchange]
    ways: Ways
    on_graph: bool
    workers: tuple[int, ...]


class _Checked(NamedTuple):
    """This rank's checked arguments. asked: the layers' ways that the argument way or the setting names; "" if neither
    does."""

    args: OptimizerArguments
    asked: str | Mapping[str, str]
    topology: Topology
    keys: list[ParamKey]
    counts: Counts
    offer: Offer


def asked_of(
    kind: type[Optimizer], optimizer: Optimizer, ctx: Context, model: nn.Module, args: OptimizerArguments
) -> Asked:
    """Checks and resolves the arguments of an optimizer of this kind. Collective. Also gives the wrapped optimizer rank
    0's state on every rank.

    Raises:
        InvalidArgument, NotSupported, ConfigError: as DistributedOptimizer.
    """
    try:
        found = _checked(kind, optimizer, ctx, model, args)
    except Exception as wrong:  # the other ranks wait for this one
        tell_refusal(ctx, wrong)
        raise
    size = agree(ctx, found.offer)
    try:
        if size:
            take_state(ctx, optimizer, found.offer.packed, size)
        return _resolved(optimizer, ctx, model, found, has_state=size > 0)
    except Exception as wrong:
        refuse(ctx, wrong)
        raise


def _checked(
    kind: type[Optimizer], optimizer: Optimizer, ctx: Context, model: nn.Module, args: OptimizerArguments
) -> _Checked:
    check_kinds(optimizer, model, kind)
    check_hooks(model)
    for name, choices in _CHOICES.items():
        check_choice(name, getattr(args, name), choices)
    args = args._replace(overlap=overlaps(ctx, args.overlap))
    check_options(args.options, kind)
    args = args._replace(backward_passes_per_step=whole("backward_passes_per_step", args.backward_passes_per_step, 1))
    if not isinstance(args.consistency, Consistency):
        raise InvalidArgument(f"consistency is {args.consistency!r}: must be a Consistency, one for all parameters")
    args = args._replace(clip_norm=check_clip(args.clip_norm))
    own, counts = placed(args.topology, args.options), Counts()
    servers = own.updates_of == "all"
    topology, codec, way = (plain_keys(model, given) for given in (args.topology, args.codec, args.way))
    options = exchange_options(args.options, codec)
    if not servers and not own.graphs(ctx.size):
        raise InvalidArgument(
            f"topology is {topology!r}: must be one in which the gradients of all ranks count alike, or a graph"
        )
    consistency = with_servers(args.consistency) if servers else args.consistency
    asked = ctx.config.way if way is None else way
    keys = keys_of(optimizer, model, counts, args.sparse, layers_of(model) if asked and ctx.size > 1 else {})
    given = given_of(model, keys)
    ctx._sweep()
    check_free(keys, optimizer)
    if servers:
        check_no_max_norm(model, keys)
    args = args._replace(topology=topology, consistency=consistency, codec=codec, way=way, options=options)
    return _Checked(args, asked, own, keys, counts, offer_of(ctx, optimizer, args.buffers, given))


def _resolved(optimizer: Optimizer, ctx: Context, model: nn.Module, found: _Checked, *, has_state: bool) -> Asked:
    """Resolves the arguments, with the param_groups that all ranks have by now."""
    args, keys, counts, consistency = found.args, found.keys, found.counts, found.args.consistency
    servers, workers = found.topology.updates_of == "all", found.topology.roles(ctx.size)[0]
    names = [[key.name for key in keys if key.group == i] for i in range(len(optimizer.param_groups))]
    rules = rules_of(optimizer, names) if servers else None
    if rules is None:
        check_local(optimizer)
        if servers and consistency != BSP:
            raise NotSupported(f"{type(optimizer).__name__} steps on each rank, by the mean gradient of all: give BSP")
    loaded = state.parse(keys, rules.forms, optimizer.state) if rules and has_state else None
    splits = servers and rules is not None and args.apply != "backward" and consistency == BSP
    if args.apply == "after" and not splits:
        raise NotSupported(
            'apply is "after": it needs BSP with servers, and an optimizer that has a rule in the exchange '
            "(SGD, Adam, AdamW): leave it out"
        )
    asked = _allowed(found, splits, idle=sorted({*range(ctx.size)} - {*workers}))
    slots = {key.name: len(rules.forms[key.group].state) for key in keys} if rules else {}
    counts.state_bytes = sum(4 * k.param.numel() * (slots[k.name] + k.has_master) for k in keys if rules)
    rest = (args.topology, args.codec, args.options["plan"].codec_out, args.lossy)
    ways = Ways(ctx, model, keys, slots, asked or "ps", args.batch, args.revisit, args.skip_weight_grad, *rest)
    make = _maker(args.topology, consistency, args.options, ways)
    return Asked(ctx, keys, counts, args, optimizer, rules, loaded, make, ways, not servers, workers)


def _allowed(found: _Checked, splits: bool, idle: Sequence[int]) -> str | Mapping[str, str]:
    """Returns the ways that were asked for. If only the setting asks, and no layer can be sent as pairs of vectors,
    returns "" instead. Raises NotSupported if the argument asks."""
    if not found.asked or (splits and not idle and not at_hub(found.args.options)):
        return found.asked
    way = found.args.way
    if way is None:
        return ""
    if at_hub(found.args.options):
        raise NotSupported(f"way is {way!r} and servers 'hub': a hub takes matrices: leave way out")
    if idle:
        raise NotSupported(
            f"way is {way!r}, and ranks {idle} only serve: pairs of vectors go from each rank to all: leave way or "
            "placement out"
        )
    raise NotSupported(
        f'way is {way!r}: it needs apply="step" or "after", BSP with servers, and an optimizer that has a rule in the '
        "exchange (SGD, Adam, AdamW): leave it out"
    )


def _maker(given: Any, consistency: Consistency, options: Mapping[str, Any], ways: Ways) -> Callable[..., Exchange]:
    """Returns the function make of Asked. given: the topology; if None, parameter_hub chooses one by the options."""

    def make(ctx: Context, values: dict[str, Any], rule: Any, **more: Any) -> Exchange:
        topology, asked = ways.arranged(given, options)
        codec = asked["plan"].codec
        if ROLL in values and codec is not None and not isinstance(codec, Mapping):  # the roll call gets no codec
            more["codec"] = {name: codec for name in values if name != ROLL}
        ex = made(ctx, values, topology, consistency, rule, {**asked, **more})
        ways.made(ex)
        return ex

    return make
