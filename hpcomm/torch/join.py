"""Unequal numbers of batches: a rank that has run out of batches takes part in the others' steps with a zero
gradient."""

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
    """Returns a with block in which ranks may have different numbers of batches. Collective: all ranks enter and leave
    it.

        with hpcomm.torch.join(optimizer):
            for batch in batches:
                ...
                optimizer.step()

    A rank that has left the loop takes part in the others' steps until all ranks have left their loops. Its gradient
    counts as zero, and the mean still divides by the number of all ranks. Parameters, optimizer state and the numbers
    in param_groups, such as learning rates, stay the same on all ranks. But a scheduler that counts its own steps
    misses the steps that its rank did not make.

    In the block each step makes one more small allgather. synchronize() and GradScaler raise an error in the block,
    since the scaler of a rank that has run out of batches would keep an old scale. A ModelCheckpointer works in the
    block: a rank that has run out of batches saves when the others do, with the extra values that it gave last.

    With a DiLoCo, a rank that has left the loop takes part in the others' exchanges, with the progress of the steps
    that it has made. All ranks meet whenever an exchange begins, so the exchange waits for the slowest rank. Save with
    a ModelCheckpointer after the block.

    Raises:
        InvalidArgument: optimizer is not an optimizer of hpcomm.torch, or is already in a join block.
        NotSupported: with a DistributedOptimizer: a GradScaler calls step() on any rank; every rank raises it. With a
            DiLoCo: the inner optimizer is a DistributedOptimizer.
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
