"""Several ranks learn a distance metric under which Debian packages of the same section are near each other.

    mpirun -n 4 python examples/train_factors_dml.py
    mpirun -n 4 python examples/train_factors_dml.py --compare --plot dml.png

This is distance metric learning, the second application of SFB (section 2). The metric is a projection W of 512 x
10,000. The update of each pair of packages (x, y) is the product of two vectors: W (x - y), and the sparse x - y. With
--data the samples are pairs of rows from a folder; both rows of half the pairs have the same class.
"""

import os
import sys

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"

from typing import Any

try:
    import click
    import paper_data
    from factors import data, dml, job
except ImportError as missing:
    sys.exit(f"{missing}; this demo needs: pip install click matplotlib numpy rich scikit-learn")


@click.command(help=__doc__, context_settings={"show_default": True})
@click.option("--features", type=click.IntRange(1), default=10000, help="Words and pairs of words, at the most.")
@click.option("--latent", type=click.IntRange(1), default=512, help="Rows of W.")
@click.option("--samples", type=click.IntRange(1), default=100000, help="Pairs, half of them similar.")
@paper_data.option(paper_data.ROWS)
@job.options
def main(folder: str | None, features: int, latent: int, samples: int, **given: Any) -> None:
    def read(seed: int) -> data.Pairs:
        if folder is None:
            return data.paired(data.by_section(features, seed), samples, seed)
        return data.paired(data.of_folder(folder, features, None, seed), samples, seed)

    job.run(
        read,
        lambda ctx, shared, plan: dml.Metric(shared, latent, plan.seed),
        **given,
    )


if __name__ == "__main__":
    main()
