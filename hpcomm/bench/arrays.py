"""Arrays for the benchmarks: predictable 64-bit words, counts of wrong elements, and cache-aligned memory."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

LINE = 64  # bytes of a cache line
# A sample's words start at one of SHIFTS places, a cache line or a page apart, as in bench/common/bench.h.
SHIFTS, LINE_WORDS, PAGE_WORDS = 512, 8, 512
BLOCK = 1 << 20  # elements that are compared at a time, which limits the memory for the comparison
Floats = NDArray[np.float32]
Words = NDArray[np.uint64]


def address(array: NDArray[Any]) -> int:
    return int(array.ctypes.data)


def aligned(count: int) -> Floats:
    """Returns count floats, not initialized, that start on a cache line, as windows do; NumPy's arrays need not."""
    room = np.empty(count + LINE // 4, np.float32)
    ahead = -address(room) % LINE // 4
    return room[ahead : ahead + count]


def zeros(count: int) -> Floats:
    made = aligned(count)
    made.fill(0)
    return made


def words(count: int, start: int = 0) -> Words:
    """Returns count predictable words, splitmix64's sequence, from word number start on."""
    z = np.arange(start + 1, start + count + 1, dtype=np.uint64)
    z *= np.uint64(0x9E3779B97F4A7C15)
    z ^= z >> np.uint64(30)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return z


def word(j: int) -> int:
    """Returns word number j of the same sequence."""
    most = 2**64 - 1
    z = (j + 1) * 0x9E3779B97F4A7C15 & most
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & most
    z = (z ^ z >> 27) * 0x94D049BB133111EB & most
    return z ^ z >> 31


def wrong(got: NDArray[Any], expected: NDArray[Any]) -> int:
    """Returns how many elements differ."""
    parts = range(0, expected.size, BLOCK)
    return sum(int(np.count_nonzero(got[at : at + BLOCK] != expected[at : at + BLOCK])) for at in parts)


def wrong_classes(got: Floats, classes: Floats) -> int:
    """Returns how many elements k differ from classes[k % classes.size]."""
    rows, found = max(1, BLOCK // classes.size), 0
    for at in range(0, got.size, rows * classes.size):
        part = got[at : at + rows * classes.size]
        whole = part.size // classes.size * classes.size
        found += int(np.count_nonzero(part[:whole].reshape(-1, classes.size) != classes))
        found += int(np.count_nonzero(part[whole:] != classes[: part.size - whole]))
    return found


def repeat(array: Floats, tile: Floats) -> None:
    done = min(tile.size, array.size)
    array[:done] = tile[:done]
    while done < array.size:
        more = min(done, array.size - done)
        array[done : done + more] = array[:more]
        done += more
