"""Numbers of PHub's paper, each with its section, and its formula of a placement's traffic. Needs no MPI or hpcomm.

M is the bytes of a model, T the seconds that a worker computes for a batch, N the number of workers (figure 4).
"""

from dataclasses import dataclass

PLACEMENTS = ("CC", "CS", "NCC", "NCS")  # section 2.1
WORKERS = 8  # in table 2, whose setup is table 1's (section 2.3.1)


@dataclass(frozen=True)
class Network:
    """A row of table 3, and the corresponding row of table 2.

    Attributes:
        megabytes: M, in MB.
        milliseconds: T.
        least: the bandwidth in Gb/s of CC, CS, NCC and NCS that table 2 prints; () if it prints none.
    """

    name: str
    megabytes: float
    milliseconds: float
    least: tuple[int, ...] = ()

    @property
    def nbytes(self) -> float:
        return 1e6 * self.megabytes

    @property
    def seconds(self) -> float:
        return 1e-3 * self.milliseconds


NETWORKS = (  # tables 3 (section 4.2) and 2 (section 2.3.1)
    Network("AlexNet", 194, 16, (1232, 308, 1408, 176)),
    Network("VGG 11", 505, 121),
    Network("VGG 19", 548, 268),
    Network("GoogleNet", 38, 100, (40, 10, 46, 6)),
    Network("Inception V3", 91, 225, (44, 11, 50, 6)),
    Network("ResNet 18", 45, 54),
    Network("ResNet 50", 97, 161),
    Network("ResNet 269", 390, 350, (122, 31, 140, 17)),
    Network("ResNext 269", 390, 386),
)


@dataclass(frozen=True)
class Use:
    """The bandwidth that PBox used with this many workers, and its limit, both in GB/s (section 4.7)."""

    name: str
    used: float
    limit: float


USED_BY = 8  # workers that trained ResNet 50
USES = (
    Use("PCIe-to-memory bridge", 6, 90),  # memory bandwidth; no benchmark got more than 90
    Use("memory, 1:1 reads and writes", 6, 120),
    Use("network, both directions", 4, 140),
)
SERVED = 120  # workers that the paper concludes

# Section 4.9, in dollars.
WORKER, PBOX, GPU, GPUS = 4117.0, 8407.0, 699.0, 4  # dollars: W, H and G; a worker has GPUS of the last
SWITCH, PORTS = 21077.0, 32  # dollars and ports; a port has 100 Gb/s, and breakout cables make four of 25 Gb/s from it
NIC_100, CABLE_100 = 795.0, 94.0
NIC_25, CABLE_25, NIC_PBOX = 260.0, 31.25, 162.5  # the last two: a port
PBOX_PORTS = 20
COLUMNS = ("Future GPUs", "Spendy", "Cheap")


@dataclass(frozen=True)
class Deployment:
    """A row of table 5.

    Attributes:
        oversubscription: workers' bandwidth over that of their switch's uplinks.
        workers: that share a switch, and a PBox.
        printed: throughput for 1000 dollars, by COLUMNS.
    """

    name: str
    oversubscription: int
    workers: int
    printed: tuple[float, float, float]


BASELINE = Deployment("100Gb Sharded 1:1", 1, 16, (46.11, 14.57, 60.41))
DEPLOYMENTS = (
    Deployment("25Gb PHub 1:1", 1, 44, (55.19, 15.30, 77.21)),
    Deployment("25Gb PHub 2:1", 2, 65, (57.71, 15.49, 82.24)),
    Deployment("25Gb PHub 3:1", 3, 76, (59.03, 15.58, 84.95)),
)
GAINS = (26, 6, 36)  # per cent of 2:1 over the baseline in the text, by COLUMNS; abstract and table 5: 25


def each_way(placement: str, workers: int, servers: int) -> tuple[float, float]:
    """Returns how many models the link of a worker's host and of a server's host carry in one exchange, in each
    direction (figure 4, whose numbers count both directions). Under CC one of the workers serves, under CS all of them.

    Raises:
        ValueError: the placement is not in PLACEMENTS.
    """
    if placement == "CC":
        return (1.0 if workers > 1 else 0.0), workers - 1.0
    if placement == "CS":
        return (2 * (workers - 1) / workers,) * 2
    if placement == "NCC":
        return 1.0, float(workers)
    if placement == "NCS":
        return 1.0, workers / servers
    raise ValueError(f"placement is {placement!r}: must be one of {', '.join(PLACEMENTS)}")
