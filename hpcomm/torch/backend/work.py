"""The works that calls return, and their futures."""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ... import _core
from ...errors import HpcommError, Timeout
from .line import acquire

_SHORTEST = 1e-3  # seconds: 0 is no limit in torch


def _as_tuple(counts: Any) -> Any:
    return None if counts is None else tuple(counts)


def as_seconds(timeout: Any) -> float | None:
    """Returns a timeout of torch in seconds; None if it is not set: torch has 0 or -1 ms for that."""
    if timeout is None:
        return None
    limit = timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)
    return limit if limit > 0 else None


def overdue(rank: int, waited: float) -> Timeout:
    """Returns the Timeout of a call that other calls of its group hold up."""
    return Timeout(
        f"rank {rank}: wait: earlier calls of the group have not ended within the timeout of {waited:.3g} s: wait for "
        "them, or give a longer timeout",
        op="wait",
    )


class _Failure:
    """The value of a future that failed. C++ pickles it to look for tensors, and gets the failure."""

    def __init__(self, failure: BaseException) -> None:
        self.failure = failure

    def __reduce__(self) -> Any:
        raise self.failure


class BackendFuture(torch.futures.Future[Any]):
    """A future whose wait, value and callbacks raise the failure of its work itself."""

    failure: BaseException | None = None

    def end(self, result: Any, failure: BaseException | None) -> None:
        self.failure = failure
        super().set_result(result if failure is None else _Failure(failure))

    def wait(self) -> Any:
        value = super().wait()
        return self._unless_failed(value)

    def value(self) -> Any:
        value = super().value()
        return self._unless_failed(value)

    def then(self, callback: Any) -> Any:
        return super().then(lambda _: callback(self))

    def _unless_failed(self, value: Any) -> Any:
        if self.failure is not None:
            raise self.failure
        return value


class BackendWork(dist.Work):
    """A call that has been made, or waits in the line of its group."""

    is_held = False  # whether torch gives programs a work of C++, which asks this one for its end and its future alone

    def __init__(self, result: Any = None) -> None:
        super().__init__()
        self._result: Any = [] if result is None else result
        self._failure: BaseException | None = None
        self._over = True
        self._lock = threading.Lock()  # guards which future this has, and C's work
        self._future: BackendFuture | None = None
        self._open: BackendFuture | None = None  # the future while it has no value

    def is_completed(self) -> bool:
        return self._over

    def is_success(self) -> bool:
        return self._over and self._failure is None

    def exception(self) -> BaseException | None:
        return self._failure

    def wait(self, timeout: Any = None) -> bool:
        """Waits for the end of the call.

        Raises:
            Timeout: the time is over; the error names the ranks that hold the call up. The call goes on.
            PeerFailed: a rank that the call needs has died or left.
        """
        if self._failure is not None:
            raise self._failure
        return True

    def synchronize(self) -> None:
        self.wait()

    def result(self) -> Any:
        if self._failure is not None:
            raise self._failure
        return self._result

    def get_future(self) -> Any:
        with self._lock:
            future = self._future
            if future is None:
                future = self._future = self._open = BackendFuture()
        if self._over:
            self._end_future(self._failure)
        # C++ takes the future out of the object: without its methods it would have a failure as its value
        return future.then(BackendFuture.value) if self.is_held else future

    def source_rank(self) -> int:
        return -1

    def _source_rank(self) -> int:
        return self.source_rank()

    def _end(self, failure: BaseException | None) -> None:
        with self._lock:
            self._failure = failure
            self._over = True
        self._end_future(failure)

    def _end_future(self, failure: BaseException | None) -> None:
        with self._lock:
            future, self._open = self._open, None
        if future is not None:
            future.end(self._result, failure)


class QueuedWork(BackendWork):
    """A call in the line of its group: the helper thread makes it."""

    def __init__(
        self,
        result: Any,
        member: Any,
        steps: Iterable[Any],
        after: Callable[[], None] | None,
        keep: Any,
        timeout: float,
        named: Any,
    ) -> None:
        """timeout: seconds of each C call, from its start. named: the C object of the call's name in errors; None: C's
        name of the collective."""
        super().__init__(result)
        self._over, self._timeout = False, timeout
        self._member, self._after, self._keep = member, after, keep
        self._steps: Iterable[Any] | None = steps
        self._named = named
        self._latch = threading.Lock()
        self._latch.acquire()
        self._request: Any = None  # C's work, while this call is the one that goes on

    def make(self) -> None:
        """Makes the call; its failure is kept. The helper thread does this."""
        failure: BaseException | None = None
        line = self._member.line
        if self._named is not None:
            _core.enter(self._named)
        try:
            with line.turn:
                line.going = self
                for step in self._steps or ():
                    self._make(step)
            if self._after is not None:
                self._after()
        except BaseException as failed:
            failure = failed
        line.going = None
        if self._named is not None:
            _core.enter(_core.NULL)
        self._end(failure)
        self._member = self._steps = self._after = self._keep = None
        self._latch.release()

    def _make(self, step: Any) -> None:
        ctx = self._member.ctx
        box = _core.new_request()
        what, kind, op, root, send, recv, count, sends, recvs, nbytes = step
        self._member.count(nbytes)
        try:
            call = _core.collective_call(what, kind, op, root, send, recv, count, _as_tuple(sends), _as_tuple(recvs))
            _core.collective_start(ctx._handle, call[0], box)
            with self._lock:
                self._request = box[0]
            _core.work_wait_whole(box[0], self._timeout)
        except HpcommError as failure:
            raise self._member.told(failure) from None
        finally:
            with self._lock:
                self._request = None
                _core.work_free(box[0])
            self._member.count(-nbytes)

    def wait(self, timeout: Any = None) -> bool:
        if not self._over:
            limit = as_seconds(timeout)
            if not self.settle(limit):
                self._raise_late(limit or 0.0)
        return super().wait()

    def settle(self, limit: float | None = None) -> bool:
        """Waits for the end of the call, which may be a failure, and of its callbacks. Returns False if limit seconds
        have passed before."""
        if limit is None:
            self._latch.acquire()
        elif not acquire(self._latch, limit):
            return False
        self._latch.release()
        return True

    def late(self, waited: float) -> BaseException | None:
        """Returns the Timeout of the call if it is the one that goes on."""
        before = None if self._named is None else _core.enter(self._named)
        try:
            with self._lock:
                return None if self._request is None else _core.work_late(self._request, waited)
        finally:
            if before is not None:
                _core.enter(before)

    def _raise_late(self, waited: float) -> None:
        member = self._member
        if not self._over:
            raise member.late(waited)


class MessageWork(BackendWork):
    """A send or a recv, which C goes on with in each wait of the context."""

    def __init__(
        self, result: Any, member: Any, keep: Any, after: Callable[[], None] | None, nbytes: int, *, receives: bool
    ) -> None:
        super().__init__(result)
        self._over = False
        self._member, self._keep, self._after = member, keep, after
        self._nbytes, self._receives = nbytes, receives
        self._source = -1
        self._uses = 0  # threads that use C's request
        self._is_watched = False  # whether a thread waits for the end
        self.request = 0  # C's, by its address; 0 when it is freed

    def is_completed(self) -> bool:
        if not self._over:
            request = self._use()
            try:
                ended = request != 0 and _core.request_test(request, self._member.pending) <= 0
            finally:
                self._leave()
            if ended:
                self._settle(0.0)
        return self._over

    def wait(self, timeout: Any = None) -> bool:
        if not self._over:
            self._settle(as_seconds(timeout) or self._member.timeout)
        if self._failure is not None:
            raise self._failure
        return True

    def _use(self) -> int:
        """Returns C's request, which is not freed before _leave; 0 if the message is over."""
        with self._lock:
            self._uses += 1
            return 0 if self._over else self.request

    def _leave(self) -> None:
        """Frees C's request if the message is over. C may write into the tensor until then, also after a failure, so
        the tensor is kept as long."""
        with self._lock:
            self._uses -= 1
            if self._over and self._uses == 0 and self.request:
                request, self.request = self.request, 0
                _core.request_free(request)
                self._keep = None

    def _settle(self, limit: float) -> None:
        """Waits for the end. Raises a Timeout, after which the message goes on; keeps another failure."""
        request = self._use()
        try:
            if request:
                self._await(request, limit)
        finally:
            self._leave()

    def _await(self, request: int, limit: float) -> None:
        status = _core.request_wait(request, self._member.pending, limit, self._receives)
        if status >= 0:
            self._finish(status, None)
            return
        failed = _core.error(status)
        going = _core.request_test(request, self._member.pending) if isinstance(failed, TimeoutError) else status
        if going > 0:
            raise self._member.told(failed, is_over=False)
        if going == 0:  # it has ended meanwhile
            self._finish(_core.request_wait(request, self._member.pending, 0.0, self._receives), None)
        else:
            self._finish(status, self._member.told(failed))

    def _finish(self, status: int, failure: BaseException | None) -> None:
        """Ends the work, once. Another thread that waits returns when the message has been copied."""
        with self._lock:
            if self._over:
                return
            if status >= 0 and self._receives:
                self._source = status
            after, self._after = self._after, None
            try:
                if failure is None and after is not None:
                    after()
            except Exception as failed:
                failure = failed
            self._failure = failure
            self._over = True
        self._member.messages.discard(self)
        self._member.count(-self._nbytes)
        self._end_future(failure)

    def get_future(self) -> Any:
        future = super().get_future()
        with self._lock:
            begins = not self._over and not self._is_watched
            self._is_watched |= begins
        if begins:
            threading.Thread(target=self._watch, name="hpcomm-message", daemon=True).start()
        return future

    def _watch(self) -> None:
        try:
            self._settle(self._member.timeout)
        except BaseException as failure:  # the message goes on after a Timeout: a wait may be made again
            self._end_future(failure)

    def source_rank(self) -> int:
        return self._source

    def __del__(self) -> None:
        if self.request:
            _core.request_free(self.request)


class JoinedWork(BackendWork):
    """Several works as one."""

    def __init__(self, works: Sequence[Any]) -> None:
        super().__init__()
        self._works = list(works)
        self._over = False

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        return all(work.is_success() for work in self._works)

    def wait(self, timeout: Any = None) -> bool:
        """Waits for all; timeout is for all together."""
        limit = as_seconds(timeout)
        until = None if limit is None else time.monotonic() + limit
        for work in self._works:
            work.wait(None if until is None else max(until - time.monotonic(), _SHORTEST))
        return True

    def exception(self) -> BaseException | None:
        return next((work.exception() for work in self._works if work.exception() is not None), None)

    def result(self) -> Any:
        return [one for work in self._works for one in work.result()]

    def get_future(self) -> Any:
        def all_of(done: Any) -> Any:
            return [one for part in done.value() for one in part.value()]

        return torch.futures.collect_all([work.get_future() for work in self._works]).then(all_of)
