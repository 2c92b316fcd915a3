"""The codecs of an exchange, as values: the encodings of updates, and of parameters that come back.

    ex = hpcomm.parameter_hub(ctx, params, codec="float16")
    ex = hpcomm.parameter_hub(ctx, params, codec=hpcomm.codec.FLOAT16)    # the same
    ex = hpcomm.parameter_hub(ctx, params, plan=hpcomm.PlanOptions(codec="bfloat16", codec_out="bfloat16"))
    ex = hpcomm.parameter_hub(ctx, params, codec={"embedding": "bfloat16"})    # by key; the other keys are float32
    ex = hpcomm.parameter_hub(ctx, params, codec=hpcomm.codec.TopK(0.01))    # the largest 1 %; the rest is sent later
    ex = hpcomm.parameter_hub(ctx, params, codec="auto")    # the same where that is faster, otherwise float32

Codec is an array of a dtype. Threshold, TopK, OneBit and Own send pieces of variable length, and keep a residual.
Float4 sends 4-bit floats without a residual. ErrorFeedback adds a residual to a dtype and to Float4. Factors sends a
matrix as pairs of vectors. Auto chooses. docs/codecs.md says which to take.
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
