"""examples/train_digits.py on four hosts, as its users start it: the same weights, losses and figures as on one."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from .hosts import HEAD, Cluster

DEMO = Path(__file__).resolve().parents[2] / "examples" / "train_digits.py"
EPOCHS = "4"


def demo(cluster: Cluster, folder: Path, hosts: list[str], *options: str) -> tuple[dict[str, Any], bytes]:
    """What the demo found on four ranks: its figures but times, and logistic regression's weights."""
    folder.mkdir()
    files = {f"--{what}": folder / what for what in ("json", "weights", "plot")}
    files["--plot"] = folder / "plot.png"
    command = [*cluster.mpirun(hosts, ranks_per_host=4 // len(hosts)), sys.executable, str(DEMO), "--epochs", EPOCHS]
    command += [str(word) for pair in files.items() for word in pair]
    ended = cluster.run(HEAD, [*command, *options], check=False, timeout=60)
    assert ended.returncode in (0, 1), ended.stdout + ended.stderr  # four epochs are few
    found = json.loads(files["--json"].read_text())
    for model in found["models"].values():
        for name in [name for name in model if name.startswith("seconds")]:
            del model[name]
    return found, files["--weights"].read_bytes()


@pytest.mark.some(1)
@pytest.mark.parametrize(
    "options",
    [["--graph", "expander"], ["--exchange", "parameter_hub", "--placement", "CS"]],
    ids=["neighbours", "parameter hub"],
)
def test_four_hosts_find_what_four_ranks_of_one_host_find(cluster: Cluster, tmp_path: Path, options: list[str]) -> None:
    apart = demo(cluster, tmp_path / "apart", [*cluster.hosts], *options)
    together = demo(cluster, tmp_path / "together", ["h1"], *options)
    assert apart == together
    assert apart[0]["ranks"] == 4
    assert len(apart[1].split()) == 65 * 10
