"""The public names: of the library, of the package, and that each list is the one it is made from."""

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from tree import BUILD

import hpcomm
from hpcomm import _ffi

PACKAGE = Path(hpcomm.__file__).parent
MOST = 166  # functions of the C API


def declared() -> set[str]:
    """The functions that the installed headers declare."""
    folder = PACKAGE / "include/hpcomm"
    headers = "".join(
        (folder / name).read_text(encoding="utf-8")
        for name in (
            "hpcomm.h",
            "error.h",
            "rule.h",
            "engine.h",
            "codec.h",
            "collective.h",
            "jobs.h",
            "plan.h",
            "service.h",
            "way.h",
            "stats.h",
        )
    )
    return set(re.findall(r"^HPC_API [^;]*?\b(hpc_\w+)\(", headers, re.MULTILINE))


def test_library_exports_what_the_header_declares() -> None:
    if shutil.which("nm") is None:
        pytest.skip("no nm on this machine")
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", PACKAGE / "lib/libhpcomm.so.0"], capture_output=True, text=True, check=True
    ).stdout
    symbols = [line.split()[-1] for line in listing.splitlines()]
    assert symbols.count("HPCOMM_0") == 1
    assert len(declared()) <= MOST
    assert set(symbols) - {"HPCOMM_0"} == {f"{name}@@HPCOMM_0" for name in declared()}


def test_a_c_test_brings_nothing_but_its_main_into_the_program_of_all() -> None:
    """One that defined poll, say, would change what every other test runs with, and what sanitizers see."""
    programs = BUILD / "generated/programs.h"
    if shutil.which("nm") is None or not programs.exists():
        pytest.skip("no nm on this machine, or the C tests are not built")
    names = re.findall(r"PROGRAM\((\w+)\)", programs.read_text(encoding="utf-8"))
    assert len(names) > 80
    tests = Path(__file__).parent / "c"
    sources = {path.stem: path.relative_to(tests) for path in tests.rglob("test_*.c")}
    command = ["nm", "-A", "-g", "--defined-only", *(f"{sources[name]}.o" for name in names)]
    folder = BUILD / "CMakeFiles/tests_c.dir/tests/c"
    listing = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout
    assert [line.split()[-1] for line in listing.splitlines()] == names


def test_binding_declares_what_the_header_declares() -> None:
    assert {name for name in dir(_ffi.lib) if name.startswith("hpc_")} == declared()


def test_each_name_is_imported_from_where_type_checkers_find_it() -> None:
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    checked = next(node for node in tree.body if isinstance(node, ast.If))
    found = {
        (node.module, alias.name) for node in checked.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    lazy = {(home, name) for name, home in hpcomm._HOME.items()}
    assert found == lazy | {(None, name) for name in hpcomm._MODULES}


def test_an_import_alone_waits_for_no_other_library() -> None:
    code = "import sys, hpcomm; assert not {'numpy', 'hpcomm._ffi'} & {*sys.modules}"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_all_is_every_public_name() -> None:
    public = {n for n, v in vars(hpcomm).items() if not n.startswith("_") and not isinstance(v, ModuleType)}
    dunder = {n for n in hpcomm.__all__ if n.startswith("__")}
    assert dunder <= {"__version__"}
    assert public == set(hpcomm.__all__) - dunder
    assert len(hpcomm.__all__) == len(set(hpcomm.__all__))


def test_the_front_door_is_narrow() -> None:
    """A job begins with these names; graphs, counts and what calls return have modules of their own."""
    assert len(hpcomm.__all__) <= 60
    assert len(hpcomm.topology.__all__) <= 16


def test_names_that_are_not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """hpcomm.torch comes without an import of its own; a name of another library gets a hint."""
    with pytest.raises(AttributeError, match=r"no attribute 'rank': .*ctx = hpcomm.init\(\) and then ctx.rank"):
        _ = hpcomm.rank  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"has no attribute 'zeal'$"):
        _ = hpcomm.zeal  # type: ignore[attr-defined]
    assert "torch" not in hpcomm.__all__
    for name in [name for name in sys.modules if name.startswith("hpcomm.torch")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(vars(hpcomm), "torch", raising=False)
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "torch", None)
        with pytest.raises(AttributeError, match=r"hpcomm.torch needs PyTorch: pip install 'torch>=2.4'"):
            _ = hpcomm.torch  # type: ignore[attr-defined]
    ours = ModuleType("hpcomm.torch")  # without what it takes to import torch
    monkeypatch.setitem(sys.modules, "hpcomm.torch", ours)
    assert hpcomm.torch is ours  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", hpcomm.__all__)
def test_public_name_has_a_docstring(name: str) -> None:
    value = getattr(hpcomm, name)
    assert not callable(value) or value.__doc__


def test_an_exchange_imports_no_slow_modules() -> None:
    """They would be imported by each process, and the other ranks wait."""
    code = (
        "import sys, hpcomm, numpy as np\n"
        "with hpcomm.init() as ctx, hpcomm.parameter_hub(ctx, {'w': np.ones(5, np.float32)}) as ex:\n"
        "    ex.push_pull('w', np.ones(5, np.float32))\n"
        "print(*sys.modules.keys() & {'numpy.ma', 'scipy', 'numba', 'networkx', 'asyncio', 'mpi4py.MPI'})\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
