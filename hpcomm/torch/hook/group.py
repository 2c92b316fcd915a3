"""The ranks of a hook: a context that the trainer gives, or one for a process group of torch."""

from typing import Any

import torch.distributed as dist
from torch import nn

from ... import launch
from ...context import Context
from ...errors import InvalidArgument
from ..backend.store import StoreGroup


def context_of(given: Any, timeout: float | None) -> tuple[Context, bool]:
    """Returns the context of a hook, and whether it was made here. Collective if it was.

    Args:
        given: a Context, a process group, or None for the default group.

    Raises:
        InvalidArgument: given is something else, or there is no default group.
    """
    if isinstance(given, Context):
        return given, False
    if given is None and not dist.is_initialized():
        raise InvalidArgument("ctx is missing, and torch.distributed is not initialized: give hpcomm.init()")
    if given is not None and not isinstance(given, dist.ProcessGroup):
        raise InvalidArgument(f"ctx is {given!r}: must be a Context (hpcomm.init()), a process group, or None")
    c10d: Any = dist.distributed_c10d
    group = dist.group.WORLD if given is None else given
    rank, store = dist.get_rank(group), c10d._world.pg_map[group][1]
    number = store.add(f"hpcomm hooks of rank {rank}", 1)  # ranks may have made other numbers of hooks for other groups
    config = launch.configuration({} if timeout is None else {"timeout": timeout})
    own = StoreGroup(c10d.PrefixStore(f"hpcomm hook {number}", store), rank, dist.get_world_size(group))
    return Context(own, config), True


def check_size(ctx: Context, model: nn.Module | None) -> None:
    """Raises InvalidArgument if DDP has another number of ranks than the context."""
    group = getattr(model, "process_group", None)
    known = group is not None or dist.is_initialized()
    size = dist.get_world_size(group) if known else ctx.size
    if size != ctx.size:
        whose = "DDP's process group" if group is not None else "the default process group of torch.distributed"
        cure = "" if group is not None else "; if DDP has another group, give model=ddp"
        raise InvalidArgument(
            f"HookState: ctx has {ctx.size} ranks, and {whose} has {size}: start hpcomm.init() on the same ranks, or "
            f"leave ctx out{cure}"
        )
