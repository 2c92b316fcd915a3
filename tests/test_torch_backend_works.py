"""Works of the backend "hpcomm": what they copy and when, whose memory they keep, how long they wait, and what a
failure leaves."""

import signal
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from backend_jobs import HELD, NEEDED, dies, job, run  # noqa: E402

import hpcomm.torch  # noqa: E402 - makes the backend
from hpcomm import _core  # noqa: E402

Tensor: Any = torch.Tensor
dist = torch.distributed
pytestmark = [pytest.mark.xdist_group("group torch backend"), NEEDED]

SUM = _core.OPS["sum"]
LONG = timedelta(seconds=20)  # of waits that no failure ends


def member() -> Any:
    """The member of the default group."""
    group: Any = dist.group.WORLD
    return (group._get_backend(torch.device("cpu")) if HELD else group)._calls()


def strided(tensor: Tensor) -> Tensor:
    """The same elements with gaps in between."""
    wide = torch.zeros((*tensor.shape, 2), dtype=tensor.dtype)[..., 0]
    return wide.copy_(tensor)


# ---- copies ----------------------------------------------------------------------------------------------------------


def copied(folder: str) -> None:
    """A call that waits behind others reads what they have written, also into tensors that it has to copy."""
    with job(folder):
        me, n = dist.get_rank(), dist.get_world_size()
        x = strided(torch.ones(4))
        works = [dist.all_reduce(x, async_op=True) for _ in range(2)]
        dist.all_reduce(x)  # a synchronous call comes after them
        assert x.tolist() == [n**3] * 4
        for work in works:
            work.wait()
        whole = n**3

        def after_a_sum(call: Any, *outs: Tensor) -> list[Any]:
            """Returns the outputs of a call, all on the way behind a sum of x."""
            x.copy_(torch.full((4,), float(n * n)))
            for work in [dist.all_reduce(x, async_op=True), call()]:
                work.wait()
            return [out.tolist() for out in outs]

        outs = [torch.zeros(4) for _ in range(n)]
        assert after_a_sum(lambda: dist.all_gather(outs, x, async_op=True), *outs) == [[whole] * 4] * n
        assert after_a_sum(lambda: dist.broadcast(x, 0, async_op=True), x) == [[whole] * 4]
        out = torch.zeros(4)
        parts = [x] * n
        assert after_a_sum(lambda: dist.reduce_scatter(out, parts, async_op=True), out) == [[n * whole] * 4]
        assert after_a_sum(lambda: dist.all_to_all(outs, parts, async_op=True), *outs) == [[whole] * 4] * n
        roots = parts if me == 0 else None
        assert after_a_sum(lambda: dist.scatter(out, roots, 0, async_op=True), out) == [[whole] * 4]
        taken = [torch.zeros(4) for _ in range(n)] if me == 1 else []
        assert after_a_sum(lambda: dist.gather(x, taken or None, 1, async_op=True), *taken) == [[whole] * 4] * len(
            taken
        )
        kept = n * whole if me == 1 else whole
        assert after_a_sum(lambda: dist.reduce(x, 1, async_op=True), x) == [[kept] * 4]
        y = torch.ones(2)
        assert after_a_sum(lambda: dist.all_reduce_coalesced([x, y], async_op=True), x, y) == [[n * whole] * 4, [n] * 2]
        with torch.inference_mode():  # the helper copies tensors that only such code may write
            z = strided(torch.ones(3))
            dist.all_reduce(z, async_op=True).wait()
        assert z.tolist() == [n] * 3


# ---- waits -----------------------------------------------------------------------------------------------------------


def meet(name: str, come: bool = True) -> None:
    """Waits until all ranks but one have come, and this one too if it does."""
    store = dist.distributed_c10d._get_default_store()
    key = f"{name} of {dist.get_world_size()}"
    if store.add(key, int(come)) == dist.get_world_size() - 1:
        store.set(f"{name} is over", "")
    store.wait([f"{name} is over"], LONG)


def late(folder: str) -> None:
    """Each wait ends at its own timeout, whatever it waits behind, and may be made again."""
    with job(folder, timeout=60):
        me, n = dist.get_rank(), dist.get_world_size()
        x, soon = torch.ones(3), timedelta(seconds=0.05)
        if me == 1:
            meet("late", come=False)
        else:
            works: list[Any] = [dist.barrier(async_op=True), *(dist.all_reduce(x, async_op=True) for _ in range(2))]
            until, line = time.monotonic() + 20, member().line
            while line.going is None or line.going._request is None:
                assert time.monotonic() < until, "the helper has not begun"
            for work in reversed(works):  # the others wait for the first one
                with pytest.raises((hpcomm.Timeout, RuntimeError), match="barrier: nothing came from rank 1") as raised:
                    work.wait(soon)
                failure: Any = raised.value
                assert HELD or failure.waiting_for == (1,)
            with pytest.raises(hpcomm.Timeout) as raised:
                member().monitored_barrier(0.05)
            assert raised.value.waiting_for == (1,)
            with pytest.raises(hpcomm.Timeout) as raised:
                member().allreduce([torch.ones(1)], SUM, 0.05, False)
            assert raised.value.waiting_for == (1,)
            meet("late")
        if me == 1:
            works = [dist.barrier(async_op=True), *(dist.all_reduce(x, async_op=True) for _ in range(2))]
        for work in works:
            work.wait()
        assert x.tolist() == [n * n] * 3


def busy(folder: str) -> None:
    """A wait behind a call of another thread ends at its timeout."""
    with job(folder, timeout=60):
        line, taken, over = member().line, threading.Event(), threading.Event()

        def hold() -> None:
            with line.turn:
                taken.set()
                over.wait()

        holder = threading.Thread(target=hold)
        holder.start()
        taken.wait()
        x = torch.ones(1)
        work = member().allreduce([x], SUM, None, True)  # the helper waits for the turn
        y = torch.ones(1)
        calls: list[Any] = [
            lambda: work.wait(0.05),
            lambda: member().monitored_barrier(0.05),
            lambda: member().allreduce([y], SUM, 0.05, False),
        ]
        for call in calls:
            with pytest.raises(hpcomm.Timeout, match=r"earlier calls of the group have not ended .* 0\.05 s"):
                call()
        over.set()
        holder.join()
        work.wait()
        assert x.item() == dist.get_world_size()


def callbacks(folder: str) -> None:
    """A synchronous call comes after the callbacks of earlier works, also of one that has ended."""
    with job(folder):
        begun, ends, seen = threading.Event(), threading.Event(), []

        def slow(_: Any) -> None:
            begun.set()
            ends.wait()
            seen.append(1)

        with member().line.turn:  # the call has not ended when its callback is added
            dist.all_reduce(torch.ones(3), async_op=True).get_future().then(slow)
        begun.wait()
        threading.Thread(target=ends.set).start()
        member().line.settle()
        assert seen == [1]


# ---- messages --------------------------------------------------------------------------------------------------------


def given_up(folder: str) -> None:
    """A recv that has failed takes no later message, so nothing is written into the memory that it had."""
    with job(folder):
        me, store = dist.get_rank(), dist.distributed_c10d._get_default_store()
        x = torch.zeros(4)
        work = dist.irecv(x, 1) if me == 0 else None
        dies(2)
        if me == 1:
            store.wait(["failed"], LONG)
            sent = dist.isend(torch.full((4,), 7.0), 0)
            store.set("sent", "")
            store.wait(["looked"], LONG)
            del sent
        elif work is not None:
            with pytest.raises((hpcomm.PeerFailed, RuntimeError), match="rank 2"):
                work.wait()
            store.set("failed", "")
            store.wait(["sent"], LONG)
            y = torch.zeros(4)
            later = member().recv(y, 1, 0)
            while not later.is_completed():  # it gets the message, or fails
                pass
            store.set("looked", "")
            assert x.tolist() == [0] * 4, "the message was written into memory of a work that is over"


def test_a_failed_recv_takes_no_message(tmp_path: Path) -> None:
    found = run(3, given_up, tmp_path, check=False)
    assert found.codes == [0, 0, -signal.SIGKILL], found.err


def shared(folder: str) -> None:
    """Two threads wait for one recv of a tensor with gaps: both return when it is whole."""
    with job(folder):
        if dist.get_rank() == 1:
            dist.barrier()
            dist.send(torch.ones(4_000_000), 0)
            return
        x = strided(torch.zeros(4_000_000))
        work = member().recv(x, 1, 0)
        copies, begun = work._after, threading.Event()

        def after() -> None:
            begun.set()
            copies()

        work._after = after
        other = threading.Thread(target=work.wait)
        other.start()
        dist.barrier()
        begun.wait()
        work.wait()
        assert x[-1] == 1
        other.join()


def unhurried(folder: str) -> None:
    """A future's Timeout does not end its message, which a later wait gets; its future keeps the failure."""
    with job(folder):
        group: Any = dist.new_group(timeout=timedelta(seconds=0.2))
        dist.barrier()
        if dist.get_rank() == 0:
            x = torch.zeros(4)
            work = dist.irecv(x, 1, group=group)
            future = work.get_future()
            with pytest.raises((hpcomm.Timeout, RuntimeError), match="timeout"):
                future.wait()
            assert not work.is_completed()
            dist.barrier()
            work.wait(timedelta(seconds=20))
            assert x.tolist() == [3] * 4
            with pytest.raises((hpcomm.Timeout, RuntimeError), match="timeout"):
                future.wait()
        else:
            dist.barrier()
            dist.send(torch.full((4,), 3.0), 0, group=group)


def behind(folder: str) -> None:
    """C goes on with all started calls in each wait, so a short message's wait keeps the GIL only if all are short."""
    with job(folder):
        me, calls = dist.get_rank(), member()
        asked: list[int] = []
        wait = _core.request_wait

        def watched(request: int, nbytes: int, *given: Any) -> Any:
            asked.append(nbytes)
            return wait(request, nbytes, *given)

        _core.request_wait = watched
        big, small = torch.full((1 << 18,), float(me)), torch.full((1,), float(me))
        if me == 0:
            work = dist.irecv(big, 1, tag=1)
            dist.recv(small, 1, tag=2)
            assert max(asked) >= big.nbytes
            dist.send(small, 1)
            work.wait()
        else:
            dist.send(small, 0, tag=2)
            dist.recv(small, 0)
            dist.send(big, 0, tag=1)
        assert big[-1] == 1
        dist.all_reduce(big, async_op=True).wait()
        assert calls.pending == 0
        asked.clear()
        works: Any = [dist.isend(small, 1 - me), dist.irecv(torch.empty(1), 1 - me)]
        for work in works:
            work.wait()
        assert not asked or max(asked) <= 2 * small.nbytes


def joined(folder: str) -> None:
    """A work of several calls says how they ended, and has the results of all."""
    with job(folder):
        n = dist.get_world_size()
        x, y = torch.ones(2), torch.ones(3)
        calls = member()
        calls.begin_together()
        calls.allreduce([x], SUM, None, True)
        calls.allreduce([y], SUM, None, True)
        work = calls.end_together()
        work.wait(timedelta(seconds=20))
        assert work.is_success()
        assert [one.tolist() for one in work.result()] == [[n] * 2, [n] * 3]
        dist.barrier()
        if dist.get_rank() == 1:
            return
        calls.begin_together()
        calls.allreduce([x], SUM, None, True)
        work = calls.end_together()
        with pytest.raises(hpcomm.PeerFailed):
            work.wait()
        assert not work.is_success()
        with pytest.raises(hpcomm.PeerFailed):
            work.result()


def cut(folder: str) -> None:
    """A call that raises ends its coalesced block: later calls are as they were before it."""
    with job(folder):
        n = dist.get_world_size()
        device = torch.device("cpu")
        wrong = [1] * n

        def block() -> None:
            with dist.distributed_c10d._coalescing_manager(device=device, async_ops=True):
                dist.broadcast(torch.ones(1), 0, async_op=True)
                dist.all_to_all_single(torch.ones(5), torch.ones(5), wrong, wrong)

        with pytest.raises(hpcomm.InvalidArgument, match="split sizes"):
            block()
        assert member().together is None
        with dist.distributed_c10d._coalescing_manager(device=device, async_ops=True) as both:
            x = torch.ones(1)
            dist.broadcast(x, 0, async_op=True)
            dist.all_to_all_single(torch.ones(n), torch.ones(n), wrong, wrong, async_op=True)
        both.wait()
        dist.all_reduce(x)
        assert x.item() == n


@pytest.mark.parametrize(
    ("n", "body"),
    [
        (3, copied),
        (2, late),
        (2, busy),
        (2, callbacks),
        (2, shared),
        (2, unhurried),
        (2, joined),
        (2, behind),
        (2, cut),
    ],
)
def test_works(n: int, body: Any, tmp_path: Path) -> None:
    run(n, body, tmp_path)
