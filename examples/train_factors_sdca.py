"""Several ranks learn who maintains a Debian package, and print how far from the best model they can be at most.

    mpirun -n 4 python examples/train_factors_sdca.py
    mpirun -n 4 python examples/train_factors_sdca.py --compare --plot sdca.png

This is L2-regularized multiclass logistic regression by stochastic dual coordinate ascent, the fourth application of
SFB (section 2.1). Each rank keeps the dual variables of the rank's samples. The ranks exchange updates of an auxiliary
matrix Z, from which W is computed. The printed duality gap bounds how far the objective is above its minimum. With
--data the samples are the rows of a folder: 20 Newsgroups, or svmlight files, which keep their columns.
"""

import os
import sys

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"

from typing import Any

try:
    import click
    import paper_data
    from factors import data, job, sdca
except ImportError as missing:
    sys.exit(f"{missing}; this demo needs: pip install click matplotlib numpy rich scikit-learn")


@click.command(help=__doc__, context_settings={"show_default": True})
@click.option("--features", type=click.IntRange(1), default=8192, help="Words and pairs of words, at the most.")
@click.option("--samples", type=click.IntRange(1), default=8000, help="At most.")
@click.option("--classes-first", is_flag=True, help="W is classes x features.")
@click.option("--l2", type=click.FloatRange(0, min_open=True), default=1e-3, help="Of the squared weights, halved.")
@paper_data.option(paper_data.ROWS)
@job.options
def main(folder: str | None, features: int, samples: int, classes_first: bool, l2: float, **given: Any) -> None:
    job.run(
        lambda seed: data.labelled(folder, features, samples, seed),
        lambda ctx, shared, plan: sdca.DualRegression(
            shared, l2, classes_first, part=(ctx.rank, ctx.size), staleness=plan.staleness
        ),
        **given,
    )


if __name__ == "__main__":
    main()
