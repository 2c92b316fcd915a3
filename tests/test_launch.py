"""Which ranks there are: what launchers say, communicators of every kind, and ranks that disagree."""

import importlib
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import mpi
import pytest
from conftest import thread_worlds
from told import logs

import hpcomm.dask
from hpcomm import _core, launch

# ---- the environment -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "launcher", "size"),
    [
        ({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "1", "PMIX_RANK": "1"}, "Open MPI's mpirun", 4),
        ({"PMI_SIZE": "3", "PMI_RANK": "2"}, "mpiexec", 3),
        ({"PMI_SIZE": "3", "PMI_RANK": "2", "SLURM_NTASKS": "3"}, "srun", 3),
        ({"PMIX_RANK": "0"}, "a PMIx launcher", None),
        ({"PMIX_RANK": "0", "SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "2"}, "srun", 2),
    ],
)
def test_launchers(environ: dict[str, str], launcher: str, size: int | None) -> None:
    assert launch.launched(environ) == launch.Launch(launcher, size)


@pytest.mark.parametrize(
    ("told", "threads"),
    [("3", 3), (" 4,2", 4), ("65536", 65536), ("", 1), ("0", 1), ("-2", 1), ("many", 1), ("65537", 1), ("2.5", 1)],
)
def test_threads_that_this_process_computes_with(told: str, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", told)
    assert launch.threads() == threads
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))  # one that is only being imported
    assert launch.threads() == threads
    monkeypatch.setattr(sys.modules["torch"], "get_num_threads", lambda: 7, raising=False)
    assert launch.threads() == 7


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"SLURM_NTASKS": "8", "SLURM_JOB_ID": "1"},  # a shell inside an allocation
        {"RANK": "0", "WORLD_SIZE": "1"},
    ],
)
def test_no_launcher(environ: dict[str, str]) -> None:
    assert launch.launched(environ) is None


TORCHRUN = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "node1", "MASTER_PORT": "29500"}
SRUN = {
    "SLURM_JOB_ID": "12001",
    "SLURM_STEP_ID": "2",
    "SLURM_PROCID": "3",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NODELIST": "node[07-08]",
}
TRAINER = {
    "PET_NNODES": "4",
    "PET_NODE_RANK": "1",
    "PET_NPROC_PER_NODE": "1",
    "PET_MASTER_ADDR": "train-node-0-0.train",
    "PET_MASTER_PORT": "29500",
}


@pytest.mark.parametrize(
    ("environ", "port", "expected"),
    [
        (TORCHRUN, 0, launch.Meeting(1, 4, "node1", 29500)),
        (TORCHRUN, 7, launch.Meeting(1, 4, "node1", 7)),
        ({**TORCHRUN, "LOCAL_WORLD_SIZE": "4"}, 0, launch.Meeting(1, 4, "127.0.0.1", 29500)),
        ({**TORCHRUN, "LOCAL_WORLD_SIZE": "2"}, 0, launch.Meeting(1, 4, "node1", 29500)),
        ({**TORCHRUN, "TORCHELASTIC_USE_AGENT_STORE": "True"}, 0, launch.Meeting(1, 4, "node1", 29501)),
        (
            {**TORCHRUN, "TORCHELASTIC_USE_AGENT_STORE": "True", "MASTER_PORT": "36001"},
            0,
            launch.Meeting(1, 4, "node1", 20001),
        ),
        ({**TORCHRUN, "TORCHELASTIC_USE_AGENT_STORE": "False"}, 0, launch.Meeting(1, 4, "node1", 29500)),
        ({**TORCHRUN, "TORCHELASTIC_USE_AGENT_STORE": "True"}, 7, launch.Meeting(1, 4, "node1", 7)),
        ({**TORCHRUN, **SRUN}, 0, launch.Meeting(1, 4, "node1", 29500)),  # torchrun inside a step
        (SRUN, 0, launch.Meeting(3, 4, "node07", 20063)),
        ({**SRUN, "SLURM_JOB_ID": "1"}, 9, launch.Meeting(3, 4, "node07", 9)),
        ({**SRUN, "SLURM_STEP_NUM_NODES": "1"}, 0, launch.Meeting(3, 4, "127.0.0.1", 20063)),
        ({**SRUN, "MASTER_ADDR": "10.0.0.2", "MASTER_PORT": "29500"}, 0, launch.Meeting(3, 4, "10.0.0.2", 29500)),
        ({**SRUN, "WORLD_SIZE": "4"}, 0, launch.Meeting(3, 4, "node07", 20063)),  # a batch script says it too
        ({**SRUN, "SLURM_STEP_NUM_TASKS": "", "SLURM_NTASKS": "5"}, 0, launch.Meeting(3, 5, "node07", 20063)),
        ({**SRUN, "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}, 0, None),
        ({"RANK": "0", "WORLD_SIZE": "1"}, 0, None),
        (TRAINER, 0, launch.Meeting(1, 4, "train-node-0-0.train", 29500)),
        ({**TRAINER, "PET_NPROC_PER_NODE": "auto"}, 7, launch.Meeting(1, 4, "train-node-0-0.train", 7)),
        ({**TRAINER, "PET_NNODES": "1", "PET_NODE_RANK": "0"}, 0, None),
        ({**TRAINER, **TORCHRUN}, 0, launch.Meeting(1, 4, "node1", 29500)),  # torchrun has read them
        ({**TRAINER, **SRUN}, 0, launch.Meeting(3, 4, "node07", 20063)),
        ({**TORCHRUN, "RANK": "", "JOB_COMPLETION_INDEX": "2"}, 0, launch.Meeting(2, 4, "node1", 29500)),
        ({**TORCHRUN, "JOB_COMPLETION_INDEX": "2"}, 0, launch.Meeting(1, 4, "node1", 29500)),
        ({"JOB_COMPLETION_INDEX": "2"}, 0, None),  # tasks of which none knows another
        ({"MASTER_ADDR": "node1", "MASTER_PORT": "29500"}, 0, None),
        ({"SLURM_NTASKS": "8", "SLURM_JOB_ID": "1", "SLURM_PROCID": "0"}, 0, None),  # a batch script
        ({}, 5, None),
    ],
)
def test_where_ranks_meet(environ: dict[str, str], port: int, expected: launch.Meeting | None) -> None:
    assert launch.meeting(environ, port) == expected


@pytest.mark.parametrize(
    ("environ", "without", "told"),
    [
        (TORCHRUN, "RANK", "WORLD_SIZE=4, but RANK is not set"),
        (TORCHRUN, "WORLD_SIZE", "RANK=1, but WORLD_SIZE is not set"),
        (TORCHRUN, "MASTER_ADDR", "RANK=1 and WORLD_SIZE=4, but MASTER_ADDR is not set"),
        (TORCHRUN, "MASTER_PORT", "RANK=1 and WORLD_SIZE=4, but MASTER_PORT is not set"),
        ({**TORCHRUN, "RANK": "4"}, "", "WORLD_SIZE=4, but RANK='4': must be from 0 to 3"),
        ({**TORCHRUN, "RANK": "-1"}, "", "RANK='-1'"),
        ({**TORCHRUN, "RANK": "one"}, "", "RANK='one'"),
        ({**TORCHRUN, "WORLD_SIZE": "0"}, "", "WORLD_SIZE='0'"),
        ({**TORCHRUN, "MASTER_PORT": "70000"}, "", "MASTER_PORT='70000': must be from 1 to 65535"),
        (SRUN, "SLURM_STEP_NUM_TASKS", "SLURM_STEP_ID=2, but SLURM_NTASKS is not set"),
        (SRUN, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS=4, but SLURM_PROCID is not set"),
        (SRUN, "SLURM_STEP_NODELIST", "SLURM_STEP_NODELIST='' names no host: set MASTER_ADDR"),
        (SRUN, "SLURM_JOB_ID", "SLURM_JOB_ID is not set"),
        ({**SRUN, "SLURM_PROCID": "4"}, "", "SLURM_PROCID='4': must be from 0 to 3"),
        ({**SRUN, "WORLD_SIZE": "8"}, "", "WORLD_SIZE=8, but SLURM_STEP_NUM_TASKS=4"),
        ({**TORCHRUN, "JOB_COMPLETION_INDEX": "4"}, "RANK", "RANK='4': must be from 0 to 3"),
        ({**TRAINER, "PET_NPROC_PER_NODE": "2"}, "", "PET_NPROC_PER_NODE=2, but RANK is not set: start several"),
        ({**TRAINER, "PET_NNODES": "1:4"}, "", "by the PET_ variables of this pod, RANK=1, but WORLD_SIZE='1:4'"),
        (TRAINER, "PET_MASTER_ADDR", "MASTER_ADDR is not set"),
    ],
)
def test_senseless_variables_are_named(environ: dict[str, str], without: str, told: str) -> None:
    given = {name: value for name, value in environ.items() if name != without}
    with pytest.raises(hpcomm.ConfigError) as raised:
        launch.meeting(given)
    assert told in str(raised.value)


@pytest.mark.parametrize(
    ("nodes", "host"),
    [
        ("node1", "node1"),
        ("node1,node2", "node1"),
        ("node[1-4]", "node1"),
        ("node[007-009,012],login", "node007"),
        ("node[3,5-9]", "node3"),
        ("login,node[1-4]", "login"),
        ("rack[0-1]node[07-09]", "rack0node07"),
        ("gpu-a[2]-ib.cluster,b1", "gpu-a2-ib.cluster"),
    ],
)
def test_first_host(nodes: str, host: str) -> None:
    assert launch.first_host(nodes) == host


@pytest.mark.parametrize("nodes", ["", ",node1", "node[1-4", "node]1[", "node[]"])
def test_no_first_host(nodes: str) -> None:
    with pytest.raises(hpcomm.ConfigError, match="names no host: set MASTER_ADDR"):
        launch.first_host(nodes)


def test_srun_without_mpi4py_meets_by_its_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    under(monkeypatch, **SRUN, PMIX_RANK="3")
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    group = launch.find()
    assert (group.rank, group.size) == (3, 4)
    under(monkeypatch, PMI_SIZE="8")  # another launcher inside the step, whose ranks are not srun's
    with pytest.raises(hpcomm.NotSupported, match="mpi4py"):
        launch.find()


def test_mpirun_comes_before_torchruns_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    under(monkeypatch, **TORCHRUN, OMPI_COMM_WORLD_SIZE="2")
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(hpcomm.NotSupported, match="mpirun started 2 processes"):
        launch.find()
    under(monkeypatch, TORCHELASTIC_RUN_ID="none")  # torchrun, which mpirun has started
    assert launch.find().size == 4


def under(monkeypatch: pytest.MonkeyPatch, **environ: str) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)


def test_missing_mpi4py_gives_the_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    under(monkeypatch, OMPI_COMM_WORLD_SIZE="2")
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(hpcomm.NotSupported, match='pip install "mpi4py>=4"'):
        hpcomm.init()


def test_launcher_of_one_needs_no_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    under(monkeypatch, OMPI_COMM_WORLD_SIZE="1")
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with hpcomm.init() as context:
        assert context.size == 1


class FakeComm:
    """As much of mpi4py's Comm as is asked before anything is sent."""

    def Get_size(self) -> int:
        return 1

    def Get_rank(self) -> int:
        return 0

    def Is_inter(self) -> bool:
        return True


def fake_mpi(monkeypatch: pytest.MonkeyPatch, **over: Any) -> Any:
    """An mpi4py whose MPI was not started by the launcher: a world of one in every process."""
    module: Any = ModuleType("mpi4py.MPI")
    module.Comm, module.COMM_WORLD, module.COMM_NULL = FakeComm, FakeComm(), None
    module.Is_initialized, module.Is_finalized = lambda: True, lambda: False
    module.Get_library_version = lambda: "Another MPI 1.0\n"
    vars(module).update(over)
    monkeypatch.setitem(sys.modules, "mpi4py", ModuleType("mpi4py"))
    monkeypatch.setattr(sys.modules["mpi4py"], "MPI", module, raising=False)
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", module)
    return module


def test_size_of_launcher_and_mpi_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    under(monkeypatch, OMPI_COMM_WORLD_SIZE="4")
    module = fake_mpi(monkeypatch)
    for comm in (None, module.COMM_WORLD):
        with pytest.raises(hpcomm.ConfigError, match=r"started 4 processes, but mpi4py's world has 1.*Another MPI"):
            hpcomm.init(comm)


def test_mpi_that_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    module = fake_mpi(monkeypatch, Is_finalized=lambda: True)
    with pytest.raises(hpcomm.ConfigError, match=r"before MPI.Finalize"):
        hpcomm.init(module.COMM_WORLD)


def test_intercommunicator(monkeypatch: pytest.MonkeyPatch) -> None:
    module = fake_mpi(monkeypatch)
    with pytest.raises(hpcomm.InvalidArgument, match="intercommunicator"):
        hpcomm.init(module.COMM_WORLD)


def test_rank_that_never_comes_is_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    request = SimpleNamespace(Test=lambda: False)
    comm = FakeComm()
    monkeypatch.setattr(FakeComm, "Is_inter", lambda self: False)
    monkeypatch.setattr(FakeComm, "Iallgather", lambda self, send, receive: request, raising=False)
    fake_mpi(monkeypatch, BYTE="byte")
    with pytest.raises(hpcomm.Timeout, match=r"init: not all 1 ranks came in 0.05 s") as raised:
        hpcomm.init(comm, timeout=0.05)
    assert raised.value.op == "init"
    assert request in launch._abandoned  # MPI may still write to its buffers


def test_unknown_variable_is_warned_about_once(monkeypatch: pytest.MonkeyPatch) -> None:
    under(monkeypatch, HPCOMM_TIMEOUTS="3")
    with logs(r"HPCOMM_TIMEOUTS .* did you mean HPCOMM_TIMEOUT\?") as told:
        hpcomm.init().close()
        hpcomm.init().close()
    assert len(told) == 1


def test_bad_variable_names_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    under(monkeypatch, HPCOMM_TRANSPORT="avian")
    with pytest.raises(hpcomm.ConfigError, match=r"HPCOMM_TRANSPORT='avian'.*shm, verbs, tcp, loop"):
        hpcomm.init()


# ---- processes that another system has started ----


def appointed(port: int, secret: str) -> list[Any]:
    """What a worker of Ray or Dask does, though mpirun has started that system; twice, as workers are used again."""
    seen: list[Any] = []
    for more in range(2):
        launch.appoint(int(os.environ["INDEX"]), 2, "127.0.0.1", port + more, secret.encode())
        with hpcomm.init() as context:
            seen.append([context.rank, [part.decode() for part in context.allgather(b"%d" % context.rank)]])
    seen.append(secrets_open())
    launch.dismiss()
    return [*seen, secrets_open(), launch.find().size]


def secrets_open() -> int:
    return sum("hpcomm-secret" in link_of(fd) for fd in os.listdir("/proc/self/fd"))


def link_of(fd: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return ""


def test_appointed_processes_find_each_other() -> None:
    left = {"OMPI_COMM_WORLD_SIZE": "8", "PMIX_RANK": "5", "LOCAL_WORLD_SIZE": "8"}
    port = launch.free_port("127.0.0.1")
    values = mpi.start([{"INDEX": str(i), **left} for i in range(2)], appointed, port, "known to both, " * 2).values
    assert values == [[[rank, ["0", "1"]], [rank, ["0", "1"]], 1, 0, 1] for rank in range(2)]


def test_missing_ray_gives_the_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "hpcomm.ray", raising=False)
    with pytest.raises(ImportError, match=r"pip install 'ray\[train\]>=2\.51'"):
        importlib.import_module("hpcomm.ray")


@pytest.mark.parametrize(
    ("workers", "told"), [((), "the cluster has no worker"), (("inproc://10.0.0.1/7/3",), "each rank needs its own")]
)
def test_workers_of_dask_that_cannot_be_ranks(workers: tuple[str, ...], told: str) -> None:
    client: Any = SimpleNamespace(nthreads=lambda: dict.fromkeys(workers, 1))
    with pytest.raises(hpcomm.InvalidArgument, match=told):
        hpcomm.dask.run(client, bring_up)


def test_no_port_of_another_host_is_free() -> None:
    with pytest.raises(hpcomm.ConfigError, match=r"no port of 192\.0\.2\.1 can be listened at"):
        launch.free_port("192.0.2.1")


# ---- examples/launch -------------------------------------------------------------------------------------------------

EXAMPLES = Path(__file__).resolve().parents[1] / "examples/launch"


@pytest.mark.parametrize(
    ("example", "needs", "told"),
    [
        ("dask_run.py", ("distributed",), r"\[\[1\.0, 2\.0, .*8\.0\], \[1\.0, 2\.0, .*8\.0\]\]"),
        ("ray_train.py", ("ray", "torch"), r"2 ranks: loss 0\.0"),
    ],
)
def test_example_of_another_system(example: str, needs: tuple[str, ...], told: str) -> None:
    for name in needs:
        pytest.importorskip(name, reason=f"examples/launch/{example} needs {name}")
    done = mpi.command(sys.executable, EXAMPLES / example, env={"PYTHONPATH": str(EXAMPLES.parents[1])})
    assert done.returncode == 0, done.stderr
    assert re.search(told, done.stdout), (done.stdout, done.stderr)


def manifest(name: str, kind: str) -> Any:
    yaml = pytest.importorskip("yaml", reason="pip install pyyaml reads the manifests")
    documents = yaml.safe_load_all((EXAMPLES / "k8s" / name).read_text(encoding="utf-8"))
    return next(document for document in documents if document["kind"] == kind)


def test_pods_of_the_indexed_job_find_each_other() -> None:
    job, service = manifest("job.yaml", "Job"), manifest("job.yaml", "Service")
    name, pod = job["metadata"]["name"], job["spec"]["template"]["spec"]
    env = {one["name"]: one.get("value", "") for one in pod["containers"][0]["env"]}
    assert (job["spec"]["completionMode"], service["spec"]["clusterIP"]) == ("Indexed", "None")
    assert service["spec"]["selector"] == {"job-name": name}
    assert pod["subdomain"] == service["metadata"]["name"]
    size = job["spec"]["completions"]
    assert job["spec"]["parallelism"] == size  # all at once
    for rank in range(size):
        meeting = launch.meeting({**env, "JOB_COMPLETION_INDEX": str(rank)})
        assert meeting == launch.Meeting(rank, size, f"{name}-0.{pod['subdomain']}", 29500)


def test_trainjob_has_one_rank_a_pod() -> None:
    trainer = manifest("trainjob.yaml", "TrainJob")["spec"]["trainer"]
    told = {"PET_NNODES": str(trainer["numNodes"]), "PET_NPROC_PER_NODE": str(trainer["numProcPerNode"])}
    meeting = launch.meeting({**TRAINER, **told, "PET_NODE_RANK": "3"})
    assert meeting == launch.Meeting(3, trainer["numNodes"], TRAINER["PET_MASTER_ADDR"], 29500)


# ---- communicators -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("comm", [3, "world", object()])
def test_what_is_no_communicator(comm: Any) -> None:
    with pytest.raises(hpcomm.InvalidArgument, match=type(comm).__name__):
        hpcomm.init(comm)


@pytest.mark.parametrize(("rank", "size"), [(2, 2), (-1, 2), (0, 0)])
def test_rank_out_of_range(rank: int, size: int) -> None:
    with pytest.raises(hpcomm.InvalidArgument, match=f"rank {rank} of {size}"):
        hpcomm.init(SimpleNamespace(rank=rank, size=size, allgather=lambda data: [data] * size))


def test_allgather_that_loses_a_part() -> None:
    with pytest.raises(hpcomm.InvalidArgument, match="instead of 2"):
        hpcomm.init(SimpleNamespace(rank=0, size=2, allgather=lambda data: [data]))


@pytest.mark.parametrize("meet", [launch.meet, launch.meet_at_once])
def test_versions_that_differ_are_told_on_every_rank(meet: Callable[..., launch.Met]) -> None:
    told: list[str] = []

    class Other(launch._Given):
        """Rank 1 of a job whose rank 0 runs another hpcomm."""

        def exchange(self, data: bytes, timeout: float) -> list[bytes]:
            other = b"9.9.9" + data[len(_core.version()) :]
            return [other[: len(data)], data]

    group = Other(thread_worlds(2)[1])
    with pytest.raises(hpcomm.ConfigError) as raised:
        meet(group, _core.version(), bytes(64), 1.0)
    told.append(str(raised.value))
    assert "9.9.9" in told[0]
    assert f"{_core.version()} (64 B addresses) on rank 1" in told[0]


# ---- real ranks ----------------------------------------------------------------------------------------------------


def bring_up() -> dict[str, Any]:
    from mpi4py import MPI  # noqa: PLC0415

    world = MPI.COMM_WORLD
    half = world.Split(world.rank % 2, -world.rank)  # ranks in another order than the world's
    with hpcomm.init() as context, hpcomm.init(half) as pair, hpcomm.init(MPI.COMM_SELF) as single:
        order = [int(part) for part in pair.allgather(b"%d" % context.rank)]
        return {
            "rank": [context.rank, world.rank],
            "size": [context.size, pair.size, single.size],
            "order": order,
            "pids": [peer.pid for peer in context.peers],
            "transports": [peer.transport for peer in context.peers],
        }


def test_ranks_of_mpi() -> None:
    values = mpi.run(4, bring_up)
    for rank, value in enumerate(values):
        assert value["rank"] == [rank, rank]
        assert value["size"] == [4, 2, 1]
        assert value["order"] == ([2, 0] if rank % 2 == 0 else [3, 1])
        assert value["pids"] == values[0]["pids"]
        assert value["transports"] == ["self" if peer == rank else "shm" for peer in range(4)]
    assert len(set(values[0]["pids"])) == 4


def disagree() -> str:
    """Rank 1 asks for another size, then for another shape."""
    world = mpi.world()
    assert world is not None
    told = []
    with hpcomm.init(world, timeout=20) as context, pytest.raises(hpcomm.ConfigError) as raised:
        context.window((4 + context.rank,), "float64")
    told.append(str(raised.value))
    return told[0]


def test_sizes_that_differ_are_told_on_every_rank() -> None:
    for told in mpi.spawn(2, disagree).values:
        assert "32" in told
        assert "40" in told
