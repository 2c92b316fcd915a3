"""hpcomm bench: measures the bounds of a machine or cluster, and which part of each bound hpcomm reaches."""

import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from .. import bench, launch
from ..bench import harness, ranks, start, together
from ..errors import HpcommError
from . import mpi

_MODULE = [sys.executable, "-m", "hpcomm.cli", "bench"]
_FILE = click.Path(dir_okay=False, path_type=Path)


def _launched() -> bool:
    """Whether a launcher has started this process as one of several ranks."""
    try:
        return launch.find(None, launch.configuration({})).size > 1
    except HpcommError as error:
        raise click.ClickException(str(error)) from None


def start_ranks(count: int, words: Sequence[str], transport: str) -> int:
    """Runs the command as count ranks on this host: by mpirun if mpi4py has the same MPI, otherwise by hpcomm's own
    rendezvous. Returns the exit status."""
    launcher = mpi.launcher()
    binding = mpi.mpi4py() if launcher is not None else None
    if launcher is not None and binding is not None and binding.library and binding.family == launcher.family:
        command = start.mpirun(launcher.path, launcher.family, count, transport)
        return subprocess.run([*command, *_MODULE, *words], check=False).returncode
    return start.by_environment(count, [*_MODULE, *words])


def as_rank(job: Callable[[Any], int]) -> int:
    """Runs job on this rank and returns its result, or 4 after an error. Under MPI an error ends all ranks, which
    would otherwise wait for this one."""
    comm = ranks.world()
    try:
        return job(comm)
    except Exception as error:
        if isinstance(error, HpcommError):
            click.echo(f"hpcomm bench: {error}", err=True)
        else:
            traceback.print_exc()
        sys.stderr.flush()
        if ranks.is_mpi(comm):
            comm.Abort(4)
        return 4


def run_one(name: str, arguments: Sequence[str]) -> int:
    benchmark = bench.find(name)
    options = harness.options_of(benchmark, arguments)
    if options.ranks > 1 and not _launched():
        return start_ranks(options.ranks, [name, *arguments], options.transport)
    return as_rank(lambda comm: harness.run(benchmark, arguments, lambda given: harness.Bench(given, comm)))


def _one(name: str, about: str) -> click.Command:
    """Returns the click command of one benchmark; harness.parser, not click, reads its options."""
    return click.Command(
        name,
        callback=lambda arguments: sys.exit(run_one(name, arguments)),
        params=[click.Argument(["arguments"], nargs=-1, type=click.UNPROCESSED)],
        context_settings={"ignore_unknown_options": True},
        short_help=about,
        add_help_option=False,
    )


def _words(quick: bool, as_json: bool, **values: Any) -> list[str]:
    flags = [*(["--quick"] if quick else []), *(["--json"] if as_json else [])]
    return flags + [
        f"--{name if name == 'output_file' else name.replace('_', '-')}={value}"
        for name, value in values.items()
        if value
    ]


@click.group("bench", invoke_without_command=True)
@click.option("--quick", is_flag=True, help="A minute at most: small sizes and few samples.")
@click.option(
    "--ranks",
    "count",
    type=click.IntRange(1),
    default=2,
    show_default=True,
    help="Ranks on this host, when no launcher has started any.",
)
@click.option("--transport", type=click.Choice(harness.TRANSPORTS), help="Default: the best for each peer.")
@click.option(
    "--at-least",
    type=click.FloatRange(0, 1),
    default=0.0,
    help="End with 3 if hpcomm reaches less than this part of a bound, e.g. 0.9.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")
@click.option("-J", "--output_file", type=_FILE, help="Write JSON to this file too.")
@click.option("--plot", type=_FILE, help="Draw all into this file (needs matplotlib).")
@click.pass_context
def command(ctx: click.Context, /, quick: bool, count: int, **given: Any) -> None:
    """Measure memory, links and hpcomm's operations, compare them with their bounds, and print a verdict.

    Without a launcher it starts two ranks on this host. Under mpirun, srun or torchrun it uses the launcher's ranks:
    mpirun -H node1,node2 hpcomm bench. Without NAME it runs all benchmarks, and prints a verdict at the end.
    hpcomm bench NAME --help lists the options of one benchmark.

    The exit status is 1 if a result was wrong, 2 for bad options, 3 if a part is below --at-least, and 4 if a rank
    failed.
    """
    if ctx.invoked_subcommand is not None:
        if quick or count != 2 or any(given.values()):
            raise click.UsageError(f"options go behind the name: hpcomm bench {ctx.invoked_subcommand} --quick")
        return
    given["transport"] = given["transport"] or ""
    if count > 1 and not _launched():
        ctx.exit(start_ranks(count, _words(quick, **given), given["transport"]))
    ctx.exit(as_rank(lambda comm: together.run(comm, quick, **given)))


for _name, _about in bench.TABLE.items():
    command.add_command(_one(_name, _about))
