"""The figures of Poseidon whose networks compute by timer, and the systems that they compare."""

from dataclasses import dataclass

from bench.poseidon.networks import NETWORKS

AFTER, WHOLE, WFBP = "PS after backward", "PS, whole tensors", "WFBP + PS"
POSEIDON, PAPER = "Poseidon", "Poseidon, algorithm 1"
ADAM, ONE_BIT = "Adam's way", "1-bit"
LINEAR = {ADAM: "adam", ONE_BIT: "1bit"}  # the way of all linear layers
ACCURACY, CONVERGENCE = "accuracy", "onebit"  # the groups that train
SYSTEMS = (AFTER, WHOLE, WFBP, POSEIDON, PAPER)


@dataclass(frozen=True)
class Figure:
    """The settings of a group.

    Attributes:
        stands_for: Gb/s of the paper's link that a link of 1 Gb/s represents; computing is scaled to it.
        links: rates, as tc writes them; (): the one of --rate.
        shapes: hosts x ranks of each.
    """

    title: str
    stands_for: float
    shapes: tuple[tuple[int, int], ...]
    networks: tuple[str, ...] = tuple(NETWORKS)
    systems: tuple[str, ...] = SYSTEMS
    links: tuple[str, ...] = ()


FIGURES = {
    "scaling": Figure(
        "figures 5, 6 and 9a: speedup by hosts; a link stands for 40 GbE", 40, ((1, 1), (2, 1), (4, 1), (8, 1))
    ),
    "stall": Figure(
        "figure 7: computing and stall on eight hosts; a link stands for 40 GbE",
        40,
        ((8, 1),),
        ("Inception-V3", "VGG19", "VGG19-22K"),
        (WHOLE, WFBP, POSEIDON),
    ),
    "bandwidth": Figure(
        "figure 8: speedup by bandwidth; 1 Gb/s stands for 10 GbE",
        10,
        ((2, 1), (4, 1), (8, 1)),
        ("GoogLeNet", "VGG19", "VGG19-22K"),
        (WFBP, POSEIDON, PAPER),
        ("100mbit", "300mbit", "1gbit"),
    ),
    "methods": Figure(
        "section 5.3: other methods on eight hosts; a link stands for 40 GbE",
        40,
        ((8, 1),),
        ("VGG19",),
        (ADAM, ONE_BIT, WFBP, POSEIDON),
    ),
    "ranks": Figure(
        "section 5.1, several ranks on each host; a link stands for 40 GbE",
        40,
        ((1, 2), (1, 4), (2, 2), (2, 4), (4, 2)),
        ("GoogLeNet", "VGG19", "VGG19-22K"),
        (AFTER, WFBP, POSEIDON, PAPER),
    ),
}
