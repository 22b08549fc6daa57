"""bfloat16 in Triton's interpreter, computed as a device computes it: in float32, rounded to the
nearest even.

The interpreter keeps bfloat16 as whole numbers of 16 bits, and up to Triton 3.9 calculates with
these numbers: a sum is that of the bits, and a product of tiles was off by 1e10. What is cut to
bfloat16 loses its lower bits, which makes a whole result smaller by up to 0.4 %. Right kernels in
half precision were refused for it, and every one that multiplies tiles."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

ARITHMETIC = ("binary_op", "unary_op", "ternary_op", "create_fma")
"""Methods of the interpreter's builder through which values of one type go."""


@functools.cache
def compute_bfloat16() -> None:
    """Makes the interpreter of this process do so from now on. Raises ImportError without
    Triton."""
    from triton.runtime import interpreter

    builder = interpreter.InterpreterBuilder
    for name in ARITHMETIC:
        _wrap(builder, name, _arithmetic)
    _wrap(builder, "create_dot", _product)
    _wrap(builder, "cast_impl", _cast)
    _wrap(builder, "create_fp_to_fp", _converted)
    _wrap(builder, "create_atomic_rmw", _added_in_memory)
    if not hasattr(builder, "get_bf16"):  # of Triton 3.6: a number beside a tensor
        builder.get_bf16 = _constant
    reductions = getattr(interpreter, "ReduceScanOpInterface", None)
    if reductions is not None:
        _wrap(reductions, "apply", _reduced)


def _wrap(owner: Any, name: str, changed: Callable[..., Any]) -> None:
    """``changed(method, self, *arguments)`` in the place of the method, where this version of
    Triton has it."""
    method = getattr(owner, name, None)
    if method is not None:
        setattr(owner, name, lambda *arguments: changed(method, *arguments))


def _arithmetic(method: Any, builder: Any, *values: Any) -> Any:
    if not any(map(_is_bfloat16, values)):
        return method(builder, *values)
    return _narrowed(method(builder, *map(_widened, values)))


def _constant(builder: Any, value: float) -> Any:
    import triton.language as tl

    return builder.cast_impl(builder.get_fp32(value), tl.bfloat16)


def _product(method: Any, builder: Any, left: Any, right: Any, added: Any, *more: Any) -> Any:
    found = method(builder, _widened(left), _widened(right), _widened(added), *more)
    return _narrowed(found) if _is_bfloat16(added) else found


def _cast(method: Any, builder: Any, value: Any, kind: Any) -> Any:
    import triton.language as tl

    value = _widened(value)
    if kind.scalar != tl.bfloat16:
        return method(builder, value, kind)
    return _narrowed(value if _is_float32(value) else method(builder, value, tl.float32))


def _converted(method: Any, builder: Any, value: Any, kind: Any, rounding: Any) -> Any:
    import triton.language as tl
    from triton._C.libtriton import ir

    value = _widened(value)
    is_cut = rounding == ir.ROUNDING_MODE.RTZ
    if kind.scalar != tl.bfloat16 or is_cut:
        return method(builder, value, kind, rounding)
    return _narrowed(value if _is_float32(value) else method(builder, value, tl.float32, rounding))


def _added_in_memory(
    method: Any, builder: Any, operation: Any, places: Any, values: Any, mask: Any, *more: Any
) -> Any:
    """What stood there before; of additions alone. One after the other: places may be equal."""
    import numpy as np
    import triton.language as tl
    from triton._C.libtriton import ir
    from triton.runtime.interpreter import TensorHandle

    if not _is_bfloat16(values) or operation != ir.ATOMIC_OP.FADD:
        return method(builder, operation, places, values, mask, *more)
    addresses, wanted, added = np.broadcast_arrays(places.data, mask.data, _widened(values).data)
    before = np.zeros(addresses.shape, np.uint16)
    for at in zip(*np.nonzero(wanted), strict=True):
        cell = ctypes.c_uint16.from_address(int(addresses[at]))
        before[at] = cell.value
        old = _widened(TensorHandle(before[at].reshape(1), tl.bfloat16))
        cell.value = int(_narrowed(TensorHandle(old.data + added[at], tl.float32)).data[0])
    return TensorHandle(before, tl.bfloat16)


def _reduced(method: Any, reduction: Any, given: Any) -> Any:
    import triton.language as tl

    if not isinstance(given, tuple):  # it comes again as one
        return method(reduction, given)
    narrow = [_is_bfloat16(one.handle) for one in given]
    wide = [
        reduction.to_tensor(_widened(one.handle).data, tl.float32) if is_narrow else one
        for one, is_narrow in zip(given, narrow, strict=True)
    ]
    found = method(reduction, tuple(wide))
    return tuple(
        reduction.to_tensor(_narrowed(one.handle).data, tl.bfloat16) if is_narrow else one
        for one, is_narrow in zip(found, narrow, strict=True)
    )


# --- one value ------------------------------------------------------------------------------------


def _is_bfloat16(value: Any) -> bool:
    """Whether it holds numbers of that type: a comparison of such has their type and is none."""
    import numpy as np
    import triton.language as tl

    kind = getattr(value, "dtype", None)
    return getattr(kind, "scalar", None) == tl.bfloat16 and value.data.dtype == np.uint16


def _is_float32(value: Any) -> bool:
    import triton.language as tl

    return bool(value.dtype.scalar == tl.float32)


def _widened(value: Any) -> Any:
    """The same numbers in float32, of a value in bfloat16; another value itself."""
    import numpy as np
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    if not _is_bfloat16(value):
        return value
    bits = np.asarray(value.data).view(np.uint16).astype(np.uint32) << np.uint32(16)
    return TensorHandle(bits.view(np.float32), tl.float32)


def _narrowed(value: Any) -> Any:
    """Numbers in float32 rounded to the nearest bfloat16, the even one of two; of a comparison its
    truth values as they are."""
    import numpy as np
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    if value.data.dtype != np.float32:
        return TensorHandle(value.data, tl.bfloat16)
    bits = np.ascontiguousarray(value.data).view(np.uint32)
    is_odd = (bits >> np.uint32(16)) & np.uint32(1)
    rounded = (bits + np.uint32(0x7FFF) + is_odd) >> np.uint32(16)
    quiet = (bits >> np.uint32(16)) | np.uint32(0x0040)
    kept = np.where(np.isnan(value.data), quiet, rounded).astype(np.uint16)
    return TensorHandle(kept.reshape(value.data.shape), tl.bfloat16)
