"""hpcomm doctor --network on hosts with a firewall, a wrong interface, a link that swallows large packets."""

import json
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

from hpcomm import launch
from hpcomm.cli import main
from hpcomm.cli.interfaces import VARIABLE

from .bodies import who
from .hosts import HEAD, Cluster
from .job import Desk, Job

FIRST, LAST = 32768, 60999  # the kernel's ephemeral ports
QUICK = ("-w", "0.5")


class Examined(NamedTuple):
    codes: list[int]  # of each rank
    report: dict[str, Any]

    def pair(self, *hosts: str) -> dict[str, Any]:
        return next(pair for pair in self.report["pairs"] if pair["hosts"] == list(hosts))

    def problems(self, *hosts: str) -> list[str]:
        """Of a pair. How long they were silent counts as what was asked for: the machine may have taken some more."""
        told = [f"{problem['said']} -> {problem['fix']}" for problem in self.pair(*hosts)["problems"]]
        return [re.sub(r"no answer in \d\.\d s", "no answer in 0.5 s", one) for one in told]


def doctor(desk: Desk, options: Sequence[str], rules: Mapping[int, str]) -> tuple[int, str]:
    """A rank of it. What is broken in the network does not keep the ranks from telling: they meet at the desk."""
    if desk.rank in rules:
        os.environ[VARIABLE] = rules[desk.rank]
    find = launch.find
    launch.find = lambda _, config: find(desk.world(), config)  # type: ignore[assignment, misc]
    done = CliRunner().invoke(main, ["doctor", "--network", "--json", *options], catch_exceptions=False)
    return done.exit_code, done.stdout


def examine(cluster: Cluster, *options: str, rules: Mapping[int, str] | None = None, **job: Any) -> Examined:
    """What the ranks find, one on each host. rules: HPCOMM_SOCKET_IFNAME of some ranks."""
    with Job(cluster, doctor, options, rules or {}, **{"by": "desk", **job}) as ranks:
        ended = ranks.values()
    return Examined([code for code, _ in ended], json.loads(ended[0][1]))


def test_hosts_that_reach_each_other(cluster: Cluster) -> None:
    seen = examine(cluster)
    assert seen.codes == [0] * len(cluster.hosts)
    assert seen.report["ok"]
    assert [host["name"] for host in seen.report["hosts"]] == list(cluster.hosts)
    assert [pair["result"] for pair in seen.report["pairs"]] == ["ok"] * 6
    assert {pair["mtu"] for pair in seen.report["pairs"]} == {1500}
    assert [note for note in seen.report["notes"] if "slowest pair" not in note["said"]] == []  # a busy machine's say


def test_it_runs_under_mpirun(cluster: Cluster) -> None:
    command = [*cluster.mpirun(ranks_per_host=2), sys.executable, "-m", "hpcomm.cli", "doctor", "--network"]
    said = cluster.run(HEAD, command).stdout
    assert "6 of 6 pairs of hosts are fine" in said
    assert re.search(r"h2: ranks 2, 3; eth0 10\.77\.0\.2/24, MTU 1500", said)


def test_firewall_is_named_with_its_port_and_direction(cluster: Cluster) -> None:
    cluster.firewall("h2", FIRST, LAST)
    try:
        seen = examine(cluster, *QUICK)
        assert seen.codes == [1] * 4
        results = {tuple(pair["hosts"]): pair["result"] for pair in seen.report["pairs"]}
        assert [pair for pair, result in results.items() if result == "ok"] == [
            ("h1", "h3"),
            ("h1", "h4"),
            ("h3", "h4"),
        ]
        assert results["h1", "h2"] == "warn"  # of two ranks the higher one calls
        assert results["h2", "h3"] == results["h2", "h4"] == "fail"
        port = next(call["port"] for call in seen.report["calls"] if call["called"] == "h2")
        told = f"cannot reach h2 at {cluster.address('h2')}:{port} by eth0 (no answer in 0.5 s: a firewall drops it)"
        fix = f"let TCP to ports {FIRST}-{LAST} of h2 pass"
        assert seen.problems("h1", "h2") == [f"h1 {told}; h2 can reach h1 -> {fix}"]
        (problem,) = seen.problems("h2", "h3")
        assert problem == f"h3 {told}; h2 can reach h3, but of two ranks the higher one calls -> {fix}"

        cluster.firewall("h1", FIRST, LAST)
        seen = examine(cluster, *QUICK)
        assert [pair["result"] for pair in seen.report["pairs"]] == ["fail"] * 5 + ["ok"]
        assert len(seen.problems("h1", "h2")) == 2
    finally:
        cluster.open("h1")
        cluster.open("h2")


def test_host_that_cannot_be_reached(cluster: Cluster) -> None:
    cluster.cut("h4")
    seen = examine(cluster, *QUICK)
    cluster.restore("h4")
    assert seen.codes == [1] * 4
    assert {pair["result"] for pair in seen.report["pairs"] if "h4" in pair["hosts"]} == {"fail"}
    assert {pair["result"] for pair in seen.report["pairs"] if "h4" not in pair["hosts"]} == {"ok"}


def test_network_that_leads_nowhere_and_addresses_that_all_have() -> None:
    with Cluster(2, rate=None, second=True) as two:
        two.add_private("docker0", "172.17.0.1/16")
        two.cut("h2", interface="eth1")
        seen = examine(two, *QUICK)
        assert seen.codes == [0, 0]
        problems = seen.problems("h1", "h2")
        assert len(problems) == 2
        assert f"h1 cannot reach h2 at {two.address('h2', 'eth1')}:" in problems[0]
        assert problems[0].endswith("if eth1 is not meant for it: HPCOMM_SOCKET_IFNAME=^lo,docker,br-,eth1")

        def asked(rule: str) -> Examined:
            return examine(two, *QUICK, rules={0: rule, 1: rule})

        assert asked("^lo,docker,br-,eth1").pair("h1", "h2")["result"] == "ok"
        assert asked("=eth0").pair("h1", "h2")["result"] == "ok"

        problems = asked("^lo,eth1").problems("h1", "h2")
        said = "172.17.0.1 by docker0 of h2 is an address of h1 too: h1 answers there itself"
        assert problems[0] == f"{said} -> HPCOMM_SOCKET_IFNAME=^lo,eth1,docker0"

        seen = asked("eth1")
        assert seen.codes == [1, 1]
        said = f"h1 does answer h2 at {two.address('h1')} by eth0, which HPCOMM_SOCKET_IFNAME='eth1' leaves out"
        assert f"{said} -> HPCOMM_SOCKET_IFNAME=eth0" in seen.problems("h1", "h2")

        seen = examine(two, *QUICK, rules={1: "wlan"})
        assert seen.codes == [1, 1]
        assert "HPCOMM_SOCKET_IFNAME differs: not set on h1; 'wlan' on h2" in seen.report["notes"][0]["said"]
        assert "allows no interface of h2" in seen.problems("h1", "h2")[0]


def test_hosts_with_ipv6_alone() -> None:
    with Cluster(2, family=6) as two:
        seen = examine(two)
        assert seen.codes == [0, 0]
        assert seen.pair("h1", "h2")["result"] == "ok"
        assert {call["ip"] for call in seen.report["calls"]} == {two.address("h1"), two.address("h2")}


def test_host_behind_a_router_that_translates() -> None:
    """h1 has a private address, and calls the others from one of the router."""
    if shutil.which("nft", path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is None:
        pytest.skip("no nft here; on Debian: apt-get install -y nftables")
    with Cluster(2, rate=None) as two:
        two.translate("h1", inside="192.168.5.1", outside="10.77.0.99")
        with Job(two, who, by="desk", env={"HPCOMM_TIMEOUT": "2"}) as job:
            ended = job.end()
        assert "192.168.5.1" in ended[1].message
        assert "HPCOMM_SOCKET_IFNAME (hpcomm doctor" in ended[1].message
        seen = examine(two, *QUICK)
        assert seen.codes == [1, 1]
        assert [host["masks"] for host in seen.report["hosts"]] == [["10.77.0.99"], []]
        (problem,) = seen.problems("h1", "h2")
        assert "calls of h1 come from 10.77.0.99, which is no address of h1: a router translates addresses" in problem
        assert "-> give each host an address that all others reach" in problem


def test_link_that_swallows_large_packets(tmp_path: Path) -> None:
    with Cluster(3, rate=None, mtu=9000) as three:
        three.narrow("h2", 1500)
        seen = examine(three)
        assert seen.codes == [1] * 3
        assert seen.pair("h1", "h3")["result"] == "ok"
        assert seen.pair("h1", "h3")["mtu"] == 9000
        told = "large data to h2 stalls: eth0 of h1 says MTU 9000, but only 1472+28 pass to h2"
        told += " -> ip link set eth0 mtu 1500"
        assert any(problem.endswith(told) for problem in seen.problems("h1", "h2"))

        # Also where the ranks meet on that very network.
        secret = tmp_path / "secret"
        secret.write_bytes(os.urandom(32))
        secret.chmod(0o600)
        seen = examine(three, by="environment", env={"HPCOMM_SECRET_FILE": str(secret)})
        assert seen.codes == [1] * 3
        assert any(problem.endswith(told) for problem in seen.problems("h1", "h2"))

        for host in three.hosts:
            three.set_mtu(host, 1500)
        assert examine(three).codes == [0] * 3


@pytest.mark.some(1)
@pytest.mark.parametrize(("closed", "works"), [("h2", True), ("h1", False)])
def test_a_job_fares_as_doctor_says(cluster: Cluster, closed: str, works: bool) -> None:
    """Of two ranks the higher one calls: a firewall before the other one does no harm."""
    cluster.firewall(closed, FIRST, LAST)
    try:
        with Job(cluster, who, hosts=["h1", "h2"], by="desk", env={"HPCOMM_TIMEOUT": "5"}) as job:
            ended = job.end()
        seen = examine(cluster, *QUICK)
    finally:
        cluster.open(closed)
    assert [one.error for one in ended] == ([""] * 2 if works else ["Timeout"] * 2)
    assert seen.pair("h1", "h2")["result"] == ("warn" if works else "fail")
