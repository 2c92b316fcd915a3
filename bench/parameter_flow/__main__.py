"""parameter_flow: the figures of Parameter Flow, by its applications on hosts that are namespaces of this machine.

--groups:

    cost      section 2.4: communicating against computing, of AlexNet's shape
    traffic   figures 9 and 10: the traffic that thresholds save, by clock, and the steps it costs
    time      figures 12 and 13: the time to an objective, computing and communicating apart, and the speed-up
    trees     figure 11: one and two owners, whose folds go down trees
    shared    figure 14: the speed-up where others use the links too (iperf3)

Each group runs in one job, or in one job for each application. Its ways take turns, --run_cycles times; a row has
medians. Computing is a timer that gives the dense hub under BSP the paper's ratio of computing to communicating: LR
1:8, MF 1:1.5, CNN 1:5.7. All groups together take an hour and a half. --read prints and draws the results that earlier
runs wrote by -J.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import hpcomm
from bench.common.judge import table
from bench.common.launch import cores
from bench.common.options import add_output, add_quick, held, write
from bench.ops.cluster_bench import UNABLE
from bench.ops.hosts_bench import rate_of
from bench.parameter_flow import cost, hosts, shared, times, traffic, trees
from bench.parameter_flow.cases import APPS, EIGHT, FULL, TINY, WHOLE
from bench.parameter_flow.hosts import LIMIT
from hpcomm.bench import plots
from hpcomm.bench.rows import Row

from cluster.hosts import Unavailable  # isort: skip - tests is on the path by now

GROUPS: dict[str, Any] = {
    "cost": cost,
    "traffic": traffic,
    "time": times,
    "trees": trees,
    "shared": shared,
}


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    p = argparse.ArgumentParser(prog="python -m bench.parameter_flow", description=__doc__.partition("\n")[0])
    p.add_argument("--groups", default=",".join(GROUPS), help=f"of {', '.join(GROUPS)}; default: all")
    p.add_argument("--apps", default=",".join(APPS), help=f"of {', '.join(APPS)}; default: all")
    p.add_argument("--hosts", type=int, help="of one rank each; default: 8")
    p.add_argument("--size", choices=(FULL, EIGHT, TINY), help="of the models; default: the group's")
    p.add_argument("--paper-size", action="store_true", help="--groups cost: all of AlexNet's 61 M parameters")
    p.add_argument("--steps", type=int, help="of dense BSP, to the objective; default: the group's")
    p.add_argument("--ways", default="", help="some ways of a group, as delta:0,up:16: names and staleness")
    p.add_argument("--rate", type=rate_of, help="of each host's link, as tc writes it; default: the group's")
    p.add_argument("--burst", help="bucket of the links; default: the group's")
    p.add_argument("-N", "--run_cycles", type=int, help="cycles: the ways take turns; default: the group's")
    p.add_argument("--eta", type=float, help="learning rate of step 1; default: the model's")
    p.add_argument("--data", default="", help="folder with the data of --apps, in place of the packages' data")
    p.add_argument("--limit", type=float, default=LIMIT, help="seconds of a job, after which finished cases count")
    earlier = "print and draw these results, measure nothing"
    p.add_argument("--read", type=Path, nargs="+", default=[], metavar="FILE", help=earlier)
    p.add_argument("--plant", action="store_true", help="spoil what rank 1 tells, to see that #wrong counts it")
    add_quick(p, "two hosts, tiny models, few steps, one cycle")
    add_output(p, "figures")
    options = p.parse_args(arguments)
    if options.quick:
        options.hosts, options.size, options.steps, options.run_cycles = options.hosts or 2, TINY, options.steps or 4, 1
    options.ways = [ways_of(word.strip()) for word in options.ways.split(",") if word.strip()]
    for name, known in (("groups", GROUPS), ("apps", APPS)):
        chosen = [word.strip() for word in getattr(options, name).split(",") if word.strip()]
        if unknown := set(chosen) - set(known):
            p.error(f"--{name}: there is no {', '.join(sorted(unknown))}: {', '.join(known)}")
        setattr(options, name, chosen)
    if options.paper_size:
        if options.groups != ["cost"] or options.size is not None:
            p.error("--paper-size is for --groups cost alone, without --size and --quick; the other groups have --size")
        options.size = WHOLE
    if options.data:
        try:
            options.data = held(options.data, *(APPS[app].kind for app in options.apps))
        except argparse.ArgumentTypeError as wrong:
            p.error(f"--data for --apps {','.join(options.apps)}: {wrong}")
    if missing := [str(path) for path in options.read if not path.is_file()]:
        p.error(f"--read: there is no file {', '.join(missing)}; give files that -J has written")
    if min(options.steps or 1, options.run_cycles or 1, (options.hosts or 2) - 1) < 1:
        p.error("--steps and --run_cycles must be 1 or more, --hosts 2 or more")
    return options


def ways_of(word: str) -> tuple[str, int]:
    """Parses the ways; "delta:16" is the way "delta" under SSP(16)."""
    way, _, staleness = word.partition(":")
    return way, int(staleness or 0)


def measure(group: str, options: argparse.Namespace) -> list[Row]:
    module = GROUPS[group]
    if hasattr(module, "measure"):
        return list(module.measure(options))
    given = argparse.Namespace(
        **{**vars(options), "size": options.size or module.SIZE, "hosts": options.hosts or module.HOSTS}
    )
    where = {"hosts": given.hosts, "rate": options.rate or module.RATE}
    rows: list[Row] = []
    for app in getattr(module, "ONLY", options.apps):
        given.apps = [app]
        cases = [replace(case, eta=options.eta, data=options.data) for case in module.cases(given)]
        rows += hosts.run(
            cases,
            title=f"{group}, {app}",
            burst=options.burst or module.BURST,
            quiet=options.json,
            limit=options.limit,
            beside=partial(module.beside, size=given.size) if hasattr(module, "beside") else None,
            **where,
        )
    return [{**row, "rate": where["rate"], "cores": cores()} for row in rows]


def read(paths: Sequence[Path]) -> dict[str, list[Row]]:
    """Reads the rows of several runs, by group. If two runs have measured an application in a group, the later run
    is used."""
    found: dict[str, dict[str, list[Row]]] = {}
    for path in paths:
        rows: list[Row] = json.loads(path.read_text(encoding="utf-8"))["rows"]
        for group, app in dict.fromkeys((row["group"], row["app"]) for row in rows):
            own = [row for row in rows if (row["group"], row["app"]) == (group, app)]
            found.setdefault(group, {})[app] = own
    return {group: [row for app in found[group].values() for row in app] for group in GROUPS if group in found}


def draw(document: Row, path: Path) -> None:
    panels: list[plots.Draw] = []
    for group in document["groups"]:
        rows = [row for row in document["rows"] if row["group"] == group]
        apps = dict.fromkeys(row["app"] for row in rows)
        panels += [partial(_panel, module=GROUPS[group], rows=rows, app=app) for app in apps]
    plots.figure(path, panels, "Parameter Flow's figures, by hpcomm", columns=3)


def _panel(axis: Any, module: Any, rows: Sequence[Row], app: str) -> None:
    module.panel(rows, axis, app)


def main(arguments: Sequence[str] | None = None) -> int:
    options = options_of(arguments)
    earlier = read(options.read)
    groups = [group for group in options.groups if group in earlier or not options.read]
    document: Row = {"benchmark": "parameter_flow", "hpcomm": hpcomm.__version__, "groups": groups, "rows": []}
    try:
        for group in groups:
            document["rows"] += earlier[group] if options.read else measure(group, options)
            write(options, json.dumps(document))  # kept if this run ends early
            if not options.json:
                print("\n".join(GROUPS[group].lines(document)), flush=True)
                print(table(list(GROUPS[group].promises(document))), flush=True)
    except Unavailable as why:
        print(f"parameter_flow: no hosts here: {why}", file=sys.stderr)
        return UNABLE
    if options.plot is not None:
        draw(document, options.plot)
    wrong = sum(row["wrong"] for row in document["rows"])
    closing = f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}"
    print(json.dumps(document) if options.json else closing)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
