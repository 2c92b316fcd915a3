"""Each member of a dial can be taken away: without its file and its line in the array the library still links."""

import re
import subprocess
from pathlib import Path

import pytest
from tree import BUILD

ROOT = Path(__file__).resolve().parents[1]
OBJECTS = BUILD / "CMakeFiles/hpcomm_objects.dir/csrc"
ARRAYS = [ROOT / "csrc/discipline/discipline.c", ROOT / "csrc/codec/codec.c"]
STAYS = {"bsp", "f32"}  # without which nothing is left


def members(array: Path) -> list[tuple[str, str]]:
    """The symbol of each member, and the file that has it."""
    pattern = rf"^    &(hpc_{array.stem}_(\w+)),$"
    return re.findall(pattern, array.read_text(encoding="utf-8"), re.MULTILINE)


MEMBERS = [(array, symbol, name) for array in ARRAYS for symbol, name in members(array)]


def test_every_member_has_a_file() -> None:
    for array, least in zip(ARRAYS, (6, 3), strict=True):
        assert len(members(array)) >= least
    for array, symbol, name in MEMBERS:
        text = (array.parent / f"{name}.c").read_text(encoding="utf-8")
        assert f"const hpc_{array.stem} {symbol} = {{" in text


@pytest.mark.parametrize(
    ("array", "symbol", "name"),
    [one for one in MEMBERS if one[2] not in STAYS],
    ids=lambda value: getattr(value, "stem", value),
)
def test_the_library_links_without(array: Path, symbol: str, name: str, tmp_path: Path) -> None:
    sources = {path.relative_to(ROOT / "csrc").as_posix() for path in (ROOT / "csrc").rglob("*.c")}
    objects = sorted(o for o in OBJECTS.rglob("*.o") if o.relative_to(OBJECTS).as_posix().removesuffix(".o") in sources)
    if not objects:
        pytest.skip("there is no build to link; make builds one")
    left = [path for path in objects if path.name not in (f"{name}.c.o", array.name + ".o")]
    assert len(left) == len(objects) - 2
    source, made = tmp_path / array.name, tmp_path / "array.o"
    source.write_text(array.read_text(encoding="utf-8").replace(f"    &{symbol},\n", ""), encoding="utf-8")
    flags = ["-std=c11", "-fPIC", "-I", ROOT / "csrc", "-I", ROOT / "csrc/include"]
    run("cc", *flags, "-c", source, "-o", made)
    run("cc", "-shared", "-Wl,--no-undefined", *left, made, "-lpthread", "-ldl", "-lm", "-o", tmp_path / "lib.so")


def run(*words: object) -> None:
    made = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=60, check=False)
    assert made.returncode == 0, made.stderr
