"""A cluster on one machine: hosts with their own network, name, processes and shared memory, joined by a switch.

    with Cluster(4, rate="1gbit") as cluster:
        cluster.hosts                                    # ("h1", "h2", "h3", "h4"): names that every host can look up
        cluster.address("h2")                            # "10.77.0.2", on its interface eth0
        cluster.run("h1", ["iperf3", "-c", "h2"])        # subprocess.run there; popen is subprocess.Popen there
        command = [*cluster.mpirun(ranks_per_host=2), sys.executable, "train.py"]
        cluster.run(HEAD, command, timeout=60)           # mpirun runs on the node that has no rank

        cluster.cut("h2")                                # silent: the host's own link stays up; or unplugged=True
        cluster.restore("h2")
        cluster.part("h1", "h2")                         # they reach all but each other, until join()
        cluster.lose("h1", "h2")                         # nothing of h1 reaches h2, until open("h2"); h2 reaches h1
        cluster.split("h3", "h4")                        # two halves of the network, until restore() of each
        cluster.refuse("h2", by="h3")                    # h2 refuses new TCP connections, until admit("h2")
        cluster.pause("h3")                              # SIGSTOP to all of its processes; resume: SIGCONT
        cluster.kill("h3")                               # SIGKILL to all of its processes; the host can be used again

For benchmarks: with the folder tests on sys.path, `from cluster.hosts import HEAD, Cluster, Unavailable`. Unavailable
says why a machine cannot do it. Rates are tbf's at both ends of a link; rate=None leaves them unshaped, and
rates={"h1": "10gbit"} gives single hosts links of other rates. A link passes what its bucket (burst) holds at once: 256
KiB, or 16 KiB where a step sends little. Cluster(4, racks=2, uplink="250mbit") has a switch for each rack, which one
link of that rate joins to the switch of all racks.
mpirun(hosts, ranks_per_host=..., path=...) gives the command line of Open MPI or MPICH, whichever path is; by default
it is the mpirun beside this Python. Ranks are placed host by host.

A host is a process that holds network, UTS, IPC, mount and PID namespaces, and so is the switch (HEAD). They have no
names outside, the machine's own network is not touched, and two clusters do not see each other. All of them end, and
with them every process, link and address, when the pipe from this process closes: also when it is killed. What stays
then is a folder in $TMPDIR, which the next cluster removes. Root is not needed where user namespaces are allowed.
"""

import ipaddress
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

HEAD = "head"
PREFIX = "hpcomm-cluster"
TOOLS = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux", "nsenter": "util-linux", "setpriv": "util-linux"}
LATENCY = "50ms"  # the longest that a shaped link keeps a packet
NAMESPACES = ("--net", "--uts", "--ipc", "--mount", "--pid")
AGENT = Path(__file__).with_name("agent.sh")
LIMIT = 30.0  # seconds for any of the harness's own commands
# PID 1 of a host lives as long as its standard input is open, and leaves no zombies. /sys is this network's.
HOLD = """set -e
mount -t proc proc /proc
mount --rbind /sys/fs/cgroup /mnt
mount -t sysfs sysfs /sys
mount --rbind /mnt /sys/fs/cgroup
mount -t tmpfs tmpfs /dev/shm
mount --bind "$2" /etc/hosts
hostname "$1"
ip link set lo up
[ "$1" != head ] || echo 1 >/proc/sys/net/ipv4/conf/all/arp_ignore
trap '' CHLD
echo up
exec cat >/dev/null
"""


class Unavailable(Exception):
    """This machine cannot make a cluster; the message says why."""


def check_tools() -> None:
    missing = [tool for tool in TOOLS if shutil.which(tool, path=_path()) is None]
    if missing:
        packages = " ".join(sorted({TOOLS[tool] for tool in missing}))
        raise Unavailable(f"no {', no '.join(missing)} here; on Debian: apt-get install -y {packages}")


class Entered(subprocess.Popen[str]):
    """A process of a host, by way of nsenter, which is its parent here and ends as it does."""

    def send_signal(self, number: int) -> None:
        """To the process itself: nsenter would leave it, and its remains, to others."""
        with suppress(Unavailable, ProcessLookupError):
            if self.poll() is None:
                os.kill(_child(self.pid), number)
                return
        super().send_signal(number)


class Cluster:
    """hosts: how many, h1 and on. second: each has an eth1, too, in a network of its own. mtu: of all links.
    family: 4 or 6, the version of IP; mpirun and firewall need 4. racks: how many; each has equally many hosts that
    follow one another. uplink: the rate of each rack's link to the others, by default that of a host. rates: by host,
    where its links have another rate."""

    def __init__(
        self,
        hosts: int = 4,
        *,
        rate: str | None = "1gbit",
        rates: Mapping[str, str | None] | None = None,
        burst: str = "256k",
        racks: int = 1,
        uplink: str | None = None,
        second: bool = False,
        mtu: int = 1500,
        family: int = 4,
    ) -> None:
        if racks < 1 or hosts % racks:
            raise ValueError(f"{hosts} hosts in {racks} racks: each rack has equally many")
        self.hosts = tuple(f"h{i + 1}" for i in range(hosts))
        if unknown := set(rates or ()) - set(self.hosts):
            raise ValueError(f"rates of {', '.join(sorted(unknown))}: the hosts are {', '.join(self.hosts)}")
        self._rates: dict[str, str | None] = {**dict.fromkeys(self.hosts, rate), **(rates or {})}
        self._burst, self._mtu, self._family = burst, mtu, family
        self._racks, self._uplink = racks, uplink or rate
        self._interfaces = ("eth0", "eth1") if second else ("eth0",)
        self._holders: dict[str, subprocess.Popen[str]] = {}
        self._pids: dict[str, int] = {}  # of each host's PID 1, as this process sees it
        self._inner: dict[str, int] = {}  # and as HEAD sees it
        self._chains: dict[str, frozenset[int]] = {}  # what keeps a host up
        self._namespaces: dict[str, str] = {}

    def __enter__(self) -> "Cluster":
        check_tools()
        with ExitStack() as undo:
            undo.callback(self._end)
            self.folder = _folder()
            names = "".join(f"{self.address(host)} {host}\n" for host in (HEAD, *self.hosts))
            (self.folder / "hosts").write_text(f"127.0.0.1 localhost\n{names}")
            self._hold(HEAD)
            for host in self.hosts:
                self._hold(host)
            self._wire()
            undo.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    # ---- who and where ---------------------------------------------------------------------------------------------

    def address(self, host: str, interface: str = "eth0") -> str:
        network, number = 77 + int(interface[-1]), 254 if host == HEAD else self.hosts.index(host) + 1
        return f"10.{network}.0.{number}" if self._family == 4 else f"fd{network}::{number:x}"

    def namespaces(self, host: str) -> Path:
        """The folder of a host's namespaces, for setns."""
        return Path(f"/proc/{self._pids[host]}/ns")

    def rack(self, host: str) -> int:
        """The number of a host's rack, from 0."""
        return self.hosts.index(host) * self._racks // len(self.hosts)

    def run(
        self,
        host: str,
        command: Sequence[str],
        *,
        timeout: float = 60,
        check: bool = True,
        input: str | None = None,
        **options: Any,
    ) -> subprocess.CompletedProcess[str]:
        """subprocess.run on a host, its output captured as text. Ends within the timeout, or raises TimeoutExpired."""
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
        if input is not None:
            options["stdin"] = subprocess.PIPE
        process = self.popen(host, command, **options)
        try:
            out, err = process.communicate(input, timeout)
        except BaseException:
            process.kill()
            process.communicate(timeout=LIMIT)
            raise
        done = subprocess.CompletedProcess(process.args, process.returncode, out, err)
        if check:
            done.check_returncode()
        return done

    def popen(self, host: str, command: Sequence[str], **options: Any) -> "Entered":
        """subprocess.Popen on a host, with text."""
        options = {"stdin": subprocess.DEVNULL, "text": True} | options
        command, options["env"] = self._enter(host, command, options.get("env"), options.pop("cwd", None))
        return Entered(command, **options)

    def mpirun(
        self, hosts: Iterable[str] | None = None, *, ranks_per_host: int = 1, path: str | None = None
    ) -> list[str]:
        """The command that starts ranks on hosts (default: all), to be run on HEAD and followed by the program."""
        chosen = self.hosts if hosts is None else tuple(hosts)
        path = path or shutil.which("mpirun", path=str(Path(sys.executable).parent)) or shutil.which("mpirun")
        if path is None:
            raise Unavailable("this machine has no mpirun")
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=LIMIT, check=False).stdout
        n = ["-n", str(len(chosen) * ranks_per_host)]
        if "Open MPI" not in said:
            launcher = ["-launcher", "ssh", "-launcher-exec", str(AGENT), "-iface", "br0"]
            return [path, *launcher, "-hosts", ",".join(chosen), "-ppn", str(ranks_per_host), *n]
        slots = ",".join(f"{host}:{ranks_per_host}" for host in chosen)
        reach = ["--prtemca", "plm_ssh_agent", str(AGENT), "--mca", "btl", "self,sm,tcp"]
        reach += ["--mca", "btl_tcp_if_include", "eth0", "--mca", "mpi_yield_when_idle", "1"]
        return [path, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", *reach, "-H", slots, *n]

    # ---- what happens to hosts and links ---------------------------------------------------------------------------

    def cut(self, host: str, *, unplugged: bool = False, interface: str = "eth0") -> None:
        """Nothing passes any more. unplugged: the host sees that its link has no carrier; else it sees nothing."""
        port = self._port(host, interface)
        if unplugged:
            self._ip(HEAD, f"link set {port} down")
        else:  # into a bridge that leads nowhere
            self._ip(HEAD, f"link set {port} master void", f"link set {port} type bridge_slave isolated on")

    def restore(self, host: str, interface: str = "eth0") -> None:
        """Ends cut, and part for this host."""
        port = self._port(host, interface)
        self._ip(HEAD, f"link set {port} master {self._bridge(interface, host)} up")
        self.join(host, interface=interface)

    def split(self, *hosts: str, interface: str = "eth0") -> None:
        """These hosts reach each other and no other host, and no other host reaches them, until restore for each of
        them. No other host is cut meanwhile."""
        ports = [self._port(host, interface) for host in hosts]
        self._ip(HEAD, *(f"link set {port} master void" for port in ports))

    def part(self, *hosts: str, interface: str = "eth0") -> None:
        """No two of these hosts can reach each other; each can reach all other hosts. Without racks alone."""
        if self._racks > 1:
            raise ValueError("hosts of several racks cannot be parted: only ports of one switch can")
        self._ip(HEAD, *(f"link set {self._port(host, interface)} type bridge_slave isolated on" for host in hosts))

    def join(self, *hosts: str, interface: str = "eth0") -> None:
        """Ends part for these hosts (default: all)."""
        ports = [self._port(host, interface) for host in hosts or self.hosts]
        self._ip(HEAD, *(f"link set {port} type bridge_slave isolated off" for port in ports))

    def kill(self, host: str) -> None:
        """SIGKILL for every process of the host. Its kernel lives, so that their connections are reset: cut it before
        for a host that falls silent."""
        self._signal(host, signal.SIGKILL, lambda state: state in "ZX")

    def pause(self, host: str) -> None:
        self._signal(host, signal.SIGSTOP, lambda state: state in "TtZX")

    def resume(self, host: str) -> None:
        self._signal(host, signal.SIGCONT, lambda state: state not in "Tt")

    def processes(self, host: str) -> dict[int, str]:
        """The processes of a host but its PID 1, and their command lines; zombies are none."""
        found = {}
        for pid in self._members(host, "pid"):
            with suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if any(words):
                    found[pid] = b" ".join(words).decode(errors="replace").strip()
        return found

    def narrow(self, host: str, mtu: int, interface: str = "eth0") -> None:
        """The switch silently drops what is larger than mtu on its way to the host, which does not know of it."""
        port = self._port(host, interface)
        for other in self.hosts:  # packets that are cut only at the end of the way would pass
            self._ip(other, f"link set {interface} gso_max_segs 1")
        self._ip(HEAD, f"link set {self._bridge(interface, host)} mtu {self._mtu}", f"link set {port} mtu {mtu}")

    def set_mtu(self, host: str, mtu: int, interface: str = "eth0") -> None:
        """Of a host's interface and of its port, as an administrator would."""
        self._ip(host, f"link set {interface} mtu {mtu}")
        self._ip(HEAD, f"link set {self._port(host, interface)} mtu {mtu}")

    def firewall(self, host: str, first: int, last: int, interface: str = "eth0", *, source: str = "") -> None:
        """New TCP connections to these ports of the host are dropped silently, or only those that source makes; those
        that the host makes pass."""
        port = self._port(host, interface)
        self._tc(HEAD, f"qdisc replace dev {port} clsact")
        masks = ipaddress.summarize_address_range(ipaddress.IPv4Address(first), ipaddress.IPv4Address(last))
        for block in masks:  # ports as the low half of addresses
            dport = f"match u16 {int(block.network_address):#x} {int(block.netmask) & 0xFFFF:#x} at 22"
            syn = "match u8 0x02 0x12 at 33"
            syn += f" match ip src {self.address(source, interface)}/32" if source else ""
            self._tc(
                HEAD,
                f"filter add dev {port} egress protocol ip u32 match ip protocol 6 0xff {dport} {syn} "
                "action mirred egress redirect dev sink",
            )

    def lose(self, source: str, target: str, interface: str = "eth0") -> None:
        """Everything that source sends to target is dropped silently; target still reaches source. open ends it."""
        port = self._port(target, interface)
        self._tc(
            HEAD,
            f"qdisc replace dev {port} clsact",
            f"filter add dev {port} egress protocol ip u32 match ip src {self.address(source, interface)}/32 "
            "action mirred egress redirect dev sink",
        )

    def refuse(self, host: str, by: str, interface: str = "eth0") -> None:
        """The host refuses new TCP connections that another one makes to ports at which it listens now ("No route to
        host"). Connections between the two that are there stay. It needs no netfilter: of the rules of routing those
        that come first pass what belongs to a connection."""
        lines = self.run(host, ["cat", "/proc/net/tcp", "/proc/net/tcp6"]).stdout.splitlines()
        sockets = [line.split()[1:4] for line in lines if ":" in line.split()[1]]
        ports = {int(here.rpartition(":")[2], 16) for here, _, state in sockets if state == "0A"}
        word = ipaddress.IPv4Address(self.address(by, interface)).packed[::-1].hex().upper()
        there = [
            [int(end.rpartition(":")[2], 16) for end in (far, here)]
            for here, far, state in sockets
            if state == "01" and far.rpartition(":")[0].endswith(word)
        ]
        calls = f"from {self.address(by, interface)} dev {interface} ipproto tcp"
        self._answer(host, interface, True)
        self._ip(
            host,
            "rule add pref 1000 lookup local",
            *(f"rule add pref 1 {calls} sport {far} dport {here} lookup local" for far, here in there),
            *(f"rule add pref 2 {calls} dport {port} prohibit" for port in sorted(ports)),
            "rule del pref 0",
        )

    def admit(self, host: str, interface: str = "eth0") -> None:
        """Ends refuse."""
        self._answer(host, interface, False)
        self._ip(host, "rule add pref 0 lookup local")
        rules = [line.partition(":")[0] for line in self.run(host, ["ip", "rule"]).stdout.splitlines()]
        self._ip(host, *(f"rule del pref {pref}" for pref in rules if pref in ("1", "2", "1000")))

    def swallow_udp(self, host: str, interface: str = "eth0") -> None:
        """All UDP to the host is dropped silently."""
        port = self._port(host, interface)
        self._tc(
            HEAD,
            f"qdisc replace dev {port} clsact",
            f"filter add dev {port} egress protocol ip u32 match ip protocol 17 0xff "
            "action mirred egress redirect dev sink",
        )

    def translate(self, host: str, inside: str, outside: str) -> None:
        """Puts the host behind a router that translates addresses: its only one on eth0 is inside, which no other host
        reaches, and the others see its calls come from outside. Needs nft."""
        mac = self.run(host, ["cat", "/sys/class/net/eth0/address"]).stdout.strip()
        network = self.address(host).rpartition(".")[0] + ".0/24"
        self._ip(host, "addr flush dev eth0", f"addr add {inside}/32 dev eth0", f"route add {network} dev eth0")
        nat = "add table ip nat; add chain ip nat out { type nat hook postrouting priority 100; }; "
        self.run(host, ["nft", f"{nat}add rule ip nat out oif eth0 snat to {outside}"], timeout=LIMIT)
        for other in self.hosts:
            if other != host:
                self._ip(other, f"neigh replace {outside} lladdr {mac} dev eth0")

    def open(self, host: str, interface: str = "eth0") -> None:
        """Ends firewall, lose and swallow_udp."""
        port = self._port(host, interface)
        self._tc(HEAD, f"qdisc replace dev {port} clsact", f"qdisc del dev {port} clsact")

    def add_private(self, name: str = "docker0", address: str = "172.17.0.1/16") -> None:
        """An interface of the same address on every host, which leads nowhere."""
        for host in self.hosts:
            self._ip(
                host,
                f"link add {name} type bridge",
                f"link add {name}p type veth peer name {name}q",
                f"link set {name}q up",
                f"link set {name}p master {name} up",
                f"addr add {address} dev {name}",
                f"link set {name} up",
            )

    # ---- making and ending -----------------------------------------------------------------------------------------

    def _hold(self, host: str) -> None:
        """Starts PID 1 of a host, in HEAD's namespaces."""
        own_user = ["--user", "--map-root-user"] if host == HEAD and os.geteuid() != 0 else []
        command = ["unshare", *own_user, *NAMESPACES, "--fork", "sh", "-c", HOLD, "sh", host, f"{self.folder}/hosts"]
        above = [] if host == HEAD else self._nsenter(HEAD)
        (self.folder / host).mkdir()
        holder = subprocess.Popen(
            [*above, *command],
            env=_environment(),
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._holders[host] = holder
        assert holder.stdout is not None
        assert holder.stderr is not None
        if holder.stdout.readline() != "up\n":
            raise Unavailable(f"no namespaces here: {holder.stderr.read().strip() or 'unshare failed'}")
        chain = [holder.pid]  # nsenter, unshare, PID 1; HEAD's without nsenter
        for _ in range(1 if host == HEAD else 2):
            chain.append(_child(chain[-1]))
        pid = chain[-1]
        status = Path(f"/proc/{pid}/status").read_text()
        numbers = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[1:]
        self._pids[host], self._inner[host] = pid, int(numbers[-2])
        self._chains[host] = frozenset(chain)
        self._namespaces[host] = os.readlink(f"/proc/{pid}/ns/pid")

    def _wire(self) -> None:
        # Frames that end in the void or in the sink are nobody's, not even HEAD's.
        switch = ["link add sink type bridge", "link add void type bridge forward_delay 0 mcast_snooping 0"]
        switch += ["link set sink addrgenmode none up", "link set void addrgenmode none up"]
        shape = []
        prefix = "24" if self._family == 4 else "64 nodad"
        for interface in self._interfaces:
            bridge = self._bridge(interface)  # its address would change when ports leave
            switch += [
                f"link add {bridge} address 02:00:00:00:00:0{bridge[-1]} mtu {self._mtu} type bridge "
                "forward_delay 0 mcast_snooping 0",
                f"addr add {self.address(HEAD, interface)}/{prefix} dev {bridge}",
                f"link set {bridge} up",
            ]
            for rack in range(1, self._racks + 1) if self._racks > 1 else ():
                below, above = f"rack{rack}.{interface}", f"core{rack}.{interface}"
                switch += [
                    f"link add {bridge}r{rack} mtu {self._mtu} type bridge forward_delay 0 mcast_snooping 0",
                    f"link add {below} mtu {self._mtu} type veth peer name {above} mtu {self._mtu}",
                    f"link set {above} master {bridge}",
                    f"link set {below} master {bridge}r{rack}",
                    *(f"link set {name} addrgenmode none up" for name in (below, above, f"{bridge}r{rack}")),
                ]
                shape += [self._shape(name, self._uplink) for name in (below, above) if self._uplink]
            for host in self.hosts:
                port, inner = self._port(host, interface), self._inner[host]
                switch += [
                    f"link add {port} mtu {self._mtu} type veth peer name {interface} mtu {self._mtu} netns {inner}",
                    f"link set {port} master {self._bridge(interface, host)}",
                    f"link set {port} addrgenmode none up",
                ]
                shape += [self._shape(port, rate)] if (rate := self._rates[host]) else []
        self._ip(HEAD, *switch)
        for host in self.hosts:
            for interface in self._interfaces:
                address = self.address(host, interface)
                self._ip(host, f"addr add {address}/{prefix} dev {interface}", f"link set {interface} up")
                if rate := self._rates[host]:
                    self._tc(host, self._shape(interface, rate))
        if shape:
            self._tc(HEAD, *shape)

    def _end(self) -> None:
        """The kernel kills whatever is in a PID namespace before its PID 1 is gone."""
        for host in reversed(self._holders):
            holder = self._holders[host]
            assert holder.stdin is not None
            holder.stdin.close()
        try:
            for host in reversed(self._holders):
                self._holders[host].wait(LIMIT)
        finally:
            for holder in self._holders.values():
                holder.kill()
                holder.wait()
                for pipe in (holder.stdout, holder.stderr):
                    if pipe is not None:
                        pipe.close()
            self._holders.clear()
            shutil.rmtree(self.folder, ignore_errors=True)

    # ---- entering --------------------------------------------------------------------------------------------------

    def _nsenter(self, host: str) -> list[str]:
        user = ["--user", "--preserve-credentials"] if os.geteuid() != 0 else []
        return ["nsenter", "--target", str(self._pids[host]), *user, *NAMESPACES]

    def _enter(
        self, host: str, command: Sequence[str], env: Mapping[str, str] | None, cwd: str | Path | None
    ) -> tuple[list[str], dict[str, str]]:
        inside = ["setpriv", "--pdeathsig", "KILL", "env", "-C", str(cwd or Path.cwd())]
        whole = _environment(env) | {
            "TMPDIR": str(self.folder / host),
            "CLUSTER_FOLDER": str(self.folder),
            "CLUSTER_HOSTS": " ".join(f"{name}={pid}" for name, pid in self._inner.items() if name != HEAD),
        }
        return [*self._nsenter(host), *inside, *command], whole

    def _ip(self, host: str, *lines: str) -> None:
        self._batch(host, "ip", lines)

    def _tc(self, host: str, *lines: str) -> None:
        self._batch(host, "tc", lines)

    def _batch(self, host: str, tool: str, lines: Iterable[str]) -> None:
        text = "".join(f"{line}\n" for line in lines)
        done = self.run(host, [tool, "-batch", "-"], input=text, check=False, timeout=LIMIT, cwd="/")
        if done.returncode:
            failed = text.splitlines()[_failed_line(done.stderr)]
            raise Unavailable(f"{tool} {failed}: {' '.join(done.stderr.split())}")

    def _port(self, host: str, interface: str) -> str:
        return f"{host}.{interface}"

    def _bridge(self, interface: str, host: str = HEAD) -> str:
        """The switch that a host's interface leads to."""
        rack = "" if host == HEAD or self._racks == 1 else f"r{self.rack(host) + 1}"
        return f"br{interface[-1]}{rack}"

    def _answer(self, host: str, interface: str, on: bool) -> None:
        """Whether the host's kernel says so when it refuses a packet. It does so only where it routes."""
        net = "/proc/sys/net/ipv4"
        limit = 0 if on else 1000
        said = f"echo {on:d} >{net}/conf/{interface}/forwarding; echo {limit} >{net}/icmp_ratelimit"
        self.run(host, ["sh", "-c", said])

    def _shape(self, device: str, rate: str) -> str:
        return f"qdisc add dev {device} root tbf rate {rate} burst {self._burst} latency {LATENCY}"

    def _members(self, host: str, which: str) -> list[int]:
        """The processes in a host's PID namespace ("pid"), or also those that entered it ("pid_for_children")."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if os.readlink(process / "ns" / which) == self._namespaces[host]:
                    found.append(int(process.name))
        return sorted(set(found).difference(*self._chains.values()))

    def _signal(self, host: str, number: int, until: Callable[[str], bool]) -> None:
        """Until every process is in such a state: one that forks meanwhile, or enters, is told in the next round."""
        end = time.monotonic() + LIMIT
        while time.monotonic() < end:
            # Whoever has entered stops when its child does, so it goes on after its child.
            inside = self._members(host, "pid")
            entered = [pid for pid in self._members(host, "pid_for_children") if pid not in inside]
            others = [pid for pid in inside if not until(_state(pid))]
            others = others or [pid for pid in entered if not until(_state(pid))]
            if not others:
                return
            for pid in others:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
        raise TimeoutError(f"processes of {host} live on after {signal.Signals(number).name}")


def _path() -> str:
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def _environment(env: Mapping[str, str] | None = None) -> dict[str, str]:
    whole = dict(os.environ if env is None else env)
    beside_python = str(Path(sys.executable).parent)  # as if the venv were activated
    whole["PATH"] = f"{beside_python}:{whole.get('PATH', '')}:/usr/sbin:/sbin"
    return whole


def _state(pid: int) -> str:
    """One letter, as proc(5) has it; X when there is none."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return "X"


def _child(parent: int) -> int:
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == parent:
                return int(stat.parent.name)
    raise Unavailable(f"process {parent} has no child")


def _failed_line(said: str) -> int:
    """Of "Command failed -:3"."""
    number = said.rpartition("-:")[2].split()
    return int(number[0]) - 1 if number and number[0].isdigit() else 0


def sweep() -> None:
    """Removes the folders of dead processes."""
    for left in Path(tempfile.gettempdir()).glob(f"{PREFIX}-*-*"):
        owner = left.name.split("-")[-2]
        if not Path("/proc", owner).exists():
            shutil.rmtree(left, ignore_errors=True)


def _folder() -> Path:
    """For sockets and temporary files of the hosts."""
    sweep()
    return Path(tempfile.mkdtemp(prefix=f"{PREFIX}-{os.getpid()}-"))
