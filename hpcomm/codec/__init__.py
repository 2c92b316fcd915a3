"""Codecs, the values of Exchange(codec=) and Exchange(codec_out=), say how updates and the parameters sent to workers
are encoded.

A piece is the bytes, of variable length, that a codec makes from a part of an update. A residual holds the values that
were not sent, and is added to the next update.

Codec("float16"), or its name "float16", sends an array of this dtype. Threshold, TopK, OneBit and Own send pieces and
keep a residual. Float4 sends 4-bit floats and keeps no residual. ErrorFeedback adds a residual to a dtype or to Float4.
Factors sends a matrix as pairs of vectors. Auto, or "auto", lets the exchange choose. A mapping from names of keys
gives codecs to these keys; all other keys are float32. A codec raises InvalidArgument for a value out of range.
docs/codecs.md helps to choose.
"""

from .auto import Auto
from .base import WireFormat
from .by_key import Codecs, asked, by_key, by_key_out, name_of
from .dtype import BFLOAT16, FLOAT16, FLOAT32, Codec
from .factors import Factors, Products
from .feedback import ErrorFeedback
from .float4 import Float4
from .onebit import OneBit
from .own import Own
from .sparse import Threshold, TopK

__all__ = [
    "BFLOAT16",
    "FLOAT16",
    "FLOAT32",
    "Auto",
    "Codec",
    "Codecs",
    "ErrorFeedback",
    "Factors",
    "Float4",
    "OneBit",
    "Own",
    "Products",
    "Threshold",
    "TopK",
    "WireFormat",
    "asked",
    "by_key",
    "by_key_out",
    "name_of",
]
