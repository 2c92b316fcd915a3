"""The C library as Python sees it: the only module that touches ffi and lib.

The functions that a step of a job calls are bound here under their own names, so that one call costs one global
look-up; those of a ping-pong come from _fast, which spares them what cffi costs. Every handle is freed when the last
Python object that uses it goes; none is freed while a call on it is under way.
"""

import _thread
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import _fast
from ._ffi import ffi, lib
from .config import Config
from .errors import Failure, HpcommError, InvalidArgument, from_failure

NULL: Any = ffi.NULL
IN_PROGRESS: int = lib.HPC_IN_PROGRESS
TIMED_OUT: int = lib.HPC_ERR_TIMEOUT
INVALID: int = lib.HPC_ERR_INVALID
SLICE = 0.1  # seconds a C call may wait before Python looks for signals (Ctrl-C)

from_buffer = ffi.from_buffer
new_word: Callable[[], Any] = lambda: ffi.new("uint64_t *")  # noqa: E731

put_notify = lib.hpc_put_notify
put = _fast.put  # these four take handles by address_of
put_signal = _fast.put_signal
test_signal = _fast.test_signal
wait_signal = _fast.wait_signal
flush = lib.hpc_flush
queue_acquire = lib.hpc_queue_acquire
queue_send = lib.hpc_queue_send
queue_recv = lib.hpc_queue_recv
queue_ack = lib.hpc_queue_ack
queue_reduce = lib.hpc_queue_reduce
exchange_gradient = _fast.exchange_gradient  # these take a handle by address_of too
exchange_start = _fast.exchange_start
exchange_call = _fast.exchange_call
exchange_test = _fast.exchange_test
exchange_wait = _fast.exchange_wait
exchange_ready = _fast.exchange_ready
exchange_step = _fast.exchange_step


# ---- failures and waiting ------------------------------------------------------------------------------------------


def error(status: int, waited: float | None = None) -> HpcommError:
    """The exception of a status that this thread's last C call returned. waited: the timeout to tell, in seconds."""
    last = lib.hpc_last_error()
    if last.status != status:  # nothing was recorded
        return from_failure(Failure(status, text(lib.hpc_status_text(status))))
    message = text(last.message)
    if waited is not None and status == TIMED_OUT:
        message = f"{message.rpartition(' in ')[0] or message} in {waited:.3g} s"
    return from_failure(
        Failure(
            status,
            message,
            op=text(last.op),
            transport=text(last.transport),
            peer=last.peer,
            ranks=tuple(last.ranks[0 : last.n_ranks]) if last.n_ranks else (),
            waiting_for=tuple(last.waiting_for[0 : last.n_waiting]) if last.n_waiting else (),
        )
    )


def check(status: int) -> None:
    if status < 0:
        raise error(status)


def wait(call: Callable[[float], int], timeout: float, waited: float = 0.0) -> None:
    """Calls call(seconds) in slices until it is done, fails, or timeout seconds have passed, `waited` of them before.

    Between two slices Python runs its signal handlers, so that Ctrl-C ends every wait within a slice.
    """
    left = timeout - waited
    deadline = time.monotonic() + left
    while True:
        status = call(left if left < SLICE else SLICE)
        if status == 0:
            return
        if status != TIMED_OUT:
            raise error(status)
        left = deadline - time.monotonic()
        if left <= 0:
            raise error(status, timeout)


def seconds(timeout: float | None, default: float) -> float:
    """A timeout as the user gave it; None means the default."""
    if timeout is None:
        return default
    if not timeout >= 0:
        raise InvalidArgument(f"timeout is {timeout!r}: must be 0 or more seconds, or None for the context's default")
    return min(float(timeout), 1e9)


def text(chars: Any) -> str:
    return "" if chars == NULL else ffi.string(chars).decode("utf-8", "replace")


# ---- build and host ------------------------------------------------------------------------------------------------


def version() -> str:
    return text(lib.hpc_version())


def build_info() -> str:
    return text(lib.hpc_build_info())


def transports() -> tuple[str, ...]:
    return _texts(lib.hpc_transport_name)


def instruction_sets() -> tuple[str, ...]:
    """The instruction sets of the fold kernels that this machine can run, plainest first."""
    names = {lib.HPC_ISA_GENERIC: "generic", lib.HPC_ISA_AVX2: "avx2", lib.HPC_ISA_AVX512: "avx512"}
    return tuple(name for isa, name in names.items() if lib.hpc_isa_available(isa))


def core_count() -> int:
    return int(lib.hpc_core_count())


def memory_available() -> int:
    return int(lib.hpc_memory_available())


@dataclass(frozen=True)
class Device:
    """One port of an RDMA device of this host.

    Attributes:
        name, port: of the device, "mlx5_0", and the port's number, from 1.
        state: "active" where it can send; else "down", "init" or "armed".
        link_layer: "InfiniBand" or "Ethernet" (RoCE).
        netdev: the network interface of a RoCE port, else "".
        gid: the address that hpcomm takes, in IPv6's notation ("::ffff:10.0.0.1" is 10.0.0.1); "" if there is none.
        gid_index: its place in the port's table; -1 if there is none.
        lid: InfiniBand's local address, else 0.
        mtu: bytes of the largest packet; 0 if unknown.
        gbits: Gb/s of the link; 0.0 if unknown.
        numa_node: where it is attached; -1 if unknown.
        why: "" if hpcomm can use the port, else why it cannot, in a sentence.
    """

    name: str
    port: int
    state: str
    link_layer: str
    netdev: str
    gid: str
    gid_index: int
    lid: int
    mtu: int
    gbits: float
    numa_node: int
    why: str

    @property
    def usable(self) -> bool:
        """Whether hpcomm can use the port."""
        return not self.why


def devices() -> tuple[Device, ...]:
    """Every port of every RDMA device of this host, usable or not and whatever HPCOMM_DEVICES says; () where there is
    none.

    Raises:
        NotSupported: this build has no verbs (rdma-core's headers were missing), or this host no libibverbs.
    """
    cap = 16
    while True:
        found = ffi.new("hpc_device[]", cap)
        count = lib.hpc_devices(found, cap)
        check(count)
        if count <= cap:
            return tuple(_device(found[i]) for i in range(count))
        cap = count


def _device(c: Any) -> Device:
    values: dict[str, Any] = {}
    for name in Device.__dataclass_fields__:
        value = getattr(c, name)
        values[name] = text(value) if isinstance(value, ffi.CData) else value
    return Device(**values)


def _texts(get: Callable[[int], Any]) -> tuple[str, ...]:
    found: list[str] = []
    while (chars := get(len(found))) != NULL:
        found.append(text(chars))
    return tuple(found)


# ---- jobs ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Waiting:
    """What a thread of a rank waits for: the operation, for so many seconds, and the ranks that are missing (of more
    than 16 the first 16, n of them in all)."""

    op: str
    seconds: float
    ranks: tuple[int, ...]
    n: int


@dataclass(frozen=True)
class ShownRank:
    """A context of a process, as hpc_jobs shows it. state: "runs", "starts", "silent" (it did not answer in time, as
    one that is stopped), "foreign" (it hung up: another version, or its end) or "gone" (it has left or failed, which
    gone explains). rank and size are -1, and job "", where they are not known; pid is 0 where this process cannot see
    it.

    A rank that is on another host, or gone, is told of by told_by, a rank of this host (-1: it was asked itself), which
    has heard nothing from it for unheard seconds. step and waits were so age seconds ago (-1: they are not known).
    """

    job: str
    state: str
    rank: int
    size: int
    pid: int
    host: str
    transports: tuple[str, ...]
    step: int
    waits: tuple[Waiting, ...]
    told_by: int
    age: float
    unheard: float
    gone: str


def jobs(timeout: float) -> tuple[ShownRank, ...]:
    """Every context of this host that this user may see, and the other ranks of their jobs, in order of jobs and ranks.
    timeout: seconds to answer for those of here, and then for the others.

    Raises:
        NotSupported: /proc/net/unix cannot be read.
    """
    cap = 64
    while True:
        found = ffi.new("hpc_shown_rank[]", cap)
        count = lib.hpc_jobs(found, cap, timeout)
        check(count)
        if count <= cap:
            return tuple(_shown(found[i]) for i in range(count))
        cap = 2 * count


def _shown(c: Any) -> ShownRank:
    state = {0: "silent", -1: "foreign"}.get(c.answers, "runs" if c.connected else "starts")
    gone = text(c.gone)
    waits = tuple(
        Waiting(text(w.op), w.seconds, tuple(w.ranks[0 : min(w.n_ranks, lib.HPC_SHOWN_RANKS)]), w.n_ranks)
        for w in c.waits[0 : c.n_waits]
    )
    transports = tuple(name for name in text(c.transports).split(",") if name)
    return ShownRank(
        job=text(c.job),
        state="gone" if gone else state,
        rank=c.rank,
        size=c.size,
        pid=c.pid,
        host=text(c.host),
        transports=transports,
        step=c.step,
        waits=waits,
        told_by=c.told_by,
        age=c.age,
        unheard=c.unheard,
        gone=gone,
    )


# ---- rendezvous ----------------------------------------------------------------------------------------------------


def rendezvous_create(rank: int, size: int, host: str, port: int, secret: bytes | None, timeout: float) -> Any:
    """The meeting of all ranks at host and port, where rank 0 listens. Collective."""
    chars = NULL if secret is None else from_buffer(secret)

    def create(seconds: float, out: Any) -> int:
        return lib.hpc_rendezvous_create(rank, size, host.encode(), port, chars, len(secret or b""), seconds, out)

    return _collected(create, "hpc_rendezvous *", timeout, lib.hpc_rendezvous_free)


def rendezvous_allgather(rendezvous: Any, data: bytes, size: int, timeout: float) -> list[bytes]:
    def call(data: bytes, received: Any, n: int, seconds: float) -> int:
        return lib.hpc_rendezvous_allgather(rendezvous, data, received, n, seconds)

    return _gathered(call, data, size, timeout)


# ---- context -------------------------------------------------------------------------------------------------------


def _chars(text: str) -> Any:
    return ffi.new("char[]", text.encode()) if text else NULL


def _path_chars(path: str) -> Any:
    return ffi.new("char[]", os.fsencode(path)) if path else NULL


def _settings(config: Config, secret: bytes | None) -> tuple[Any, ...]:
    """An hpc_config, and what it points to."""
    transports, interfaces = _chars(config.transport), _chars(config.socket_ifname)
    devices, timeline = _chars(config.devices), _path_chars(config.timeline)
    chars = NULL if secret is None else from_buffer(secret)
    c = ffi.new("hpc_config *")
    lib.hpc_config_init(c)
    c.timeout, c.spin, c.loop_seed, c.transports = config.timeout, config.spin, config.loop_seed, transports
    setattr(c, "yield", config.yield_)
    c.silence, c.interfaces, c.devices, c.timeline = config.silence, interfaces, devices, timeline
    c.tcp_streams, c.tcp_zerocopy = config.tcp_streams, config.tcp_zerocopy
    c.secret, c.secret_bytes = chars, len(secret or b"")
    return c, transports, interfaces, devices, timeline, chars


def context_create(rank: int, size: int, config: Config, secret: bytes | None, keep: object) -> Any:
    """secret is copied by C."""
    settings = _settings(config, secret)
    out = ffi.new("hpc_context **")
    check(lib.hpc_context_create(rank, size, settings[0], out))
    return _owned(out[0], lib.hpc_context_free, keep)


def context_shrink(old: Any, config: Config, secret: bytes | None, timeout: float, keep: object) -> Any:
    """The new context of those that are left of the old one's ranks."""
    settings = _settings(config, secret)

    def shrink(seconds: float, out: Any) -> int:
        return lib.hpc_context_shrink(old, settings[0], seconds, out)

    return _collected(shrink, "hpc_context *", timeout, lib.hpc_context_free, keep)


def context_revoke(context: Any) -> None:
    check(lib.hpc_context_revoke(context))


def context_rank(context: Any) -> int:
    return int(lib.hpc_context_rank(context))


def context_first_ranks(context: Any) -> tuple[int, ...]:
    """By rank: what it was called in the first context."""
    return tuple(lib.hpc_context_first_rank(context, rank) for rank in range(lib.hpc_context_size(context)))


def context_address(context: Any) -> bytes:
    blob = ffi.new("char[]", lib.hpc_address_size())
    check(lib.hpc_context_address(context, blob))
    return bytes(ffi.buffer(blob))


def context_connect(context: Any, addresses: list[bytes], timeout: float) -> None:
    collective(lambda seconds: lib.hpc_context_connect(context, b"".join(addresses), seconds), timeout)


def context_peer(context: Any, rank: int) -> tuple[int, str, str, int, str]:
    """State, transport, host, process and path of a peer."""
    peer = ffi.new("hpc_peer *")
    check(lib.hpc_context_peer(context, rank, peer))
    return peer.state, text(peer.transport), text(peer.host), peer.pid, text(peer.path)


def context_span(context: Any, name: str, start: float) -> None:
    """A span of this thread's from start, by time.monotonic, until now; nothing without a timeline."""
    check(lib.hpc_context_span(context, name.encode("utf-8", "replace"), start))


def context_notes(context: Any) -> tuple[str, ...]:
    return _texts(lambda i: lib.hpc_context_note(context, i))


def context_close(context: Any) -> None:
    check(lib.hpc_context_close(context))


def context_abort(context: Any, why: str) -> None:
    check(lib.hpc_context_abort(context, why.encode("utf-8", "replace")))


def collective(call: Callable[[float], int], timeout: float) -> None:
    """One call(timeout), which cannot be cut into slices: a collective that failed leaves ranks that no longer agree.

    In the main thread, the one that Ctrl-C interrupts, another thread makes the call: Python's locks can be
    interrupted.
    """
    if threading.current_thread() is not threading.main_thread():
        check(call(timeout))
        return
    outcome: list[HpcommError | None] = []
    done = threading.Lock()
    done.acquire()

    def run() -> None:
        try:
            status = call(timeout)
            outcome.append(error(status) if status < 0 else None)  # here: the last failure is this thread's
        finally:
            done.release()

    _thread.start_new_thread(run, ())
    while not done.acquire(timeout=SLICE):  # the signal may have interrupted another thread
        pass
    if outcome[0] is not None:
        raise outcome[0]


def barrier(context: Any, timeout: float) -> None:
    collective(lambda seconds: lib.hpc_barrier(context, seconds), timeout)


def allgather(context: Any, data: bytes, size: int, timeout: float) -> list[bytes]:
    def call(data: bytes, received: Any, n: int, seconds: float) -> int:
        return lib.hpc_allgather(context, data, received, n, seconds)

    return _gathered(call, data, size, timeout)


def _gathered(call: Callable[[bytes, Any, int, float], int], data: bytes, size: int, timeout: float) -> list[bytes]:
    n = len(data)
    received = ffi.new("char[]", max(1, n * size))
    collective(lambda seconds: call(data, received, n, seconds), timeout)
    whole = bytes(ffi.buffer(received, n * size))
    return [whole[i * n : (i + 1) * n] for i in range(size)]


def lane_create(context: Any, timeout: float, keep: object) -> Any:
    def create(seconds: float, out: Any) -> int:
        return lib.hpc_lane_create(context, seconds, out)

    return _collected(create, "hpc_lane *", timeout, lib.hpc_lane_free, keep)


def poll(context: Any, lane: Any) -> tuple[int, int, int] | None:
    """The next event of a lane: peer, imm, nbytes; None when none came."""
    event = ffi.new("hpc_event *")
    status = lib.hpc_poll(context, lane, event)
    if status == IN_PROGRESS:
        return None
    check(status)
    return event.peer, event.imm, event.nbytes


def wait_event(context: Any, lane: Any, timeout: float) -> tuple[int, int, int]:
    event = ffi.new("hpc_event *")
    wait(lambda seconds: lib.hpc_wait_event(context, lane, event, seconds), timeout)
    return event.peer, event.imm, event.nbytes


def _owned(pointer: Any, free: Callable[[Any], None], keep: object) -> Any:
    """A handle that frees itself, and only then lets go of keep: the last handle's end may still read a late put."""

    def release(handle: Any, _keep: object = keep) -> None:
        free(handle)

    return ffi.gc(pointer, release)


def _collected(
    create: Callable[[float, Any], int], kind: str, timeout: float, free: Callable[[Any], None], keep: object = None
) -> Any:
    """What a collective creates: a handle that frees itself."""
    owned: list[Any] = []

    def call(seconds: float) -> int:
        out = ffi.new(f"{kind}*")
        status = create(seconds, out)
        if status == 0:
            owned.append(_owned(out[0], free, keep))
        return status

    collective(call, timeout)
    return owned[0]


# ---- memory --------------------------------------------------------------------------------------------------------


def mapped(
    memories: list[Any], address: int, shape: tuple[int, ...], dtype: np.dtype[Any], writable: bool
) -> NDArray[Any]:
    """An array of mapped memory that keeps the mapping for as long as the array or a view of it lives."""
    nbytes = int(np.prod(shape, dtype=object)) * dtype.itemsize
    if nbytes == 0:
        return np.empty(shape, dtype)
    chars = ffi.gc(ffi.cast("char *", address), lambda _: memories.clear())
    view = memoryview(ffi.buffer(chars, nbytes))
    return np.frombuffer(view if writable else view.toreadonly(), dtype).reshape(shape)


def _memory(memory: Any) -> Any:
    return None if memory == NULL else ffi.gc(memory, lib.hpc_memory_release)


def address_of(pointer: Any) -> int:
    """Of a handle, whose owner must outlive the address."""
    return int(ffi.cast("uintptr_t", pointer))


# ---- window --------------------------------------------------------------------------------------------------------


def window_create(context: Any, nbytes: int, signals: int, kind: str | None, timeout: float, keep: object) -> Any:
    agreed = NULL if kind is None else ffi.new("char[]", kind.encode())

    def create(seconds: float, out: Any) -> int:
        return lib.hpc_window_create(context, nbytes, signals, agreed, seconds, out)

    return _collected(create, "hpc_window *", timeout, lib.hpc_window_free, keep)


def window_array(window: Any, rank: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any] | None:
    """rank's part of the window, or None where it cannot be mapped."""
    memory = _memory(lib.hpc_window_memory(window, rank))
    if memory is None:
        return None
    return mapped([memory], address_of(lib.hpc_memory_data(memory)), shape, dtype, True)


# ---- queue ---------------------------------------------------------------------------------------------------------


def queue_create(
    context: Any,
    in_peers: tuple[int, ...],
    out_peers: tuple[int, ...],
    nbytes: int,
    depth: int,
    buffers: int,
    kind: str,
    timeout: float,
) -> Any:
    config = ffi.new("hpc_queue_config *")
    lib.hpc_queue_config_init(config)
    c_in, c_out, c_kind = ffi.new("int[]", in_peers), ffi.new("int[]", out_peers), ffi.new("char[]", kind.encode())
    config.in_peers, config.n_in, config.out_peers, config.n_out = c_in, len(in_peers), c_out, len(out_peers)
    config.nbytes, config.depth, config.buffers, config.type = nbytes, depth, buffers, c_kind

    def create(seconds: float, out: Any) -> int:
        return lib.hpc_queue_create(context, config, seconds, out)

    return _collected(create, "hpc_queue *", timeout, lib.hpc_queue_free, (c_in, c_out, c_kind))


def queue_memory(queue: Any, rank: int) -> Any:
    """What keeps the memory of rank's part of the queue mapped; None where it cannot be mapped."""
    return _memory(lib.hpc_queue_memory(queue, rank))


def queue_buffer(queue: Any, i: int) -> int:
    """The address of registered buffer i."""
    return address_of(lib.hpc_queue_buffer(queue, i))


def queue_versions(queue: Any, peer: int) -> tuple[int, int]:
    header, footer = new_word(), new_word()
    check(lib.hpc_queue_versions(queue, peer, header, footer))
    return header[0], footer[0]


def queue_stats(queue: Any) -> dict[str, Any]:
    stats = ffi.new("hpc_queue_stats *")
    check(lib.hpc_queue_get_stats(queue, stats))
    return {name: getattr(stats, name) for name, _ in ffi.typeof("hpc_queue_stats").fields}


def new_pointer() -> Any:
    """A place for the address that queue_recv gives."""
    return ffi.new("const void **")


def weights(values: tuple[float, ...]) -> Any:
    return ffi.new("double[]", values)


DTYPES: dict[str, int] = {"float32": lib.HPC_F32, "float64": lib.HPC_F64}


# ---- plan ----------------------------------------------------------------------------------------------------------

ACTIONS: dict[str, int] = {"apply": lib.HPC_APPLY, "forward": lib.HPC_FORWARD, "emit": lib.HPC_EMIT}
AFFINITIES: dict[str, int] = {"key": lib.HPC_KEY_BY_CORE, "worker": lib.HPC_WORKER_BY_INTERFACE}
CODECS: dict[str, int] = {"float32": lib.HPC_F32, "float16": lib.HPC_F16, "bfloat16": lib.HPC_BF16}


def _layout(name: str) -> np.dtype[Any]:
    """A C struct of numbers and pointers as a dtype."""
    numbers = {"int": np.intc, "uint64_t": np.uint64, "double": np.double}
    names, struct = [], ffi.typeof(name)
    formats: list[Any] = []
    offsets: list[int] = []
    for field, info in struct.fields:
        names.append(field)
        formats.append(np.uintp if info.type.kind == "pointer" else numbers[info.type.cname])
        offsets.append(info.offset)
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": ffi.sizeof(struct)})


_ROW, _EDGE = _layout("hpc_row"), _layout("hpc_edge")
ROW_FIELDS = tuple(name for name, _ in ffi.typeof("hpc_row").fields)


def _plan_keys(keys: list[tuple[str, int]]) -> tuple[Any, list[Any]]:
    """hpc_key[], and the names that must stay as long."""
    names = [ffi.new("char[]", name.encode()) for name, _ in keys]
    c_keys = ffi.new("hpc_key[]", max(1, len(keys)))
    for c_key, name, (_, count) in zip(c_keys, names, keys, strict=False):
        c_key.name, c_key.count = name, count
    return c_keys, names


def plan_hub(
    keys: list[tuple[str, int]],
    workers: list[int],
    servers: list[int],
    *,
    cores: int,
    chunk: int,
    depth: int,
    wire: int,
    sum: bool,  # the field's name
    each: bool,
    affinity: int,
    interfaces: int,
) -> Any:
    hub = ffi.new("hpc_hub *")
    lib.hpc_hub_init(hub)
    c_keys, _names = _plan_keys(keys)  # both must stay until C has copied them
    c_workers, c_servers = ffi.new("int[]", workers), ffi.new("int[]", servers)
    hub.keys, hub.n_keys, hub.workers, hub.n_workers = c_keys, len(keys), c_workers, len(workers)
    hub.servers, hub.n_servers, hub.cores, hub.chunk = c_servers, len(servers), cores, chunk
    hub.depth, hub.wire, hub.sum, hub.each = depth, wire, sum, each
    hub.affinity, hub.interfaces = affinity, interfaces
    out = ffi.new("hpc_plan **")
    check(lib.hpc_plan_hub(hub, out))
    return ffi.gc(out[0], lib.hpc_plan_free)


def graph(
    keys: list[tuple[str, int]],
    weights: NDArray[np.float64],
    *,
    cores: int,
    chunk: int,
    depth: int,
    wire: int,
) -> Any:
    """An hpc_graph. weights: (phases, ranks, ranks), what each rank (second) takes of each (third)."""
    made = ffi.new("hpc_graph *")
    lib.hpc_graph_init(made)
    c_keys, names = _plan_keys(keys)
    c_weights = from_buffer("double[]", weights)
    made.keys, made.n_keys, made.weights = c_keys, len(keys), c_weights
    made.n_phases, made.ranks = weights.shape[:2]
    made.cores, made.chunk, made.depth, made.wire = cores, chunk, depth, wire
    return _owned(made, lambda _: None, (made, c_keys, names, c_weights, weights))


def plan_graph(graph: Any) -> Any:
    out = ffi.new("hpc_plan **")
    check(lib.hpc_plan_graph(graph, out))
    return ffi.gc(out[0], lib.hpc_plan_free)


def plan_make(
    keys: list[tuple[str, int]],
    rows: Sequence[tuple[int, ...]],
    lists: list[list[tuple[int, int, float]]],
    affinity: int,
) -> Any:
    """A plan of these rows: tuples of hpc_row's fields in order, with the numbers of lists for in and out."""
    plan = ffi.new("hpc_plan *")
    c_keys, names = _plan_keys(keys)
    c_edges, starts, n = ffi.new("hpc_edge[]", max(1, sum(map(len, lists)))), [], 0
    c_rows = ffi.new("hpc_row[]", max(1, len(rows)))
    edges, table = (np.frombuffer(ffi.buffer(c), kind) for c, kind in ((c_edges, _EDGE), (c_rows, _ROW)))
    for values in lists:
        starts.append(address_of(c_edges + n))
        edges[n : n + len(values)] = values
        n += len(values)
    for i, (*numbers, first_in, first_out) in enumerate(rows):
        table[i] = (*numbers, len(lists[first_in]), len(lists[first_out]), starts[first_in], starts[first_out])
    plan.n_keys, plan.keys, plan.n_rows, plan.rows = len(keys), c_keys, len(rows), c_rows
    plan.affinity = affinity
    keep = (plan, c_keys, names, c_edges, c_rows)
    return _owned(plan, lambda _: None, keep)


def plan_check(plan: Any, size: int) -> None:
    check(lib.hpc_plan_check(plan, size))


def plan_affinity(plan: Any) -> int:
    return int(plan.affinity)


def plan_rows(plan: Any) -> NDArray[Any]:
    """The rows in place, valid while the plan is: hpc_row's fields, pointers as addresses."""
    rows = np.frombuffer(ffi.buffer(plan.rows, plan.n_rows * _ROW.itemsize), _ROW)
    rows.flags.writeable = False
    return rows


def plan_edges(address: int, n: int) -> list[tuple[int, int, float]]:
    """The n edges at an address of the plan's rows: rank, row, weight."""
    return np.frombuffer(ffi.buffer(ffi.cast("hpc_edge *", address), n * _EDGE.itemsize), _EDGE).tolist()


# ---- rule ----------------------------------------------------------------------------------------------------------

ISAS: dict[str, int] = {
    "best": lib.HPC_ISA_BEST,
    "generic": lib.HPC_ISA_GENERIC,
    "avx2": lib.HPC_ISA_AVX2,
    "avx512": lib.HPC_ISA_AVX512,
}


def rule_found(name: str, args: tuple[float, ...], isa: int) -> Any:
    """A built-in rule with these hyper-parameters."""
    rule = ffi.new("hpc_rule *")
    check(lib.hpc_rule_find(name.encode(), isa, rule))
    rule.args[1 : 1 + len(args)] = args
    return rule


def rule_own(name: str, apply: int, fold: int, slots: int, args: tuple[float, ...]) -> Any:
    """A rule of machine code at these addresses; fold 0: the weighted sum. It keeps its name."""
    chars = ffi.new("char[]", name.encode())
    rule = ffi.new("hpc_rule *")
    rule.name = chars
    rule.apply, rule.fold = ffi.cast("hpc_apply_fn", apply), ffi.cast("hpc_fold_into_fn", fold)
    rule.slots = slots
    rule.args[1 : 1 + len(args)] = args
    _named[rule] = chars
    return rule


_named: "weakref.WeakKeyDictionary[Any, Any]" = weakref.WeakKeyDictionary()


# ---- exchange ------------------------------------------------------------------------------------------------------

PUSH: int = lib.HPC_PUSH
PULL: int = lib.HPC_PULL
PUSH_PULL: int = lib.HPC_PUSH | lib.HPC_PULL
CONSISTENCIES: dict[str, int] = {
    "BSP": lib.HPC_BSP,
    "ASYNC": lib.HPC_ASYNC,
    "NOTIFY_ACK": lib.HPC_NOTIFY_ACK,
    "SSP": lib.HPC_SSP,
    "BARRIER": lib.HPC_BARRIER,
}
LATE: dict[str, int] = {"fold": lib.HPC_LATE_FOLD, "drop": lib.HPC_LATE_DROP}
PROGRESS: dict[str, int] = {
    "auto": lib.HPC_PROGRESS_AUTO,
    "inline": lib.HPC_PROGRESS_INLINE,
    "thread": lib.HPC_PROGRESS_THREAD,
}


def spare_cores(context: Any, servers: tuple[int, ...]) -> int:
    """Cores that each of these servers can have for threads of its own; the same number on all ranks."""
    return int(lib.hpc_spare_cores(context, servers, len(servers)))


def interfaces(context: Any, servers: tuple[int, ...]) -> int:
    """NICs that each of these servers can use, 1 at least; the same number on all ranks."""
    return int(lib.hpc_interfaces(context, servers, len(servers)))


def exchange_create(
    context: Any,
    timeout: float,
    keep: object,
    *,
    plan: Any,
    rule: Any,
    values: list[NDArray[np.float32]],
    consistency: int,
    staleness: int,
    quorum: int,
    late: int,
    grace: float,
    graph: Any,
    progress: int,
    shared_params: bool,
    in_place: bool,
    eager: bool,
    check_finite: bool,
    isa: int,
) -> Any:
    """The handle of an exchange, which keeps `keep`, its rule's code among it, until it is freed."""
    buffers = [from_buffer("float[]", array) for array in values]
    c_values = ffi.new("const float *[]", buffers)
    config = _exchange_config()
    config.plan, config.rule, config.values = plan, rule, c_values
    config.consistency, config.progress, config.isa = consistency, progress, isa
    config.shared_params, config.eager, config.check_finite = shared_params, eager, check_finite
    config.graph, config.staleness, config.in_place = graph or ffi.NULL, staleness, in_place
    config.quorum, config.late, config.grace = quorum, late, grace

    def create(seconds: float, out: Any) -> int:
        return lib.hpc_exchange_create(context, config, seconds, out)

    return _collected(create, "hpc_exchange *", timeout, lib.hpc_exchange_free, keep)


def exchange_refuse(context: Any, sentence: str, timeout: float) -> None:
    """The collective of exchange_create by a rank that cannot take part: it fails on every rank, by this sentence."""
    refusal = ffi.new("char[]", sentence.encode("utf-8", "replace"))
    config = _exchange_config()
    config.refusal = refusal
    out = ffi.new("hpc_exchange **")
    collective(lambda seconds: lib.hpc_exchange_create(context, config, seconds, out), timeout)


def _exchange_config() -> Any:
    config = ffi.new("hpc_exchange_config *")
    lib.hpc_exchange_config_init(config)
    return config


def exchange_params(exchange: Any, shapes: list[tuple[int, ...]], writable: bool) -> list[NDArray[Any]]:
    """The parameters of every key as arrays of the exchange's memory; none on a rank that is no worker."""
    holder = lib.hpc_exchange_params_rank(exchange)
    if holder < 0:
        return []
    memory = _memory(lib.hpc_exchange_memory(exchange, holder))
    addresses = [exchange_params_address(exchange, key) for key in range(len(shapes))]
    float32 = np.dtype(np.float32)
    return [mapped([memory], at, shape, float32, writable) for at, shape in zip(addresses, shapes, strict=True)]


def exchange_params_address(exchange: Any, key: int) -> int:
    return address_of(lib.hpc_exchange_params(exchange, key))


def exchange_gradient_array(
    exchange: Any, rank: int, address: int, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> NDArray[Any]:
    """The slot at an address that exchange_gradient gave."""
    return mapped([_memory(lib.hpc_exchange_memory(exchange, rank))], address, shape, dtype, True)


def exchange_set_args(exchange: Any, args: tuple[float, ...], timeout: float) -> None:
    c_args = ffi.new("double[]", lib.HPC_RULE_ARGS)
    c_args[1 : 1 + len(args)] = args
    wait(lambda seconds: lib.hpc_exchange_set_args(exchange, c_args, seconds), timeout)


def exchange_get_args(exchange: Any, n: int) -> tuple[float, ...]:
    """The first n arguments of the rule, as the pushes that follow are applied with."""
    c_args = ffi.new("double[]", lib.HPC_RULE_ARGS)
    check(lib.hpc_exchange_get_args(exchange, c_args))
    return tuple(c_args[1 : 1 + n])


def exchange_under_way(exchange: Any) -> int:
    """The number of a key that this rank has under way; -1: none."""
    return int(lib.hpc_exchange_under_way(exchange))


def exchange_get_row(exchange: Any, row: int, params: NDArray[np.float32], state: NDArray[np.float32]) -> int:
    """The step of a row; params and state are filled."""
    step = new_word()
    into = from_buffer("float[]", params), from_buffer("float[]", state)
    check(lib.hpc_exchange_get_row(exchange, row, step, *into))
    return int(step[0])


def exchange_row_step(exchange: Any, row: int) -> int:
    step = new_word()
    check(lib.hpc_exchange_get_row(exchange, row, step, NULL, NULL))
    return int(step[0])


def exchange_set_row(
    exchange: Any, row: int, step: int, params: NDArray[np.float32], state: NDArray[np.float32]
) -> None:
    values = from_buffer("float[]", params), from_buffer("float[]", state)
    check(lib.hpc_exchange_set_row(exchange, row, step, *values))


def exchange_publish(exchange: Any, timeout: float) -> None:
    collective(lambda seconds: lib.hpc_exchange_publish(exchange, seconds), timeout)


def exchange_progress(exchange: Any) -> None:
    check(lib.hpc_exchange_progress(exchange))


def exchange_serve(exchange: Any, timeout: float) -> None:
    wait(lambda seconds: lib.hpc_exchange_serve(exchange, seconds), timeout)


def exchange_close(exchange: Any, timeout: float) -> None:
    wait(lambda seconds: lib.hpc_exchange_close(exchange, seconds), timeout)


def exchange_stats(exchange: Any) -> dict[str, Any]:
    stats = ffi.new("hpc_exchange_stats *")
    check(lib.hpc_exchange_get_stats(exchange, stats))
    return {name: getattr(stats, name) for name, _ in ffi.typeof("hpc_exchange_stats").fields}


def exchange_late(exchange: Any, key: int) -> int:
    """Shares of the last push of a key, or of all (-1), that came too late and were left out."""
    return int(lib.hpc_exchange_late(exchange, key))


def exchange_version(exchange: Any) -> int:
    return int(lib.hpc_exchange_version(exchange))


def exchange_inputs(exchange: Any) -> tuple[int, ...]:
    """Reduces by how many whole inputs of neighbours they had, on a graph."""
    most = lib.hpc_exchange_get_inputs(exchange, ffi.NULL, 0)
    counts = ffi.new("uint64_t[]", most + 1)
    check(min(0, lib.hpc_exchange_get_inputs(exchange, counts, most + 1)))
    return tuple(counts)


def exchange_peers(exchange: Any, size: int) -> list[dict[str, Any]]:
    """hpc_exchange_peer of every rank."""
    peer, found = ffi.new("hpc_exchange_peer *"), []
    names = [name for name, _ in ffi.typeof("hpc_exchange_peer").fields]
    for rank in range(size):
        check(lib.hpc_exchange_get_peer(exchange, rank, peer))
        found.append({name: getattr(peer, name) for name in names})
    return found
