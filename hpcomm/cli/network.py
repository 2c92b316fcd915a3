"""hpcomm doctor --network: every host of a job connects to all addresses of every other host; rank 0 prints a report.

A leader is the lowest rank of a host: it acts for the host. A finding is the result for one address, from one host.
"""

import json
import os
import secrets
import socket
import time
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from .. import _core
from ..config import Config
from ..launch import Group, agree
from . import available, interfaces, rdma, reach, verdict
from .available import Way
from .interfaces import VARIABLE, Address
from .reach import Finding, Responder, Target
from .verdict import FAIL, OK, WARN, Host, Pair, Problem

PATIENCE = 3.0  # seconds to wait for an address, in which the kernel sends the first packet three times
_SPARE = 8  # most addresses of a host that are tried though hpcomm does not use them
_MOST_ALIKE = 4  # most printed rows with the same fix
_TOGETHER = 400  # bytes of all ranks in one allgather: they fit into the smallest packet that IP guarantees
_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")


@dataclass(frozen=True)
class Self:
    """Facts that a rank tells all others about itself."""

    host: str  # identifies the host: the same on all its ranks, different on others
    name: str
    asked: str  # HPCOMM_SOCKET_IFNAME
    addresses: tuple[Address, ...]
    wrong: str = ""  # why this rank cannot take part
    rdma: tuple[str, ...] = ()  # ports that verbs can use


@dataclass(frozen=True)
class Report:
    hosts: tuple[Host, ...]
    pairs: tuple[Pair, ...]
    notes: tuple[Problem, ...]
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        results = {pair.result for pair in self.pairs} | {note.result for note in self.notes}
        return FAIL not in results


def me(config: Config, wrong: str = "") -> Self:
    """Returns the facts of this rank. As in hpcomm's choice of transports, two ranks are on one host if they have the
    same boot of a kernel and the same network namespace."""
    parts, addresses = [], tuple[Address, ...]()
    for path in ("/proc/sys/kernel/random/boot_id", "/proc/self/ns/net"):
        with suppress(OSError):
            parts.append(os.readlink(path) if path.endswith("net") else Path(path).read_text(encoding="ascii").strip())
    name = socket.gethostname()
    try:
        addresses = interfaces.addresses(config.socket_ifname)
    except OSError as error:
        wrong = f"cannot list its interfaces: {error}"
    return Self(" ".join(parts) or name, name, config.socket_ifname, addresses, wrong, rdma.usable(config))


def ephemeral() -> str:
    try:
        return "-".join(_PORTS.read_text(encoding="ascii").split())
    except OSError:
        return "32768-60999"


# ---- the ranks together --------------------------------------------------------------------------------------------


def examine(
    group: Group, self: Self, timeout: float, patience: float = PATIENCE, watch: Callable[[int], Any] | None = None
) -> Report:
    """Tests all pairs of hosts, and returns the same report on every rank, in a bounded time. All ranks must call it.

    watch, if given, is called with the number of this host's steps, and returns a function that is called after each
    step.

    Raises:
        Timeout: a rank does not take part.
        ConfigError: the ranks have different versions of hpcomm.
    """
    agree(group, _core.version(), b"", timeout)
    token = secrets.token_bytes(reach.TOKEN_BYTES)
    told = _gather(group, {**asdict(self), "ports": ephemeral(), "token": token.hex()}, timeout)
    leaders, hosts = _hosts(told)
    mine = next((i for i, rank in enumerate(leaders) if rank == group.rank), None)
    most = max((len(_tried(host)) for host in hosts), default=0) * len(hosts)
    budget = 10.0 + most
    limit = reach.longest(most, patience, budget)
    wrong, found = self.wrong, list[Finding]()
    with ExitStack() as open_until_all_have_called:
        responder = None
        if mine is not None and len(hosts) > 1 and not wrong:
            tokens = [bytes.fromhex(host.token) for host in hosts]
            try:
                ours = Responder(tokens[mine], tokens, [address.ip for address in self.addresses], limit)
                responder = open_until_all_have_called.enter_context(ours)
            except (OSError, RuntimeError) as error:
                wrong = f"cannot listen: {error}"
        doors = _gather(group, _door(responder, wrong), timeout)
        hosts = _with_wrongs(hosts, doors)
        if responder is not None and mine is not None:
            targets = _targets(mine, hosts, [doors[rank] for rank in leaders])
            tell = watch(2 * len(targets)) if watch is not None else _nothing
            mtus = {address.ip: address.mtu for address in self.addresses}
            try:
                found = reach.probe(mine, tokens[mine], targets, mtus, patience=patience, budget=budget, tell=tell)
            except (OSError, RuntimeError) as error:
                wrong = f"cannot call the others: {error}"
        seen = {token.hex(): sorted(ips) for token, ips in responder.seen.items()} if responder is not None else {}
        mine_last = {"wrong": wrong, "found": [asdict(finding) for finding in found], "seen": seen}
        last = _gather(group, mine_last, limit + timeout)
    findings = tuple(Finding(**one) for part in last for one in part["found"])
    hosts = _with_masks(_with_wrongs(hosts, last), findings, [part["seen"] for part in last])
    pairs = tuple(verdict.judge(hosts, findings))
    return Report(hosts, pairs, tuple(verdict.notes(hosts, pairs)), findings)


def _gather(group: Group, value: Any, timeout: float) -> list[Any]:
    """Returns the values of all ranks. It sends many small messages, because some faulty networks lose large ones."""
    end = time.monotonic() + timeout

    def allgather(data: bytes) -> list[bytes]:
        return group.exchange(data, max(0.0, end - time.monotonic()))

    data = zlib.compress(json.dumps(value).encode())
    longest = max(int.from_bytes(part, "big") for part in allgather(len(data).to_bytes(8, "big")))
    room = max(8, _TOGETHER // group.size)
    parts = [bytearray() for _ in range(group.size)]
    for start in range(0, longest, room):
        for rank, came in enumerate(allgather(data[start : start + room].ljust(room, b"\0"))):
            parts[rank] += came
    return [json.loads(zlib.decompressobj().decompress(part)) for part in parts]


def _hosts(told: Sequence[dict[str, Any]]) -> tuple[list[int], tuple[Host, ...]]:
    """Returns the leaders of all hosts, and the hosts, both in the order of the leaders."""
    ranks: dict[str, list[int]] = {}
    for rank, one in enumerate(told):
        ranks.setdefault(one["host"], []).append(rank)
    leaders = [held[0] for held in ranks.values()]
    names = [told[rank]["name"] for rank in leaders]
    hosts = []
    for held in ranks.values():
        one = told[held[0]]
        name = one["name"] if names.count(one["name"]) == 1 else f"{one['name']} (rank {held[0]})"
        addresses = tuple(Address(**address) for address in one["addresses"])
        told_of = (one["asked"], addresses, one["ports"], one["token"], one["wrong"], tuple(one["rdma"]))
        hosts.append(Host(name, tuple(held), *told_of))
    return leaders, tuple(hosts)


def _door(responder: Responder | None, wrong: str) -> dict[str, Any]:
    return {
        "port": responder.port if responder is not None else 0,
        "udp": responder.udp_ports if responder is not None else {},
        "wrong": wrong,
    }


def _with_wrongs(hosts: Sequence[Host], told: Sequence[dict[str, Any]]) -> tuple[Host, ...]:
    """Returns the hosts, each with a fault in wrong if one of its ranks has found one."""
    return tuple(
        replace(host, wrong=next((told[rank]["wrong"] for rank in host.ranks if told[rank]["wrong"]), ""))
        for host in hosts
    )


def _with_masks(
    hosts: Sequence[Host], findings: Sequence[Finding], seen: Sequence[dict[str, list[str]]]
) -> tuple[Host, ...]:
    """Returns the hosts with their masks: addresses from which others saw a host's connections come, though the host
    does not have them, as a router translates addresses (NAT)."""
    masks = []
    for number, host in enumerate(hosts):
        own = {address.ip for address in host.addresses}
        own |= {finding.local for finding in findings if finding.caller == number}
        masks.append(tuple(sorted({ip for told in seen for ip in told.get(host.token, ())} - own)))
    return tuple(replace(host, masks=told) for host, told in zip(hosts, masks, strict=True))


def _nothing() -> None: ...


def _tried(host: Host) -> list[Address]:
    spare = [address for address in host.addresses if not address.used and address.interface != "lo"]
    return host.used() + spare[:_SPARE]


def _targets(mine: int, hosts: Sequence[Host], doors: Sequence[dict[str, Any]]) -> list[Target]:
    """Returns the addresses to try at all other hosts. Each host begins with the next host, so that not all connect to
    the same host at once."""
    found = []
    for step in range(1, len(hosts)):
        number = (mine + step) % len(hosts)
        host, door = hosts[number], doors[number]
        if host.wrong:
            continue
        token = bytes.fromhex(host.token)
        for address in _tried(host):
            udp = door["udp"].get(address.ip, 0)
            found.append(Target(number, address.ip, door["port"], udp, token, address.interface, address.used))
    return found


# ---- telling -------------------------------------------------------------------------------------------------------


def as_json(report: Report, ways: Sequence[Way] = ()) -> str:
    names = [host.name for host in report.hosts]
    return json.dumps(
        {
            "ok": report.ok,
            "hosts": [
                {"name": host.name, "ranks": host.ranks, "interfaces": interfaces.told(host.addresses),
                 "used": [address.ip for address in host.used()], VARIABLE: host.asked, "rdma": host.rdma,
                 "masks": host.masks}
                for host in report.hosts
            ],
            "pairs": [{**asdict(pair), "hosts": [names[i] for i in pair.hosts]} for pair in report.pairs],
            "notes": [asdict(note) for note in report.notes],
            "calls": [
                {**asdict(finding), "caller": names[finding.caller], "called": names[finding.called]}
                for finding in report.findings
            ],
            "bandwidth": [
                {**asdict(way), "sender": names[way.sender], "receiver": names[way.receiver]} for way in ways
            ],
        },
        indent=2,
    )  # fmt: skip


def show(report: Report, console: Console) -> None:
    for host in report.hosts:
        ranks = f"rank{'s' if len(host.ranks) > 1 else ''} {', '.join(map(str, host.ranks))}"
        rule = f"{VARIABLE}={host.asked}" if host.asked else f"{VARIABLE} is not set"
        told = f"{host.name}: {ranks}; {interfaces.told(host.used()) or 'no interface'} ({rule})"
        console.print(Text(f"{told}; RDMA: {'; '.join(host.rdma)}" if host.rdma else told))
    table = Table(box=None, pad_edge=False)
    for column in ("hosts", "", "seen", "fix"):
        table.add_column(column, overflow="fold")
    style = {OK: "green", WARN: "yellow", FAIL: "red"}
    for name, result, said, fix in rows(report):
        table.add_row(Text(name), Text(result, style[result]), Text(said), Text(fix or "-"))
    if table.rows:
        console.print(table)
    console.print(Text(summary(report)))


def rows(report: Report) -> list[tuple[str, str, str, str]]:
    """Returns rows (hosts, result, problem, fix); of problems with the same fix it lists only the first few."""
    found = [
        (" - ".join(report.hosts[i].name for i in pair.hosts), problem)
        for pair in report.pairs
        for problem in pair.problems
    ]
    found.sort(key=lambda one: one[1].result != FAIL)
    found += [("", note) for note in report.notes]
    same = Counter((problem.result, problem.fix) for _, problem in found)
    told: Counter[tuple[str, str]] = Counter()
    listed = []
    for name, problem in found:
        kind = (problem.result, problem.fix)
        told[kind] += 1
        if told[kind] <= _MOST_ALIKE:
            listed.append((name, problem.result, problem.said, problem.fix))
        elif told[kind] == same[kind]:
            more = f"and {same[kind] - _MOST_ALIKE} more with this fix: --json has them"
            listed.append(("", problem.result, more, problem.fix))
    return listed


def summary(report: Report) -> str:
    if len(report.hosts) == 1:
        return f"all ranks are on {report.hosts[0].name}: nothing to test between hosts"
    results = Counter(pair.result for pair in report.pairs)
    told = f"{results[OK]} of {len(report.pairs)} pairs of hosts are fine"
    if results[WARN] or results[FAIL]:
        told += f", {results[WARN]} have warnings, {results[FAIL]} fail"
    working = [pair for pair in report.pairs if pair.result != FAIL]
    if not working:
        return told
    mtus = [str(mtu) for mtu in sorted({pair.mtu for pair in working if pair.mtu})]
    passes = f", MTU {', '.join(mtus)} passes" if mtus else ""
    connect = _span([pair.seconds for pair in working], lambda seconds: f"{seconds * 1e3:.2f} ms")
    rates = _span([pair.rate for pair in working], verdict.speed)
    return f"{told}: {connect} to connect, {rates} for {reach.BLOCK >> 20} MiB{passes}"


def _span(values: Sequence[float], tell: Callable[[float], str]) -> str:
    least, most = tell(min(values)), tell(max(values))
    return least if least == most else f"{least} to {most}"


def main(
    group: Group,
    self: Self,
    timeout: float,
    patience: float,
    json_wanted: bool,
    probing: Config | None = None,
) -> bool:
    """Calls examine, prints the report on rank 0, and returns whether all pairs of hosts work.

    probing: settings of a context with which the hosts measure the bandwidth between them, if all pairs work; None: do
    not measure it.

    Raises:
        HpcommError: as examine and available.measure.
    """
    console = Console()
    if not console.is_terminal:
        console = Console(width=160)
    terminal = Console(stderr=True)
    hidden = group.rank != 0 or json_wanted or not terminal.is_terminal
    with Progress(console=terminal, transient=True, disable=hidden) as progress:

        def watch(steps: int) -> Callable[[], None]:
            task = progress.add_task("calling the other hosts", total=steps)
            return lambda: progress.advance(task)

        report = examine(group, self, timeout, patience, watch)
        ways: tuple[Way, ...] = ()
        if probing is not None and report.ok and len(report.hosts) > 1:
            progress.add_task("probing the bandwidth between them", total=None)
            ways = available.measure(group, probing, report.hosts, lambda value, limit: _gather(group, value, limit))
    if group.rank == 0:
        if json_wanted:
            print(as_json(report, ways))
        else:
            show(report, console)
            if ways:
                available.show(report.hosts, ways, console)
    return report.ok
