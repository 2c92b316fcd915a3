"""Judges findings: which pairs of hosts can work together, the faults of other pairs, and how to fix them.

A way is one direction between two hosts: the caller connects to the called host.
"""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from . import reach
from .interfaces import VARIABLE, Address
from .reach import Finding

OK, WARN, FAIL = "ok", "warn", "fail"
_SLOW = 4  # a pair is reported as slow if the median rate is more than this many times its own
_LOST = 0.9  # seconds to connect: as many mean a lost packet, as the kernel sends the first packet again after 1 s
_DEFAULT = "^lo,docker,br-"  # the meaning of an unset HPCOMM_SOCKET_IFNAME
_ONE_NETWORK = (
    "give each host an address that all others reach: the host's own network for containers (docker run "
    f"--network=host, hostNetwork: true), or a VPN over all hosts and {VARIABLE} with its interface"
)


@dataclass(frozen=True)
class Host:
    """One host of the job, as its lowest rank describes it."""

    name: str
    ranks: tuple[int, ...]
    asked: str  # its HPCOMM_SOCKET_IFNAME
    addresses: tuple[Address, ...]
    ports: str  # the range of its ephemeral ports, "32768-60999"
    token: str  # the token that it answers callers with, in hex
    wrong: str = ""  # why it cannot take part
    rdma: tuple[str, ...] = ()  # its RDMA ports that verbs can use
    masks: tuple[str, ...] = ()  # addresses from which others saw its calls come, but which it does not have (NAT)

    def holder(self, ip: str) -> Address | None:
        return next((address for address in self.addresses if address.ip == ip), None)

    def used(self) -> list[Address]:
        return [address for address in self.addresses if address.used]


@dataclass(frozen=True)
class Check:
    """The result of one check of this host. If result is "ok", fix is advice that makes the host faster, or ""."""

    name: str
    result: str  # ok, warn or fail
    seen: str
    fix: str = ""


@dataclass(frozen=True)
class Problem:
    said: str
    fix: str = ""
    result: str = WARN  # or FAIL: the hosts cannot work together until it is fixed


@dataclass(frozen=True)
class Pair:
    """The connection between two hosts. seconds to connect, and rate, are the worse direction's, each by its best
    address; 0 if neither direction works."""

    hosts: tuple[int, int]
    result: str
    problems: tuple[Problem, ...]
    seconds: float = 0.0
    rate: float = 0.0
    mtu: int = 0


def judge(hosts: Sequence[Host], findings: Iterable[Finding]) -> list[Pair]:
    """Returns a verdict for every pair of hosts, failed pairs first."""
    ways: dict[tuple[int, int], list[Finding]] = {}
    for finding in findings:
        ways.setdefault((finding.caller, finding.called), []).append(finding)
    pairs = [
        _pair(hosts, (a, b), ways.get((a, b), []), ways.get((b, a), []))
        for a in range(len(hosts))
        for b in range(a + 1, len(hosts))
    ]
    rank = {FAIL: 0, WARN: 1, OK: 2}
    return sorted(pairs, key=lambda pair: (rank[pair.result], pair.hosts))


def notes(hosts: Sequence[Host], pairs: Sequence[Pair]) -> list[Problem]:
    """Returns faults that do not belong to one pair of hosts."""
    found = [_absent(host) for host in hosts if host.wrong and not pairs]
    by_rule: dict[str, list[str]] = {}
    for host in hosts:
        by_rule.setdefault(host.asked, []).append(host.name)
    if len(by_rule) > 1:
        told = "; ".join(
            f"{rule!r} on {', '.join(names)}" if rule else f"not set on {', '.join(names)}"
            for rule, names in by_rule.items()
        )
        found.append(Problem(f"{VARIABLE} differs: {told}", f"give it to all ranks: mpirun -x {VARIABLE}"))
    found += _half(hosts)
    rates = [pair.rate for pair in pairs if pair.rate > 0]
    if len(rates) >= 3:
        slowest = min((pair for pair in pairs if pair.rate > 0), key=lambda pair: pair.rate)
        median = statistics.median(rates)
        if slowest.rate * _SLOW < median:
            a, b = (hosts[i].name for i in slowest.hosts)
            found.append(
                Problem(
                    f"{a} - {b} is the slowest pair: {speed(slowest.rate)}; the median is {speed(median)}",
                    f"look for a slower link or a busy host: ethtool, iperf3 between {a} and {b}",
                )
            )
    return found


def _half(hosts: Sequence[Host]) -> list[Problem]:
    """Returns a problem if only some hosts can use verbs, which needs a port at both ends."""
    lacking = [host.name for host in hosts if not host.rdma and not host.wrong]
    having = [host.name for host in hosts if host.rdma]
    if not having or not lacking:
        return []
    said = f"{', '.join(having)} can use verbs, but {', '.join(lacking)} cannot: between them it is tcp"
    return [Problem(said, f"hpcomm doctor --no-network on {lacking[0]} says why")]


def speed(rate: float) -> str:
    return f"{rate / 1e9:.2f} GB/s" if rate >= 1e9 else f"{rate / 1e6:.3g} MB/s"


# ---- one pair ------------------------------------------------------------------------------------------------------


def _pair(hosts: Sequence[Host], which: tuple[int, int], there: list[Finding], back: list[Finding]) -> Pair:
    a, b = (hosts[i] for i in which)
    absent = [_absent(host) for host in (a, b) if host.wrong]
    if absent:
        return Pair(which, FAIL, tuple(absent))
    ways = [_Way(hosts, a, b, there, back), _Way(hosts, b, a, back, there)]
    problems = [_none_used(host) for host in (a, b) if not host.used()]
    problems += [*ways[0].problems(ways[1].works), *ways[1].problems(ways[0].works)]
    missing = [way for way in ways if way.needed and not way.works]
    problems += [problem for way in missing for problem in way.left_out()]
    problems.sort(key=lambda problem: problem.result != FAIL)
    result = problems[0].result if problems else OK
    best = [way.best() for way in ways if way.works]
    if not best:
        return Pair(which, result, tuple(problems))
    return Pair(
        which,
        result,
        tuple(problems),
        max(finding.seconds for finding in best),
        min(finding.rate for finding in best),
        min((finding.mtu for finding in best if finding.mtu), default=0),
    )


def _absent(host: Host) -> Problem:
    return Problem(f"{host.name} takes no part: {host.wrong}", f"hpcomm doctor on {host.name}", FAIL)


def _none_used(host: Host) -> Problem:
    names = ", ".join(dict.fromkeys(address.interface for address in host.addresses)) or "none"
    return Problem(
        f"{VARIABLE}={host.asked!r} allows no interface of {host.name}, which has {names}",
        f"name one of them in {VARIABLE}, or leave it unset",
        FAIL,
    )


class _Way:
    """The findings of the way from caller to called, at each address of called. back: the findings of the other way.

    needed: whether a job connects in this direction: between two ranks, the higher rank connects.
    """

    def __init__(
        self, hosts: Sequence[Host], caller: Host, called: Host, findings: list[Finding], back: list[Finding]
    ) -> None:
        self._hosts, self._caller, self._called = hosts, caller, called
        self._both = findings + back
        self._used = [finding for finding in findings if finding.used]
        self._others = [finding for finding in findings if not finding.used]
        self.works = any(finding.passes for finding in self._used)
        self.needed = max(caller.ranks) > min(called.ranks)

    def best(self) -> Finding:
        return max((finding for finding in self._used if finding.passes), key=lambda finding: finding.rate)

    def problems(self, back_works: bool) -> list[Problem]:
        found = [self._problem(finding, back_works) for finding in self._used]
        result = FAIL if self.needed and not self.works else WARN
        return [replace(problem, result=result) for problem in found if problem is not None]

    def left_out(self) -> list[Problem]:
        """Returns problems that name addresses which answered, but are not used."""
        return [
            Problem(
                f"{self._called.name} does answer {self._caller.name} at {finding.ip} by {finding.interface}, which "
                + (f"{VARIABLE}={self._called.asked!r} leaves out" if self._called.asked else "is left out by default"),
                f"{VARIABLE}={finding.interface}",
                FAIL,
            )
            for finding in self._others
            if finding.passes
        ]

    def _problem(self, finding: Finding, back_works: bool) -> Problem | None:
        a, b = self._caller.name, self._called.name
        back = f"; {b} can reach {a}" if back_works else ""
        if back and self.needed and not self.works:
            back += ", but of two ranks the higher one calls"
        if finding.passes:
            return self._doubt(finding)
        if finding.outcome == reach.OK:
            return self._stall(finding)
        if self._caller.holder(finding.ip) is not None or finding.by == self._caller.token:
            said = f"{finding.ip} by {finding.interface} of {b} is an address of {a} too: {a} answers there itself"
            return Problem(said, self._without(finding.interface))
        at = _at(finding)
        said = {
            reach.SILENT: f"{a} cannot reach {b} at {at} ({self._silence(finding)})",
            reach.REFUSED: f"{a} is refused at {at} of {b}: a firewall rejects it, or another host has that address",
            reach.NO_ROUTE: f"{a} cannot reach {b} at {at} ({finding.why}: no route, or a firewall says so)",
            reach.MUTE: f"{a} connects to {at} of {b}, but nothing answers: a proxy or a firewall in between",
            reach.WRONG: f"{self._who(finding)} answers {a} at {at} of {b}",
            reach.BROKEN: f"{a} connects to {at} of {b}, but the connection breaks ({finding.why})",
            reach.UNTRIED: f"{a} connects to {at} of {b}, but no time was left to send data",
        }[finding.outcome]
        if finding.outcome == reach.WRONG:
            return Problem(said + back, self._without(finding.interface))
        if self._called.masks and finding.outcome in (reach.SILENT, reach.REFUSED, reach.NO_ROUTE):
            said += f"; calls of {b} come from {', '.join(self._called.masks)}, which is no address of {b}: a router "
            return Problem(f"{said}translates addresses (NAT){back}", _ONE_NETWORK)
        fix = f"let TCP to ports {self._called.ports} of {b} pass"
        if any(other.passes for other in self._used):
            fix += f"; if {finding.interface} is not meant for it: {self._without(finding.interface)}"
        return Problem(said + back, "" if finding.outcome == reach.UNTRIED else fix)

    def _silence(self, finding: Finding) -> str:
        near = any(address.shares_network(finding.ip) for address in self._caller.addresses)
        return f"no answer in {finding.seconds:.1f} s: a firewall drops it" + (
            "" if near else ", or no way leads there"
        )

    def _stall(self, finding: Finding) -> Problem:
        a, b = self._caller.name, self._called.name
        device = self._caller.holder(finding.local)
        sent = finding.sent < reach.BLOCK
        said = f"{a} connects to {_at(finding)} of {b}, but large data {'to' if sent else 'from'} {b} stalls"
        if sent and device is not None and 0 < finding.mtu < device.mtu:
            return Problem(f"{said}: {self._passes(finding, device)}", self._set_mtu(finding, device))
        came = max(0, finding.sent if sent else finding.received)
        said += f" after {came} of {reach.BLOCK} bytes"
        if finding.mtu or not sent or device is None:
            return Problem(said, f"look for a firewall or a shaper between {a} and {b}: the MTU passes")
        return Problem(
            f"{said}; UDP does not pass, so the path's MTU is not known",
            f"try a smaller one on both: ip link set {device.interface} mtu 1400",
        )

    def _doubt(self, finding: Finding) -> Problem | None:
        """Returns a warning about a connection that passed all data, or None."""
        a, b = self._caller.name, self._called.name
        device, other = self._caller.holder(finding.local), self._called.holder(finding.ip)
        direct = device is not None and device.shares_network(finding.ip)  # no router that could report a smaller MTU
        if device is not None and other is not None and direct and 0 < finding.mtu < min(device.mtu, other.mtu):
            return Problem(f"{self._passes(finding, device)}, though data came through", self._set_mtu(finding, device))
        if device is not None and not device.used and any(address.used for address in self._caller.addresses):
            said = f"{a} calls {b} at {_at(finding)} from {device.interface}, which {VARIABLE} leaves out"
            return Problem(said, f"ip route get {finding.ip} on {a} shows why")
        if finding.seconds >= _LOST:
            said = f"{a} connects to {b} at {_at(finding)} only after {finding.seconds:.1f} s: a packet was lost"
            return Problem(said, f"ip -s link on {a} and {b} counts errors")
        return None

    def _passes(self, finding: Finding, device: Address) -> str:
        headers = 48 if ":" in finding.ip else 28
        a, b = self._caller.name, self._called.name
        return (
            f"{device.interface} of {a} says MTU {device.mtu}, but only {finding.mtu - headers}+{headers} pass to {b}"
        )

    def _set_mtu(self, finding: Finding, device: Address) -> str:
        """Returns the fix: to set the smallest MTU that passed in either direction."""
        least = min(other.mtu for other in self._both if other.mtu and other.interface == finding.interface)
        return f"ip link set {device.interface} mtu {least}"

    def _who(self, finding: Finding) -> str:
        return next(
            (host.name for host in self._hosts if host.token == finding.by), "something other than hpcomm doctor"
        )

    def _without(self, interface: str) -> str:
        """Returns the fix that leaves this interface out: a value of HPCOMM_SOCKET_IFNAME, or, if the host has no other
        interface, another network."""
        asked = self._called.asked
        if all(address.interface in (interface, "lo") for address in self._called.addresses):
            return _ONE_NETWORK
        if asked and not asked.startswith("^"):
            names = dict.fromkeys(address.interface for address in self._called.used())
            others = ",".join(name for name in names if name != interface)
            return f"{VARIABLE}=={others}" if others else f"name another interface in {VARIABLE}"
        return f"{VARIABLE}={asked or _DEFAULT},{interface}"


def _at(finding: Finding) -> str:
    ip = f"[{finding.ip}]" if ":" in finding.ip else finding.ip
    return f"{ip}:{finding.port}" + (f" by {finding.interface}" if finding.interface else "")
