"""The RDMA checks of hpcomm doctor: why the devices of this host cannot be used, and how to fix that.

The checks read files below a root folder, which tests replace, and take all other facts from a Here. A host without an
RDMA device passes the checks: hpcomm then uses tcp.
"""

import ctypes
import os
import resource
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .. import _core
from .._core import Device
from ..bench.hardware import read
from ..config import Config, variable
from ..errors import NotSupported
from . import nics
from .nics import Nic, Port, allows, node_of, number
from .verdict import FAIL, OK, WARN, Check

VARIABLE = variable("devices")
LIBRARY = "libibverbs.so.1"
NONE_HERE = "none here: tcp is used between hosts"
NO_DEVICE = "this host has no RDMA device: tcp is used between hosts"
REBUILD = "apt-get install -y libibverbs-dev, then install hpcomm again"
INSTALL = "apt-get install -y libibverbs1 ibverbs-providers"
CONTAINER = "in a container: --device=/dev/infiniband"
_UNLOCK = (
    "ulimit -l unlimited, for good by /etc/security/limits.d/rdma.conf: * - memlock unlimited; "
    "in a container: --ulimit memlock=-1"
)
_HEADERS = 96  # bytes that the kernel subtracts from a netdev's MTU for RoCE's headers
_MTUS = (256, 512, 1024, 2048, 4096)
_CAP_IPC_LOCK = 14  # capabilities(7): the process may lock any amount of memory


@dataclass(frozen=True)
class Here:
    """Facts about this process and its host."""

    root: Path = Path("/")
    built: bool = True  # whether hpcomm was built with rdma-core's headers
    missing: str = ""  # why libibverbs cannot be loaded
    devices: tuple[Device, ...] = ()  # as libibverbs reports them
    asked: str = ""  # HPCOMM_DEVICES
    transport: str = ""  # HPCOMM_TRANSPORT
    memlock: int = resource.RLIM_INFINITY  # bytes that the process may lock
    memory: int = 0  # bytes available for windows, on the host
    cpus: frozenset[int] = frozenset()  # CPUs on which the process may run

    @property
    def insists(self) -> bool:
        """Whether HPCOMM_TRANSPORT names verbs but no transport over sockets, so that a job cannot use tcp instead."""
        named = self.transport.split(",")
        return "verbs" in named and not {*named} & {*_core.transports("socket")}


def here(config: Config) -> Here:
    return Here(
        built=built(),
        missing=library_missing(),
        devices=listed()[0],
        asked=config.devices,
        transport=config.transport,
        memlock=resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        memory=_core.memory_available(),
        cpus=frozenset(os.sched_getaffinity(0)),
    )


def built() -> bool:
    return "verbs=yes" in _core.build_info()


def library_missing() -> str:
    """Returns why libibverbs cannot be loaded; "" if it can."""
    try:
        ctypes.CDLL(LIBRARY)
    except OSError as error:
        return str(error)
    return ""


def address(device: Device) -> str:
    """Returns the address of a port, such as "10.0.0.1" or "fe80::a288:c203:15:8e42, LID 7"."""
    gid = device.gid.removeprefix("::ffff:") if "." in device.gid else device.gid
    return f"{gid}, LID {device.lid}" if device.lid else gid


def told(device: Device) -> str:
    """Returns text such as "mlx5_0:1 10.0.0.1 by eth2, 100 Gb/s"."""
    by = f" by {device.netdev}" if device.netdev else ""
    return f"{device.name}:{device.port} {address(device)}{by}" + (f", {device.gbits:g} Gb/s" if device.gbits else "")


def listed(root: Path = Path("/")) -> tuple[tuple[Device, ...], str]:
    """Returns all ports of RDMA devices, and "" or the reason why it found none."""
    try:
        devices = _core.devices()
    except NotSupported as error:
        return (), str(error).removeprefix("devices: ") if nics.find(root) else NO_DEVICE
    return devices, "" if devices else NO_DEVICE


def usable(config: Config) -> tuple[str, ...]:
    """Returns the ports that a job with these settings uses, as text; () if its settings exclude verbs."""
    if config.transport and "verbs" not in config.transport.split(","):
        return ()
    return tuple(
        told(device) for device in listed()[0] if device.usable and allows(config.devices, device.name, device.port)
    )


def none_usable(root: Path = Path("/")) -> str:
    return "none that can be used: hpcomm info --devices" if nics.find(root) else NONE_HERE


# ---- the checks ------------------------------------------------------------------------------------------------------


def examine(here: Here, ranks: int) -> list[Check]:
    found = nics.find(here.root)
    if not found:
        return [_none(here)]
    known = {(device.name, device.port): device for device in here.devices}
    ports = [port for nic in found for port in nic.ports]
    usable = [port for port in ports if (port.device, port.number) in known and known[port.device, port.number].usable]
    troubles = {nic.name: trouble for nic in found if (trouble := _trouble(here.root, nic)) is not None}
    # Of a device that it cannot open, libibverbs reports no MTU.
    opened = {device.name for device in here.devices if device.mtu}
    unheard = [device for device in here.devices if device.name not in opened and device.name not in troubles]
    return [
        _build(here),
        _library(here, unheard),
        _access(found, list(troubles.values())),
        *(
            _judge(port, known[port.device, port.number] if port.device in opened else None, here.root, bool(usable))
            for port in ports
        ),
        _memlock(here, ranks),
        _numa(here, found),
        *_choice(here, ports, usable),
    ]


def _none(here: Here) -> Check:
    if (wrong := _no_list("RDMA", here)) is not None:
        return wrong
    if here.insists:
        said = f"no RDMA device here, and {variable('transport')}={here.transport} allows no tcp"
        return Check("RDMA", FAIL, said, f"{variable('transport')}={here.transport},tcp, or leave it unset")
    if here.asked:
        said = f"no RDMA device here, but {VARIABLE}={here.asked}"
        return Check("RDMA", WARN, said, f"leave {VARIABLE} unset, or modprobe the NIC's driver")
    return Check("RDMA", OK, NONE_HERE)


def _no_list(name: str, here: Here) -> Check | None:
    """Returns a failed check if HPCOMM_DEVICES is not a list of devices, which init refuses; otherwise None."""
    if not here.asked or nics.is_list(here.asked):
        return None
    fix = f"{VARIABLE}=mlx5_0,mlx5_1:1 or ^mlx5_2 or =mlx5_1, or leave it unset"
    return Check(name, FAIL, f"{VARIABLE}={here.asked} is no list of devices", fix)


def _build(here: Here) -> Check:
    if here.built:
        return Check("RDMA build", OK, "this hpcomm has verbs")
    return Check("RDMA build", WARN, "this hpcomm was built without rdma-core's headers: it has no verbs", REBUILD)


def _library(here: Here, unheard: Sequence[Device]) -> Check:
    """Checks libibverbs. unheard: devices that libibverbs cannot open though their device files can be opened."""
    if here.missing:
        return Check("RDMA library", WARN, f"{LIBRARY} cannot be loaded: {here.missing}", INSTALL)
    if unheard:
        return Check("RDMA library", WARN, f"{unheard[0].name}: {unheard[0].why.partition(':')[0]}", INSTALL)
    return Check("RDMA library", OK, LIBRARY)


def _access(found: Sequence[Nic], troubles: Sequence[tuple[str, str]]) -> Check:
    """Checks that the device files that libibverbs needs can be opened."""
    if troubles:
        fixes = dict.fromkeys(fix for _, fix in troubles)
        return Check("RDMA access", WARN, "; ".join(said for said, _ in troubles), "; ".join(fixes))
    paths = ", ".join(f"/dev/infiniband/{nic.uverbs}" for nic in found)
    return Check("RDMA access", OK, f"ib_uverbs is loaded, {paths} can be opened")


def _trouble(root: Path, nic: Nic) -> tuple[str, str] | None:
    """Returns why this process cannot open a device file, and the fix; None if it can."""
    if not nic.uverbs:
        return f"the kernel knows {nic.name}, but ib_uverbs is not loaded for it", "modprobe ib_uverbs"
    path = f"/dev/infiniband/{nic.uverbs}"
    try:
        os.close(os.open(root / path[1:], os.O_RDWR | os.O_CLOEXEC))
    except FileNotFoundError:
        return f"{nic.name} is {path}, which is not there", f"{CONTAINER}; else udevadm trigger"
    except OSError as error:
        return f"{nic.name}: {path}: {error.strerror}", f"chmod a+rw {path}; {CONTAINER}"
    return None


# ---- one port --------------------------------------------------------------------------------------------------------


def _judge(port: Port, device: Device | None, root: Path, others: bool) -> Check:
    """Checks one port. others: some port can be used, so a port without a cable, say, is no fault."""
    name = f"RDMA {port.name}"
    why, fix = _down(port) or _nameless(port) or ("", "")
    if not why and device is not None and device.why:
        why, fix = device.why, f"ibv_devinfo -v -d {port.device} -i {port.number}"
    if why:
        return Check(name, OK if others else WARN, f"{why}; not used" if others else why, fix)
    return Check(name, OK, _seen(port, device), _hint(port, device, root))


def _down(port: Port) -> tuple[str, str] | None:
    """Returns why a port is not active, and the fix; None if it is active."""
    if port.state == "ACTIVE":
        return None
    said = f"{port.state or 'of unknown state'} ({port.link_layer}{f', {port.physical}' if port.physical else ''})"
    if port.link_layer != "InfiniBand":
        netdev = port.netdev or "the NIC's netdev"
        return said, f"ip link set {netdev} up; if it is up: the cable, or the switch's port (ethtool {netdev})"
    if port.state == "INIT":
        return f"{said}: no subnet manager has come", "apt-get install -y opensm, on one host of the fabric"
    if port.state == "ARMED":
        return f"{said}: the subnet manager has not finished", "opensm's log on the host that runs it"
    if port.physical == "Disabled":
        return said, f"ibportstate -C {port.device} -P {port.number} -D 0 {port.number} enable"
    return said, "the cable, or the switch's port: ibstat, iblinkinfo"


def _nameless(port: Port) -> tuple[str, str] | None:
    """Returns a fault and its fix if an Ethernet port has no RoCE v2 GID, which it needs; otherwise None."""
    if port.link_layer == "InfiniBand" or port.routable:
        return None
    has = f"{len(port.gids)} of another kind" if port.gids else "no GID at all"
    return f"{port.state} ({port.link_layer}), but no RoCE v2 GID ({has})", _give_address(port)


def _give_address(port: Port) -> str:
    return f"give {port.netdev or 'its netdev'} an IPv4 address: ip addr add 10.0.0.1/24 dev {port.netdev or 'NETDEV'}"


def _seen(port: Port, device: Device | None) -> str:
    parts = [f"{port.state}, {port.link_layer}" + (f" by {port.netdev}" if port.netdev else "")]
    if device is not None and device.gid_index >= 0:
        parts.append(f"GID {address(device)} (index {device.gid_index})")
    elif port.routable:
        parts.append(f"RoCE v2 GID {port.routable[0].ip} (index {port.routable[0].index})")
    if device is not None and device.mtu:
        parts.append(f"MTU {device.mtu}")
    if port.rate:
        parts.append(port.rate.replace("Gb/sec", "Gb/s").partition(" (")[0])
    return ", ".join(parts)


def _hint(port: Port, device: Device | None, root: Path) -> str:
    """Returns advice that makes a working port faster, or ""."""
    if port.link_layer == "InfiniBand":
        return ""
    if port.routable[0].is_link_local:
        return f"{_give_address(port)}; {port.routable[0].ip} is reached from its own link only"
    allowed = roce_mtu(number(read(root / "sys/class/net" / (port.netdev or "-") / "mtu"), 0))
    if device is None or not allowed:
        return ""
    if device.mtu < allowed:
        return f"{port.netdev}'s MTU allows {allowed}: ip link set {port.netdev} down, then up"
    if device.mtu < _MTUS[-1]:
        return f"larger packets cost less, if all hosts and switches take them: ip link set {port.netdev} mtu 4200"
    return ""


def roce_mtu(netdev: int) -> int:
    """Returns the RDMA MTU of a RoCE port whose netdev has this MTU; 0 if none fits."""
    return max((mtu for mtu in _MTUS if mtu + _HEADERS <= netdev), default=0)


# ---- the process -----------------------------------------------------------------------------------------------------


def _memlock(here: Here, ranks: int) -> Check:
    """Checks the limit of locked memory: windows are registered as a whole, which locks them."""
    name = "RDMA memlock"
    if here.memlock == resource.RLIM_INFINITY:
        return Check(name, OK, "unlimited")
    limit = _size(here.memlock)
    if _may_lock_all(here.root):
        return Check(name, OK, f"{limit}, which does not bind this process (CAP_IPC_LOCK)")
    need = here.memory // ranks
    if here.memlock >= need:
        return Check(name, OK, f"{limit} a rank, whose windows can take {_size(need)}")
    return Check(name, WARN, f"a rank may lock {limit}; its windows can take {_size(need)}", _UNLOCK)


def _size(nbytes: int) -> str:
    for unit, name in ((2**30, "GiB"), (2**20, "MiB")):
        if nbytes >= unit:
            return f"{nbytes / unit:.4g} {name}"
    return f"{nbytes / 2**10:.4g} KiB"


def _may_lock_all(root: Path) -> bool:
    """Whether this process may lock any amount of memory: it has CAP_IPC_LOCK, and in the host's user namespace."""
    status = read(root / "proc/self/status").splitlines()
    effective = next((line.split()[1] for line in status if line.startswith("CapEff:")), "0")
    whole = read(root / "proc/self/uid_map").split() == ["0", "0", str(2**32 - 1)]
    return whole and bool(int(effective, 16) >> _CAP_IPC_LOCK & 1)


def _numa(here: Here, found: Sequence[Nic]) -> Check:
    """Checks that this process runs on the NUMA nodes of the NICs."""
    name = "RDMA NUMA"
    mine = {node for cpu in here.cpus if (node := node_of(here.root, cpu)) is not None}
    far = [nic for nic in found if nic.node >= 0 and mine and nic.node not in mine]
    unknown = [nic.name for nic in found if nic.node < 0]
    parts = [", ".join(f"{nic.name} on node {nic.node}" for nic in found if nic.node >= 0)]
    parts += [f"the kernel does not say where {', '.join(unknown)} is" if unknown else ""]
    parts += [f"this process on {_listed(mine)}" if mine else ""]
    seen = "; ".join(filter(None, parts))
    if not far:
        return Check(name, OK, seen)
    node = far[0].node
    return Check(name, WARN, seen, f"start the ranks there: numactl --cpunodebind={node} --preferred={node}")


def _listed(nodes: Iterable[int]) -> str:
    numbers = sorted(nodes)
    return f"node{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def _choice(here: Here, ports: Sequence[Port], usable: Sequence[Port]) -> list[Check]:
    """Checks that HPCOMM_DEVICES and HPCOMM_TRANSPORT leave a port or transport that can be used."""
    name, transport = "RDMA choice", variable("transport")
    if (wrong := _no_list(name, here)) is not None:
        return [wrong]
    named = [port for port in ports if allows(here.asked, port.device, port.number)]
    chosen = [port for port in named if port in usable]
    bad = FAIL if here.insists else WARN
    if here.asked and not named:
        said = f"{VARIABLE}={here.asked} names none of {', '.join(port.name for port in ports)}"
        return [Check(name, bad, said, f"name one of them in {VARIABLE}, or leave it unset")]
    if here.asked and usable and not chosen:
        said = f"{VARIABLE}={here.asked} names only {', '.join(port.name for port in named)}, which cannot be used"
        return [Check(name, bad, said, f"{VARIABLE}={usable[0].name}, or leave it unset")]
    if here.insists and not chosen:
        said = f"{transport}={here.transport} allows no tcp, and no port can be used"
        return [Check(name, FAIL, said, f"the fixes above, or {transport}={here.transport},tcp")]
    if here.asked:
        return [Check(name, OK, f"{VARIABLE}={here.asked}: {', '.join(port.name for port in chosen) or 'none'}")]
    return []
