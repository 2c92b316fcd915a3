"""The sentences of the logger "hpcomm"."""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def logs(match: str = "") -> Iterator[list[str]]:
    """Lists the sentences that the logger is told in this block. match: a pattern of one of them."""
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
