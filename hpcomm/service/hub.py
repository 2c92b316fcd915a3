"""The hub: a process that serves the parameters of many jobs, each a tenant, and outlives them (PHub, section 3).

One thread, the hub's own, accepts connections and keeps the books; each tenant has separate threads (tenant.py). The
contexts of all tenants share the process's engine, control thread and reactor.
"""

import asyncio
import math
import os
import resource
import signal
import time
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

from .. import _core, launch
from ..config import resolve
from ..errors import AuthError, ConfigError, HpcommError, InvalidArgument, Timeout
from . import heap, notify, proof
from .books import NOTHING, Books, Needs
from .config import ADMIN, HubConfig, Namespace
from .door import CALL, MAGIC, Doors
from .handle import NONCES, HubAddress, checked_name
from .meeting import HostedJob, Joining, again
from .metrics import Metrics
from .session import MOST_BYTES, Session, hang_up
from .store import Store
from .tenant import Tenant, Terms

MOST_CALLERS = 64  # connections that have proven nothing yet
MOST_WAITING = 1024  # more of them may wait for a place, unread; fewer where the process may have few descriptors
_UNREAD = 4 << 10  # bytes of a connection that asyncio reads ahead, besides its last read of 256 KiB at most
_PROOF_SECONDS = 5.0
_PLACE_SECONDS = 1.0  # until a caller that has proven nothing must give up its place to another one
_REQUEST_SECONDS = 10.0  # from the proof to the first request, and from the answer to "keep"
_MOST_SECONDS = 600.0  # that a tenant may give its workers to meet
_MOST_TIMEOUT = 86400.0
STOP_SECONDS = 10.0  # for tenants that were told to stop
_REFUSED_CALLS = "refused: calls of strangers"  # that named a job
_REMEMBERED = 256  # jobs of a namespace that ended before they ran: their late workers are told why

# the facts of a job that does not run
_SAVED: dict[str, Any] = {"state": "saved", "workers": 0, "missing": [], "exchanges": 0, "memory": 0, "seconds": 0.0}
_BROKEN = (proof.BadProof, EOFError, OSError, TimeoutError, asyncio.TimeoutError)


class Hub:
    """A hub. serve runs it until it has drained."""

    def __init__(self, read: Callable[[], HubConfig], tell: Callable[[str], None]) -> None:
        """Reads the configuration.

        Args:
            read: reads the configuration, now and at each reload.
            tell: takes sentences for the log.

        Raises:
            ConfigError, NotSupported: as read_config.
        """
        self._read, self.tell = read, tell
        self.config = read()
        self._base = launch.configuration({"socket_ifname": self.config.socket_ifname, "devices": self.config.devices})
        self._books = Books()
        folder = self.config.checkpoints
        self._store = None if folder is None else Store(folder, self._space_named, self._books.count)
        self.jobs: dict[tuple[str, str], HostedJob] = {}
        self._metrics = Metrics(self._status, lambda: self.config.namespaces, self.jobs, self._store, self._books.count)
        # by namespace; then by the job's name and nonce
        self._failed: defaultdict[str, OrderedDict[tuple[str, str], HpcommError]] = defaultdict(OrderedDict)
        self._callers: dict[asyncio.StreamWriter, float] = {}
        self._waiting = 0
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._most_waiting = MOST_WAITING if files == resource.RLIM_INFINITY else min(MOST_WAITING, files // 4)
        self._turn = asyncio.Lock()  # of the first caller that waits for a place
        self._freed = asyncio.Event()  # a place
        self._doors = Doors()
        self._drains_at: float | None = None
        self._end: asyncio.TimerHandle | None = None  # of the drain
        self._was_told = False  # by a first SIGTERM
        self._serves: list[str] = []  # what systemd is told, once the hub listens
        self._began = time.monotonic()
        self._over = asyncio.Event()
        self._is_idle = asyncio.Event()  # no job is left
        self._tasks: set[asyncio.Task[None]] = set()

    # ---- the life of a hub -----------------------------------------------------------------------------------------

    async def serve(self, ready: Callable[[str], None]) -> None:
        """Serves until SIGTERM, SIGINT or `hpcomm hub drain`, and then until its jobs have ended or the deadline has
        passed; a second SIGTERM or SIGINT is the deadline. ready: is called with the address at which the hub listens.

        Raises:
            ConfigError: the hub cannot listen at its address.
        """
        where = self.config.listen
        try:
            server = await asyncio.start_server(self._greet, where.host, where.port, backlog=256, limit=_UNREAD)
        except OSError as error:
            raise ConfigError(f"the hub cannot listen at {where}: {error.strerror}") from None
        self._loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._on_term)
        self._loop.add_signal_handler(signal.SIGHUP, self._on_hup)
        try:
            self._at = HubAddress(*server.sockets[0].getsockname()[:2])
            if self.config.metrics is not None:
                self.tell(f"metrics are at {await self._metrics.start(self.config.metrics)}")
            at = str(self._at)
            ready(at)
            self._serves = notify.ready(f"serves at {at}")
            notify.send(self._serves, self.tell)
            await self._over.wait()
        finally:
            server.close()
            await self._end_all("the hub ends")
            await self._metrics.close()

    def _on_term(self) -> None:
        self.drain(0 if self._was_told else self.config.drain_seconds)
        self._was_told = True

    def _on_hup(self) -> None:
        if self._drains_at is None:
            notify.send(notify.reloading(), self.tell)
        self.reload()
        if self._drains_at is None:
            notify.send(self._serves, self.tell)

    def drain(self, seconds: float) -> None:
        """Takes no new jobs, and ends the jobs that are left after so many seconds. A later drain replaces this one."""
        sentence = f"the hub drains: it ends this job in {seconds:g} s"
        self._drains_at = time.monotonic() + seconds
        told = f"drains: {len(self.jobs)} jobs have {seconds:g} s"
        self.tell(told)
        notify.send(notify.stopping(told, seconds + 2 * STOP_SECONDS), self.tell)
        for job in list(self.jobs.values()):
            if job.tenant is None:
                job.end(ConfigError(f"{job.title}: the hub drains, and takes no new jobs"))
            else:
                job.tell(sentence)
        if self._end is not None:
            self._end.cancel()
        self._end = self._loop.call_later(seconds, self._over.set)
        self._look()

    def _look(self) -> None:
        if self.jobs:
            self._is_idle.clear()
            return
        self._is_idle.set()
        if self._drains_at is not None:
            self._over.set()

    async def _end_all(self, why: str) -> None:
        for job in list(self.jobs.values()):
            job.end(ConfigError(f"{job.title}: {why}"))
        self._look()
        with suppress(TimeoutError, asyncio.TimeoutError):
            await asyncio.wait_for(self._is_idle.wait(), STOP_SECONDS)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def reload(self) -> None:
        """Reads the configuration again. Jobs of namespaces that are gone or have another token end. Without a valid
        file nothing changes. The address, the cores and the folder of checkpoints stay as they are."""
        try:
            fresh = self._read()
        except HpcommError as wrong:
            self.tell(f"reload: the old configuration stays: {wrong}")
            return
        for name in self._failed.keys() - fresh.namespaces.keys():
            del self._failed[name]
        old = self.config
        self.config = replace(fresh, listen=old.listen, cores=old.cores, checkpoints=old.checkpoints)
        self.tell(f"reload: {len(fresh.namespaces)} namespaces")
        for job in list(self.jobs.values()):
            if fresh.token(job.namespace) != old.token(job.namespace):
                self._books.count("ended: token revoked")
                job.end(AuthError(f"{job.title}: the token of its namespace was revoked"))

    # ---- connections -----------------------------------------------------------------------------------------------

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves a connection, from its first byte to its end."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            if not await self._has_place(writer):
                self._books.count("refused: too many strangers")
                return
            session = await asyncio.wait_for(self._proven(reader, writer), _PROOF_SECONDS)
            self._free_place(writer)
            if session is not None:
                await self._attended(session)
        except _BROKEN:
            if writer in self._callers:
                self._books.count("refused: strangers")
        except asyncio.CancelledError:
            pass
        finally:
            self._free_place(writer)
            self._tasks.discard(task)
            hang_up(writer)

    async def _has_place(self, caller: asyncio.StreamWriter) -> bool:
        """Waits until one more caller may try to prove itself: at most until the oldest one has had its second, which
        then loses its place. Callers get places in the order in which they came. The hub reads nothing of a caller that
        waits. Returns False if too many wait already."""
        if self._waiting >= self._most_waiting:
            return False
        transport: Any = caller.transport
        self._waiting += 1
        transport.pause_reading()
        try:
            async with self._turn:
                await self._until_a_place()
                self._callers[caller] = time.monotonic()
        finally:
            self._waiting -= 1
        transport.resume_reading()
        return True

    async def _until_a_place(self) -> None:
        while len(self._callers) >= MOST_CALLERS:
            oldest = min(self._callers, key=self._callers.__getitem__)
            crowd = min(1.0, 4 * MOST_CALLERS / (self._waiting + 1))  # where many wait, places change hands sooner
            left = self._callers[oldest] + crowd * _PLACE_SECONDS - time.monotonic()
            if left <= 0:
                del self._callers[oldest]
                self._books.count("refused: strangers")
                oldest.transport.abort()
            else:
                self._freed.clear()
                with suppress(TimeoutError, asyncio.TimeoutError):
                    await asyncio.wait_for(self._freed.wait(), left)

    def _free_place(self, caller: asyncio.StreamWriter) -> None:
        if self._callers.pop(caller, None) is not None:
            self._freed.set()

    async def _proven(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Session | None:
        """Returns the session of a caller that has proven itself; None if the caller was refused, or called a
        tenant's context."""
        greeting = proof.hello()
        writer.write(greeting)
        claim = await reader.readexactly(CALL)
        if claim.startswith(MAGIC):
            if not await self._doors.pass_on(claim, reader, writer):
                self._books.count("refused: calls of no job")
            return None
        claim += await reader.readexactly(proof.CLAIM - CALL)
        name = proof.name_in(claim)
        token = self.config.token(name)
        try:
            proof.check_claim(greeting, claim, token or os.urandom(16))  # an unknown name takes as long as a known one
        except proof.BadProof:
            self._books.count("refused: unknown namespace" if token is None else "refused: wrong token")
            writer.write(proof.refusal())
            await writer.drain()
            return None
        assert token is not None
        writer.write(proof.answer(greeting, claim, token))
        return Session(name, token, proof.seal(greeting, claim, token, is_hub=True), reader, writer)

    async def _attended(self, session: Session) -> None:
        """Attends to a session, which counts as a descriptor of its namespace."""
        held = NOTHING if session.name == ADMIN else Needs(descriptors=1)
        try:
            self._books.hold(self.config, session.name, "the connection", NOTHING, held)
        except ConfigError as wrong:
            session.refuse(wrong)
            await session.closed()
            return
        try:
            await self._attend(session)
        finally:
            try:
                await session.closed()
            finally:
                self._books.hold(self.config, session.name, "the connection", held, NOTHING)
                if not self.jobs:  # those that ended last were still connected when their tenants gave back
                    heap.give_back()

    async def _attend(self, session: Session) -> None:
        """Answers the requests of a session."""
        request = await session.request(_REQUEST_SECONDS)
        kind = request.get("op")
        try:
            self._check_token(session)
            if kind == "forget":
                session.answer(await self._forget(session, request))
            elif session.name == ADMIN:
                session.answer(await self._administer(request))
            elif kind == "create":
                await self._create(session, request)
            elif kind == "join":
                await self._join(session, request)
            else:
                raise InvalidArgument(f"a hub has no request {str(kind)[:40]!r}")
        except HpcommError as wrong:
            session.refuse(wrong)

    # ---- tenants ---------------------------------------------------------------------------------------------------

    def _check_token(self, session: Session) -> None:
        """Raises AuthError if the hub has read another token since the proof."""
        if self.config.token(session.name) != session.token:
            raise AuthError(f"the token of {session.name!r} was revoked")

    def _space_named(self, name: str) -> Namespace | None:
        return self.config.namespaces.get(name)

    async def _create(self, session: Session, request: Mapping[str, Any]) -> None:
        if request.get("resume"):
            await self._check_saved(session.name, request)
            self._check_token(session)
        job = self._created(self.config.namespaces[session.name], request)
        kept = False
        try:
            session.answer({"job": job.name, "nonce": job.nonce})
            kept = (await session.request(_REQUEST_SECONDS)).get("op") == "keep"
        finally:
            if not kept:
                job.end(ConfigError(f"{job.title}: not all hubs took it"))

    async def _check_saved(self, space: str, request: Mapping[str, Any]) -> None:
        """Raises ConfigError if there is no saved state to resume."""
        name = checked_name("job", request.get("job"))
        if self._store is None:
            raise self._counted(
                "no checkpoints",
                f"{space}/{name}: this hub saves nothing: its owner must give a folder, by `checkpoints` in hub.toml",
            )
        if await asyncio.to_thread(lambda job: job.is_empty, self._store.job(space, name)):
            raise self._counted("nothing saved", f"{space}/{name} has no saved state here to resume")

    async def _forget(self, session: Session, request: Mapping[str, Any]) -> dict[str, Any]:
        """Removes the saved state of a job, for a tenant of its namespace or the administrator."""
        space, _, name = str(request.get("job")).partition("/")
        title = f"{checked_name('namespace', space)}/{checked_name('job', name)}"
        if session.name not in (ADMIN, space):
            raise self._counted("another namespace's state", f"namespace {session.name!r} has no job {title}")
        if (space, name) in self.jobs:
            raise ConfigError(f"{title} runs: its saved state can be removed when the job has ended")
        if self._store is None:
            raise ConfigError(f"{title} has no saved state here")
        await asyncio.to_thread(self._store.forget, space, name)
        self.tell(f"{title}: its saved state is removed")
        return {"job": title}

    def _created(self, space: Namespace, request: Mapping[str, Any]) -> HostedJob:
        name, nonce = request.get("job") or f"job-{os.urandom(4).hex()}", request.get("nonce") or os.urandom(16).hex()
        index, hubs = request.get("index"), request.get("hubs")
        checked_name("job", name)
        if not isinstance(nonce, str) or not NONCES.fullmatch(nonce) or type(index) is not int or type(hubs) is not int:
            raise InvalidArgument("a request to create a job is malformed")
        self._check_version(request)
        title = f"{space.name}/{name}"
        if not 0 <= index < hubs <= 64:
            raise InvalidArgument(f"hub {index} of {hubs}: a job has 1 to 64 hubs")
        if self._drains_at is not None:
            raise self._counted("draining", f"{title}: the hub drains, and takes no new jobs")
        if (space.name, name) in self.jobs:
            raise self._counted("two jobs of one name", f"namespace {space.name!r} already has a job {name!r}")
        if sum(one.namespace == space.name for one in self.jobs.values()) >= space.jobs:
            raise self._counted("job quota", f"namespace {space.name!r} has {space.jobs} jobs, and may have no more")
        job = self.jobs[space.name, name] = HostedJob(space.name, name, nonce, index, hubs, self._drop)
        job.resumes = bool(request.get("resume"))
        job.since = time.monotonic()
        late = ConfigError(f"{title}: no worker has come in {self.config.wait_seconds:g} s")
        job.timer = self._loop.call_later(self.config.wait_seconds, job.end, late)
        self._books.count("jobs created")
        return job

    def _check_version(self, request: Mapping[str, Any]) -> None:
        theirs, mine = str(request.get("version"))[:40], _core.version()
        if theirs != mine:
            raise self._counted("another version", f"the hub runs hpcomm {mine}, and this process {theirs}")

    def _check_user(self, space: Namespace, job: HostedJob, says: Joining) -> None:
        """Raises ConfigError for a worker that may use shared memory alone, and whose user lets it share none with the
        hub or with other workers."""
        if not set(says.transport.split(",")) <= set(_core.transports("mapped")):
            return
        told = f"transport is {says.transport!r}, and user {says.user} may share no memory with"
        if not space.shares(says.user):
            fix = f"add {says.user} to `users` of namespace {space.name!r} in hub.toml"
            raise self._counted("another user", f"{told} the hub: {fix}, or allow tcp too")
        if job.first is not None and job.first.user != says.user:
            other = f"rank {job.first.rank}, which runs as user {job.first.user}"
            raise self._counted("another user", f"{told} {other}: run all workers as one user, or allow tcp too")

    def _counted(self, what: str, sentence: str) -> ConfigError:
        self._books.count(f"refused: {what}")
        return ConfigError(sentence)

    async def _join(self, session: Session, request: Mapping[str, Any]) -> None:
        job, rank = self._joined(session, request)
        try:
            if job.is_whole:
                self._start(job)
            while rank not in job.done and job.ended is None:
                kind, body = await session.receive(None, partial(job.most_bytes, rank))
                if kind == b"D":
                    job.post(rank, body)
                else:
                    self._asked(job, rank, kind, body)
        except proof.BadProof as wrong:
            self._books.count("refused: broken tenants")
            job.end(AuthError(f"{job.title}: rank {rank} sent bytes that the hub does not take: {wrong}"))
        except _BROKEN:
            raise
        except Exception as failed:
            self.tell(f"{job.title}: {type(failed).__name__}: {failed}")
            job.end(ConfigError(f"{job.title}: the hub cannot serve it: {type(failed).__name__}"))
        finally:
            job.lost(rank)

    def _joined(self, session: Session, request: Mapping[str, Any]) -> tuple[HostedJob, int]:
        space = self.config.namespaces[session.name]
        name, nonce = str(request.get("job")), str(request.get("nonce"))
        job = self.jobs.get((space.name, name))
        if job is None or job.nonce != nonce:
            failed = self._failed[space.name].get((name, nonce))
            if failed is not None:
                raise again(failed)
            raise self._counted("old handles", f"{space.name}/{name[:63]} has ended: a handle is good for one job")
        says = self._says(request)
        try:
            job.check_open()
        except ConfigError:
            self._books.count("refused: used handles")
            raise
        try:
            self._check_version(request)
            self._check_user(space, job, says)
        except ConfigError as wrong:
            raise again(job.end(ConfigError(f"{job.title}: rank {says.rank}: {wrong}"))) from None
        if not job.members:
            try:
                self._hold(job, says.needs)
            except ConfigError as wrong:
                raise again(job.end(ConfigError(f"{job.title}: {wrong}"))) from None
        try:
            job.join(says, session, space.ranks)
        except ConfigError:
            self._books.count("refused: workers that do not agree")
            raise
        if job.timer is not None and len(job.members) == 1:
            job.timer.cancel()
            job.timer = self._loop.call_later(says.seconds, self._miss, job, says.seconds)
        session.answer({"cores": self.config.cores, "resume": int(job.resumes), "user": os.geteuid()})
        return job, says.rank

    def _says(self, request: Mapping[str, Any]) -> Joining:
        """Returns a worker's rank, size and settings. Raises InvalidArgument for values out of range."""
        try:
            says = Joining(
                rank=int(request["rank"]),
                size=int(request["size"]),
                seconds=min(float(request["seconds"]), _MOST_SECONDS),
                timeout=min(float(request["timeout"]), _MOST_TIMEOUT),
                transport=str(request["transport"]),
                silence=float(request["silence"]),
                tcp_streams=int(request["tcp_streams"]),
                user=int(request["user"]),
                resumes=bool(request.get("resumes")),
            )
            _check_settings(**says.settings)
        except (ConfigError, KeyError, OverflowError, TypeError, ValueError) as wrong:
            raise InvalidArgument(f"a request to join a job is malformed: {wrong}") from None
        good = 0 <= says.rank < says.size and says.seconds > 0 and says.timeout > 0 and 0.1 <= says.silence <= 3600
        if not good or "loop" in says.transport.split(","):
            raise InvalidArgument(f"a hub does not take a worker with {says}")
        return says

    def _miss(self, job: HostedJob, seconds: float) -> None:
        missing = ", ".join(map(str, job.missing[:16]))
        job.end(Timeout(f"{job.title}: rank {missing} did not come in {seconds:g} s"))

    def _asked(self, job: HostedJob, rank: int, kind: bytes, body: bytes) -> None:
        """Fulfils a request of a worker. The tenant's own thread reads requests for exchanges, which may be
        long."""
        if kind in (b"E", b"R"):
            if rank or job.tenant is None:
                raise proof.BadProof(f"a frame {kind!r}, which worker 0 of a running job sends")
            job.tenant.asked(kind, body)
            return
        if len(body) > MOST_BYTES:
            raise proof.BadProof("a long frame is no request for an exchange")
        request = proof.as_request(kind, body)
        if (op := request.get("op")) == "bye":
            job.leave(rank)
        elif op == "save" and rank == 0 and job.tenant is not None:
            number, seconds = request.get("exchange"), request.get("seconds")
            if type(number) is not int or not isinstance(seconds, int | float) or not 0 <= seconds <= _MOST_TIMEOUT:
                raise proof.BadProof("a request to save is malformed")
            job.tenant.save(number, float(seconds))
        else:
            raise proof.BadProof(f"a request {str(op)[:40]!r}")

    def _start(self, job: HostedJob) -> None:
        """Lets a tenant begin: all its workers have come."""
        if job.timer is not None:
            job.timer.cancel()
        assert job.first is not None
        space, base, loop = self.config.namespaces[job.namespace], self._base, self._loop
        own = {
            "tcp_window": self.config.window(space),
            "socket_ifname": base.socket_ifname,
            "tcp_congestion": base.tcp_congestion,
            "devices": base.devices,
        }
        terms = Terms(
            title=job.title,
            rank=job.first.size + job.index,
            workers=job.first.size,
            hubs=job.hubs,
            secret=proof.secret_of(space.token, job.nonce),
            config=resolve({}, {**own, **job.first.config(base)}),
            weight=space.weight,
            cores=self.config.cores,
            resumes=job.resumes,
            store=None if self._store is None else self._store.job(job.namespace, job.name),
            users=space.users,
            at=(self._at.host.partition("%")[0], self._at.port),
        )

        def over(why: str, kind: str) -> None:
            _soon(loop, self._ended, job, why, kind)

        job.tenant = Tenant(
            terms,
            post=lambda data: _soon(loop, job.post_own, data),
            claim=partial(self._claim, space.name),
            over=over,
            count=self._books.count,
            doors=self._doors,
        )
        self.tell(f"{job.title} begins, with {job.first.size} workers")

    def _hold(self, job: HostedJob, needs: Needs) -> None:
        """Takes the needs of a job's context from the quotas. Raises ConfigError if a quota has no room for it."""
        self._books.hold(self.config, job.namespace, "the job", job.held, needs)
        job.held = needs

    def _claim(self, space: str, who: str, old: Needs, new: Needs) -> None:
        self._books.hold(self.config, space, who, old, new)

    def _ended(self, job: HostedJob, why: str, kind: str) -> None:
        if why and job.ended is None:
            self._books.count(f"ended: {kind}")
            job.end(ConfigError(f"{job.title}: {why}"))
        elif not why:
            self._books.count("jobs done")
        if job.tenant is not None and job.tenant.refused:
            self._books.count(_REFUSED_CALLS, job.tenant.refused)
        self.tell(f"{job.title} has ended{f': {why}' if why else ''}")
        self._metrics.ended(job)
        self._drop(job)

    def _drop(self, job: HostedJob) -> None:
        if job.timer is not None:
            job.timer.cancel()
        if self.jobs.get((job.namespace, job.name)) is job:
            del self.jobs[job.namespace, job.name]
        self._hold(job, NOTHING)
        for session in job.members.values():
            session.close()
        if job.tenant is None and job.ended is not None:
            self._books.count(f"ended before it ran: {type(job.ended).__name__}")
            failed = self._failed[job.namespace]
            failed[job.name, job.nonce] = job.ended
            while len(failed) > _REMEMBERED:
                failed.popitem(last=False)
        self._look()

    # ---- the administrator -----------------------------------------------------------------------------------------

    async def _administer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        kind = request.get("op")
        if kind == "status":
            return self._status()
        if kind == "jobs":
            return {"jobs": await self._all_told()}
        if kind == "evict":
            space, _, name = str(request.get("job")).partition("/")
            job = self.jobs.get((space, name))
            if job is None:
                raise InvalidArgument(f"the hub has no job {request.get('job')!r}")
            self._books.count("ended: evicted")
            job.end(ConfigError(f"{job.title}: the administrator of the hub has ended it"))
            return self._told(job)
        if kind == "drain":
            seconds = request.get("seconds")
            if not isinstance(seconds, int | float | None) or not 0 <= (seconds or 0) < math.inf:
                raise InvalidArgument(f"seconds is {str(seconds)[:40]}: must be a number of seconds")
            self.drain(self.config.drain_seconds if seconds is None else seconds)
            return self._status()
        raise InvalidArgument(f"a hub has no request {str(kind)[:40]!r}")

    def _status(self) -> dict[str, Any]:
        left = None if self._drains_at is None else max(self._drains_at - time.monotonic(), 0.0)
        by_space = Counter(job.namespace for job in self.jobs.values())
        counts = dict(self._books.counts)  # one step, as threads of tenants count too
        refused = sum(job.tenant.refused for job in self.jobs.values() if job.tenant is not None)
        if refused:
            counts[_REFUSED_CALLS] = counts.get(_REFUSED_CALLS, 0) + refused
        return {
            "version": _core.version(),
            "pid": os.getpid(),
            "seconds": time.monotonic() - self._began,
            "drains_in": left,
            "cores": self.config.cores,
            "jobs": len(self.jobs),
            "memory": sum(self._books.memory.values()),
            "memory_quota": self.config.memory,
            "descriptors": len(os.listdir("/proc/self/fd")),
            "threads": len(os.listdir("/proc/self/task")),
            "resident": _resident(),
            "namespaces": {
                name: {
                    "jobs": by_space[name],
                    "job_quota": one.jobs,
                    "memory": self._books.memory[name],
                    "memory_quota": one.memory,
                    "descriptors": self._books.descriptors[name],
                    "descriptor_quota": one.descriptors,
                    "weight": one.weight,
                }
                for name, one in self.config.namespaces.items()
            },
            "counts": dict(sorted(counts.items())),
        }

    async def _all_told(self) -> list[dict[str, Any]]:
        """Tells of the jobs, and of saved jobs that do not run."""
        every = [] if self._store is None else await asyncio.to_thread(self._store.saved)
        found = {job.title: self._told(job) for job in self.jobs.values()}
        for one in every:
            told = found.setdefault(one.title, {"job": one.title, **_SAVED})
            told["saved"] = {"step": one.step, "bytes": one.nbytes, "seconds": one.seconds}
        return list(found.values())

    def _told(self, job: HostedJob) -> dict[str, Any]:
        return {
            "job": job.title,
            "state": job.state,
            "workers": 0 if job.first is None else job.first.size,
            "missing": [] if job.tenant else job.missing,
            "exchanges": 0 if job.tenant is None else job.tenant.exchanges,
            "memory": 0 if job.tenant is None else job.tenant.memory,
            "seconds": time.monotonic() - job.since,
            "saved": None,
        }


@lru_cache(maxsize=16)  # the workers of a job give the same settings
def _check_settings(**settings: object) -> None:
    """Raises ConfigError for settings of a worker that no context takes."""
    resolve({}, settings)


def _soon(loop: asyncio.AbstractEventLoop, call: Callable[..., None], *args: Any) -> None:
    with suppress(RuntimeError):  # the loop has ended, and so do the tenants
        loop.call_soon_threadsafe(call, *args)


def _resident() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
