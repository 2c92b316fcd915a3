"""Compression libraries, loaded by name at run time, for bench.parameter_flow.compression, without MPI or hpcomm.

hpcomm loads lz4, snappy and zlib in the same way (csrc/codec/compress.c) and calls the same functions. lzo is under the
GPL, so only this benchmark loads it.
"""

import ctypes
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
LZO_VERSION, LZO_MEMORY = 0x20A0, 16384 * ctypes.sizeof(ctypes.c_void_p)  # lzoconf.h; LZO1X_1_MEM_COMPRESS of lzo1x.h
ZLIB_LEVELS = {"zlib": 1, "zlib, level 6": 6}  # hpcomm's, and zlib's own default


class Missing(Exception):
    """This machine lacks a library; the text has the line that installs it."""


@dataclass(frozen=True)
class Compressor:
    """A compressor. compress and decompress take two arrays, from and to, and return the number of bytes written to
    `to`. bound returns the most bytes that compressing this many can give."""

    name: str
    bound: Callable[[int], int]
    compress: Callable[[Bytes, Bytes], int]
    decompress: Callable[[Bytes, Bytes], int]

    def timed(self, data: Bytes) -> tuple[Bytes, float]:
        """Returns the compressed data, and its seconds, without the first touch of memory."""
        room = np.ones(self.bound(data.size), np.uint8)
        start = time.perf_counter()
        made = self.compress(data, room)
        seconds = time.perf_counter() - start
        return room[:made], seconds

    def restored(self, packed: Bytes, nbytes: int) -> Bytes:
        raw = np.empty(nbytes, np.uint8)
        return raw[: self.decompress(packed, raw)]


def compressors() -> Iterator[Compressor | Missing]:
    """Returns all compressors; a Missing replaces one without its library."""
    for make in (_snappy, _zlib, _lzo, _lz4):
        try:
            yield from make()
        except Missing as why:
            yield why


def _load(name: str, file: str, package: str) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(file)
    except OSError:
        raise Missing(f"{name}: {file} is missing: apt-get install -y {package}") from None


def _written(name: str, status: int, count: int, right: int = 0) -> int:
    if status != right:
        raise RuntimeError(f"{name} has failed with status {status}")
    return count


def _at(data: Bytes) -> ctypes.c_void_p:
    return ctypes.c_void_p(data.ctypes.data)


def _snappy() -> Iterator[Compressor]:
    library = _load("snappy", "libsnappy.so.1", "libsnappy1v5")
    library.snappy_max_compressed_length.restype = ctypes.c_size_t

    def call(function: Callable[..., int], data: Bytes, to: Bytes) -> int:
        count = ctypes.c_size_t(to.size)
        status = function(_at(data), ctypes.c_size_t(data.size), _at(to), ctypes.byref(count))
        return _written("snappy", status, count.value)

    yield Compressor(
        "snappy",
        lambda n: int(library.snappy_max_compressed_length(ctypes.c_size_t(n))),
        lambda data, to: call(library.snappy_compress, data, to),
        lambda data, to: call(library.snappy_uncompress, data, to),
    )


def _zlib() -> Iterator[Compressor]:
    library = _load("zlib", "libz.so.1", "zlib1g")
    library.compressBound.restype = ctypes.c_ulong

    def call(function: Callable[..., int], data: Bytes, to: Bytes, *level: int) -> int:
        count = ctypes.c_ulong(to.size)
        status = function(_at(to), ctypes.byref(count), _at(data), ctypes.c_ulong(data.size), *level)
        return _written("zlib", status, count.value)

    for name, level in ZLIB_LEVELS.items():
        yield Compressor(
            name,
            lambda n: int(library.compressBound(ctypes.c_ulong(n))),
            lambda data, to, level=level: call(library.compress2, data, to, level),  # type: ignore[misc]
            lambda data, to: call(library.uncompress, data, to),
        )


def _lzo() -> Iterator[Compressor]:
    """LZO1X-1, the library's usual choice."""
    library = _load("lzo", "liblzo2.so.2", "liblzo2-2")
    if (status := getattr(library, "__lzo_init_v2")(LZO_VERSION, *9 * (-1,))) != 0:  # -1: sizes that it does not check
        raise RuntimeError(f"lzo: liblzo2.so.2 refuses to start, status {status}")
    memory = np.zeros(LZO_MEMORY, np.uint8)

    def call(function: Callable[..., int], data: Bytes, to: Bytes) -> int:
        count = ctypes.c_size_t(to.size)
        status = function(_at(data), ctypes.c_size_t(data.size), _at(to), ctypes.byref(count), _at(memory))
        return _written("lzo", status, count.value)

    yield Compressor(
        "lzo",
        lambda n: n + n // 16 + 64 + 3,
        lambda data, to: call(library.lzo1x_1_compress, data, to),
        lambda data, to: call(library.lzo1x_decompress_safe, data, to),
    )


def _lz4() -> Iterator[Compressor]:
    library = _load("lz4", "liblz4.so.1", "liblz4-1")

    def call(function: Callable[..., int], data: Bytes, to: Bytes) -> int:
        count = function(_at(data), _at(to), data.size, to.size)
        return _written("lz4", min(count, 0), count)

    yield Compressor(
        "lz4",
        lambda n: int(library.LZ4_compressBound(n)),
        lambda data, to: call(library.LZ4_compress_default, data, to),
        lambda data, to: call(library.LZ4_decompress_safe, data, to),
    )
