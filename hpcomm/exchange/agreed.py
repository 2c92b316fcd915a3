"""The agreement of all ranks on the arguments of an exchange, before the exchange is made. Ranks agree on the number of
cores of owners, on measured bandwidths, and on codecs that the user leaves to hpcomm. After that each scheme's plan is
compiled."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

from .. import _core, optim
from .._core import seconds
from ..context import Context
from ..measure import measured
from ..optim import RuleOrRules
from ..plan import Plan
from . import auto
from .arguments import Checked, any_is_inline, check_options, checked, checked_params, refuse, spare_cores
from .options import engine_options, plan_options
from .schemes import Made, settled, unmeasured
from .trial import step_seconds


@dataclass(frozen=True)
class Arguments:
    """The arguments of Exchange as the user gave them; only rule has its default filled in."""

    params: Any
    topology: Any
    consistency: Any
    rule: RuleOrRules
    plan: Any
    engine: Any
    keywords: Mapping[str, Any]


# The arguments for recover(), the arguments for C, and the codecs chosen for the user (None if the user gave all). The
# same on all ranks.
Agreement: TypeAlias = tuple[Made, Checked, auto.Decided | None]


def agreed(ctx: Context, asked: Arguments, timeout: float | None, isa: str, make: Callable[..., Any]) -> Agreement:
    """Returns the arguments on which all ranks agree. Collective if anything must be decided together. A rank that
    refuses its arguments tells all other ranks.

    Args:
        ctx: the context of the ranks.
        asked: this rank's arguments.
        timeout: seconds for each part of the agreement.
        isa: the instruction set of the kernels.
        make: hpcomm.Exchange; exchanges are made for measuring codecs.

    Raises:
        InvalidArgument, NotSupported, ConfigError: as Exchange.
    """
    put_off: list[Any] = []  # hierarchies whose bandwidths are measured after all ranks have accepted

    def later(hierarchy: Any) -> Any:
        put_off.append(hierarchy)
        return unmeasured(hierarchy)

    earlier = asked.plan if isinstance(asked.plan, Plan) else None
    with _refusing(ctx):
        limit = seconds(timeout, ctx.config.timeout)
        values = checked_params(asked.params)
        rules = optim.by_key(asked.rule, values)
        engine, wanted = engine_options(asked.engine, asked.keywords), plan_options(asked.plan, asked.keywords)
        settle = partial(settled, ctx, asked.topology, asked.consistency, engine, rules, earlier)
        made = Made(settle(later), asked.rule, wanted, engine, ctx.ranks, engine.progress == "inline")
        check_options(made, tuple(values))
        spare = [spare_cores(ctx, scheme.topology) for scheme in made.schemes]
        threads = earlier is None and wanted.cores is None and any(cores > interfaces for cores, interfaces in spare)
        chooses = earlier is None and bool(auto.undecided(tuple(values), wanted.codec))
        tried = auto.tried({name: value.shape for name, value in values.items()}, wanted.codec)
        if chooses:
            made = replace(made, plan=replace(wanted, codec=tried))
    if put_off or threads:  # before the measurement, which asks no rank if a result is stored
        _core.exchange_accept(ctx._handle, limit)
    if threads:  # each rank's progress option matters for the number of cores
        made = replace(made, inline=any_is_inline(ctx, made, limit))
    if put_off:
        made = replace(made, schemes=settle(partial(measured, ctx, timeout=limit)))
    with _refusing(ctx):
        given = checked(ctx, values, rules, made, isa, spare)
    if not chooses:
        return made, given, None
    _core.exchange_accept(ctx._handle, limit)
    step = partial(step_seconds, ctx, made, rules, make, limit)
    decided = auto.decided(ctx, given.plan, wanted.codec, rules, make, limit, step)
    made = replace(made, plan=replace(wanted, codec=decided.codecs))
    same = {name for name, codec in decided.codecs.items() if codec == tried[name]}
    kept = [one for one in given.schemes if same.issuperset(one.scheme.names)]
    with _refusing(ctx):
        return made, checked(ctx, values, rules, made, isa, spare, kept), decided


@contextmanager
def _refusing(ctx: Context) -> Iterator[None]:
    """Sends a refusal raised in the block to all other ranks, which wait for this rank, and raises it here too."""
    try:
        yield
    except Exception as wrong:
        refuse(ctx, wrong)
        raise
