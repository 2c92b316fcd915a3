"""A tenant's calls: create_service creates a job at a hub, connect_service joins it."""

from typing import Any

from .. import _core, launch
from ..config import read_secret
from ..engine import Engine, handle_of
from ..errors import InvalidArgument
from ..stage import whole
from .connection import ANSWER_SECONDS, HubConnection
from .context import ServiceContext
from .handle import ServiceHandle, addresses, checked_name
from .handle import parsed as parsed_handle
from .ranks import WorkerMeeting

_MOST_WORKERS = 1 << 20


def create_service(
    hubs: str | list[str],
    namespace: str,
    token: str | bytes | None = None,
    job: str | None = None,
    *,
    resume: bool = False,
    timeout: float = ANSWER_SECONDS,
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
        ConfigError: the namespace has a job of this name, or has as many jobs or descriptors as it may have; the hub
            drains, runs another version, or has no saved state to resume.
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
    return str(ServiceHandle(places, space, str(made["job"]), str(made["nonce"])))


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
) -> ServiceContext:
    """Joins a job at a hub as one of its workers, waits for the other workers and the hub, and returns the context
    (PHub, section 3.1: PHub::ConnectService).

        ctx = hpcomm.connect_service(handle, token, rank, size)
        ex = hpcomm.parameter_hub(ctx, params, servers="hub")

    The ranks meet at the hub, so they need no launcher and no MASTER_ADDR.

    Args:
        handle: the text that create_service returned; None: that of HPCOMM_SERVICE.
        token: the namespace's token; None: the contents of the file that HPCOMM_SECRET_FILE names.
        rank, size: this worker's number, from 0, and the number of workers. None: those of the launcher
            (mpirun, torchrun, srun, Kubernetes); without a launcher, one worker.
        engine, config: as in init.

    Raises:
        InvalidArgument: the token, rank or size is malformed.
        ConfigError: the handle is malformed, or its job has ended or has all its workers; workers give different sizes,
            the same rank or different settings; the job exceeds a quota of the namespace; a worker died before all
            were connected; the hub ends the job; or the versions differ.
        AuthError: the hub does not know the namespace or the token, or the token was revoked.
        TransportError: no hub answers, or it hung up.
        Timeout: a worker did not come within the init_timeout of the first one.
        PeerFailed: a worker failed while the ranks connected to each other.
    """
    used, settings = handle_of(engine), launch.configuration(config)
    where, secret = parsed_handle(handle or settings.service), _token(token)
    if rank is None and size is None:
        rank, size = launch.numbered()
    size = whole("size", size, 1, _MOST_WORKERS)
    rank = whole("rank", rank, 0, size - 1)
    return ServiceContext(WorkerMeeting(where, secret, rank, size, settings), used)
