"""What bench.parameter_flow trains: applications, ways and cases. Needs neither MPI nor hpcomm."""

from dataclasses import dataclass

FULL, EIGHT, TINY = "32 MiB", "8 MiB", "tiny"
ALEXNET, WHOLE, QUARTER = "alexnet", "the whole", "a quarter"
PARTS = {WHOLE: 1, QUARTER: 4, TINY: 1000}  # of AlexNet's 61 million parameters
DENSE, LOW, UP, FOLLOW, SMOOTH = "dense", "delta", "up", "follow", "smooth"


@dataclass(frozen=True)
class App:
    """One application.

    Attributes:
        ratio: communicating over computing of the dense hub under BSP, in the paper (section 5.4, figure 12).
        kind: of its data, as examples/paper_data.py has kinds.
    """

    key: str
    name: str
    ratio: float
    kind: str


APPS = {
    app.key: app
    for app in (App("lr", "LR", 8.0, "rows"), App("mf", "MF", 1.5, "ratings"), App("cnn", "CNN", 5.7, "pictures"))
}


@dataclass(frozen=True)
class Case:
    """One training.

    Attributes:
        group, app, size, cycle: of which this is a part.
        way: dense: whole parameters through servers. delta, up: a fixed threshold. follow, smooth: one that follows
            the network (hpcomm.codec.Threshold).
        steps: how many; with seconds at most so many.
        looks: after which steps rank 0 keeps a copy of the parameters, whose objective is measured in the end.
        seconds: how long; 0: steps alone count. Under BSP.
        period: the training begins when the clock is a multiple of so many seconds; 0: at once.
        compute: seconds of the timer; None: so that dense BSP has the paper's ratio, which is measured first, or is
            the bound of links of rate, if that is given.
        at_least: bytes a second, of follow and smooth.
        servers: ranks that only serve, the last ones, of the dense way.
        eta: the learning rate of step 1; None: the model's.
        plant: spoils what rank 1 tells.
        data: a folder with the real data of the application; empty: a package's data.
    """

    group: str
    app: str
    size: str
    way: str
    staleness: int = 0
    cycle: int = 0
    steps: int = 40
    looks: tuple[int, ...] = ()
    seconds: float = 0.0
    period: float = 0.0
    compute: float | None = None
    rate: str = ""
    at_least: float = 0.0
    servers: int = 0
    eta: float | None = None
    plant: bool = False
    data: str = ""
