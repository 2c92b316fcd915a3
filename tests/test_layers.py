"""The way of one gradient points one way: imports and includes go down these lists only (docs/architecture.md)."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import networkx
import pytest

ROOT = Path(__file__).resolve().parents[1]
CSRC = ROOT / "csrc"
PACKAGE = ROOT / "hpcomm"

# Top first, modules and packages of hpcomm. Names on one line know nothing of each other.
PYTHON = """
cli
__init__
elastic
recovery
presets checkpoint
exchange
context
queue kernels
window optim topology
plan
stage
launch
_core
config consistency
errors
_ffi _fast
"""

# Folders of csrc. A file includes, and its object file calls, what lies in its own folder and in those below.
FOLDERS = """
exchange
discipline
engine
codec
context
transport
control
plan kernel
base
include
"""

# Installed headers.
PUBLIC = """
hpcomm.hpp
exchange.hpp
plan.hpp queue.hpp window.hpp
context.hpp
handle.hpp fold.hpp host.hpp
error.hpp hpcomm_mpi.h
hpcomm.h
"""


def levels(text: str) -> dict[str, int]:
    """0 is the bottom."""
    lines = text.split("\n")[-2:0:-1]
    return {name: level for level, line in enumerate(lines) for name in line.split()}


def imports(path: Path) -> Iterator[str]:
    """The modules of the package that a file imports, inside functions and for type checking included."""
    yield from imported(path.read_text(encoding="utf-8"), path.relative_to(ROOT).parent.parts)


def imported(code: str, package: tuple[str, ...]) -> Iterator[str]:
    """The modules that code of a package imports, as module_of names them."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            targets = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = [*package[: len(package) - node.level + 1]] if node.level else []
            base += node.module.split(".") if node.module else []
            targets = [[*base, alias.name] for alias in node.names]
        else:
            continue
        for target in targets:
            if target[0] == "hpcomm":
                yield module_of(target[1:])


def module_of(parts: list[str]) -> str:
    """The module that "hpcomm" and parts name, or that has the name: "exchange.keys", "exchange" for a package, and
    "__init__" for the whole."""
    while parts and ".".join(parts) not in MODULES:
        parts = parts[:-1]
    return ".".join(parts) or "__init__"


def includes(path: Path) -> Iterator[str]:
    """The project's own headers that a file includes, from csrc."""
    for name in re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', path.read_text(encoding="utf-8"), re.MULTILINE):
        for folder in (path.parent, CSRC, CSRC / "include"):
            if (folder / name).is_file():
                yield (folder / name).resolve().relative_to(CSRC).as_posix()
                break


PYTHON_FILES = sorted(p.relative_to(PACKAGE).as_posix() for p in PACKAGE.rglob("*.py") if p.name != "_build.py")
MODULES = {name.removesuffix(".py").removesuffix("/__init__").replace("/", "."): name for name in PYTHON_FILES}
MODULES |= {"_ffi": "", "_fast": ""}  # which are no Python
C_FILES = sorted(p.relative_to(CSRC).as_posix() for p in CSRC.rglob("*.[ch]") if "include" not in p.parts)


@pytest.mark.parametrize("name", PYTHON_FILES)
def test_imports_point_down(name: str) -> None:
    level = levels(PYTHON)
    own = name.partition("/")[0].removesuffix(".py")
    up = {m for m in imports(PACKAGE / name) if (top := m.partition(".")[0]) != own and level[top] >= level[own]}
    assert not up, f"hpcomm/{name} imports {sorted(up)}, which lie beside or above it"


def test_no_modules_import_each_other() -> None:
    graph = networkx.DiGraph((m, other) for m, name in MODULES.items() if name for other in imports(PACKAGE / name))
    circles = [sorted(circle) for circle in networkx.strongly_connected_components(graph) if len(circle) > 1]
    assert set(graph) <= set(MODULES)
    assert graph.number_of_edges() > 2 * len(MODULES), "imports are missing"
    assert not circles, "these modules import each other, directly or by way of others"


def test_an_import_counts_wherever_it_stands() -> None:
    code = """
if TYPE_CHECKING:
    from ..recovery import Recovered
def late():
    import hpcomm.cli.doctor
    from . import keys, no_module
    from .. import _core, __version__
    from ..checkpoint.files import Label
"""
    found = list(imported(code, ("hpcomm", "exchange")))
    assert sorted(found) == sorted(
        ["recovery", "cli.doctor", "exchange.keys", "exchange", "_core", "__init__", "checkpoint.files"]
    )


def test_names_of_classes_are_unique() -> None:
    files: dict[str, list[str]] = {}
    for name in PYTHON_FILES:
        for node in ast.walk(ast.parse((PACKAGE / name).read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                files.setdefault(node.name, []).append(name)
    assert {"Exchange", "_Head"} <= set(files)
    assert {name: where for name, where in files.items() if len(where) > 1} == {}


@pytest.mark.parametrize("name", C_FILES)
def test_includes_point_down(name: str) -> None:
    level = levels(FOLDERS)
    folder = name.partition("/")[0]
    up = {
        header
        for header in includes(CSRC / name)
        if (other := header.partition("/")[0]) != folder and level[other] > level[folder]
    }
    assert not up, f"csrc/{name} includes {sorted(up)}, which lie above it"


def test_every_file_has_its_place() -> None:
    assert {name.partition("/")[0] for name in C_FILES} <= set(levels(FOLDERS))
    modules = {name.partition("/")[0].removesuffix(".py") for name in PYTHON_FILES}
    assert modules | {"_ffi", "_fast"} == set(levels(PYTHON))


def test_public_headers_need_only_those_below() -> None:
    folder, level = CSRC / "include/hpcomm", levels(PUBLIC)
    assert {path.name for path in folder.iterdir()} == set(level)
    for path in folder.iterdir():
        below = {f"include/hpcomm/{name}" for name in level if level[name] < level[path.name]}
        assert set(includes(path)) <= below, f"{path.name} includes what lies beside or above it"


def test_only_core_touches_the_binding() -> None:
    users = {name for name in PYTHON_FILES if {"_ffi", "_fast"} & set(imports(PACKAGE / name))}
    assert {name.partition("/")[0] for name in users} == {"_core"}


def test_only_launch_reads_the_environment() -> None:
    readers = {
        name
        for name in PYTHON_FILES
        for node in ast.walk(ast.parse((PACKAGE / name).read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "environb", "getenv")
    }
    assert readers <= {"launch.py"}
