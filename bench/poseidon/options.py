"""The options of bench.poseidon, its groups, and the jobs that they need."""

import argparse
from collections.abc import Iterator, Sequence
from itertools import groupby

from bench.common.layers import QUARTER, too_large
from bench.common.options import add_output, add_pictures, add_quick
from bench.ops.hosts_bench import Shape, rate_of, shape_of
from bench.poseidon.networks import NETWORKS
from bench.poseidon.systems import ACCURACY, CONVERGENCE, FIGURES, LINEAR, SYSTEMS
from bench.poseidon.table import NAMES

GROUPS: dict[str, tuple[tuple[int, int], ...]] = {  # hosts, and the ranks on each
    "steps": ((4, 1),),
    "choice": ((4, 1),),
    "traffic": ((8, 1),),
    **{name: figure.shapes for name, figure in FIGURES.items()},
    ACCURACY: ((1, 1), (2, 1), (4, 1)),
    CONVERGENCE: ((4, 1),),
}
MODELS = ("mlp19",)  # bench/torch/models.py
CYCLES, RATE = 5, "1gbit"
QUICK_WIDTH, QUICK_LINK = 0.05, 2.0


def options_of(arguments: Sequence[str] | None, about: str) -> argparse.Namespace:
    p = argparse.ArgumentParser(prog="python -m bench.poseidon", description=about)
    p.add_argument("--groups", default=",".join(GROUPS), help=f"of {', '.join(GROUPS)}; default: all")
    p.add_argument(
        "--hosts",
        default="",
        help="numbers of hosts, or hosts and ranks as 2x2, comma-separated; default: by group",
    )
    p.add_argument("--layers", type=int, default=20, help="random layers of --groups choice")
    p.add_argument("--seed", type=int, default=31, help="of random layers, and of trainings")
    p.add_argument("--ways", default="", help="names that contain one of these, comma-separated; default: all")
    p.add_argument("--networks", default=",".join(NETWORKS), help=f"with timers: of {', '.join(NETWORKS)}")
    p.add_argument("--width", type=float, default=QUARTER, help="with timers: as a fraction of the networks' widths")
    p.add_argument("--stands-for", type=float, help="with timers: Gb/s of the paper's link for which 1 Gb/s stands")
    p.add_argument("--epochs", type=int, default=15, help="of --groups accuracy")
    p.add_argument("--iterations", type=int, default=300, help="of --groups onebit")
    p.add_argument(
        "--rate", type=rate_of, help=f"rate of each host's link, as tc writes it; default: {RATE}, figure 8: 3"
    )
    p.add_argument("--burst", default="256k", help="bucket of the links")
    p.add_argument("--steps", type=int, default=3, help="timed steps of a turn")
    p.add_argument("-N", "--run_cycles", type=int, help=f"cycles: the ways take turns; default: {CYCLES}, timers: 1")
    p.add_argument("--plant", action="store_true", help="spoil a tensor of each way, to see that #wrong counts it")
    add_pictures(p)
    add_quick(p, "two hosts, small models, one cycle, two random layers")
    p.add_argument("--part", default="", help=argparse.SUPPRESS)  # the shape of these ranks
    p.add_argument("--address", default="", help=argparse.SUPPRESS)  # of rank 0
    add_output(p, "figures with timers, and of trainings,")
    options = p.parse_args(arguments)
    if options.quick:
        options.hosts, options.run_cycles, options.steps, options.layers = "2", 1, 1, 2
        options.width, options.stands_for, options.epochs, options.iterations = QUICK_WIDTH, QUICK_LINK, 1, 4
    options.links, options.rate = [options.rate] * bool(options.rate), options.rate or RATE
    options.timer_cycles = 1 if options.run_cycles is None else options.run_cycles
    options.run_cycles = CYCLES if options.run_cycles is None else options.run_cycles
    options.models = ["mlp3"] if options.quick else list(MODELS)
    for name, known in (("groups", GROUPS), ("networks", NETWORKS)):
        chosen = [word.strip() for word in getattr(options, name).split(",") if word.strip()]
        if unknown := set(chosen) - set(known):
            p.error(f"--{name}: there is no {', '.join(sorted(unknown))}: {', '.join(known)}")
        setattr(options, name, chosen)
    try:
        options.shapes = [_hosts(word.strip()) for word in options.hosts.split(",") if word]
    except (ValueError, argparse.ArgumentTypeError):
        p.error(f"--hosts: {options.hosts!r} are no numbers of hosts, nor hosts and ranks as 2x2")
    of_one = {"steps", "scaling", ACCURACY}
    if any(shape.all_hosts == 1 for shape in options.shapes) and not set(options.groups) <= of_one:
        p.error(f"--hosts must be 2 or more; only the groups {', '.join(sorted(of_one))} take 1")
    if min(options.steps, options.run_cycles, options.layers, options.epochs, options.iterations) < 1:
        p.error("--steps, --run_cycles, --layers, --epochs and --iterations must be 1 or more")
    words = [word.strip().lower() for word in options.ways.split(",") if word.strip()]
    known_ways = dict.fromkeys((*NAMES, *SYSTEMS, *LINEAR))
    if words and not any(word in name.lower() for word in words for name in known_ways):
        p.error(f"--ways: no name contains {options.ways!r}; there are {', '.join(known_ways)}")
    if options.width <= 0 or (options.stands_for is not None and options.stands_for <= 0):
        p.error("--width and --stands-for must be above 0")
    for group in set(options.groups) & set(FIGURES) if not options.part else ():
        chosen = [key for key in FIGURES[group].networks if key in options.networks]
        workers = max(shape.all_hosts * shape.ranks for shape in shapes_of(group, options))
        if chosen and (why := too_large(NETWORKS, chosen, options.width, workers)):
            p.error(f"--groups {group}: {why}")
    return options


def _hosts(word: str) -> Shape:
    return Shape(1, 1, 1) if word == "1" else shape_of(word if "x" in word else f"{int(word)}x1")


def shapes_of(group: str, options: argparse.Namespace) -> list[Shape]:
    each = 2 if group == "ranks" else 1
    given = [Shape(1, shape.all_hosts, max(each, shape.ranks)) for shape in options.shapes]
    return given or [Shape(1, *numbers) for numbers in GROUPS[group]]


def runs(options: argparse.Namespace, given: Sequence[str]) -> Iterator[tuple[Shape, Sequence[str], str]]:
    """Returns each job: its hosts, its ranks' arguments, and the rate of its links. In a quick run, neighbouring
    groups with the same hosts are one job, because a short job mostly starts its ranks."""

    def job_of(group: str) -> str:
        return str(shapes_of(group, options)) if options.quick else group

    for groups in (list(some) for _, some in groupby(options.groups, job_of)):
        links = FIGURES[groups[0]].links if groups[0] in FIGURES and not options.quick else ()
        for rate in options.links or links or [RATE]:
            for shape in shapes_of(groups[0], options):
                yield shape, [*given, "--groups", ",".join(groups), "--rate", rate], rate  # the last of each counts


def shape_in(text: str) -> Shape:
    """Returns the shape of a Shape's key, which has no racks."""
    hosts, ranks = (int(number) for number in text.split("x"))
    return Shape(1, hosts, ranks)
