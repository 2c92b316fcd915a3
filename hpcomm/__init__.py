"""hpcomm: one-sided exchange of the updates of data-parallel training jobs.

    ctx = hpcomm.init()                                   # under mpirun, or alone
    window = ctx.window((1024,), "float32", signals=1)    # every peer may write into it
    queue = ctx.receive_queue(in_peers, out_peers, (1024,))   # NOTIFY-ACK

All that is public is here; `python -m pydoc hpcomm` tells it all.
"""

from ._core import version as _version
from .config import Config
from .context import Context, Event, Peer, init
from .errors import (
    AuthError,
    ConfigError,
    HpcommError,
    InvalidArgument,
    NotSupported,
    OutOfMemory,
    PeerFailed,
    Timeout,
    TransportError,
)
from .launch import Communicator
from .queue import Queue, QueueStats
from .window import Lane, Window

__version__ = _version()

__all__ = [
    "AuthError",
    "Communicator",
    "Config",
    "ConfigError",
    "Context",
    "Event",
    "HpcommError",
    "InvalidArgument",
    "Lane",
    "NotSupported",
    "OutOfMemory",
    "Peer",
    "PeerFailed",
    "Queue",
    "QueueStats",
    "Timeout",
    "TransportError",
    "Window",
    "__version__",
    "init",
]
