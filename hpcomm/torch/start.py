"""The start of an optimizer, before its exchange is made: makes the keys, lets any rank refuse the arguments, and takes
the state that the wrapped optimizer already has."""

import hashlib
import inspect
import struct
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from typing import Any, NamedTuple, TypedDict

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..codec import Codecs
from ..consistency import Consistency
from ..context import Context
from ..errors import ConfigError, HpcommError, InvalidArgument
from ..exchange import Exchange
from ..exchange.options import EngineOptions, PlanOptions, Progress, Reduce, apart, engine_options, plan_options
from ..optim import RuleOrRules
from ..presets import parameter_hub
from ..service import is_hub
from ..topology import Hierarchy, ParameterServer
from ..topology.given import as_topology
from ..topology.protocol import Topology
from ..words import unexpected
from .buffers import KINDS
from .copied_key import make_key
from .counts import Counts
from .device import device_of
from .key import ParamKey
from .linear import make_linear
from .names import parameters, plain_name
from .saved import dumped, loaded
from .tensors import broadcast, check_dense, check_written


class Options(TypedDict, total=False):
    """The options of an optimizer: some are passed to its exchange, others are options of parameter_hub that tell which
    ranks serve."""

    plan: PlanOptions
    engine: EngineOptions
    codec_out: Codecs | None
    reduce: Reduce
    progress: Progress
    placement: str
    servers: int | Iterable[int] | str


SERVER_OPTIONS = tuple(field.name for field in fields(ParameterServer))

# number of the value of buffers=, digest of the given tensors, whether the optimizer has state, the state's bytes, the
# error
_OFFER = struct.Struct("<b8sbQ240s")
_REFUSED = -1  # in place of the number of the value of buffers=: this rank refuses
_TOLD = 240  # bytes of an error's sentence
_STATE = "the state of the optimizer"


def check_options(options: Mapping[str, Any], call: type[Optimizer]) -> None:
    """Raises for options that the class does not take. If an option has the name that another library uses, the error
    gives hpcomm's name for it.

    Raises:
        TypeError: no option has that name.
        InvalidArgument: hpcomm.torch decides this option itself.
    """
    known = {*Options.__optional_keys__, *(inspect.unwrap(call.__init__).__kwdefaults__ or ())}
    for name in options:
        if name not in known and name != "rule":
            raise apart(call.__name__, name) or unexpected(call.__name__, name, known)
    if "rule" in options:
        raise InvalidArgument("rule: it is that of the optimizer: leave it out")
    plan = options.get("plan", PlanOptions())
    if not isinstance(plan, PlanOptions):
        raise InvalidArgument(f"plan is a {type(plan).__name__}: must be PlanOptions")
    engine = engine_options(options.get("engine", EngineOptions()), {})
    for name in ("shared_params", "in_place", "split", "groups"):
        if getattr(engine, name):
            raise InvalidArgument(f"engine has {name}: hpcomm.torch decides it, leave it out")


def exchange_options(options: Mapping[str, Any], codec: Codecs | None) -> dict[str, Any]:
    """Returns the options in the form that Exchange takes: single options are put into the options plan and engine."""
    rest = {name: one for name, one in options.items() if name not in ("codec_out", "reduce", "progress")}
    given = {name: one for name, one in {**options, "codec": codec}.items() if one is not None}
    engine = engine_options(options.get("engine", EngineOptions()), given)
    return {**rest, "plan": plan_options(options.get("plan"), given), "engine": engine}


def made(
    ctx: Context,
    values: Mapping[str, Any],
    topology: Any,
    consistency: Consistency,
    rule: RuleOrRules,
    options: Mapping[str, Any],
) -> Exchange:
    """Returns an Exchange of these values. If topology is None, or a hub serves, parameter_hub looks at the options."""
    if topology is None or at_hub(options):
        where = "auto" if topology is None else topology
        return parameter_hub(ctx, values, topology=where, rule=rule, consistency=consistency, **options)
    return Exchange(ctx, values, topology, consistency, rule, **options)


def server_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns those options that are arguments of ParameterServer."""
    return {name: options[name] for name in SERVER_OPTIONS if options.get(name) is not None}


def at_hub(options: Mapping[str, Any]) -> bool:
    """Returns whether the hub of a ServiceContext serves."""
    return is_hub(options.get("servers"))


def placed(topology: Any, options: Mapping[str, Any]) -> Topology:
    """Returns the topology that the argument topology or the options of parameter_hub give. At a hub it is that of the
    workers, who all train."""
    named = server_options(options)
    if at_hub(options) and (topology is None or isinstance(topology, Hierarchy)):
        return ParameterServer()
    if named and topology is not None:
        raise InvalidArgument(f"topology and {next(iter(named))} are given: give the topology alone")
    return ParameterServer(**named) if named else as_topology("auto" if topology is None else topology)


def keys_of(
    optimizer: Optimizer, model: nn.Module, counts: Counts, sparse: str, layers: Mapping[int, nn.Linear]
) -> list[ParamKey]:
    """Returns a key for each parameter of the optimizer, in the order of the model. layers: the layers whose gradients
    may be sent as pairs of vectors, by id of their weight."""
    groups = {id(p): i for i, group in enumerate(optimizer.param_groups) for p in group["params"]}
    named = {name: param for name, param in parameters(model) if id(param) in groups}
    for name, param in named.items():
        check_dense(f"parameter {name!r}", param)  # before numel(), which a lazy parameter does not have
    device, keys = device_of(named), []
    for name, param in named.items():
        group = groups.pop(id(param))
        if param.numel():
            args = (name, param, group, counts, sparse)
            layer = layers.get(id(param)) if param.dtype == torch.float32 else None
            keys.append(make_key(*args, device) if layer is None else make_linear(layer, *args, device))
    if groups:
        raise InvalidArgument(
            f"{len(groups)} parameters of the optimizer are not parameters of the model: a parameter goes by its name"
        )
    if not keys:
        raise InvalidArgument("the optimizer has no parameters with elements")
    return keys


def given_of(model: nn.Module, keys: Sequence[ParamKey]) -> dict[str, Tensor]:
    """Returns the tensors other than keys that rank 0 gives to all ranks at the start: buffers, and parameters that the
    optimizer does not have. Errors use the same names.

    Raises:
        InvalidArgument: a tensor cannot be exchanged or written.
    """
    mine = {id(key.param) for key in keys}
    found: dict[str, Tensor] = {
        f"parameter {name!r}": param for name, param in parameters(model) if id(param) not in mine
    }
    plain = plain_name(model)
    found |= {f"buffer {plain(name)!r}": buffer for name, buffer in model.named_buffers()}
    for what, tensor in found.items():
        check_written(what, tensor)
    return found


def overlaps(ctx: Context, given: bool | None) -> bool:
    """Returns the argument overlap if it is not None, otherwise the setting of the context."""
    if given is None:
        return ctx.config.overlap
    if not isinstance(given, bool):
        raise InvalidArgument(f"overlap is {given!r}: must be True, False or None")
    return given


def check_no_max_norm(model: nn.Module, keys: Sequence[ParamKey]) -> None:
    """Raises for embeddings that change their weight in a forward pass (max_norm)."""
    mine = {id(key.param) for key in keys}
    for name, module in model.named_modules():
        looks_up = isinstance(module, nn.Embedding | nn.EmbeddingBag)
        if looks_up and module.max_norm is not None and id(module.weight) in mine:
            raise InvalidArgument(
                f"{name or 'the model'} has max_norm={module.max_norm}, by which each rank rescales the rows of its "
                "own batch in its forward pass, and the ranks would differ: clip the weight after step(), on all ranks "
                "alike"
            )


def check_hooks(model: nn.Module) -> None:
    """Raises for modules with parameters that take no hooks, such as modules of torch.jit.script."""
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule) and any(True for _ in module.parameters()):
            try:
                module.register_forward_pre_hook(lambda *_: None).remove()
            except RuntimeError:
                raise InvalidArgument(
                    f"{name or 'the model'} is a ScriptModule, which takes no hooks: give the module that was "
                    "scripted, compiled by torch.compile or traced by torch.jit.trace if it must be fast"
                ) from None


class Offer(NamedTuple):
    """The values that a rank gives the others at the start.

    Attributes:
        buffers: the argument buffers.
        given: a digest of the names, shapes and dtypes of the result of given_of.
        has_state: whether the wrapped optimizer already has state, as after load_state_dict.
        packed: on rank 0, its state_dict as bytes, if it has state.
    """

    buffers: str
    given: bytes
    has_state: bool
    packed: bytes


def model_digest(given: Mapping[str, Tensor]) -> bytes:
    """Returns a digest of names, shapes and dtypes. given: the result of given_of."""
    told = [(what, tuple(one.shape), str(one.dtype)) for what, one in given.items()]
    return hashlib.blake2b(repr(told).encode(), digest_size=8).digest()


def offer_of(ctx: Context, optimizer: Optimizer, buffers: str, given: Mapping[str, Tensor]) -> Offer:
    digest = model_digest(given)
    has_state = any(optimizer.state.values())
    sent = dumped({_STATE: optimizer.state_dict()}) if has_state and ctx.rank == 0 else b""
    return Offer(buffers, digest, has_state, sent)


def tell_refusal(ctx: Context, wrong: Exception) -> None:
    """Takes part in agree() only to tell every rank why this rank refuses its arguments."""
    with suppress(HpcommError):
        ctx.allgather(_OFFER.pack(_REFUSED, b"", False, 0, str(wrong).encode()[:240]))


def agree(ctx: Context, offer: Offer) -> int:
    """Returns the number of bytes of rank 0's packed state; 0 if no rank has state. Collective.

    Raises:
        InvalidArgument: another rank refuses its arguments.
        ConfigError: ranks gave different buffers=, or models with different tensors; or another rank has state and rank
            0 has none.
    """
    told = _OFFER.pack(KINDS.index(offer.buffers), offer.given, offer.has_state, len(offer.packed), b"")
    every = [_OFFER.unpack(part) for part in ctx.allgather(told)]
    for rank, (kind, _, _, _, wrong) in enumerate(every):
        if kind == _REFUSED:
            raise InvalidArgument(f"rank {rank}: {wrong.rstrip(bytes(1)).decode(errors='ignore')}")
    kinds = [KINDS[kind] for kind, *_ in every]
    if len(set(kinds)) > 1:
        raise ConfigError(f"buffers is {_by_rank(kinds)}: must be the same on every rank")
    if other := [rank for rank, own in enumerate(every) if own[1] != every[0][1]]:
        raise ConfigError(
            f"the model has other buffers, or other parameters beside the optimizer's, on rank {other[0]} than on rank "
            "0: their names, shapes and dtypes must agree, give the same model on every rank"
        )
    with_state = [rank for rank, own in enumerate(every) if own[2]]
    if with_state and with_state[0] != 0:
        raise ConfigError(
            f"the optimizer has state on ranks {with_state} and not on rank 0, whose state every rank starts from: "
            "load it on rank 0 as well"
        )
    return int(every[0][3])


def take_state(ctx: Context, optimizer: Optimizer, packed: bytes, size: int) -> None:
    """Gives the wrapped optimizer rank 0's state and param_groups. Collective.

    Raises:
        InvalidArgument: on some rank the optimizer does not accept them.
    """
    values = torch.frombuffer(bytearray(packed or size), dtype=torch.uint8)
    broadcast(ctx, [values])
    wrong = ""
    if ctx.rank:
        try:
            optimizer.load_state_dict(loaded(values.numpy().tobytes())[_STATE])
        except Exception as failed:  # the other ranks wait for this one
            wrong = str(failed) or type(failed).__name__
    for rank, told in enumerate(ctx.allgather(wrong.encode()[:_TOLD].ljust(_TOLD, b"\0"))):
        if sentence := told.rstrip(b"\0").decode(errors="ignore"):
            raise InvalidArgument(f"the optimizer of rank {rank} does not take the state of rank 0's: {sentence}")


def _by_rank(values: Sequence[str]) -> str:
    return ", ".join(f"{value!r} on rank {rank}" for rank, value in enumerate(values))
