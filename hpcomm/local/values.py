"""A rank's own parameters, which it trains between exchanges. The class Arrays has NumPy arrays; hpcomm.torch has a
class for a model's tensors."""

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidArgument

Array = NDArray[np.float32]


class Values(Protocol):
    """The parameters of a rank (own), by the names of the exchange's keys. The argument shared of methods is the
    exchange's parameter: float32, in the key's shape."""

    @property
    def arrays(self) -> dict[str, Array]:
        """All parameters by name."""

    def begin(self) -> None:
        """Prepares for calls that read or take values."""

    def subtract(self, name: str, shared: Array, out: Array) -> None:
        """Writes shared - own into out."""

    def copy(self, name: str) -> Array:
        """Returns a copy of the rank's own values of a key."""

    def take(self, name: str, shared: Array, mix: float, since: Array | None = None) -> None:
        """Sets own = (1 - mix) * own + mix * shared; with mix 1, own gets the bits of shared. since: an earlier copy of
        own. If it is given, later changes are kept: own = (1 - mix) * since + mix * shared + (own - since)."""

    def end(self) -> None:
        """Ends a series of calls of take()."""

    def saved(self) -> dict[str, NDArray[Any]]:
        """Returns copies of all parameters, for a checkpoint."""

    def load(self, saved: Mapping[str, Any]) -> None:
        """Loads a result of saved()."""


class Arrays:
    """float32 arrays that the trainer changes in place."""

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        self._arrays = dict(arrays)

    @property
    def arrays(self) -> dict[str, Array]:
        return self._arrays

    def begin(self) -> None:
        """Does nothing: arrays are always readable."""

    def subtract(self, name: str, shared: Array, out: Array) -> None:
        np.subtract(shared, self._arrays[name], out=out)

    def copy(self, name: str) -> Array:
        copied: Array = self._arrays[name].copy()
        return copied

    def take(self, name: str, shared: Array, mix: float, since: Array | None = None) -> None:
        own = self._arrays[name]
        if since is None and mix == 1:
            own[...] = shared
        elif since is None:
            own[...] = np.float32(1 - mix) * own + np.float32(mix) * shared
        else:
            learned = own - since
            own[...] = (shared if mix == 1 else np.float32(1 - mix) * since + np.float32(mix) * shared) + learned

    def end(self) -> None:
        """Does nothing: the trainer reads the same arrays."""

    def saved(self) -> dict[str, NDArray[Any]]:
        return {name: own.copy() for name, own in self._arrays.items()}

    def load(self, saved: Mapping[str, Any]) -> None:
        for name, own in self._arrays.items():
            own[...] = saved[name]


def checked_arrays(given: Mapping[str, Any] | None, shared: Mapping[str, Array]) -> dict[str, Array]:
    """Returns the trainer's arrays, or new ones if none were given, filled with the exchange's initial values.

    Raises:
        InvalidArgument: a key has no array; or an array has another dtype or shape, or is read-only.
    """
    if given is None:
        return {name: value.copy() for name, value in shared.items()}
    if not isinstance(given, Mapping):
        raise InvalidArgument(f"params is a {type(given).__name__}: must map every key to a float32 array, or be None")
    if odd := next((name for name in [*shared, *given] if (name in shared) != (name in given)), None):
        raise InvalidArgument(
            f"params has {'no' if odd in shared else 'an'} array {odd!r}: must have one for each key of the exchange"
        )
    found = {}
    for name, value in shared.items():
        own = given[name]
        if not isinstance(own, np.ndarray) or own.dtype != np.float32 or own.shape != value.shape:
            what = f"{own.dtype} {own.shape}" if isinstance(own, np.ndarray) else type(own).__name__
            raise InvalidArgument(f"params[{name!r}] is {what}: must be a float32 array of shape {value.shape}")
        if not own.flags.writeable or np.shares_memory(own, value):
            raise InvalidArgument(
                f"params[{name!r}] cannot be trained: must be a writable array of the trainer's own, and not that of "
                "the exchange"
            )
        own[...] = value
        found[name] = own
    return found
