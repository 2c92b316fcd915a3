"""The logger "hpcomm": warnings, notes and the lines that HPCOMM_DEBUG asks for go to it. If the program has not
configured logging, they are written to stderr, a line at a time."""

import logging
import sys

logger = logging.getLogger("hpcomm")
_LEVELS = {"INFO": logging.INFO, "TRACE": logging.DEBUG}


class _Stderr(logging.Handler):
    """Writes as logging.lastResort does, and lines below WARNING too."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.root.handlers and logger.handlers == [self]:
            print(f"hpcomm {record.getMessage()}\n", end="", file=sys.stderr, flush=True)  # one write: one line


logger.addHandler(_Stderr())


def ask(debug: str) -> None:
    """Lets the lines through that HPCOMM_DEBUG asks for, unless the program has set a level itself."""
    if debug in _LEVELS and logger.level == logging.NOTSET:
        logger.setLevel(_LEVELS[debug])
