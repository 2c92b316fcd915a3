"""The backend "hpcomm" of torch.distributed: every call has the results of Gloo; works and futures; DDP, FSDP2, object
and functional collectives, meshes; errors name ranks; groups leave nothing."""

import gc
import itertools
import math
import os
import signal
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from backend_jobs import HELD, NEEDED, dies, has_ended, job, run  # noqa: E402
from torch import nn  # noqa: E402

import hpcomm  # noqa: E402
import hpcomm.torch  # noqa: E402 - makes the backend
from hpcomm import _core  # noqa: E402

Tensor: Any = torch.Tensor
dist = torch.distributed
ReduceOp = dist.ReduceOp
pytestmark = [
    pytest.mark.xdist_group("group torch backend"),
    NEEDED,
]

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
WHOLES = [torch.int8, torch.uint8, torch.int32, torch.int64]
NOT_OF_GLOO = [torch.int16, torch.uint16, torch.uint32, torch.uint64, torch.bool, torch.complex64, torch.complex128]
SIZES = (0, 1, 7, 3000)


def values(shape: Any, dtype: Any, rank: int) -> Tensor:
    """Small numbers, whose sums and products all dtypes hold without rounding."""
    count = shape if isinstance(shape, int) else math.prod(shape)
    made = (torch.arange(count) * 7 + 3 * rank) % 3 + 1
    return made.reshape(shape).to(dtype)


def strided(tensor: Tensor) -> Tensor:
    """The same elements with gaps in between."""
    wide = torch.zeros((*tensor.shape, 2), dtype=tensor.dtype)[..., 0]
    return wide.copy_(tensor)


# ---- every call has the results of Gloo ------------------------------------------------------------------------------


def combined(parts: list[Tensor], op: Any) -> Tensor:
    if op in (ReduceOp.SUM, ReduceOp.AVG):
        whole = torch.stack(parts).sum(0, dtype=parts[0].dtype)
        if op == ReduceOp.SUM:
            return whole
        return whole / len(parts) if whole.is_floating_point() else whole.div(len(parts), rounding_mode="trunc")
    kinds = {
        ReduceOp.MIN: torch.minimum,
        ReduceOp.MAX: torch.maximum,
        ReduceOp.PRODUCT: torch.mul,
        ReduceOp.BAND: torch.bitwise_and,
        ReduceOp.BOR: torch.bitwise_or,
        ReduceOp.BXOR: torch.bitwise_xor,
    }
    out = parts[0]
    for part in parts[1:]:
        out = kinds[op](out, part)
    return out


def reductions(folder: str) -> None:
    with job(folder, beside=True) as gloo:
        me, n = dist.get_rank(), dist.get_world_size()
        ops = [ReduceOp.SUM, ReduceOp.MIN, ReduceOp.MAX, ReduceOp.PRODUCT]
        bits = [ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR]
        for dtype, size in itertools.product([*FLOATS, *WHOLES, torch.int16], SIZES):
            is_float = dtype.is_floating_point
            parts = [values((n, size), dtype, rank) for rank in range(n)]
            for op in [*ops, ReduceOp.AVG, *([] if is_float else bits)]:
                expected = combined(parts, op)
                x = parts[me].clone()
                dist.all_reduce(x, op)
                assert torch.equal(x, expected), (dtype, size, op, x, expected)
                if op != ReduceOp.AVG and dtype not in NOT_OF_GLOO and size:
                    y = parts[me].clone()
                    dist.all_reduce(y, op, group=gloo)
                    assert torch.equal(x, y), (dtype, size, op)
                x = strided(parts[me])
                dist.all_reduce(x, op)
                assert torch.equal(x, expected), "a tensor with gaps"
                x = parts[me].clone()
                dist.reduce(x, n - 1, op)
                assert torch.equal(x, expected if me == n - 1 else parts[me])
                out = torch.empty(1, size, dtype=dtype)
                dist.reduce_scatter_tensor(out, parts[me], op)
                assert torch.equal(out[0], expected[me])
                out = strided(torch.zeros(size, dtype=dtype))
                dist.reduce_scatter(out, list(parts[me].clone()), op)
                assert torch.equal(out, expected[me])
        # Gloo takes only some of these
        for dtype in (torch.uint16, torch.uint32, torch.uint64):
            x = torch.tensor([me + 1], dtype=torch.int64).to(dtype)
            dist.all_reduce(x)
            assert x.tolist() == [n * (n + 1) // 2]
        x = torch.tensor([me == 0, False, True])
        dist.all_reduce(x)
        assert x.tolist() == [True, False, True]
        x = torch.tensor([1 + 2j * me], dtype=torch.complex128)
        dist.all_reduce(x)
        assert x.tolist() == [n + 1j * n * (n - 1)]
        x = torch.tensor(float(me))  # a scalar
        dist.all_reduce(x)
        assert x.item() == n * (n - 1) / 2
        for sizes in ((1, 5, 0, 17), (300_000, 200_000)):  # as one call, and one by one
            several = [values(size, torch.float32, me) for size in sizes]
            dist.all_reduce_coalesced(several)
            for size, x in zip(sizes, several, strict=True):
                assert torch.equal(x, combined([values(size, torch.float32, rank) for rank in range(n)], ReduceOp.SUM))
        several = [torch.tensor([-3 - me]), torch.tensor([4 + me, me])]  # AVG rounds integers towards zero
        dist.all_reduce_coalesced(several, ReduceOp.AVG)
        assert [x.tolist() for x in several] == ([[-3], [4, 0]] if n == 2 else [[-4], [5, 1]])


def copies(folder: str) -> None:
    with job(folder, beside=True) as gloo:
        me, n = dist.get_rank(), dist.get_world_size()
        for dtype, size, gaps in itertools.product([*FLOATS, *WHOLES, *NOT_OF_GLOO], SIZES, (False, True)):
            made = strided if gaps else torch.clone
            parts = [values((size, 2), dtype, rank) for rank in range(n)]
            mine = made(parts[me])
            empty = [made(torch.zeros(size, 2, dtype=dtype)) for _ in range(n)]
            for root in (0, n - 1):
                x = mine.clone() if not gaps else strided(mine)
                dist.broadcast(x, root)
                assert torch.equal(x, parts[root]), (dtype, size, gaps)
                outs = [torch.zeros_like(one) for one in empty] if me == root else None
                dist.gather(mine, outs, root)
                assert outs is None or all(map(torch.equal, outs, parts))
                out = made(torch.zeros(size, 2, dtype=dtype))
                dist.scatter(out, [made(part) for part in parts] if me == root else None, root)
                assert torch.equal(out, parts[me])
            dist.all_gather(empty, mine)
            assert all(map(torch.equal, empty, parts)), (dtype, size, gaps)
            whole = torch.zeros(n * size, 2, dtype=dtype)
            dist.all_gather_into_tensor(whole, mine)
            assert torch.equal(whole, torch.cat(parts))
            whole = torch.zeros(n * size, 2, dtype=dtype)
            whole[me * size : (me + 1) * size] = mine
            dist.all_gather_into_tensor(whole, whole[me * size : (me + 1) * size])
            assert torch.equal(whole, torch.cat(parts)), "in place"
            blocks = [values((n * size,), dtype, rank).reshape(n, size) for rank in range(n)]
            out = made(torch.zeros(n, size, dtype=dtype))
            dist.all_to_all_single(out, made(blocks[me]))
            assert torch.equal(out, torch.stack([block[me] for block in blocks]))
            if dtype not in NOT_OF_GLOO and size:
                other = torch.zeros(n, size, dtype=dtype)
                dist.all_to_all_single(other, blocks[me], group=gloo)
                assert torch.equal(out, other)
            outs = [made(torch.zeros(size + rank, dtype=dtype)) for rank in range(n)]
            ins = [made(values(size + me, dtype, me * n + rank)) for rank in range(n)]
            dist.all_to_all(outs, ins)  # uneven
            assert all(torch.equal(out, values(size + rank, dtype, rank * n + me)) for rank, out in enumerate(outs))
        rows = [values((3 * (rank + 1), 2), torch.float32, rank) for rank in range(n)]
        splits = [[3 * (rank + 1) - (n - 1) * rank, *[rank] * (n - 1)] for rank in range(n)]
        sent, received = splits[me], [split[me] for split in splits]
        out = torch.zeros(sum(received), 2)
        dist.all_to_all_single(out, rows[me], received, sent)
        other = torch.zeros(sum(received), 2)
        dist.all_to_all_single(other, rows[me], received, sent, group=gloo)
        assert torch.equal(out, other)
        odd = values(9, torch.float32, me).to(torch.float8_e4m3fn)  # a dtype that hpcomm does not know
        whole = torch.zeros(9 * n).to(torch.float8_e4m3fn)
        dist.all_gather_into_tensor(whole, odd)
        assert whole.float().tolist() == torch.cat([values(9, torch.float32, rank) for rank in range(n)]).tolist()


def messages(folder: str) -> None:
    with job(folder):
        me, n = dist.get_rank(), dist.get_world_size()
        to, source = (me + 1) % n, (me - 1) % n
        for dtype, size, made in itertools.product((*FLOATS, torch.bool, torch.int64), SIZES, (torch.clone, strided)):
            out = made(torch.zeros(size, dtype=dtype))
            works = [dist.isend(made(values(size, dtype, me)), to, tag=4), dist.irecv(out, source, tag=4)]
            for work in works:
                work.wait()
            assert torch.equal(out, values(size, dtype, source)), (dtype, size)
        big = torch.full((200_000,), float(me))  # a send that ends when its receiver has it
        if me % 2 == 0:
            dist.send(big, to)
            dist.recv(big, source)
        else:
            out = torch.empty_like(big)
            dist.recv(out, source)
            dist.send(big, to)
            big = out
        assert big.unique().tolist() == [source]
        if me == 0:
            for _ in range(n - 1):
                dist.irecv(big, tag=8).wait()
            found = []
            for _ in range(n - 1):
                if HELD:  # its work does not tell the sender
                    with pytest.raises(RuntimeError, match="sourceRank"):
                        dist.recv(big, tag=9)
                else:
                    found.append(dist.recv(big, tag=9))
            assert HELD or sorted(found) == list(range(1, n))
        else:
            dist.send(torch.ones(200_000), 0, tag=8)
            dist.send(torch.ones(200_000), 0, tag=9)
        ops = [dist.P2POp(dist.isend, torch.ones(3), to), dist.P2POp(dist.irecv, out := torch.zeros(3), source)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        assert out.tolist() == [1, 1, 1]
        work = dist.irecv(out, source)  # stays open across a collective
        dist.barrier()
        assert not has_ended(work)
        assert work.get_future().done() is False
        dist.barrier()
        dist.send(torch.full((3,), 5.0), to)
        assert [x.tolist() for x in work.get_future().wait()] == [[5, 5, 5]]
        assert has_ended(work)
        objects: list[Any] = [{"rank": me}]
        if me == 0:
            dist.send_object_list(objects, 1)
        elif me == 1:
            dist.recv_object_list(objects, 0)
        assert objects == [{"rank": max(0, me - 1) if me == 1 else me}]


def sparse(folder: str) -> None:
    """Sums of sparse tensors: the dense sums, as a tensor without an index twice."""
    with job(folder, beside=True) as gloo:
        me, n = dist.get_rank(), dist.get_world_size()

        def part(rank: int, dtype: Any, dense: tuple[int, ...] = ()) -> Tensor:
            """A tensor of (4, 3, *dense), with an index twice. Rank 1 has none."""
            count = 0 if rank == 1 else rank + 3
            indices = torch.tensor([[i % 2 * 3 for i in range(count)], [(i + rank) // 2 % 3 for i in range(count)]])
            return torch.sparse_coo_tensor(indices.long(), values((count, *dense), dtype, rank), (4, 3, *dense))

        for dtype, dense in itertools.product([torch.float16, torch.float32, torch.int64], [(), (2, 5)]):
            expected = sum(part(rank, dtype, dense).to_dense() for rank in range(n))
            x, y, z = (part(me, dtype, dense) for _ in range(3))
            dist.all_reduce(x)
            assert x.is_coalesced()
            assert torch.equal(x.to_dense(), expected), (dtype, dense)
            work = dist.all_reduce(y, async_op=True)
            work.wait()
            assert torch.equal(y.to_dense(), expected)
            assert HELD or work.result()[0] is y
            if dtype == torch.float32:
                dist.all_reduce(z, group=gloo)
                assert torch.equal(z.indices(), x.indices())
                assert torch.equal(z.values(), x.values())
                z = part(me, dtype, dense)
                dist.all_reduce(z, ReduceOp.AVG)
                assert torch.equal(z.to_dense(), expected / n)
        from torch.nn.parallel import DistributedDataParallel as Ddp  # noqa: PLC0415

        rows = []
        for group in (None, gloo):
            torch.manual_seed(0)
            model = Ddp(nn.Embedding(9, 4, sparse=True), process_group=group)
            model(torch.tensor([me, 7])).sum().backward()
            rows.append(model.module.weight.grad.to_dense())
        assert torch.equal(*rows)
        with pytest.raises(hpcomm.InvalidArgument, match="differ in shape"):
            dist.all_reduce(torch.ones(5 if me else 4).to_sparse())
        dist.all_reduce(x := torch.ones(4).to_sparse())  # the group goes on
        assert x.to_dense().tolist() == [n] * 4


@pytest.mark.parametrize("body", [reductions, copies, sparse, messages])
@pytest.mark.parametrize("n", [2, 3])
def test_every_call(body: Callable[[str], None], n: int, tmp_path: Path) -> None:
    run(n, body, tmp_path)


# ---- works and futures -----------------------------------------------------------------------------------------------


KNOWS_SYNC = hasattr(dist.AllreduceOptions, "asyncOp")  # torch before 2.8 does not tell a backend which calls are


def helpers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("hpcomm")]


def order(folder: str) -> None:
    """Asynchronous calls go on in their order, in one thread; a synchronous one comes after them, in its own."""
    with job(folder):
        me, n = dist.get_rank(), dist.get_world_size()
        x = torch.ones(1)
        dist.all_reduce(x)
        dist.barrier()
        assert not helpers() or not KNOWS_SYNC
        seen: list[int] = []
        big = torch.ones(2_000_000)
        works: list[Any] = []
        for i in range(4):
            works.append(dist.all_reduce(big, async_op=True))
            works[-1].get_future().add_done_callback(lambda _, i=i: seen.append(i))
        dist.all_reduce(x)  # after them
        assert seen == [0, 1, 2, 3]
        assert all(has_ended(work) and work.is_success() and work.exception() is None for work in works)
        assert helpers() == ["hpcomm-group"]
        assert big[0] == n**4
        assert x.item() == n * n
        assert HELD or works[0].result()[0] is big
        assert works[0].get_future().wait()[0].data_ptr() == big.data_ptr()
        half = works[0].get_future().then(lambda future: future.value()[0] / 2)
        assert half.wait()[0] == n**4 / 2
        nested: list[Any] = []  # a callback may make calls

        def again(future: Any) -> Any:
            y = torch.ones(3)
            dist.all_reduce(y)
            nested.append(y.tolist())
            nested.append(dist.all_reduce(y, async_op=True).get_future().wait()[0].tolist())  # as powerSGD_hook does

        dist.all_reduce(x, async_op=True).get_future().then(again).wait()
        assert nested == [[n] * 3, [n * n] * 3]
        out = torch.zeros(n, 5)
        work = dist.all_gather_into_tensor(out, torch.full((5,), float(me)), async_op=True)
        work.wait(timedelta(seconds=10))
        assert out[:, 0].tolist() == list(range(n))
        with dist.distributed_c10d._coalescing_manager(async_ops=True, device=torch.device("cpu")) as both:
            a, b = torch.ones(3), torch.full((2,), float(me))
            dist.all_reduce(a)
            dist.all_reduce(b)
        both.wait()
        assert (a.tolist(), b.tolist()) == ([n] * 3, [n * (n - 1) / 2] * 2)


def objects(folder: str) -> None:
    with job(folder):
        me, n = dist.get_rank(), dist.get_world_size()
        found: list[Any] = [None] * n
        dist.all_gather_object(found, {"rank": me})
        assert found == [{"rank": rank} for rank in range(n)]
        given: list[Any] = ["a", (me, 2)] if me == 0 else [None, None]
        dist.broadcast_object_list(given)
        assert given == ["a", (0, 2)]
        outs: Any = [None] * n if me == 1 else None
        dist.gather_object("x" * me, outs, dst=1)
        assert outs is None or outs == ["x" * rank for rank in range(n)]
        out: list[Any] = [None]
        dist.scatter_object_list(out, [[rank] for rank in range(n)] if me == 0 else None)
        assert out == [[me]]
        from torch.distributed import _functional_collectives as functional  # noqa: PLC0415

        group = dist.group.WORLD
        assert functional.all_reduce(torch.ones(3), "sum", group).tolist() == [n] * 3
        assert functional.all_reduce(torch.ones(3), "avg", group).tolist() == [1] * 3
        whole = functional.all_gather_tensor(torch.full((2,), float(me)), 0, group)
        assert whole.tolist() == [rank for rank in range(n) for _ in range(2)]
        part = functional.reduce_scatter_tensor(torch.arange(2.0 * n), "sum", 0, group)
        assert part.tolist() == [n * (2.0 * me), n * (2.0 * me + 1)]
        swapped = functional.all_to_all_single(torch.arange(float(n)), None, None, group)
        assert swapped.tolist() == [me] * n
        assert functional.broadcast(torch.full((2,), float(me)), n - 1, group).tolist() == [n - 1] * 2
        sums = functional.all_reduce_coalesced([torch.ones(1), torch.ones(2)], "sum", group)
        assert [one.tolist() for one in sums] == [[n], [n, n]]


def mesh(folder: str) -> None:
    """A mesh of 2 x 2, and new_group: the calls of a part of the ranks."""
    from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415
    from torch.distributed.tensor import Shard, distribute_tensor  # noqa: PLC0415

    with job(folder):
        me = dist.get_rank()
        grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "columns"))
        for name, members in (("rows", [me % 2, me % 2 + 2]), ("columns", [me - me % 2, me - me % 2 + 1])):
            x = torch.tensor([float(me)])
            dist.all_reduce(x, group=grid.get_group(name))
            assert x.item() == sum(members)
        made: Any = distribute_tensor(torch.arange(16.0).reshape(4, 4), grid, [Shard(0), Shard(1)])
        assert (made @ made).full_tensor().tolist() == (
            torch.arange(16.0).reshape(4, 4) @ torch.arange(16.0).reshape(4, 4)
        ).tolist()
        odd = dist.new_group([1, 3])
        if me % 2:
            x = torch.full((3,), float(me))
            dist.broadcast(x, 3, group=odd)
            assert x.tolist() == [3] * 3
            assert dist.get_backend(odd) == "hpcomm"
            dist.destroy_process_group(odd)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)), nn.Linear(64, 3))

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x).relu()
        return x


def trained(wrap: Callable[[Any], Any], steps: int = 3) -> list[Any]:
    """A model's parameters after some steps."""
    torch.manual_seed(0)
    net = Net()
    model = wrap(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    torch.manual_seed(dist.get_rank())
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 64)).square().mean().backward()
        optimizer.step()
    return [getattr(p, "full_tensor", lambda p=p: p)().detach() for p in net.parameters()]


def models(folder: str) -> None:
    """DDP and FSDP2 reach the weights that DDP reaches over Gloo."""
    from torch.distributed.device_mesh import DeviceMesh  # noqa: PLC0415
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415
    from torch.nn.parallel import DistributedDataParallel as Ddp  # noqa: PLC0415

    def sharded(net: Any) -> Any:
        grid = DeviceMesh.from_group(dist.group.WORLD, "cpu")
        for layer in net.layers:
            fully_shard(layer, mesh=grid)
        return fully_shard(net, mesh=grid)

    def hooked(net: Any) -> Any:
        model = Ddp(net, bucket_cap_mb=0.01)
        size = dist.get_world_size()

        def hook(_, bucket):  # type: ignore[no-untyped-def]  # torch reads annotations, and wants its own
            work = dist.all_reduce(bucket.buffer(), async_op=True)
            return work.get_future().then(lambda future: future.value()[0] / size)

        model.register_comm_hook(None, hook)
        return model

    with job(folder, beside=True) as gloo:
        expected = trained(lambda net: Ddp(net, process_group=gloo))
        for wrap in (
            Ddp,
            hooked,
            lambda net: Ddp(net, bucket_cap_mb=0.01, static_graph=True, gradient_as_bucket_view=True),
            sharded,
        ):
            torch.testing.assert_close(trained(wrap), expected)


def checkpoints(folder: str) -> None:
    """Checkpoints of a sharded model, which a thread writes by a group of its own while the other group trains."""
    from torch.distributed import checkpoint as module  # noqa: PLC0415
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415

    checkpoint: Any = module
    with job(folder):
        me, n = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(0)
        model: Any = fully_shard(Net())
        kept = {name: p.full_tensor().clone() for name, p in model.named_parameters()}
        saved = checkpoint.async_save(
            {"model": model.state_dict()}, checkpoint_id=f"{folder}/saved", process_group=dist.new_group()
        )
        for _ in range(20):
            dist.all_reduce(x := torch.ones(1000))
        saved.result()
        assert x.unique().tolist() == [n]
        assert os.path.exists(f"{folder}/saved/__{me}_0.distcp")
        with torch.no_grad():
            for p in model.parameters():
                p.zero_()
        state = {"model": model.state_dict()}
        checkpoint.load(state, checkpoint_id=f"{folder}/saved")
        model.load_state_dict(state["model"])
        for name, p in model.named_parameters():
            assert torch.equal(p.full_tensor(), kept[name])


def ended(folder: str) -> None:
    """Uneven inputs: DDP's join."""
    from torch.nn.parallel import DistributedDataParallel as Ddp  # noqa: PLC0415

    with job(folder):
        for by_all in (True, False):  # divides by all ranks, or by those that still have inputs
            torch.manual_seed(0)
            model: Any = Ddp(Net())
            with model.join(divide_by_initial_world_size=by_all):
                for _ in range(1 + dist.get_rank()):
                    model.zero_grad()
                    model(torch.ones(2, 64)).sum().backward()
            torch.manual_seed(0)
            alone: Any = Net()
            alone(torch.ones(2, 64)).sum().backward()
            for p, q in zip(model.parameters(), alone.parameters(), strict=True):
                assert dist.get_rank() == 0 or torch.allclose(p.grad, q.grad / (2 if by_all else 1))


@pytest.mark.parametrize("body", [order, objects, models, checkpoints, ended])
def test_torch_over_the_backend(body: Callable[[str], None], tmp_path: Path) -> None:
    run(2, body, tmp_path)


def test_a_mesh(tmp_path: Path) -> None:
    run(4, mesh, tmp_path)


# ---- failures --------------------------------------------------------------------------------------------------------


def dead(folder: str) -> list[Any]:
    """The last rank dies; what a wait, a future, DDP's hook, a synchronous call and a recv raise on the others."""
    with job(folder):
        me, n = dist.get_rank(), dist.get_world_size()
        pair = dist.new_group([0, n - 1])
        source = torch.empty(1)
        dies(n - 1)
        told = []
        if me == 0:
            with pytest.raises(hpcomm.PeerFailed, match=f"rank 1 of this group is rank {n - 1} of the job") as raised:
                dist.all_reduce(source, group=pair)
            assert raised.value.ranks == (1,)
        work = dist.irecv(torch.empty(1), n - 1)
        with pytest.raises(hpcomm.PeerFailed) as raised:
            work.wait()
        told.append(raised.value.ranks)
        work = dist.all_reduce(torch.ones(3), async_op=True)
        chained = work.get_future().then(lambda future: future.value())
        with pytest.raises(hpcomm.PeerFailed) as raised:
            work.wait()
        told.append(raised.value.ranks)
        if HELD:
            for ask in (work.get_future().wait, work.get_future().value):
                with pytest.raises(RuntimeError, match=rf"PeerFailed.*rank {n - 1}"):
                    ask()
        else:
            assert work.exception() is raised.value
            assert not work.is_success()
            for ask in (work.get_future().wait, work.get_future().value):
                with pytest.raises(hpcomm.PeerFailed) as raised:
                    ask()
                assert raised.value.ranks == (n - 1,)
        with pytest.raises(RuntimeError, match=rf"PeerFailed.*rank {n - 1}"):
            chained.wait()
        with pytest.raises(hpcomm.HpcommError, match=f"rank {n - 1}"):
            dist.all_reduce(torch.ones(3))
        return told


def dead_in_ddp(folder: str) -> str:
    from torch.nn.parallel import DistributedDataParallel as Ddp  # noqa: PLC0415

    with job(folder):
        model = Ddp(Net())
        dies(1)
        with pytest.raises((RuntimeError, hpcomm.PeerFailed)) as raised:
            model(torch.ones(2, 64)).sum().backward()
        return str(raised.value)


def late(folder: str) -> list[Any]:
    """Rank 1 does not come; the others' Timeouts name it."""
    with job(folder, timeout=20):
        me = dist.get_rank()
        x, told = torch.ones(3), []
        work: Any = None
        if me != 1:
            work = dist.all_reduce(x, async_op=True)
            with pytest.raises(hpcomm.Timeout) as raised:
                work.wait(timedelta(seconds=0.2))
            told.append(raised.value.waiting_for)
            recv = dist.irecv(torch.empty(1), 1)
            with pytest.raises(hpcomm.Timeout) as raised:
                recv.wait(timedelta(seconds=0.2))
            told.append(raised.value.waiting_for)
        store = dist.distributed_c10d._get_default_store()
        store.set(f"late {me}", "")
        if me == 1:
            store.wait(["late 0", "late 2"], timedelta(seconds=20))
            dist.all_reduce(x)
            dist.send(torch.ones(1), 0)
            dist.send(torch.ones(1), 2)
        else:
            work.wait()  # a wait may be made again
            recv.wait()
        assert x.tolist() == [3] * 3
        group = dist.new_group(timeout=timedelta(seconds=0.3))
        if me != 1:
            with pytest.raises(hpcomm.Timeout) as raised:
                group.monitored_barrier(timedelta(seconds=0.2))
            told.append(raised.value.waiting_for)
            with pytest.raises(hpcomm.Timeout) as raised:
                dist.all_reduce(x, group=group)
            told.append(raised.value.waiting_for)
        dist.barrier()
        return told


def closed(folder: str) -> None:
    """destroy_process_group ends a wait of another thread; a closed group says so."""
    with job(folder):
        group = dist.new_group(group_desc="evaluation")
        dist.barrier(group)
        titles = {rank.title for rank in _core.jobs(5.0).ranks if rank.pid == os.getpid()}
        name = group.group_name
        assert f"group {name}" in titles or f"group {name}, evaluation" in titles, titles
        work = None
        if dist.get_rank() == 0:
            work = dist.all_reduce(torch.ones(3), group=group, async_op=True)
            queued = dist.all_reduce(torch.ones(3), group=group, async_op=True)
        dist.barrier()
        dist.destroy_process_group(group)
        with pytest.raises(hpcomm.InvalidArgument, match="is closed"):
            group.allreduce([torch.ones(3)])
        if work is not None:
            for one in (work, queued):
                with pytest.raises(hpcomm.HpcommError):
                    one.wait()
        other = dist.new_group()
        dist.barrier()
        if dist.get_rank() == 0:
            other.abort()
        else:
            with pytest.raises(hpcomm.PeerFailed):
                dist.all_reduce(torch.ones(3), group=other)


def refused(folder: str) -> None:
    """Wrong calls raise one sentence before anything is sent."""
    with job(folder):
        n = dist.get_world_size()
        x = torch.ones(4)
        wrong: list[tuple[str, Callable[[], object]]] = [
            ("op is PREMUL_SUM", lambda: dist.all_reduce(x, dist._make_nccl_premul_sum(2.0))),
            ("AVG takes no torch.bool", lambda: dist.all_reduce(x.bool(), ReduceOp.AVG)),
            ("op must be SUM, or AVG of floats", lambda: dist.all_reduce(x.to_sparse(), ReduceOp.MAX)),
            ("op must be SUM, or AVG of floats", lambda: dist.all_reduce(x.int().to_sparse(), ReduceOp.AVG)),
            ("2 sparse tensors", lambda: dist.group.WORLD.allreduce([x.to_sparse(), x.to_sparse()])),
            ("must be one of float32", lambda: dist.all_reduce(x.to(torch.float8_e5m2))),
            ("input has 4 elements", lambda: dist.reduce_scatter_tensor(torch.ones(1), x)),
            ("output has 4 elements", lambda: dist.all_gather_into_tensor(x, torch.ones(1))),
            ("1 output tensors", lambda: dist.group.WORLD.allgather([[x]], [x])),
            ("split sizes", lambda: dist.all_to_all_single(torch.ones(3), torch.ones(3), [1] * n, [1] * n)),
            ("tag is -1|tag -1", lambda: dist.send(x, (dist.get_rank() + 1) % n, tag=-1)),
            ("root is 9", lambda: dist.group.WORLD.broadcast(x, 9)),
        ]
        if not HELD:  # torch's group refuses the sparse ones itself, and takes the last one, and does nothing
            wrong += [
                ("layout torch.sparse_coo", lambda: dist.broadcast(x.to_sparse(), 0)),
                ("layout torch.sparse_csr", lambda: dist.all_reduce(torch.eye(2).to_sparse_csr())),
                ("a tensor is on meta", lambda: dist.all_reduce(x.to("meta"))),
            ]
        for sentence, call in wrong:
            with pytest.raises((hpcomm.InvalidArgument, ValueError), match=sentence):
                call()
        dist.all_reduce(x)
        assert x.tolist() == [n] * 4


def test_a_dead_rank_is_named(tmp_path: Path) -> None:
    found = run(3, dead, tmp_path, check=False)
    assert found.codes == [0, 0, -signal.SIGKILL], found.err
    assert found.values[:2] == [[[2]] * 2] * 2


def test_a_dead_rank_is_named_by_ddp(tmp_path: Path) -> None:
    found = run(2, dead_in_ddp, tmp_path, check=False)
    assert found.codes == [0, -signal.SIGKILL], found.err
    assert "rank 1" in found.values[0]


def test_a_late_rank_is_named(tmp_path: Path) -> None:
    assert run(3, late, tmp_path).values == [[[1]] * 4, [], [[1]] * 4]


@pytest.mark.parametrize("body", [closed, refused])
def test_ends_and_refusals(body: Callable[[str], None], tmp_path: Path) -> None:
    run(2, body, tmp_path)


# ---- groups ----------------------------------------------------------------------------------------------------------


def kept() -> list[int]:
    gc.collect()
    return [len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))]


def many(folder: str) -> None:
    with job(folder):
        x = torch.ones(2)
        for i in range(100):
            group = dist.new_group()
            dist.all_reduce(x, ReduceOp.MAX, group=group)
            if i % 10 == 0:
                dist.all_reduce(x, ReduceOp.MAX, group=group, async_op=True).wait()
            dist.destroy_process_group(group)
            del group
            if i == 10:
                dist.barrier()
                before = kept()
        dist.barrier()
        until = time.monotonic() + 10  # the other rank's end of a link closes when it likes
        while any(now > then for now, then in zip(kept(), before, strict=True)) and time.monotonic() < until:
            pass
        assert all(now <= then for now, then in zip(kept(), before, strict=True)), (before, kept())
        assert not helpers() or not KNOWS_SYNC
        assert x.tolist() == [1, 1]


def mixed(folder: str) -> None:
    """The CPU's half of a job of two devices; without CUDA the other half is only asked for."""
    with job(folder, name="cpu:hpcomm,cuda:gloo"):
        x = torch.ones(2)
        dist.all_reduce(x)
        assert x.tolist() == [dist.get_world_size()] * 2
        assert type(dist.group.WORLD._get_backend(torch.device("cuda"))).__name__ == "ProcessGroupGloo"
        group = dist.new_group(backend=f"cpu:hpcomm,cuda:{'gloo' if HELD else 'nccl'}")  # torch makes NCCL at once
        dist.all_reduce(x, group=group)
        assert x.tolist() == [dist.get_world_size() ** 2] * 2
    with job(f"{folder}/other", name="cpu:hpcomm"):
        dist.barrier()
        assert dist.get_backend_config() == "cpu:hpcomm"


@pytest.mark.parametrize("body", [many, mixed])
def test_groups(body: Callable[[str], None], tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    run(2, body, tmp_path)
