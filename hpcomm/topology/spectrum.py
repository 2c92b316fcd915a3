"""How fast updates spread over a graph (ASAP, section 3.1 and appendix A)."""

import numpy as np

from .graph import Graph


def spectral_gap(graph: Graph) -> float:
    """1 - sigma_2(P): 1 for all-reduce, 0 for a regular graph that falls apart."""
    sigma = np.linalg.svd(graph.dense(), compute_uv=False)
    return 1 - float(sigma[1]) if graph.size > 1 else 1.0
