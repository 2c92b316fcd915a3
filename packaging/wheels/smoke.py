"""The test of a wheel, in one file, where there is neither MPI nor a compiler: python packaging/wheels/smoke.py

Two ranks, started by the launcher's variables alone, put into each other's memory and train by push_pull over shared
memory and over TCP. Then CMake looks for the package where `python -m hpcomm.cmake` says that it lies; without cmake on
PATH only that folder is looked at. Ends with 0 and one line, else with an error.
"""

import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

RANKS = 2
PROJECT = """
cmake_minimum_required(VERSION 3.18)
project(consumer LANGUAGES NONE)
find_package(hpcomm 0.1 CONFIG REQUIRED)
get_target_property(headers hpcomm::hpcomm INTERFACE_INCLUDE_DIRECTORIES)
message(STATUS "version=${hpcomm_VERSION} headers=${headers}")
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def rank(number: int, port: int, transport: str) -> None:
    """One rank of the job, in a process of its own that has not imported hpcomm before."""
    os.environ |= {"RANK": str(number), "WORLD_SIZE": str(RANKS), "LOCAL_WORLD_SIZE": str(RANKS)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "HPCOMM_TRANSPORT": transport}
    import numpy as np

    import hpcomm

    ctx = hpcomm.init(timeout=120)
    assert (ctx.rank, ctx.size) == (number, RANKS), (ctx.rank, ctx.size)
    window = ctx.window((4,), "float32", signals=1)
    window.put_signal(1 - number, np.full(4, 10 + number, "float32"), signal=0, value=1)
    window.wait_signal(0, 1)
    assert (window.array == 11 - number).all(), window.array
    x = np.random.default_rng(number).standard_normal((1000, 8), "float32")
    y = x @ np.arange(1, 9, dtype="float32")
    hub = hpcomm.parameter_hub(ctx, {"w": np.zeros(8, "float32")}, rule=hpcomm.Nesterov(lr=0.05))
    for _ in range(100):
        hub.gradient("w")[:] = x.T @ (x @ hub.params["w"] - y) / len(x)
        hub.push_pull("w")
    assert np.abs(hub.params["w"] - np.arange(1, 9)).max() < 0.01, hub.params["w"]
    hub.close()
    ctx.close()


def job(transport: str) -> None:
    """Forks the ranks, so that even an emulator of another processor need start no program."""
    port, ranks = free_port(), []
    for number in range(RANKS):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                rank(number, port, transport)
                status = 0
            finally:
                if status:
                    sys.excepthook(*sys.exc_info())
                os._exit(status)
        ranks.append(pid)
    ended = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ranks]
    if any(ended):
        raise SystemExit(f"the ranks of a job over {transport} ended with {ended}")


def find_package() -> str:
    """What CMake says of the package, or the folder where CMake would look."""
    from hpcomm import __version__
    from hpcomm.cli.info import folders

    found = Path(folders()["cmake_dir"])
    assert (found / "hpcommConfig.cmake").is_file(), found
    if shutil.which("cmake") is None:
        return f"{found} (no cmake here)"
    told = subprocess.check_output([sys.executable, "-m", "hpcomm.cmake"], text=True).strip()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "CMakeLists.txt").write_text(PROJECT, encoding="utf-8")
        generator = ["-G", "Ninja"] if shutil.which("ninja") else []
        command = ["cmake", *generator, f"-Dhpcomm_DIR={told}", "-S", folder, "-B", f"{folder}/build"]
        said = subprocess.run(command, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr
    (line,) = (line for line in said.stdout.splitlines() if "headers=" in line)
    assert f"version={__version__} " in line, line
    assert (Path(line.partition("headers=")[2]) / "hpcomm/hpcomm.h").is_file(), line
    return line


def instruction_sets() -> str:
    """The build as the library tells it. Its kernels must take what this processor has."""
    from hpcomm._core import build_info

    if platform.machine() != "x86_64":
        return build_info()
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    for name, needed in (("avx2", {"avx2", "fma", "f16c"}), ("avx512", {"avx512f"})):
        has, uses = needed <= {*flags}, name in build_info()
        assert has == uses, f"this processor {'has' if has else 'lacks'} {name}, and the library says {build_info()}"
    return build_info()


def main() -> None:
    for transport in ("shm", "tcp"):
        job(transport)
    import hpcomm

    print(f"hpcomm {hpcomm.__version__} works: {instruction_sets()}; {find_package()}")


if __name__ == "__main__":
    main()
