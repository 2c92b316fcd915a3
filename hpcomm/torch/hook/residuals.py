"""The residuals of a hook's exchange, as tensors by names of parameters. With them comes all that codecs need to go on
with the same bits."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...errors import InvalidArgument
from ...exchange import Exchange
from ...exchange.encoders import NOTHING_KEPT
from ..tensors import Order, as_float32, as_tensor, flat

RESIDUALS, ENCODERS, FOLDS = "residuals", "encoders", "folds"


@dataclass(frozen=True)
class Encoder:
    """An encoder in a shard of the exchange.

    Attributes:
        at: its number in the shard.
        name: the name of its key.
        of_fold: whether it encodes folds of this rank as an owner, and not this rank's gradients.
        values: a view of its values in the shard. The first `kept` are the residual.
    """

    at: int
    name: str
    of_fold: bool
    offset: int
    count: int
    values: NDArray[np.float32]

    @property
    def kept(self) -> int:
        """How many of the values are the residual."""
        return self.count if self.values.size > NOTHING_KEPT else 0

    @property
    def place(self) -> str:
        return f"{self.name}[{self.offset}:{self.offset + self.count}]"


def _encoders(shard: Mapping[str, Any]) -> Iterator[Encoder]:
    """Yields the encoders of a shard (a result of Exchange.state_dict)."""
    start = 0
    if "encoders" not in shard:
        return
    columns = (shard[f"encoder_{name}"].tolist() for name in ("key", "row", "offset", "count", "values"))
    for at, (key, row, offset, count, n) in enumerate(zip(*columns, strict=True)):
        yield Encoder(at, str(shard["keys"][key]), bool(row), offset, count, shard["encoders"][start : start + n])
        start += n


def saved(exchange: Exchange, orders: Mapping[str, Order]) -> dict[str, Any]:
    """Returns the residuals of this rank. orders: for each parameter, the order of its dimensions in memory."""
    shard = exchange.state_dict()
    found: dict[str, Any] = {RESIDUALS: {}, ENCODERS: {}, FOLDS: {}}
    for one in _encoders(shard):
        made = int(shard["encoder_made"][one.at])
        if one.of_fold:
            found[FOLDS][one.place] = {"made": made, "values": torch.from_numpy(one.values.copy())}
            continue
        if one.kept:
            shape = exchange.params[one.name].shape
            found[RESIDUALS][one.name] = as_tensor(one.values[: one.kept].reshape(shape), orders[one.name]).clone()
        found[ENCODERS][one.name] = {"made": made, "values": torch.from_numpy(one.values[one.kept :].copy())}
    return found


def restore(exchange: Exchange, orders: Mapping[str, Order], found: Mapping[str, Any]) -> None:
    """Loads a result of saved(). Collective.

    Raises:
        InvalidArgument: on some rank the residuals are of other parameters. Then nothing has changed.
    """
    shard: Any = {}
    try:
        shard = exchange.state_dict()
        _fill(shard, exchange, orders, found)
    except InvalidArgument as wrong:
        exchange._state.restore(shard, wrong, exchange.context.config.timeout)
        raise
    exchange.load_state_dict(shard)


def _fill(shard: dict[str, Any], exchange: Exchange, orders: Mapping[str, Order], found: Mapping[str, Any]) -> None:
    left = {*found[RESIDUALS], *found[ENCODERS]} - {*exchange.params}
    if left:
        raise InvalidArgument(f"load_state_dict: the state has residuals of {sorted(left)[0]!r}, which is no parameter")
    for one in _encoders(shard):
        its = found[FOLDS].get(one.place) if one.of_fold else found[ENCODERS].get(one.name)
        one.values[:] = 0
        shard["encoder_made"][one.at] = 0 if its is None else its["made"]
        rest = one.values if one.of_fold else one.values[one.kept :]
        if its is not None and its["values"].numel() == rest.size:  # otherwise another codec has made them
            rest[:] = its["values"].numpy()
        residual = None if one.of_fold or not one.kept else found[RESIDUALS].get(one.name)
        if residual is not None:
            shape, order = exchange.params[one.name].shape, orders[one.name]
            if tuple(flat(residual, order).shape) != shape:
                raise InvalidArgument(
                    f"load_state_dict: the residual of {one.name!r} has shape {tuple(residual.shape)}: must be "
                    f"{tuple(as_tensor(exchange.params[one.name], order).shape)}"
                )
            one.values[: one.kept] = as_float32(residual, order).reshape(-1)
