"""Without a codec: each bucket is averaged in place by one allreduce."""

from typing import Any

from ... import _core
from ..._core import collective_at
from ...context import Context
from ..backend.memory import reduced_type
from .bucket import SentBucket, check

_ALLREDUCE, _MEAN = _core.COLLECTIVES["allreduce"], _core.OPS["mean"]
_NAME = "allreduce_hook"


class Plain:
    """Averages buckets of any floating dtype by collectives of a context."""

    def __init__(self, ctx: Context, timeout: float) -> None:
        self._ctx, self._timeout = ctx, timeout
        self._address = _core.address_of(ctx._handle)

    def send(self, part: SentBucket) -> None:
        buffer = part.buffer
        at, count = buffer.data_ptr(), buffer.numel()
        kind, nbytes = reduced_type(_NAME, buffer, _MEAN), count * buffer.element_size()
        step = (_ALLREDUCE, kind, _MEAN, 0, at, at, count, None, None, nbytes)
        status = collective_at(self._address, *step, self._timeout)
        if status:
            raise _core.error(status)

    def take(self, part: SentBucket) -> None:
        """Does nothing, since send() has written the mean."""

    def saved(self) -> dict[str, Any]:
        """Returns no residuals."""
        return {}

    def restore(self, found: Any) -> None:
        """Does nothing, since there are no residuals."""

    def close(self) -> None:
        """Does nothing, since the context belongs to the state."""


def check_reduced(part: SentBucket) -> None:
    """Raises InvalidArgument for a bucket that cannot be averaged."""
    check(part)
    reduced_type(_NAME, part.buffer, _MEAN)
