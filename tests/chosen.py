"""What a short run of the Python tests leaves out. .ci/run --full leaves out nothing (HPC_TEST_MODES=all), nor does a
run of files by their names.

    @pytest.mark.full       takes long, and finds what other tests find sooner
    @pytest.mark.some(n)    n of its cases run; the seed chooses them, so that other ones run with each commit
    SUBJECTS                tests of packaging, benchmarks, ...: they run when a file that they judge has changed

PHASES are those of .ci/run that a commit passes again when a file that they judge has changed:

    chosen.py is-owed PHASE     0 if it has, 1 if the phase has passed on the files that are here
    chosen.py passed PHASE      writes down that the phase has passed

A test by the fixture ranks_by runs each of its cases on one transport, one by the fixture transport on two of four.
"""

import ast
import hashlib
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).resolve().parents[1]
BY_NAME = "TESTS_BY_NAME"  # set in a run of tests that near.py has chosen: short although it names them
PASSED = ".ci/passed"  # digests by subject, of the files that its tests last passed on


@dataclass(frozen=True)
class Subject:
    """Test files that judge a few files of the project, and nothing that other tests would not find.

    Attributes:
        tests: patterns of the test files, from the root.
        watched: patterns of the files that they judge. The tests run when one of these, or a test file, has changed.
        named: patterns of files of which the names alone count: a new file may be missing in a package.
    """

    tests: tuple[str, ...]
    watched: tuple[str, ...]
    named: tuple[str, ...] = ()

    def digest(self, root: Path) -> str:
        found = hashlib.sha256()
        for path in files(root, (*self.tests, *self.watched)):
            found.update(f"{path.relative_to(root)}\n".encode())
            found.update(without_prose(path))
        for path in files(root, self.named):
            found.update(f"{path.relative_to(root)}\n".encode())
        return found.hexdigest()


IN_C = re.compile(rb"""\"(?:\\.|[^"\\])*\"|'(?:\\.|[^'\\])*'|//[^\n]*|/\*.*?\*/""", re.DOTALL)  # texts, comments
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def without_prose(path: Path) -> bytes:
    """A file without what no phase and no subject judges: comments and line breaks of C, docstrings of Python."""
    data = path.read_bytes()
    if path.suffix in (".c", ".h", ".hpp", ".cpp"):
        return b" ".join(IN_C.sub(lambda m: m[0] if m[0][:1] != b"/" else b" ", data).split())
    if path.suffix != ".py":
        return data
    lines = data.splitlines()
    for node in ast.walk(ast.parse(data)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            first = node.body[0]
            for number in range(first.lineno - 1, first.end_lineno or first.lineno):
                lines[number] = b""
    return b"\n".join(line for line in lines if line.strip())


def files(root: Path, patterns: Iterable[str]) -> list[Path]:
    kept = (".py", ".c", ".h", ".hpp", ".cpp", ".json", ".toml", ".txt", ".in", ".map", ".md", ".tsv")
    found = {path for pattern in patterns for path in root.glob(pattern) if path.suffix in kept}
    return sorted(path for path in found if path.is_file() and "build" not in path.relative_to(root).parts)


SUBJECTS = {
    "bench": Subject(("tests/test_bench*.py",), ("bench/**/*",)),
    "packaging": Subject(
        ("tests/test_build.py",),
        (
            "setup.py",
            "pyproject.toml",
            "MANIFEST.in",
            "CMakeLists.txt",
            "csrc/*",
            "csrc/include/**/*",
            "hpcomm/_build.py",
        ),
        ("csrc/**/*", "hpcomm/**/*.py"),
    ),
    "cxx": Subject(
        ("tests/test_cpp*.py",),
        ("csrc/include/**/*", "examples/cpp/*", "examples/train_digits.py", "docs/cpp.md", "CMakeLists.txt"),
    ),
    "demo": Subject(("tests/test_demo.py",), ("examples/train_digits.py", "README.md")),
    "harness": Subject(
        ("tests/test_again.py", "tests/test_chosen.py", "tests/test_near.py", "tests/test_ranks.py"),
        (
            "tests/again.py",
            "tests/c/cover.c",
            "tests/chosen.py",
            "tests/conftest.py",
            "tests/cover.py",
            "tests/covered.py",
            "tests/mpi.py",
            "tests/near.py",
            "tests/ranks.py",
        ),
    ),
}


NATIVE = ("csrc/**/*.[ch]", "csrc/**/*.hpp", "csrc/*.map", "csrc/*.in", "tests/c/**/*.[ch]*", "CMakeLists.txt")
PHASES = {
    "install": SUBJECTS["packaging"],
    "sanitize": Subject((), NATIVE),
    "fuzz": Subject((), (*NATIVE, "tests/fuzz/**/*")),
    "cluster": Subject(  # hpcomm.torch and local steps do on hosts what they do over TCP
        (),
        (
            *NATIVE,
            "tests/cluster/*",
            "tests/mpi.py",
            "hpcomm/*",
            *(f"hpcomm/{folder}/**/*" for folder in ("_core", "checkpoint", "cli", "exchange", "recovery", "topology")),
            "examples/train_digits.py",
        ),
    ),
    "numa": Subject((), (*NATIVE, "tests/numa/*", "tests/guest.py")),
    "softroce": Subject((), (*NATIVE, "tests/softroce/*", "tests/guest.py", "hpcomm/_core/*", "hpcomm/queue.py")),
}

TRANSPORTS = {"ranks_by": 1, "transport": 2}  # fixtures of conftest.py, and the transports on which a case runs


def is_short(named: Iterable[str], modes: str) -> bool:
    """Whether a run of these files and folders leaves anything out."""
    return modes != "all" and all(Path(name).is_dir() for name in named)


def order(seed: int, name: str) -> int:
    """A number that looks random and that every worker of a run finds alike."""
    return int.from_bytes(hashlib.sha256(f"{seed} {name}".encode()).digest()[:8], "big")


def left_out(items: "Iterable[pytest.Item]", seed: int) -> "set[pytest.Item]":
    """The tests that a short run does not need."""
    out: set[pytest.Item] = set()
    cases: dict[tuple[str, str], list[pytest.Item]] = defaultdict(list)
    for item in items:
        params = dict(item.callspec.params) if hasattr(item, "callspec") else {}
        if item.get_closest_marker("full"):
            out.add(item)
        elif item.get_closest_marker("some"):
            cases[item.nodeid.partition("[")[0], ""].append(item)
        elif by := [name for name in TRANSPORTS if name in params and _is_fixture(item, name)]:
            alike = repr(sorted(((name, value) for name, value in params.items() if name != by[0]), key=str))
            cases[item.nodeid.partition("[")[0], f"{by[0]} {alike}"].append(item)
    for (_, how), same in cases.items():
        mark = same[0].get_closest_marker("some")
        most = mark.args[0] if mark else TRANSPORTS[how.partition(" ")[0]]
        out.update(sorted(same, key=lambda item: order(seed, item.nodeid))[most:])
    return out


def _is_fixture(item: "pytest.Item", name: str) -> bool:
    """Whether the parameter comes from the fixture of that name, and not from the test's own list."""
    return not any(name in str(mark.args[0]) for mark in item.iter_markers("parametrize"))


# ---- subjects ------------------------------------------------------------------------------------------------------


def passed(root: Path = ROOT) -> set[str]:
    """The subjects whose tests have passed on the files that are here."""
    noted = _noted(root)
    return {name for name, subject in SUBJECTS.items() if noted.get(name) == subject.digest(root)}


def note_passed(root: Path = ROOT) -> bool:
    """Writes down that the tests of all subjects have passed. Whether that is news."""
    return _note({name: subject.digest(root) for name, subject in SUBJECTS.items()}, root)


def _note(digests: dict[str, str], root: Path) -> bool:
    noted = _noted(root)
    if noted.items() >= digests.items():
        return False
    text = json.dumps({**noted, **digests}, indent=1, sort_keys=True)
    (root / PASSED).write_text(f"{text}\n", encoding="utf-8")
    return True


def _noted(root: Path) -> dict[str, str]:
    try:
        return dict(json.loads((root / PASSED).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


def is_spared(path: Path, subjects: Iterable[str], root: Path = ROOT) -> bool:
    """Whether a file has the tests of one of these subjects: a short run need not even import it."""
    return any(path.match(str(root / pattern)) for name in subjects for pattern in SUBJECTS[name].tests)


def main(what: str, name: str) -> int:
    digest = PHASES[name].digest(ROOT)
    if what == "passed":
        if _note({name: digest}, ROOT):
            print(f"please commit {PASSED}")
        return 0
    return int(_noted(ROOT).get(name) == digest)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
