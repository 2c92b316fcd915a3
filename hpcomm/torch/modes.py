"""The mode of an optimizer on this rank, by its arguments and by the part of the rank in the job."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from torch.optim import Optimizer

from ..consistency import BSP, Consistency, applies_each
from ..context import Context
from ..exchange import Exchange
from ..presets import parameter_hub
from .key import ParamKey
from .local import Averaged, Neighbours, made_of_means
from .mode import ROLL, Mode
from .rules import Rules
from .schemes import Schemes
from .serve import Serving
from .split import After, Split, SplitAlone, made_in_two
from .stats import Counts
from .whole import Backward, OnePass, made_in_one


class Asked(NamedTuple):
    """The arguments of a DistributedOptimizer once they are checked.

    Attributes:
        rules: None where the optimizer steps on each rank.
        make: an exchange of a context, values by name, a rule and options.
        on_graph: each rank has a model of its own.
    """

    context: Context
    keys: Sequence[ParamKey]
    counts: Counts
    passes: int
    clip_norm: float | None
    optimizer: Optimizer
    rules: Rules | None
    make: Callable[..., Exchange]
    apply: str
    consistency: Consistency
    schemes: Schemes
    on_graph: bool

    @property
    def in_two(self) -> bool:
        """Whether updates take two calls."""
        return self.apply != "backward" and (self.consistency == BSP or applies_each(self.consistency))


def training(asked: Asked) -> Mode:
    """The mode of a worker."""
    args, rest = asked[:3], (asked.passes, asked.clip_norm)
    if asked.on_graph:
        return Neighbours(*args, asked.clip_norm, asked.optimizer, asked.make)
    if asked.rules is None:
        return Averaged(*args, *rest, asked.optimizer, asked.make)
    if asked.in_two:
        split = After if asked.apply == "after" else Split if asked.consistency == BSP else SplitAlone
        return split(*args, *rest, asked.rules, asked.make, asked.schemes.may_be_pairs, asked.schemes.refuse)
    whole = Backward if asked.apply == "backward" else OnePass
    return whole(*args, *rest, asked.rules, asked.make, asked.consistency)


def serving(asked: Asked) -> Mode:
    """The mode of a rank that only serves: it has the exchange of the workers' mode."""
    ctx, keys, rules, make = asked.context, asked.keys, asked.rules, asked.make
    if rules is None:
        made, _ = made_of_means(make, ctx, keys, (bytes,) * Averaged.agreed_values)
    elif asked.in_two:
        made = made_in_two(make, ctx, keys, rules)
    else:
        made, _ = made_in_one(make, ctx, keys, rules, asked.consistency)
    return Serving(ctx, keys, asked.counts, rules, made)


def maker(
    given: Any, consistency: Consistency, options: Mapping[str, Any], schemes: Schemes
) -> Callable[..., Exchange]:
    """The make of Asked. given: the topology; None: the one that parameter_hub takes by the options."""

    def make(ctx: Context, values: dict[str, Any], rule: Any, **more: Any) -> Exchange:
        topology, asked = schemes.arranged(given, options)
        codec = asked.get("codec")
        if ROLL in values and codec is not None and not isinstance(codec, Mapping):  # it is no gradient
            more["codec"] = {name: codec for name in values if name != ROLL}
        more = {**asked, **more}
        if topology is None:
            ex = parameter_hub(ctx, values, rule=rule, consistency=consistency, **more)
        else:
            ex = Exchange(ctx, values, topology, consistency, rule, **more)
        schemes.made(ex)
        return ex

    return make
