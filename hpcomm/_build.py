"""Builds the cffi extension hpcomm._ffi from the declarations between the two "cffi" lines of each header."""

import sys
import sysconfig
from pathlib import Path

from cffi import FFI

INCLUDE = Path("csrc/include")  # from the root of the sources, where the build runs


def declarations(header: str) -> str:
    """Returns the header's text between the lines "cffi: begin" and "cffi: end", without HPC_API."""
    lines = header.splitlines()
    begin = next(i for i, line in enumerate(lines) if "cffi: begin" in line)
    end = next(i for i, line in enumerate(lines) if "cffi: end" in line)
    return "\n".join(lines[begin + 1 : end]).replace("HPC_API ", "")


ffibuilder = FFI()
HEADERS = ("error", "rule", "engine", "hpcomm", "codec", "collective", "jobs", "plan", "service", "way", "stats")
for name in HEADERS:
    ffibuilder.cdef(declarations((INCLUDE / "hpcomm" / f"{name}.h").read_text(encoding="utf-8")))
ffibuilder.cdef('extern "Python" void hpcomm_warn(void *, const char *);')  # for hpc_config's field warn
# To link, setup.py adds CMake's output folder. At run time the library is found in lib/ beside the extension.
ffibuilder.set_source(
    "hpcomm._ffi",
    "#include <hpcomm/hpcomm.h>",
    include_dirs=[str(INCLUDE)],
    extra_link_args=["-l:libhpcomm.so.0", "-Wl,-rpath,$ORIGIN/lib"],
    # setup.py gives the reason, at the other extension.
    py_limited_api=sys.version_info >= (3, 11) and not sysconfig.get_config_var("Py_GIL_DISABLED"),
)
