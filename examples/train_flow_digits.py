"""Several ranks learn handwritten digits by softmax regression on 65,536 random features.

    mpirun -n 4 python examples/train_flow_digits.py
    mpirun -n 4 python examples/train_flow_digits.py --compare --plot digits.png

This is Parameter Flow (section 5.1, LR) with dense updates: no element is exactly 0, so only thresholds save bytes.
"""

import os
import sys

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"

from typing import TYPE_CHECKING, Any

try:
    import click
    from flow import data, job, lr
except ImportError as missing:
    sys.exit(f"{missing}; this demo needs: pip install click matplotlib numpy rich scikit-learn")

if TYPE_CHECKING:
    from flow.model import Model

    import hpcomm


def make(ctx: "hpcomm.Context", small: bool, seed: int) -> "Model":
    return lr.FeatureRegression(data.features(1 << 10 if small else 1 << 16, seed))


@click.command(help=__doc__, context_settings={"show_default": True})
@job.options
def main(**given: Any) -> None:
    job.run(make, **given)


if __name__ == "__main__":
    main()
