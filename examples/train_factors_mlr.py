"""Several ranks learn who maintains a Debian package from its description, by multiclass logistic regression.

    mpirun -n 4 python examples/train_factors_mlr.py
    mpirun -n 4 python examples/train_factors_mlr.py --dense
    mpirun -n 4 python examples/train_factors_mlr.py --compare --plot mlr.png

This is the first application of SFB (section 2 and figure 3). The update of each sample is the product of two vectors:
its sparse features, and the errors of the predicted class probabilities. The ranks send these vectors to each other,
and each rank computes the sum of the products.

W is features x classes, so a sample touches only the rows of its features. With --classes-first W is classes x
features, and a sample touches all rows. Without apt's lists the samples are synthetic. With --data they are the rows of
a folder: 20 Newsgroups, or svmlight files, which keep their columns.
"""

import os
import sys

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"

from typing import Any

try:
    import click
    import paper_data
    from factors import data, job, mlr
except ImportError as missing:
    sys.exit(f"{missing}; this demo needs: pip install click matplotlib numpy rich scikit-learn")


@click.command(help=__doc__, context_settings={"show_default": True})
@click.option("--features", type=click.IntRange(1), default=8192, help="Words and pairs of words, at the most.")
@click.option("--samples", type=click.IntRange(1), help="At most; default: all.")
@click.option("--classes-first", is_flag=True, help="W is classes x features.")
@click.option("--l2", type=click.FloatRange(0), default=0.0, help="Of the squared weights, halved.")
@paper_data.option(paper_data.ROWS)
@job.options
def main(folder: str | None, features: int, samples: int | None, classes_first: bool, l2: float, **given: Any) -> None:
    job.run(
        lambda seed: data.labelled(folder, features, samples, seed),
        lambda ctx, shared, plan: mlr.Regression(shared, classes_first, l2),
        **given,
    )


if __name__ == "__main__":
    main()
