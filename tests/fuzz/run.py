"""Fuzzes what reads bytes from the network, under ASan and UBSan: python tests/fuzz/run.py [--seconds N] [target...]

Each target first replays its kept corpus (tests/fuzz/corpus) and what earlier runs reached (build/fuzz/corpus), then
tries new inputs for a bounded time. Ends with 0 if nothing was found, with 1 if an input was, and with 77 where clang
has no libFuzzer, saying why. --keep makes the kept corpus anew: the inputs with a name, and the fewest others that
reach all that was reached.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build/fuzz"
KEPT = Path(__file__).resolve().parent / "corpus"
TARGETS = sorted(path.stem.removeprefix("fuzz_") for path in Path(__file__).parent.glob("fuzz_*.c"))
PACKAGES = "apt-get install -y clang libclang-rt-14-dev"
LARGEST = 1664  # bytes of an input
LIMITS = [f"-max_len={LARGEST}", "-timeout=10", "-rss_limit_mb=1024", "-malloc_limit_mb=64"]
ENV = os.environ | {
    "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"
}  # as if the venv were activated


def what_is_missing() -> str:
    if shutil.which("clang") is None:
        return f"no clang here; on Debian: {PACKAGES}"
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "probe.c"
        source.write_text("int LLVMFuzzerTestOneInput(const char *p, unsigned long n) { return !p && n; }\n")
        command = ["clang", "-fsanitize=fuzzer,address,undefined", str(source), "-o", f"{folder}/probe"]
        if subprocess.run(command, check=False, capture_output=True, timeout=60).returncode != 0:
            return f"clang cannot link libFuzzer here; on Debian: {PACKAGES}"
    return ""


def build(targets: list[str]) -> None:
    options = ["-DCMAKE_C_COMPILER=clang", "-DHPC_BUILD_TESTS=ON", "-DHPC_SANITIZE=address,undefined", "-DHPC_FUZZ=ON"]
    configure = ["cmake", "-G", "Ninja", "-S", str(ROOT), "-B", str(BUILD), *options]
    for command in (configure, ["cmake", "--build", str(BUILD), "--target", *(f"fuzz_{t}" for t in targets)]):
        subprocess.run(command, env=ENV, check=True, timeout=600, stdout=subprocess.DEVNULL)


def run(target: str, arguments: list[str], seconds: int) -> tuple[int, str]:
    """The status of libFuzzer, and what it said."""
    command = [str(BUILD / f"fuzz_{target}"), *LIMITS, *arguments]
    try:
        done = subprocess.run(
            command,
            env=ENV,
            cwd=BUILD,
            check=False,
            timeout=seconds + 120,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
        )
    except subprocess.TimeoutExpired as late:
        return 1, f"{late.output or ''}\nit did not end"
    return done.returncode, done.stdout


def fuzz(target: str, seconds: int) -> bool:
    """Whether nothing was found."""
    found, reached = BUILD / "found", BUILD / "corpus" / target
    for folder in (found, reached):
        folder.mkdir(parents=True, exist_ok=True)
    prefix = f"-artifact_prefix={found}/{target}-"
    status, output = run(target, [f"-max_total_time={seconds}", prefix, str(reached), str(KEPT / target)], seconds)
    log = BUILD / f"{target}.log"
    log.write_text(output, encoding="utf-8")
    runs = re.search(r"^Done (\d+) runs in (\d+) second", output, re.MULTILINE)
    covered = re.findall(r"\bcov: (\d+)", output)
    if status == 0 and runs and covered:
        print(
            f"{target}: {int(runs[1]):,} inputs in {runs[2]} s reached {covered[-1]} places; nothing found", flush=True
        )
        return True
    inputs = re.findall(r"Test unit written to (\S+)", output)
    print(*output.splitlines()[-40:], sep="\n")
    print(f"{target}: FAILED, see {log}; again: {BUILD}/fuzz_{target} {' '.join(inputs)}", flush=True)
    return False


def keep(target: str) -> bool:
    """Whether the kept corpus could be made anew."""
    reached, kept = BUILD / "corpus" / target, KEPT / target
    with tempfile.TemporaryDirectory() as folder:
        for path in kept.iterdir():
            if not re.fullmatch(r"[0-9a-f]{40}", path.name):  # libFuzzer's names
                shutil.copy(path, folder)
        status, output = run(target, ["-set_cover_merge=1", "-use_counters=0", folder, str(kept), str(reached)], 600)
        chosen = sorted(Path(folder).iterdir())
        if status != 0 or not chosen:
            print(output, f"{target}: FAILED to merge", sep="\n")
            return False
        shutil.rmtree(kept)
        shutil.copytree(folder, kept)
    print(f"{target}: {len(chosen)} inputs kept")
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description="Fuzzes what reads bytes from the network.")
    parser.add_argument("--seconds", type=int, default=20, help="for each target (20)")
    parser.add_argument("--keep", action="store_true", help="make the kept corpus anew from what was reached")
    parser.add_argument("targets", nargs="*", metavar="target", help=f"of {', '.join(TARGETS)}; all")
    arguments = parser.parse_args()
    targets = arguments.targets or TARGETS
    if unknown := sorted(set(targets) - set(TARGETS)):
        parser.error(f"no target {', '.join(unknown)}; there are {', '.join(TARGETS)}")
    if missing := what_is_missing():
        print(f"skipped: {missing}")
        return 77
    build(targets)
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # each is a process of one thread
        good = list(pool.map(fuzz, targets, [arguments.seconds] * len(targets)))
    if arguments.keep and all(good):
        good = [keep(target) for target in targets]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
