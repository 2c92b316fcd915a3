"""A tenant's side of a hub: the calls that create a job there, join it, and make its exchanges.

A worker has two contexts. The first one, a ServiceContext, is that of the workers alone: barriers, collectives and
windows are theirs, and its size is the number of workers. The second one also has the hubs as its last ranks; only
exchanges use it. Both meet through the hub's port, and both have a secret that is made of the token and of the job's
nonce.
"""

import json
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

import numpy as np

from .. import _core, launch, optim
from .._core import NULL, seconds
from ..config import Config, read_secret
from ..context import Context
from ..engine import Engine, handle_of
from ..errors import (
    AuthError,
    ConfigError,
    HpcommError,
    InvalidArgument,
    NotSupported,
    PeerFailed,
    Timeout,
    TransportError,
)
from ..exchange import Exchange
from ..exchange.arguments import refuse
from ..exchange.options import EngineOptions, PlanOptions, check_keywords, engine_options, plan_options
from ..plan import Plan
from ..topology import ParameterServer
from . import proof, refusals, saving
from .config import ADMIN
from .described import check, with_cores
from .handle import HubAddress, ServiceHandle, addresses, checked_name
from .handle import parsed as parsed_handle

MOST_BYTES = 64 << 20  # of a frame from a hub: the addresses of all ranks
_ANSWER_SECONDS = 10.0  # for a hub's answer to a question
_ROUNDS = 2  # of a context's meeting: versions, then addresses
_MOST_SECONDS = 86400.0  # for a save
_LOOK_SECONDS = 5e-3
_GRACE = 2.0  # seconds by which a rank waits longer than the hub, whose error names the missing ranks


class HubConnection:
    """A proven connection to a hub."""

    def __init__(self, hub: HubAddress, name: str, token: bytes, timeout: float) -> None:
        """name: the namespace, or ADMIN.

        Raises:
            TransportError: no hub answers at this address.
            AuthError: the hub does not know the namespace, or one of the two has another token.
            ConfigError: the hub speaks another version.
        """
        self.hub, self.name, self.notices, self.ended = hub, name, list[str](), ""
        until = time.monotonic() + timeout
        try:
            self._socket = socket.create_connection((hub.host, hub.port), timeout=timeout)
        except OSError as error:
            raise TransportError(
                f"there is no hub at {hub}: {error.strerror or error}", transport="tcp", detail=str(error)
            ) from None
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            self._seal = self._proven(token, until)
        except BaseException:
            self._socket.close()
            raise

    def _proven(self, token: bytes, until: float) -> proof.Seal:
        greeting = self._read(proof.HELLO, until)
        if not proof.is_hello(greeting):
            raise ConfigError(f"{self.hub} is no hub of this version of hpcomm, {_core.version()}")
        claim = proof.claim(greeting, self.name, token)
        self._write(claim, until)
        answer = self._read(proof.ANSWER, until)
        try:
            proof.check_answer(greeting, claim, answer, token)
        except proof.BadProof:
            what = "administrator" if self.name == ADMIN else f"namespace {self.name!r}"
            raise AuthError(f"the hub at {self.hub} has no {what} with this token") from None
        return proof.seal(greeting, claim, token, is_hub=False)

    def ask(self, request: Mapping[str, Any], timeout: float = _ANSWER_SECONDS) -> dict[str, Any]:
        """Sends a request and returns the answer. Raises the refusal of the hub, Timeout and TransportError."""
        until = time.monotonic() + timeout
        self.tell(request, timeout)
        found: dict[str, Any] = json.loads(self.receive(until)[1])
        return found

    def tell(self, request: Mapping[str, Any], timeout: float = _ANSWER_SECONDS) -> None:
        self.send(b"J", json.dumps(request).encode(), time.monotonic() + timeout)

    def send(self, kind: bytes, body: bytes, until: float) -> None:
        self._write(self._seal.closed(kind, body), until)

    def receive(self, until: float) -> tuple[bytes, bytes]:
        """Returns the next frame that is no notice. Raises the refusal that the hub sends, if it sends one."""
        while True:
            kind, body = self._frame(until)
            if kind == b"X":
                raise refusals.unpacked(body)
            if kind != b"N":
                return kind, body
            self.notices.append(body.decode("utf-8", "replace"))

    def take_notices(self, *, strict: bool = False) -> None:
        """Takes the notices that have come, without waiting. strict: raises the error that ends the connection;
        otherwise its sentence is a notice too."""
        try:
            while self._has_input():
                kind, body = self._frame(time.monotonic() + 1)
                if kind == b"X":
                    raise refusals.unpacked(body)
                self.notices.append(body.decode("utf-8", "replace"))
        except HpcommError as ended:
            if strict:
                raise
            self.ended = str(ended)
            self.notices.append(self.ended)

    def refusal(self, seconds: float) -> HpcommError | None:
        """Returns the error that ends this connection, if it comes within so many seconds."""
        if select.select([self._socket], [], [], seconds)[0]:
            try:
                self.take_notices(strict=True)
            except HpcommError as ended:
                return ended
        return None

    def _has_input(self) -> bool:
        """Whether a frame has come, or the end of the connection."""
        return bool(not self.ended and self._socket.fileno() >= 0 and select.select([self._socket], [], [], 0)[0])

    def _frame(self, until: float) -> tuple[bytes, bytes]:
        try:
            n = proof.length_of(self._read(proof.HEAD, until), MOST_BYTES)
            return self._seal.opened(self._read(n, until))
        except proof.BadProof as wrong:
            raise AuthError(f"the hub at {self.hub} sent bytes that fail their proof: {wrong}") from None

    def _read(self, n: int, until: float) -> bytes:
        found = bytearray()
        while len(found) < n:
            try:
                self._socket.settimeout(max(until - time.monotonic(), 1e-3))
                part = self._socket.recv(min(n - len(found), 1 << 20))
            except TimeoutError:
                raise Timeout(f"the hub at {self.hub} did not answer in time", op="connect_service") from None
            except OSError as error:
                raise self._broken(error.strerror) from None
            if not part:
                raise self._broken("it hung up")
            found += part
        return bytes(found)

    def _write(self, data: bytes, until: float) -> None:
        try:
            self._socket.settimeout(max(until - time.monotonic(), 1e-3))
            self._socket.sendall(data)
        except TimeoutError:
            raise Timeout(f"the hub at {self.hub} takes no bytes", op="connect_service") from None
        except OSError as error:
            raise self._broken(error.strerror) from None

    def _broken(self, why: str | None) -> TransportError:
        return TransportError(
            f"the connection to the hub at {self.hub} broke: {why}", transport="tcp", detail=why or ""
        )

    def close(self) -> None:
        self._socket.close()


def create_service(
    hubs: str | list[str],
    namespace: str,
    token: str | bytes | None = None,
    job: str | None = None,
    *,
    resume: bool = False,
    timeout: float = _ANSWER_SECONDS,
) -> str:
    """Creates a job at a hub, and returns its handle (PHub, section 3.1: PHub::CreateService).

        handle = hpcomm.create_service("hub7:7700", "vision", token)

    One process calls it, and gives the handle to all workers, e.g. by the variable HPCOMM_SERVICE. The handle is no
    secret: a worker needs the token too. It is good for one job.

    Args:
        hubs: where the hub listens, "HOST:PORT"; or several, which then share the job's parameters.
        namespace: the tenant's namespace at the hubs.
        token: the namespace's token; None: the contents of the file that HPCOMM_SECRET_FILE names.
        job: the job's name: letters, digits, '.', '_' and '-'. None: the hub chooses one.
        resume: whether the job goes on from the state that an earlier job of this name has saved (HubExchange.save):
            the K-th exchange that it makes begins with the newest save of that job's K-th exchange. Without resume the
            job begins afresh, and its first save replaces that state.
        timeout: seconds for each hub's answer.

    Raises:
        InvalidArgument: hubs, namespace, token or job is malformed.
        TransportError, Timeout: no hub answers.
        AuthError: the hub does not know the namespace or the token.
        ConfigError: the namespace has a job of this name, or has as many jobs as it may have; the hub drains, runs
            another version, or has no saved state to resume.
    """
    if resume and job is None:
        raise InvalidArgument("resume is True, and job is None: give the name of the job whose state was saved")
    secret, space = _token(token), checked_name("namespace", namespace)
    named = None if job is None else checked_name("job", job)
    places = addresses(hubs)
    made: dict[str, Any] = {}
    opened: list[HubConnection] = []
    try:
        for index, hub in enumerate(places):
            opened.append(HubConnection(hub, space, secret, timeout))
            request = {"op": "create", "job": made.get("job", named), "nonce": made.get("nonce")}
            place = {"index": index, "hubs": len(places), "version": _core.version(), "resume": int(resume)}
            made = opened[-1].ask({**request, **place}, timeout)
        for one in opened:  # all hubs have accepted: without this word each forgets the job
            one.tell({"op": "keep"}, timeout)
    finally:
        for one in opened:
            one.close()
    return str(ServiceHandle(tuple(map(str, places)), space, str(made["job"]), str(made["nonce"])))


def _token(token: str | bytes | None) -> bytes:
    if token is None:
        path = launch.configuration({}).secret_file
        found = read_secret(path)
        if found is None:
            raise InvalidArgument("token is None, and HPCOMM_SECRET_FILE is not set: give the namespace's token")
        return found
    data = token.encode() if isinstance(token, str) else token
    if not isinstance(data, bytes) or not data:
        raise InvalidArgument(f"token is a {type(token).__name__}: must be the token, a str or bytes, or None")
    return data


def connect_service(
    handle: str | None = None,
    token: str | bytes | None = None,
    rank: int | None = None,
    size: int | None = None,
    *,
    engine: Engine | None = None,
    **config: Any,
) -> "ServiceContext":
    """Joins a job at a hub as one of its workers, waits for the other workers and the hub, and returns the context
    (PHub, section 3.1: PHub::ConnectService).

        ctx = hpcomm.connect_service(handle, token, rank, size)
        ex = hpcomm.parameter_hub(ctx, params, servers="hub")

    The ranks meet at the hub, so they need no launcher and no MASTER_ADDR.

    Args:
        handle: the text that create_service returned; None: that of HPCOMM_SERVICE.
        token: the namespace's token; None: the contents of the file that HPCOMM_SECRET_FILE names.
        rank, size: this worker's number, from 0, and the number of workers. None: those that the launcher's variables
            give (mpirun, torchrun, srun, Kubernetes); without a launcher, one worker.
        engine, config: as in init.

    Raises:
        InvalidArgument: the token, rank or size is malformed.
        ConfigError: the handle is malformed, or its job has ended; workers give different sizes, the same rank or
            different settings; the job has more workers than the namespace allows; or the versions differ.
        AuthError: the hub does not know the namespace or the token.
        TransportError: no hub answers, or it hung up.
        Timeout, PeerFailed: a worker did not come within init_timeout, or failed.
    """
    used, settings = handle_of(engine), launch.configuration(config)
    where, secret = parsed_handle(handle or settings.service), _token(token)
    if rank is None and size is None:
        rank, size = launch.numbered()
    if not _is_count(rank, 0) or not _is_count(size, 1) or rank >= size:  # type: ignore[operator]
        raise InvalidArgument(f"rank is {rank!r} and size {size!r}: must be numbers, with rank from 0 to size - 1")
    return ServiceContext(_Meeting(where, secret, int(rank), int(size), settings), used)  # type: ignore[arg-type]


def _is_count(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < 1 << 20


class _Meeting:
    """A rank's connections to the hubs, by which contexts meet. Rank 0 is connected to all hubs, and passes on what the
    first one and the others say to each other; other ranks are connected to the first hub."""

    def __init__(self, handle: ServiceHandle, token: bytes, rank: int, size: int, config: Config) -> None:
        self.handle, self.rank, self.size, self.config = handle, rank, size, config
        self.secret = proof.secret_of(token, handle.nonce)
        self._process = os.getpid()
        self._until = time.monotonic() + config.init_seconds
        self.cores, self.resumes = 0, False
        self._all: list[HubConnection] = []
        try:
            for index in range(len(handle.hubs) if rank == 0 else 1):
                self._all.append(self._joined(index, token))
        except BaseException:
            self.close()
            raise

    def _joined(self, index: int, token: bytes) -> HubConnection:
        config, left = self.config, max(self._until - time.monotonic(), 1e-3)
        hub = addresses(self.handle.hubs[index])[0]
        connection = HubConnection(hub, self.handle.namespace, token, left)
        try:
            answer = connection.ask(
                {
                    "op": "join",
                    "job": self.handle.job,
                    "nonce": self.handle.nonce,
                    "rank": self.rank,
                    "size": self.size,
                    "version": _core.version(),
                    "seconds": config.init_seconds,
                    "timeout": config.timeout,
                    "transport": config.transport,
                    "silence": config.silence,
                    "tcp_streams": config.tcp_streams,
                    "resumes": 1,
                },
                left,
            )
        except BaseException:
            connection.close()
            raise
        self.cores, self.resumes = int(answer["cores"]), bool(answer["resume"])
        return connection

    @property
    def hubs(self) -> int:
        return len(self.handle.hubs)

    def exchange(self, group: bytes, data: bytes, size: int, timeout: float) -> list[bytes]:
        """Returns the data of all ranks of a group: b"w", the workers, or b"s", the workers and the hubs."""
        until = time.monotonic() + timeout + _GRACE
        first, *others = self._all
        first.send(b"D", group + data, until)
        if group == b"s":
            for index, hub in enumerate(others, 1):
                first.send(b"D", b"h" + bytes([index]) + self._data(hub, b"s", until), until)
        found = self._data(first, group, until)
        if group == b"s":
            for hub in others:
                hub.send(b"D", b"s" + found, until)
        if len(found) % size:
            raise AuthError(f"the hub at {first.hub} sent {len(found)} bytes for {size} ranks")
        n = len(found) // size
        return [found[i * n : (i + 1) * n] for i in range(size)]

    def _data(self, hub: HubConnection, group: bytes, until: float) -> bytes:
        kind, body = hub.receive(until)
        if kind != b"D" or body[:1] != group:
            raise AuthError(f"the hub at {hub.hub} sent {kind + body[:1]!r} for {group!r}")
        return body[1:]

    def tell(self, kind: bytes, body: bytes) -> None:
        """Sends a frame to all hubs that this rank is connected to. If a hub is gone, the exchange's own waits say
        so."""
        for hub in self._all if self._process == os.getpid() else ():
            with suppress(HpcommError):
                hub.send(kind, body, time.monotonic() + _ANSWER_SECONDS)

    def bye(self) -> None:
        """Says that this rank is done."""
        self.tell(b"J", b'{"op": "bye"}')

    def refusal(self, seconds: float) -> HpcommError | None:
        """Returns why the hub has ended the job, if it says so within so many seconds. For a rank that expects no data
        of the hub."""
        return self._all[0].refusal(seconds)

    def ended(self) -> str:
        """Returns why a hub has ended the job, or ""."""
        self.notices()
        return next((hub.ended for hub in self._all if hub.ended), "")

    def notices(self) -> tuple[str, ...]:
        for hub in self._all:
            hub.take_notices()
        return tuple(one for hub in self._all for one in hub.notices)

    def close(self) -> None:
        for hub in self._all:
            hub.close()
        self._all.clear()

    def __del__(self) -> None:
        """Says goodbye for a context that was dropped without close. A forked child does not speak for its parent."""
        with suppress(Exception):
            self.bye()
            self.close()


class _Ranks:
    """The ranks of one of the two contexts, as launch.Group wants them."""

    def __init__(self, meeting: _Meeting, group: bytes) -> None:
        self.rank, self.size = meeting.rank, meeting.size + (meeting.hubs if group == b"s" else 0)
        self.refusal: HpcommError | None = None
        self._meeting, self._group, self._rounds = meeting, group, 0
        self._met, self._over = threading.Event(), False

    def exchange(self, data: bytes, timeout: float) -> list[bytes]:
        found = self._meeting.exchange(self._group, data, self.size, timeout)
        self._rounds += 1
        if self._rounds == _ROUNDS:
            self._met.set()
        return found

    @contextmanager
    def watched(self, abort: Callable[[str], None]) -> Iterator[None]:
        """Lets a thread listen to the hub while the ranks connect to each other: the hub knows first if one of them has
        died, and then aborts this rank's wait."""
        thread = threading.Thread(target=self._watch, args=(abort,), name="hpcomm-service", daemon=True)
        thread.start()
        try:
            yield
        except HpcommError:
            if self.refusal is not None:
                raise self.refusal from None
            raise
        finally:
            self._over = True
            self._met.set()
            thread.join()

    def _watch(self, abort: Callable[[str], None]) -> None:
        self._met.wait()
        while not self._over and self.refusal is None:
            self.refusal = self._meeting.refusal(_LOOK_SECONDS)
        if self.refusal is not None:
            abort(str(self.refusal))


class _MeetsAtHub(Context):
    """A context whose ranks meet at a hub."""

    __slots__ = ()

    def _connect(self, group: launch.Group) -> None:
        assert isinstance(group, _Ranks)
        with group.watched(super().abort):
            super()._connect(group)


class _HubSide(_MeetsAtHub):
    """The context of the workers and the hubs, which exchanges use. A hub takes part in nothing else, so collective
    methods that a program calls are refused."""

    __slots__ = ("made", "meeting")

    def _refuse(self, op: str) -> NoReturn:
        raise NotSupported(
            f"rank {self.rank}: {op}: hubs take part in exchanges alone: call {op} of the workers' context, which "
            "connect_service returned"
        )

    def window(self, *args: Any, **more: Any) -> NoReturn:
        self._refuse("window")

    def receive_queue(self, *args: Any, **more: Any) -> NoReturn:
        self._refuse("receive_queue")

    def lane(self, *args: Any, **more: Any) -> NoReturn:
        self._refuse("lane")

    def barrier(self, *args: Any, **more: Any) -> NoReturn:
        self._refuse("barrier")

    def revoke(self) -> NoReturn:
        self._refuse("revoke")

    def shrink(self, *args: Any, **more: Any) -> NoReturn:
        self._refuse("shrink")

    def _tell_refusal(self, why: str) -> None:
        if self.rank == 0:  # the hubs take part in the refusal, as in the creation
            self.meeting.tell(b"R", why.encode("utf-8", "replace"))

    def __init__(self, meeting: _Meeting, engine: Any) -> None:
        self.meeting, self.made = meeting, 0  # exchanges so far
        super().__init__(_Ranks(meeting, b"s"), meeting.config, engine, meeting.secret)

    def close(self) -> None:
        try:
            super().close()
        finally:
            self.meeting.bye()
            self.meeting.close()

    def abort(self, why: str) -> None:
        super().abort(why)
        self.meeting.close()


class ServiceContext(_MeetsAtHub):
    """A worker's membership in a job whose parameters a hub serves. connect_service makes it.

    It is a Context of the workers: `size` counts them, and hubs take no part in barriers, windows and collectives.
    parameter_hub(ctx, params, servers="hub") makes an exchange at the hub. Other exchanges, among the workers alone,
    are made as in any context. Closing it closes the exchanges at the hub, and tells the hub that this worker is done.

    The context of an exchange at the hub (Exchange.context) has the hubs as its last ranks. Errors of such an exchange
    give these ranks: in a job of four workers, rank 4 is the first hub.

    Attributes:
        handle: the job's handle.
    """

    __slots__ = ("_served", "handle")

    _served: _HubSide | None

    def __init__(self, meeting: _Meeting, engine: Any = NULL) -> None:
        self.handle, self._served = str(meeting.handle), None
        try:
            super().__init__(_Ranks(meeting, b"w"), meeting.config, engine, meeting.secret)
            self._served = _HubSide(meeting, engine)
        except BaseException as error:
            meeting.close()
            if hasattr(self, "_handle"):
                super().abort(str(error))
            raise
        title = f"{meeting.handle.namespace}/{meeting.handle.job}"
        self.set_title(f"{title}, workers")
        self._served.set_title(title)

    def __enter__(self) -> "ServiceContext":
        return self

    @property
    def notices(self) -> tuple[str, ...]:
        """What the hub has told this job so far, in sentences, e.g. that it drains and ends the job in 60 s."""
        return () if self._served is None else self._served.meeting.notices()

    def close(self) -> None:
        try:
            if self._served is not None:
                self._served.close()
        finally:
            super().close()

    def abort(self, why: str) -> None:
        if self._served is not None:
            self._served.abort(why)
        super().abort(why)


class HubExchange(Exchange):
    """An exchange whose owners are hubs: an Exchange whose state a hub saves and restores.

    In a job that was created with resume=True it begins with the parameters, the rule's state and hyper-parameters, and
    the steps of the newest save, bit for bit; clock says at which step. What a codec has kept back (ErrorFeedback, TopK
    and others) is the worker's own, and begins with zeros.
    """

    __slots__ = ("_number",)

    def __init__(self, ctx: _HubSide, *args: Any, **more: Any) -> None:
        super().__init__(ctx, *args, **more)
        self._number = ctx.made
        if ctx.meeting.resumes:
            try:
                self._come_back()
            except HpcommError:
                with suppress(HpcommError):
                    self.close()
                raise
        ctx.made += 1

    def _announce(self, plans: list[Plan], configs: list[Any]) -> None:
        assert isinstance(self.context, _HubSide)
        try:
            message = _core.description_write([plan.arguments for plan in plans], configs)
        except HpcommError as wrong:
            refuse(self.context, wrong)
            raise
        if self.context.rank == 0:
            self.context.meeting.tell(b"E", message)

    def _until(self, call: Callable[[float], int], limit: float, deadline: float, status: int | None = None) -> int:
        with self._with_reason():
            return super()._until(call, limit, deadline, status)

    @contextmanager
    def _with_reason(self) -> Iterator[None]:
        """Adds what the hub has said to the error of a wait, since ranks that fail together blame each other too."""
        try:
            yield
        except PeerFailed as failed:
            assert isinstance(self.context, _HubSide)
            why = self.context.meeting.ended()
            if why:
                failed.args = (f"{failed}; the hub: {why}",)
            raise

    # ---- checkpoints -----------------------------------------------------------------------------------------------

    @property
    def clock(self) -> int:
        """The number of steps since the start of the training, those before a save included."""
        if self._state.any.counts_updates:
            return self._state.clock()
        return max(self._state.folds(name) for name in self._state.facts)

    def save(self, timeout: float | None = None) -> int:
        """Lets the hub save the parameters and the rule's state, and returns the number of steps that were saved.
        Collective: all workers call it after a step, and go on when the hub has written its file.

        A job with resume=True comes back to the newest save. With several hubs a save counts if all of them have
        written their files. Under BSP the state is that of a step. Under SSP, ASYNC and with a quorum no worker pushes
        meanwhile, and the state has all updates that were applied.

        Args:
            timeout: seconds for all workers to come and for the hubs to write; None means the context's default, and at
                least 600. When it has passed, the job ends.

        Raises:
            ConfigError: the hub saves nothing, or a quota has no room. The exchange goes on, as after the next two.
            CheckpointError: a hub cannot write its file, e.g. because its disk is full. The save before it is kept.
            InvalidArgument: a push or a pull of a worker is pending, or the exchange is closed.
            NotSupported: the workers keep the parameters themselves (apply_at="receivers").
            Timeout, PeerFailed: a worker did not come, or failed.
        """
        context, limit, wrong, begun = self.context, max(self._default, saving.SECONDS), None, 0
        assert isinstance(context, _HubSide)
        try:
            limit = seconds(timeout, limit)
            self._check_idle("save")
            if self._state.rows:
                raise NotSupported(
                    f"rank {self._rank}: save: workers keep the parameters and the rule's state themselves, since "
                    "apply_at is 'receivers': save Exchange.params on one worker"
                )
            begun = self._state.begun() if self._state.any.counts_updates else 0
        except HpcommError as refused:
            wrong = refused
        if self._rank == 0:
            request = {"op": "save", "exchange": self._number, "seconds": min(limit, _MOST_SECONDS)}
            context.meeting.tell(b"J", json.dumps(request).encode())
        with self._with_reason():
            saving.gathered(context, (0, 0, begun), wrong, limit)
            return max(told.numbers[0] for told in saving.gathered(context, (0,), None, limit))

    def _come_back(self) -> None:
        """Takes what the hubs restore."""
        context, keys = self.context, len(self._state.facts)
        assert isinstance(context, _HubSide)
        table = np.zeros((keys, optim.MOST_ARGS)).tobytes()
        with self._with_reason():
            saving.gathered(context, (0,) * saving.SEEN, None, saving.SECONDS)
            told = saving.gathered(context, (0,) * (1 + keys), None, saving.SECONDS, table)
            every = saving.arguments(told[context.meeting.size], keys)
            rules = {
                name: optim.with_arguments(rule, tuple(own.tolist())[: len(optim.arguments(rule))])
                for (name, rule), own in zip(self._state.rules.items(), every, strict=True)
            }
            numbers = np.array([(one.numbers[0], 0, *one.numbers[1:]) for one in told], np.int64)
            self._state.go_on(rules, numbers, saving.SECONDS)

    def state_dict(self, out: dict[str, Any] | None = None) -> NoReturn:
        raise NotSupported(
            "state_dict: the parameters and the rule's state are at the hub: call save, which lets the hub write them"
        )

    def load_state_dict(self, shards: Any, timeout: float | None = None) -> NoReturn:
        raise NotSupported(
            "load_state_dict: the parameters and the rule's state are at the hub: create the job with resume=True, "
            "which restores what save has written"
        )


def hub_exchange(
    ctx: Any,
    params: Mapping[str, Any],
    topology: Any,
    given: Mapping[str, Any],
    consistency: Any,
    rule: Any,
    options: Mapping[str, Any],
) -> HubExchange:
    """Makes an exchange whose owners are the hubs of a ServiceContext; the rest of parameter_hub.

    Args:
        given: fields of ParameterServer that the user gave, without servers.
    """
    if not isinstance(ctx, ServiceContext) or ctx._served is None:
        raise InvalidArgument(f"servers is 'hub' and ctx {ctx!r}: must be a context of connect_service")
    served = ctx._served
    meeting = served.meeting
    try:
        plan, engine = _checked(topology, given, consistency, rule, options, meeting.cores)
        hubs = range(meeting.size, meeting.size + meeting.hubs)
        servers = ParameterServer("NCS", servers=hubs, **given)
    except Exception as wrong:
        refuse(served, wrong)
        raise
    timeout = options.get("timeout")
    return HubExchange(served, params, servers, consistency, rule, plan=plan, engine=engine, timeout=timeout)


def _checked(
    topology: Any,
    given: Mapping[str, Any],
    consistency: Any,
    rule: Any,
    options: Mapping[str, Any],
    cores: int,
) -> tuple[PlanOptions, EngineOptions]:
    """Returns the options of the exchange. Raises InvalidArgument for arguments that a hub does not take."""
    if topology not in ("auto", "flat"):
        raise InvalidArgument(f"topology is {topology!r} and servers 'hub': the hubs alone serve; leave topology out")
    wrong = next((name for name in ("placement", "tree") if name in given), None)
    if wrong is not None:
        raise InvalidArgument(f"{wrong} is {given[wrong]!r} and servers 'hub': leave {wrong} out")
    plan = options.get("plan")
    if isinstance(plan, Plan):
        raise InvalidArgument("plan is a Plan: a hub makes plans of its own; give PlanOptions")
    more = {name: value for name, value in options.items() if name not in ("plan", "engine", "timeout")}
    check_keywords(more)
    found = with_cores(plan_options(plan, more), cores)
    engine = engine_options(options.get("engine", EngineOptions()), more)
    check(consistency, rule, found, engine)
    return found, engine
