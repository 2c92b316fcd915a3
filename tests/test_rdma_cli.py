"""hpcomm info --devices and hpcomm doctor's look at RDMA, on hosts made of files."""

import json
import os
import re
import resource
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from conftest import run_threads, thread_worlds

import hpcomm
from hpcomm import Device, _core
from hpcomm.cli import doctor, nics, rdma
from hpcomm.cli import main as command
from hpcomm.cli.verdict import FAIL, OK, WARN, Check
from hpcomm.config import Config

GIB = 2**30
IPV4 = "0000:0000:0000:0000:0000:ffff:0a4d:0001"
LINK_LOCAL = "fe80:0000:0000:0000:d8a5:79ff:fe1c:8d2a"
TABLE = ((LINK_LOCAL, "IB/RoCE v1"), (LINK_LOCAL, "RoCE v2"), (IPV4, "IB/RoCE v1"), (IPV4, "RoCE v2"))
EMPTY = "0000:0000:0000:0000:0000:0000:0000:0000"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n", encoding="ascii")


class Host:
    """A folder that looks like a host's root."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.devices: list[Device] = []
        self.cpus({0: 0, 1: 0})

    def cpus(self, nodes: dict[int, int]) -> None:
        for cpu, node in nodes.items():
            (self.root / f"sys/devices/system/cpu/cpu{cpu}/node{node}").mkdir(parents=True)

    def nic(self, name: str = "mlx5_0", node: int = 0) -> None:
        """Its door, too."""
        number = len(list((self.root / "sys/class/infiniband").glob("*")))
        write(self.root / "sys/class/infiniband" / name / "device/numa_node", str(node))
        write(self.root / f"sys/class/infiniband_verbs/uverbs{number}/ibdev", name)
        write(self.root / f"dev/infiniband/uverbs{number}", "")

    def port(
        self,
        name: str = "mlx5_0",
        port: int = 1,
        *,
        state: str = "4: ACTIVE",
        physical: str = "5: LinkUp",
        link_layer: str = "Ethernet",
        gids: tuple[tuple[str, str], ...] = TABLE,
        netdev: str = "eth2",
        netdev_mtu: int = 9000,
        **said: Any,
    ) -> None:
        """What the kernel says of it; said: what libibverbs does."""
        if not (self.root / "sys/class/infiniband" / name).exists():
            self.nic(name)
        folder = self.root / "sys/class/infiniband" / name / "ports" / str(port)
        for file, text in (("state", state), ("phys_state", physical), ("link_layer", link_layer)):
            write(folder / file, text)
        write(folder / "rate", "100 Gb/sec (4X EDR)")
        for i, (gid, kind) in enumerate(gids):
            write(folder / f"gids/{i}", gid)
            if gid != EMPTY:
                write(folder / f"gid_attrs/types/{i}", kind)
                write(folder / f"gid_attrs/ndevs/{i}", netdev)
        write(self.root / "sys/class/net" / netdev / "mtu", str(netdev_mtu))
        device = Device(
            name, port, state.split()[1].lower(), link_layer, netdev, "::ffff:10.77.0.1", 3, 0, 4096, 100.0, 0, ""
        )
        self.devices.append(replace(device, **said))

    def examine(self, ranks: int = 2, **more: Any) -> dict[str, Check]:
        here = rdma.Here(self.root, devices=tuple(self.devices), memory=8 * GIB, cpus=frozenset({0, 1}))
        found = rdma.examine(replace(here, **more), ranks)
        assert len({check.name for check in found}) == len(found)
        assert all(check.fix for check in found if check.result != OK)
        return {check.name.removeprefix("RDMA").strip(): check for check in found}


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def told(check: Check) -> tuple[str, str, str]:
    return check.result, check.seen, check.fix


# ---- doctor: no device -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [{}, {"built": False}, {"missing": "no such file"}, {"memlock": 65536}])
def test_host_without_a_device_is_fine(host: Host, more: dict[str, Any]) -> None:
    assert list(map(told, host.examine(**more).values())) == [(OK, "none here: tcp is used between hosts", "")]


def test_verbs_asked_for_where_there_is_no_device(host: Host) -> None:
    (check,) = host.examine(transport="shm,verbs").values()
    assert check.result == FAIL
    assert check.fix == "HPCOMM_TRANSPORT=shm,verbs,tcp, or leave it unset"
    (check,) = host.examine(transport="shm,verbs,tcp").values()
    assert check.result == OK
    (check,) = host.examine(asked="mlx5").values()
    assert (check.result, check.seen) == (WARN, "no RDMA device here, but HPCOMM_DEVICES=mlx5")


# ---- doctor: all is well ---------------------------------------------------------------------------------------------


def test_device_that_can_be_used(host: Host) -> None:
    host.port()
    found = host.examine()
    assert {check.result for check in found.values()} == {OK}
    assert not any(check.fix for check in found.values())
    assert list(found) == ["build", "library", "access", "mlx5_0:1", "memlock", "NUMA"]
    assert found["access"].seen == "ib_uverbs is loaded, /dev/infiniband/uverbs0 can be opened"
    assert found["mlx5_0:1"].seen == "ACTIVE, Ethernet by eth2, GID 10.77.0.1 (index 3), MTU 4096, 100 Gb/s"
    assert found["NUMA"].seen == "mlx5_0 on node 0; this process on node 0"


def test_infiniband_port_that_can_be_used(host: Host) -> None:
    host.port(link_layer="InfiniBand", gids=((LINK_LOCAL, "IB/RoCE v1"),), netdev="", lid=7, gid="fe80::1", gid_index=0)
    found = host.examine()
    assert {check.result for check in found.values()} == {OK}
    assert found["mlx5_0:1"].seen == "ACTIVE, InfiniBand, GID fe80::1, LID 7 (index 0), MTU 4096, 100 Gb/s"


# ---- doctor: this build, the library, the kernel's door --------------------------------------------------------------


def test_build_without_verbs(host: Host) -> None:
    host.port()
    host.devices = []
    found = host.examine(built=False)
    assert told(found["build"]) == (
        WARN,
        "this hpcomm was built without rdma-core's headers: it has no verbs",
        "apt-get install -y libibverbs-dev, then install hpcomm again",
    )
    assert found["mlx5_0:1"].seen == "ACTIVE, Ethernet by eth2, RoCE v2 GID 10.77.0.1 (index 3), 100 Gb/s"


def test_no_library(host: Host) -> None:
    host.port()
    host.devices = []
    found = host.examine(missing="libibverbs.so.1: cannot open shared object file")
    assert told(found["library"]) == (
        WARN,
        "libibverbs.so.1 cannot be loaded: libibverbs.so.1: cannot open shared object file",
        "apt-get install -y libibverbs1 ibverbs-providers",
    )


def test_library_without_the_device_s_driver(host: Host) -> None:
    host.port("mlx5_0")
    host.port(
        "irdma0", mtu=0, gid="", gid_index=-1, why="libibverbs does not see it: apt-get install ibverbs-providers"
    )
    found = host.examine()
    assert told(found["library"]) == (
        WARN,
        "irdma0: libibverbs does not see it",
        "apt-get install -y libibverbs1 ibverbs-providers",
    )
    assert found["irdma0:1"].result == OK  # nothing is wrong with the port


def test_uverbs_not_loaded(host: Host) -> None:
    host.port(mtu=0, gid="", gid_index=-1, why="libibverbs does not see it")
    (host.root / "sys/class/infiniband_verbs/uverbs0/ibdev").unlink()
    found = host.examine()
    assert told(found["access"]) == (
        WARN,
        "the kernel knows mlx5_0, but ib_uverbs is not loaded for it",
        "modprobe ib_uverbs",
    )
    assert found["library"].result == OK


def test_container_without_the_device_file(host: Host) -> None:
    host.port(mtu=0, gid="", gid_index=-1, why="libibverbs does not see it")
    (host.root / "dev/infiniband/uverbs0").unlink()
    check = host.examine()["access"]
    assert (check.result, check.seen) == (WARN, "mlx5_0 is /dev/infiniband/uverbs0, which is not there")
    assert check.fix == "in a container: --device=/dev/infiniband; else udevadm trigger"


def test_device_file_of_others(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.port()

    def refused(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refused)
    check = host.examine()["access"]
    assert (check.result, check.seen) == (WARN, "mlx5_0: /dev/infiniband/uverbs0: Permission denied")
    assert check.fix == "chmod a+rw /dev/infiniband/uverbs0; in a container: --device=/dev/infiniband"


# ---- doctor: ports ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("link_layer", "state", "physical", "seen", "fix"),
    [
        (
            "Ethernet", "1: DOWN", "3: Disabled", "DOWN (Ethernet, Disabled)",
            "ip link set eth2 up; if it is up: the cable, or the switch's port (ethtool eth2)",
        ),
        (
            "InfiniBand", "2: INIT", "5: LinkUp", "INIT (InfiniBand, LinkUp): no subnet manager has come",
            "apt-get install -y opensm, on one host of the fabric",
        ),
        (
            "InfiniBand", "3: ARMED", "5: LinkUp", "ARMED (InfiniBand, LinkUp): the subnet manager has not finished",
            "opensm's log on the host that runs it",
        ),
        (
            "InfiniBand", "1: DOWN", "2: Polling", "DOWN (InfiniBand, Polling)",
            "the cable, or the switch's port: ibstat, iblinkinfo",
        ),
        (
            "InfiniBand", "1: DOWN", "3: Disabled", "DOWN (InfiniBand, Disabled)",
            "ibportstate -C mlx5_0 -P 1 -D 0 1 enable",
        ),
    ],
)  # fmt: skip
def test_port_that_is_not_active(host: Host, link_layer: str, state: str, physical: str, seen: str, fix: str) -> None:
    host.port(link_layer=link_layer, state=state, physical=physical, why="the port is not active")
    assert told(host.examine()["mlx5_0:1"]) == (WARN, seen, fix)


def test_second_port_without_a_cable_does_no_harm(host: Host) -> None:
    host.port()
    host.port(port=2, state="1: DOWN", physical="3: Disabled", netdev="eth3", why="the port is not active")
    result, seen, fix = told(host.examine()["mlx5_0:2"])
    assert (result, seen) == (OK, "DOWN (Ethernet, Disabled); not used")
    assert fix.startswith("ip link set eth3 up")


@pytest.mark.parametrize(
    ("gids", "netdev_of", "has", "netdev"),
    [
        ((), "", "no GID at all", "its netdev"),
        ((), "parent", "no GID at all", "eth2"),
        (((EMPTY, ""), (EMPTY, "")), "device/net/eth2", "no GID at all", "eth2"),
        (TABLE[::2], "", "2 of another kind", "eth2"),
    ],
)
def test_ethernet_port_without_a_roce_v2_gid(
    host: Host, gids: tuple[tuple[str, str], ...], netdev_of: str, has: str, netdev: str
) -> None:
    host.port(gids=gids, gid="", gid_index=-1, why="no RoCE v2 address")
    if netdev_of:
        write(host.root / "sys/class/infiniband/mlx5_0" / netdev_of, "eth2")
    result, seen, fix = told(host.examine()["mlx5_0:1"])
    assert (result, seen) == (WARN, f"ACTIVE (Ethernet), but no RoCE v2 GID ({has})")
    assert fix.startswith(f"give {netdev} an IPv4 address: ip addr add 10.0.0.1/24 dev")


def test_gid_of_its_own_link(host: Host) -> None:
    host.port(gids=TABLE[:2], gid="fe80::d8a5:79ff:fe1c:8d2a", gid_index=1)
    result, seen, fix = told(host.examine()["mlx5_0:1"])
    assert result == OK
    assert "GID fe80::d8a5:79ff:fe1c:8d2a (index 1)" in seen
    assert fix == (
        "give eth2 an IPv4 address: ip addr add 10.0.0.1/24 dev eth2; "
        "fe80::d8a5:79ff:fe1c:8d2a is reached from its own link only"
    )


def test_gid_that_is_a_global_ipv6_address(host: Host) -> None:
    host.port(gids=(*TABLE[:2], ("fd00:0000:0000:0000:0000:0000:0000:0001", "RoCE v2")), gid="fd00::1", gid_index=2)
    host.devices = []
    result, seen, fix = told(host.examine()["mlx5_0:1"])
    assert (result, fix) == (OK, "")
    assert "RoCE v2 GID fd00::1 (index 2)" in seen


@pytest.mark.parametrize(
    ("netdev", "active", "fix"),
    [
        (9000, 4096, ""),
        (9000, 1024, "eth2's MTU allows 4096: ip link set eth2 down, then up"),
        (1500, 1024, "larger packets cost less, if all hosts and switches take them: ip link set eth2 mtu 4200"),
        (1500, 512, "eth2's MTU allows 1024: ip link set eth2 down, then up"),
        (4200, 4096, ""),
    ],
)
def test_mtu(host: Host, netdev: int, active: int, fix: str) -> None:
    host.port(netdev_mtu=netdev, mtu=active)
    check = host.examine()["mlx5_0:1"]
    assert (check.result, check.fix) == (OK, fix)
    assert f"MTU {active}" in check.seen


@pytest.mark.parametrize(("netdev", "roce"), [(0, 0), (351, 0), (352, 256), (1500, 1024), (2143, 1024), (4192, 4096)])
def test_mtu_of_roce(netdev: int, roce: int) -> None:
    assert rdma.roce_mtu(netdev) == roce


def test_port_that_hpcomm_cannot_use_for_another_reason(host: Host) -> None:
    host.port(why="the device has no shared receive queues")
    assert told(host.examine()["mlx5_0:1"]) == (
        WARN,
        "the device has no shared receive queues",
        "ibv_devinfo -v -d mlx5_0 -i 1",
    )


# ---- doctor: the process ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "result", "seen"),
    [
        (resource.RLIM_INFINITY, OK, "unlimited"),
        (2**33, OK, "8 GiB a rank, whose windows can take 4 GiB"),
        (2**16, WARN, "a rank may lock 64 KiB; its windows can take 4 GiB"),
        (2**23, WARN, "a rank may lock 8 MiB; its windows can take 4 GiB"),
    ],
)
def test_memlock(host: Host, limit: int, result: str, seen: str) -> None:
    host.port()
    check = host.examine(memlock=limit)["memlock"]
    assert (check.result, check.seen) == (result, seen)
    if result == WARN:
        for fix in ("ulimit -l unlimited", "/etc/security/limits.d", "--ulimit memlock=-1"):
            assert fix in check.fix


@pytest.mark.parametrize(
    ("capabilities", "uids", "result"),
    [
        ("000001ffffffffff", "0 0 4294967295", OK),
        ("0000000000004000", "0 0 4294967295", OK),
        ("000001ffffffbfff", "0 0 4294967295", WARN),
        ("000001ffffffffff", "0 100000 65536", WARN),  # root of its own namespace only
    ],
)
def test_memlock_of_root(host: Host, capabilities: str, uids: str, result: str) -> None:
    host.port()
    write(host.root / "proc/self/status", f"Name:\tpython\nCapEff:\t{capabilities}\nSeccomp:\t0")
    write(host.root / "proc/self/uid_map", f"   {uids}")
    check = host.examine(memlock=65536)["memlock"]
    assert check.result == result
    assert ("CAP_IPC_LOCK" in check.seen) == (result == OK)


def test_process_far_from_the_nic(host: Host) -> None:
    host.nic(node=1)
    host.port()
    assert told(host.examine()["NUMA"]) == (
        WARN,
        "mlx5_0 on node 1; this process on node 0",
        "start the ranks there: numactl --cpunodebind=1 --preferred=1",
    )
    host.cpus({2: 1})
    check = host.examine(cpus=frozenset({0, 2}))["NUMA"]
    assert (check.result, check.seen) == (OK, "mlx5_0 on node 1; this process on nodes 0, 1")


def test_node_that_the_kernel_does_not_say(host: Host) -> None:
    host.nic(node=-1)
    host.port(netdev="eth0")
    assert host.examine()["NUMA"].seen == "the kernel does not say where mlx5_0 is; this process on node 0"
    write(host.root / "sys/class/net/eth0/device/numa_node", "0")  # a software device has its NIC's
    assert host.examine()["NUMA"].seen == "mlx5_0 on node 0; this process on node 0"


# ---- doctor: the settings --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "allowed"),
    [
        ("mlx5", ["mlx5_0:1", "mlx5_1:1", "mlx5_1:2", "mlx5_10:1"]),
        ("mlx5_1", ["mlx5_1:1", "mlx5_1:2", "mlx5_10:1"]),
        ("=mlx5_1", ["mlx5_1:1", "mlx5_1:2"]),
        ("mlx5_0, =mlx5_1", ["mlx5_0:1", "mlx5_1:1", "mlx5_1:2"]),
        ("=mlx5_0:1,mlx5_1:2", ["mlx5_0:1", "mlx5_1:2"]),
        ("^mlx5_1", ["mlx5_0:1", "rxe0:1"]),
        ("^=mlx5_1:2,rxe0", ["mlx5_0:1", "mlx5_1:1", "mlx5_10:1"]),
        ("mlx4", []),
    ],
)
def test_grammar_of_devices(asked: str, allowed: list[str]) -> None:
    assert nics.is_list(asked)
    ports = [("mlx5_0", 1), ("mlx5_1", 1), ("mlx5_1", 2), ("mlx5_10", 1), ("rxe0", 1)]
    assert [f"{name}:{port}" for name, port in ports if nics.allows(asked, name, port)] == allowed


NO_LISTS = ["mlx5_0:x", "mlx5_0:0", "mlx5_0:256", "mlx5_0:", ":1", "^", "^^mlx5_0", "a/b", ",", "mlx5_0,=", "a" * 64]


@pytest.mark.parametrize("asked", NO_LISTS)
def test_devices_that_are_no_list(host: Host, asked: str) -> None:
    def wrong(check: Check) -> bool:
        return (check.result, check.seen) == (FAIL, f"HPCOMM_DEVICES={asked} is no list of devices")

    assert wrong(host.examine(asked=asked)[""])
    host.port()
    assert wrong(host.examine(asked=asked)["choice"])


def test_devices_that_are_none(host: Host) -> None:
    host.port()
    host.port("mlx5_1")
    assert told(host.examine(asked="mlx4")["choice"]) == (
        WARN,
        "HPCOMM_DEVICES=mlx4 names none of mlx5_0:1, mlx5_1:1",
        "name one of them in HPCOMM_DEVICES, or leave it unset",
    )
    assert host.examine(asked="mlx4", transport="verbs")["choice"].result == FAIL
    check = host.examine(asked="mlx5_1")["choice"]
    assert (check.result, check.seen) == (OK, "HPCOMM_DEVICES=mlx5_1: mlx5_1:1")


def test_devices_that_cannot_be_used(host: Host) -> None:
    host.port()
    host.port("mlx5_1", state="1: DOWN", why="the port is not active")
    assert told(host.examine(asked="=mlx5_1")["choice"]) == (
        WARN,
        "HPCOMM_DEVICES==mlx5_1 names only mlx5_1:1, which cannot be used",
        "HPCOMM_DEVICES=mlx5_0:1, or leave it unset",
    )


def test_verbs_alone_with_no_port(host: Host) -> None:
    host.port(state="1: DOWN", why="the port is not active")
    assert told(host.examine(transport="shm,verbs")["choice"]) == (
        FAIL,
        "HPCOMM_TRANSPORT=shm,verbs allows no tcp, and no port can be used",
        "the fixes above, or HPCOMM_TRANSPORT=shm,verbs,tcp",
    )
    assert "choice" not in host.examine(transport="shm,verbs,tcp")


def test_doctor_tells_them_among_the_others(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.port(state="2: INIT", link_layer="InfiniBand", why="the port is not active")
    here = rdma.Here(host.root, devices=tuple(host.devices))
    monkeypatch.setattr(rdma, "here", lambda config: here)
    report = json.loads(CliRunner().invoke(command, ["doctor", "--json"]).output)
    assert [check["name"] for check in report["checks"]].count("RDMA mlx5_0:1") == 1
    assert "opensm" in CliRunner().invoke(command, ["doctor"]).output


def test_settings_that_have_no_meaning_do_not_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCOMM_TIMEOUT", "soon")
    assert doctor.verbs(2)


# ---- the setting, of a job -------------------------------------------------------------------------------------------


def refusals(**config: Any) -> list[hpcomm.HpcommError]:
    """What init raises on each of two ranks."""
    raised: list[hpcomm.HpcommError] = []

    def rank(world: Any) -> None:
        try:
            hpcomm.init(world, timeout=20, **config).close()
        except hpcomm.HpcommError as error:
            raised.append(error)

    threads = [threading.Thread(target=rank, args=(world,), daemon=True) for world in thread_worlds(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return raised


@pytest.mark.parametrize(("transports", "taken"), [("", "shm"), ("verbs,tcp", "tcp")])
def test_job_whose_devices_are_none_goes_by_the_next_transport(transports: str, taken: str) -> None:
    def seen(ctx: hpcomm.Context) -> tuple[str, bool]:
        noted = [note for note in ctx.notes if note.startswith(f"cannot use verbs: rank {ctx.rank} ")]
        return ctx.peers[1 - ctx.rank].transport, any(lacks_verbs(note) for note in noted)

    found = run_threads(2, seen, devices="nosuch", transport=transports)
    assert found == [(taken, True)] * 2


def lacks_verbs(said: str) -> bool:
    """Of this host, where no device is named "nosuch", whatever else it has."""
    why = ("no RDMA device, or none that HPCOMM_DEVICES allows", "built without", "no libibverbs")
    return any(reason in said for reason in why)


def test_job_that_has_nothing_but_verbs_is_told_on_all_ranks() -> None:
    raised = refusals(devices="nosuch", transport="verbs")
    assert len(raised) == 2
    for error in raised:
        assert isinstance(error, hpcomm.NotSupported)
        told = re.search(r"no transport reaches rank 1 .* from rank 0 .*: verbs: rank 0 (.*)", str(error))
        assert told is not None
        assert lacks_verbs(told[1])


@pytest.mark.parametrize("devices", NO_LISTS)
def test_devices_that_are_no_list_are_refused(devices: str) -> None:
    raised = refusals(devices=devices)
    assert len(raised) == 2
    for error in raised:
        assert isinstance(error, hpcomm.ConfigError)
        assert f'HPCOMM_DEVICES is "{devices}", in which "' in str(error)
        assert "mlx5_0,mlx5_1:1" in str(error)


# ---- info ------------------------------------------------------------------------------------------------------------


def info(*options: str) -> str:
    result = CliRunner().invoke(command, ["info", *options], catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


ROCE = Device("mlx5_0", 1, "active", "Ethernet", "eth2", "::ffff:10.77.0.1", 3, 0, 1024, 100.0, 1, "")
INFINIBAND = Device("mlx5_1", 2, "init", "InfiniBand", "", "fe80::1", 0, 0, 4096, 2.5, -1, "the port is not active")


def test_devices_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_core, "devices", lambda: (ROCE, INFINIBAND))
    report = json.loads(info("--devices", "--json"))
    assert report["none"] == ""
    assert [Device(**{k: v for k, v in row.items() if k != "usable"}) for row in report["devices"]] == [
        ROCE,
        INFINIBAND,
    ]
    assert [row["usable"] for row in report["devices"]] == [True, False]
    _title, _head, first, second = info("--devices").splitlines()
    assert " ".join(first.split()) == "mlx5_0:1 active Ethernet 10.77.0.1 3 eth2 1024 100 1 can use it"
    assert " ".join(second.split()) == "mlx5_1:2 init InfiniBand fe80::1 0 - 4096 2.5 - the port is not active"


def test_ports_that_a_job_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_core, "devices", lambda: (ROCE, replace(ROCE, name="mlx5_2"), INFINIBAND))

    def usable(**settings: Any) -> list[str]:
        return [port.partition(" ")[0] for port in rdma.usable(Config(**settings))]

    assert usable() == usable(transport="verbs,tcp") == ["mlx5_0:1", "mlx5_2:1"]
    assert usable(devices="^mlx5_0") == ["mlx5_2:1"]
    assert usable(transport="shm,tcp") == []


def test_info_tells_of_verbs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_core, "devices", lambda: (ROCE, INFINIBAND))
    monkeypatch.setattr(_core, "build_info", lambda: "compiler=gcc; isa=generic; verbs=no")
    monkeypatch.setattr(rdma, "LIBRARY", "libibverbs.so.none")
    facts = json.loads(info("--json"))
    assert facts["verbs"] == "not built in: apt-get install -y libibverbs-dev, then install hpcomm again"
    assert facts["libibverbs"] == "not here: apt-get install -y libibverbs1 ibverbs-providers"
    assert facts["rdma_devices"] == ["mlx5_0:1 10.77.0.1 by eth2, 100 Gb/s"]
    assert "mlx5_0:1 10.77.0.1" in info()


def test_no_device_is_a_sentence(monkeypatch: pytest.MonkeyPatch, host: Host) -> None:
    def unsupported() -> tuple[Device, ...]:
        raise hpcomm.NotSupported("devices: built without")

    monkeypatch.setattr(_core, "devices", tuple)
    assert rdma.listed(host.root) == ((), "this host has no RDMA device: tcp is used between hosts")
    monkeypatch.setattr(_core, "devices", unsupported)
    assert rdma.listed(host.root) == ((), "this host has no RDMA device: tcp is used between hosts")
    assert rdma.none_usable(host.root) == "none here: tcp is used between hosts"
    host.port()
    assert rdma.listed(host.root) == ((), "built without")
    assert rdma.none_usable(host.root) == "none that can be used: hpcomm info --devices"


def test_devices_of_this_machine() -> None:
    kernel = {(nic.name, port.number) for nic in nics.find(Path("/")) for port in nic.ports}
    if not rdma.built() or rdma.library_missing():
        with pytest.raises(hpcomm.NotSupported, match="apt-get install"):
            hpcomm.devices()
        assert rdma.listed()[0] == ()
    else:
        assert {(device.name, device.port) for device in hpcomm.devices()} == kernel
    done = subprocess.run(
        [sys.executable, "-m", "hpcomm.cli", "info", "--devices"], capture_output=True, text=True, check=True
    )
    if not kernel:
        assert done.stdout == "this host has no RDMA device: tcp is used between hosts\n"
    for device in rdma.listed()[0]:
        assert f"{device.name}:{device.port}" in done.stdout
