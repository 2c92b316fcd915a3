"""Chooses the mode of an optimizer on this rank from the optimizer's arguments and the rank's role."""

from collections.abc import Callable
from typing import TypeVar

from ..consistency import applies_each
from ..errors import NotSupported
from .asked import Asked
from .local import Averaged, Neighbours, made_of_means
from .mode import Mode
from .serve import Serving
from .split import After, Split, SplitAlone, SplitQuorum, made_in_two
from .whole import Backward, OnePass, made_in_one

_Made = TypeVar("_Made")


def training(asked: Asked) -> Mode:
    """Returns the mode of a worker."""
    args, first = asked.args, asked[:3]
    if asked.on_graph:
        return Neighbours(*first, args.clip_norm, asked.optimizer, asked.make)
    more = (*first, args.backward_passes_per_step, args.clip_norm)
    if asked.rules is None:
        return Averaged(*more, asked.optimizer, asked.make)
    own = (*more, asked.rules, asked.make)
    whole = Backward if args.apply == "backward" else OnePass
    return _in_two_or_one(
        args.apply,
        lambda: _split(asked)(*own, asked.ways.may_be_pairs, asked.ways.refuse),
        lambda why: whole(*own, args.consistency, why),
    )


def _split(asked: Asked) -> type[Split]:
    if asked.args.apply == "after":
        return After
    if applies_each(asked.args.consistency):
        return SplitAlone
    return Split if asked.args.consistency.quorum is None else SplitQuorum


def _in_two_or_one(apply: str, two: Callable[[], _Made], one: Callable[[str], _Made]) -> _Made:
    """Calls two, which makes an exchange whose updates take two calls (fold and apply), and returns its result. If
    apply rules two calls out, or all ranks refuse them, returns one(reason) instead, with the reason as a sentence."""
    why = 'apply="backward" applies each gradient as it is folded: give apply="step"'
    if apply != "backward":
        try:
            return two()
        except NotSupported as refused:
            why = f"each gradient is applied as it is folded: {str(refused).rpartition('exchange: ')[2]}"
    return one(why)


def serving(asked: Asked) -> Mode:
    """Returns the mode of a rank that only serves. Its exchange is made as in the workers' mode."""
    ctx, keys, rules, make = asked.context, asked.keys, asked.rules, asked.make
    if rules is None:
        made, _ = made_of_means(make, ctx, keys, (bytes,) * Averaged.agreed_values)
    else:
        made = _in_two_or_one(
            asked.args.apply,
            lambda: made_in_two(make, ctx, keys, rules),
            lambda _: made_in_one(make, ctx, keys, rules, asked.args.consistency)[0],
        )
    return Serving(ctx, keys, asked.counts, rules, made)
