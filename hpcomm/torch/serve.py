"""The mode of a rank that only serves: it owns parameters and their optimizer state, and trains nothing (PHub, section
2.2: placements NCC and NCS)."""

import math
from collections.abc import Mapping, Sequence
from os import PathLike
from time import monotonic
from typing import NoReturn

from .._core import seconds
from ..context import Context
from ..errors import InvalidArgument
from ..exchange import Exchange
from ..recovery import Recovered
from . import state
from .counts import Counts
from .key import ParamKey
from .mode import Mode, Scaling
from .pending import PendingStarts
from .rules import Rules
from .uneven import Saver
from .workers import CollectiveCall


class Serving(Mode):
    """The mode of a rank that only serves. Its model is read for names, shapes and dtypes, and on rank 0 also for the
    first values. None of the model's tensors lies in the exchange."""

    def __init__(
        self, ctx: Context, keys: Sequence[ParamKey], counts: Counts, rules: Rules | None, exchange: Exchange
    ) -> None:
        """rules: the rules of the exchange; None if the optimizer steps on each worker."""
        super().__init__(ctx, keys, counts, 1, None)
        self._rules, self.has_params = rules, rules is not None
        self.bind(exchange)

    def bind(self, exchange: Exchange) -> None:
        self.exchange, self.starts = exchange, PendingStarts(exchange.context, self.counts)

    def serve(self, savers: Mapping[int, Saver], timeout: float | None) -> None:
        end = monotonic() + seconds(timeout, math.inf)
        while True:
            call, size = self.workers.hear(max(0.0, end - monotonic()))
            if call == CollectiveCall.END:
                break
            self._take_part(call, size, savers)
        for exchange in self.exchanges():
            exchange.serve(max(0.0, end - monotonic()))

    def _take_part(self, call: CollectiveCall, size: int, savers: Mapping[int, Saver]) -> None:
        """Does this rank's part of a collective call of the workers."""
        if call == CollectiveCall.MEET:
            self.context.allgather(bytes(size))
        elif call == CollectiveCall.GATHER:
            state.gather(self.exchange)
        elif call == CollectiveCall.PUBLISH:
            state.publish(self.exchange, state.values_from(self.workers.receive(size), self.keys))
        elif call == CollectiveCall.LOAD:
            assert self._rules is not None
            found, drops = state.loaded_from(self.workers.receive(size), self.keys, self._rules.forms)
            state.load(self.exchange, found, drops=drops)
        elif size in savers:  # if this rank does not save, the first worker reports it
            savers[size].save_served()

    def recovered(self, checkpoint: str | PathLike[str] | None, timeout: float | None, *, survivors: bool) -> Recovered:
        if self._rules is None:
            raise self.workers.no_recovery()
        return super().recovered(checkpoint, timeout, survivors=survivors)

    def take_written(self) -> None:
        """Does nothing, since only the workers' values count."""

    # ---- calls of a trainer ------------------------------------------------------------------------------------------

    def _refuse(self, call: str) -> NoReturn:
        raise InvalidArgument(
            f"{call}: rank {self.context.rank} only serves, and trains nothing: call optimizer.serve() in place of the "
            "training loop"
        )

    def send(self, key: ParamKey) -> None:
        self._refuse("loss.backward()")

    def passed(self, key: ParamKey) -> None:
        self._refuse("loss.backward()")

    def step(self, scaling: Scaling | None) -> None:
        self._refuse("step")

    def synchronize(self) -> None:
        self._refuse("synchronize")

    def check_scaler(self) -> None:
        self._refuse("GradScaler.step()")
