"""python -m hpcomm.cli is the hpcomm command."""

from . import main

main(prog_name="hpcomm")
