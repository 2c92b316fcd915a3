"""Ranks as in a container, and with less than Docker and Kubernetes give: no /dev/shm but a page, no capability, no
ptrace."""

import os
import shutil
import sys
from pathlib import Path

import mpi
import pytest

BIGGER = 96 << 20  # bytes of the model: more than the /dev/shm of a container by default, which is 64 MiB

RANK = """
import ctypes, os, sys
import numpy as np
import hpcomm

assert ctypes.CDLL(None).prctl(4, 0) == 0                       # not dumpable: no process may trace it
with hpcomm.init() as ctx:
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    assert int(status["CapEff"], 16) == 0 and int(status["NoNewPrivs"]) == 1
    peer = ctx.peers[1 - ctx.rank]
    try:
        open(f"/proc/{peer.pid}/mem", "rb")
        sys.exit("a rank may look into its peer's memory")
    except PermissionError:
        pass
    w = np.full(int(sys.argv[1]) // 4, float(ctx.rank), "float32")
    with hpcomm.parameter_hub(ctx, {"w": w}, rule=hpcomm.SGD(lr=1.0)) as hub:
        hub.gradient("w")[:] = ctx.rank + 1
        hub.push_pull("w")
        assert (hub.params["w"] == -1.5).all()                  # rank 0's zeros, less the mean of 1 and 2
        print("rank", ctx.rank, peer.transport, os.statvfs("/dev/shm").f_blocks)
"""

# Both ranks in one mount namespace, each without capabilities.
START = """
set -e
mount -t tmpfs -o size=4k tmpfs /dev/shm
for rank in 0 1; do RANK=$rank setpriv --no-new-privs --bounding-set=-all --inh-caps=-all "$@" & done
wait
"""


def test_windows_need_no_dev_shm_and_no_ptrace(tmp_path: Path) -> None:
    if shutil.which("unshare") is None or shutil.which("setpriv") is None:
        pytest.skip("no unshare or setpriv here; on Debian: apt-get install -y util-linux")
    (tmp_path / "rank.py").write_text(RANK, encoding="utf-8")
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    words = ["unshare", *user, "--mount", "sh", "-c", START, "sh"]
    words += [sys.executable, str(tmp_path / "rank.py"), str(BIGGER)]
    env = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(mpi.free_port())}
    ended = mpi.command(*words, env=env)
    if "unshare failed" in ended.stderr or "mount:" in ended.stderr:
        pytest.skip(f"this machine gives no mount namespace: {ended.stderr.strip()}")
    assert sorted(ended.stdout.splitlines()) == [f"rank {rank} shm 1" for rank in range(2)], ended.stderr
