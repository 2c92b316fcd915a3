"""The backend "hpcomm" as a Backend of c10d (torch 2.14): it is found by its name; its groups split and shrink; FSDP2
takes memory from it; calls are coalesced; torch's own ProcessGroup asks it."""

import json
import signal
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import mpi
import pytest

torch = pytest.importorskip("torch")

from backend_jobs import HELD, VERSION, dies, job, run  # noqa: E402
from test_torch_backend import trained  # noqa: E402

import hpcomm  # noqa: E402

dist = torch.distributed
CPU = torch.device("cpu")
pytestmark = [
    pytest.mark.xdist_group("group torch backend"),
    pytest.mark.skipif(not HELD, reason="needs torch 2.14"),
]


def backend(group: Any = None) -> Any:
    return (dist.group.WORLD if group is None else group)._get_backend(CPU)


def summed(group: Any = None) -> int:
    """Returns the sum of 1 over the ranks of a group."""
    x = torch.ones(1)
    dist.all_reduce(x, group=group)
    return int(x.item())


# ---- by name ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "backends"), [("hpcomm", "cpu:hpcomm"), ("cpu:hpcomm,cuda:gloo", "cpu:hpcomm,cuda:gloo")]
)
def test_torch_finds_it_by_name(name: str, backends: str, tmp_path: Path) -> None:
    code = f"""
import sys
import torch.distributed as dist

assert not any(module.startswith("hpcomm") for module in sys.modules)
dist.init_process_group({name!r}, store=dist.HashStore(), rank=0, world_size=1)
dist.barrier()
print(dist.get_backend_config())
dist.destroy_process_group()
"""
    # in another folder, as this one may have the names of an earlier build
    ran = mpi.command(sys.executable, "-W", "ignore", "-c", code, timeout=100, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == backends


# ---- the group -------------------------------------------------------------------------------------------------------


def asked(folder: str) -> None:
    """What torch's group asks the backend for."""
    with job(folder) as group:
        n = dist.get_world_size()
        mine = backend()
        assert isinstance(mine, torch._C._distributed_c10d.Backend)
        assert not isinstance(mine, dist.ProcessGroup)
        assert (mine.rank(), mine.size(), mine.name()) == (dist.get_rank(), n, "hpcomm")
        assert mine.supports_coalescing
        assert mine.options.backend == "hpcomm"
        other = dist.new_group(group_desc="told")
        assert (other.group_name, other.group_desc) == (mine_name := backend(other).options.group_name, "told")
        assert mine_name != group.group_name
        before = group._get_sequence_number_for_group()
        summed()
        dist.barrier()
        assert group._get_sequence_number_for_group() == before + 2
        assert mine.get_error() == torch._C._distributed_c10d.ErrorType.SUCCESS
        dist.monitored_barrier()
        ins = torch.full((2,), float(dist.get_rank()))
        out = torch.zeros(2 * n) if dist.get_rank() == 1 else torch.zeros(0)
        options = dist.GatherOptions()
        options.rootRank = 1
        mine.gather_single(out, ins, options).wait()
        assert out.tolist() == ([rank for rank in range(n) for _ in range(2)] if dist.get_rank() == 1 else [])


def late(folder: str) -> None:
    """A barrier and a timeout that is set later name the rank that does not come; get_error says why calls end."""
    with job(folder):
        me, store = dist.get_rank(), dist.distributed_c10d._get_default_store()
        group = dist.new_group()
        if me == 0:
            with pytest.raises(hpcomm.Timeout) as raised:
                dist.monitored_barrier(group, timedelta(seconds=0.2))
            assert raised.value.waiting_for == (1,)
            group.set_timeout(timedelta(seconds=0.3))
            assert backend(group).options._timeout == timedelta(seconds=0.3)
            work = dist.all_reduce(torch.ones(1), async_op=True)
            with pytest.raises(hpcomm.Timeout):
                work.wait(timedelta(seconds=0.1))
            assert backend().get_error() == torch._C._distributed_c10d.ErrorType.SUCCESS
            with pytest.raises(hpcomm.Timeout) as raised:
                summed(group)
            assert raised.value.waiting_for == (1,)
            assert backend(group).get_error() == torch._C._distributed_c10d.ErrorType.TIMEOUT
        store.set(f"late {me}", "")
        store.wait(["late 0", "late 1"])
        if me == 1:
            summed()
        else:
            work.wait()


def together(folder: str) -> None:
    """Coalesced calls of one kind go as one call, and of several kinds one by one."""
    with job(folder):
        me, n = dist.get_rank(), dist.get_world_size()
        manager: Any = dist.distributed_c10d._coalescing_manager
        outs = [torch.zeros(n, size) for size in (1, 3)]
        with manager(device=CPU):
            for out in outs:
                dist.all_gather_into_tensor(out, torch.full((out.shape[1],), float(me)))
        for out in outs:
            assert out[:, -1].tolist() == list(range(n))
        parts = [torch.zeros(size) for size in (1, 3)]
        with manager(async_ops=True, device=CPU) as works:
            for part in parts:
                dist.reduce_scatter_tensor(part, torch.ones(n * part.numel()))
        works.wait()
        assert [part.tolist() for part in parts] == [[n], [n] * 3]
        x, y = torch.ones(2), torch.full((2,), float(me))
        group: Any = dist.group.WORLD
        group._start_coalescing(CPU)
        group.allreduce([x])
        group.broadcast(y, n - 1)
        group._end_coalescing(CPU).wait()
        assert (x.tolist(), y.tolist()) == ([n] * 2, [n - 1] * 2)


def detail(folder: str) -> None:
    """torch's wrapper that compares the calls of ranks."""
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    with job(folder):
        assert type(backend()).__name__ == "_ProcessGroupWrapper"
        assert summed() == 2
        assert summed(dist.new_group()) == 2


def memory(folder: str) -> None:
    """FSDP2 takes its buffers from the backend."""
    from torch.distributed.device_mesh import DeviceMesh  # noqa: PLC0415
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415
    from torch.nn.parallel import DistributedDataParallel as Ddp  # noqa: PLC0415

    taken: list[int] = []

    def sharded(net: Any) -> Any:
        made: Any = fully_shard(net, mesh=DeviceMesh.from_group(dist.group.WORLD, "cpu"))
        made.set_allocate_memory_from_process_group_for_comm(True)
        return made

    with job(folder, beside=True) as gloo:
        assert backend().supports_tensor_alloc(CPU)
        made = backend().allocate_tensor(7, dtype=torch.float64, device=CPU)
        assert (made.shape, made.dtype) == ((7,), torch.float64)
        assert not backend().supports_tensor_alloc(torch.device("cuda"))
        with pytest.raises(hpcomm.InvalidArgument, match="device is cuda:0"):
            backend().allocate_tensor(7, dtype=torch.float64, device=torch.device("cuda:0"))
        kind = type(backend())
        plain = kind.allocate_tensor

        def noted(self: Any, size: int, **more: Any) -> Any:
            taken.append(size)
            return plain(self, size, **more)

        kind.allocate_tensor = noted
        torch.testing.assert_close(trained(sharded), trained(lambda net: Ddp(net, process_group=gloo)))
        assert taken


@pytest.mark.parametrize("body", [asked, late, together, detail, memory])
def test_what_torch_asks_for(body: Callable[[str], None], tmp_path: Path) -> None:
    run(2, body, tmp_path)


def override(folder: str) -> None:
    """A mesh of Gloo with one dimension over hpcomm."""
    from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415

    with job(folder, name="gloo"):
        grid = init_device_mesh(
            "cpu", (2, 2), mesh_dim_names=("rows", "columns"), backend_override={"rows": "hpcomm", 1: "gloo"}
        )
        assert [dist.get_backend(grid.get_group(name)) for name in ("rows", "columns")] == ["hpcomm", "gloo"]
        assert summed(grid.get_group("rows")) == 2


def split(folder: str) -> None:
    """The groups that torch splits off: in another order of the ranks, and where a rank is in none."""
    with job(folder) as world:
        me = dist.get_rank()
        half = world.split_group([3, 0] if me in (0, 3) else [1, 2], timedelta(seconds=5))
        assert (half.size(), half.rank()) == (2, int(me in (0, 2)))
        assert backend(half).options._timeout == timedelta(seconds=5)
        x = torch.tensor([float(me)])
        half.allreduce([x]).wait()
        assert x.item() == 3
        part = half.split_group([0]) if half.rank() == 0 else half.split_group([1])
        part.allreduce([x]).wait()
        assert x.item() == 3
        if me == 3:
            with pytest.raises(hpcomm.NotSupported, match="rank 3 is in no group"):
                world.split_group([0, 1, 2])
        else:
            rest = world.split_group([0, 1, 2])
            rest.allreduce([x]).wait()
            assert x.item() == 9
        turned = half.split_group([1, 0])
        dies(3)
        if me == 0:
            with pytest.raises(hpcomm.PeerFailed, match="rank 0 of this group is rank 3 of the job"):
                half.allreduce([x]).wait()
            with pytest.raises(hpcomm.PeerFailed, match="rank 1 of this group is rank 3 of the job"):
                turned.allreduce([x]).wait()


def split_group(folder: str) -> None:
    """dist.split_group: the same by torch's call for programs."""
    with job(folder):
        me = dist.get_rank()
        group = dist.split_group(split_ranks=[[3, 0], [1, 2]], timeout=timedelta(seconds=5), group_desc="half")
        assert group.group_desc == "half"
        assert backend(group).options._timeout == timedelta(seconds=5)
        mine = [3, 0] if me in (0, 3) else [1, 2]
        assert [dist.get_global_rank(group, rank) for rank in range(2)] == mine
        out = torch.zeros(2)
        dist.all_gather_into_tensor(out, torch.tensor([float(me)]), group=group)
        assert out.tolist() == mine
        part = dist.split_group(group, [[0], [1]])
        assert summed(part) == 1


def recorded(folder: str) -> None:
    """torch's flight recorder has the calls of every group."""
    with job(folder):
        x = torch.ones(4)
        dist.all_reduce(x)
        dist.all_reduce(x, group=dist.new_group(), async_op=True).wait()
        dist.barrier()
        told = json.loads(torch._C._distributed_c10d._dump_fr_trace_json(True, backend="hpcomm"))
        names = [f"hpcomm:{name}" for name in ("all_reduce", "all_reduce", "barrier")]
        assert [entry["profiling_name"] for entry in told["entries"]][-3:] == names
        assert all(entry["retired"] for entry in told["entries"])


@pytest.mark.skipif(VERSION < (2, 15), reason="torch 2.14 records its own backends alone")
def test_the_flight_recorder(tmp_path: Path) -> None:
    run(2, recorded, tmp_path)


def test_a_dimension_of_a_mesh(tmp_path: Path) -> None:
    run(4, override, tmp_path)


def test_a_split_group(tmp_path: Path) -> None:
    found = run(4, split, tmp_path, check=False)
    assert found.codes == [0, 0, 0, -signal.SIGKILL], found.err


@pytest.mark.skipif(VERSION == (2, 14), reason="torch 2.14 splits groups that are bound to a card alone")
def test_split_group(tmp_path: Path) -> None:
    run(4, split_group, tmp_path)


# ---- fewer ranks -----------------------------------------------------------------------------------------------------


def shrunk(folder: str, flags: int) -> int:
    """Rank 1 dies; the others go on without it, in a part first and then in the job."""
    with job(folder):
        me = dist.get_rank()
        pair = dist.new_group([1, 2, 3])
        dies(1)
        if me > 1:
            pair = dist.shrink_group([0], group=pair, shrink_flags=flags)
            assert (pair.size(), summed(pair)) == (2, 2)
        with pytest.raises(hpcomm.PeerFailed) as raised:
            summed()
        assert raised.value.ranks == (1,)
        assert backend().get_error() == torch._C._distributed_c10d.ErrorType.REMOTE_ERROR
        work = dist.all_reduce(torch.ones(1), async_op=True)
        group = dist.shrink_group([1], shrink_flags=flags)
        with pytest.raises(hpcomm.HpcommError):
            work.wait()
        assert group is dist.group.WORLD
        assert (dist.get_world_size(), dist.get_rank()) == (3, max(0, me - 1))
        total = summed()
        dist.barrier()
        return total


def left(folder: str) -> int:
    """Rank 2 lives on and takes no part; with SHRINK_ABORT a call that goes on ends."""
    with job(folder):
        me, store = dist.get_rank(), dist.distributed_c10d._get_default_store()
        assert summed() == 3
        total = 1
        if me < 2:
            work, begin = dist.all_reduce(torch.ones(1), async_op=True), time.monotonic()
            dist.shrink_group([2], shrink_flags=dist.distributed_c10d.SHRINK_ABORT)
            with pytest.raises(hpcomm.HpcommError):
                work.wait()
            assert time.monotonic() - begin < 15, "it waited for the call"
            total = summed()
        else:
            with pytest.raises(hpcomm.InvalidArgument, match="ranks_to_exclude has this rank, 2"):
                backend().shrink([2])
        store.set(f"left {me}", "")
        store.wait([f"left {rank}" for rank in range(3)])
        return total


@pytest.mark.parametrize("flags", [0, 1])
def test_survivors_go_on(flags: int, tmp_path: Path) -> None:
    found = run(4, shrunk, tmp_path, flags, check=False)
    assert found.codes == [0, -signal.SIGKILL, 0, 0], found.err
    assert [found.values[rank] for rank in (0, 2, 3)] == [3, 3, 3]


def test_a_rank_that_stays_out(tmp_path: Path) -> None:
    assert run(3, left, tmp_path).values == [2, 2, 1]
