"""The hub's end of a proven connection.

After the proof a connection carries frames:

    J   a request or an answer, as JSON; to and from tenants flat objects of numbers and texts, which C reads too
    E   an exchange that worker 0 asks for, its description (described.py)
    R   the sentence with which worker 0 refuses to make an exchange
    D   a part of a round, or the whole of it: b"w" (workers), b"s" (workers and hubs) or b"h" and the index of another
        hub, which worker 0 passes on; then the data
    X   a refusal: the kind of the error, a newline and its sentence; the hub hangs up
    N   a notice to the job, a sentence

Frames to a tenant wait as they are, and sessions of a job share the bytes of a round. A session copies one slice at a
time into its connection, as fast as the tenant takes them.
"""

import asyncio
import json
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ..errors import HpcommError
from . import proof, refusals

MOST_BYTES = 64 << 10  # of a frame to the hub, if nothing else is said
_MOST_DUE = 64  # frames that wait for a tenant to take them
_SLICE = 64 << 10
_CLOSE_SECONDS = 3.0  # for a caller to take the rest when the hub hangs up
_BODY_SECONDS = 30.0  # for the rest of a frame that has begun


class Session:
    """A proven connection. name: the namespace, or config.ADMIN; token: the one that was proven."""

    def __init__(
        self, name: str, token: bytes, seal: proof.Seal, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.name, self.token = name, token
        self._seal, self._reader, self._writer = seal, reader, writer
        self._due: deque[tuple[bytes, bytes]] = deque()
        self._sender: asyncio.Task[None] | None = None
        self._closes = False

    async def receive(self, timeout: float | None, most: Callable[[], int] = lambda: MOST_BYTES) -> tuple[bytes, bytes]:
        """Returns the next frame.

        Args:
            timeout: seconds until the frame begins; None: as long as the connection lives.
            most: is asked how many bytes the frame may have, when it has begun.

        Raises:
            BadProof, EOFError, OSError, TimeoutError: the connection is of no use any more.
        """
        head = await asyncio.wait_for(self._reader.readexactly(proof.HEAD), timeout)
        return self._seal.opened(await self._rest(proof.length_of(head, most())))

    async def _rest(self, n: int) -> bytes:
        """Returns the next n bytes. A caller that does not send them in time loses its connection: a timer costs less
        than wait_for, and a job sends many frames while it begins."""
        late = asyncio.get_running_loop().call_later(_BODY_SECONDS, self._writer.transport.abort)
        try:
            return await self._reader.readexactly(n)
        finally:
            late.cancel()

    async def request(self, timeout: float | None) -> dict[str, Any]:
        """Returns the next frame, which must be a request."""
        return proof.as_request(*await self.receive(timeout))

    def send(self, kind: bytes, body: bytes) -> None:
        """Sends a frame, after the waiting ones. A tenant that leaves too many untaken loses its connection."""
        if self._closes or self._writer.is_closing():
            return
        at_once = self._sender is None and max(len(body), self._writer.transport.get_write_buffer_size()) <= _SLICE
        if at_once:
            self._writer.write(self._seal.closed(kind, body))
            return
        self._due.append((kind, body))
        if len(self._due) > _MOST_DUE:
            self._writer.transport.abort()
        elif self._sender is None:
            self._sender = asyncio.create_task(self._send_due())

    async def _send_due(self) -> None:
        with suppress(OSError):
            while self._due:
                kind, body = self._due.popleft()
                head, tag = self._seal.around(kind, body)
                self._writer.write(head)
                for start in range(0, len(body), _SLICE):
                    self._writer.write(body[start : start + _SLICE])
                    await self._writer.drain()
                self._writer.write(tag)
        self._sender = None
        if self._closes:
            hang_up(self._writer)

    def answer(self, found: object) -> None:
        self.send(b"J", json.dumps(found).encode())

    def refuse(self, wrong: HpcommError) -> None:
        self.send(b"X", refusals.packed(wrong))
        self.close()

    def close(self) -> None:
        """Sends the rest, and hangs up."""
        self._closes = True
        if self._sender is None:
            hang_up(self._writer)
        else:
            asyncio.get_running_loop().call_later(_CLOSE_SECONDS, self._writer.transport.abort)

    async def closed(self) -> None:
        """Closes the connection, and waits until it and its last frames are gone."""
        self.close()
        if self._sender is not None:
            await asyncio.wait([self._sender])
        with suppress(OSError):
            await self._writer.wait_closed()


def hang_up(writer: asyncio.StreamWriter) -> None:
    """Closes a connection. Bytes that the other side has not read after a few seconds are dropped. If it has read
    all, the connection is free at once: hundreds of jobs may end within these seconds."""
    if writer.is_closing():
        return
    writer.close()
    if writer.transport.get_write_buffer_size() > 0:
        asyncio.get_running_loop().call_later(_CLOSE_SECONDS, writer.transport.abort)
