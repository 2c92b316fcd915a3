"""Several ranks learn a dictionary from whose atoms patches of photographs are composed, a few for each patch.

    mpirun -n 4 python examples/train_factors_sc.py
    mpirun -n 4 python examples/train_factors_sc.py --atoms 512 --compare --plot sc.png

This is sparse coding by proximal gradient descent, the third application of SFB (section 2, and figure 1 of its
supplement). The patches are 16 x 16 pixels of the photographs that scikit-learn ships. The update of each patch is the
product of its sparse code and its reconstruction error. The proximal operator keeps each atom at length 1 or less.
"""

import os
import sys

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"

from typing import Any

try:
    import click
    from factors import data, job, sc
except ImportError as missing:
    sys.exit(f"{missing}; this demo needs: pip install click matplotlib numpy pillow rich scikit-learn")


@click.command(help=__doc__, context_settings={"show_default": True})
@click.option("--atoms", type=click.IntRange(1), default=4096, help="Rows of W.")
@click.option("--samples", type=click.IntRange(2), default=50000, help="Patches.")
@click.option("--l1", type=click.FloatRange(0), default=0.1, help="Of the absolute values of a code.")
@job.options
def main(atoms: int, samples: int, l1: float, **given: Any) -> None:
    job.run(
        lambda seed: data.patches(samples, seed),
        lambda ctx, shared, plan: sc.Coding(shared, atoms, "patches of two photographs", l1, plan.seed),
        **given,
    )


if __name__ == "__main__":
    main()
