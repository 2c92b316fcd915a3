"""Who sends to whom: values that compile to plans."""

from .parameter_server import ParameterServer

__all__ = ["ParameterServer"]
