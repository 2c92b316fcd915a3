"""PHub's figures 11 to 13 and the systems that they compare. Needs neither torch nor hpcomm."""

from dataclasses import dataclass

from bench.common.layers import FLOAT, Layer, count
from bench.phub.networks import NETWORKS

COPYING, AFTER = "after backward, copying", "after backward"
MXNET, PSHARD, PBOX, DDP = "MXNet IB", "PShard", "PBox", "DDP over Gloo"
MXNET_CHUNK = 4 << 20  # bytes (section 3.2.3)
DDP_BUCKET = 25 << 20  # bytes, torch's default
PORTS = 10  # network cards of PBox: a host that only serves has a link this many times as fast


@dataclass(frozen=True)
class System:
    """A way to exchange updates.

    Attributes:
        placement: of hpcomm.ParameterServer: "CS" or "NCC"; "": torch's all_reduce over Gloo.
        chunk: bytes of a chunk, or of a bucket, of the whole network; None: hpcomm's default.
        after: push layers after the backward pass, and wait for them before the next forward pass.
        copies: extra copies, besides TCP's, that a worker makes of each gradient and of each parameter.
    """

    placement: str = "CS"
    chunk: int | None = None
    after: bool = False
    copies: int = 0

    def wire(self, layers: list[Layer], workers: int) -> float:
        """Returns the bytes of a step, in each direction, on the link that needs the most time; a faster link's
        bytes are scaled to a worker's link."""
        parts = max(1.0, workers / PORTS) if self.placement == "NCC" else 2 * (1 - 1 / workers)
        return FLOAT * count(layers) * parts


SYSTEMS = {
    # MXNet copies a layer's parameters to and from buffers four times (section 2.3.2).
    COPYING: System(chunk=MXNET_CHUNK, after=True, copies=2),
    AFTER: System(chunk=MXNET_CHUNK, after=True),
    MXNET: System(chunk=MXNET_CHUNK),
    PSHARD: System(),
    PBOX: System("NCC"),
    DDP: System("", chunk=DDP_BUCKET),
}


@dataclass(frozen=True)
class Figure:
    """The figure of a group.

    Attributes:
        gigabits: of the paper's links, in a second; computing is scaled to these.
        systems: the first one is the baseline of the speed-ups.
        said: speed-ups in the paper's text.
    """

    title: str
    gigabits: float
    systems: tuple[str, ...]
    networks: tuple[str, ...]
    said: str


FIGURES = {
    "plane": Figure(
        "figure 11: a data plane without copies",
        56,
        (COPYING, AFTER),
        tuple(key for key in NETWORKS if "269" not in key),  # two that would take as long as all others
        "MXNet copies a layer's parameters four times, and its native InfiniBand data plane does not; no number",
    ),
    "cloud": Figure(
        "figure 12: training over 10 Gb/s",
        10,
        (MXNET, PSHARD, PBOX, DDP),
        tuple(NETWORKS),
        "up to 2.7x; PBox halves a link's bytes, and wins with 7 workers as well",
    ),
    "infiniband": Figure(
        "figure 13: training over 56 Gb/s",
        56,
        (MXNET, PSHARD, PBOX, DDP),
        ("AlexNet", "VGG 11", "VGG 19", "ResNet 50"),
        "AlexNet and VGG gain, as the network bounds them; 1x with GoogleNet, Inception, ResNet and ResNext",
    ),
}
