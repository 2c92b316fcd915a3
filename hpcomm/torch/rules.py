"""torch's optimizers as rules of the exchange: which rule an optimizer becomes, and the rule's arguments by parameter
group."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import InvalidArgument
from ..exchange import Exchange
from ..optim import SGD, Adam, AdamW, AnyRule, BuiltIn, Momentum, Nesterov, names_of
from .wrapper import steps_as_torch

Group = Mapping[str, Any]  # one of an optimizer's param_groups


@dataclass(frozen=True)
class Form:
    """A rule of the exchange, with the names that torch gives its state.

    Attributes:
        rule: the class of the rule.
        state: torch's names of the values that owners keep for an element, in the order in which owners keep them.
        counts: whether torch's state also has the number of steps.
    """

    rule: type[BuiltIn]
    state: tuple[str, ...] = ()
    counts: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the rule's arguments, in the order in which read() returns them."""
        return names_of(self.rule)


_MOMENTS = ("exp_avg", "exp_avg_sq")
_SGD = Form(SGD)
_MOMENTUM = Form(Momentum, ("momentum_buffer",))
_NESTEROV = Form(Nesterov, ("momentum_buffer",))
_ADAM_L2 = Form(Adam, _MOMENTS, True)
_ADAM_W = Form(AdamW, _MOMENTS, True)


def form_of(optimizer: torch.optim.Optimizer, group: Group) -> Form | None:
    """Returns the rule that makes the same steps as torch with this group; None if no rule does."""
    kind = type(optimizer)
    if group.get("maximize") or group.get("differentiable"):
        return None
    if kind is torch.optim.SGD:
        if group["dampening"] or not 0 <= group["momentum"] < 1:
            return None
        return (_NESTEROV if group["nesterov"] else _MOMENTUM) if group["momentum"] else _SGD
    if kind in (torch.optim.Adam, torch.optim.AdamW):
        if group["amsgrad"]:
            return None
        decoupled = group.get("decoupled_weight_decay", kind is torch.optim.AdamW)
        return _ADAM_W if decoupled else _ADAM_L2
    return None


def read(form: Form, group: Group) -> tuple[float, ...]:
    """Returns the rule's arguments for a group, in the order of form.names."""
    known = dict(group)
    if "betas" in group:
        known["beta1"], known["beta2"] = group["betas"]
    known["epsilon"] = group.get("eps")
    return tuple(float(known[name]) for name in form.names)


class Rules:
    """The rules of all parameter groups, with the arguments that the exchange was last told.

    Raises:
        InvalidArgument: the rule refuses an argument.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, forms: Sequence[Form], names: Sequence[Sequence[str]]) -> None:
        """names: for each group, the names of its keys."""
        self._optimizer = optimizer
        self.forms, self._names = list(forms), [list(own) for own in names]
        self._sent = [read(form, group) for form, group in zip(forms, optimizer.param_groups, strict=True)]

    def by_key(self) -> dict[str, AnyRule]:
        """Returns the rule of each key by name. Keys of one group share a rule object."""
        found: dict[str, AnyRule] = {}
        for form, values, names in zip(self.forms, self._sent, self._names, strict=True):
            rule = form.rule(**dict(zip(form.names, values, strict=True)))
            found |= dict.fromkeys(names, rule)
        return found

    def are_of(self, exchange: Exchange) -> None:
        """Takes the arguments that this exchange has. They may be older, and update() then tells it the new ones."""
        rule = exchange.rule
        for i, (form, names) in enumerate(zip(self.forms, self._names, strict=True)):
            if names:
                now = rule[names[0]] if isinstance(rule, Mapping) else rule
                self._sent[i] = tuple(getattr(now, name) for name in form.names)

    def changed(self) -> list[int]:
        """Returns the numbers of the groups whose arguments have changed since the exchange was told.

        Raises:
            InvalidArgument: a group's settings now need another rule.
        """
        found = []
        for i, (group, form, sent) in enumerate(zip(self._optimizer.param_groups, self.forms, self._sent, strict=True)):
            if form_of(self._optimizer, group) is not form:
                raise InvalidArgument(
                    f"param_groups[{i}] was made as {form.rule.__name__} and asks for another rule now: make another "
                    "DistributedOptimizer"
                )
            if read(form, group) != sent:
                found.append(i)
        return found

    def update(self, exchange: Exchange) -> None:
        """Tells the exchange those arguments that a scheduler or the trainer has changed."""
        for i in self.changed():
            form, names = self.forms[i], self._names[i]
            values = read(form, self._optimizer.param_groups[i])
            if names:
                exchange.set(keys=names, **dict(zip(form.names, values, strict=True)))
            self._sent[i] = values


def rules_of(optimizer: torch.optim.Optimizer, names: Sequence[Sequence[str]]) -> Rules | None:
    """Returns the rules of an optimizer. names: for each group, the names of its keys. Returns None if a group has no
    rule, or if step() is not torch's own."""
    if not steps_as_torch(optimizer):
        return None
    forms = [form_of(optimizer, group) for group in optimizer.param_groups]
    found = [form for form in forms if form is not None]
    return Rules(optimizer, found, names) if len(found) == len(forms) else None


# ---- numbers of any optimizer ----------------------------------------------------------------------------------------


def numbers(groups: Iterable[Group]) -> list[float]:
    """Returns all numbers of all groups in one list. With it, a rank that has run out of batches can step as the others
    do."""
    return [float(value) for group in groups for _, values in _numeric(group) for value in values]


def set_numbers(groups: Iterable[dict[str, Any]], values: Sequence[float]) -> None:
    """Writes a result of numbers() back into the groups."""
    left = iter(values)
    for group in groups:
        for name, own in _numeric(group):
            new = [_like(old, next(left)) for old in own]
            group[name] = type(group[name])(new) if isinstance(group[name], tuple | list) else new[0]


def _like(old: Any, new: float) -> Any:
    if isinstance(old, Tensor):  # written in place, as a compiled step may read this tensor object
        return old.fill_(new)
    return int(new) if isinstance(old, int) and new == int(new) else new


def _numeric(group: Group) -> list[tuple[str, list[Any]]]:
    """Returns the entries of a group that are numbers. Tensors without dimensions count as numbers, since torch takes
    them as learning rates."""
    found = []
    for name, value in group.items():
        values = list(value) if isinstance(value, tuple | list) else [value]
        if name != "params" and values and all(_is_number(one) for one in values):
            found.append((name, values))
    return found


def _is_number(value: object) -> bool:
    if isinstance(value, Tensor):
        return value.dim() == 0 and not isinstance(value, torch.nn.Parameter)
    return isinstance(value, int | float) and not isinstance(value, bool)
