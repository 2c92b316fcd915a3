"""Each dial is an array of const structs: the library links without any member, and with one more. A member that shares
no code with others has a file of its own, and the library links without that. The array of disciplines is a table,
where a member may have several rows."""

import platform
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest
from tree import BUILD

ROOT = Path(__file__).resolve().parents[1]
CSRC = ROOT / "csrc"
OBJECTS = BUILD / "CMakeFiles/hpcomm_objects.dir/csrc"
FLAGS = ["-std=c11", "-D_GNU_SOURCE", "-fPIC", "-ffp-contract=off"]


@dataclass(frozen=True)
class Dial:
    """Attributes:
    array: the file that lists the members.
    type: of a member.
    symbol: its name, NAME in the place of the member's.
    least: how many members there are at least.
    extra: what a further member has beside its name.
    stays: a member without which nothing is left.
    row: a line of the array, MEMBER in the place of a member's address.
    """

    array: str
    type: str
    symbol: str
    least: int
    extra: str
    stays: str = ""
    row: str = "MEMBER"

    def __str__(self) -> str:
        return self.type.removeprefix("hpc_")

    def text(self) -> str:
        return (CSRC / self.array).read_text(encoding="utf-8")

    def line(self, name: str) -> str:
        return f"    {self.row.replace('MEMBER', '&' + self.symbol.replace('NAME', name))},\n"

    def lines(self, name: str) -> re.Pattern[str]:
        """Matches each line of a member."""
        return re.compile(rf"^    .*&{self.symbol.replace('NAME', name)}\b.*\n", re.MULTILINE)

    def members(self) -> list[str]:
        return list(dict.fromkeys(self.lines(r"(\w+)").findall(self.text())))

    def files(self, name: str) -> list[str]:
        """Those of a member, from csrc: NAME.c or NAME.h, the files that begin so, or all of a folder."""
        folder = (CSRC / self.array).parent
        stem = name if self.array.endswith(".c") else f"rule_{name}"
        found = [
            folder / f"{stem}.c",
            folder / f"{stem}.h",
            *folder.glob(f"{stem}/*.c"),
        ]
        return [path.relative_to(CSRC).as_posix() for path in found if path.is_file()]

    def own_files(self, name: str) -> list[str]:
        """Those of files() that no other member needs: they define no other one, and no header has their functions."""
        found, member = self.files(name), f"^const {self.type} "
        shared = any(path.endswith(".h") for path in found) and self.array == "discipline/discipline.c"
        texts = [(CSRC / path).read_text(encoding="utf-8") for path in found]
        return [] if shared or sum(len(re.findall(member, text, re.MULTILINE)) for text in texts) > 1 else found


ROW = "{HPC_BARRIER + 1, HPC_SERVERS, ALL, APPLY, MEMBER}"  # a further consistency, with servers
DIALS = [
    Dial("transport/transport.c", "hpc_transport", "hpc_transport_NAME", 4, ".caps = HPC_CAP_ONE_PROCESS"),
    Dial("discipline/discipline.c", "hpc_discipline", "hpc_discipline_NAME", 6, ".check = NULL", "bsp", ROW),
    Dial("codec/codec.c", "hpc_codec", "hpc_codec_NAME", 3, ".number = 9", "f32"),
    Dial("plan/planner.c", "hpc_planner", "hpc_planner_NAME", 4, ".size = sizeof(hpc_hub)"),
    Dial("kernel/rules.h", "hpc_builtin_rule", "rule_NAME", 6, ".pass = NULL"),
]
SPARED = [  # members without which a library can still do something
    pytest.param(dial, name, id=f"{dial}-{name}") for dial in DIALS for name in dial.members() if name != dial.stays
]


MOST_SLOTS = 24


def members_of(struct: str) -> list[str]:
    """The members of a struct of engine/discipline.h, those of the structs that it points to in their place."""
    text = re.sub(r"/\*.*?\*/", "", (CSRC / "engine/discipline.h").read_text(encoding="utf-8"), flags=re.DOTALL)
    found = re.search(rf"^(?:typedef )?struct {struct} {{\n(.*?)^}}", text, re.DOTALL | re.MULTILINE)
    assert found, struct
    fields = [field.strip() for field in found[1].split(";") if field.strip()]
    members = [name for field in fields for name in (field.split(",") if "(" not in field else [field])]
    inside = [re.match(r"const (hpc_\w+) \*\w+$", member) for member in members]
    return [
        m
        for member, nested in zip(members, inside, strict=True)
        for m in (members_of(nested[1]) if nested else [member])
    ]


def test_a_discipline_has_few_slots() -> None:
    members = members_of("hpc_discipline")
    assert {"int (*row_came)(hpc_core *core, hpc_work *w, int input, int slot)", "unsigned traits"} <= set(members)
    assert len(members) <= MOST_SLOTS, len(members)


def test_every_member_has_a_place() -> None:
    """In one file, be it beside others with which it shares its code."""
    for dial in DIALS:
        assert len(dial.members()) >= dial.least, dial
        for name in dial.members():
            symbol = f"const {dial.type} {dial.symbol.replace('NAME', name)} = {{"
            beside = [path.relative_to(CSRC).as_posix() for path in (CSRC / dial.array).parent.glob("*.c")]
            texts = [(CSRC / path).read_text(encoding="utf-8") for path in dial.files(name) or beside]
            assert sum(symbol in text for text in texts) == 1, f"{dial.files(name) or beside} should have {symbol}"


@pytest.mark.some(6)
@pytest.mark.parametrize(("dial", "name"), SPARED)
def test_the_library_links_without(dial: Dial, name: str, tmp_path: Path) -> None:
    text = dial.lines(name).sub("", dial.text()).replace(f'#include "kernel/rule_{name}.h"\n', "")
    gone = dial.own_files(name)
    for path in gone:  # in the place of a header, so that nobody includes it
        (tmp_path / path).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / path).write_text(f"#error {path} is taken away\n", encoding="utf-8")
    link(dial, text, tmp_path, without=gone)


@pytest.mark.parametrize("dial", DIALS, ids=str)
def test_the_library_links_with_one_more(dial: Dial, tmp_path: Path) -> None:
    symbol, rule = dial.symbol.replace("NAME", "extra"), dial.array == "kernel/rules.h"
    name = '.rule = {.name = "extra"}' if rule else '.name = "extra"'
    member = f"const {dial.type} {symbol} = {{{name}, {dial.extra}}};\n"
    own = "static " + member if rule else f"extern const {dial.type} {symbol};\n"
    begins = r"(^static const \w+ (?:\*const )?\w+\[\] = {\n(?:    //.*\n)?)"
    text = re.sub(begins, rf"{own}\1{dial.line('extra')}", dial.text(), flags=re.MULTILINE)
    assert dial.line("extra") in text
    if not rule:
        header = re.search(r'#include "[a-z]+/[a-z]+\.h"', dial.text())
        assert header
        (tmp_path / "extra.c").write_text(f"{header.group()}\n{member}", encoding="utf-8")
    made = link(dial, text, tmp_path)
    assert b"extra\0" in made.read_bytes()


# What a configuration may ask for, by column of the table of disciplines; and names that stand for several.
ASKED = [
    ["HPC_BSP", "HPC_SSP", "HPC_ASYNC", "HPC_NOTIFY_ACK", "HPC_BARRIER"],
    ["HPC_SERVERS", "HPC_ALIKE", "HPC_STAGES", "HPC_RECEIVERS", "HPC_PEERS", "HPC_GRAPH", "HPC_PHASES"],
    ["ALL", "QUORUM"],
    ["APPLY", "SPLIT"],
]
SEVERAL = {"ANY": ASKED[0], "HPC_OWNERS": ASKED[1][:4], "HPC_GRAPHS": ASKED[1][5:], "EITHER": ASKED[3]}


def test_a_configuration_fits_one_row() -> None:
    text = (CSRC / "discipline/discipline.c").read_text(encoding="utf-8")
    found: Counter[tuple[str, ...]] = Counter()
    for row in re.findall(r"^    {(.*), &\w+},$", text, re.MULTILINE):
        cells = [[n for name in cell.split(" | ") for n in SEVERAL.get(name, [name])] for cell in row.split(", ")]
        found.update(product(*cells))
    assert found == Counter(product(*ASKED))


@pytest.mark.parametrize("name", ["discipline", "codec_added", "planner_added", "rule_added"])
def test_a_job_trains_with_one_more(name: str) -> None:
    program = BUILD / f"test_{name}"
    if not program.exists():
        pytest.skip("the C tests are not built; make builds them")
    assert "passed, 0 failed" in run(program)


def link(dial: Dial, text: str, folder: Path, without: list[str] | None = None) -> Path:
    """The library whose array is text, with the sources that lie in folder, and without some files."""
    sources = {path.relative_to(CSRC).as_posix() for path in CSRC.rglob("*.c")}
    objects = {o.relative_to(OBJECTS).as_posix().removesuffix(".o"): o for o in OBJECTS.rglob("*.o")}
    objects = {name: path for name, path in objects.items() if name in sources}
    if not objects:
        pytest.skip("there is no build to link; make builds one")
    for name in without or ():
        assert name.endswith(".h") or objects.pop(name), name
    array = folder / dial.array
    array.parent.mkdir(exist_ok=True, parents=True)
    array.write_text(text, encoding="utf-8")
    include = ["-I", folder, "-I", CSRC, "-I", CSRC / "include"]
    made = []
    for source, flags in [*compiled(array, objects), *((path, []) for path in folder.glob("*.c"))]:
        objects.pop(source.relative_to(CSRC if CSRC in source.parents else folder).as_posix(), None)
        made.append(folder / f"{source.stem}.o")
        run("cc", *FLAGS, *flags, *include, "-c", source, "-o", made[-1])
    library = folder / "lib.so"
    run("cc", "-shared", "-Wl,--no-undefined", *objects.values(), *made, "-lpthread", "-ldl", "-lm", "-o", library)
    return library


def compiled(array: Path, objects: dict[str, Path]) -> Iterator[tuple[Path, list[str]]]:
    """What is compiled for an array, and with which flags: itself, or each file that includes it."""
    if array.suffix == ".c":
        yield array, []
        return
    for isa, flags in (("generic", []), ("avx2", ["-mavx2", "-mf16c"]), ("avx512", ["-mavx512f"])):
        if f"kernel/rule_{isa}.c" in objects:
            yield CSRC / f"kernel/rule_{isa}.c", flags
        else:
            assert platform.machine() != "x86_64", isa


def run(*words: object) -> str:
    made = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=60, check=False)
    assert made.returncode == 0, made.stdout + made.stderr
    return made.stdout
