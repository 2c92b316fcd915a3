"""hpcomm.elastic as users import it; hpcomm/recovery/elastic.py has the code."""

from .recovery.elastic import Start, run, survive

__all__ = ["Start", "run", "survive"]
