"""With a codec: an exchange with one key for each parameter.

Ranks push gradients, and the exchange's parameters are the mean gradients (the rule Assign). A codec's residual belongs
to the key, so DDP may move parameters between buckets."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...codec import Codecs, Factors, Products, WireFormat
from ...codec import asked as codecs_of
from ...context import Context
from ...errors import InvalidArgument
from ...exchange import Handle, PlanOptions
from ...optim import Assign
from ...presets import parameter_hub
from ...topology.given import Given, as_topology
from ..tensors import Order, as_float32, as_tensor, flat, order_of
from . import residuals
from .bucket import SentBucket, check

_NAME = "allreduce_hook"
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class HookOptions(NamedTuple):
    """The arguments of the exchange that the trainer gives."""

    codec: Codecs
    topology: Given
    codec_out: Codecs | None


class BucketKey(NamedTuple):
    """A parameter's key: its name, the order in which its dimensions lie in memory, and its shape in this order."""

    name: str
    order: Order
    shape: tuple[int, ...]


def keys_of(parts: Sequence[SentBucket], names: Mapping[int, str]) -> dict[int, BucketKey]:
    """Returns the key of each parameter by id, in the order of the model. names: the parameters' names by id.

    Raises:
        InvalidArgument: a gradient cannot be exchanged.
    """
    found: dict[int, BucketKey] = {}
    for part in parts:
        check(part)
        for param, grad in zip(part.params, part.grads, strict=True):
            name = names[id(param)]
            if grad.dtype not in _DTYPES:
                raise InvalidArgument(
                    f"{_NAME}: the gradient of {name!r} is {grad.dtype}: codecs take float32, bfloat16 and float16; "
                    "leave out codec, and each bucket is averaged in its own dtype"
                )
            if grad.numel():  # DDP gives each gradient as a contiguous view, but its elements lie as the parameter's
                order = order_of(param)
                found[id(param)] = BucketKey(name, order, tuple(flat(param, order).shape))
    if not found:
        raise InvalidArgument(f"{_NAME}: the model has no parameters with elements")
    place = {param: i for i, param in enumerate(names)}
    return dict(sorted(found.items(), key=lambda one: place[one[0]]))


def check_asked(asked: HookOptions) -> None:
    """Raises InvalidArgument for an unknown codec, and for a codec or a topology that does not give every rank the mean
    of all gradients."""
    codec, topology, _ = asked
    named = codec if isinstance(codec, Mapping) else {"all parameters": codec}
    for one in codecs_of(tuple(named), named):
        if isinstance(one, Factors | Products):
            raise InvalidArgument(
                f"codec is {one!r}: DDP's buckets have gradients as matrices, and no pairs of vectors: give another "
                "codec, or use DistributedOptimizer(way=...)"
            )
    if as_topology(topology).updates_of != "all":
        raise InvalidArgument(
            f"topology is {topology!r}: must be one in which the updates of all ranks count alike, and no graph"
        )


def check_all_train(ctx: Context, topology: Given) -> None:
    """Raises InvalidArgument for a topology in which ranks only serve."""
    if idle := sorted({*range(ctx.size)} - {*as_topology(topology).roles(ctx.size)[0]}):
        raise InvalidArgument(f"ranks {idle} would only serve: every rank of DDP trains: leave placement out")


class Coded:
    """Averages buckets by an exchange of their parameters."""

    def __init__(self, ctx: Context, keys: Mapping[int, BucketKey], asked: HookOptions, timeout: float) -> None:
        """keys: by id of the parameter, in the same order on every rank. Collective."""
        values = {key.name: np.zeros(key.shape, np.float32) for key in keys.values()}
        plan = PlanOptions(codec=asked.codec, codec_out=asked.codec_out)
        self.exchange = parameter_hub(ctx, values, topology=asked.topology, rule=Assign(), plan=plan, timeout=timeout)
        self._keys, self._timeout = keys, timeout
        self._started: dict[SentBucket, list[tuple[Handle, Tensor]]] = {}

    @property
    def codecs(self) -> Mapping[str, WireFormat]:
        """The codec of each parameter by name."""
        return self.exchange.codecs

    def send(self, part: SentBucket) -> None:
        exchange = self.exchange
        started = self._started[part] = []
        with exchange.together():
            for param, grad in zip(part.params, part.grads, strict=True):
                if not grad.numel():
                    continue
                key = self._keys.get(id(param))
                if key is None:
                    raise InvalidArgument(
                        f"{_NAME}: a parameter of shape {tuple(param.shape)} was not in the first backward pass: a "
                        "HookState with a codec is for one model: make another one"
                    )
                value = as_float32(grad.view(key.shape), None)
                started.append((exchange.push_pull_nb(key.name, value, self._timeout), grad))

    def take(self, part: SentBucket) -> None:
        for handle, grad in self._started.pop(part):
            mean = as_tensor(handle.wait(self._timeout))
            grad.copy_(mean.view(grad.shape))

    # ---- residuals ---------------------------------------------------------------------------------------------------

    def saved(self) -> dict[str, Any]:
        """Returns this rank's residuals, in the form that restore takes."""
        return residuals.saved(self.exchange, {key.name: key.order for key in self._keys.values()})

    def restore(self, found: Mapping[str, Any]) -> None:
        """Loads a result of saved(). Collective.

        Raises:
            InvalidArgument: on some rank it is of another model. Then nothing has changed.
        """
        residuals.restore(self.exchange, {key.name: key.order for key in self._keys.values()}, found)

    def close(self) -> None:
        self._started.clear()
        self.exchange.close(self._timeout)
