"""Processes of other users, for tests that root runs."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

_VERSION = 0x20080522  # of the layout of capset
_DAC_READ_SEARCH = 1 << 2


def become(user: int) -> None:
    """Makes a process of root, with one thread, one of another user. Of root's rights it keeps one: it reads all files,
    since Python and this tree may be root's alone."""
    os.setresuid(user, user, 0)
    libc = ctypes.CDLL(None, use_errno=True)
    head = (ctypes.c_uint32 * 2)(_VERSION, 0)
    held = (ctypes.c_uint32 * 6)()  # effective, permitted and inheritable; then their high words
    if libc.capget(head, held) == 0:
        held[0], held[3] = _DAC_READ_SEARCH & held[1], 0
        if libc.capset(head, held) == 0:
            return
    raise OSError(ctypes.get_errno(), "capset")


@contextmanager
def user(number: int) -> Iterator[None]:
    """Makes this process one of another user for a while."""
    become(number)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)
