"""Everything that hpcomm raises, and the one place where a C status becomes an exception.

    HpcommError
    ├── InvalidArgument(ValueError)        a bad argument, named with its value and its limits
    ├── ConfigError(ValueError)            ranks disagree, or a setting has no meaning
    ├── NotSupported                       this transport, host or build cannot do it
    ├── TransportError                     the path to a peer failed: transport, peer, detail
    ├── PeerFailed                         ranks failed: ranks, left, op, waiting_for
    ├── Timeout(TimeoutError)              the deadline passed: op, waiting_for, culprits
    ├── AuthError                          a stranger, or a peer of another job
    ├── OutOfMemory(MemoryError)           too little memory for a window or a queue, at creation only
    └── CheckpointError(OSError)           a file or a directory of checkpoints cannot be written or read: path

Ranks are ints, lists of ranks are tuples in rising order, op is the name of the operation, e.g. "recv".
"""

from dataclasses import dataclass
from os import PathLike


class HpcommError(Exception):
    """The base class of all exceptions of hpcomm."""


class InvalidArgument(HpcommError, ValueError):
    """An argument is out of range or of the wrong kind; the sentence has its value and the limits."""


class ConfigError(HpcommError, ValueError):
    """A setting has no meaning, or ranks disagree about a version, a size or a shape; the sentence has all values."""


class NotSupported(HpcommError):
    """This transport, host or build lacks the feature."""


class TransportError(HpcommError):
    """The path to a peer failed: the transport's name, the peer's rank (-1: no rank in particular), and the cause."""

    def __init__(self, message: str = "", *, transport: str = "", peer: int = -1, detail: str = "") -> None:
        super().__init__(message)
        self.transport = transport
        self.peer = peer
        self.detail = detail


class PeerFailed(HpcommError):
    """`ranks` failed by themselves: they died, gave up, or left while `op` still waited for them. `left` ended because
    of these. `op` still waited for `waiting_for`."""

    def __init__(
        self,
        message: str = "",
        *,
        ranks: tuple[int, ...] = (),
        op: str = "",
        waiting_for: tuple[int, ...] = (),
        left: tuple[int, ...] = (),
    ) -> None:
        super().__init__(message)
        self.ranks = ranks
        self.left = left
        self.op = op
        self.waiting_for = waiting_for


@dataclass(frozen=True)
class Culprit:
    """A rank at the end of a chain of waits, and its state.

    Attributes:
        state: "died", "left" (it closed while others still waited for it), "stopped" (the kernel of its host says so),
            "silent" (it did not answer), "computing" (it answers and waits for no rank) or "circle" (it and the other
            culprits wait for each other, which is a bug of the program).
        seconds: of a silent rank since others wait for it, of a computing one since it computes; otherwise 0.
        step: of a computing rank: the most pushes of one key, or sends to one peer, that it has made.
        op: of a rank in a circle: the operation that it waits in.
    """

    rank: int
    state: str
    seconds: float = 0.0
    step: int = 0
    op: str = ""


class Timeout(HpcommError, TimeoutError):
    """The deadline of `op` passed and no rank died; `op` still waited for the ranks `waiting_for`. `culprits` are the
    ends of the chain of waits: `op` may wait for rank 2, which waits for rank 3, which is stopped."""

    def __init__(
        self,
        message: str = "",
        *,
        op: str = "",
        waiting_for: tuple[int, ...] = (),
        culprits: tuple[Culprit, ...] = (),
    ) -> None:
        super().__init__(message)
        self.op = op
        self.waiting_for = waiting_for
        self.culprits = culprits


class AuthError(HpcommError):
    """A connection came from a stranger, or from a peer of another job."""


class OutOfMemory(HpcommError, MemoryError):
    """Too little memory is left for a window or a queue. Raised at creation, never later."""


class CheckpointError(HpcommError, OSError):
    """A checkpoint cannot be written, read or found. `path` is the file or directory, `__cause__` the system's
    error."""

    def __init__(self, message: str = "", *, path: str | PathLike[str] = "") -> None:
        super().__init__(message)
        self.path = path


@dataclass(frozen=True)
class Failure:
    """The record in C of the last failure of a thread (hpc_error in hpcomm.h)."""

    status: int
    message: str
    op: str = ""
    transport: str = ""
    peer: int = -1
    ranks: tuple[int, ...] = ()
    waiting_for: tuple[int, ...] = ()
    left: tuple[int, ...] = ()
    culprits: tuple[Culprit, ...] = ()

    @property
    def detail(self) -> str:
        return self.message.partition(": ")[2]


# The exception of each status, and the attributes that it takes from the failure.
_BY_STATUS: dict[int, tuple[type[HpcommError], tuple[str, ...]]] = {
    -1: (InvalidArgument, ()),
    -2: (ConfigError, ()),
    -3: (NotSupported, ()),
    -4: (TransportError, ("transport", "peer", "detail")),
    -5: (PeerFailed, ("ranks", "left", "op", "waiting_for")),
    -6: (Timeout, ("op", "waiting_for", "culprits")),
    -7: (AuthError, ()),
    -8: (OutOfMemory, ()),
}


def from_failure(failure: Failure) -> HpcommError:
    """The exception of a failure; a plain HpcommError for a status that this version does not know."""
    if failure.status not in _BY_STATUS:
        return HpcommError(f"{failure.message} (status {failure.status})")
    kind, names = _BY_STATUS[failure.status]
    return kind(failure.message, **{name: getattr(failure, name) for name in names})
