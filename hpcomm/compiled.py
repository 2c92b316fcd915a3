"""Raises an error in a checkout that has not been compiled and hides the installed package. hpcomm imports it first."""

from importlib.util import find_spec
from pathlib import Path

_package = Path(__file__).resolve().parent

if find_spec("hpcomm._ffi") is None:
    raise ModuleNotFoundError(
        f"{_package} is a checkout of hpcomm without its compiled part: start Python in another folder to import the "
        f"installed package, or compile this one by pip install -e {_package.parent}",
        name="hpcomm._ffi",
    )
