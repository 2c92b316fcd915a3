"""Makes copies of a model (torch.save of the whole model, pickle, copy.deepcopy) plain torch. hpcomm's hooks stay with
the trained model, and the copy can be loaded without hpcomm."""

from typing import Any
from weakref import ref

from torch import nn

_REDUCE = "__reduce_ex__"  # pickle and copy look it up on the object first


def copies_are_plain(module: nn.Module) -> None:
    """Makes later copies of this module lack hpcomm's hooks."""
    me = ref(module)

    def reduced(protocol: Any) -> Any:
        own: Any = me()
        found = type(own).__reduce_ex__(own, protocol)  # type: ignore[call-arg]
        if not isinstance(found, tuple) or len(found) < 3 or not isinstance(found[2], dict):
            return found  # the class reduces itself to another form, as a compiled model does
        return (*found[:2], _plain(found[2]), *found[3:])

    module.__dict__[_REDUCE] = reduced  # setattr of a compiled model would set it on the inner module


def copies_are_as_before(module: nn.Module) -> None:
    module.__dict__.pop(_REDUCE, None)


def _plain(state: dict[str, Any]) -> dict[str, Any]:
    hooks = {name: own for name, own in state.items() if "_hooks" in name and isinstance(own, dict)}
    mine = {number for own in hooks.values() for number, hook in own.items() if _is_own(hook)}
    kept = {
        name: type(own)((number, hook) for number, hook in own.items() if number not in mine)
        for name, own in hooks.items()
    }
    return {name: value for name, value in {**state, **kept}.items() if name != _REDUCE}


def _is_own(hook: Any) -> bool:
    """Returns whether hpcomm put this hook on. Torch keeps some hooks inside another object (hook.hook)."""
    inner = getattr(hook, "hook", hook)
    return type(getattr(inner, "__self__", inner)).__module__.partition(".")[0] == "hpcomm"
