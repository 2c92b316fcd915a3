"""A page by HTTP/1.1, for callers that prove nothing: they get this page, read-only, and their number, their bytes and
their time are bounded."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from email.utils import formatdate
from http import HTTPStatus

from ..errors import ConfigError
from .handle import HubAddress

MOST_CALLERS = 16  # one more takes the place of the oldest one
MOST_BYTES = 8 << 10  # of a request, up to the empty line after its fields
SECONDS = 5.0  # for a caller to ask and to take its answer

_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) (\S+) HTTP/1\.([01])")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[^\0\r\n]*")
_GONE = (EOFError, OSError, TimeoutError, asyncio.TimeoutError)


class Web:
    """A server of one page.

    Args:
        path: where the page is.
        kind: its Content-Type.
        page: makes the page, within a few seconds.
        refused: is called for each caller that does not get the page.
    """

    def __init__(self, path: str, kind: str, page: Callable[[], Awaitable[str]], refused: Callable[[], None]) -> None:
        self._path, self._kind, self._page, self._refused = path.encode(), kind, page, refused
        self._callers: dict[asyncio.StreamWriter, asyncio.Task[None]] = {}
        self._server: asyncio.Server | None = None

    async def start(self, where: HubAddress) -> HubAddress:
        """Listens; returns the address. Raises ConfigError if it cannot listen there."""
        try:
            self._server = await asyncio.start_server(
                self._greet, where.host, where.port, backlog=MOST_CALLERS, limit=MOST_BYTES
            )
        except OSError as error:
            raise ConfigError(f"the hub cannot serve metrics at {where}: {error.strerror}") from None
        return HubAddress(*self._server.sockets[0].getsockname()[:2])

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        tasks = list(self._callers.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._callers) >= MOST_CALLERS:
            oldest = next(iter(self._callers))
            del self._callers[oldest]
            oldest.transport.abort()
        task = asyncio.current_task()
        assert task is not None
        self._callers[writer] = task
        try:
            await asyncio.wait_for(self._serve(reader, writer), SECONDS)
        except _GONE:
            self._refused()
        except asyncio.CancelledError:
            pass
        finally:
            self._callers.pop(writer, None)
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = b""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            status = self._status(head)
        except asyncio.LimitOverrunError:
            status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
        if status is HTTPStatus.OK:
            writer.write(_answer(status, self._kind, await self._page()))
        else:
            self._refused()
            writer.write(_answer(status, "text/plain", "" if head.startswith(b"HEAD ") else f"{status.phrase}\n"))
        writer.close()
        await writer.wait_closed()

    def _status(self, head: bytes) -> HTTPStatus:
        line, *fields = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
        asked, named = _LINE.fullmatch(line), [_FIELD.fullmatch(field) for field in fields]
        if asked is None or not all(named):
            return HTTPStatus.BAD_REQUEST
        hosts = sum(field is not None and field[1].lower() == b"host" for field in named)
        if hosts > 1 or (hosts == 0 and asked[3] == b"1"):
            return HTTPStatus.BAD_REQUEST
        if asked[2].partition(b"?")[0] != self._path:
            return HTTPStatus.NOT_FOUND
        return HTTPStatus.OK if asked[1] == b"GET" else HTTPStatus.METHOD_NOT_ALLOWED


def _answer(status: HTTPStatus, kind: str, body: str) -> bytes:
    data = body.encode()
    fields = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        f"Date: {formatdate(usegmt=True)}",
        f"Content-Type: {kind}",
        f"Content-Length: {len(data)}",
        "Connection: close",
        "Cache-Control: no-store",
        *(["Allow: GET"] if status is HTTPStatus.METHOD_NOT_ALLOWED else []),
    ]
    return "".join(f"{field}\r\n" for field in [*fields, ""]).encode() + data
