"""Several ranks learn handwritten digits by a convolutional network of AlexNet's layout.

    mpirun -n 4 python examples/train_flow_cnn.py
    mpirun -n 4 python examples/train_flow_cnn.py --compare --plot cnn.png

This is the third application of Parameter Flow (section 5.1, AlexNet). Five convolutions and three wide layers have 8.4
million parameters, most of them in two of the wide layers. scikit-learn's digits are enlarged to 32 x 32 pixels. With
--data the pictures are CIFAR-10, from a folder that every host must have.
"""

import os
import sys

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"

from functools import partial
from typing import TYPE_CHECKING, Any

try:
    import click
    import paper_data
    from flow import cnn, data, job
except ImportError as missing:
    sys.exit(
        f"{missing}; this demo needs: pip install click matplotlib numpy rich scikit-learn torch --extra-index-url https://download.pytorch.org/whl/cpu"
    )

if TYPE_CHECKING:
    from flow.model import Model

    import hpcomm


def make(ctx: "hpcomm.Context", small: bool, seed: int, folder: str | None) -> "Model":
    width, channels = (64, (8, 8, 8, 8, 8)) if small else (2112, (16, 48, 64, 64, 112))
    pictures = data.on_every_rank(ctx, lambda: data.pictures(seed, folder))
    return cnn.Convolutional(pictures, width, channels, seed)


@click.command(help=__doc__, context_settings={"show_default": True})
@paper_data.option(paper_data.PICTURES)
@job.options
def main(folder: str | None, **given: Any) -> None:
    job.run(partial(make, folder=folder), **given)


if __name__ == "__main__":
    main()
