"""Converts an optimizer's state between torch's format and the rows of an exchange's owners. A row is a part of a key
that one rank, its owner, keeps."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import InvalidArgument
from ..exchange import Exchange
from .key import ParamKey
from .rules import Form
from .tensors import as_float32, as_tensor
from .workers import joined

MASTER = "master"  # the name of a 16-bit parameter's float32 values in its state


class ShardRow(NamedTuple):
    """A row in a shard (a result of Exchange.state_dict). It has the row's key and range of elements, and views of the
    row's parameters and state in the shard's arrays."""

    key: int
    offset: int
    length: int
    params: NDArray[np.float32]
    state: NDArray[np.float32]  # (slots, count)


def rows(shard: Mapping[str, Any]) -> Iterator[ShardRow]:
    """Yields the rows of a shard. Their arrays are views of the shard's."""
    at = state_at = 0
    for key, offset, n in zip(*(shard[name].tolist() for name in ("row_key", "row_offset", "row_count")), strict=True):
        size = int(shard["slots"][key]) * n
        state = shard["state"][state_at : state_at + size].reshape(-1, n)
        yield ShardRow(key, offset, n, shard["params"][at : at + n], state)
        at += n
        state_at += size


class Owned(NamedTuple):
    """All values that the owners keep of a key: steps, parameters and state. Each array has the shape (count,), with
    the elements in the order of the parameter's memory."""

    steps: int
    params: NDArray[np.float32]
    state: list[NDArray[np.float32]]


def gather(exchange: Exchange) -> dict[str, Owned]:
    """Returns on every rank the values that the owners keep of each key, by name. Collective.

    While it runs it needs a window of the state's size. Keys of which each rank has a copy are not sent.
    """
    ctx, shard = exchange.context, exchange.state_dict()
    here = [its.copied for its in exchange._state.facts.values()]
    counts, slots = [int(n) for n in shard["counts"]], [int(n) for n in shard["slots"]]
    starts = np.cumsum([0, *(4 * n * (1 + s) for n, s in zip(counts, slots, strict=True))]).tolist()
    end = -(-starts[-1] // 8) * 8  # where the steps begin, behind the values
    window = ctx.window(end + 8 * len(counts))
    steps = np.ascontiguousarray(shard["row_step"], np.uint64)
    for i, row in enumerate(rows(shard)):
        size = 4 * counts[row.key]
        parts: list[tuple[int, NDArray[Any]]] = [(starts[row.key] + 4 * row.offset, row.params)]
        parts += [(starts[row.key] + (j + 1) * size + 4 * row.offset, own) for j, own in enumerate(row.state)]
        parts.append((end + 8 * row.key, steps[i : i + 1]))
        for at, part in parts:
            own = part.view(np.uint8)
            window.array[at : at + own.size] = own
            for peer in () if here[row.key] else range(ctx.size):
                if peer != ctx.rank:
                    window.put(peer, own, at)
    window.flush()
    ctx.barrier()
    memory = window.array.copy()
    found = {}
    every = zip(exchange.plan.keys, starts, counts, slots, memory[end:].view(np.uint64).tolist(), strict=False)
    for key, start, n, s, taken in every:
        whole = memory[start : start + 4 * n * (1 + s)].view(np.float32).reshape(1 + s, n)
        found[key.name] = Owned(int(taken), whole[0], list(whole[1:]))
    return found


def export(exchange: Exchange, keys: Sequence[ParamKey], forms: Sequence[Form]) -> dict[Tensor, dict[str, Any]]:
    """Returns the state of each parameter that has made a step, in torch's format. Collective."""
    found: dict[Tensor, dict[str, Any]] = {}
    owned = gather(exchange)
    for key in keys:
        form, whole = forms[key.group], owned[key.name]
        if not whole.steps:
            continue
        state: dict[str, Any] = {}
        if form.counts:
            state["step"] = torch.tensor(float(whole.steps), dtype=_count_dtype())
        for name, values in zip(form.state, whole.state, strict=True):
            state[name] = _shaped(key, values)
        if key.has_master:
            state[MASTER] = _shaped(key, whole.params)
        if state:
            found[key.param] = state
    return found


class Loaded(NamedTuple):
    """The state of a key that is to be loaded, as in Owned. params: the master; None if torch's state has no master."""

    steps: int
    params: NDArray[np.float32] | None
    state: list[NDArray[np.float32]]


def parse(
    keys: Sequence[ParamKey], forms: Sequence[Form], given: Mapping[Tensor, Mapping[str, Any]]
) -> dict[str, Loaded]:
    """Returns the state of all keys in the form that load() takes. Every rank parses all keys, so that all ranks raise
    the same errors.

    Raises:
        InvalidArgument: the state of a parameter lacks tensors that its optimizer needs, or they have another shape.
    """
    return {key.name: _loaded(key, forms[key.group], given.get(key.param, {})) for key in keys}


def load(exchange: Exchange, found: Mapping[str, Loaded], *, drops: bool = True) -> None:
    """Gives the owners this state, in the form of the result of gather(). Collective; found must be the same on every
    rank. drops: whether codecs' residuals are dropped, since they belong to the training that ends."""
    shard, keys = exchange.state_dict(), exchange.plan.keys
    for i, row in enumerate(rows(shard)):
        if keys[row.key].name not in found:
            continue
        own, part = found[keys[row.key].name], slice(row.offset, row.offset + row.length)
        shard["row_step"][i] = own.steps
        for slot, values in zip(row.state, own.state, strict=True):
            slot[:] = values[part]
        if own.params is not None:
            row.params[:] = own.params[part]
    for name in {"encoders", "encoder_made"} & shard.keys() if drops else ():
        shard[name][:] = 0
    exchange.load_state_dict(shard)


def values_of(keys: Sequence[ParamKey]) -> dict[str, NDArray[np.float32]]:
    """Returns the values of each key's parameter, of shape (count,), in the order of the parameter's memory."""
    return {key.name: key.value().reshape(-1) for key in keys}


def publish(exchange: Exchange, values: Mapping[str, NDArray[np.float32]]) -> None:
    """Gives the owners the values that values_of returned. Collective; the values must be the same on every rank."""
    shard, names = exchange.state_dict(), [key.name for key in exchange.plan.keys]
    for row in rows(shard):
        if names[row.key] in values:
            row.params[:] = values[names[row.key]][row.offset : row.offset + row.length]
    exchange.load_state_dict(shard)


def bytes_of(found: Mapping[str, Loaded], names: Iterable[str], *, drops: bool) -> NDArray[np.uint8]:
    """Returns the arguments of load() as bytes, for a rank that has the same keys. names: the names of all keys."""
    head, parts = [int(drops)], []
    for name in names:
        own = found.get(name)
        head += [-1, 0] if own is None else [own.steps, own.params is not None]
        parts += [] if own is None else [*own.state, *([] if own.params is None else [own.params])]
    return joined([np.array(head, np.int64), *parts])


def loaded_from(
    data: NDArray[np.uint8], keys: Sequence[ParamKey], forms: Sequence[Form]
) -> tuple[dict[str, Loaded], bool]:
    """Reads the arguments found and drops of load() from a result of bytes_of."""
    at = 8 * (1 + 2 * len(keys))
    drops, *head = data[:at].view(np.int64).tolist()
    values, found = data[at:].view(np.float32), {}
    for key, steps, has_params in zip(keys, head[::2], head[1::2], strict=True):
        if steps < 0:
            continue
        n = len(forms[key.group].state) + has_params
        state, values = np.split(values, [n * key.param.numel()])
        arrays = list(state.reshape(n, -1))
        found[key.name] = Loaded(steps, arrays.pop() if has_params else None, arrays)
    return found, bool(drops)


def values_from(data: NDArray[np.uint8], keys: Sequence[ParamKey]) -> dict[str, NDArray[np.float32]]:
    """Reads a result of values_of from bytes."""
    ends = np.cumsum([key.param.numel() for key in keys])
    return {key.name: part for key, part in zip(keys, np.split(data.view(np.float32), ends[:-1]), strict=True)}


def _count_dtype() -> torch.dtype:
    """Returns the dtype in which torch counts steps. If the default dtype has 16 bits, it is not used, since it would
    round."""
    return torch.float64 if torch.get_default_dtype() == torch.float64 else torch.float32


def _shaped(key: ParamKey, values: NDArray[np.float32]) -> Tensor:
    """Returns values, given in the order of the parameter's memory, as a tensor of the parameter's shape."""
    shape = key.param.shape if key.order is None else [key.param.shape[dim] for dim in key.order]
    return as_tensor(values.reshape(tuple(shape)), key.order).clone()


def _loaded(key: ParamKey, form: Form, state: Mapping[str, Any]) -> Loaded:
    arrays = []
    for name in form.state:
        value = state.get(name)
        if value is None:
            if state and any(other in state for other in form.state):
                raise InvalidArgument(f"load_state_dict: the state of {key.name!r} has no {name!r}")
            arrays.append(np.zeros(key.param.numel(), np.float32))
        else:
            arrays.append(_values(key, name, value))
    steps = int(state.get("step", 1)) if state else 0
    master = state.get(MASTER)
    if master is None or master.dtype != torch.float32:  # a plain optimizer has rounded it; the parameter is used
        return Loaded(steps, None, arrays)
    return Loaded(steps, _values(key, MASTER, master), arrays)


def _values(key: ParamKey, name: str, value: Tensor) -> NDArray[np.float32]:
    """Returns a tensor of a key's state as an array in the order of the parameter's memory."""
    if tuple(value.shape) != tuple(key.param.shape):
        raise InvalidArgument(
            f"load_state_dict: {name!r} of {key.name!r} has shape {tuple(value.shape)}: must be "
            f"{tuple(key.param.shape)}"
        )
    return as_float32(value, key.order).reshape(-1)
