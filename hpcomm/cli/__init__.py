"""The hpcomm command: info, doctor, bench, graph, hub, status and timeline."""

import importlib

import click

from .. import __version__

_NAMES = ("bench", "doctor", "graph", "hub", "info", "status", "timeline")  # of subcommands, and of their modules


class _Commands(click.Group):
    """A group that imports a subcommand when it is used, so that one does not wait for the imports of all."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_NAMES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _NAMES:
            return None
        command: click.Command = importlib.import_module(f".{cmd_name}", __name__).command
        return command


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="hpcomm")
def main() -> None:
    """hpcomm: one-sided exchange of the updates of data-parallel training jobs."""
