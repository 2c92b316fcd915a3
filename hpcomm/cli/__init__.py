"""The hpcomm command: info, doctor, bench, graph, hub, status and timeline."""

import click

from .. import __version__
from . import bench, doctor, graph, hub, info, status, timeline


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="hpcomm")
def main() -> None:
    """hpcomm: one-sided exchange of the updates of data-parallel training jobs."""


main.add_command(info.command)
main.add_command(doctor.command)
main.add_command(bench.command)
main.add_command(graph.command)
main.add_command(hub.command)
main.add_command(status.command)
main.add_command(timeline.command)
