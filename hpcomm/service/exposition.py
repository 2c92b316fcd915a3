"""A page of metrics in Prometheus' text exposition format, version 0.0.4."""

import math
from collections.abc import Iterable, Mapping

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Sample = tuple[Mapping[str, str], float]  # labels, and the value

_HELP = str.maketrans({"\\": r"\\", "\n": r"\n"})
_LABEL = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


class Page:
    """A page. Names of metrics follow Prometheus' habits: the base unit comes last, then `_total` of a counter."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def counter(self, name: str, about: str, samples: Iterable[Sample]) -> None:
        """Adds a metric that only grows. name: without `_total`."""
        self._add("counter", f"{name}_total", about, samples)

    def gauge(self, name: str, about: str, samples: Iterable[Sample]) -> None:
        """Adds a metric that grows and shrinks."""
        self._add("gauge", name, about, samples)

    def _add(self, kind: str, name: str, about: str, samples: Iterable[Sample]) -> None:
        lines = [f"{name}{_braced(labels)} {_number(value)}" for labels, value in samples]
        if lines:
            self._lines += [f"# HELP {name} {about.translate(_HELP)}", f"# TYPE {name} {kind}", *lines]

    def __str__(self) -> str:
        return "".join(f"{line}\n" for line in self._lines)


def _braced(labels: Mapping[str, str]) -> str:
    inside = ",".join(f'{name}="{value.translate(_LABEL)}"' for name, value in labels.items())
    return f"{{{inside}}}" if inside else ""


def _number(value: float) -> str:
    if isinstance(value, int):
        return str(int(value))
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return "NaN" if math.isnan(value) else repr(value)
