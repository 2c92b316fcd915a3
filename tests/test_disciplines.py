"""Each discipline can be taken away: without its file and its line in the array the library still links."""

import re
import subprocess
from pathlib import Path

import pytest
from tree import BUILD

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "csrc/discipline"
ARRAY = FOLDER / "discipline.c"
OBJECTS = BUILD / "CMakeFiles/hpcomm_objects.dir/csrc"
MEMBERS = re.findall(r"^    &(hpc_discipline_(\w+)),$", ARRAY.read_text(encoding="utf-8"), re.MULTILINE)


def test_every_member_has_a_file() -> None:
    assert len(MEMBERS) >= 6
    for symbol, name in MEMBERS:
        assert f"const hpc_discipline {symbol} = {{" in (FOLDER / f"{name}.c").read_text(encoding="utf-8")


@pytest.mark.parametrize(("symbol", "name"), [member for member in MEMBERS if member[1] != "bsp"])
def test_the_library_links_without(symbol: str, name: str, tmp_path: Path) -> None:
    sources = {path.relative_to(ROOT / "csrc").as_posix() for path in (ROOT / "csrc").rglob("*.c")}
    objects = sorted(o for o in OBJECTS.rglob("*.o") if o.relative_to(OBJECTS).as_posix().removesuffix(".o") in sources)
    if not objects:
        pytest.skip("there is no build to link; make builds one")
    left = [path for path in objects if path.name not in (f"{name}.c.o", "discipline.c.o")]
    assert len(left) == len(objects) - 2
    array, made = tmp_path / "discipline.c", tmp_path / "discipline.o"
    array.write_text(ARRAY.read_text(encoding="utf-8").replace(f"    &{symbol},\n", ""), encoding="utf-8")
    flags = ["-std=c11", "-fPIC", "-I", ROOT / "csrc", "-I", ROOT / "csrc/include"]
    run("cc", *flags, "-c", array, "-o", made)
    run("cc", "-shared", "-Wl,--no-undefined", *left, made, "-lpthread", "-ldl", "-lm", "-o", tmp_path / "lib.so")


def run(*words: object) -> None:
    made = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=60, check=False)
    assert made.returncode == 0, made.stderr
