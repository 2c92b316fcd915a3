"""The heap of a hub, which would grow with its jobs."""

import ctypes
import gc
from contextlib import suppress

_ARENA_MAX = -8  # of mallopt


def use_few_arenas() -> None:
    """Keeps glibc from making an arena of the heap for each thread of a tenant. Other C libraries have no arenas."""
    with suppress(AttributeError):
        ctypes.CDLL(None).mallopt(_ARENA_MAX, 2)


def spare_collections() -> None:
    """Takes the objects that exist by now, those of modules, out of the collections of garbage: a tenant that ends
    collects, and all the hub's threads would wait while these objects are looked at."""
    gc.collect()
    gc.freeze()


def give_back() -> None:
    """Frees what nothing refers to, and gives the free pages of the heap back to the host, also those between used
    ones: what jobs leave free there would else grow with their number."""
    gc.collect()
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(ctypes.c_size_t(0))
