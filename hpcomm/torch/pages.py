"""The pages of memory in which arrays lie."""

import mmap
from collections.abc import Iterable, Iterator
from typing import Any

from numpy.typing import NDArray


def ranges(arrays: Iterable[NDArray[Any]]) -> Iterator[tuple[int, int]]:
    """The addresses and bytes of the pages of these arrays, where pages side by side are one range."""
    page = mmap.PAGESIZE
    ends = sorted(
        (one.ctypes.data // page * page, -(-(one.ctypes.data + one.nbytes) // page) * page)
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
