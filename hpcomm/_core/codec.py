"""Binds codecs of variable length: their configuration, their costs, and the state that encoders keep."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._ffi import ffi, lib
from .handle import owned
from .memory import from_buffer, members, new_word
from .status import check

CODEC_ARGS: int = lib.HPC_CODEC_ARGS
CODEC_SLOTS: int = lib.HPC_OWN_CODEC_SLOTS
FACTORS_HEAD = 64  # bytes before the vectors of an update (csrc/codec/factors.h): first an int, the number of pairs
PIECE_ELEMENTS: int = lib.HPC_PIECE_ELEMENTS
COMPRESSIONS: dict[str | None, int] = {
    None: lib.HPC_COMPRESS_NONE,
    "lz4": lib.HPC_COMPRESS_LZ4,
    "snappy": lib.HPC_COMPRESS_SNAPPY,
    "zstd": lib.HPC_COMPRESS_ZSTD,
    "zlib": lib.HPC_COMPRESS_ZLIB,
}
FOLLOWS: dict[str, int] = {"probes": lib.HPC_FOLLOW_BY_PROBES, "smooth": lib.HPC_FOLLOW_SMOOTHLY}
DELTA_OF: dict[str | None, int] = {
    "pushes": lib.HPC_DELTA_OF_PUSHES,
    "folds": lib.HPC_DELTA_OF_FOLDS,
    None: lib.HPC_DELTA_OF_PUSHES | lib.HPC_DELTA_OF_FOLDS,
}
_FUNCTIONS = {"filter": "hpc_filter_fn *", "encode": "hpc_encode_fn *", "decode_add": "hpc_decode_add_fn *"}


def codec_config(fields: Mapping[str, Any]) -> Any:
    """Makes an hpc_codec_config. Functions are given by address, and the caller keeps their code alive; args[0] stays
    C's."""
    config = ffi.new("hpc_codec_config *")
    lib.hpc_codec_config_init(config)
    name = ffi.NULL
    for field, value in fields.items():
        if field in _FUNCTIONS:
            setattr(config, field, ffi.cast(_FUNCTIONS[field], value))
        elif field == "name":
            config.name = name = ffi.new("char[]", value.encode())
        elif field == "args":
            config.args[1 : 1 + len(value)] = value
        else:
            setattr(config, field, value)
    return owned(config, lambda _: None, (config, name))


def codec_stats(exchange: Any, key: int) -> dict[str, Any]:
    stats = members(_key_stats(exchange, key))
    return {name: value for name, value in stats.items() if name != "sent" and not name.startswith("delta")}


def key_sent(exchange: Any, key: int) -> int:
    return int(_key_stats(exchange, key).sent)


def _key_stats(exchange: Any, key: int) -> Any:
    stats = ffi.new("hpc_key_stats *")
    check(lib.hpc_exchange_get_key_stats(exchange, key, stats))
    return stats


def encoder_values(exchange: Any, key: int, row: int) -> int:
    """Returns how many values an encoder keeps; 0 if nothing is encoded there. row -1 means the worker's encoder of the
    key."""
    n = int(lib.hpc_exchange_encoder_values(exchange, key, row))
    check(min(0, n))
    return n


def get_encoder(exchange: Any, key: int, row: int, values: NDArray[np.float32]) -> int:
    """Reads an encoder's state into values, and returns how many encodings it has made."""
    made = new_word()
    check(lib.hpc_exchange_get_encoder(exchange, key, row, made, from_buffer("float[]", values)))
    return int(made[0])


def set_encoder(exchange: Any, key: int, row: int, made: int, values: NDArray[np.float32]) -> None:
    check(lib.hpc_exchange_set_encoder(exchange, key, row, made, from_buffer("float[]", values)))


def set_delta(exchange: Any, key: int, of: str | None, delta: float) -> None:
    """Sets the threshold of a key, or of all keys with a threshold codec if key is -1."""
    check(lib.hpc_exchange_set_delta(exchange, key, DELTA_OF[of], delta))


def delta_of(exchange: Any, key: int, of: str) -> float | None:
    """Returns the present threshold of a key's pushes or folds; None if no threshold codec encodes them."""
    stats = _key_stats(exchange, key)
    found = float(stats.delta_of_pushes if of == "pushes" else stats.delta_of_folds)
    return None if found < 0 else found
