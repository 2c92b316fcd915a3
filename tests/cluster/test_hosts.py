"""The cluster itself: its hosts, its links, and what can befall them."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from .hosts import HEAD, PREFIX, Cluster

# Each says what it saw in one line, within a second or so.
CONNECT = """import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), float(sys.argv[3])).close()
    print("connected")
except OSError as error:
    print(type(error).__name__)
"""
STREAM = """import socket, sys
with socket.create_connection((sys.argv[1], 7000), 5) as connection:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    connection.settimeout(0.5)
    try:
        connection.sendall(bytes(int(sys.argv[2])))
        print("sent")
    except OSError as error:
        print(type(error).__name__)
"""
SERVE = """import socket, sys
listeners = [
    socket.create_server(("", int(port)), family=socket.AF_INET6, dualstack_ipv6=True) for port in sys.argv[1:]
]
print("listening", flush=True)
sys.stdin.read()
"""
SEND = """import socket, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
    sender.setsockopt(socket.IPPROTO_IP, 10, 2)  # IP_MTU_DISCOVER, DO
    sender.sendto(bytes(int(sys.argv[2])), (sys.argv[1], 5000))
"""
CARRY = """import socket, sys, time
if sys.argv[1] == "take":
    with socket.create_server(("", 7000)) as listener:
        print("listening", flush=True)
        connection = listener.accept()[0]
        n, start = 0, time.monotonic()
        while got := len(connection.recv(1 << 20)):
            n += got
        print(n, start, time.monotonic())
else:
    socket.create_connection((sys.argv[1], 7000), 5).sendall(bytes(8 << 20))
"""
RECEIVE = """import socket
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
    receiver.bind(("", 5000))
    receiver.settimeout(10)
    print("ready", flush=True)
    while True:
        n = len(receiver.recv(65536))
        print(n, flush=True)
        if n == 1:
            break
"""


def connect(cluster: Cluster, host: str, to: str, port: int, timeout: float = 5) -> str:
    """What a host sees that connects."""
    return cluster.run(host, [sys.executable, "-c", CONNECT, to, str(port), str(timeout)]).stdout.strip()


def stream(cluster: Cluster, nbytes: int) -> str:
    """What h1 sees that sends so much to h2, which has it in its buffer at most."""
    return cluster.run("h1", [sys.executable, "-c", STREAM, "h2", str(nbytes)]).stdout.strip()


class Serving:
    """A process of a host that listens at ports."""

    def __init__(self, cluster: Cluster, host: str, *ports: int) -> None:
        command = [sys.executable, "-c", SERVE, *map(str, ports)]
        self.process = cluster.popen(host, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __enter__(self) -> "Serving":
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "listening\n"
        return self

    def __exit__(self, *_: object) -> None:
        with self.process:
            self.process.kill()


def test_hosts_have_their_own_name_network_processes_and_shared_memory(cluster: Cluster) -> None:
    seen = [os.readlink("/proc/self/ns/pid")]
    for host in (HEAD, *cluster.hosts):
        # /proc shows a shell its own number only if it lists the processes of the shell's own namespace.
        own = 'readlink /proc/self/ns/pid; echo $$; cut -d " " -f 4 /proc/self/stat'
        script = f"hostname; readlink /proc/self/ns/net; {own}; ls /sys/class/net; ls /dev/shm"
        name, network, processes, pid, parent, *interfaces = cluster.run(host, ["sh", "-c", script]).stdout.split()
        assert name == host
        assert network != os.readlink("/proc/self/ns/net")
        assert pid == parent
        assert processes not in seen
        seen.append(processes)
        assert "lo" in interfaces
        assert ("eth0" in interfaces) == (host != HEAD)


def test_every_host_reaches_every_other_by_name_and_nothing_else(cluster: Cluster) -> None:
    with Serving(cluster, "h3", 7000):
        for host in (HEAD, "h1", "h2", "h4"):
            assert connect(cluster, host, "h3", 7000) == "connected"
            assert connect(cluster, host, "h3", 7001) == "ConnectionRefusedError"
        assert connect(cluster, "h3", "127.0.0.1", 7000) == "connected"
        assert connect(cluster, "h1", "192.0.2.1", 7000) == "OSError"  # no route
        with pytest.raises(OSError, match="Cannot assign"):
            socket.create_server((cluster.address("h3"), 7000))  # the machine itself has no such address


def test_mpirun_starts_ranks_on_every_host(cluster: Cluster) -> None:
    program = "import os, socket; print(socket.gethostname())"
    ended = cluster.run(HEAD, [*cluster.mpirun(ranks_per_host=2), sys.executable, "-c", program])
    assert sorted(ended.stdout.split()) == ["h1", "h1", "h2", "h2", "h3", "h3", "h4", "h4"]
    ended = cluster.run(HEAD, [*cluster.mpirun(["h4", "h2"]), sys.executable, "-c", program])
    assert sorted(ended.stdout.split()) == ["h2", "h4"]


@pytest.mark.parametrize("unplugged", [False, True])
def test_a_cut_link_is_silent_and_comes_back(cluster: Cluster, unplugged: bool) -> None:
    with Serving(cluster, "h2", 7000):
        cluster.cut("h2", unplugged=unplugged)
        cluster.cut("h3")
        assert connect(cluster, "h1", "h2", 7000, 0.3) in ("TimeoutError", "OSError")
        assert connect(cluster, "h3", "h2", 7000, 0.3) in ("TimeoutError", "OSError")
        assert connect(cluster, "h2", HEAD, 7000, 0.3) in ("TimeoutError", "OSError")
        carrier = cluster.run("h2", ["cat", "/sys/class/net/eth0/carrier"]).stdout.strip()
        assert carrier == ("0" if unplugged else "1")
        cluster.restore("h2")
        assert connect(cluster, "h1", "h2", 7000) == "connected"


def test_parted_hosts_reach_all_but_each_other(cluster: Cluster) -> None:
    with Serving(cluster, "h2", 7000), Serving(cluster, "h3", 7000):
        cluster.part("h1", "h2")
        assert connect(cluster, "h1", "h2", 7000, 0.3) in ("TimeoutError", "OSError")
        assert connect(cluster, "h1", "h3", 7000) == "connected"
        assert connect(cluster, "h3", "h2", 7000) == "connected"
        cluster.join()
        assert connect(cluster, "h1", "h2", 7000) == "connected"


def test_kill_pause_and_resume_reach_every_process_of_a_host(cluster: Cluster) -> None:
    script = "sleep 60 & sleep 60 & echo $(hostname) up; wait"
    started = {host: cluster.popen(host, ["sh", "-c", script], stdout=subprocess.PIPE) for host in ("h1", "h2")}
    for host, process in started.items():
        assert process.stdout is not None
        assert process.stdout.readline() == f"{host} up\n"
        assert len(cluster.processes(host)) == 3
    cluster.pause("h1")
    states = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in cluster.processes("h1")]
    assert set(states) == {"T"}
    cluster.resume("h1")
    cluster.kill("h1")
    assert started["h1"].wait(10) != 0
    assert cluster.processes("h1") == {}
    assert started["h2"].poll() is None
    assert cluster.run("h1", ["hostname"]).stdout == "h1\n"
    started["h2"].kill()
    started["h2"].wait(10)
    cluster.kill("h2")
    for process in started.values():
        assert process.stdout is not None
        process.stdout.close()


def test_a_firewall_drops_what_comes_and_passes_what_goes(cluster: Cluster) -> None:
    with Serving(cluster, "h2", 7000, 7999, 8000), Serving(cluster, "h1", 7500):
        cluster.firewall("h2", 7000, 7999)
        assert connect(cluster, "h1", "h2", 7000, 0.3) == "TimeoutError"
        assert connect(cluster, "h1", "h2", 7999, 0.3) == "TimeoutError"
        assert connect(cluster, "h1", "h2", 8000) == "connected"
        assert connect(cluster, "h2", "h1", 7500) == "connected"
        assert connect(cluster, "h2", "h2", 7000) == "connected"
        cluster.open("h2")
        assert connect(cluster, "h1", "h2", 7000) == "connected"
        cluster.firewall("h2", 1024, 65535)  # the ports that its own connections come from, too
        assert connect(cluster, "h2", "h1", 7500) == "connected"
        assert connect(cluster, "h1", "h2", 8000, 0.3) == "TimeoutError"
        cluster.open("h2")


def test_a_narrow_link_swallows_large_packets() -> None:
    with Cluster(2, mtu=9000) as cluster:

        def arrived(*sizes: int) -> list[int]:
            """Which of them do; the last packet has one byte."""
            receiver = cluster.popen("h2", [sys.executable, "-c", RECEIVE], stdout=subprocess.PIPE)
            with receiver:
                assert receiver.stdout is not None
                assert receiver.stdout.readline() == "ready\n"
                for size in (*sizes, 1):
                    cluster.run("h1", [sys.executable, "-c", SEND, "h2", str(size)])
                return [int(line) for line in receiver.stdout]

        assert arrived(8000, 1000) == [8000, 1000, 1]
        with Serving(cluster, "h2", 7000):
            assert stream(cluster, 10**5) == "sent"
        cluster.narrow("h2", 1500)
        assert arrived(8000, 1000) == [1000, 1]
        with Serving(cluster, "h2", 7000):
            assert stream(cluster, 10**5) == "TimeoutError"
        cluster.set_mtu("h2", 9000)
        assert arrived(8000) == [8000, 1]


def test_two_networks_and_an_address_that_all_hosts_have() -> None:
    with Cluster(2, second=True) as cluster:
        cluster.add_private("docker0", "172.17.0.1/16")
        with Serving(cluster, "h2", 7000):
            assert connect(cluster, "h1", cluster.address("h2", "eth1"), 7000) == "connected"
            cluster.cut("h2", interface="eth1")
            assert connect(cluster, "h1", cluster.address("h2", "eth1"), 7000, 0.3) in ("TimeoutError", "OSError")
            assert connect(cluster, "h1", cluster.address("h2"), 7000) == "connected"
            assert connect(cluster, "h1", "172.17.0.1", 7000) == "ConnectionRefusedError"  # that is oneself
        said = cluster.run("h2", ["ip", "-br", "address", "show", "docker0"]).stdout
        assert re.match(r"docker0 +UP +172\.17\.0\.1/16", said)


def test_hosts_with_ipv6_alone() -> None:
    with Cluster(2, family=6) as cluster, Serving(cluster, "h2", 7000):
        assert cluster.address("h2") == "fd77::2"
        assert connect(cluster, "h1", "h2", 7000) == "connected"
        assert " 10." not in cluster.run("h2", ["ip", "-br", "address"]).stdout


def rate(cluster: Cluster, *ways: tuple[str, str]) -> float:
    """Megabits a second that all ways carry together when 8 MiB go from the first host of each to its second."""
    with ExitStack() as ends:
        takers = []
        for _, to in ways:
            taker = cluster.popen(to, [sys.executable, "-c", CARRY, "take"], stdout=subprocess.PIPE)
            takers.append(ends.enter_context(taker))
            assert taker.stdout is not None
            assert taker.stdout.readline() == "listening\n"
        for host, to in ways:
            ends.enter_context(cluster.popen(host, [sys.executable, "-c", CARRY, to]))
        took = [list(map(float, taker.stdout.read().split())) for taker in takers if taker.stdout is not None]
    sent, started, ended = zip(*took, strict=True)  # by one clock: hosts are namespaces
    return float(8e-6 * sum(sent) / (max(ended) - min(started)))


def test_links_have_the_rate_they_are_given() -> None:
    with Cluster(3, rate="100mbit", rates={"h3": "400mbit"}) as cluster:
        assert 50 < rate(cluster, ("h1", "h2")) < 130
        assert rate(cluster, ("h3", "h1"), ("h3", "h2")) > 150
    with pytest.raises(ValueError, match="rates of h4: the hosts are h1, h2, h3"):
        Cluster(3, rates={"h4": "1gbit"})


def test_racks_share_a_link_each() -> None:
    with Cluster(4, rate="400mbit", burst="16k", racks=2, uplink="100mbit") as cluster:
        assert [cluster.rack(host) for host in cluster.hosts] == [0, 0, 1, 1]
        assert rate(cluster, ("h1", "h2")) > 150
        assert 25 < rate(cluster, ("h1", "h3"), ("h2", "h4")) < 130
        cluster.cut("h3")
        assert connect(cluster, "h1", "h3", 7000, 0.3) in ("TimeoutError", "OSError")
        cluster.restore("h3")
        assert connect(cluster, "h1", "h3", 7000) == "ConnectionRefusedError"
        with pytest.raises(ValueError, match="several racks"):
            cluster.part("h1", "h3")


def test_racks_have_equally_many_hosts() -> None:
    with pytest.raises(ValueError, match="3 hosts in 2 racks"):
        Cluster(3, racks=2)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_nothing_outlives_whoever_made_it(tmp_path: Path, how: signal.Signals) -> None:
    program = f"""import sys
sys.path.insert(0, {str(Path(__file__).resolve().parents[1])!r})
from cluster.hosts import Cluster
with Cluster(2) as cluster:
    busy = cluster.popen("h1", ["sh", "-c", "setsid sleep 60 & sleep 60"])
    print(*cluster._pids.values(), flush=True)
    busy.wait()
"""
    env = os.environ | {"TMPDIR": str(tmp_path)}
    maker = subprocess.Popen(
        [sys.executable, "-c", program], env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    with maker:
        assert maker.stdout is not None
        pids = maker.stdout.readline().split()
        namespaces = {os.readlink(f"/proc/{int(pid)}/ns/pid") for pid in pids}
        assert len(namespaces) == 3
        maker.send_signal(how)
    late = time.monotonic() + 10
    while (left := _members(namespaces)) and time.monotonic() < late:
        pass
    assert left == []
    folders = [path.name for path in tmp_path.glob(f"{PREFIX}-*")]
    assert len(folders) == (how != signal.SIGINT)
    again = [sys.executable, "-c", program.replace("busy.wait()", "busy.kill()")]
    subprocess.run(again, env=env, timeout=30, check=True, stdout=subprocess.DEVNULL)
    assert list(tmp_path.glob(f"{PREFIX}-*")) == []


def _members(namespaces: set[str]) -> list[int]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(process / "ns/pid") in namespaces:
                found.append(int(process.name))
        except OSError:
            continue
    return found
