"""The C side of the benchmarks: the loops of bench/*/*.c as one shared library beside the package's libhpcomm.

`python -m bench.common.native` compiles the same files as programs, into build/bench.
"""

import ctypes
import functools
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import hpcomm
from hpcomm.bench.arrays import address

HERE = Path(__file__).resolve().parent.parent  # bench
BUILD = HERE.parent / "build" / "bench"
OBJECTS = HERE.parent / "build/cmake/CMakeFiles/hpcomm_objects.dir/csrc"
SOURCES = (
    "ops/put_lat.c",
    "ops/put_bw.c",
    "ops/queue.c",
    "ops/push_pull.c",
    "machine/wait_cpu.c",
    "machine/fold.c",
    "machine/footprint.c",
    "machine/tenants.c",
)
VERBS_SOURCES = ("machine/verbs_raw.c", "machine/loopback.c")  # where rdma-core's headers are
VERBS = ("-libverbs", "-lpthread")
LIBRARY_OF_VERBS = "libbenchverbs.so"
FLAGS = ("-std=c11", "-O2", "-Wall", "-Wextra", "-ffp-contract=off")

_int, _size, _int64, _uint64 = ctypes.c_int, ctypes.c_size_t, ctypes.c_int64, ctypes.c_uint64
_double, _pointer, _chars = ctypes.c_double, ctypes.c_void_p, ctypes.c_char_p

# name: (result, arguments), as in the C files
LOOPS: dict[str, tuple[Any, list[Any]]] = {
    "bench_token": (_int64, [_pointer, _pointer, _int, _int, _int, _pointer, _pointer]),
    "bench_put_lat": (
        _int64,
        [_pointer, _int, _int, _int, _pointer, _size, _int, _int, _double, _pointer, _pointer, _pointer],
    ),
    "bench_socket_pair": (
        _int64,
        [_int, _int, _pointer, _int, _int, _int, _pointer, _size, _int, _int, _pointer, _pointer],
    ),
    "bench_map": (_pointer, [_int, _size, _int]),
    "bench_unmap": (None, [_pointer, _size]),
    "bench_fill": (None, [_pointer, _size]),
    "bench_wrong": (_uint64, [_pointer, _pointer, _size]),
    "bench_memcpy": (_double, [_pointer, _pointer, _size, _int, _int]),
    "bench_stream_send": (_int, [_int, _pointer, _size, _int, _int, _pointer]),
    "bench_stream_recv": (_int, [_int, _pointer, _size, _int, _int]),
    "bench_put_bw": (_int, [_pointer, _int, _pointer, _size, _int, _int, _double, _pointer]),
    "bench_wrong_model": (_uint64, [_pointer, _size, _pointer]),
    "bench_queue": (_int, [_pointer, _int, _pointer, _int, _size, _int, _int, _double, _pointer, _pointer]),
    "bench_exchange": (
        _int,
        [_pointer, _pointer, _pointer, _int, _pointer, _int, _size, _double, _double, _pointer],
    ),
    "bench_push_pull": (_int, [_pointer, _pointer, _pointer, _int, _int, _double, _pointer]),
    "bench_update": (_double, [_pointer, _int, _pointer, _pointer, _pointer, _size, _int]),
    "bench_momentum": (_double, [_pointer, _pointer, _pointer, _size, _int]),
    "bench_fold_of": (_double, [_pointer, _pointer, _int, _size, _int]),
    "bench_two": (_double, [_pointer, _pointer, _pointer, _size, _int, _int]),
    "bench_futex_ping": (_int, [_pointer, _int, _double, _int, _pointer]),
    "bench_cpu_seconds": (_double, []),
    "bench_wait": (_int64, [_pointer, _int, _uint64, _double, _pointer, _pointer]),
    "bench_raise": (_int, [_pointer, _int, _uint64]),
}


class Config(ctypes.Structure):
    """hpc_config of hpcomm.h."""

    _fields_ = [
        ("size", _size),
        ("timeout", _double),
        ("init_timeout", _double),
        ("look_after", _double),
        ("warn", _pointer),
        ("warn_arg", _pointer),
        ("transports", _chars),
        ("spin", _double),
        ("yield_", _double),
        ("loop_seed", _uint64),
        ("silence", _double),
        ("interfaces", _chars),
        ("tcp_streams", _int),
        ("secret", _pointer),
        ("secret_bytes", _size),
        ("devices", _chars),
        ("timeline", _chars),
        ("slice", _double),
        ("tcp_congestion", _chars),
        ("tcp_window", _int),
        ("threads", _int),
        ("engine", _pointer),
        ("users", _pointer),
        ("n_users", _int),
        ("door", _chars),
        ("door_port", _int),
        ("door_first", _int),
    ]


class Peer(ctypes.Structure):
    """hpc_peer of hpcomm.h."""

    _fields_ = [
        ("state", _int),
        ("transport", _chars),
        ("host", _chars),
        ("pid", _int64),
        ("path", _chars),
        ("maps", _int),
        ("lowest", _int),
        ("first_rank", _int),
    ]


class QueueConfig(ctypes.Structure):
    """hpc_queue_config of hpcomm.h."""

    _fields_ = [
        ("size", _size),
        ("in_peers", _pointer),
        ("n_in", _int),
        ("out_peers", _pointer),
        ("n_out", _int),
        ("nbytes", _size),
        ("depth", _int),
        ("buffers", _int),
        ("type", _chars),
    ]


CALLS: dict[str, tuple[Any, list[Any]]] = {
    "hpc_address_size": (_size, []),
    "hpc_config_init": (None, [_pointer]),
    "hpc_context_create": (_int, [_int, _int, _pointer, _pointer]),
    "hpc_context_address": (_int, [_pointer, _pointer]),
    "hpc_context_connect": (_int, [_pointer, _pointer, _double]),
    "hpc_context_peer": (_int, [_pointer, _int, _pointer]),
    "hpc_context_free": (None, [_pointer]),
    "hpc_window_create": (_int, [_pointer, _size, _int, _chars, _double, _pointer]),
    "hpc_window_free": (None, [_pointer]),
    "hpc_window_data": (_pointer, [_pointer]),
    "hpc_put_signal": (_int, [_pointer, _pointer, _int, _pointer, _size, _size, _int, _uint64]),
    "hpc_wait_signal": (_int, [_pointer, _int, _uint64, _int, _double, _pointer]),
    "hpc_queue_config_init": (None, [_pointer]),
    "hpc_queue_create": (_int, [_pointer, _pointer, _double, _pointer]),
    "hpc_queue_free": (None, [_pointer]),
    "hpc_queue_buffer": (_pointer, [_pointer, _int]),
    "hpc_exchange_gradient": (_int, [_pointer, _int, _double, _pointer]),
    "hpc_exchange_params": (_pointer, [_pointer, _int]),
    "hpc_exchange_free": (None, [_pointer]),
    "hpc_last_error": (_pointer, []),
}


class NativeError(RuntimeError):
    """A C call of a benchmark failed."""


def package() -> Path:
    """Returns the folders of the installed package's headers (include) and library (lib)."""
    return Path(hpcomm.__file__).resolve().parent


def library() -> Path:
    return package() / "lib" / "libhpcomm.so.0"


def sources_of() -> list[Path]:
    """Returns the source files of a compiled benchmark."""
    return [*HERE.glob("*/*.c"), *HERE.glob("*/*.h"), library(), package() / "include" / "hpcomm" / "hpcomm.h"]


@functools.cache
def has_verbs() -> bool:
    """Has the compiler rdma-core's headers?"""
    asked = ["cc", "-fsyntax-only", "-include", "infiniband/verbs.h", "-x", "c", "/dev/null"]
    return subprocess.run(asked, capture_output=True, check=False).returncode == 0


def stale(target: Path) -> bool:
    """Returns whether a compiled file is missing, or older than its sources."""
    return not target.exists() or target.stat().st_mtime <= max(path.stat().st_mtime for path in sources_of())


def build(folder: Path = BUILD, name: str = "libbench.so", sources: Sequence[str] = SOURCES, *libraries: str) -> Path:
    """Compiles the loops if they are older than their sources, and returns the shared library."""
    target = folder / name
    if stale(target):
        flags = ("-fvisibility=hidden", "-fPIC", "-shared", "-DBENCH_LIBRARY")
        compile_c(target, sources, *flags, libraries=libraries)
    return target


def build_verbs(folder: Path = BUILD) -> Path:
    """Does the same for loops that need rdma-core's headers. Raises FileNotFoundError if the headers are missing."""
    if stale(folder / LIBRARY_OF_VERBS) and not has_verbs():
        raise FileNotFoundError("rdma-core's headers are missing: apt-get install -y libibverbs-dev")
    return build(folder, LIBRARY_OF_VERBS, VERBS_SOURCES, *VERBS)


def with_objects(folder: Path, name: str, source: str, needs: str) -> ctypes.CDLL:
    """Links the loops of one file with the objects of the tree's build, to measure internal functions of the library.
    needs: the C file that defines these functions."""
    target, objects = folder / name, sorted(OBJECTS.rglob("*.o"))
    if not any(path.name == f"{needs}.o" for path in objects):
        raise SystemExit(f"{source}: there is no {needs} to measure in {OBJECTS}: make builds it")
    if stale(target) or target.stat().st_mtime <= max(path.stat().st_mtime for path in objects):
        flags = ("-shared", "-fPIC", "-fvisibility=hidden", f"-I{HERE.parent / 'csrc'}")
        compile_c(target, [source, *map(str, objects)], *flags, libraries=["-lm", "-lpthread", "-ldl"])
    return ctypes.CDLL(str(target))


def programs(folder: Path = BUILD) -> list[Path]:
    """Compiles each C benchmark as a program."""
    sources = (*SOURCES, *(VERBS_SOURCES if has_verbs() else ()))
    made = [folder / Path(source).stem for source in sources]
    for source, target in zip(sources, made, strict=True):
        compile_c(target, [source], libraries=VERBS if source in VERBS_SOURCES else ())
    return made


def compile_c(
    target: Path, sources: Sequence[str], *flags: str, libraries: Sequence[str] = (), of: Path | None = None
) -> None:
    """Runs the C compiler once; the target appears only when it is complete. of: the folder of a built package, whose
    headers and library it uses; default: the installed package. Raises SystemExit if the folder has no library."""
    folder = package() if of is None else of
    linked = folder / "lib" / library().name
    if not linked.exists():
        raise SystemExit(f"{folder} has no lib/{linked.name}: give the folder of a built package (.../hpcomm)")
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_suffix(f".{os.getpid()}")
    command = ["cc", *FLAGS, *flags, f"-I{folder / 'include'}", f"-I{HERE / 'common'}", "-o", str(unfinished)]
    command += [*(str(HERE / name) for name in sources), str(linked), f"-Wl,-rpath,{linked.parent}", *libraries]
    subprocess.run(command, check=True)
    unfinished.replace(target)


def view(at: int, shape: int, dtype: Any) -> NDArray[Any]:
    """Returns an array over C memory, which must outlive it."""
    size = max(1, shape * np.dtype(dtype).itemsize)
    return np.frombuffer((ctypes.c_char * size).from_address(at), dtype, shape)


class Native:
    """The loops and the C API, with a separate hpcomm context like a C program's."""

    def __init__(self, path: Path, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self._hpcomm = ctypes.CDLL(str(library()))
        self._bench = ctypes.CDLL(str(path))
        for loaded, signatures in ((self._hpcomm, CALLS), (self._bench, LOOPS)):
            for name, (result, arguments) in signatures.items():
                function = getattr(loaded, name)
                function.restype, function.argtypes = result, arguments
                setattr(self, name, function)
        self.context = ctypes.c_void_p()

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"no C function {name}: add it to LOOPS or CALLS")

    def check(self, status: int) -> int:
        """Returns the status, or raises NativeError with the library's message if it is negative."""
        if status < 0:
            message = ctypes.c_char_p.from_address(self.hpc_last_error() + ctypes.sizeof(ctypes.c_void_p)).value or b""
            raise NativeError(f"rank {self.rank}: status {status}: {message.decode()}")
        return status

    def create(self, transport: str = "", devices: str = "", **settings: float) -> bytes:
        """Makes a context and returns its address; connect then takes the addresses of all ranks. settings: members of
        hpc_config."""
        config = Config()
        self.hpc_config_init(ctypes.byref(config))
        config.transports = transport.encode() or None
        config.devices = devices.encode() or None
        for name, value in settings.items():
            setattr(config, name, value)
        self.check(self.hpc_context_create(self.rank, self.size, ctypes.byref(config), ctypes.byref(self.context)))
        own = ctypes.create_string_buffer(self.hpc_address_size())
        self.check(self.hpc_context_address(self.context, own))
        return own.raw

    def connect(self, addresses: Sequence[bytes]) -> None:
        self.check(self.hpc_context_connect(self.context, b"".join(addresses), -1.0))

    def peer(self, rank: int) -> Peer:
        found = Peer()
        self.check(self.hpc_context_peer(self.context, rank, ctypes.byref(found)))
        return found

    def window(self, nbytes: int, signals: int) -> ctypes.c_void_p:
        created = ctypes.c_void_p()
        self.check(self.hpc_window_create(self.context, nbytes, signals, b"bench", -1.0, ctypes.byref(created)))
        return created

    def queue(self, in_peers: Sequence[int], out_peers: Sequence[int], nbytes: int, buffers: int) -> ctypes.c_void_p:
        created, config = ctypes.c_void_p(), QueueConfig()
        ins, outs = (np.array(peers, np.intc) for peers in (in_peers, out_peers))
        self.hpc_queue_config_init(ctypes.byref(config))
        config.in_peers, config.n_in, config.out_peers, config.n_out = address(ins), ins.size, address(outs), outs.size
        config.nbytes, config.depth, config.buffers = nbytes, 1, buffers
        self.check(self.hpc_queue_create(self.context, ctypes.byref(config), -1.0, ctypes.byref(created)))
        return created

    def words(self, count: int) -> NDArray[np.uint64]:
        """The first count predictable words."""
        made = np.empty(count, np.uint64)
        self.bench_fill(address(made), made.size)
        return made

    def wrong(self, got: NDArray[Any], expected: NDArray[Any]) -> int:
        return int(self.bench_wrong(address(got), address(expected), expected.size))

    def close(self) -> None:
        self.hpc_context_free(self.context)
        self.context = ctypes.c_void_p()


if __name__ == "__main__":
    print("\n".join(str(program) for program in programs()))
