"""Rules, built-in or of machine code."""

import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._ffi import ffi, lib
from .memory import from_buffer
from .status import check

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
    """A built-in rule with these hyper-parameters."""
    rule = ffi.new("hpc_rule *")
    check(lib.hpc_rule_find(name.encode(), isa, rule))
    rule.args[1 : 1 + len(args)] = args
    return rule


def with_prox(rule: Any, name: str, prox: int | str, columns: int, whole: bool, isa: int) -> Any:
    """The same rule with a prox: the address of machine code, or the name of a built-in one. It keeps its name."""
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


def with_arg_names(rule: Any, names: Iterable[str]) -> Any:
    """The same rule, whose hyper-parameters errors call by these names, in C's order. It keeps the names."""
    chars = ffi.new("char[]", " ".join(name.replace(" ", "_") for name in names).encode())
    rule.arg_names = chars
    _named[rule] = (_named.get(rule), chars)
    return rule


def _proxes() -> Iterator[str]:
    i = 0
    while (name := lib.hpc_name(lib.HPC_PROXES, i)) != ffi.NULL:
        yield ffi.string(name).decode()
        i += 1


PROXES: tuple[str, ...] = tuple(_proxes())


def _built_in() -> Iterator[tuple[str, tuple[str, ...]]]:
    rule, i = ffi.new("hpc_rule *"), 0
    while (name := lib.hpc_name(lib.HPC_RULES, i)) != ffi.NULL:
        check(lib.hpc_rule_find(name, lib.HPC_ISA_GENERIC, rule))
        names = "" if rule.arg_names == ffi.NULL else ffi.string(rule.arg_names).decode()
        yield ffi.string(name).decode(), tuple(names.split())
        i += 1


RULES: dict[str, tuple[str, ...]] = dict(_built_in())  # by name: the names of the hyper-parameters, in C's order


def rule_own(
    name: str, apply: int, fold: int, slots: int, args: tuple[float, ...], fold_wires: tuple[int, ...] = ()
) -> Any:
    """A rule of machine code at these addresses; fold 0: the weighted sum. fold_wires: the codecs that the fold reads,
    none: all. It keeps its name."""
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
    """hpc_fold: the weighted sum of arrays of out's length. dtype: of the inputs, as CODECS has it."""
    pointers = [from_buffer(array) for array in inputs]
    check(lib.hpc_fold(from_buffer("float[]", out), pointers, weights, len(inputs), out.size, dtype, lib.HPC_ISA_BEST))


def encode(out: NDArray[Any], source: NDArray[np.float32], dtype: int) -> None:
    """hpc_encode: source, rounded to 16 bits."""
    check(lib.hpc_encode(from_buffer(out), from_buffer("float[]", source), source.size, dtype, lib.HPC_ISA_BEST))
