"""Uneven inputs: a rank that has run out of batches takes part in the others' steps, with nothing."""

from collections.abc import Iterator
from contextlib import contextmanager

from .._core import within
from ..errors import InvalidArgument
from .diloco import DiLoCo
from .optimizer import DistributedOptimizer
from .uneven import JoinBlock

_NAME = "hpcomm.torch.join()"


@contextmanager
def join(optimizer: DistributedOptimizer | DiLoCo) -> Iterator[None]:
    """A with block for ranks with unequal numbers of batches. Collective: all ranks enter and leave it.

        with hpcomm.torch.join(optimizer):
            for batch in batches:
                ...
                optimizer.step()

    A rank that has left the loop takes part in the others' steps until all have left theirs. Its part of the mean
    gradient is zero, and the mean still divides by all ranks. Parameters, state and the numbers of param_groups, such
    as learning rates, stay the same on all ranks; a scheduler that counts its own steps does not know of the steps that
    its rank did not make. In the block a step costs one small allgather more. synchronize and GradScaler are refused:
    the scaler of a rank that has run out would keep an old scale. A ModelCheckpointer works in the block: a rank
    that has run out saves with the others, with the extra values that it gave last.

    With a DiLoCo optimizer, such a rank takes part in the exchanges of the others, with its steps up to then and no
    more. Ranks meet when an exchange begins, and wait for the slowest one there. A ModelCheckpointer saves behind the
    block.

    Raises:
        InvalidArgument: optimizer is not of hpcomm.torch, or is in a join block already.
        NotSupported: a rank calls step by a GradScaler, with a DistributedOptimizer; every rank raises it. Or the
            inner optimizer of a DiLoCo is a DistributedOptimizer.
    """
    if isinstance(optimizer, DiLoCo):
        with optimizer.joined():
            yield
        return
    if not isinstance(optimizer, DistributedOptimizer):
        raise InvalidArgument(f"optimizer is a {type(optimizer).__name__}: must be a DistributedOptimizer, or a DiLoCo")
    if optimizer._join is not None:
        raise InvalidArgument("join: the optimizer is in a join block already")
    optimizer._uneven.joined = True
    block = JoinBlock(optimizer._mode.workers, optimizer.param_groups, optimizer._follow, optimizer._uneven)
    optimizer._join = block
    try:
        yield
        with within(_NAME, every=True):
            while block.follow():
                pass
    finally:
        optimizer._join = None
