"""hpcomm.torch names its calls in errors: a call that not all ranks make, and unequal numbers of steps."""

import threading
from typing import Any

import pytest
from conftest import leave, run_threads
from torchcases import Data, momentum, net, plain_step

import hpcomm
import hpcomm.torch as ht

DEADLOCK = (
    "ranks 0 and 1 wait for each other: rank 0 is in optimizer.state_dict(), which every rank must call; "
    "rank 1 is in optimizer.step() (a deadlock of the program)"
)


def test_a_call_of_one_rank_alone_is_a_deadlock_that_every_rank_is_told() -> None:
    told: dict[int, hpcomm.Timeout] = {}
    both_told = threading.Barrier(2, timeout=30)

    def body(ctx: hpcomm.Context) -> None:
        model = net()
        optimizer = ht.DistributedOptimizer(momentum(model.parameters()), ctx, model)
        data = Data(ctx, ctx.size)
        plain_step(model, optimizer, data, 0)
        with pytest.raises(hpcomm.Timeout) as raised:
            optimizer.state_dict() if ctx.rank == 0 else plain_step(model, optimizer, data, 1)
        told[ctx.rank] = raised.value
        both_told.wait()  # the first one would be in close when the other looks
        leave(ctx)

    run_threads(2, body, look_after=0.3, timeout=1800)
    for rank, call in enumerate(("optimizer.state_dict()", "optimizer.step()")):
        assert DEADLOCK in str(told[rank])
        assert told[rank].op == call
        assert [(culprit.rank, culprit.state) for culprit in told[rank].culprits] == [(0, "circle"), (1, "circle")]


@pytest.mark.parametrize(
    ("ends", "overlap"), [("optimizer.close()", False), ("context.close()", False), ("context.close()", True)]
)
def test_fewer_steps_of_another_rank_are_told(ends: str, overlap: bool) -> None:
    told: list[Any] = []

    def body(ctx: hpcomm.Context) -> None:
        model = net()
        optimizer = ht.DistributedOptimizer(momentum(model.parameters()), ctx, model, overlap=overlap)
        data = Data(ctx, 1)
        for step in range(5):
            plain_step(model, optimizer, data, step % 2)
        if ctx.rank == 1:
            optimizer.close() if ends == "optimizer.close()" else None
            leave(ctx)

        def goes_on() -> None:  # with overlap the second step waits for the parameters of the first
            for _ in range(2):
                plain_step(model, optimizer, data, 1)

        with pytest.raises(hpcomm.PeerFailed) as raised:
            goes_on()
        told.append(raised.value)
        leave(ctx)

    run_threads(2, body)
    (error,) = told
    assert (error.ranks, error.left) == ((1,), ())
    assert str(error) == (
        f"rank 0: {error.op}: rank 1 has made fewer steps (5) and has ended, rank 0 is at step 6: use "
        "hpcomm.torch.join for unequal numbers of batches"
    )
