"""python -m hpcomm.cmake prints the folder for CMake's -Dhpcomm_DIR, and with --pkg-config-dir the one for
PKG_CONFIG_PATH: the folder options of hpcomm info, where the scripts of the environment are not on PATH."""

import sys

from .cli.info import command

if __name__ == "__main__":
    command.main(sys.argv[1:] or ["--cmake-dir"], prog_name="python -m hpcomm.cmake")
