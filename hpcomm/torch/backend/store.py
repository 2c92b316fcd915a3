"""How the ranks of a new group exchange addresses: through the store of torch.distributed."""

import time
from datetime import timedelta
from typing import Any

from ...errors import Timeout


class StoreGroup:
    """The ranks of a new group, for a context that begins (see launch.Group)."""

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self._store, self._round = store, 0

    def exchange(self, data: bytes, timeout: float) -> list[bytes]:
        """Returns the data of all ranks. Every rank makes equally many calls.

        Raises:
            Timeout: a rank did not come; the error has the missing ranks.
        """
        store, number = self._store, self._round
        self._round += 1
        keys = [_key(number, rank) for rank in range(self.size)]
        store.set(keys[self.rank], data)
        begin = time.monotonic()
        try:
            store.wait(keys, timedelta(seconds=max(timeout, 1e-3)))
        except RuntimeError:  # DistStoreError where torch has it
            if time.monotonic() - begin < timeout:  # the store itself failed
                raise
            missing = tuple(rank for rank, key in enumerate(keys) if not store.check([key]))
            told = ", ".join(map(str, missing))
            raise Timeout(
                f"rank {self.rank}: init: of {self.size} ranks {told} did not come to the store in {timeout:.3g} s",
                op="init",
                waiting_for=missing,
            ) from None
        parts = store.multi_get(keys) if store.has_extended_api() else [store.get(key) for key in keys]
        if number > 0:  # every rank that is in this round has read the last one
            store.delete_key(_key(number - 1, self.rank))
        return [bytes(part) for part in parts]


def _key(number: int, rank: int) -> str:
    return f"hpcomm/{number}/{rank}"
