"""What hpcomm tells by its logger."""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def logs(match: str = "") -> Iterator[list[str]]:
    """What the logger "hpcomm" tells in this block, in a list. match: of one of these sentences."""
    told: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("hpcomm")
    logger.addHandler(handler)
    try:
        yield told
    finally:
        logger.removeHandler(handler)
    assert not match or any(re.search(match, sentence) for sentence in told), told
