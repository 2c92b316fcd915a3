"""The options of an exchange given flat, as tests choose them, in the values that Exchange takes."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from hpcomm import EngineOptions, PlanOptions
from hpcomm.exchange.options import Keywords

VALUES = {"plan": PlanOptions, "engine": EngineOptions}
APART = {field.name: name for name, value in VALUES.items() for field in fields(value)}


def grouped(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options, with fields that are no keywords of Exchange in PlanOptions and EngineOptions."""
    found: dict[str, Any] = {}
    parts: dict[str, dict[str, Any]] = {name: {} for name in VALUES}
    for name, value in options.items():
        (found if name in Keywords.__optional_keys__ or name not in APART else parts[APART[name]])[name] = value
    return found | {name: VALUES[name](**part) for name, part in parts.items() if part}
