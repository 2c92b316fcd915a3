"""python -m hpcomm is the hpcomm command."""

from .cli import main

main(prog_name="hpcomm")
