"""Several ranks learn the section of a Debian package from its description, by softmax regression.

    mpirun -n 4 python examples/train_flow_lr.py
    mpirun -n 4 python examples/train_flow_lr.py --compare --plot lr.png
    mpirun -n 4 python examples/train_flow_lr.py --delta up --staleness 4

This is the first application of Parameter Flow (section 5.1, LR): workers push updates, servers broadcast their sums,
and both keep back values below a threshold. W is 131,072 hashed words and pairs of words x 64 sections, 32 MiB. Without
apt's lists the samples are synthetic. With --data they are the rows of a folder: 20 Newsgroups, whose words are hashed
too, or svmlight files, which keep their columns.
"""

import os
import sys

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"

from functools import partial
from typing import TYPE_CHECKING, Any

try:
    import click
    import paper_data
    from flow import data, job, lr
except ImportError as missing:
    sys.exit(f"{missing}; this demo needs: pip install click matplotlib numpy rich scikit-learn")

if TYPE_CHECKING:
    from factors.data import Labelled
    from flow.model import Model

    import hpcomm


def make(ctx: "hpcomm.Context", small: bool, seed: int, folder: str | None) -> "Model":
    features, classes, samples = (1 << 10, 8, 2000) if small else (1 << 17, 64, None)

    def read() -> "Labelled":
        if folder is not None:
            return data.words_of(folder, features)
        return data.words(features, classes, samples, seed)

    return lr.WordRegression(data.share_words(ctx, read, seed))


@click.command(help=__doc__, context_settings={"show_default": True})
@paper_data.option(paper_data.ROWS)
@job.options
def main(folder: str | None, **given: Any) -> None:
    job.run(partial(make, folder=folder), **given)


if __name__ == "__main__":
    main()
