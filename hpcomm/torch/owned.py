"""The value of optimizer.state if the owners of an exchange keep the state. It shows which parameters have state, and
the names of their values; it can also be reset. The values themselves are read by state_dict() and written by
load_state_dict()."""

from collections.abc import Callable, Container, Iterator, Mapping, MutableMapping, Sequence
from typing import Any
from weakref import ref

from torch import Tensor

from ..errors import NotSupported
from .counts import Counts
from .key import ParamKey
from .rules import Form
from .state import MASTER

_ABSENT: Any = object()


class Held:
    """The parameters that have state, as far as a rank knows: after a step, all parameters that are or were trained."""

    def __init__(
        self,
        keys: Sequence[ParamKey],
        forms: Sequence[Form],
        counts: Counts,
        hooked: Container[int],
        reset: Callable[[Sequence[ParamKey]], None],
    ) -> None:
        """hooked: the ids of keys that are or were trained. reset: a function that resets the state of keys to that of
        a new optimizer; it is collective."""
        self._keys: dict[Any, ParamKey] = {key.param: key for key in keys}
        self._forms, self._counts, self._hooked, self._reset = forms, counts, hooked, reset
        self._since: dict[Any, int] = {}  # for each parameter, the step of its last reset; -1 if state was loaded

    def loaded(self, params: Container[object]) -> None:
        """Notes that state was loaded for these parameters."""
        self._since = {param: -1 if param in params else self._counts.steps for param in self._keys}

    def params(self) -> list[Tensor]:
        return [param for param in self._keys if self.has(param)]

    def has(self, param: object) -> bool:
        key, since = self._keys.get(param), self._since.get(param, 0)
        if key is None or self._counts.steps <= since:
            return False
        return since < 0 or id(key) in self._hooked or key.param.requires_grad

    def knows(self, param: object) -> bool:
        return param in self._keys

    def names(self, param: object) -> tuple[str, ...]:
        """Returns the names of the values in a parameter's state; () if the parameter has no state."""
        if not self.has(param):
            return ()
        key = self._keys[param]
        form = self._forms[key.group]
        master = (MASTER,) if key.has_master else ()
        return (*(("step",) if form.counts else ()), *form.state, *master)

    def reset(self, params: Sequence[object] | None = None) -> None:
        """Resets the state of these parameters; of all parameters if params is None."""
        keys = list(self._keys.values()) if params is None else [self._keys[param] for param in params]
        self._reset(keys)
        self._since |= {key.param: self._counts.steps for key in keys}


class Entry(MutableMapping[str, Any]):
    """The state of a parameter. A rank knows the names of the values, but not the values. popped: the names that the
    state had before pop() reset it."""

    def __init__(self, state: "OwnedState", param: Tensor, popped: tuple[str, ...] | None = None) -> None:
        self._state, self._param, self._popped = state, param, popped

    def _names(self) -> tuple[str, ...]:
        if self._popped is not None:
            return self._popped
        held = self._state.held
        return held.names(self._param) if held is not None else ()

    def __getitem__(self, name: str) -> Any:
        if name not in self._names():
            raise KeyError(name)
        raise elsewhere(f"reads {name!r} of a parameter")

    def __setitem__(self, name: str, value: Any) -> None:
        raise elsewhere(f"writes {name!r} of a parameter")

    def __delitem__(self, name: str) -> None:
        if name not in self._names():
            raise KeyError(name)
        raise elsewhere(f"drops {name!r} of a parameter")

    def __contains__(self, name: object) -> bool:
        return name in self._names()

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __len__(self) -> int:
        return len(self._names())

    def clear(self) -> None:
        self._state[self._param] = {}

    def __repr__(self) -> str:
        return f"<{', '.join(self._names()) or 'no state'}: state_dict() collects the values>"

    def __reduce__(self) -> Any:
        raise elsewhere("copies or saves the state of a parameter")


class OwnedState(MutableMapping[Any, Any]):
    """A mapping that has an Entry for each parameter. To reset state, by clear(), `= {}` or del of an entry, is
    collective.

    Attributes:
        held: the Held of the optimizer; None if the DistributedOptimizer is gone.
    """

    def __init__(self, held: Held) -> None:
        self._held = ref(held)

    @property
    def held(self) -> Held | None:
        return self._held()

    def __getitem__(self, param: Any) -> Entry:
        held = self.held
        if held is None or not held.knows(param):
            raise KeyError(param)
        return Entry(self, param)

    def __setitem__(self, param: Any, value: Any) -> None:
        held = self.held
        if isinstance(value, Entry) and value._param is param and value._popped is None:
            return
        if held is None or not held.knows(param) or not isinstance(value, Mapping) or value:
            raise elsewhere("writes the state of a parameter")
        held.reset([param])

    def __delitem__(self, param: Any) -> None:
        held = self.held
        if held is None or not held.has(param):
            raise KeyError(param)
        held.reset([param])

    def __contains__(self, param: object) -> bool:
        held = self.held
        return held is not None and held.has(param)

    def __iter__(self) -> Iterator[Any]:
        held = self.held
        return iter([] if held is None else held.params())

    def __len__(self) -> int:
        held = self.held
        return 0 if held is None else len(held.params())

    def get(self, param: Any, default: Any = None) -> Any:
        held = self.held
        return Entry(self, param) if held is not None and held.has(param) else default

    def pop(self, param: Any, default: Any = _ABSENT) -> Any:
        if param not in self and default is not _ABSENT:
            return default
        found = Entry(self, param, self[param]._names())
        del self[param]
        return found

    def clear(self) -> None:
        held = self.held
        if held is not None:
            held.reset()

    def copy(self) -> Any:
        raise elsewhere("copies the state")

    def replace(self, value: Any) -> None:
        """Handles the assignment optimizer.state = value. An empty value resets the state."""
        if value is self:
            return
        if not isinstance(value, Mapping) or value:
            raise elsewhere("writes the state")
        self.clear()

    def __repr__(self) -> str:
        return f"<the state of {len(self)} parameters: state_dict() collects it>"

    def __reduce__(self) -> Any:
        raise elsewhere("copies or saves the state")


def elsewhere(what: str) -> NotSupported:
    return NotSupported(
        f"optimizer.state: this call {what}, and the ranks that own the parameters keep it: call "
        "optimizer.state_dict(), which collects the state, or optimizer.load_state_dict(), which writes it, on every "
        "rank; clear(), del and an empty dict reset it"
    )
