"""All exceptions of hpcomm, and the only function that turns a C status into an exception.

    HpcommError
    ├── InvalidArgument(ValueError)        a wrong argument; the message has its value and the allowed range
    ├── ConfigError(ValueError)            ranks disagree, or a setting has an invalid value
    ├── NotSupported                       this transport, host or build cannot do it
    ├── TransportError                     the path to a peer failed: transport, peer, detail
    ├── PeerFailed                         ranks failed: ranks, left, op, waiting_for
    ├── Timeout(TimeoutError)              the deadline passed: op, waiting_for, culprits
    ├── AuthError                          a connection of a stranger, or of another job's rank
    ├── OutOfMemory(MemoryError)           too little memory for a window or a queue, when it is created
    └── CheckpointError(OSError)           a file or a directory of checkpoints cannot be written or read: path

The words after a colon are attributes. Ranks are ints, lists of ranks are tuples in rising order, and op is the name of
an operation, e.g. "recv".
"""

from dataclasses import dataclass
from os import PathLike


class HpcommError(Exception):
    """The base class of all exceptions of hpcomm."""


class InvalidArgument(HpcommError, ValueError):
    """An argument is out of range or of the wrong type; the message has its value and the allowed range."""


class ConfigError(HpcommError, ValueError):
    """A setting has an invalid value, or ranks disagree about a version, a size or a shape; the message has all
    values."""


class NotSupported(HpcommError):
    """This transport, host or build lacks the feature."""


class TransportError(HpcommError):
    """The path to a peer failed. `transport` is the transport's name, `peer` is the peer's rank or -1 if no single peer
    is meant, and `detail` is the cause."""

    def __init__(self, message: str = "", *, transport: str = "", peer: int = -1, detail: str = "") -> None:
        super().__init__(message)
        self.transport = transport
        self.peer = peer
        self.detail = detail


class PeerFailed(HpcommError):
    """Ranks failed while the operation `op` waited.

    `ranks` has the ranks that failed by themselves: they died, gave up, or left while `op` still waited for them.
    `left` has the ranks that ended because others failed. `waiting_for` has the ranks for which `op` still waited.
    """

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
    """A rank that a Timeout blames: it is at the end of a chain of waits.

    Attributes:
        state: "died"; "left": the rank closed while others waited for it; "stopped": the kernel of its host says that
            the process is stopped; "silent": the rank did not answer; "computing": the rank answers, and waits for no
            rank; "circle": the rank and other culprits wait for each other, which is a bug of the program.
        seconds: for "silent", how long others have waited for the rank; for "computing", how long the rank has
            computed; for "circle", how long its latest wait has lasted; otherwise 0.
        step: for "computing", how often the rank has pushed its most pushed key, or has sent to the peer to which it
            sent most; otherwise 0.
        op: for "circle", the operation in which the rank waits; otherwise "".
    """

    rank: int
    state: str
    seconds: float = 0.0
    step: int = 0
    op: str = ""


class Timeout(HpcommError, TimeoutError):
    """The deadline of the operation `op` passed, and no rank died.

    `waiting_for` has the ranks for which `op` still waited. `culprits` has the ranks at the ends of the chains of
    waits: if `op` waits for rank 2, rank 2 waits for rank 3, and rank 3 is stopped, the culprit is rank 3.
    """

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
    """A connection came from a stranger, or from a rank of another job."""


class OutOfMemory(HpcommError, MemoryError):
    """A host has too little memory for a window or a queue. Only calls that create one raise this error."""


class CheckpointError(HpcommError, OSError):
    """A checkpoint cannot be written, read or found. `path` is the file or directory; `__cause__` is the system's
    error."""

    def __init__(self, message: str = "", *, path: str | PathLike[str] = "") -> None:
        super().__init__(message)
        self.path = path


@dataclass(frozen=True)
class Failure:
    """The last failure of a thread, copied from the C struct hpc_error (hpcomm.h)."""

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


# For each status: the exception, and the attributes that it takes from the Failure.
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
    """Returns the exception for a failure; for a status that this version does not know, a plain HpcommError."""
    if failure.status not in _BY_STATUS:
        return HpcommError(f"{failure.message} (status {failure.status})")
    kind, names = _BY_STATUS[failure.status]
    return kind(failure.message, **{name: getattr(failure, name) for name in names})
