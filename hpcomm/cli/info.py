"""hpcomm info: prints the build, the libraries and devices that it finds on this host, and the configuration."""

import json
import os
import platform
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from .. import _core, launch
from ..config import resolve, settings
from . import interfaces, mpi, rdma

PACKAGE = Path(__file__).absolute().parent.parent


def loaded_library() -> str:
    """Returns the file from which this process has mapped libhpcomm, or ""."""
    for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
        path = line.partition("/")[2]
        if os.path.basename(path).startswith("libhpcomm.so"):
            return f"/{path}"
    return ""


def folders() -> dict[str, str]:
    return {
        "cmake_dir": str(PACKAGE / "lib" / "cmake" / "hpcomm"),
        "include_dir": str(PACKAGE / "include"),
        "lib_dir": str(PACKAGE / "lib"),
        "pkg_config_dir": str(PACKAGE / "lib" / "pkgconfig"),
    }


def facts() -> dict[str, Any]:
    launcher, binding = mpi.launcher(), mpi.mpi4py()
    devices, missing = rdma.listed()[0], rdma.library_missing()
    return {
        "version": _core.version(),
        "library": loaded_library(),
        "build": _core.build_info(),
        "transports": [name for name in _core.transports() if name != "verbs" or rdma.built()],
        "instruction_sets": list(_core.instruction_sets()),
        "cores": _core.core_count(),
        "memory_available": _core.memory_available(),
        "interfaces": interfaces.told(interfaces.addresses()),
        "verbs": "built in" if rdma.built() else f"not built in: {rdma.REBUILD}",
        "libibverbs": f"not here: {rdma.INSTALL}" if missing else rdma.LIBRARY,
        "rdma_devices": [rdma.told(device) for device in devices if device.usable],
        "python": f"{platform.python_implementation()} {platform.python_version()} ({sys.executable})",
        "numpy": np.__version__,
        "mpi4py": binding.version or None,
        "mpi_library": binding.library or None,
        "mpirun": f"{launcher.version} ({launcher.path})" if launcher else None,
        **folders(),
    }


def configuration() -> list[dict[str, Any]]:
    """Returns every setting with its default and its value in this environment."""
    current = launch.configuration({})
    plain = resolve({}, {})
    return [
        {
            "variable": setting.variable,
            "argument": setting.argument,
            "type": setting.kind,
            "default": getattr(plain, setting.argument),
            "value": getattr(current, setting.argument),
            "help": setting.help,
        }
        for setting in settings()
    ]


def _print_devices(as_json: bool) -> None:
    devices, none = rdma.listed()
    if as_json:
        rows = [{**asdict(device), "usable": device.usable} for device in devices]
        click.echo(json.dumps({"devices": rows, "none": none}, indent=2))
        return
    if none:
        click.echo(none)
        return
    columns = ("device", "state", "link layer", "GID", "index", "netdev", "MTU", "Gb/s", "NUMA", "hpcomm")
    console = Console()
    _print_table(
        console if console.is_terminal else Console(width=160),
        "RDMA devices",
        columns,
        [
            (
                f"{device.name}:{device.port}",
                device.state,
                device.link_layer,
                rdma.address(device),
                device.gid_index if device.gid_index >= 0 else "",
                device.netdev,
                device.mtu or "",
                f"{device.gbits:g}" if device.gbits else "",
                device.numa_node if device.numa_node >= 0 else "",
                device.why or "can use it",
            )
            for device in devices
        ],
    )


def _print_table(console: Console, title: str, columns: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for i, column in enumerate(columns):
        table.add_column(column, overflow="fold", no_wrap=i == 0)
    for row in rows:
        table.add_row(*("-" if cell in (None, "") else str(cell) for cell in row))
    console.print(table)


@click.command("info")
@click.option("-c", "--config", "config", is_flag=True, help="Print every setting: variable, default, value, help.")
@click.option(
    "--devices", "devices", is_flag=True, help="Print every port of every RDMA device, and whether it can be used."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--cmake-dir", "path", flag_value="cmake_dir", help="Print the folder of hpcommConfig.cmake.")
@click.option("--include-dir", "path", flag_value="include_dir", help="Print the folder of the C and C++ headers.")
@click.option("--lib-dir", "path", flag_value="lib_dir", help="Print the folder of libhpcomm.")
@click.option("--pkg-config-dir", "path", flag_value="pkg_config_dir", help="Print the folder of hpcomm.pc.")
def command(config: bool, devices: bool, as_json: bool, path: str | None) -> None:
    """Print the version, the build, the libraries and devices found on this host, and the configuration."""
    if path is not None:
        click.echo(folders()[path])
        return
    if devices:
        _print_devices(as_json)
        return
    found: Any = configuration() if config else facts()
    if as_json:
        click.echo(json.dumps(found, indent=2))
    elif config:
        columns = ("variable", "argument", "type", "default", "value", "help")
        _print_table(Console(), "hpcomm settings", columns, [tuple(row[column] for column in columns) for row in found])
    else:
        told = {key: ", ".join(value) if isinstance(value, list) else value for key, value in found.items()}
        told["rdma_devices"] = told["rdma_devices"] or rdma.none_usable()
        told["memory_available"] = f"{found['memory_available'] / 2**30:.1f} GiB"
        rows = [(key.replace("_", " "), value) for key, value in told.items()]
        _print_table(Console(), f"hpcomm {found['version']}", ("", ""), rows[1:])
