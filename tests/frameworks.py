"""Whether Lightning and Accelerate train over the backend "hpcomm" as over Gloo: python tests/frameworks.py

Runs examples/train_lightning.py and examples/train_accelerate.py with two ranks over each backend, and compares losses
and accuracies. Its Python must have both; .ci/run --full makes an environment for it.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
JOBS: dict[str, list[str | Path]] = {
    "lightning": [EXAMPLES / "train_lightning.py", "--ranks", "2"],
    "accelerate": [
        *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
        EXAMPLES / "train_accelerate.py",
    ],
}
NOISE = ("Exception ignored", "hpcomm.errors")


def trained(job: list[str | Path], backend: str) -> dict[str, float]:
    """Returns what the job prints last."""
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", *job, "--backend", backend],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    if ran.returncode or any(noise in ran.stderr for noise in NOISE):
        sys.exit(f"{job} over {backend} ended with {ran.returncode}:\n{ran.stdout}\n{ran.stderr}")
    told: dict[str, float] = json.loads(ran.stdout.splitlines()[-1])
    return told


def main() -> int:
    wrong = 0
    for name, job in JOBS.items():
        ours, theirs = (trained(job, backend) for backend in ("hpcomm", "gloo"))
        is_same = all(abs(ours[what] - theirs[what]) < 1e-5 for what in ("loss", "accuracy"))
        is_good = ours["accuracy"] > 0.9
        print(f"{name}: hpcomm {ours}, Gloo {theirs}: {'passed' if is_same and is_good else 'FAILED'}", flush=True)
        wrong += not (is_same and is_good)
    return wrong


if __name__ == "__main__":
    sys.exit(main())
