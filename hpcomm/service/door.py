"""Connections of workers and other hubs to the contexts of the hub's tenants. They come to the hub's port too, and the
hub gives each one to the context that it is for (csrc/control/door.h):

    hub     HELLO    as to a tenant that meets others here (proof.py)
    caller  CALL     "hpcdoor1", and the name of a context, 16 bytes
    hub     VERDICT  a byte: 1, the context has the connection; or 0, there is no such context. The hub hangs up without
                     a verdict if the context has too many callers; the caller tries again

Names are no secrets. The handshake of contexts follows, by which both ends prove themselves. The caller sends nothing
between its CALL and the VERDICT, so the hub has read no byte that is for the context.
"""

import asyncio
import os
from collections.abc import Callable
from typing import Any

from .. import _core
from ..errors import HpcommError, Timeout

CALL = _core.DOOR_CALL
MAGIC = b"hpcdoor1"
_TAKEN, _NONE = b"\1", b"\0"


class Doors:
    """The contexts that are called at the hub's port, by name. The threads of tenants call add and remove."""

    def __init__(self) -> None:
        self._takes: dict[bytes, Callable[[int], None]] = {}

    def add(self, name: bytes, take: Callable[[int], None]) -> None:
        """Opens the door to a context. take: gives it the descriptor of a connection, or raises an HpcommError."""
        self._takes[name] = take

    def remove(self, name: bytes) -> None:
        self._takes.pop(name, None)

    async def pass_on(self, call: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Gives a connection to the context that its CALL names, and lets go of it. Returns False if there is no such
        context, or if the caller has sent more than its CALL. A context that has too many callers drops this one."""
        transport: Any = writer.transport
        transport.pause_reading()
        reader.feed_eof()
        too_much = await reader.read()
        transport.pause_reading()  # the reader may have let it go on
        try:
            taken = not too_much and self._give(call.removeprefix(MAGIC), writer.get_extra_info("socket").fileno())
        except Timeout:
            transport.abort()
            return True
        except HpcommError:
            taken = False
        writer.write(_TAKEN if taken else _NONE)
        if taken:
            transport.abort()  # closes the hub's descriptor; the context has its own
        return taken

    def _give(self, name: bytes, descriptor: int) -> bool:
        """Gives a copy of the descriptor to the context of a name. Returns False if there is none.

        Raises:
            Timeout: the context has too many callers.
            HpcommError: the context has ended.
        """
        take = self._takes.get(name)
        if take is None:
            return False
        own = os.dup(descriptor)
        try:
            take(own)
        except HpcommError:
            os.close(own)
            raise
        return True
