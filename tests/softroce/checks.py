"""What tests/softroce/run.py has no test program for: python tests/softroce/checks.py CHECK [ARGUMENT...]

perftest            ib_write_bw between two processes: the device does RDMA, whatever hpcomm does
digits OVER         examples/train_digits.py finds over transport OVER what it finds over shm
cpp FOLDER OVER     and so do the C++ trainers, which FOLDER holds with their data
"""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

DEMO = Path(__file__).resolve().parents[2] / "examples/train_digits.py"
PORT = 18515  # perftest's own
EPOCHS = "1"
EXCHANGES = ("notify_ack", "parameter_hub")
CXX = ("train_softmax --graph expander", "train_push_pull")


def listening(port: int) -> bool:
    sockets = [line.split() for table in ("tcp", "tcp6") for line in Path("/proc/net", table).read_text().splitlines()]
    return any(fields[1].endswith(f":{port:04X}") and fields[3] == "0A" for fields in sockets)


def mpirun() -> list[str]:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    import mpi  # noqa: PLC0415  (and pytest with it, which no rank needs)

    return mpi.mpirun()


def perftest(device: str = "rxe0", address: str = "10.77.0.1") -> None:
    command = ["ib_write_bw", "-d", device, "-s", "32768", "-n", "1000", "--report_gbits", "-F"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        try:
            while not listening(PORT):
                assert server.poll() is None, f"ib_write_bw ended with {server.returncode}"
                time.sleep(0.01)
            said = subprocess.run([*command, address], stdout=subprocess.PIPE, text=True, timeout=60, check=True).stdout
            assert server.wait(30) == 0
        finally:
            server.kill()
    print(said)
    sent, times, _, average = [line for line in said.splitlines() if line.strip()[:1].isdigit()][-1].split()[:4]
    assert (sent, times) == ("32768", "1000")
    assert float(average) > 0
    print(f"ib_write_bw: {average} Gb/s")


def load_digits(**_: bool) -> tuple[Any, Any]:
    import numpy as np  # noqa: PLC0415  (Debian's Python has none, and runs other checks)

    sklearn = importlib.util.find_spec("sklearn")
    assert sklearn is not None
    assert sklearn.origin is not None
    table = np.loadtxt(Path(sklearn.origin).with_name("datasets") / "data/digits.csv.gz", delimiter=",")
    return table[:, :-1], table[:, -1].astype(int)


def digits_rank(folder: str, *transports: str) -> None:
    """The demo, time and again in one process, and without the imports that under emulation take longer than it."""
    sys.modules["matplotlib"] = types.ModuleType("matplotlib")
    datasets: Any = types.ModuleType("sklearn.datasets")
    datasets.load_digits = load_digits
    sys.modules["sklearn.datasets"] = datasets
    spec = importlib.util.spec_from_file_location("train_digits", DEMO)
    assert spec is not None
    assert spec.loader is not None
    demo: Any = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = demo
    spec.loader.exec_module(demo)
    demo.plot = lambda *_: None
    for transport in transports:
        os.environ["HPCOMM_TRANSPORT"] = transport
        for exchange in EXCHANGES:
            path = f"{folder}/{transport}-{exchange}"
            options = ["--epochs", EPOCHS, "--exchange", exchange, "--json", f"{path}.json", "--weights", path]
            try:
                demo.main(options, standalone_mode=False)
            except SystemExit as ended:
                if ended.code not in (0, 1):  # 1: so few epochs do not reach the accuracy that is claimed
                    raise


def digits(over: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        command = [*mpirun(), "-n", "4", sys.executable, __file__, "digits_rank", folder, "shm", over]
        subprocess.run(command, check=True)
        for exchange in EXCHANGES:
            found = []
            for transport in ("shm", over):
                path = Path(folder, f"{transport}-{exchange}")
                said = json.loads(path.with_name(path.name + ".json").read_text())
                for model in said["models"].values():
                    for name in [name for name in model if name.startswith("seconds")]:
                        del model[name]
                found.append((said, path.read_bytes()))
            assert found[0] == found[1], f"{exchange}: what {over} finds is not what shm finds"
            assert len(found[0][1].split()) == 65 * 10
            print(f"{exchange}: the same losses, accuracies, bytes and weights over shm and {over}")


def cpp(folder: str, over: str) -> None:
    for trainer in CXX:
        program, *options = trainer.split()
        weights = {}
        with tempfile.TemporaryDirectory() as results:
            for transport in ("shm", over):
                path = Path(results, transport)
                command = [*mpirun(), "-n", "4", f"{folder}/{program}", f"{folder}/digits.txt", "--epochs", EPOCHS]
                command += [*options, "--transport", transport, "--weights", str(path)]
                subprocess.run(command, check=True)
                weights[transport] = path.read_bytes()
        assert weights["shm"] == weights[over], f"{program}: what {over} finds is not what shm finds"
        assert len(weights[over].split()) > 600
        print(f"{program}: the same weights over shm and {over}")


if __name__ == "__main__":
    checks: dict[str, Callable[..., None]] = {
        "perftest": perftest,
        "digits": digits,
        "digits_rank": digits_rank,
        "cpp": cpp,
    }
    checks[sys.argv[1]](*sys.argv[2:])
