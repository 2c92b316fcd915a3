"""Rules, built-in or of machine code."""

import weakref
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._ffi import ffi, lib
from .memory import from_buffer
from .status import check, names, text

ISAS: dict[str, int] = {
    "best": lib.HPC_ISA_BEST,
    "generic": lib.HPC_ISA_GENERIC,
    "avx2": lib.HPC_ISA_AVX2,
    "avx512": lib.HPC_ISA_AVX512,
}
RULE_ARGS: int = lib.HPC_RULE_ARGS  # the step included
RULE_SLOTS: int = lib.HPC_RULE_SLOTS

_named: "weakref.WeakKeyDictionary[Any, Any]" = weakref.WeakKeyDictionary()


def rule_found(name: str, args: tuple[float, ...], isa: int) -> Any:
    rule = ffi.new("hpc_rule *")
    check(lib.hpc_rule_find(name.encode(), isa, rule))
    rule.args[1 : 1 + len(args)] = args
    return rule


def with_prox(rule: Any, name: str, prox: int | str, columns: int, whole: bool, isa: int) -> Any:
    """Adds a prox to the rule, by address of machine code or by name of a built-in prox; returns the rule."""
    chars = ffi.new("char[]", name.encode())
    rule.name, rule.columns, rule.prox_whole = chars, columns, whole
    if isinstance(prox, str):
        found = ffi.new("hpc_prox_fn *")
        check(lib.hpc_prox_find(prox.encode(), isa, found))
        rule.prox = found[0]
    else:
        rule.prox = ffi.cast("hpc_prox_fn", prox)
    _named[rule] = chars
    return rule


def with_arg_names(rule: Any, arg_names: Iterable[str]) -> Any:
    """Gives the rule the names of its hyper-parameters for errors, in C's order; returns the rule."""
    chars = ffi.new("char[]", " ".join(name.replace(" ", "_") for name in arg_names).encode())
    rule.arg_names = chars
    _named[rule] = (_named.get(rule), chars)
    return rule


def _arg_names(name: str) -> tuple[str, ...]:
    return tuple(text(rule_found(name, (), lib.HPC_ISA_GENERIC).arg_names).split())


PROXES = names(lib.HPC_PROXES)
RULES = {name: _arg_names(name) for name in names(lib.HPC_RULES)}  # of the hyper-parameters, in C's order


def rule_own(
    name: str, apply: int, fold: int, slots: int, args: tuple[float, ...], fold_wires: tuple[int, ...] = ()
) -> Any:
    """Makes a rule of machine code. fold 0 means the weighted sum. fold_wires: the codecs whose updates the fold reads;
    () means all."""
    chars = ffi.new("char[]", name.encode())
    rule = ffi.new("hpc_rule *")
    rule.name = chars
    rule.apply, rule.fold = ffi.cast("hpc_apply_fn", apply), ffi.cast("hpc_fold_into_fn", fold)
    rule.slots = slots
    rule.fold_wires = sum(1 << codec for codec in fold_wires)
    rule.args[1 : 1 + len(args)] = args
    _named[rule] = chars
    return rule


def fold(out: NDArray[np.float32], inputs: list[NDArray[Any]], weights: list[float], dtype: int = lib.HPC_F32) -> None:
    """Writes the weighted sum of the inputs, which have out's length, to out. dtype: a value of CODECS, the inputs'
    type."""
    pointers = [from_buffer(array) for array in inputs]
    check(lib.hpc_fold(from_buffer("float[]", out), pointers, weights, len(inputs), out.size, dtype, lib.HPC_ISA_BEST))


def encode(out: NDArray[Any], source: NDArray[np.float32], dtype: int) -> None:
    """Rounds source to 16 bits."""
    check(lib.hpc_encode(from_buffer(out), from_buffer("float[]", source), source.size, dtype, lib.HPC_ISA_BEST))
