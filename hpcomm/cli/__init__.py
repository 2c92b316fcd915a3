"""The hpcomm command: info and doctor."""

import click

from .doctor import doctor
from .info import info


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="hpcomm", prog_name="hpcomm")
def main() -> None:
    """hpcomm: one-sided exchange of the updates of data-parallel training jobs."""


main.add_command(info)
main.add_command(doctor)
