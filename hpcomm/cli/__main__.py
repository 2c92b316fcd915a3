"""Runs the hpcomm command by python -m hpcomm.cli."""

from . import main

main(prog_name="hpcomm")
