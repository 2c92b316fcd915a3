"""Which network a job takes, and who may join it: interfaces by name, addresses that lead nowhere, strangers."""

import base64
import itertools
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hpcomm

from .bodies import steps_of, who
from .hosts import Cluster
from .job import Desk, Job

ETH0 = r"10\.77\.0\.\d+:\d+ by eth0"
ETH1 = r"10\.78\.0\.\d+:\d+ by eth1"


@pytest.fixture(scope="module")
def _two_networks() -> Iterator[Cluster]:
    with Cluster(3, second=True) as three:
        three.add_private("docker0", "172.17.0.1/16")
        three.add_private("lan0", "192.168.1.1/24")
        yield three


@pytest.fixture
def two_networks(_two_networks: Cluster) -> Iterator[Cluster]:
    """Three hosts with two networks, and two addresses that each of them has for itself."""
    yield _two_networks
    for host, interface in itertools.product(_two_networks.hosts, ("eth0", "eth1")):
        _two_networks.restore(host, interface)
        _two_networks.open(host, interface)


def paths(values: list[Any]) -> list[str]:
    """How each rank reaches each other one."""
    return [
        path for rank, value in enumerate(values) for peer, (_, _, path, _) in enumerate(value["peers"]) if peer != rank
    ]


@pytest.mark.parametrize(
    ("names", "path"),
    [("=eth0", ETH0), ("ib,eth1", ETH1), ("^eth0,lan,docker", ETH1)],
)
def test_a_job_takes_the_interface_it_is_told(two_networks: Cluster, names: str, path: str) -> None:
    env = {"HPCOMM_SOCKET_IFNAME": names}
    with Job(two_networks, who, by="desk", env=env) as job:
        assert all(re.fullmatch(path, found) for found in paths(job.values()))


def test_a_wrong_interface_is_an_error_that_names_those_there_are(two_networks: Cluster) -> None:
    env = {"HPCOMM_SOCKET_IFNAME": "ib0,=eth"}
    with Job(two_networks, who, by="desk", env=env) as job:
        for ended in job.end():
            assert ended.error == "ConfigError"
            assert all(name in ended.message for name in ("ib0,=eth", "eth0", "eth1", "lan0"))


def test_addresses_that_every_host_has_lead_nobody_astray(two_networks: Cluster) -> None:
    with Job(two_networks, who, by="desk", env={"HPCOMM_TIMEOUT": "15"}) as job:
        assert all(re.fullmatch(f"{ETH0}|{ETH1}", found) for found in paths(job.values()))


@pytest.mark.some(1)
@pytest.mark.parametrize("dead", ["eth0", "eth1"])
def test_a_network_that_is_dead_is_not_taken(two_networks: Cluster, dead: str) -> None:
    """Nobody is told that there is one: addresses are tried."""
    for host in two_networks.hosts:
        two_networks.cut(host, interface=dead)
    with Job(two_networks, who, by="desk", env={"HPCOMM_TIMEOUT": "20"}) as job:
        assert all(re.fullmatch(ETH1 if dead == "eth0" else ETH0, found) for found in paths(job.values()))


def test_only_addresses_that_lead_nowhere_are_an_error_that_names_both_ranks(two_networks: Cluster) -> None:
    env = {"HPCOMM_SOCKET_IFNAME": "lan0", "HPCOMM_TIMEOUT": "4"}
    with Job(two_networks, who, by="desk", env=env) as job:
        for rank, ended in enumerate(job.end()):
            assert ended.error in ("TransportError", "NotSupported", "Timeout", "PeerFailed"), ended
            assert f"rank {rank}" in ended.message
            assert {*ended.ranks, *ended.waiting_for} - {rank}, ended


def test_hosts_with_ipv6_alone_meet() -> None:
    with Cluster(2, family=6) as two, Job(two, who, ranks_per_host=2, by="desk") as job:
        found = paths(job.values())
    assert sum(path == "" for path in found) == 4
    assert all(re.fullmatch(r"\[fd77::[12]\]:\d+ by eth0", path) for path in found if path)


# ---- strangers -----------------------------------------------------------------------------------------------------


class Recording:
    """The desk as a communicator that remembers what came."""

    def __init__(self, desk: Desk) -> None:
        self.rank, self.size, self._desk = desk.rank, desk.size, desk
        self.parts: list[list[bytes]] = []

    def allgather(self, data: bytes) -> list[bytes]:
        self.parts.append(self._desk.allgather(data))
        return self.parts[-1]


def work_beside_strangers(desk: Desk, steps: int) -> list[str]:
    """Makes steps while a stranger calls; the state of each peer afterwards."""
    world = Recording(desk)
    with hpcomm.init(world) as ctx:
        step = steps_of(ctx, "barrier")
        desk.meet("up", [base64.b64encode(part).decode() for part in world.parts[1]])
        for number in range(steps):
            step(number)
        desk.meet("worked")
        for number in range(steps):
            step(number)
        ctx.lane()  # new connections are still taken
        states = [peer.state for peer in ctx.peers]
        step(steps)
        return states


STRANGER = """import json, os, random, socket, struct, sys
where = [tuple(pair) for pair in json.loads(sys.argv[1])]
HELLO = struct.pack("<IHHBBHiiiQ16s16s", 0x6870636D, 1, 0x0102, 1, 0, 0, 1, 0, 3, 0, bytes(16), bytes(16))
ANSWER = 16 + 32
saw = []
idle = []
for host, port in where:
    for what in (b"", b"GET / HTTP/1.0\\r\\n\\r\\n", random.randbytes(100000), HELLO, HELLO[:20], HELLO + bytes(5000)):
        with socket.create_connection((host, port), 5) as connection:
            connection.settimeout(0.3)
            try:
                connection.sendall(what)
                answer = b"".join(iter(lambda: connection.recv(65536), b""))
                saw.append(len(answer))
            except TimeoutError:
                saw.append("nothing")
            except ConnectionError:
                saw.append("reset")
    for _ in range(100):  # which say nothing and stay
        idle.append(socket.create_connection((host, port), 5))
print(json.dumps(saw))
"""

IMPOSTOR = """import base64, json, sys
import hpcomm
addresses = [base64.b64decode(part) for part in json.loads(sys.stdin.read())]
class World:
    rank, size, asked = 1, 3, 0
    def allgather(self, data):
        self.asked += 1
        return [data] * 3 if self.asked == 1 else [addresses[0], data, addresses[2]]
try:
    hpcomm.init(World(), timeout=3, secret_file=sys.argv[1])
    print("it is in")
except hpcomm.HpcommError as error:
    print(type(error).__name__, error)
"""


def listeners(cluster: Cluster, host: str) -> list[int]:
    """The TCP ports at which a host's processes listen."""
    lines = cluster.run(host, ["cat", "/proc/net/tcp", "/proc/net/tcp6"]).stdout.splitlines()
    fields = [line.split() for line in lines if ":" in line]
    return sorted({int(words[1].rpartition(":")[2], 16) for words in fields if words[3] == "0A"})


def test_strangers_are_refused_and_disturb_nobody(cluster: Cluster, tmp_path: Path) -> None:
    with Job(cluster, work_beside_strangers, 30, hosts=["h1", "h2", "h3"], by="desk") as job:
        addresses = job.reached("up")[0]
        where = [(cluster.address(host), port) for host in job.hosts for port in listeners(cluster, host)]
        assert len(where) == 3
        job.go()
        saw = json.loads(cluster.run("h4", [sys.executable, "-c", STRANGER, json.dumps(where)]).stdout)
        # Nobody gets more than a proof that a rank knows the key, whose nonce is its own.
        assert all(what in ("nothing", "reset", 0) for what in saw), saw
        (tmp_path / "secret").write_text("a guess of thirty-two characters")
        (tmp_path / "secret").chmod(0o600)
        program = [sys.executable, "-c", IMPOSTOR, str(tmp_path / "secret")]
        impostor = cluster.run(
            "h4", program, input=json.dumps(addresses), stderr=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert impostor.stdout.startswith("AuthError "), impostor
        job.reached("worked")
        job.go()
        assert job.values() == [["alive"] * 3] * 3
        told = re.findall(r"hpcomm rank (\d): refused a connection from (\S+):\d+", job.said())
        assert sorted(told) == [(str(rank), cluster.address("h4")) for rank in range(3)]  # once each, however many


def test_ranks_with_different_secrets_do_not_meet(cluster: Cluster, tmp_path: Path) -> None:
    """The files have one name, and other contents on each host."""
    for host in ("h1", "h2"):
        (cluster.folder / host / "secret").write_text(f"the secret of {host}, which is long enough")
        (cluster.folder / host / "secret").chmod(0o600)
    with Job(cluster, with_secret, hosts=["h1", "h2"], by="desk") as job:
        for ended in job.end():
            assert ended.error in ("AuthError", "PeerFailed", "Timeout"), ended  # the calling rank ends first
        assert any(ended.error == "AuthError" and "secret" in ended.message for ended in job.end())


def with_secret(desk: Desk) -> None:
    import os  # noqa: PLC0415

    hpcomm.init(desk.world(), secret_file=f"{os.environ['TMPDIR']}/secret", timeout=5)
