"""Makes the exchange of a model's updates: dense parameters through servers, or Parameter Flow.

An update is U = eta / sqrt(t) x gradient, where the gradient is a rank's sum over its samples, divided by the number of
samples of all ranks. So SGD(lr=1.0) applies the sum of all updates, and a threshold is compared with the same values as
in the paper (equation 10).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from factors.model import dense_options

import hpcomm

from .model import Floats

RULE = hpcomm.SGD(lr=1.0)


@dataclass(frozen=True)
class Flow:
    """How updates travel.

    Attributes:
        delta: the threshold of step t is delta / sqrt(t); None: servers send whole parameters (the paper's baseline).
        staleness: 0 for BSP, s for SSP(s).
        form, values, compress, up, at_least, follow: options of the codec Threshold.
        tree: option of ParameterServer: the tree over which servers send summed updates.
        more: other options of Exchange.
    """

    delta: float | None
    staleness: int = 0
    form: str = "bytes"
    values: str = "float32"
    compress: str | None = None
    up: float | None = None
    at_least: float | None = None
    follow: str = "probes"
    tree: Any = None
    more: Mapping[str, Any] = field(default_factory=dict)


def open_exchange(ctx: hpcomm.Context, params: dict[str, Floats], flow: Flow) -> hpcomm.Exchange:
    """Makes the exchange that flow describes. All ranks call it."""
    consistency = hpcomm.SSP(flow.staleness)
    if flow.delta is None:
        options: Any = {**dense_options(flow.staleness), **flow.more}
        return hpcomm.parameter_hub(
            ctx, params, topology="flat", consistency=consistency, rule=RULE, reduce="sum", **options
        )
    return hpcomm.parameter_flow(
        ctx,
        params,
        delta=flow.delta,
        up=flow.up,
        at_least=flow.at_least,
        follow=flow.follow,
        tree=flow.tree,
        form=flow.form,
        values=flow.values,
        compress=flow.compress,
        consistency=consistency,
        rule=RULE,
        reduce="sum",
        **flow.more,
    )
