"""The interpreter's reductions of the tests' children are those of Triton's own interpreter."""

import numpy as np
import pytest

pytest.importorskip("triton")
pytestmark = pytest.mark.torch


class Affine:
    """Composition of x -> a * x + b: associative, and another thing in another order."""

    @staticmethod
    def fn(a, b, c, d):
        from triton.runtime import interpreter

        made = interpreter.ReduceScanOpInterface(None, None).to_tensor
        first, shift, second, last = (item.handle.data for item in (a, b, c, d))
        results = (first * second, second * shift + last)
        shaped = [item if a.type.is_block() else item[0] for item in results]
        return made(shaped[0], a.dtype), made(shaped[1], b.dtype)


class Halves(Affine):
    """The same under the name of a function that rounds nothing, so that halves meet halves."""

    @staticmethod
    def fn(a, b, c, d):
        return Affine.fn(a, b, c, d)

    fn.__name__ = "_nan_max"


def pair(shape):
    from triton.runtime import interpreter

    made = interpreter.ReduceScanOpInterface(None, None).to_tensor
    numbers = np.random.default_rng(0).integers(-3, 4, (2, *shape))
    return tuple(made(item, interpreter.tl.int32) for item in numbers)


def alike(ours, theirs):
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.type == other.type
        assert mine.handle.data.shape == other.handle.data.shape
        assert mine.handle.data.dtype == other.handle.data.dtype
        assert np.array_equal(mine.handle.data, other.handle.data)


@pytest.mark.parametrize("function", [Affine, Halves])
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize(
    "shape, axis", [((8,), 0), ((4, 8), 0), ((4, 8), 1), ((2, 4, 8), 1), ((4, 1), 1)]
)
def test_reductions_are_those_of_triton(shape, axis, keep, function):
    import interpreter_speed
    from triton.runtime import interpreter

    operation = interpreter.ReduceOps(axis, function, keep)
    alike(interpreter_speed._reduce(operation, pair(shape)), operation.generic_reduce(pair(shape)))
