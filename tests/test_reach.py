"""hpcomm doctor --network without a network: two hosts are 127.0.0.1 and 127.0.0.2, and their ranks are threads."""

import json
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest
from conftest import thread_worlds
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from hpcomm import launch
from hpcomm.cli import interfaces, network, reach, verdict
from hpcomm.cli.interfaces import VARIABLE, Address
from hpcomm.cli.reach import BLOCK, Finding, Responder, Target
from hpcomm.cli.verdict import Host

A, B, C = (bytes([i]) * reach.TOKEN_BYTES for i in (1, 2, 3))
HERE, THERE = "127.0.0.1", "127.0.0.2"


# ---- one address ---------------------------------------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives up soon."""
    monkeypatch.setattr(reach, "STALL", 0.3)
    monkeypatch.setattr(reach, "LONGEST", 1.5)


@pytest.fixture
def other() -> Iterator[Responder]:
    """A host that answers A with B."""
    with Responder(B, [A], [THERE], 30.0) as responder:
        yield responder


def target(port: int, token: bytes = B, udp: int = 0) -> Target:
    return Target(1, THERE, port, udp, token)


def probe(*targets: Target, mtus: dict[str, int] | None = None, patience: float = 5.0) -> list[Finding]:
    return reach.probe(0, A, targets, mtus or {}, patience=patience, budget=30.0)


@contextmanager
def fake(serve: Callable[[socket.socket], object]) -> Iterator[int]:
    """A listener of THERE whose one connection is served so."""

    def run() -> None:
        with listener, listener.accept()[0] as connection:
            connection.settimeout(20)
            try:
                serve(connection)
                ended.wait(20)
            except OSError:
                pass

    ended = threading.Event()
    listener = socket.create_server((THERE, 0))
    listener.settimeout(20)
    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        ended.set()
        thread.join(20)


def test_all_is_well(other: Responder) -> None:
    (finding,) = probe(target(other.port, udp=other.udp_ports[THERE]), mtus={HERE: 9000})
    assert finding.passes
    assert (finding.outcome, finding.sent, finding.received, finding.mtu) == (reach.OK, BLOCK, BLOCK, 9000)
    assert (finding.local, finding.ip) == (HERE, THERE)
    assert finding.rate > 0
    assert finding.seconds > 0


def test_ipv6() -> None:
    if not socket.has_dualstack_ipv6() or "::1" not in {address.ip for address in interfaces.addresses()}:
        pytest.skip("this machine has no IPv6")
    with Responder(B, [A], ["::1"], 30.0) as responder:
        (finding,) = probe(Target(1, "::1", responder.port, responder.udp_ports["::1"], B), mtus={"::1": 4000})
    assert (finding.passes, finding.mtu) == (True, 4000)


def test_port_with_nothing_behind() -> None:
    with socket.socket() as bound:
        bound.bind((THERE, 0))
        (finding,) = probe(target(bound.getsockname()[1]))
    assert finding.outcome == reach.REFUSED


def test_connect_without_an_answer() -> None:
    """What a firewall does that drops: a listener whose queue is full lets the kernel ignore callers."""
    with ExitStack() as open_sockets:
        listener = open_sockets.enter_context(socket.socket())
        listener.bind((THERE, 0))
        listener.listen(0)
        for _ in range(4):
            waiting = open_sockets.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        (finding,) = probe(target(listener.getsockname()[1]), patience=0.3)
    assert finding.outcome == reach.SILENT
    assert 0.25 < finding.seconds < 5


def test_listener_that_never_answers() -> None:
    with socket.create_server((THERE, 0)) as listener:
        start = time.monotonic()
        (finding,) = probe(target(listener.getsockname()[1]), patience=0.2)
    assert finding.outcome == reach.MUTE
    assert time.monotonic() - start < 5


def test_listener_that_drips_is_given_up() -> None:
    def drip(connection: socket.socket) -> None:
        for _ in range(400):
            connection.sendall(b"h")
            connection.settimeout(0.05)
            with suppress(TimeoutError):
                connection.recv(64)

    with fake(drip) as port:
        start = time.monotonic()
        (finding,) = probe(target(port), patience=0.3)
    assert finding.outcome == reach.MUTE
    assert time.monotonic() - start < 5


def test_wrong_host_is_known_by_its_token(other: Responder) -> None:
    (finding,) = probe(target(other.port, token=C))
    assert (finding.outcome, finding.by) == (reach.WRONG, B.hex())


@pytest.mark.parametrize("said", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", b"hi"])
def test_what_is_no_doctor(said: bytes) -> None:
    def serve(connection: socket.socket) -> None:
        connection.sendall(said)
        connection.shutdown(socket.SHUT_WR)

    with fake(serve) as port:
        (finding,) = probe(target(port))
    assert (finding.outcome, finding.by) == (reach.WRONG, "")


@pytest.mark.parametrize("hello", [b"GET / HTTP/1.0\r\n\r\n".ljust(24), b"hpcheck\1" + C, b"hpch"])
def test_stranger_is_told_nothing(other: Responder, quick: None, hello: bytes) -> None:
    with socket.create_connection((THERE, other.port), 5) as stranger:
        stranger.sendall(hello)
        with suppress(ConnectionResetError):
            assert stranger.recv(64) == b""


def test_more_than_a_block_is_not_served(other: Responder) -> None:
    _, connection = reach.call(0, A, target(other.port), 5.0)
    assert connection is not None
    with connection:
        connection.settimeout(10)
        connection.sendall(struct.pack("!cQ", b"R", BLOCK + 1))
        with suppress(ConnectionResetError):
            assert connection.recv(64) == b""


def take(connection: socket.socket, nbytes: int) -> None:
    while nbytes > 0:
        part = connection.recv(nbytes)
        assert part
        nbytes -= len(part)


def answer(connection: socket.socket) -> None:
    take(connection, 24)
    connection.sendall(b"hpcheck\1" + B)


def test_large_data_that_is_swallowed_on_the_way_there(quick: None) -> None:
    """The called host gets the order, nothing of the block, and says so."""

    def serve(connection: socket.socket) -> None:
        answer(connection)
        take(connection, 9)
        connection.sendall(struct.pack("!Q", 0))

    with fake(serve) as port:
        (finding,) = probe(target(port))
    assert (finding.outcome, finding.sent, finding.passes) == (reach.OK, 0, False)


def test_large_data_that_is_swallowed_on_the_way_back(quick: None) -> None:
    def serve(connection: socket.socket) -> None:
        answer(connection)
        take(connection, 9 + BLOCK)
        connection.sendall(struct.pack("!Q", BLOCK))
        take(connection, 9)
        connection.sendall(bytes(1000))

    with fake(serve) as port:
        (finding,) = probe(target(port))
    assert (finding.outcome, finding.sent, finding.received, finding.passes) == (reach.OK, BLOCK, 1000, False)


def test_host_that_falls_silent(quick: None) -> None:
    with fake(answer) as port:
        start = time.monotonic()
        (finding,) = probe(target(port))
    assert (finding.sent, finding.passes) == (0, False)
    assert time.monotonic() - start < 10


def test_host_that_hangs_up() -> None:
    def serve(connection: socket.socket) -> None:
        answer(connection)
        connection.shutdown(socket.SHUT_RDWR)

    with fake(serve) as port:
        (finding,) = probe(target(port))
    assert (finding.outcome, finding.passes) == (reach.BROKEN, False)


def test_time_runs_out(other: Responder) -> None:
    (finding,) = reach.probe(0, A, [target(other.port)], {}, patience=5.0, budget=-1.0)
    assert finding.outcome == reach.UNTRIED


def test_every_target_is_told_twice(other: Responder) -> None:
    told: list[int] = []
    targets = [target(other.port), target(other.port, token=C)]
    reach.probe(0, A, targets, {}, patience=5.0, budget=30.0, tell=lambda: told.append(1))
    assert len(told) == 4


# ---- the path's MTU --------------------------------------------------------------------------------------------------


@given(st.integers(576, 9000), st.integers(576, 9000))
def test_bisection_finds_what_passes(passes: int, top: int) -> None:
    assert reach.bisect(576, top, lambda size: size <= passes) == min(passes, top)


def test_bisection_of_what_passes_nothing() -> None:
    assert reach.bisect(576, 9000, lambda size: False) == 0


@pytest.mark.parametrize(("passes", "lost"), [(1500, 0), (1501, 0), (1500, 3)])
def test_path_that_swallows_large_packets(passes: int, lost: int) -> None:
    """lost: so many of the packets that would pass do not, as on a busy host."""
    taken: list[int] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as swallows:
        swallows.bind((THERE, 0))
        swallows.settimeout(10)

        def run() -> None:
            while (came := swallows.recvfrom(1 << 16))[0] != b"end":
                if 1400 <= len(came[0]) + 28 <= passes and len(taken) < lost:
                    taken.append(len(came[0]))
                elif len(came[0]) + 28 <= passes:
                    swallows.sendto(came[0][:8] + B + came[0][24:28], came[1])

        thread = threading.Thread(target=run)
        thread.start()
        try:
            port = swallows.getsockname()[1]
            assert reach.path_mtu(HERE, target(1, udp=port), A, 1520) == passes
        finally:
            swallows.sendto(b"end", swallows.getsockname())
            thread.join(10)
    assert len(taken) == lost


def test_udp_that_does_not_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "_UDP_WAIT", 0.01)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as mute:
        mute.bind((THERE, 0))
        assert reach.path_mtu(HERE, target(1, udp=mute.getsockname()[1]), A, 9000) == 0
    assert reach.path_mtu(HERE, target(1), A, 9000) == 0
    assert reach.path_mtu("192.0.2.77", target(1, udp=9), A, 9000) == 0


# ---- interfaces ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "yes", "no"),
    [
        ("eth,ib", ["eth0", "eth1", "ib0"], ["lo", "docker0", "weth0"]),
        ("=eth0", ["eth0"], ["eth01", "eth1"]),
        ("eth, =ib0", ["eth7", "ib0"], ["ib01"]),
        ("^docker,lo", ["eth0", "br-1"], ["docker0", "lo"]),
        ("^=docker0", ["docker01", "lo"], ["docker0"]),
    ],
)
def test_grammar_of_interfaces(asked: str, yes: list[str], no: list[str]) -> None:
    assert [name for name in yes + no if interfaces.allows(asked, name)] == yes


FOUND = [
    (HERE, 8, "lo", 65536),
    ("10.0.0.1", 24, "eth0", 1500),
    ("fd00::1", 64, "eth0", 1500),
    ("169.254.7.1", 16, "usb0", 1500),
    ("172.17.0.1", 16, "docker0", 1500),
    ("10.1.0.1", 24, "eth1", 9000),
    ("10.2.0.1", 24, "eth2", 9000),
]


@pytest.mark.parametrize(
    ("asked", "used"),
    [
        ("", ["10.0.0.1", "10.1.0.1", "10.2.0.1", "fd00::1"]),
        ("eth1", ["10.1.0.1"]),
        ("^eth", ["172.17.0.1", "169.254.7.1", HERE]),
        ("=usb0,lo", ["169.254.7.1", HERE]),
        ("wlan", []),
    ],
)
def test_addresses_that_are_used(asked: str, used: list[str]) -> None:
    chosen = interfaces.choose(FOUND, asked)
    assert [address.ip for address in chosen if address.used] == used
    assert {address.ip for address in chosen} == {one[0] for one in FOUND}


def test_loopback_is_used_where_there_is_nothing_else() -> None:
    assert [address.used for address in interfaces.choose(FOUND[:1], "")] == [True]


def test_addresses_of_this_machine() -> None:
    found = {address.ip: address for address in interfaces.addresses("=lo")}
    assert found[HERE] == Address(HERE, 8, "lo", found[HERE].mtu, True)
    assert found[HERE].mtu >= 1500
    assert interfaces.told([found[HERE]]) == f"lo 127.0.0.1/8, MTU {found[HERE].mtu}"


# ---- what it means ---------------------------------------------------------------------------------------------------


def host(name: str, *addresses: Address, asked: str = "", wrong: str = "") -> Host:
    return Host(name, (int(name[1:]) - 1,), asked, addresses, "32768-60999", name.encode().hex(), wrong)


def eth0(number: int, mtu: int = 1500) -> Address:
    return Address(f"10.0.0.{number}", 24, "eth0", mtu, True)


def eth1(number: int, used: bool = True) -> Address:
    return Address(f"10.1.0.{number}", 24, "eth1", 1500, used)


DOCKER = Address("172.17.0.1", 16, "docker0", 1500, True)


def seen(caller: int, address: Address, outcome: str = reach.OK, **more: Any) -> Finding:
    """By h1 (0) or h2 (1), of an address of the other."""
    values: dict[str, Any] = {"local": f"10.0.0.{caller + 1}"}
    values |= {"sent": BLOCK, "received": BLOCK, "rate": 1e8} if outcome == reach.OK else {"seconds": 3.0}
    finding = Finding(caller, 1 - caller, address.ip, 40001, address.interface, address.used, outcome)
    return replace(finding, **{**values, **more})


def judge(h1: Host, h2: Host, *findings: Finding) -> tuple[str, list[tuple[str, str]]]:
    (pair,) = verdict.judge([h1, h2], findings)
    return pair.result, [(problem.said, problem.fix) for problem in pair.problems]


H1, H2 = host("h1", eth0(1)), host("h2", eth0(2))


def test_fine_pair() -> None:
    assert judge(H1, H2, seen(0, eth0(2)), seen(1, eth0(1))) == ("ok", [])


def test_firewall_in_one_direction() -> None:
    """The higher rank calls the lower one, so that only one of them needs to be reached."""
    result, problems = judge(H1, H2, seen(0, eth0(2), reach.SILENT), seen(1, eth0(1)))
    said = "h1 cannot reach h2 at 10.0.0.2:40001 by eth0 (no answer in 3.0 s: a firewall drops it); h2 can reach h1"
    assert (result, problems) == ("warn", [(said, "let TCP to ports 32768-60999 of h2 pass")])
    result, problems = judge(H1, H2, seen(0, eth0(2)), seen(1, eth0(1), reach.SILENT))
    said = "h2 cannot reach h1 at 10.0.0.1:40001 by eth0 (no answer in 3.0 s: a firewall drops it); h1 can reach h2"
    said += ", but of two ranks the higher one calls"
    assert (result, problems) == ("fail", [(said, "let TCP to ports 32768-60999 of h1 pass")])
    mixed = replace(H1, ranks=(0, 2))
    assert judge(mixed, H2, seen(0, eth0(2), reach.SILENT), seen(1, eth0(1)))[0] == "fail"


def test_firewall_in_both_directions() -> None:
    result, problems = judge(H1, H2, seen(0, eth0(2), reach.SILENT), seen(1, eth0(1), reach.NO_ROUTE, why="prohibited"))
    assert result == "fail"  # what is needed comes first
    said = "h2 cannot reach h1 at 10.0.0.1:40001 by eth0 (prohibited: no route, or a firewall says so)"
    assert problems[0][0] == said
    assert problems[1][0].endswith("a firewall drops it)")


def test_wrong_interface_is_named() -> None:
    h1, h2 = host("h1", eth0(1), eth1(1)), host("h2", eth0(2), eth1(2))
    findings = [seen(0, eth0(2)), seen(0, eth1(2), reach.SILENT), seen(1, eth0(1)), seen(1, eth1(1))]
    result, problems = judge(h1, h2, *findings)
    assert result == "warn"
    assert problems[0][1].endswith(f"if eth1 is not meant for it: {VARIABLE}=^lo,docker,br-,eth1")
    asked = replace(h2, asked="eth")
    assert judge(h1, asked, *findings)[1][0][1].endswith(f"{VARIABLE}==eth0")
    assert judge(h1, replace(h2, asked="^wlan"), *findings)[1][0][1].endswith(f"{VARIABLE}=^wlan,eth1")


def test_interface_that_is_left_out_would_work() -> None:
    h2 = host("h2", eth0(2), eth1(2, used=False), asked="eth0")
    findings = [seen(0, eth0(2), reach.SILENT), seen(0, eth1(2, used=False)), seen(1, eth0(1))]
    result, problems = judge(replace(H1, ranks=(0, 2)), h2, *findings)
    assert result == "fail"
    said = f"h2 does answer h1 at 10.1.0.2 by eth1, which {VARIABLE}='eth0' leaves out"
    assert problems[-1] == (said, f"{VARIABLE}=eth1")


def test_address_that_is_not_used_may_fail() -> None:
    h2 = host("h2", eth0(2), eth1(2, used=False))
    findings = [seen(0, eth0(2)), seen(0, eth1(2, used=False), reach.REFUSED), seen(1, eth0(1))]
    assert judge(H1, h2, *findings) == ("ok", [])


@pytest.mark.parametrize("outcome", [reach.REFUSED, reach.WRONG, reach.MUTE])
def test_same_private_address_on_both(outcome: str) -> None:
    h1, h2 = host("h1", eth0(1), DOCKER, asked="^lo"), host("h2", eth0(2), DOCKER, asked="^lo")
    result, problems = judge(h1, h2, seen(0, eth0(2)), seen(0, DOCKER, outcome), seen(1, eth0(1)))
    said = "172.17.0.1 by docker0 of h2 is an address of h1 too: h1 answers there itself"
    assert (result, problems) == ("warn", [(said, f"{VARIABLE}=^lo,docker0")])


def test_private_address_that_is_all_that_a_container_has() -> None:
    """Two hosts' containers, each behind its host's bridge: no name of an interface helps."""
    same = Address("172.17.0.2", 16, "eth0", 1500, True)
    findings = seen(0, same, reach.REFUSED), seen(1, same, reach.WRONG)
    result, problems = judge(host("h1", same), host("h2", same), *findings)
    assert result == "fail"
    assert all("answers there itself" in said and "docker run --network=host" in fix for said, fix in problems)


@pytest.mark.parametrize("outcome", [reach.SILENT, reach.NO_ROUTE, reach.REFUSED])
def test_router_that_translates(outcome: str) -> None:
    h1 = replace(H1, masks=("192.0.2.7",))
    result, problems = judge(h1, H2, seen(0, eth0(2)), seen(1, eth0(1), outcome))
    assert result == "fail"
    assert "calls of h1 come from 192.0.2.7, which is no address of h1: a router translates addresses" in problems[0][0]
    assert problems[0][1].startswith("give each host an address that all others reach")


def test_another_host_answers() -> None:
    h3 = host("h3", eth0(3))
    findings = [seen(0, eth0(2), reach.WRONG, by=h3.token), seen(1, eth0(1), reach.WRONG)]
    pair = next(pair for pair in verdict.judge([H1, H2, h3], findings) if pair.hosts == (0, 1))
    assert [(problem.said, problem.result) for problem in pair.problems] == [
        ("something other than hpcomm doctor answers h2 at 10.0.0.1:40001 by eth0 of h1", "fail"),
        ("h3 answers h1 at 10.0.0.2:40001 by eth0 of h2", "warn"),
    ]


def test_mtu_that_does_not_pass() -> None:
    h1, h2 = host("h1", eth0(1, 9000)), host("h2", eth0(2, 9000))
    stalls = seen(0, eth0(2), sent=0, received=-1, mtu=1500)
    result, problems = judge(h1, h2, stalls, seen(1, eth0(1), mtu=9000))
    said = "h1 connects to 10.0.0.2:40001 by eth0 of h2, but large data to h2 stalls: "
    said += "eth0 of h1 says MTU 9000, but only 1472+28 pass to h2"
    assert (result, problems) == ("warn", [(said, "ip link set eth0 mtu 1500")])
    assert judge(h1, h2, stalls, replace(stalls, caller=1, called=0, ip="10.0.0.1", local="10.0.0.2"))[0] == "fail"
    _, problems = judge(h1, h2, seen(0, eth0(2), mtu=1500), seen(1, eth0(1), mtu=1400))
    assert problems[0] == (
        "eth0 of h1 says MTU 9000, but only 1472+28 pass to h2, though data came through",
        "ip link set eth0 mtu 1400",
    )


def test_smaller_mtu_behind_a_router_is_no_matter() -> None:
    h1 = host("h1", Address("10.9.0.1", 24, "eth0", 9000, True))
    assert judge(h1, H2, seen(0, eth0(2), mtu=1400, local="10.9.0.1"), seen(1, eth0(1))) == ("ok", [])


@pytest.mark.parametrize(("mtu", "told"), [(1500, "the MTU passes"), (0, "mtu 1400")])
def test_stall_of_another_cause(mtu: int, told: str) -> None:
    _, problems = judge(H1, H2, seen(0, eth0(2), sent=70000, received=-1, mtu=mtu), seen(1, eth0(1)))
    assert "stalls after 70000 of 1048576 bytes" in problems[0][0]
    assert told in problems[0][1]


def test_other_oddities() -> None:
    h1 = host("h1", eth0(1), eth1(1, used=False))
    cases = [
        (seen(0, eth0(2), seconds=1.02), "only after 1.0 s: a packet was lost"),
        (seen(0, eth0(2), local="10.1.0.1"), f"from eth1, which {VARIABLE} leaves out"),
        (seen(0, eth0(2), reach.UNTRIED), "no time was left"),
        (seen(0, eth0(2), reach.BROKEN, why="reset"), "the connection breaks (reset)"),
        (seen(0, eth0(2), reach.MUTE), "nothing answers"),
        (seen(0, eth0(2), reach.REFUSED), "h1 is refused at 10.0.0.2:40001 by eth0 of h2"),
        (seen(0, eth0(2), sent=BLOCK, received=5), "large data from h2 stalls after 5 of"),
    ]
    for finding, told in cases:
        result, problems = judge(h1, H2, finding, seen(1, eth0(1)))
        assert result == "warn"
        assert told in problems[0][0]


def test_hosts_without_a_part() -> None:
    assert judge(H1, host("h2", wrong="cannot listen: no")) == (
        "fail",
        [("h2 takes no part: cannot listen: no", "hpcomm doctor on h2")],
    )
    result, problems = judge(H1, host("h2", eth1(2, used=False), asked="wlan"), seen(1, eth0(1)))
    assert result == "fail"
    assert problems[0][0] == f"{VARIABLE}='wlan' allows no interface of h2, which has eth1"


def test_notes_on_all_hosts() -> None:
    hosts = [H1, H2, host("h3", eth0(3), asked="eth0")]
    pairs = [verdict.Pair((0, 1), "ok", (), 0.1, 1e9), verdict.Pair((0, 2), "ok", (), 0.1, 1e9)]
    slow = verdict.Pair((1, 2), "ok", (), 0.1, 1.1e8)
    told = [note.said for note in verdict.notes(hosts, [*pairs, slow])]
    assert told == [
        f"{VARIABLE} differs: not set on h1, h2; 'eth0' on h3",
        "h2 - h3 is the slowest pair: 110 MB/s; the median is 1.00 GB/s",
    ]
    assert verdict.notes(hosts[:2], [*pairs, replace(slow, rate=3e8)]) == []


# ---- the ranks together ----------------------------------------------------------------------------------------------


def examine(*selves: network.Self, timeout: float = 20.0) -> list[network.Report]:
    """What each rank, a thread, is told."""
    reports: list[Any] = [None] * len(selves)

    def rank(world: Any) -> None:
        try:
            reports[world.rank] = network.examine(launch.find(world), selves[world.rank], timeout, 2.0)
        except BaseException as error:
            reports[world.rank] = error

    threads = [threading.Thread(target=rank, args=(world,), daemon=True) for world in thread_worlds(len(selves))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    failed = [report for report in reports if not isinstance(report, network.Report)]
    assert not failed, failed
    return reports


def self(name: str, ip: str, **more: Any) -> network.Self:
    address = Address(ip, 32, "eth0", 1500, True)
    return network.Self(more.pop("host", name), name, more.pop("asked", ""), (address,), **more)


def test_ranks_of_two_hosts_are_told_the_same() -> None:
    reports = examine(self("a", HERE), self("b", THERE), self("a", HERE))
    assert reports[0] == reports[1] == reports[2]
    report = reports[0]
    assert report.ok
    assert [(host.name, host.ranks) for host in report.hosts] == [("a", (0, 2)), ("b", (1,))]
    assert [(call.caller, call.called, call.ip, call.outcome) for call in report.findings] == [
        (0, 1, THERE, "ok"),
        (1, 0, HERE, "ok"),
    ]
    said = r"1 of 1 pairs of hosts are fine: [\d.]+ ms to connect, [\d.]+ .B/s for 1 MiB, MTU 1500 passes"
    assert re.fullmatch(said, network.summary(report))


def test_callers_from_a_foreign_address_are_behind_a_router(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of hosts a and b, which call from 127.0.0.1, a says that it called from another address."""

    def call(caller: int, *args: Any) -> Any:
        finding, connection = plain(caller, *args)
        return (replace(finding, local="192.168.5.1") if caller == 0 else finding), connection

    plain = reach.call
    monkeypatch.setattr(reach, "call", call)
    reports = examine(self("a", "127.0.0.3"), self("b", THERE))
    assert [host.masks for host in reports[0].hosts] == [(HERE,), ()]
    assert json.loads(network.as_json(reports[1]))["hosts"][0]["masks"] == [HERE]


def test_hosts_of_one_name_are_told_apart() -> None:
    report = examine(self("box", HERE, host="1"), self("box", THERE, host="2"))[0]
    assert [host.name for host in report.hosts] == ["box (rank 0)", "box (rank 1)"]


def test_rank_that_can_take_no_part_is_told_on_all() -> None:
    reports = examine(self("a", HERE), self("b", THERE), self("b", THERE, wrong="HPCOMM_TIMEOUT='x'"))
    for report in reports:
        assert not report.ok
        assert report.pairs[0].problems[0].said == "b takes no part: HPCOMM_TIMEOUT='x'"


def test_rank_that_can_take_no_part_is_told_where_there_is_one_host() -> None:
    for report in examine(self("a", HERE), self("a", HERE, wrong="HPCOMM_TIMEOUT='x'")):
        assert not report.ok
        assert network.rows(report) == [("", "fail", "a takes no part: HPCOMM_TIMEOUT='x'", "hpcomm doctor on a")]


def test_host_that_cannot_listen_is_told_on_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def listen(bind: str) -> socket.socket:
        raise OSError("Too many open files")

    monkeypatch.setattr(reach, "_listen", listen)
    for report in examine(self("a", HERE), self("b", THERE)):
        assert "cannot listen: Too many open files" in report.pairs[0].problems[0].said


def test_one_host_has_nothing_to_test() -> None:
    report = examine(self("a", HERE), self("a", HERE))[0]
    assert report.ok
    assert network.summary(report) == "all ranks are on a: nothing to test between hosts"


def test_report_is_json_and_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    report = examine(self("a", HERE, asked="eth"), self("b", THERE))[0]
    whole = json.loads(network.as_json(report))
    assert whole["ok"] is True
    assert [one["name"] for one in whole["hosts"]] == ["a", "b"]
    assert whole["pairs"][0]["hosts"] == ["a", "b"]
    assert whole["calls"][0]["called"] == "b"
    network.show(report, Console(width=200))
    told = capsys.readouterr().out
    assert "a: rank 0; eth0 127.0.0.1/32, MTU 1500 (HPCOMM_SOCKET_IFNAME=eth)" in told
    assert f"{VARIABLE} differs" in told


def test_hosts_with_and_without_rdma(capsys: pytest.CaptureFixture[str]) -> None:
    report = examine(self("a", HERE, rdma=("mlx5_0:1 10.0.0.1 by eth2, 100 Gb/s",)), self("b", THERE))[0]
    assert report.ok
    assert [(note.said, note.fix) for note in report.notes] == [
        ("a can use verbs, but b cannot: between them it is tcp", "hpcomm doctor --no-network on b says why")
    ]
    assert [one["rdma"] for one in json.loads(network.as_json(report))["hosts"]] == [list(report.hosts[0].rdma), []]
    network.show(report, Console(width=200))
    assert "(HPCOMM_SOCKET_IFNAME is not set); RDMA: mlx5_0:1 10.0.0.1 by eth2, 100 Gb/s\n" in capsys.readouterr().out


def test_hosts_that_all_have_rdma_are_fine() -> None:
    report = examine(self("a", HERE, rdma=("mlx5_0:1",)), self("b", THERE, rdma=("mlx5_0:1",)))[0]
    assert not report.notes


def test_progress_is_shown_on_a_terminal_by_rank_0(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then takes what it writes to for a terminal
    monkeypatch.setenv("TERM", "xterm")
    ended: list[bool] = []

    def rank(world: Any) -> None:
        me = self("a", HERE) if world.rank == 0 else self("b", THERE)
        ended.append(network.main(launch.find(world), me, 20.0, 2.0, False))

    threads = [threading.Thread(target=rank, args=(world,), daemon=True) for world in thread_worlds(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert ended == [True, True]
    out, err = capfd.readouterr()
    assert "calling the other hosts" in err
    assert "calling" not in out
    assert out.count("pairs of hosts are fine") == 1


def test_rows_with_one_fix_are_cut_short() -> None:
    hosts = tuple(host(f"h{i}", eth0(i)) for i in range(5))
    problem = verdict.Problem("stalls [fd00::1]", "less", "fail")
    slight = verdict.Problem("odd")
    pairs = tuple(verdict.Pair((a, b), "fail", (slight, problem)) for a in range(5) for b in range(a + 1, 5))
    rows = network.rows(network.Report(hosts, pairs, (), ()))
    assert [row[1] for row in rows] == ["fail"] * 5 + ["warn"] * 5
    rows = rows[:5]
    assert rows[-1] == ("", "fail", "and 6 more with this fix: --json has them", "less")


def test_summary() -> None:
    def pair(result: str, rate: float) -> verdict.Pair:
        return verdict.Pair((0, 1), result, (), 1e-3 if rate == 1e8 else 2e-3, rate, 1500)

    hosts = (H1, H2)
    pairs = (pair("fail", 0.0), pair("warn", 1e8), pair("ok", 2e9))
    assert network.summary(network.Report(hosts, pairs, (), ())) == (
        "1 of 3 pairs of hosts are fine, 1 have warnings, 1 fail: "
        "1.00 ms to 2.00 ms to connect, 100 MB/s to 2.00 GB/s for 1 MiB, MTU 1500 passes"
    )
    told = "0 of 1 pairs of hosts are fine, 0 have warnings, 1 fail"
    assert network.summary(network.Report(hosts, pairs[:1], (), ())) == told


def test_progress_is_bounded_by_what_is_told() -> None:
    assert reach.longest(200, 3.0, 60.0) > 4 * 2 * 3.0 + 60.0
