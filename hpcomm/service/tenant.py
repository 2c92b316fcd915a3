"""A tenant at its hub: a thread that joins the job's context, makes the exchanges that the job asks for, and serves
them until the workers have closed them."""

import gc
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from .. import _core, errors, launch
from ..config import Config
from ..context import Context
from ..errors import HpcommError, InvalidArgument, Timeout
from ..exchange.arguments import refuse
from . import heap, proof, saving
from .books import Holding, Needs
from .described import Described, Served
from .door import Doors
from .store import JobStore
from .work import HubWork, Tally

_CLOSE_SECONDS = 30.0  # for the end of exchanges that all workers have closed
_LOOK_SECONDS = 5.0
_STARTED = 5.0  # for the end of a thread whose context was aborted
_MOST_ASKED = 4  # requests for exchanges that wait
_MOST_REASON = 4096  # bytes
_READ = 8  # bytes of C's structs for each byte of a description
_FATAL = (errors.PeerFailed, errors.Timeout, errors.TransportError, errors.AuthError)


@dataclass(frozen=True)
class Terms:
    """The terms that a hub grants to a job.

    Attributes:
        title: NAMESPACE/JOB.
        rank: this hub's rank among workers and hubs.
        workers, hubs: how many there are.
        secret: the secret of the job's contexts.
        weight: the share of the hub's cores for each exchange.
        cores: the hub's cores.
        resumes: whether the job's exchanges begin with their saved state.
        store: the job's saved state; None if the hub keeps none.
        users: the users whose workers share memory with the hub, beside its own.
        at: the IP address and the port at which the hub listens.
    """

    title: str
    rank: int
    workers: int
    hubs: int
    secret: bytes = field(repr=False)
    config: Config
    weight: float
    cores: int
    at: tuple[str, int]
    resumes: bool = False
    store: JobStore | None = None
    users: tuple[int, ...] = ()


class Stopped(HpcommError):
    """This job has ended."""


@dataclass(frozen=True)
class _Stop:
    """Why a job ends: a sentence, and the kind of the error if it failed by itself."""

    why: str
    kind: str = ""


@dataclass(frozen=True)
class _Asked:
    """A frame of worker 0: b"E" and the description of an exchange, or b"R" and why worker 0 refuses to make one."""

    kind: bytes
    body: bytes


@dataclass(frozen=True)
class _Save:
    """The workers save an exchange, by its number. seconds: how long they wait."""

    exchange: int
    seconds: float


class _TenantContext(Context):
    """The hub's context in a job."""

    __slots__ = ()

    _meet = staticmethod(launch.meet_at_once)

    def _connect(self, group: launch.Group) -> None:
        assert isinstance(group, Tenant)
        group.begins(self, _core.context_door(self._handle)[0])
        super()._connect(group)

    def take(self, descriptor: int) -> None:
        """Takes a connection that has come to the hub's port for this context."""
        _core.context_take(self._handle, descriptor)

    @property
    def refused(self) -> int:
        """How many callers have not proven themselves."""
        return _core.context_door(self._handle)[1]


class Tenant:
    """The hub's part of a job. Its methods are called by the hub's own thread, and do not wait."""

    def __init__(
        self,
        terms: Terms,
        post: Callable[[bytes], None],
        claim: Callable[[str, Needs, Needs], None],
        over: Callable[[str, str], None],
        count: Callable[[str], None],
        doors: Doors,
    ) -> None:
        """Starts the thread.

        Args:
            post: sends this hub's part of a round of the meeting.
            claim: takes the needs of an exchange or a save from the namespace's quotas, in place of its needs before.
                The first argument names it. Raises ConfigError if a quota has no room for it.
            over: is called once, as the thread's last act, with the reason if the job failed, and its kind.
            count: counts an event by its name.
            doors: gets the context, while it is called.
        """
        self.terms, self._post, self._claim, self._over, self._count = terms, post, claim, over, count
        self.rank, self.size = terms.rank, terms.workers + terms.hubs
        self._inbox: queue.SimpleQueue[_Asked | _Save | _Stop | None] = queue.SimpleQueue()
        self._parts: queue.SimpleQueue[list[bytes] | _Stop] = queue.SimpleQueue()
        self._serving: list[_Serving] = []
        self._made_so_far = 0  # exchanges
        self._tally = Tally()
        self._saver = saving.JobSaver(terms.title, terms.workers, terms.rank - terms.workers, terms.hubs, terms.store)
        self._context: _TenantContext | None = None
        self._doors, self._name, self._refused = doors, b"", 0
        self._up = False
        # the first reason why the job ends; no exception, since the traceback of one would keep the context alive
        self._why: _Stop | None = None
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=f"tenant {terms.title}", daemon=True)
        self._thread.start()

    @property
    def is_up(self) -> bool:
        """Whether the workers and the hubs have connected to each other."""
        return self._up

    @property
    def exchanges(self) -> int:
        """How many exchanges the hub serves."""
        return sum(one.thread.is_alive() for one in self._serving)

    @property
    def memory(self) -> int:
        """The bytes that these exchanges hold."""
        return sum(one.held.needs.nbytes for one in self._serving)

    @property
    def refused(self) -> int:
        """How many callers of the job's context have not proven themselves."""
        with self._lock:
            context = self._context
        return self._refused if context is None else context.refused

    @property
    def work(self) -> HubWork:
        """The work of the hub's cores for the job."""
        return self._tally.work

    # ---- calls of the hub ------------------------------------------------------------------------------------------

    def asked(self, kind: bytes, body: bytes) -> None:
        """Makes an exchange, together with the workers. Raises BadProof if too many requests wait."""
        self._ask(_Asked(kind, body))

    def save(self, exchange: int, seconds: float) -> None:
        """Saves an exchange, together with the workers. Raises BadProof if too many requests wait."""
        self._ask(_Save(exchange, seconds))

    def _ask(self, asked: _Asked | _Save) -> None:
        if self._inbox.qsize() >= _MOST_ASKED:
            raise proof.BadProof(f"{_MOST_ASKED} requests for exchanges wait already")
        self._inbox.put(asked)

    def take(self, parts: list[bytes]) -> None:
        """Takes the data of all ranks of a round."""
        self._parts.put(parts)

    def finish(self) -> None:
        """Ends the job: all workers have said that they are done."""
        self._inbox.put(None)

    def stop(self, why: str) -> None:
        """Ends the job, whatever it does. Its workers are told why."""
        with self._lock:
            if self._why is not None:
                return
            self._why = _Stop(why)
            context = self._context
        self._parts.put(self._why)
        self._inbox.put(self._why)
        if context is not None:  # which ends the waits of the tenant's threads; it may take a moment
            threading.Thread(target=context.abort, args=(why,), daemon=True).start()

    def accept(self, descriptor: int) -> None:
        """Gives the context a connection. Raises an HpcommError if it takes none, and then does not own it."""
        with self._lock:
            context = self._context
        if context is None:
            raise Stopped(f"{self.terms.title} has ended")
        context.take(descriptor)

    # ---- launch.Group ----------------------------------------------------------------------------------------------

    def exchange(self, data: bytes, timeout: float) -> list[bytes]:
        self._post(data)
        try:
            found = self._parts.get(timeout=timeout)
        except queue.Empty:
            raise Timeout(f"not all workers of {self.terms.title} came in {timeout:.3g} s", op="init") from None
        if isinstance(found, _Stop):
            raise Stopped(found.why)
        return found

    def begins(self, context: _TenantContext, name: bytes) -> None:
        """Takes the context, before it connects: stop ends its waits, and the hub's door leads to it. name: of the
        context at the door."""
        with self._lock:
            self._context = context
            if self._why is not None:
                raise Stopped(self._why.why)
        self._name = name
        self._doors.add(name, self.accept)

    # ---- the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._take_part()
        except Exception as failed:
            self._fail(failed)
        self._join(_STARTED)
        self._doors.remove(self._name)
        self._refused = self.refused
        self._context = None
        self._serving = []
        heap.give_back()  # with memory and descriptors of the context
        self._over(*((self._why.why, self._why.kind) if self._why else ("", "")))

    def _join(self, seconds: float) -> None:
        """Waits for the threads that serve, all together at most so many seconds."""
        until = time.monotonic() + seconds
        for one in self._serving:
            one.thread.join(max(until - time.monotonic(), 0))

    def _fail(self, failed: Exception) -> _Stop:
        """Keeps why the job ends, unless it is known; returns the reason that counts."""
        with self._lock:
            if self._why is None:
                self._why = _Stop(str(failed) or type(failed).__name__, type(failed).__name__)
            return self._why

    def _take_part(self) -> None:
        terms = self.terms
        context = _TenantContext(
            self, terms.config, secret=terms.secret, users=terms.users, door=(*terms.at, terms.workers)
        )
        try:
            context.set_title(f"{terms.title}, hub")
            self._up = True
            while (asked := self._next(context)) is not None:
                if isinstance(asked, _Stop):
                    raise Stopped(asked.why)
                if isinstance(asked, _Save):
                    self._save(context, asked)
                else:
                    self._make(context, asked)
            self._join(_CLOSE_SECONDS)
            context.close()
        except Exception as failed:
            context.abort(self._fail(failed).why)

    def _next(self, context: Context) -> "_Asked | _Save | _Stop | None":
        """Waits for the next request. Looks now and then whether a worker has died: a child that it has forked may keep
        its connection to the hub open."""
        while True:
            try:
                return self._inbox.get(timeout=_LOOK_SECONDS)
            except queue.Empty:
                dead = [peer.rank for peer in context.peers if peer.state == "failed"]
            if dead:
                return _Stop(f"rank {dead[0]} has failed", "PeerFailed")

    def _make(self, context: Context, asked: _Asked) -> None:
        """Makes an exchange and lets a thread serve it, or tells the workers why not."""
        held = self._held("the exchange")
        try:
            exchange = self._made(context, asked, held)
        except BaseException as failed:
            held.free()
            if isinstance(failed, _FATAL) or not isinstance(failed, HpcommError):
                raise
            self._count("refused: exchange")  # every rank has raised it; the job may try again
            return
        try:
            back = not self.terms.resumes or self._restore(context, exchange)
            name = f"serves {self.terms.title}"
            thread = threading.Thread(target=self._serve, args=(exchange, held), name=name, daemon=True)
            self._tally.begin(exchange.work)
            thread.start()
        except BaseException:
            held.free()
            raise
        number = self._made_so_far if back else -1  # the workers close an exchange that could not come back
        self._made_so_far += back
        alive = (one for one in self._serving if one.thread.is_alive())
        self._serving = [*alive, _Serving(thread, held, number, exchange)]

    def _restore(self, context: Context, exchange: Served) -> bool:
        """Restores an exchange, together with the workers. Returns whether it did."""
        held = self._held("the restore")
        back = self._saver.restore(context, self._made_so_far, exchange, held, saving.SECONDS)
        self._count("exchanges restored" if back else "refused: restore")
        return back

    def _save(self, context: Context, asked: _Save) -> None:
        """Saves an exchange, together with the workers."""
        served = next((one.exchange for one in self._serving if one.number == asked.exchange), None)
        saved = self._saver.save(context, asked.exchange, served, self._held("the save"), asked.seconds)
        self._count("saves" if saved else "refused: save")

    def _held(self, who: str) -> Holding:
        return Holding(partial(self._claim, who))

    def _made(self, context: Context, asked: _Asked, held: Holding) -> Served:
        terms = self.terms
        maps = [peer.maps or peer.rank == context.rank for peer in context.peers]
        far, far_hubs = (part.count(False) for part in (maps[: terms.workers], maps[terms.workers :]))
        try:
            held.hold(_READ * len(asked.body))
            if asked.kind == b"R":  # a worker has refused its own arguments
                raise InvalidArgument(asked.body[:_MOST_REASON].decode("utf-8", "replace"))
            described = Described(asked.body, terms.cores)
            held.hold(described.memory(terms.workers, terms.hubs, far))
            described.plan(terms.workers, terms.hubs)
            lanes = described.descriptors(far, far_hubs, context.rank, terms.config.tcp_streams)
            # A tenant chooses the chunks, so its plan may give a hub more than its share.
            kept = _READ * len(asked.body)  # the description, for saves
            held.hold(described.memory(terms.workers, terms.hubs, far, context.rank) + kept, lanes)
        except HpcommError as wrong:
            refuse(context, wrong)
            raise
        return described.exchange(context, terms.weight)

    def _serve(self, exchange: Served, held: Holding) -> None:
        """Serves an exchange until all workers have closed it; then frees it."""
        try:
            exchange.serve()
        except Exception as failed:
            self._inbox.put(self._fail(failed))
        finally:
            self._tally.end(exchange.work)
            del exchange
            gc.collect()
            held.free()


@dataclass(frozen=True)
class _Serving:
    """An exchange that a thread serves."""

    thread: threading.Thread
    held: Holding
    number: int
    exchange: Served
