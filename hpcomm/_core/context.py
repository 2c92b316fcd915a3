"""Binds the rendezvous, the context that ranks then share, and collective calls."""

import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

from .._ffi import ffi, lib
from ..log import logger
from .handle import collected, collecting, collective, gathering, owned
from .memory import from_buffer
from .status import NULL, SLICE, check, checking, text

DOOR_CALL: int = lib.HPC_DOOR_CALL
MOST_USERS: int = lib.HPC_MOST_USERS  # of context_create

context_rank: Callable[[Any], int] = lib.hpc_context_rank
context_revoke = checking(lib.hpc_context_revoke)
context_close = checking(lib.hpc_context_close)
barrier = collecting(lib.hpc_barrier)
allgather = gathering(lib.hpc_allgather)
rendezvous_allgather = gathering(lib.hpc_rendezvous_allgather)


def rendezvous_create(rank: int, size: int, host: str, port: int, secret: bytes | None, timeout: float) -> Any:
    """Lets all ranks meet at host and port, where rank 0 listens. Collective."""
    chars = NULL if secret is None else from_buffer(secret)
    given = rank, size, host.encode(), port, chars, len(secret or b"")
    return collected(lib.hpc_rendezvous_create, given, "hpc_rendezvous *", timeout, lib.hpc_rendezvous_free)


def _chars(data: bytes) -> Any:
    return ffi.new("char[]", data) if data else NULL


@ffi.def_extern()  # type: ignore[untyped-decorator]
def hpcomm_warn(_arg: Any, sentence: Any) -> None:
    logger.warning("%s", text(sentence))


def engine_create() -> Any:
    out = ffi.new("hpc_engine **")
    check(lib.hpc_engine_create(out))
    return owned(out[0], lib.hpc_engine_free, None)


def _settings(config: Any, threads: int, secret: bytes | None, users: Sequence[int] = ()) -> tuple[Any, ...]:
    """Makes an hpc_config from a Config. Returns it with the objects that it points to, which must live as long."""
    transports, interfaces = _chars(config.transport.encode()), _chars(config.socket_ifname.encode())
    devices, timeline = _chars(config.devices.encode()), _chars(os.fsencode(config.timeline))
    congestion = _chars(config.tcp_congestion.encode())
    chars = NULL if secret is None else from_buffer(secret)
    c = ffi.new("hpc_config *")
    lib.hpc_config_init(c)
    c.timeout, c.init_timeout, c.look_after = config.timeout, config.init_seconds, config.look_after
    c.warn = lib.hpcomm_warn
    c.spin, c.loop_seed, c.transports = config.spin, config.loop_seed, transports
    setattr(c, "yield", config.yield_)
    c.silence, c.interfaces, c.devices, c.timeline = config.silence, interfaces, devices, timeline
    c.tcp_streams, c.tcp_congestion, c.tcp_window = config.tcp_streams, congestion, config.tcp_window
    c.slice, c.threads = SLICE, threads
    c.secret, c.secret_bytes = chars, len(secret or b"")
    others = ffi.new("uint32_t[]", list(users))
    c.users, c.n_users = others, len(others)
    return c, transports, interfaces, devices, timeline, congestion, chars, others


def context_create(
    rank: int,
    size: int,
    config: Any,
    threads: int,
    secret: bytes | None,
    engine: Any,
    keep: object,
    users: Sequence[int] = (),
    door: tuple[str, int, int] | None = None,
) -> Any:
    """Creates a context. C copies the secret, and keeps the engine.

    Args:
        threads: the number of threads with which this rank itself computes.
        engine: NULL for the process's own.
        users: other users whose ranks may share memory.
        door: the IP address and the port at which the context is called (context_take), and the first rank that may
            have one too.
    """
    settings = _settings(config, threads, secret, users)
    settings[0].engine = engine
    if door is not None:
        ip = ffi.new("char[]", door[0].encode())
        settings[0].door, settings[0].door_port, settings[0].door_first = ip, *door[1:]
    out = ffi.new("hpc_context **")
    check(lib.hpc_context_create(rank, size, settings[0], out))
    return owned(out[0], lib.hpc_context_free, keep)


def context_shrink(old: Any, config: Any, threads: int, secret: bytes | None, timeout: float, keep: object) -> Any:
    settings = _settings(config, threads, secret)
    return collected(lib.hpc_context_shrink, (old, settings[0]), "hpc_context *", timeout, lib.hpc_context_free, keep)


def context_first_ranks(context: Any) -> tuple[int, ...]:
    """Returns, for each rank, its number in the first context."""
    return tuple(_peer(context, rank).first_rank for rank in range(lib.hpc_context_size(context)))


def context_address(context: Any) -> bytes:
    blob = ffi.new("char[]", lib.hpc_address_size())
    check(lib.hpc_context_address(context, blob))
    return bytes(ffi.buffer(blob))


def context_door(context: Any) -> tuple[bytes, int]:
    """Returns the name by which callers ask for the context at its door, and how many of them it has refused."""
    door = ffi.new("hpc_door *")
    check(lib.hpc_context_door(context, door))
    return bytes(ffi.buffer(door.name)), int(door.refused)


def context_take(context: Any, descriptor: int) -> None:
    """Gives the context a connection that has come to its door. If it raises, the caller still owns the descriptor."""
    check(lib.hpc_context_take(context, descriptor))


def context_lead(context: Any, rank: int, ip: str, port: int) -> None:
    check(lib.hpc_context_lead(context, rank, ip.encode(), port))


def context_connect(context: Any, addresses: list[bytes], timeout: float) -> None:
    collective(lambda seconds: lib.hpc_context_connect(context, b"".join(addresses), seconds), timeout)


def _peer(context: Any, rank: int) -> Any:
    peer = ffi.new("hpc_peer *")
    check(lib.hpc_context_peer(context, rank, peer))
    return peer


def context_peer(context: Any, rank: int) -> tuple[int, str, str, int, str, bool]:
    """Returns a peer's state, transport, host, process and path, and whether this rank maps its memory."""
    peer = _peer(context, rank)
    return peer.state, text(peer.transport), text(peer.host), peer.pid, text(peer.path), bool(peer.maps)


def context_host(context: Any, rank: int) -> int:
    return int(_peer(context, rank).lowest)


def context_bandwidth(
    context: Any, peers: tuple[int, ...], at_least: float, timeout: float
) -> list[tuple[bool, bool | None, float, float, float, float, int, bool]]:
    """Returns the members of each peer's hpc_bandwidth; with None for an unknown `sufficient`. The C call runs
    in a separate thread, so that Ctrl-C can end this call."""
    options, results = ffi.new("hpc_bandwidth_options *"), ffi.new("hpc_bandwidth[]", len(peers))
    stop = ffi.new("int *")
    lib.hpc_bandwidth_options_init(options)
    options.at_least, options.timeout, options.stop = at_least, timeout, stop
    failures: list[BaseException] = []

    def probe() -> None:
        try:
            check(lib.hpc_context_bandwidth(context, peers, len(peers), options, results))
        except BaseException as failure:
            failures.append(failure)

    thread = threading.Thread(target=probe, name="hpcomm-bandwidth", daemon=True)
    thread.start()
    try:
        thread.join()
    finally:
        stop[0] = 1
        thread.join()
    if failures:
        raise failures[0]
    return [
        (
            bool(one.answered),
            None if one.sufficient < 0 else bool(one.sufficient),
            one.low,
            one.high,
            one.capacity,
            one.seconds,
            one.nbytes,
            bool(one.by_own),
        )
        for one in results
    ]


def context_span(context: Any, name: str, start: float) -> None:
    """Writes a span of this thread, from start (time.monotonic) until now, into the timeline, if one is recorded."""
    check(lib.hpc_context_span(context, name.encode("utf-8", "replace"), start))


def context_set_title(context: Any, title: str) -> None:
    check(lib.hpc_context_set_title(context, title.encode("utf-8", "replace")))


def context_notes(context: Any) -> tuple[tuple[str, bool], ...]:
    """Returns each note, and whether it reports something refused or lost (True) or only degraded (False)."""
    kind = ffi.new("int *")
    found: list[tuple[str, bool]] = []
    while (note := lib.hpc_context_note(context, len(found), kind)) != ffi.NULL:
        found.append((text(note), kind[0] != lib.HPC_NOTE_DEGRADED))
    return tuple(found)


def context_abort(context: Any, why: str) -> None:
    check(lib.hpc_context_abort(context, why.encode("utf-8", "replace")))
