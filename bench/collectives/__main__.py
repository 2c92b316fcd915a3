"""collectives: one call of a collective, or a ping-pong, of hpcomm and other libraries, in nccl-tests' columns.

The libraries take turns, A B C A B C ..., in groups of processes that sleep while another group is measured. Each turn
has other data, and its answer is checked. The time of a turn is that of the slowest rank, divided by the number of
calls; a row has the median of the turns. --hosts makes hosts of this machine (namespaces) whose links have a rate.
"""

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from typing import Any

import hpcomm
from bench.collectives import data, table
from bench.collectives.groups import Group, Lost, pythons
from bench.collectives.libraries import BACKEND, GLOO, NAMES, WORDS, Lacking, apart
from bench.collectives.orders import Answer, Order
from bench.collectives.places import Here, Hosts
from bench.common.launch import ROOT, cores
from bench.common.options import add_output, add_quick, write
from bench.ops.cluster_bench import UNABLE
from bench.ops.hosts_bench import Shape, rate_of, shape_of
from hpcomm.bench.harness import nbytes
from hpcomm.bench.rows import Row

sys.path.insert(0, str(ROOT / "tests"))
from cluster.hosts import Unavailable

SIZES = "8,64K,4M,32M"
MOST = 5000  # calls of a turn


def words(known: Sequence[str], short: Mapping[str, str] | None = None) -> Any:
    """Returns a parser of names that are separated by commas. short: the words for names that have commas."""
    of_words = {word: name for name, word in (short or {}).items()}

    def parse(text: str) -> list[str]:
        for name, word in (short or {}).items():
            text = text.replace(name, word)
        names = [each.strip() for each in text.split(",") if each.strip()]
        names = [of_words.get(name, name) for name in names]
        unknown = [name for name in names if name not in known]
        if unknown or not names:
            raise argparse.ArgumentTypeError(f"{', '.join(known)}, not {text!r}")
        return [name for name in known if name in names]

    return parse


def numbers(least: int, parse: Any = int) -> Any:
    """Returns a parser of numbers that are separated by commas."""

    def numbers_of(text: str) -> list[int]:
        found = [parse(each) for each in text.split(",")]
        if min(found) < least:
            raise argparse.ArgumentTypeError(f"{least} or more, not {text}")
        return found

    return numbers_of


def shapes_of(text: str) -> list[Shape]:
    found = [shape_of(each.strip()) for each in text.split(",")]
    if any(shape.racks > 1 or shape.hosts < 2 for shape in found):
        raise argparse.ArgumentTypeError(f"two hosts or more, without racks, not {text}")
    return found


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    p = argparse.ArgumentParser(prog="python -m bench.collectives", description=__doc__.partition("\n")[0])
    named = ", ".join(WORDS.get(name, name) for name in NAMES)
    p.add_argument("--backend", action="store_true", help="torch.distributed alone: its backends hpcomm and Gloo")
    p.add_argument("--libs", type=words(NAMES, WORDS), help=f"of {named}; default: all that are installed")
    p.add_argument(
        "--what", type=words(tuple(data.SHAPES)), default=[*data.SHAPES], help=f"of {', '.join(data.SHAPES)}"
    )
    p.add_argument("--sizes", type=numbers(1, nbytes), help=f"bytes of a call; default: {SIZES}")
    places = p.add_mutually_exclusive_group()
    places.add_argument("--ranks", type=numbers(1), default=[2, 4], help="processes of each library; default: 2,4")
    places.add_argument(
        "--hosts", type=shapes_of, default=[], help="hosts x ranks, such as 4x1,4x2, in place of --ranks"
    )
    p.add_argument("--rate", type=rate_of, default="1gbit", help="of each host's link, as tc writes it; default: 1gbit")
    p.add_argument("--op", choices=[*data.OPS], default="sum", help="of the collectives that reduce")
    p.add_argument("--type", choices=data.TYPES, default="float32", help="of the elements")
    p.add_argument("-N", "--run_cycles", type=int, help="turns of each library; default: 7")
    p.add_argument("--turn", type=float, help="seconds of the timed calls of a turn, at least one; default: 0.03")
    p.add_argument("--python", action="append", default=[], help="a Python that has another library; repeatable")
    p.add_argument("-T", "--timeout", type=float, default=120.0, help="seconds of the longest wait")
    p.add_argument("--plant", action="store_true", help="spoil a value of each library, to see that #wrong counts it")
    add_quick(p)
    add_output(p, plot="", progress=False)
    options = p.parse_args(arguments)
    quick = options.quick
    if options.backend:
        if options.libs:
            p.error("--backend names the libraries: leave --libs out")
        options.libs = [BACKEND, GLOO]
    options.sizes = options.sizes or numbers(1, nbytes)("8,64K" if quick else SIZES)
    options.run_cycles = (2 if quick else 7) if options.run_cycles is None else options.run_cycles
    options.turn = (0.002 if quick else 0.03) if options.turn is None else options.turn
    if options.run_cycles < 1:
        p.error("--run_cycles must be 1 or more")
    return options


def measure(
    case: data.Case, groups: dict[str, Group], options: argparse.Namespace, seed: int, lacking: dict[str, str]
) -> list[Row]:
    """Returns a row for each library. seed: of the first turn's data; every turn takes the next. lacking: gets the
    libraries that have no such call, and why."""
    calls, wrong, turns = dict[str, int](), dict[str, int](), dict[str, list[Answer]]()

    def turn(name: str, number: int, plant: bool = False) -> Answer:
        found = groups[name].ask(Order(name, case, number, seed, plant))
        if found.failed:
            raise Lost(f"{name}, {case.call} of {case.size} bytes on {case.ranks} ranks: {found.failed}")
        if found.lacking:
            raise Lacking(found.lacking)
        wrong[name] = wrong.get(name, 0) + found.wrong
        return found

    for name in groups:  # tells how many calls fill a turn
        seed += 1
        try:
            calls[name] = max(1, min(MOST, int(options.turn / (case.trips * turn(name, 2).seconds))))
        except Lacking as why:
            lacking[name] = str(why)
    for cycle in range(options.run_cycles):
        for name in calls:
            seed += 1
            turns.setdefault(name, []).append(turn(name, calls[name], options.plant and cycle == 0))
    rows = []
    for name, found in turns.items():
        seconds, sent = [each.seconds for each in found], [each.sent for each in found]
        rows.append(table.row(case, name, calls[name], seconds, wrong[name], groups[name].place, sent))
    return [*table.compared(rows)]


class Run:
    """A run: the document that it fills, and its printed lines."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.names: list[str] = options.libs or [*NAMES]
        self.pythons, lacking = pythons(self.names, options.python)
        self.document: dict[str, Any] = {"benchmark": "collectives", "hpcomm": hpcomm.__version__, "cores": cores()}
        self.document |= {"versions": {}, "lacking": {}, "load": [os.getloadavg()[0]], "rows": [], "wrong": 0}
        self.document |= {"rate": options.rate} if options.hosts else {}
        self.leave_out(lacking)

    def say(self, *lines: str) -> None:
        if not self.options.json and lines:
            print(*lines, sep="\n", flush=True)

    def leave_out(self, lacking: dict[str, str]) -> None:
        """Leaves libraries out; if --libs names one of them, the run ends."""
        if lacking and self.options.libs:
            raise SystemExit("\n".join(f"{name}: {why}" for name, why in lacking.items()))
        self.tell(lacking)

    def tell(self, lacking: dict[str, str]) -> None:
        """Says once why libraries or calls are left out."""
        told = {name: why for name, why in lacking.items() if name not in self.document["lacking"]}
        self.document["lacking"] |= told
        self.say(*(f"# {name} is left out: {why}" for name, why in told.items()))

    def at(self, place: Here | Hosts) -> None:
        """Measures all cases at a place."""
        with ExitStack() as stack:
            stack.enter_context(place)
            groups: dict[str, Group] = {}
            for names in apart([name for name in self.names if name in self.pythons]):
                group = stack.enter_context(closing(Group(names, self.pythons[names[0]], place, self.options.timeout)))
                self.leave_out(group.lacking)
                self.document["versions"] |= group.versions
                groups |= dict.fromkeys([name for name in names if name not in group.lacking], group)
            if not groups:
                raise SystemExit("no library is left to measure")
            if not self.document["rows"]:
                self.say(*table.header(place.hosts > 1))
            for call in self.options.what:
                if data.SHAPES[call].paired and place.ranks < 2:
                    self.tell({f"{call} of one rank": "two ranks take part"})
                    continue
                for size in self.options.sizes:
                    case = data.case(call, place.ranks, size, self.options.type, self.options.op)
                    lacking = dict[str, str]()
                    rows = measure(case, groups, self.options, 1000 * len(self.document["rows"]), lacking)
                    self.tell({f"{call} of {name}": why for name, why in lacking.items()})
                    self.document["rows"] += rows
                    self.document["wrong"] += sum(each["wrong"] for each in rows)
                    self.say(*map(table.text, rows))


def main(arguments: Sequence[str] | None = None) -> int:
    options = options_of(arguments)
    run = Run(options)
    try:
        for place in [Hosts(shape, options.rate) for shape in options.hosts] or map(Here, options.ranks):
            run.at(place)
    except Lost as reason:
        print(reason, file=sys.stderr)
        return 4
    except Unavailable as why:
        print(f"collectives: no hosts here: {why}", file=sys.stderr)
        return UNABLE
    if not run.document["rows"]:
        raise SystemExit("nothing was measured")
    run.document["load"].append(os.getloadavg()[0])
    text = json.dumps(run.document, indent=1)
    write(options, text)
    wrong = run.document["wrong"]
    if options.json:
        print(text)
    else:
        run.say(*(f"# {name}: {version}" for name, version in run.document["versions"].items()))
        run.say("# load {:.1f} before, {:.1f} after".format(*run.document["load"]))
        run.say(f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
