"""hpcomm: one-sided exchange of the updates of data-parallel training jobs.

    ctx = hpcomm.init()                                   # under mpirun, or alone
    window = ctx.window((1024,), "float32", signals=1)    # memory that every peer may write
    queue = ctx.receive_queue(in_peers, out_peers, (1024,))   # NOTIFY-ACK
    ex = hpcomm.parameter_hub(ctx, {"fc": weights})       # push gradients, pull parameters
    ex = hpcomm.stochastic_reduce(ctx, {"fc": weights})   # average models with a few neighbours
    app = hpcomm.sufficient_factors(ctx, {"W": (J, D)}, K=100)   # send a matrix as pairs of vectors

This module has the names that most jobs need. Submodules have the other public names: hpcomm.topology and
hpcomm.graphs, hpcomm.codec, hpcomm.optim, hpcomm.stats (the values of `stats()`), hpcomm.model.
"""

import importlib as _importlib
import typing as _typing

from . import compiled as compiled

if _typing.TYPE_CHECKING:
    from . import bandwidth as bandwidth
    from . import checkpoint as checkpoint
    from . import codec as codec
    from . import context as context
    from . import errors as errors
    from . import exchange as exchange
    from . import factors as factors
    from . import graphs as graphs
    from . import kernels as kernels
    from . import launch as launch
    from . import local as local
    from . import model as model
    from . import optim as optim
    from . import prox as prox
    from . import recovery as recovery
    from . import service as service
    from . import stats as stats
    from . import topology as topology
    from . import window as window
    from ._core import Device, devices
    from .checkpoint import Checkpointer, latest, restore
    from .config import Config
    from .consistency import ASYNC, BARRIER, BSP, NOTIFY_ACK, SSP, Consistency
    from .context import Context, init
    from .engine import Engine
    from .errors import (
        AuthError,
        CheckpointError,
        ConfigError,
        HpcommError,
        InvalidArgument,
        NotSupported,
        OutOfMemory,
        PeerFailed,
        Timeout,
        TransportError,
    )
    from .exchange import EngineOptions, Exchange, PlanOptions
    from .factors import sufficient_factors
    from .local import local_steps
    from .measure import measure_rates
    from .optim import SGD, Adam, AdamW, Assign, Average, Dual, Momentum, Nesterov, ProxSGD
    from .plan import Plan
    from .presets import broadcast, parameter_flow, parameter_hub, stochastic_reduce
    from .queue import Queue
    from .recovery import recover, run
    from .service import HubExchange, ServiceContext, connect_service, create_service
    from .topology import Hierarchy, ParameterServer, PeerToPeer, Tree
    from .window import Window

    __version__: str

# The module of each public name, imported at the name's first use: `import hpcomm` alone loads neither NumPy nor C.
_FROM = {
    "_core": "Device devices",
    "checkpoint": "Checkpointer latest restore",
    "config": "Config",
    "consistency": "ASYNC BARRIER BSP NOTIFY_ACK SSP Consistency",
    "context": "Context init",
    "engine": "Engine",
    "errors": (
        "AuthError CheckpointError ConfigError HpcommError InvalidArgument NotSupported OutOfMemory PeerFailed "
        "Timeout TransportError"
    ),
    "exchange": "EngineOptions Exchange PlanOptions",
    "factors": "sufficient_factors",
    "local": "local_steps",
    "measure": "measure_rates",
    "optim": "SGD Adam AdamW Assign Average Dual Momentum Nesterov ProxSGD",
    "plan": "Plan",
    "presets": "broadcast parameter_flow parameter_hub stochastic_reduce",
    "queue": "Queue",
    "recovery": "recover run",
    "service": "HubExchange ServiceContext connect_service create_service",
    "topology": "Hierarchy ParameterServer PeerToPeer Tree",
    "window": "Window",
}
_MODULES = (
    "bandwidth",
    "checkpoint",
    "codec",
    "context",
    "errors",
    "exchange",
    "factors",
    "graphs",
    "kernels",
    "launch",
    "local",
    "model",
    "optim",
    "prox",
    "recovery",
    "service",
    "stats",
    "topology",
    "window",
)

__all__ = [
    "ASYNC",
    "BARRIER",
    "BSP",
    "NOTIFY_ACK",
    "SGD",
    "SSP",
    "Adam",
    "AdamW",
    "Assign",
    "AuthError",
    "Average",
    "CheckpointError",
    "Checkpointer",
    "Config",
    "ConfigError",
    "Consistency",
    "Context",
    "Device",
    "Dual",
    "Engine",
    "EngineOptions",
    "Exchange",
    "Hierarchy",
    "HpcommError",
    "HubExchange",
    "InvalidArgument",
    "Momentum",
    "Nesterov",
    "NotSupported",
    "OutOfMemory",
    "ParameterServer",
    "PeerFailed",
    "PeerToPeer",
    "Plan",
    "PlanOptions",
    "ProxSGD",
    "Queue",
    "ServiceContext",
    "Timeout",
    "TransportError",
    "Tree",
    "Window",
    "__version__",
    "broadcast",
    "connect_service",
    "create_service",
    "devices",
    "init",
    "latest",
    "local_steps",
    "measure_rates",
    "parameter_flow",
    "parameter_hub",
    "recover",
    "restore",
    "run",
    "stochastic_reduce",
    "sufficient_factors",
]

_HOME = {name: home for home, names in _FROM.items() for name in names.split()}

if not _typing.TYPE_CHECKING:  # with __getattr__ a type checker would accept every name

    def __getattr__(name: str) -> _typing.Any:
        """Imports a public name or a submodule when it is first used. For an unknown name raises AttributeError; if
        Horovod or PyTorch has the name, the error has a hint."""
        if name in _HOME:
            value = getattr(_importlib.import_module(f".{_HOME[name]}", __name__), name)
        elif name == "__version__":
            value = _importlib.import_module("._core", __name__).version()
        elif name.startswith("__"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        else:
            try:
                return _importlib.import_module(f".{name}", __name__)
            except ImportError as missing:
                if missing.name != f"{__name__}.{name}":  # our submodule exists, but a package that it imports does not
                    raise AttributeError(str(missing)) from missing
            hints = _importlib.import_module(".words", __name__).ATTRIBUTES
            hint = f": {hints[name]}" if name in hints else ""
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__, *_MODULES})
