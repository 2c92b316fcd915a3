"""The logger "hpcomm". It gets warnings, notes, and the lines that HPCOMM_DEBUG asks for. If the program has not
configured logging, the logger writes each line to stderr in one write."""

import logging
import sys

logger = logging.getLogger("hpcomm")
_LEVELS = {"INFO": logging.INFO, "TRACE": logging.DEBUG}


class _Stderr(logging.Handler):
    """Writes to stderr as logging.lastResort does, but also lines below the level WARNING."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.root.handlers and logger.handlers == [self]:
            print(f"hpcomm {record.getMessage()}\n", end="", file=sys.stderr, flush=True)  # one write: one line


logger.addHandler(_Stderr())


def ask(debug: str) -> None:
    """Sets the level that HPCOMM_DEBUG asks for, unless the program has set a level itself."""
    if debug in _LEVELS and logger.level == logging.NOTSET:
        logger.setLevel(_LEVELS[debug])
