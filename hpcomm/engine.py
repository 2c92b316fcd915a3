"""Engines: the threads that work for a rank's exchanges."""

from typing import Any

from . import _core
from .errors import InvalidArgument


class Engine:
    """The threads that work for the exchanges of one rank, and the CPUs to which these threads are pinned.

        engine = hpcomm.Engine()
        training, evaluation = hpcomm.init(engine=engine), hpcomm.init(engine=engine)

    By default all contexts of a process share the process's own engine, which exists as long as one of them does. All
    their exchanges with progress="thread" use the same threads, as many as the largest of these exchanges has cores on
    this rank. A wait in one context also works for the exchanges of the other contexts that have no threads.

    Make an Engine in two cases:

    - Several tenants of a process must not share threads: give each tenant's contexts an Engine.
    - Ranks are threads of one process: hpcomm then makes an engine for each context. Give all contexts of a rank one
      Engine, so that they share threads, and a wait in one works for the others. Ranks must not share an Engine.

    Contexts keep their engine alive, so it needs no close: it ends when the program has dropped it and its last context
    is freed. A forked child cannot use its parent's Engine; init then raises InvalidArgument.

    Raises:
        OutOfMemory: there is no memory for it.
    """

    __slots__ = ("__weakref__", "_handle")

    def __init__(self) -> None:
        self._handle = _core.engine_create()


def handle_of(engine: Engine | None) -> Any:
    """Returns the handle of an engine; NULL for None.

    Raises:
        InvalidArgument: engine is something else.
    """
    if engine is None:
        return _core.NULL
    if not isinstance(engine, Engine):
        raise InvalidArgument(
            f"engine is {engine!r}: give engine=hpcomm.Engine(), or leave it out for the process's own engine"
        )
    return engine._handle
