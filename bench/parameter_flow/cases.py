"""The applications, ways and cases that bench.parameter_flow trains. Needs neither MPI nor hpcomm."""

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
        kind: of its data (examples/paper_data.py).
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
        group, app, size, cycle: the place of the training.
        way: dense: whole parameters through servers. delta, up: a fixed threshold. follow, smooth: one that follows
            the network (hpcomm.codec.Threshold).
        steps: how many; with seconds, at most this many.
        looks: steps after which rank 0 keeps a copy of the parameters, whose objective is measured at the end.
        seconds: duration, under BSP; 0: only steps count.
        period: the training begins when the clock is a multiple of this many seconds; 0: at once.
        compute: seconds of the timer. None: measured first, so that dense BSP has the paper's ratio; or computed from
            links of `rate`, if that is given.
        at_least: bytes a second, for follow and smooth.
        servers: number of last ranks that only serve, in the dense way.
        eta: the learning rate of step 1; None: the model's.
        plant: spoils the values that rank 1 reports.
        data: a folder with the real data of the application; "": a package's data.
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
