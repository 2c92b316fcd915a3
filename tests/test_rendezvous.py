"""Ranks that come up without MPI: processes with the variables that torchrun or srun would set, and torchrun itself."""

import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

import mpi
import numpy as np
import pytest

import hpcomm
from hpcomm import _core, launch
from hpcomm.config import Config

SECRET = b"sixteen or more bytes\n"


def torchrun(n: int, **more: str) -> list[dict[str, str]]:
    """What n processes by hand are told."""
    port = str(mpi.free_port())
    shared = {"WORLD_SIZE": str(n), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, **more}
    return [{"RANK": str(rank), **shared} for rank in range(n)]


def srun(n: int) -> list[dict[str, str]]:
    shared = {
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_TASKS": str(n),
        "SLURM_STEP_NUM_NODES": "1",
        "SLURM_STEP_NODELIST": "node[1-2]",
        "HPCOMM_MASTER_PORT": str(mpi.free_port()),
    }
    return [{"SLURM_PROCID": str(rank), **shared} for rank in range(n)]


def pass_round() -> dict[str, Any]:
    """Each rank writes to the next one, in two contexts that come up one after the other."""
    told = {}
    for number in range(2):
        with hpcomm.init() as context:
            window = context.window(8, np.int64, signals=1)
            mine = np.full(8, context.rank, np.int64)
            window.put_signal((context.rank + 1) % context.size, mine, signal=0, value=1)
            window.wait_signal(0, 1)
            told = {
                "rank": context.rank,
                "size": context.size,
                "got": window.array.tolist(),
                "all": [int(part) for part in context.allgather(b"%d" % context.rank)],
                "transports": sorted({peer.transport for peer in context.peers}),
                "number": number,
            }
    return told


def check_round(values: list[Any], transport: str) -> None:
    n = len(values)
    for rank, value in enumerate(values):
        assert (value["rank"], value["size"], value["number"]) == (rank, n, 1)
        assert value["got"] == [(rank - 1) % n] * 8
        assert value["all"] == list(range(n))
        assert value["transports"] == sorted(["self", transport])


@pytest.mark.parametrize("transport", [name for name in _core.transports() if name not in ("loop", "verbs")])
def test_torchruns_variables(transport: str) -> None:
    check_round(mpi.start(torchrun(4, HPCOMM_TRANSPORT=transport), pass_round).values, transport)


def test_sruns_variables() -> None:
    check_round(mpi.start(srun(3), pass_round).values, "shm")


def test_secret_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(SECRET)
    path.chmod(0o600)
    check_round(mpi.start(torchrun(2, HPCOMM_SECRET_FILE=str(path)), pass_round).values, "shm")


@pytest.mark.some(1)
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch, which brings torchrun, is not installed")
@pytest.mark.parametrize("options", [["--master-port", "{port}"], ["--standalone"]])
def test_torchrun_itself(options: list[str]) -> None:
    code = "import hpcomm; c = hpcomm.init(); print(f'[rank {c.rank} of {c.size}]', flush=True); c.barrier(); c.close()"
    given = [option.format(port=mpi.free_port()) for option in options]
    command = [sys.executable, "-m", "torch.distributed.run", *given, "--nproc-per-node", "2"]
    with subprocess.Popen(
        [*command, "--no-python", sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=100)
        finally:
            os.killpg(process.pid, signal.SIGKILL) if process.poll() is None else None
    assert process.returncode == 0, err
    assert sorted(re.findall(r"\[rank . of .\]", out)) == ["[rank 0 of 2]", "[rank 1 of 2]"]


# ---- ranks that do not come up -------------------------------------------------------------------------------------


def fail(timeout: float = 20) -> dict[str, Any]:
    """How init fails on this rank."""
    start = time.monotonic()
    with pytest.raises(hpcomm.HpcommError) as raised:
        hpcomm.init(timeout=timeout)
    error: Any = raised.value
    return {
        "kind": type(error).__name__,
        "told": str(error),
        "waiting_for": list(getattr(error, "waiting_for", ())),
        "ranks": list(getattr(error, "ranks", ())),
        "seconds": time.monotonic() - start,
    }


def test_rank_that_never_comes_is_named_on_every_rank() -> None:
    ranks = torchrun(4)
    del ranks[2]
    for rank, value in zip((0, 1, 3), mpi.start(ranks, fail, 6).values, strict=True):
        assert value["kind"] == "Timeout"
        assert value["waiting_for"] == [2]
        assert f"rank {rank}: init: rank 2 never came to 127.0.0.1:{ranks[0]['MASTER_PORT']}" in value["told"]
        assert value["seconds"] < 12


def test_rank_0_that_never_comes() -> None:
    ranks = torchrun(3)[1:]
    for value in mpi.start(ranks, fail, 0.5).values:
        assert (value["kind"], value["waiting_for"]) == ("Timeout", [0])
        assert f"cannot reach rank 0 at 127.0.0.1:{ranks[0]['MASTER_PORT']}: Connection refused" in value["told"]


def test_a_name_is_looked_up_until_the_deadline() -> None:
    """By rank 0 too: a pod gets its own name after it has started."""
    start = time.monotonic()
    with pytest.raises(hpcomm.ConfigError, match=r"cannot look up MASTER_ADDR=nowhere\.invalid: .*; set MASTER_ADDR"):
        _core.rendezvous_create(0, 2, "nowhere.invalid", mpi.free_port(), None, 0.2)
    assert time.monotonic() - start >= 0.2


def test_without_a_secret_other_hosts_are_refused() -> None:
    for value in mpi.start(torchrun(2, MASTER_ADDR="192.0.2.1"), fail).values:
        assert value["kind"] == "AuthError"
        assert "192.0.2.1" in value["told"]
        assert "HPCOMM_SECRET_FILE" in value["told"]
        assert value["seconds"] < 10


def test_wrong_secret(tmp_path: Path) -> None:
    ranks = torchrun(2)
    for rank, content in enumerate((SECRET, b"another sixteen bytes")):
        path = tmp_path / f"secret{rank}"
        path.write_bytes(content)
        path.chmod(0o600)
        ranks[rank]["HPCOMM_SECRET_FILE"] = str(path)
    knows, errs = mpi.start(ranks, fail, 10).values
    assert errs["kind"] == "AuthError"
    assert "rank 1 does not know the job's secret" in errs["told"]
    assert (knows["kind"], knows["waiting_for"]) == ("Timeout", [1])
    assert "said it was rank 1, but does not know the job's secret" in knows["told"]


def test_secret_that_others_may_read(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(SECRET)
    path.chmod(0o644)
    for value in mpi.start(torchrun(2, HPCOMM_SECRET_FILE=str(path)), fail).values:
        assert value["kind"] == "ConfigError"
        assert f"chmod 600 {path}" in value["told"]


def test_sizes_that_differ() -> None:
    ranks = torchrun(2)
    ranks[1]["WORLD_SIZE"] = "3"
    for value in mpi.start(ranks, fail).values:
        assert value["kind"] == "ConfigError"
        assert "rank 1 was started with WORLD_SIZE=3, rank 0 with WORLD_SIZE=2" in value["told"]


def of_another_version(by: str) -> dict[str, Any]:
    """How init fails where rank 1 says that it runs another version: by Python's words, or by its address alone."""
    address = _core.context_address
    with pytest.MonkeyPatch.context() as patch:
        if os.environ["RANK"] == "1" and by == "words":
            patch.setattr(_core, "version", lambda: "0.0.9")
        elif os.environ["RANK"] == "1":
            version = (9).to_bytes(4, sys.byteorder)  # behind the magic (csrc/transport/objects.h)
            patch.setattr(_core, "context_address", lambda handle: address(handle)[:4] + version + address(handle)[8:])
        return fail()


@pytest.mark.parametrize("by", ["words", "address"])
def test_two_versions_refuse_each_other(by: str) -> None:
    for rank, value in enumerate(mpi.start(torchrun(2), of_another_version, by).values):
        assert value["kind"] == "ConfigError"
        assert "\n" not in value["told"]
        if by == "words":
            assert f"rank {rank}: init: the ranks run different versions of hpcomm: " in value["told"]
            assert re.search(rf"{re.escape(_core.version())} \(\d+ B addresses\) on rank 0, 0\.0\.9 ", value["told"])
        else:
            assert "rank 1 runs hpcomm 0.0.9 and rank 0 runs 0." in value["told"]
            assert "install the same version on every host" in value["told"]


def test_port_in_use() -> None:
    """The sentence has the port that was tried, and the one that the user knows."""
    port = mpi.free_port()
    agent = {"TORCHELASTIC_USE_AGENT_STORE": "True"}
    with socket.create_server(("127.0.0.1", port)):
        for more, setting, told in (
            ({"MASTER_PORT": str(port)}, 0, r"set MASTER_PORT, or HPCOMM_MASTER_PORT, to a free port on every rank$"),
            (
                {"MASTER_PORT": str(port - 1), **agent},
                0,
                f"port {port} is the port after MASTER_PORT={port - 1}, at which",
            ),
            ({"MASTER_PORT": "1", **agent}, port, f"port {port} is that of HPCOMM_MASTER_PORT"),
        ):
            group = launch._started(torchrun(2, **more)[0], Config(master_port=setting))
            with pytest.raises(hpcomm.ConfigError, match=f"port {port} of 127.0.0.1 is in use by another.*{told}"):
                group.exchange(b"", 10.0)


class Interrupted(Exception):
    """What a signal handler raises."""


def interrupt() -> float:
    """Seconds that it takes to end a wait for a rank that never comes."""

    def on_signal(number: int, frame: FrameType | None) -> None:
        raise Interrupted

    signal.signal(signal.SIGALRM, on_signal)
    sent = threading.Event()
    server = socket.create_server(("127.0.0.1", int(os.environ["MASTER_PORT"])))

    def send() -> None:
        server.accept()  # this rank has called, and waits for an answer
        os.kill(os.getpid(), signal.SIGALRM)
        sent.set()

    threading.Thread(target=send, daemon=True).start()
    start = time.monotonic()
    with pytest.raises(Interrupted):
        hpcomm.init(timeout=50)
    assert sent.wait(10)
    return time.monotonic() - start


def test_signals_end_the_wait() -> None:
    (seconds,) = mpi.start(torchrun(2)[1:], interrupt).values
    assert seconds < 10
