"""The way of one gradient points one way: imports and includes go down these lists only (docs/architecture.md)."""

import ast
import json
import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import networkx
import pytest
from tree import BUILD

ROOT = Path(__file__).resolve().parents[1]
CSRC = ROOT / "csrc"
PACKAGE = ROOT / "hpcomm"

# Top first, modules and packages of hpcomm. Names on one line know nothing of each other.
PYTHON = """
torch ray dask __main__ cmake
cli
bench
__init__
local
recovery
presets factors
service
checkpoint
exchange
measure
context
queue kernels bandwidth collective
window optim topology
graphs
model
plan
rows
flow
codec
prox
stage
launch
config engine
_core
consistency log
errors words compiled stats
_ffi _fast
"""

# Folders of csrc. A file includes, and its object file calls, what lies in its own folder and in those below.
FOLDERS = """
service
exchange
discipline
engine
collective
context
probe
transport
control
plan
codec
kernel
base
include
"""

# A file that lists the members of a dial may name them: const structs with this prefix, which nobody else names.
ARRAYS = {
    "transport/transport.c": "hpc_transport_",
    "discipline/discipline.c": "hpc_discipline_",
    "codec/codec.c": "hpc_codec_",
    "plan/planner.c": "hpc_planner_",
    "engine/owner/kind.c": "hpc_kind_",
}

# Tables of functions for one instruction set. The file that picks one of them at run time does not call it, as above.
PICKED = ("_generic", "_avx2", "_avx512")

# Installed headers.
PUBLIC = """
hpcomm.hpp
factors.hpp
exchange.hpp
collective.hpp plan.hpp queue.hpp service.hpp way.hpp window.hpp
context.hpp
handle.hpp fold.hpp host.hpp
codec.hpp error.hpp hpcomm_mpi.h
hpcomm.h
codec.h collective.h engine.h error.h jobs.h plan.h rule.h service.h way.h stats.h
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


def test_no_benchmarks_import_each_other() -> None:
    paths = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in (ROOT / "bench").rglob("*.py")}
    graph = networkx.DiGraph()
    for name, path in paths.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                found = {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
                graph.add_edges_from((name, other) for other in found & set(paths))
    assert ("bench.ops.put_bw", "bench.machine.over_verbs") in graph.edges
    assert not [circle for circle in networkx.strongly_connected_components(graph) if len(circle) > 1]


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


def test_only_its_package_touches_the_inside_of_an_exchange() -> None:
    """It is reached by few names: Exchange._state has all else that other packages use."""
    own, found, reached = set(), set(), set()
    for name in PYTHON_FILES:
        for node in ast.walk(ast.parse((PACKAGE / name).read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Attribute) or not node.attr.startswith("_"):
                continue
            where = ast.unparse(node.value)
            if name in ("exchange/exchange.py", "exchange/calls.py") and where == "self":
                own.add(node.attr)
            if name.startswith(("checkpoint/", "recovery/")) and where != "self":
                found.add((node.attr, name))
            if not name.startswith("exchange/") and where.rpartition(".")[2] in ("ex", "_ex", "exchange", "new"):
                reached.add(node.attr)
    assert {"_state", "_check_idle", "_handle"} <= own
    assert {attribute for attribute, name in found if attribute in own} == {"_state", "_check_idle"}
    assert reached == {"_state", "_check_idle", "_is_over"}


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
    assert {path.name for path in CSRC.iterdir() if path.is_dir()} == set(levels(FOLDERS))
    modules = {name.partition("/")[0].removesuffix(".py") for name in PYTHON_FILES}
    assert modules | {"_ffi", "_fast"} == set(levels(PYTHON))


def test_every_folder_begins_with_a_page() -> None:
    """It says what lives there, what that may call, and where to begin: by names of files that are there."""
    folders = [path for path in CSRC.iterdir() if path.is_dir()]
    assert len(folders) >= 10
    for folder in folders:
        page = (folder / "README.md").read_text(encoding="utf-8")
        assert page.startswith(f"# {folder.name}: ")
        assert "\n- May call: " in page
        begins = re.search(r"^- Begin with: (.+)$", page, re.MULTILINE)
        assert begins
        for name in re.findall(r"`([\w./]+\.(?:c|h|hpp))`", begins[1]):
            assert (folder / name).exists(), (folder.name, name)


def test_comments_name_files_that_are_there() -> None:
    """A name may be that of a file of the repository anywhere, as comments seldom give folders."""
    there = {path.name for folder in ("csrc", "hpcomm", "tests") for path in (CSRC.parent / folder).rglob("*.*")}
    wanted = re.compile(r"(?<![<\"/\w])[a-z]\w*\.[ch]\b(?![>\"])")
    for path in (*CSRC.rglob("*.c"), *CSRC.rglob("*.h")):
        comments = re.findall(r"/\*.*?\*/|//[^\n]*", path.read_text(encoding="utf-8"), re.DOTALL)
        gone = {name for comment in comments for name in wanted.findall(comment)} - there
        assert not gone, f"{path.relative_to(CSRC)} names {sorted(gone)}, which no folder has"


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


# ---- what the files of csrc call ----

Calls = dict[str, dict[str, set[str]]]  # by the file that calls, by the one that is called: symbols


def built() -> dict[str, Path]:
    """The sources of csrc that the build has, by name, and their objects, none older than its source."""
    database = BUILD / "compile_commands.json"
    if not database.is_file():
        pytest.skip("there is no build to read symbols from; make builds one")
    if shutil.which("nm") is None:
        pytest.skip("there is no nm to read symbols with; apt-get install binutils")
    sources = {Path(entry["file"]) for entry in json.loads(database.read_text(encoding="utf-8"))}
    names = sorted(source.relative_to(CSRC).as_posix() for source in sources if source.is_relative_to(CSRC))
    if not names:
        pytest.skip("build/cmake is of another tree; make builds this one")
    objects = {name: BUILD / "CMakeFiles/hpcomm_objects.dir/csrc" / f"{name}.o" for name in names}
    old = [name for name, path in objects.items() if not path.is_file() or is_newer(CSRC / name, path)]
    assert not old, f"build/cmake is older than csrc, which has changed {old}; make builds it again"
    return objects


def is_newer(source: Path, made: Path) -> bool:
    return not source.is_file() or source.stat().st_mtime > made.stat().st_mtime


@pytest.fixture(scope="module")
def symbols() -> list[tuple[str, str, str]]:
    """Of every object file: its source, a global symbol and nm's letter for it."""
    files = {str(path): name for name, path in built().items()}
    words = ["nm", "--print-file-name", "--format=posix", *files]
    found = []
    for line in subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines():
        path, _, rest = line.partition(": ")
        symbol, letter = rest.split()[:2]
        if letter.isupper():
            found.append((files[path], symbol, letter))
    return found


@pytest.fixture(scope="module")
def members(symbols: list[tuple[str, str, str]]) -> dict[str, set[str]]:
    """The structs that each array lists; functions with the same prefix are none."""
    structs = {symbol for _, symbol, letter in symbols if letter in "BDR"}
    return {array: {s for s in structs if s.startswith(prefix)} for array, prefix in ARRAYS.items()}


@pytest.fixture(scope="module")
def calls(symbols: list[tuple[str, str, str]], members: dict[str, set[str]]) -> Calls:
    """Who calls whom. A file with an array does not call the members of the array."""
    home = {symbol: name for name, symbol, letter in symbols if letter != "U"}
    graph: Calls = defaultdict(lambda: defaultdict(set))
    for name, symbol, letter in symbols:
        if letter == "U" and symbol in home and symbol not in members.get(name, ()):
            graph[name][home[symbol]].add(symbol)
    return graph


def test_calls_point_down(calls: Calls) -> None:
    level = levels(FOLDERS)
    up = {
        f"{caller} calls {sorted(names)} of {callee}"
        for caller, others in calls.items()
        for callee, names in others.items()
        if (a := caller.partition("/")[0]) != (b := callee.partition("/")[0]) and level[a] <= level[b]
    }
    assert not up, "\n".join(sorted(up))


def test_files_do_not_call_each_other_in_circles(calls: Calls) -> None:
    """Files that call nothing which is left are taken away until none can be: each that stays leads into a circle."""
    left = set(C_FILES)
    while ends := {name for name in left if not left & (set(calls[name]) - {name})}:
        left -= ends
    assert not left, circle(calls, left)


def circle(calls: Calls, left: set[str]) -> str:
    """One circle among files that each call another one of them, with the symbols that make it."""
    way = [min(left)]
    while way.count(way[-1]) < 2:
        way.append(min(left & (set(calls[way[-1]]) - {way[-1]})))
    way = way[way.index(way[-1]) :]
    return "\n".join(f"{a} calls {sorted(calls[a][b])} of {b}" for a, b in pairwise(way))


def test_units_do_not_need_each_other_in_circles(calls: Calls) -> None:
    """A unit is a .c file with the header of its name. It needs a unit that it calls, and one whose header has the
    inline function or the type that it uses."""
    units: Calls = defaultdict(lambda: defaultdict(set))
    for needs in (calls, needed({name: (CSRC / name).read_text(encoding="utf-8") for name in C_FILES})):
        for user, others in needs.items():
            for other, names in others.items():
                units[user[:-2]][other[:-2]] |= {name for name in names if not name.endswith(PICKED)}
    graph = networkx.DiGraph((a, b) for a, others in units.items() for b, names in others.items() if names and a != b)
    circles = [ring for ring in networkx.strongly_connected_components(graph) if len(ring) > 1]
    assert ("discipline/servers_bsp", "engine/scheme") in graph.edges, "uses are missing"
    assert not circles, "\n\n".join(
        "\n".join(f"{a} needs {sorted(units[a][b])} of {b}" for a in sorted(ring) for b in graph[a] if b in ring)
        for ring in circles
    )


def needed(texts: dict[str, str]) -> Calls:
    """The inline functions and types of headers that each file uses: of headers that it includes, if only by way of
    others."""
    below = networkx.DiGraph((name, header) for name in texts for header in includes(CSRC / name))
    homes = {name: header for header in texts if header.endswith(".h") for name in given(texts[header])}
    graph: Calls = defaultdict(lambda: defaultdict(set))
    for name, text in texts.items():
        reached = networkx.descendants(below, name) if name in below else set()
        for word in used(text) if name.endswith(".h") else words(text):
            if homes.get(word) in reached:
                graph[name][homes[word]].add(word)
    return graph


def bare(text: str) -> str:
    """C without comments and strings."""
    return re.sub(r'/\*.*?\*/|"(?:\\.|[^"\\\n])*"', "", text, flags=re.DOTALL)


def words(text: str) -> set[str]:
    return set(re.findall(r"\w+", bare(text)))


INLINE = re.compile(r"^static inline [^;{]*?\b(hpc_\w+)\([^;{]*\) \{.*?^\}", re.DOTALL | re.MULTILINE)


def given(header: str) -> set[str]:
    return {match[1] for match in INLINE.finditer(bare(header))} | set(types(header))


def used(header: str) -> set[str]:
    """The words of a header that it cannot do without: a pointer outside of inline functions needs no body of its
    type."""
    inlines = "".join(match[0] for match in INLINE.finditer(bare(header)))
    return words(inlines) | words(re.sub(r"\w+ (?:const )?\*", "", INLINE.sub("", bare(header))))


def test_only_its_array_names_a_member(calls: Calls, members: dict[str, set[str]]) -> None:
    """Everything else asks what a member can do, not which one it is."""
    assert all(members.values()), f"an array lists no struct with its prefix: {members}"
    structs = set().union(*members.values())
    named = {
        f"{caller} names {symbol}"
        for caller, others in calls.items()
        for names in others.values()
        for symbol in names & structs
    }
    assert not named, "\n".join(sorted(named))


def test_a_header_of_the_engine_speaks_for_one_file(symbols: list[tuple[str, str, str]]) -> None:
    home = {symbol: name for name, symbol, letter in symbols if letter == "T"}
    for header in sorted((CSRC / "engine").rglob("*.h")):
        text = re.sub(r"/\*.*?\*/", "", header.read_text(encoding="utf-8"), flags=re.DOTALL)
        declared = re.findall(r"^\w[\w *]*?\b(hpc_\w+)\([^{}]*?\);", text, re.MULTILINE)
        others = {
            s: home[s] for s in declared if s in home and home[s] != str(header.relative_to(CSRC).with_suffix(".c"))
        }
        assert not others, f"{header.name} declares functions of other files: {others}"


# ---- the engine's state ----

STATE = [CSRC / "engine" / name for name in ("scheme.h", "work.h", "layout/graph.h")]


def bodies(text: str) -> Iterator[str]:
    """The bodies of the structs that begin on a line of their own."""
    for begin in re.finditer(r"^(?:typedef )?struct \w* ?\{(.*?)^\}", text, re.MULTILINE | re.DOTALL):
        yield begin[1]


def struct_members(body: str) -> set[str]:
    plain = re.sub(r"/\*.*?\*/", "", body, flags=re.DOTALL)
    return set(re.findall(r"(\w+)\s*(?:\[[^]]*\]\s*)*(?=[;,])", plain)) | set(re.findall(r"\(\*(\w+)\)", plain))


def read_by(folder: str, body: str) -> set[str]:
    """The members that a struct's comment gives to a folder."""
    comment = " ".join(re.sub(r"^\s*\*", "", line) for line in body.split("*/", maxsplit=1)[0].split("\n"))
    named = re.search(rf"\b{folder}/\s+reads ([\w, ]+)", comment) if body.lstrip().startswith("/*") else None
    return set(re.findall(r"\w+", named[1])) if named else set()


@pytest.mark.parametrize(("folder", "most"), [("discipline", 74), ("exchange", 40)])
def test_folders_read_the_members_that_structs_give_them(folder: str, most: int) -> None:
    """By names alone: a name that a struct of another file has too is free."""
    inside = [body for path in STATE for body in bodies(path.read_text(encoding="utf-8"))]
    others = [path for path in CSRC.rglob("*.[ch]") if path not in STATE]
    free = {
        name for path in others for body in bodies(path.read_text(encoding="utf-8")) for name in struct_members(body)
    }
    given = [read_by(folder, body) for body in inside]
    assert len(inside) > 20
    assert all(names <= struct_members(body) for names, body in zip(given, inside, strict=True))
    assert sum(map(len, given)) <= most
    code = "".join(path.read_text(encoding="utf-8") for path in sorted((CSRC / folder).glob("*.[ch]")))
    read = set(re.findall(r"(?:->|\.)(\w+)", re.sub(r"/\*.*?\*/", "", code, flags=re.DOTALL)))
    kept = set().union(*map(struct_members, inside)) - set().union(*given) - free
    assert len(kept) > 50
    assert not kept & read, f"{folder}/ reads {sorted(kept & read)}, which their structs do not give it"
    assert set().union(*given) <= read


# ---- types ----


def types(text: str) -> Iterator[str]:
    """The names that a C file gives to types: tags with a body and typedefs, outside of functions. A typedef of a
    struct by its own name (an opaque type, whose body another file has) gives none."""
    text = bare(text)
    for begin in re.finditer(r"^(typedef )?(?:\w+ )*?(?:struct|union|enum)\b[^;{(=]*\{", text, re.MULTILINE):
        end, depth = begin.end(), 1
        while depth:
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        tags = re.findall(r"\b(?:struct|union|enum)\s+(\w+)\s*\{", text[begin.start() : end])
        alias = re.match(r"\s*(\w+)\s*;", text[end:]) if begin[1] else None
        yield from {*tags, alias[1]} if alias else tags
    for declared in re.findall(r"^typedef\b([^;{]*);", text, re.MULTILINE):
        plain = re.sub(r"__attribute__\s*\(\(.*\)\)", "", declared, flags=re.DOTALL)
        pointer, function = re.search(r"\(\s*\*\s*(\w+)\s*\)", plain), re.search(r"(\w+)\s*\(", plain)
        name = pointer or function or re.search(r"(\w+)\s*(?:\[[^]]*\]\s*)?$", plain)
        assert name is not None, f"what does typedef{declared} name?"
        if not re.search(rf"\b(?:struct|union|enum)\s+{name[1]}\b", plain):
            yield name[1]


def test_types_have_names_of_their_own() -> None:
    """One name, one type: what grep finds by a name is that type. This counts for headers and for types that a .c file
    keeps to itself; only those that are declared inside a function are free, as nobody meets them elsewhere."""
    files = defaultdict(set)
    for path in sorted(CSRC.rglob("*.[ch]")):
        for name in types(path.read_text(encoding="utf-8")):
            files[name].add(path.relative_to(CSRC).as_posix())
    assert {"hpc_context", "hpc_accept_lane", "verbs_sent", "tcp_link"} <= set(files)
    twice = {name: sorted(where) for name, where in files.items() if len(where) > 1}
    assert not twice, f"types of one name in several files: {twice}"
