"""The methods of a Context by which two ranks exchange arrays and objects."""

import pickle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _core
from .._core import ANY, seconds
from ..errors import HpcommError, InvalidArgument
from .arrays import as_array, as_out, element_of
from .call import Caller, Extent, OneCall, Work, left, pickled

_MOST_TAG = 2**31 - 1


class MessageCall(OneCall):
    """One end of a message: a send or a recv."""

    __slots__ = ("_open", "array", "rank", "tag")

    def __init__(self, name: str, array: NDArray[Any], rank: int, tag: int, started: set[OneCall]) -> None:
        """started: the context's set, of which it is a part until its end."""
        extent = Extent(array)
        super().__init__(name, *((extent, None) if name == "send" else (None, extent)))
        self.array, self.rank, self.tag, self._open = array, rank, tag, started

    def start(self, handle: Any) -> None:
        begin = _core.send_start if self.name == "send" else _core.recv_start
        address = (self.send or self.recv).address  # type: ignore[union-attr]
        self._open.add(self)  # first: its memory must live even if Ctrl-C comes in between
        try:
            begin(handle, self.rank, self.tag, address, self.array.size, element_of(self.array.dtype), self._box)
        except HpcommError:
            self._open.discard(self)
            raise

    def _end(self, failure: HpcommError | None) -> None:
        if self.name == "recv" and failure is None:
            self.result, self.tag = _core.received(self._box[0])
        super()._end(failure)

    def _free(self) -> None:
        super()._free()
        self._open.discard(self)


class Messages(Caller):
    """Messages from one rank to another one; they are methods of Context.

    A send names the receiver, and a recv the sender, or None for any. Both give a tag: a number, 0 or more, that tells
    messages apart. A recv gets the first message that has its sender and its tag. Messages of one sender with one tag
    arrive in the order of the sends. Messages and collectives do not wait for each other.

    Both ranks give an array of the same dtype and size. If these differ, the recv raises a ConfigError that names both;
    the message is lost, and the context goes on.

    A send ends when its array may be written again: a short one when the message is on its way, a long one when its
    receiver has it. A rank may send to itself, if the recv is started first or the message is short.

    Arrays are those of collectives: a NumPy array, an object with DLPack (a torch tensor) or the buffer protocol; a
    send takes a number too. Each call on arrays has a second form whose name ends in _nb, which returns a Work.

    Every method raises InvalidArgument, before it sends anything, for an array that it cannot take, a wrong rank or
    tag, and memory that a started call still uses; and Timeout and PeerFailed, which name the ranks that the call
    waited for. Only one thread at a time may make the calls of a context.
    """

    __slots__ = ()

    def send(self, array: Any, to: int, tag: int = 0, *, timeout: float | None = None) -> None:
        """Sends an array to the rank `to`.

        Args:
            array: the elements; their shape is not sent.
            to: the rank that receives them.
            tag: a number, 0 or more, for the receiver.
            timeout: seconds; None means the context's default.
        """
        send = self._quick_send
        if not send(array, to, tag, timeout):
            self._run_message(self._send("send", array, to, tag), timeout)

    def send_nb(self, array: Any, to: int, tag: int = 0) -> Work:
        """Starts a send. The array must stay as it is until the Work has ended."""
        return self._begin_message(self._send("send_nb", array, to, tag))

    def recv(self, out: Any, source: int | None = None, tag: int | None = 0, *, timeout: float | None = None) -> int:
        """Receives a message into out, and returns the rank that sent it.

        Args:
            out: an array of the message's dtype and size.
            source: the rank that sends; None: any rank.
            tag: the message's tag; None: any tag.
            timeout: seconds; None means the context's default.

        Raises:
            ConfigError: the message has another dtype or size than out; the error has both.
        """
        recv = self._quick_recv
        sender = recv(out, source, tag, timeout)
        if sender is not None:
            return sender
        return self._run_message(self._recv("recv", out, source, tag), timeout).result  # type: ignore[no-any-return]

    def recv_nb(self, out: Any, source: int | None = None, tag: int | None = 0) -> Work:
        """Starts a recv. Its Work's wait returns the rank that sent the message."""
        return self._begin_message(self._recv("recv_nb", out, source, tag))

    def send_object(self, value: Any, to: int, tag: int = 0, *, timeout: float | None = None) -> None:
        """Sends any object that pickle takes; recv_object receives it.

        Args:
            value: the object.
            to: the rank that receives a copy.
            tag: a number, 0 or more, for the receiver.
            timeout: seconds for the whole call; None means the context's default.
        """
        until = self._until(timeout)
        data = pickled(value)
        self.send(np.array(data.size, np.uint64), to, tag, timeout=left(until))
        self.send(data, to, tag, timeout=left(until))

    def recv_object(
        self, source: int | None = None, tag: int | None = 0, *, timeout: float | None = None
    ) -> tuple[Any, int]:
        """Receives an object, and returns it and the rank that sent it.

        It runs what the sender's pickle says, so ranks must trust each other, as in the whole job.

        Args:
            source: the rank that sends; None: any rank.
            tag: the object's tag; None: any tag.
            timeout: seconds for the whole call; None means the context's default.
        """
        until = self._until(timeout)
        length = np.empty((), np.uint64)
        head = self._run_message(self._recv("recv_object", length, source, tag), left(until))
        data = np.empty(int(length), np.uint8)
        self.recv(data, head.result, head.tag, timeout=left(until))
        return pickle.loads(data.data), head.result

    def _run_message(self, call: MessageCall, timeout: float | None) -> MessageCall:
        limit = seconds(timeout, self.config.timeout)
        self._ask_messages()
        self._check_memory(call)
        call.start(self._handle)
        try:
            call.wait(limit)
        finally:
            call.give_up()
        return call

    def _begin_message(self, call: MessageCall) -> Work:
        if len(self._messages) > self._most:
            self._ask_messages()
        self._check_memory(call)
        call.start(self._handle)
        return Work(self, call, self.config.timeout)

    def _send(self, name: str, array: Any, to: Any, tag: Any) -> MessageCall:
        rank, number = self._peer(name, "to", to), _tag(name, tag)
        return MessageCall("send", as_array(name, array), rank, number, self._messages)

    def _recv(self, name: str, out: Any, source: Any, tag: Any) -> MessageCall:
        rank = ANY if source is None else self._peer(name, "source", source, ", or None for any")
        number = ANY if tag is None else _tag(name, tag, ", or None for any")
        return MessageCall("recv", as_out(name, out, None), rank, number, self._messages)

    def _peer(self, name: str, what: str, given: Any, also: str = "") -> int:
        return _number(name, what, given, self.size - 1, f"a rank{also}")


def _tag(name: str, given: Any, also: str = "") -> int:
    return _number(name, "tag", given, _MOST_TAG, f"an int{also}")


def _number(name: str, what: str, given: Any, most: int, kind: str) -> int:
    try:
        number = int(given.__index__())
    except (AttributeError, TypeError):
        raise InvalidArgument(f"{name}: {what} is {given!r}: must be {kind}") from None
    if not 0 <= number <= most:
        raise InvalidArgument(f"{name}: {what} is {number}: must be from 0 to {most}")
    return number
