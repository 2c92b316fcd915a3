"""The values of a model that a checkpoint stores in addition to the exchange: buffers, parameters that are not in the
exchange, and the extra state of modules (get_extra_state)."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import InvalidArgument
from .names import parameters, plain_name, saved_buffers

BUFFERS, OTHERS, STATES = "buffers", "others", "modules"
_WORDS = {BUFFERS: "buffer", STATES: "module with an extra state"}


def tensors(model: nn.Module, mine: Iterable[Tensor]) -> dict[str, dict[str, Tensor]]:
    """Returns the model's buffers, and the model's parameters except those in mine, which are saved elsewhere."""
    known = {id(param) for param in mine}
    others = {name: param.data for name, param in parameters(model) if id(param) not in known}
    return {BUFFERS: saved_buffers(model), OTHERS: others}


def states(model: nn.Module) -> dict[str, nn.Module]:
    """Returns, by name, the model's modules that have an extra state (get_extra_state)."""
    plain = plain_name(model)
    return {
        plain(name): module
        for name, module in model.named_modules()
        if type(module).get_extra_state is not nn.Module.get_extra_state
    }


def check(own: Mapping[str, Mapping[str, Any]], found: Mapping[str, Any]) -> None:
    """Raises if a checkpoint is of another model. Call it before anything is written. own: this model's values, by kind
    and name. found: the checkpoint's.

    Raises:
        InvalidArgument: the model lacks a saved value, the checkpoint lacks a value of the model, or shapes differ.
    """
    for kind, here in own.items():
        if kind not in found:
            continue  # an older checkpoint lacks this kind
        saved = found[kind]
        what = _WORDS.get(kind, "parameter")
        if unknown := [name for name in saved if name not in here]:
            raise InvalidArgument(
                f"restore: the checkpoint has {what} {unknown[0]!r}, and the model has not: give the model that was "
                f"saved{_more(unknown)}"
            )
        if missing := [name for name in here if name not in saved]:
            raise InvalidArgument(
                f"restore: the model has {what} {missing[0]!r}, and the checkpoint has not: give the model that was "
                f"saved, with the same parameters in the optimizer{_more(missing)}"
            )
        for name, tensor in here.items() if kind != STATES else ():
            if tensor.shape != saved[name].shape:
                raise InvalidArgument(
                    f"restore: {what} {name!r} is {tuple(tensor.shape)} here and {tuple(saved[name].shape)} in the "
                    "checkpoint: give the model that was saved"
                )


def _more(names: Sequence[str]) -> str:
    return f" ({len(names) - 1} more like it)" if len(names) > 1 else ""


@torch.no_grad()
def load(own: Mapping[str, Mapping[str, Any]], found: Mapping[str, Any]) -> None:
    """Writes the checkpoint's values, which check has accepted, into the model. A tensor that already has its value is
    not written, so that it counts as unchanged."""
    for kind, here in own.items():
        for name, tensor in here.items() if kind in found else ():
            value = found[kind][name]
            if kind == STATES:
                tensor.set_extra_state(value)
            elif tensor.dtype != value.dtype or not torch.equal(tensor, value.to(tensor.device)):
                tensor.copy_(value)


def of_older(model: nn.Module, found: dict[str, Any]) -> dict[str, Any]:
    """Converts an older checkpoint to today's form. An older one has all buffers, under the names of a compiled
    model."""
    if OTHERS in found or BUFFERS not in found:
        return found
    plain = plain_name(model)
    own = saved_buffers(model)
    named = {plain(name.replace("_orig_mod.", "")): value for name, value in found[BUFFERS].items()}
    theirs = {plain(name) for name, _ in model.named_buffers()} - own.keys()  # non-persistent buffers
    return {**found, BUFFERS: {name: value for name, value in named.items() if name not in theirs}}


def check_groups(groups: Sequence[Mapping[str, Any]], saved: Mapping[str, Any]) -> None:
    """Raises InvalidArgument if the saved optimizer's parameter groups differ in size from these."""
    have, theirs = ([len(group["params"]) for group in own] for own in (groups, saved["param_groups"]))
    if have != theirs:
        raise InvalidArgument(
            f"restore: the optimizer has groups of {have} parameters, and the checkpoint's of {theirs}: give the "
            "optimizer that was saved"
        )
