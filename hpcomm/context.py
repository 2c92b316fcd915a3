"""A context: one rank's membership in a job."""

import atexit
import logging
import os
import sys
import time
import traceback
import weakref
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, overload

import numpy as np

from . import _core, launch, log
from ._core import NULL, seconds
from .bandwidth import Bandwidth, as_ranks, as_rate, probe
from .collective import Collectives, Messages
from .config import Config, read_secret
from .engine import Engine, handle_of
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
    """A put_notify that has arrived: the rank that sent it, its 32-bit immediate value, and how many bytes it put."""

    peer: int
    imm: int
    nbytes: int


class Closes(Protocol):
    """An object that a context closes before the context closes itself, e.g. an exchange."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class Peer:
    """The state of one rank, as this rank knows it.

    Attributes:
        transport: the name of the transport over which this rank sends to the rank; "self" for this rank.
        state: "joining", "alive", "left" or "failed".
        path: the address of the rank and this rank's interface, if the transport is TCP, e.g. "10.0.0.2:40001 by eth0";
            "" for other transports.
        maps: whether this process maps the rank's memory.
    """

    rank: int
    transport: str
    host: str
    pid: int
    state: str
    path: str = ""
    maps: bool = False


def init(
    comm: Communicator | Any | None = None, *, engine: Engine | None = None, **config: "Unpack[Settings]"
) -> "Context":
    """Starts this rank, waits for all other ranks and returns the context.

    Args:
        comm: an mpi4py communicator, or any object with rank, size and allgather(bytes) -> list[bytes]. None: the ranks
            that the launcher started (mpirun, mpiexec and srun through MPI, torchrun and srun through their variables);
            without a launcher, this process alone. init makes no MPI call after it has returned.
        engine: the threads that work for this rank's exchanges. None: the process's own; or if ranks of the context are
            threads of one process, an engine for this context alone. Context.shrink() keeps the engine.
        config: settings, the fields of Config, e.g. timeout=10 (seconds) or transport="shm". A setting that is left out
            or None comes from its HPCOMM_ variable, otherwise it has its default; `hpcomm info -c` prints all settings.

    Raises:
        ConfigError: a setting or a launcher's variable has an invalid value; ranks run different versions of hpcomm or
            report different numbers of ranks; or the launcher and MPI do so.
        InvalidArgument: engine is not an Engine, or the process that forked this one made it.
        NotSupported: the launcher needs mpi4py, which is not installed.
        AuthError: only without MPI: the ranks have different secrets, or they have no secret and meet at an address
            other than loopback.
        Timeout, PeerFailed: some rank did not connect within init_timeout, or failed.
    """
    used, settings = handle_of(engine), launch.configuration(config)
    return Context(launch.find(comm, settings), settings, used)


class Context(Collectives, Messages):
    """One rank's membership in a job. init makes it; close, the end of its with block, or the interpreter's exit closes
    it.

    If an exception ends the with block or the interpreter, the peers are told that this rank failed, and why. A plain
    close tells the peers that this rank left. A context without references is closed when its last window, lane, queue
    and exchange are freed. A forked child cannot use its parent's context, and the child's exit does not affect it.

    Attributes:
        rank: this rank's number, from 0.
        size: the number of ranks.
        ranks: ranks[i] is the number that rank i had in the job's first context, before Context.shrink() renumbered the
            ranks.
        config: the Config that this context was made with.
        racks: racks[i] names the rack of rank i: the switches or the block above its host, from SLURM_TOPOLOGY_ADDR; ""
            if not known.
        local_rank: this rank's number among the ranks of its host, from 0.
        local_size: the number of ranks on this rank's host.
        peers: peers[i] is a Peer with the present state of rank i.
        notes: sentences about features that do not work fully on this host, and about incidents since the start, e.g.
            that a stranger was refused or a push was lost. Context.close() also writes the incidents to the log.

    Collective are the methods `window`, `receive_queue`, `lane`, `barrier` and all methods of
    hpcomm.collective.Collectives, e.g. `allreduce` and `allgather`, and also Exchange and its method `load_state_dict`:
    all ranks must call them, in the same order. The methods of hpcomm.collective.Messages, e.g. `send` and `recv`, are
    calls of two ranks. After `close` every method raises InvalidArgument.
    """

    __slots__ = (
        "__weakref__",
        "_dropped",  # exchanges that the program dropped without closing them, and that other ranks may still need
        "_exchanges",
        "_handle",
        "_lane",
        "_noted",  # how many notes existed when the start was logged; None before the start
        "_process",
        "_secret",
        "_shrunk",  # whether a shrunk context has taken the place of this one
        "_sources",
        "config",
        "racks",
        "rank",
        "ranks",
        "size",
    )

    def __init__(
        self,
        group: Group,
        config: Config,
        engine: Any = NULL,
        secret: bytes | None = None,
        users: Sequence[int] = (),
        door: tuple[str, int, int] | None = None,
    ) -> None:
        """Creates the context and connects it.

        Args:
            secret: the job's secret; None: the one in config.secret_file.
            users: other users, by their numbers, whose ranks share memory with this rank if they name its user too.
            door: the IP address and the port at which the process is called for this context, and the first rank that
                may be called so; None: the context listens itself.
        """
        secret, sources = read_secret(config.secret_file) if secret is None else secret, Sources()
        threads = launch.threads()
        handle = _core.context_create(group.rank, group.size, config, threads, secret, engine, sources, users, door)
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
        self._no_calls(sources)
        _open.add(self)

    def _start(self) -> None:
        # When put returns, only a put into mapped memory has finished reading its source.
        self._sources.deferred = not all(peer.maps for peer in self.peers)
        self._noted = sum(not odd for _, odd in _core.context_notes(self._handle))
        self._tell_start()

    _meet = staticmethod(launch.meet)

    def _connect(self, group: Group) -> None:
        limit = self.config.init_seconds
        deadline = time.monotonic() + limit
        self.racks, addresses = self._meet(group, _core.version(), _core.context_address(self._handle), limit)
        _core.context_connect(self._handle, addresses, max(0.0, deadline - time.monotonic()))

    def _tell_refusal(self, why: str) -> None:
        """Is called before this rank refuses to take part in the creation of an exchange."""

    def __repr__(self) -> str:
        return f"<hpcomm.Context rank {self.rank} of {self.size}>"

    @property
    def peers(self) -> tuple[Peer, ...]:
        """A tuple whose element i is a Peer with the present state of rank i, this rank included."""
        found = []
        for rank in range(self.size):
            state, transport, host, pid, path, maps = _core.context_peer(self._handle, rank)
            found.append(Peer(rank, transport, host, pid, _STATES[state], path, maps))
        return tuple(found)

    @property
    def hosts(self) -> tuple[int, ...]:
        """A tuple whose element i is the lowest rank on rank i's host. A container with a separate network counts as a
        host."""
        return tuple(_core.context_host(self._handle, rank) for rank in range(self.size))

    @property
    def local_rank(self) -> int:
        """This rank's number among the ranks of its host, from 0 in the order of ranks. After Context.shrink() only the
        survivors are numbered."""
        return self._mates().index(self.rank)

    @property
    def local_size(self) -> int:
        """The number of ranks on this rank's host."""
        return len(self._mates())

    def _mates(self) -> list[int]:
        """The ranks of this host."""
        hosts = self.hosts
        return [rank for rank, host in enumerate(hosts) if host == hosts[self.rank]]

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about features that do not work fully, and about incidents so far."""
        return tuple(note for note, _ in _core.context_notes(self._handle))

    # ---- collectives -----------------------------------------------------------------------------------------------

    def window(self, shape: Any, dtype: Any = None, *, signals: int = 0, timeout: float | None = None) -> Window:
        """Allocates a window, memory of every rank that all peers may write: window(nbytes) or window(shape, dtype).
        Collective.

        The memory is zero, and all its pages are allocated.

        Args:
            shape: without a dtype, the number of bytes. With a dtype, the array's shape, an int or a tuple of ints. It
                must be the same on every rank.
            dtype: the dtype of `Window.array`; None means bytes (uint8).
            signals: the number of 64-bit signal words in each rank's block; each begins as 0.
            timeout: seconds to wait for the other ranks.

        Raises:
            ConfigError: ranks give different sizes, dtypes or numbers of signals. The error on every rank has both
                values.
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
        """Makes a NOTIFY-ACK queue (ASAP, sections 4 and 5): this rank gets slots for each in-peer, and has slots at
        each out-peer.

        Collective over all ranks; a rank without peers gives two empty lists.

        Args:
            in_peers: the ranks that send to this rank.
            out_peers: the ranks to which this rank sends. Rank a must name b in out_peers if and only if b names a in
                in_peers.
            shape, dtype: the shape and the dtype of one update, the same on every rank.
            depth: the number of slots for each sender, 1 or more, which is how many of its updates may be pending.
            buffers: the number of this rank's registered buffers, 0 to 64. With 2 or more, receivers that map this
                rank's memory read updates from the buffers without a copy.
            timeout: seconds to wait for the other ranks.

        Raises:
            ConfigError: ranks disagree about shape, dtype, depth, buffers or peers; every rank's error has both values.
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
        """Makes one more lane, an ordered channel to every peer, for one more thread. Collective."""
        handle = _core.lane_create(self._handle, seconds(timeout, self.config.timeout), self._sources)
        return Lane(self, handle, self._sources)

    def barrier(self, timeout: float | None = None) -> None:
        """Waits until every rank has called barrier. Collective.

        Raises:
            InvalidArgument: timeout is not a number of seconds; a barrier takes no name.
            Timeout, PeerFailed: a rank did not come; the error has the ranks that are missing.
        """
        if isinstance(timeout, str):
            raise InvalidArgument(
                f"barrier: timeout is {timeout!r}: must be seconds: a barrier has no name, all ranks call their "
                "collectives in the same order"
            )
        _core.barrier(self._handle, seconds(timeout, self.config.timeout))

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
        """Measures the bandwidth that other traffic leaves on the path to a peer on another host, without filling the
        path (SLoPS as in pathload: Jain and Dovrolis, SIGCOMM 2002; Parameter Flow, section 3.3.3).

        Any thread may call it, also while exchanges run; calls on one context take turns. It is not collective: the
        peer's context answers probes without any call by the peer's program.

        Args:
            peer: a rank, or several. Several are probed in turn, each in the pauses of the others, and the result is a
                tuple of Bandwidth, one for each.
            at_least: bytes a second. If given, the probe sends only one fleet of packet streams, to find out whether
                the path has so much bandwidth left.
            timeout: seconds for the whole call, 60 by default. When they have passed, the range found so far is
                returned, even if it is wide.

        Raises:
            InvalidArgument: a peer is this rank, is on this rank's host, or is named twice.
            Timeout, PeerFailed: a peer does not answer, or has failed.
        """
        ranks = as_ranks(peer)
        start = time.monotonic()
        found = probe(self._handle, ranks, as_rate(at_least), seconds(timeout, _PROBE_SECONDS))
        self._trace(f"bandwidth to {ranks}", start)
        return found if isinstance(peer, Iterable) else found[0]

    # ---- the timeline ----------------------------------------------------------------------------------------------

    def span(self, name: str) -> AbstractContextManager[None]:
        """Returns a with block that this thread's timeline shows under this name, e.g. "forward", "loss" or "load
        data". Without a timeline it costs next to nothing."""
        return _Span(self._handle, name) if self.config.timeline else _NO_SPAN

    def span_since(self, name: str, start: float) -> None:
        """Adds a span to this thread's timeline, from start (a value of time.monotonic) until now, for an activity that
        is not one with block."""
        if self.config.timeline:
            with suppress(HpcommError):
                _core.context_span(self._handle, str(name), start)

    # ---- status ----------------------------------------------------------------------------------------------------

    def set_title(self, title: str) -> None:
        """Sets the text by which `hpcomm status` tells this context from others of the process, e.g. "pipeline stage
        2". It shows the first 63 bytes, and "?" for characters that are not printable ASCII."""
        _core.context_set_title(self._handle, str(title))

    # ---- survivors -------------------------------------------------------------------------------------------------

    def revoke(self) -> None:
        """Makes ranks that left early count as failed, on every rank. Exchange.recover() and hpcomm.recovery.run() call
        it before Context.shrink().

        All waits of this context then end with PeerFailed, also waits for living ranks that continue without the ranks
        that left. Any rank that notices the failure may call it; a second call has no effect. If no rank has left, no
        wait ends yet, but exchanges of this context may stop. (ULFM: MPI_Comm_revoke.)
        """
        _core.context_revoke(self._handle)

    def shrink(self, timeout: float | None = None) -> "Context":
        """Returns a new context over the survivors, in the same order, after other ranks died or left. Collective over
        the survivors.

        The survivors agree on who survives, and agree again if more ranks die meanwhile. If all ranks are alive, the
        new context is a duplicate. Windows, queues and exchanges stay with the old context: their arrays can still be
        read, and the new context needs new ones. Close the old context when it is not needed any more, and do not abort
        it; this close raises nothing, even if pushes were lost. (ULFM: MPI_Comm_shrink.)

        Args:
            timeout: seconds for the whole call.

        Raises:
            Timeout: the ranks in the error's waiting_for did not call shrink. A stopped process counts as alive. Call
                shrink again when these ranks have called it or died.
            TransportError: the other ranks heard nothing from this rank, count this rank as failed, and go on without
                it.
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
        """Returns the lane's next event, or None if no event has come. An event comes from a peer's put_notify on the
        peer's lane with the same number."""
        event = _core.poll(self._handle, NULL if lane is None else lane.handle)
        return None if event is None else Event(*event)

    def wait_event(self, timeout: float | None = None, lane: Lane | None = None) -> Event:
        """Waits for the lane's next event and returns it.

        Raises:
            Timeout, PeerFailed: no event came before the deadline, or before a rank failed.
        """
        limit = seconds(timeout, self.config.timeout)
        return Event(*_core.wait_event(self._handle, NULL if lane is None else lane.handle, limit))

    # ---- the end ---------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Leaves the job. Peers that still wait for this rank are told that it left. Not collective; a second call has
        no effect.

        First it closes this context's exchanges. This may wait for other ranks, at most for the context's timeout (see
        Exchange.close), and may raise Timeout or PeerFailed. Arrays of windows, queues and exchanges stay valid.
        """
        first = self._leave()
        try:
            for exchange in list(self._exchanges.values()):  # in the order of creation, which all ranks share
                # InvalidArgument: an earlier failure, already reported, has closed the exchange. After a shrink deaths
                # are known.
                with suppress(InvalidArgument, *((PeerFailed, Timeout) if self._shrunk else ())):
                    exchange.close()
        finally:
            self._dropped.clear()
            _core.context_close(self._handle)
            if first:
                self._tell_news()

    def _drop(self, exchange: Any) -> None:
        """Closes an exchange that the program dropped without closing it. Closes it at once if no push is pending and
        no other rank needs it; otherwise in a later _sweep, or when this context closes."""
        self._dropped.append(exchange)
        self._sweep()

    def _sweep(self) -> None:
        """Closes the dropped exchanges that can be closed without waiting."""
        self._dropped[:] = [one for one in self._dropped if not _closes(one)]

    def abort(self, why: str) -> None:
        """Closes the context, but tells the peers that this rank failed, and why."""
        first = self._leave()
        _core.context_abort(self._handle, why)
        if first:
            self._tell_news()

    @property
    def _is_over(self) -> bool:
        return self._shrunk or self not in _open

    def _leave(self) -> bool:
        """Returns True if this call ends the context; False if the context has ended before, or in a forked child."""
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
        """Writes notes to the log. Notes about refused ranks and lost data are always written. Other notes are written
        if the start failed, or if they are from after the start and HPCOMM_DEBUG asks for them."""
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
        with suppress(HpcommError):  # if the block closed the context, its timeline has ended
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
    """Returns the exception that ended the interpreter, or None at an interactive prompt, since a prompt survives
    exceptions."""
    if hasattr(sys, "ps1"):
        return None
    return getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)


def _close_at_exit(context: Context) -> None:
    """Closes a context. A failure goes to the log, as at exit no caller can catch it."""
    try:
        context.close()
    except HpcommError as failed:
        context._tell(f"closed at exit: {failed}", logging.WARNING)


def _close_all() -> None:
    error = _last_error()
    with ExitStack() as every:  # if one context fails to close, the others are closed all the same
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
    except HpcommError:  # the exchange is closed, and no caller could catch the failure
        pass
    return True
