"""The mode of an optimizer on this rank, by its arguments and by the part of the rank in the job."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from torch.optim import Optimizer

from ..consistency import Consistency, applies_each
from ..context import Context
from ..errors import NotSupported
from ..exchange import Exchange
from ..presets import parameter_hub
from .counts import Counts
from .key import ParamKey
from .local import Averaged, Neighbours, made_of_means
from .mode import ROLL, Mode
from .rules import Rules
from .serve import Serving
from .split import After, Split, SplitAlone, SplitQuorum, made_in_two
from .ways import Ways
from .whole import Backward, OnePass, made_in_one

_Made = TypeVar("_Made")


class Asked(NamedTuple):
    """The arguments of a DistributedOptimizer once they are checked.

    Attributes:
        rules: None where the optimizer steps on each rank.
        make: an exchange of a context, values by name, a rule and options.
        on_graph: ranks' models differ.
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
    ways: Ways
    on_graph: bool

    def in_two_or_one(self, two: Callable[[], _Made], one: Callable[[str], _Made]) -> _Made:
        """The result of two, which makes an exchange whose updates take two calls; where two calls are ruled out, or
        refused on all ranks, the result of one, which gets the reason."""
        why = 'apply="backward" applies each gradient as it is folded: give apply="step"'
        if self.apply != "backward":
            try:
                return two()
            except NotSupported as refused:
                why = f"each gradient is applied as it is folded: {str(refused).rpartition('exchange: ')[2]}"
        return one(why)


def training(asked: Asked) -> Mode:
    """The mode of a worker."""
    args, rest = asked[:3], (asked.passes, asked.clip_norm)
    if asked.on_graph:
        return Neighbours(*args, asked.clip_norm, asked.optimizer, asked.make)
    if asked.rules is None:
        return Averaged(*args, *rest, asked.optimizer, asked.make)
    own = (*args, *rest, asked.rules, asked.make)
    whole = Backward if asked.apply == "backward" else OnePass
    return asked.in_two_or_one(
        lambda: _split(asked)(*own, asked.ways.may_be_pairs, asked.ways.refuse),
        lambda why: whole(*own, asked.consistency, why),
    )


def _split(asked: Asked) -> type[Split]:
    if asked.apply == "after":
        return After
    if applies_each(asked.consistency):
        return SplitAlone
    return Split if asked.consistency.quorum is None else SplitQuorum


def serving(asked: Asked) -> Mode:
    """The mode of a rank that only serves: it has the exchange of the workers' mode."""
    ctx, keys, rules, make = asked.context, asked.keys, asked.rules, asked.make
    if rules is None:
        made, _ = made_of_means(make, ctx, keys, (bytes,) * Averaged.agreed_values)
    else:
        made = asked.in_two_or_one(
            lambda: made_in_two(make, ctx, keys, rules),
            lambda _: made_in_one(make, ctx, keys, rules, asked.consistency)[0],
        )
    return Serving(ctx, keys, asked.counts, rules, made)


def maker(given: Any, consistency: Consistency, options: Mapping[str, Any], ways: Ways) -> Callable[..., Exchange]:
    """The make of Asked. given: the topology; None: the one that parameter_hub takes by the options."""

    def make(ctx: Context, values: dict[str, Any], rule: Any, **more: Any) -> Exchange:
        topology, asked = ways.arranged(given, options)
        codec = asked["plan"].codec
        if ROLL in values and codec is not None and not isinstance(codec, Mapping):  # it is no gradient
            more["codec"] = {name: codec for name in values if name != ROLL}
        more = {**asked, **more}
        if topology is None:
            ex = parameter_hub(ctx, values, rule=rule, consistency=consistency, **more)
        else:
            ex = Exchange(ctx, values, topology, consistency, rule, **more)
        ways.made(ex)
        return ex

    return make
