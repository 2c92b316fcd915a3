"""Works of the backend "hpcomm": what they copy and when, whose memory they keep, how long they wait, and what a
failure leaves."""

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from backend_jobs import job, run  # noqa: E402

import hpcomm.torch  # noqa: E402, F401 - makes the backend

Tensor: Any = torch.Tensor
dist = torch.distributed
pytestmark = [
    pytest.mark.xdist_group("group torch backend"),
    pytest.mark.skipif(tuple(map(int, torch.__version__.split(".")[:2])) < (2, 7), reason="needs torch 2.7"),
]


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


@pytest.mark.parametrize("body", [copied])
def test_works(body: Any, tmp_path: Path) -> None:
    run(3, body, tmp_path)
