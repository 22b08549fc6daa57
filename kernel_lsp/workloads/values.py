"""Names of dtypes and distributions, as people write them and as torch spells them."""

from __future__ import annotations

SHORT_DTYPES = {
    "f16": "float16",
    "bf16": "bfloat16",
    "f32": "float32",
    "f64": "float64",
    "i8": "int8",
    "i16": "int16",
    "i32": "int32",
    "i64": "int64",
    "u8": "uint8",
    "bool": "bool",
}
DISTRIBUTIONS = ("normal", "uniform", "zeros", "ones")


def full_dtype(name: str) -> str | None:
    """torch's name for a short or full one; None when it is neither."""
    return SHORT_DTYPES.get(name) or (name if name in SHORT_DTYPES.values() else None)
