"""A context: one rank's place in a group."""

import atexit
import logging
import os
import sys
import time
import traceback
import weakref
from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, overload

import numpy as np

from . import _core, launch, log
from ._core import NULL, seconds
from .bandwidth import Bandwidth, as_ranks, as_rate, probe
from .config import Config, read_secret
from .errors import HpcommError, InvalidArgument, PeerFailed, Timeout
from .launch import Communicator, Group
from .queue import Queue, as_peers
from .window import Lane, Sources, Window, as_dtype, as_shape, size_of, window_shape

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .config import Settings

_PROBE_SECONDS = 60.0
_WHY_CHARS = 120  # of an exception, told to the peers
_STATES = ("joining", "alive", "left", "failed")


class Event(NamedTuple):
    """A put_notify that arrived: who put, its 32-bit immediate, and how many bytes."""

    peer: int
    imm: int
    nbytes: int


class Closes(Protocol):
    """An object that a context closes before itself."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class Peer:
    """A rank as this one knows it. state: joining, alive, left or failed. transport: "self" for this rank itself. path:
    how the rank is reached, e.g. "10.0.0.2:40001 by eth0" over tcp; else "". maps: whether this rank maps its
    memory."""

    rank: int
    transport: str
    host: str
    pid: int
    state: str
    path: str = ""
    maps: bool = False


def init(comm: Communicator | Any | None = None, **config: "Unpack[Settings]") -> "Context":
    """Brings this rank up and waits for all the others.

    Args:
        comm: an mpi4py communicator, or any object with rank, size and allgather(bytes) -> list[bytes]. None: the
            launcher's ranks (mpirun, mpiexec and srun by MPI, torchrun and srun by their variables), else a world of
            one. MPI is not called any more once init has returned.
        config: the settings of Config, e.g. timeout=10 (seconds) or transport="shm". One that is not given, or None, is
            its HPCOMM_ variable, else its default; `hpcomm info -c` prints them all.

    Raises:
        ConfigError: a setting or a launcher's variable has no meaning, the ranks run different versions or have
            different sizes of the job, or the launcher's size is not MPI's.
        NotSupported: the launcher needs mpi4py, which is missing.
        AuthError: without MPI, ranks have different secrets, or none and are to meet elsewhere than at loopback.
        Timeout, PeerFailed: not every rank came.
    """
    settings = launch.configuration(config)
    return Context(launch.find(comm, settings), settings)


class Context:
    """One rank's place in a group; made by init, closed by close, by the end of a with block, or at exit.

    A with block that ends by an exception, or an interpreter that ends by one, tells the peers that this rank failed
    and why; a plain close tells them that it left. A context that is dropped is closed when its last window, lane,
    queue and exchange go. In a forked child nothing of it can be used, and its end there does not touch the parent.

    Attributes:
        rank, size: this rank, and how many there are.
        ranks: by rank, its number in the first context, from which this one came by shrinks.
        config: the settings it was made with.
        racks: by rank: the switches or the block that its host hangs on, as SLURM_TOPOLOGY_ADDR told it; "" if unknown.
        local_rank, local_size: this rank's number among the ranks of its host, and how many there are.
        peers: the current state of every rank.
        notes: sentences about features degraded at start, and about incidents since, e.g. a stranger refused or a push
            lost. Incidents are logged too when the context is closed.

    Collectives (window, receive_queue, lane, barrier, allgather, an Exchange and its load_state_dict) are made by all
    ranks in the same order. All methods raise InvalidArgument after close.
    """

    __slots__ = (
        "__weakref__",
        "_dropped",  # exchanges whose owner is gone, and others may need them
        "_exchanges",
        "_handle",
        "_lane",
        "_noted",  # how many notes of the start are no news any more; None before the start
        "_process",
        "_secret",
        "_shrunk",  # another one has taken its place
        "_sources",
        "config",
        "racks",
        "rank",
        "ranks",
        "size",
    )

    def __init__(self, group: Group, config: Config) -> None:
        secret, sources = read_secret(config.secret_file), Sources()
        handle = _core.context_create(group.rank, group.size, config, launch.threads(), secret, sources)
        self._begin(handle, config, secret, sources)
        try:
            self._connect(group)
        except BaseException as error:
            self.abort(_told(error))
            raise
        self._start()

    def _begin(self, handle: Any, config: Config, secret: bytes | None, sources: Sources) -> None:
        self._handle, self.config, self._secret, self._sources = handle, config, secret, sources
        self.rank, self.ranks = _core.context_rank(handle), _core.context_first_ranks(handle)
        self.size = len(self.ranks)
        self.racks: tuple[str, ...] = ("",) * self.size
        self._exchanges: weakref.WeakValueDictionary[int, Closes] = weakref.WeakValueDictionary()
        self._dropped: list[Any] = []
        self._lane = Lane(None, NULL, sources)
        self._noted: int | None = None
        self._shrunk = False
        self._process = os.getpid()
        _open.add(self)

    def _start(self) -> None:
        # Only a put into mapped memory has read its source when it returns.
        self._sources.deferred = not all(peer.maps for peer in self.peers)
        self._noted = sum(not odd for _, odd in _core.context_notes(self._handle))
        self._tell_start()

    def _connect(self, group: Group) -> None:
        limit = self.config.init_seconds
        deadline = time.monotonic() + limit
        address = _core.context_address(self._handle)
        self.racks = launch.agree(group, _core.version(), len(address), limit)
        addresses = group.exchange(address, max(0.0, deadline - time.monotonic()))
        _core.context_connect(self._handle, addresses, max(0.0, deadline - time.monotonic()))

    def __repr__(self) -> str:
        return f"<hpcomm.Context rank {self.rank} of {self.size}>"

    @property
    def peers(self) -> tuple[Peer, ...]:
        """All ranks as this one knows them now, this one included."""
        found = []
        for rank in range(self.size):
            state, transport, host, pid, path, maps = _core.context_peer(self._handle, rank)
            found.append(Peer(rank, transport, host, pid, _STATES[state], path, maps))
        return tuple(found)

    @property
    def hosts(self) -> tuple[int, ...]:
        """The lowest rank on the host of each rank. A container with its own network is a host."""
        return tuple(_core.context_host(self._handle, rank) for rank in range(self.size))

    @property
    def local_rank(self) -> int:
        """This rank's number among the ranks of its host, from 0, in the order of their ranks. After shrink the
        survivors are numbered again."""
        return self._mates().index(self.rank)

    @property
    def local_size(self) -> int:
        """How many ranks there are on this rank's host."""
        return len(self._mates())

    def _mates(self) -> list[int]:
        """The ranks of this host."""
        hosts = self.hosts
        return [rank for rank, host in enumerate(hosts) if host == hosts[self.rank]]

    @property
    def notes(self) -> tuple[str, ...]:
        """Events that were odd, and features that were degraded, until now, a sentence each."""
        return tuple(note for note, _ in _core.context_notes(self._handle))

    # ---- collectives -----------------------------------------------------------------------------------------------

    def window(self, shape: Any, dtype: Any = None, *, signals: int = 0, timeout: float | None = None) -> Window:
        """A window of every rank: window(nbytes), or window(shape, dtype); zeroed, and allocated in full. Collective.

        Args:
            shape: number of bytes; with dtype an int or a tuple of ints. The same on every rank.
            dtype: of `Window.array`; None means bytes (uint8).
            signals: number of 64-bit signal words, all 0.
            timeout: seconds to wait for the other ranks.

        Raises:
            ConfigError: ranks disagree about the size, the dtype or the signals; every rank is told both values.
            OutOfMemory: a host has too little memory.
        """
        sizes, kind = window_shape(shape, dtype)
        nbytes = size_of(sizes, np.dtype(np.uint8) if kind is None else kind)
        count = _count(signals, "signals")
        limit = seconds(timeout, self.config.timeout)
        agreed = None if kind is None else f"{kind} {sizes}"
        start = time.monotonic()
        handle = _core.window_create(self._handle, nbytes, count, agreed, limit, self._sources)
        window = Window(
            self,
            handle,
            rank=self.rank,
            size=self.size,
            shape=sizes,
            dtype=kind,
            signals=count,
            timeout=self.config.timeout,
            lane=self._lane,
        )
        self._trace(f"window of {nbytes} bytes and {count} signals", start)
        return window

    def receive_queue(
        self,
        in_peers: Iterable[int],
        out_peers: Iterable[int],
        shape: Any,
        dtype: Any = np.float32,
        depth: int = 1,
        buffers: int = 0,
        *,
        timeout: float | None = None,
    ) -> Queue:
        """A NOTIFY-ACK queue (ASAP, sections 4 and 5): slots at this rank for each in-peer, at each out-peer for this
        rank.

        Collective over all ranks; one without peers gives two empty lists.

        Args:
            in_peers, out_peers: ranks; rank a has b in out_peers exactly when b has a in in_peers.
            shape, dtype: of one update, the same on every rank.
            depth: pending updates of one sender, 1 or more.
            buffers: registered buffers of each rank, 0 to 64: with 2 or more, updates are read where they were written.
            timeout: seconds to wait for the other ranks.

        Raises:
            ConfigError: ranks disagree about shape, dtype, depth, buffers or peers; every rank is told both values.
            OutOfMemory: a host has too little memory.
        """
        start = time.monotonic()
        queue = Queue(
            self,
            self._handle,
            rank=self.rank,
            in_peers=as_peers(in_peers, "in_peers"),
            out_peers=as_peers(out_peers, "out_peers"),
            shape=as_shape(shape),
            dtype=as_dtype(dtype),
            depth=_count(depth, "depth"),
            buffers=_count(buffers, "buffers"),
            default=self.config.timeout,
            timeout=seconds(timeout, self.config.timeout),
        )
        self._trace(f"queue {queue!r}", start)
        return queue

    def lane(self, timeout: float | None = None) -> Lane:
        """One more ordered channel to every peer, for one more thread. Collective."""
        handle = _core.lane_create(self._handle, seconds(timeout, self.config.timeout), self._sources)
        return Lane(self, handle, self._sources)

    def barrier(self, timeout: float | None = None) -> None:
        """Returns when every rank has called it. Collective.

        Raises:
            InvalidArgument: timeout is no number of seconds; a barrier has no name.
            Timeout, PeerFailed: with the ranks still waited for.
        """
        if isinstance(timeout, str):
            raise InvalidArgument(
                f"barrier: timeout is {timeout!r}: must be seconds: a barrier has no name, all ranks call their "
                "collectives in the same order"
            )
        _core.barrier(self._handle, seconds(timeout, self.config.timeout))

    def allgather(self, data: bytes, timeout: float | None = None) -> list[bytes]:
        """The bytes that every rank gives, in rank order; the same number on each. Collective, for small things."""
        return _core.allgather(self._handle, bytes(data), self.size, seconds(timeout, self.config.timeout))

    # ---- the network -----------------------------------------------------------------------------------------------

    @overload
    def bandwidth(self, peer: int, *, at_least: float | None = None, timeout: float | None = None) -> Bandwidth: ...

    @overload
    def bandwidth(
        self, peer: Iterable[int], *, at_least: float | None = None, timeout: float | None = None
    ) -> tuple[Bandwidth, ...]: ...

    def bandwidth(
        self, peer: int | Iterable[int], *, at_least: float | None = None, timeout: float | None = None
    ) -> Bandwidth | tuple[Bandwidth, ...]:
        """Measures the available bandwidth to a peer on another host beside all other traffic, without filling the path
        (SLoPS as in pathload: Jain and Dovrolis, SIGCOMM 2002; Parameter Flow, section 3.3.3). From any thread, also
        while exchanges run; the calls of a context take turns. Not collective: the peer's context answers by itself.

        Args:
            peer: a rank, or several, whose probes fill each other's pauses; the answer is a tuple then.
            at_least: bytes a second. Asks only whether the path has so much left, which takes one fleet of streams.
            timeout: seconds for all of it, 60 by default. A range that is not narrow yet is given as it is.

        Raises:
            InvalidArgument: a peer is on this rank's host, is this rank, or is named twice.
            Timeout, PeerFailed: a peer does not answer, or is gone.
        """
        ranks = as_ranks(peer)
        start = time.monotonic()
        found = probe(self._handle, ranks, as_rate(at_least), seconds(timeout, _PROBE_SECONDS))
        self._trace(f"bandwidth to {ranks}", start)
        return found if isinstance(peer, Iterable) else found[0]

    # ---- the timeline ----------------------------------------------------------------------------------------------

    def span(self, name: str) -> AbstractContextManager[None]:
        """A with block that is shown under this name in the timeline of this thread: "forward", "loss", "load data".
        Without a timeline it costs next to nothing."""
        return _Span(self._handle, name) if self.config.timeline else _NO_SPAN

    def span_since(self, name: str, start: float) -> None:
        """Shows a span from start, by time.monotonic, until now in the timeline of this thread, for an activity beside
        the thread's own work."""
        if self.config.timeline:
            with suppress(HpcommError):
                _core.context_span(self._handle, str(name), start)

    # ---- survivors -------------------------------------------------------------------------------------------------

    def revoke(self) -> None:
        """After ranks left before the others were done: they count as failed from now on, on every rank, so that all
        waits of this context end by PeerFailed, also waits for ranks that are alive but go on without the gone ones.
        The rank that notices calls it before shrink; recover and run do so. Again is no error. If no rank is gone, no
        wait ends yet, but exchanges of this context may stop. (ULFM's MPI_Comm_revoke.)"""
        _core.context_revoke(self._handle)

    def shrink(self, timeout: float | None = None) -> "Context":
        """A new context over the survivors, in the same order, when other ranks died or left. Collective over the
        survivors.

        They agree on the list of survivors, whatever failed before, and agree again when more of them die meanwhile. If
        no rank is gone the new context is a duplicate. Windows, queues and exchanges of this context stay with it:
        their arrays can be read; make new ones of the new context. Close this context, do not abort it, when it is not
        needed any more; close then raises nothing, even if its exchanges have lost pushes. (ULFM's MPI_Comm_shrink.)

        Args:
            timeout: seconds for all of it.

        Raises:
            Timeout: waiting_for did not come; a stopped process is not gone. Call it again when they came or died.
            TransportError: the others count this rank as failed (they heard nothing from it) and go on without it.
        """
        sources = Sources()
        limit = seconds(timeout, self.config.timeout)
        handle = _core.context_shrink(self._handle, self.config, launch.threads(), self._secret, limit, sources)
        self._shrunk = True
        fresh = Context.__new__(Context)
        fresh._begin(handle, self.config, self._secret, sources)
        fresh.racks = tuple(self.racks[self.ranks.index(name)] for name in fresh.ranks)
        fresh._start()
        return fresh

    # ---- events ----------------------------------------------------------------------------------------------------

    def poll(self, lane: Lane | None = None) -> Event | None:
        """The next event of a lane, None when none came: the put_notify of a peer on its lane of the same number."""
        event = _core.poll(self._handle, NULL if lane is None else lane.handle)
        return None if event is None else Event(*event)

    def wait_event(self, timeout: float | None = None, lane: Lane | None = None) -> Event:
        """Waits for the next event of a lane.

        Raises:
            Timeout, PeerFailed: none came.
        """
        limit = seconds(timeout, self.config.timeout)
        return Event(*_core.wait_event(self._handle, NULL if lane is None else lane.handle, limit))

    # ---- the end ---------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Leaves the group: peers that still wait for this rank are told. Not collective; again is no error.

        Exchanges are closed first, which may wait for others up to the timeout (see Exchange.close) and raise Timeout
        or PeerFailed. Arrays of windows, queues and exchanges stay valid.
        """
        first = self._leave()
        try:
            for exchange in list(self._exchanges.values()):  # in the order of their making, the same on all ranks
                # A failure has closed the context before, and has been told; after a shrink it is known.
                with suppress(InvalidArgument, *((PeerFailed, Timeout) if self._shrunk else ())):
                    exchange.close()
        finally:
            self._dropped.clear()
            _core.context_close(self._handle)
            if first:
                self._tell_news()

    def _drop(self, exchange: Any) -> None:
        """Closes an exchange that its user left open: now if nothing is pending and no other rank needs it, otherwise
        in a later sweep, or with this context."""
        self._dropped.append(exchange)
        self._sweep()

    def _sweep(self) -> None:
        """Closes exchanges that were dropped, as far as that needs no wait."""
        self._dropped[:] = [one for one in self._dropped if not _closes(one)]

    def abort(self, why: str) -> None:
        """close, but the peers are told that this rank failed, and why."""
        first = self._leave()
        _core.context_abort(self._handle, why)
        if first:
            self._tell_news()

    @property
    def _is_over(self) -> bool:
        return self._shrunk or self not in _open

    def _leave(self) -> bool:
        """Whether the context ends now: it has not before, and is no forked child's."""
        first = self in _open and self._process == os.getpid()
        _open.discard(self)
        return first

    def __enter__(self) -> "Context":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self.abort(_told(error))

    # ---- for HPCOMM_DEBUG ------------------------------------------------------------------------------------------

    def _tell_start(self) -> None:
        log.ask(self.config.debug)
        if self.config.debug == "WARN":
            return
        by_transport: dict[str, list[str]] = {}
        ways = []
        for peer in self.peers[self.rank + 1 :]:  # each pair once: by its lower rank
            if peer.path:
                ways.append(f"{peer.transport} to rank {peer.rank} ({peer.host}) at {peer.path}")
            else:
                by_transport.setdefault(peer.transport, []).append(str(peer.rank))
        for transport, ranks in by_transport.items():
            ways.append(f"{transport} to rank{'s' if len(ranks) > 1 else ''} {', '.join(ranks)}")
        told = f"of {self.size}, hpcomm {_core.version()}"
        self._tell(f"{told}: {'; '.join(ways)}" if ways else told)
        for note, odd in _core.context_notes(self._handle):
            if not odd:
                self._tell(note)

    def _tell_news(self) -> None:
        """Notes to log: of ranks that were refused and of data that was lost, always; other notes only after the start,
        if HPCOMM_DEBUG asks for them, and all if the start failed."""
        notes = _core.context_notes(self._handle)
        plain = [note for note, odd in notes if not odd]
        if self._noted is not None:
            plain = [] if self.config.debug == "WARN" else plain[self._noted :]
        for note, odd in notes:
            if odd or note in plain:
                self._tell(note, logging.WARNING if odd or self._noted is None else logging.INFO)

    def _trace(self, what: str, start: float) -> None:
        if self.config.debug == "TRACE":
            self._tell(f"{what} in {time.monotonic() - start:.6f} s", logging.DEBUG)

    def _tell(self, what: str, level: int = logging.INFO) -> None:
        log.logger.log(level, "rank %d: %s", self.rank, what)


class _Span:
    __slots__ = ("_handle", "_name", "_start")

    def __init__(self, handle: Any, name: str) -> None:
        self._handle, self._name = handle, str(name)

    def __enter__(self) -> None:
        self._start = time.monotonic()

    def __exit__(self, *raised: object) -> None:
        with suppress(HpcommError):  # closed in the block: its timeline has ended
            _core.context_span(self._handle, self._name, self._start)


_NO_SPAN = nullcontext()


def _count(value: Any, name: str) -> int:
    try:
        count = int(value.__index__())
    except (AttributeError, TypeError):
        raise InvalidArgument(f"{name} is {value!r}: must be an int") from None
    if not -(2**31) <= count < 2**31:
        raise InvalidArgument(f"{name} is {count}: must be less than {2**31}")
    return count


_open: "weakref.WeakSet[Context]" = weakref.WeakSet()


def _told(error: BaseException) -> str:
    return "".join(traceback.format_exception_only(type(error), error)).strip()[:_WHY_CHARS]


def _last_error() -> BaseException | None:
    """The exception that ended the interpreter; a prompt outlives its exceptions."""
    if hasattr(sys, "ps1"):
        return None
    return getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)


def _close_at_exit(context: Context) -> None:
    """Closes a context; a failure has no caller that could catch it, and goes to the log."""
    try:
        context.close()
    except HpcommError as failed:
        context._tell(f"closed at exit: {failed}", logging.WARNING)


def _close_all() -> None:
    error = _last_error()
    with ExitStack() as every:  # one that fails keeps none of the others open
        for context in list(_open):
            if error is None:
                every.callback(_close_at_exit, context)
            else:
                every.callback(context.abort, _told(error))


atexit.register(_close_all)


def _closes(exchange: Any) -> bool:
    try:
        exchange.close(0)
    except Timeout:
        return False
    except HpcommError:  # the exchange is closed; no caller is there to be told of the failure
        pass
    return True
