"""python -m hpcomm.cmake prints the folder for CMake's -Dhpcomm_DIR; with --pkg-config-dir it prints the folder for
PKG_CONFIG_PATH. `hpcomm info` has the same options; use this module if the script hpcomm is not on PATH."""

import sys

from .cli.info import command

if __name__ == "__main__":
    command.main(sys.argv[1:] or ["--cmake-dir"], prog_name="python -m hpcomm.cmake")
