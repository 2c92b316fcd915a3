"""The ranges of memory in which arrays lie, in the form in which they are registered with a driver."""

import mmap
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

_MAPS = Path("/proc/self/maps")


def ranges(arrays: Iterable[NDArray[Any]]) -> Iterator[tuple[int, int]]:
    """Yields address and size in bytes of memory ranges in which these arrays lie. Adjacent memory is one range. If an
    array lies in memory shared with other processes, its range is all of this shared memory, since an exchange has
    slots for later pushes in it. Otherwise its range is the array's pages."""
    page, shared = mmap.PAGESIZE, list(_shared())
    ends = sorted(
        _around(shared, one.ctypes.data // page * page, -(-(one.ctypes.data + one.nbytes) // page) * page)
        for one in arrays
        if one.nbytes
    )
    start = end = 0
    for first, last in ends:
        if first > end:
            if end:
                yield start, end - start
            start, end = first, last
        end = max(end, last)
    if end:
        yield start, end - start


def _around(shared: list[tuple[int, int]], first: int, last: int) -> tuple[int, int]:
    """Returns the range of shared memory in which these pages lie, otherwise the range of the pages."""
    at = bisect_right(shared, (first, last)) - 1
    for start, end in shared[max(at, 0) : at + 2]:
        if start <= first and last <= end:
            return start, end
    return first, last


def _shared() -> Iterator[tuple[int, int]]:
    """Yields the ranges of memory shared with other processes, by rising address. The kernel lists memory that lies on
    several NUMA nodes in several lines; they are merged here."""
    start = end = 0
    file = ""
    with suppress(OSError), _MAPS.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            place, rights, _, device, number, *_ = line.split()
            first, last = (int(one, 16) for one in place.split("-"))
            own = f"{device} {number}" if rights.endswith("s") else ""
            if own and own == file and first == end:
                end = last
                continue
            if file:
                yield start, end
            start, end, file = first, last, own
    if file:
        yield start, end
