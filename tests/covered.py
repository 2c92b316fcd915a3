"""Writes .ci/near.json, the map of make near: which files of the project each test covers.

    python tests/covered.py BUILD

BUILD is a build of CMake with HPC_COVER. All tests run on it as a short run has them, by tests/again.py; tests/cover.py
and tests/c/cover.c note what they run. For each test function of Python and each program of C the map has the seconds
and the files of which a function ran. What the map has of subjects that have passed on these files (chosen.py) stays.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from bisect import bisect
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import again
import chosen
import cover

ROOT = Path(__file__).resolve().parents[1]
MAP = ".ci/near.json"
UNIT = 16  # bytes of code for one byte of the table of tests/c/cover.c


def is_test(path: str) -> bool:
    return Path(path).name.startswith("test_") and path.startswith("tests/") and path.endswith((".c", ".py"))


@cache
def c_tests() -> dict[str, str]:
    """The sources of the C tests, by name."""
    return {path.stem: str(path.relative_to(ROOT)) for path in (ROOT / "tests/c").rglob("test_*.c")}


def program(name: str) -> str:
    """The source of a C test; where there is none, a file that is not there."""
    return c_tests().get(name, f"tests/c/{name}.c")


@dataclass(frozen=True)
class Case:
    """A test function or a C program: seconds, seconds of processors, the files that it covers, the names of the
    fixtures that it shares with others, and "@" and the name of the group whose tests one worker runs."""

    name: str
    wall: float
    processor: float
    files: frozenset[str]
    needs: tuple[str, ...] = ()

    @property
    def is_python(self) -> bool:
        return "::" in self.name

    @property
    def file(self) -> str:
        return self.name.partition("::")[0] if self.is_python else program(self.name)


@dataclass(frozen=True)
class Map:
    cases: dict[str, Case]
    shared: dict[str, Case]  # fixtures

    def text(self) -> str:
        """A line for each test. Its files are the bits of a hexadecimal number: bit i is files[i]."""
        files = sorted({file for table in (self.cases, self.shared) for case in table.values() for file in case.files})
        bits = {file: 1 << bit for bit, file in enumerate(files)}

        def lines(table: dict[str, Case]) -> str:
            rows = []
            for name, case in sorted(table.items()):
                mask = sum(bits[file] for file in case.files)
                row = [round(case.wall, 2), round(case.processor, 2), f"{mask:x}", *case.needs]
                rows.append(f"{json.dumps(name)}: {json.dumps(row)}")
            return ",\n".join(rows)

        names = ",\n".join(map(json.dumps, files))
        parts = (
            f'"files": [\n{names}\n]',
            f'"shared": {{\n{lines(self.shared)}\n}}',
            f'"cases": {{\n{lines(self.cases)}\n}}',
        )
        return "{" + ",\n".join(parts) + "}\n"

    def with_kept(self, before: "Map", subjects: Iterable[str], root: Path) -> "Map":
        """This map, and of one before it the tests of these subjects, which did not run again."""
        spared = set(subjects)
        files = {case.file for case in before.cases.values()}
        files = {file for file in files if chosen.is_spared(root / file, spared, root)}
        kept = {name: case for name, case in before.cases.items() if case.file in files}
        shared = {need: before.shared[need] for case in kept.values() for need in case.needs if need in before.shared}
        return Map({**kept, **self.cases}, {**shared, **self.shared})

    @staticmethod
    def read(text: str) -> "Map":
        document = json.loads(text)
        files = document["files"]

        def table(rows: dict[str, list[object]]) -> dict[str, Case]:
            found = {}
            for name, (wall, processor, mask, *needs) in rows.items():
                bits = f"{int(str(mask), 16):b}"[::-1]
                covered = frozenset(file for file, bit in zip(files, bits, strict=False) if bit == "1")
                found[name] = Case(name, float(str(wall)), float(str(processor)), covered, tuple(map(str, needs)))
            return found

        return Map(table(document["cases"]), table(document["shared"]))


# ---- what a run has left ---------------------------------------------------------------------------------------------


def files_of(target: Path, tables: Mapping[str, bytes]) -> dict[str, set[str]]:
    """By test the sources whose functions have bytes set in its table, from the linker's map of the program or library
    that it ran."""
    lines = target.with_name(f"{target.name}.map").read_text(encoding="utf-8")
    found = re.findall(r"^ \.text\S*\s+0x([0-9a-f]+)\s+0x[1-9a-f][0-9a-f]* (\S+)\.o\)?$", lines, re.MULTILINE)
    sections = sorted((int(address, 16), source_of(path)) for address, path in found)
    starts = [address for address, _ in sections]
    ends = {name: [UNIT * found.end() - 1 for found in re.finditer(b"\1", table)] for name, table in tables.items()}
    return {name: {sections[bisect(starts, end) - 1][1] for end in mine} for name, mine in ends.items()}


def source_of(path: str) -> str:
    """The source of an object, by its path in CMake's build; of one in a library, a helper of the C tests."""
    return f"tests/c/{path.rpartition('(')[2]}" if "(" in path else path.rpartition(".dir/")[2]


def of_programs(build: Path, folder: Path, here: Path) -> dict[str, Case]:
    """The cases of ctest's run."""
    walls = {
        case.get("name", ""): float(case.get("time") or 0)
        for case in ElementTree.parse(here / "first.xml").iter("testcase")
    }
    used: dict[str, float] = defaultdict(float)
    for cost in json.loads((here / "costs.json").read_text(encoding="utf-8"))["cases"]:
        used[Path(cost["file"]).name] += cost["processor"] or cost["seconds"]
    by_target: dict[Path, dict[str, bytes]] = defaultdict(dict)
    for name in walls:
        if (folder / f"{name}.c").exists():
            by_target[(build / name).resolve()][name] = (folder / f"{name}.c").read_bytes()
    found = {}
    for target, tables in by_target.items():
        for name, files in files_of(target, tables).items():
            found[name] = Case(name, walls[name], used[name], frozenset(files - {program(name)}))
    return found


def of_functions(target: Path, folder: Path) -> tuple[dict[str, Case], dict[str, Case]]:
    """The cases of pytest's run that came to an end, and the fixtures that they share."""
    names = {path.stem: read_lines(path) for path in folder.glob("*.name") if path.with_suffix(".took").exists()}
    tables = {stem: (folder / f"{stem}.c").read_bytes() for stem in names if (folder / f"{stem}.c").exists()}
    sources = files_of(target, tables)
    cases: dict[str, Case] = {}
    shared: dict[str, Case] = {}
    for stem, (name, *needs) in names.items():
        files = {*sources.get(stem, ()), *read_lines(folder / f"{stem}.py")}
        took = [tuple(map(float, line.split())) for line in read_lines(folder / f"{stem}.took")]
        wall, processor = (sum(seconds) for seconds in zip(*took, strict=True))
        kept = frozenset(file for file in files if not is_test(file))
        (cases if "::" in name else shared)[name] = Case(name, wall, processor, kept, tuple(needs))
    shared = {name: each for name, each in shared.items() if each.files or each.wall >= 0.01}
    return {
        name: replace(each, needs=tuple(need for need in each.needs if need in shared or need.startswith("@")))
        for name, each in cases.items()
    }, shared


def read_lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def write_map(build: Path, cores: int) -> int:
    passed = chosen.passed()
    folder, site = build / "covered", build / "site"
    for each in (folder, site):
        shutil.rmtree(each, ignore_errors=True)
        each.mkdir(parents=True)
    start = f"import os, sys\nsys.path.insert(0, {str(ROOT / 'tests')!r})\nimport cover\ndel sys.path[0]\n"
    start += 'cover.start(os.environ.get(cover.VARIABLE, ""))\n'
    (site / "sitecustomize.py").write_text(start, encoding="utf-8")  # every interpreter runs it first
    command = [sys.executable, str(ROOT / "tests/again.py")]
    subprocess.call([*command, "ctest", "map-c", str(build), f"-j{3 * cores}", "-E", "conformance_large"], cwd=ROOT)
    env = {**os.environ, cover.FOLDER: str(folder), "LD_LIBRARY_PATH": str(build), "PYTHONPATH": str(site)}
    subprocess.call([*command, "pytest", "map-python", "-q"], cwd=ROOT, env=env)
    ended = [again.FOLDER / run / "first.xml" for run in ("map-c", "map-python")]
    if not all(path.exists() for path in ended):
        print("the tests did not come to an end: the map is as it was", file=sys.stderr)
        return 1
    programs = of_programs(build, folder, ended[0].parent)
    functions, shared = of_functions(build / "hpcomm", folder)
    found = Map({**programs, **functions}, shared)
    if (ROOT / MAP).exists():
        found = found.with_kept(Map.read((ROOT / MAP).read_text(encoding="utf-8")), passed, ROOT)
    (ROOT / MAP).write_text(found.text(), encoding="utf-8")
    print(f"{len(programs)} programs of C and {len(functions)} tests of Python; please commit {MAP}")
    return 0


if __name__ == "__main__":
    sys.exit(write_map(Path(sys.argv[1]).resolve(), len(os.sched_getaffinity(0))))
