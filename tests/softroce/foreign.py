"""A peer that shares no line with hpcomm: it reads from a window and writes into it by pyverbs.

/usr/bin/python3 tests/softroce/foreign.py PROGRAM

PROGRAM (foreign.c) brings two ranks of hpcomm up and says where the window is. Debian's python3-pyverbs belongs to
Debian's own Python, which is why this file imports nothing else.
"""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from pyverbs.addr import GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.enums import (
    IBV_ACCESS_LOCAL_WRITE,
    IBV_QPT_RC,
    IBV_SEND_SIGNALED,
    IBV_WC_SUCCESS,
    IBV_WR_RDMA_READ,
    IBV_WR_RDMA_WRITE,
)
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, SendWR

PSN = 0x4321
SECONDS = 30.0  # for one piece of work


def colons(gid: str) -> str:
    return ":".join(gid[i : i + 4] for i in range(0, 32, 4))


def gid_index(device: str, port: int, gid: str) -> int:
    """Where the port keeps an address as one of RoCE v2."""
    folder = Path("/sys/class/infiniband", device, "ports", str(port))
    for entry in sorted((folder / "gid_attrs/types").iterdir()):
        try:
            kind = entry.read_text().strip()
        except OSError:  # an empty place in the table
            continue
        if kind == "RoCE v2" and (folder / "gids" / entry.name).read_text().strip() == colons(gid):
            return int(entry.name)
    raise SystemExit(f"{device} has no RoCE v2 address {colons(gid)}")


class Peer:
    """A queue pair with a buffer, on the same port as the window."""

    def __init__(self, window: dict[str, Any], nbytes: int) -> None:
        self.window = window
        self.context = Context(name=window["device"])
        self.pd = PD(self.context)
        self.cq = CQ(self.context, 16)
        self.buffer = MR(self.pd, nbytes, IBV_ACCESS_LOCAL_WRITE)
        capacity = QPCap(max_send_wr=4, max_recv_wr=1, max_send_sge=1, max_recv_sge=1)
        self.qp = QP(
            self.pd, QPInitAttr(qp_type=IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=capacity), QPAttr(port_num=1)
        )

    def connect(self) -> None:
        window = self.window
        index = gid_index(window["device"], window["port"], window["gid"])
        route = GlobalRoute(dgid=GID(colons(window["gid"])), sgid_index=index)
        attributes = QPAttr(port_num=window["port"])
        attributes.ah_attr = AHAttr(gr=route, is_global=1, port_num=window["port"])
        attributes.path_mtu = window["mtu"]
        attributes.dest_qp_num, attributes.rq_psn, attributes.sq_psn = window["qpn"], window["psn"], PSN
        attributes.max_rd_atomic = attributes.max_dest_rd_atomic = 1
        attributes.timeout, attributes.retry_cnt, attributes.rnr_retry = 14, 7, 7
        self.qp.to_rts(attributes)

    def work(self, opcode: int, remote: int, nbytes: int) -> None:
        """Moves nbytes between the buffer's start and remote, and waits for that."""
        request = SendWR(
            num_sge=1,
            sg=[SGE(self.buffer.buf, nbytes, self.buffer.lkey)],
            opcode=opcode,
            send_flags=IBV_SEND_SIGNALED,
        )
        request.set_wr_rdma(self.window["rkey"], remote)
        self.qp.post_send(request)
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            done, completions = self.cq.poll()
            if done:
                assert completions[0].status == IBV_WC_SUCCESS, f"completion with status {completions[0].status}"
                return
        raise SystemExit(f"no completion within {SECONDS:.0f} s")

    def read(self, remote: int, nbytes: int) -> bytes:
        self.work(IBV_WR_RDMA_READ, remote, nbytes)
        return bytes(self.buffer.read(nbytes, 0))

    def write(self, remote: int, data: bytes) -> None:
        self.buffer.write(data, len(data))
        self.work(IBV_WR_RDMA_WRITE, remote, len(data))


def expect(program: "subprocess.Popen[str]", start: str) -> str:
    assert program.stdout is not None
    for line in program.stdout:
        print(line, end="", flush=True)
        if line.startswith(start):
            return line
    raise SystemExit(f"the ranks ended before they said {start!r}")


def main(path: str) -> None:
    program = subprocess.Popen(
        [path, "verbs-processes"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    assert program.stdin is not None
    window = json.loads(expect(program, "{"))
    half = window["half"]
    peer = Peer(window, half)
    program.stdin.write(f"{peer.qp.qp_num} {PSN} {window['gid']}\n")
    program.stdin.flush()
    expect(program, "connected")
    peer.connect()

    came = peer.read(window["data"] + half, half)
    assert came == bytes((3 * i + 1) & 255 for i in range(half)), "what rank 1 put is not what was read"
    print(f"read {half} bytes of rank 1's", flush=True)
    peer.write(window["data"], bytes((5 * i + 2) & 255 for i in range(half)))
    peer.write(window["signal"], int(window["value"]).to_bytes(8, sys.byteorder))
    expect(program, "seen")
    print(f"hpcomm saw {half} bytes and the signal behind them", flush=True)
    for line in program.stdout or ():
        print(line, end="", flush=True)
    sys.exit(program.wait(SECONDS))


if __name__ == "__main__":
    main(sys.argv[1])
