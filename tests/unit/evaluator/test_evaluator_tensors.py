"""Nested values survive the trip as JSON and raw bytes, with dtype, shape and strides."""

from dataclasses import dataclass
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from kernel_lsp.errors import EvaluationError  # noqa: E402
from kernel_lsp.evaluator import tensors  # noqa: E402
from kernel_lsp.evaluator.judging import inputs  # noqa: E402

pytestmark = pytest.mark.torch


def trip(value: object, folder: Path | None = None) -> object:
    out = tensors.TensorOutbox(folder)
    spec = tensors.encode(value, out)
    return tensors.decode(spec, out.blobs)


@pytest.mark.parametrize(
    "dtype", ["float32", "float16", "bfloat16", "float64", "int64", "uint8", "bool", "complex64"]
)
def test_every_dtype_comes_back_bit_for_bit(dtype: str) -> None:
    value = torch.arange(6).reshape(2, 3).to(getattr(torch, dtype))
    back = trip(value)
    assert back.dtype is value.dtype and torch.equal(back, value)


@pytest.mark.parametrize(
    "value",
    [
        torch.arange(6.0).reshape(2, 3).T,
        torch.arange(3.0).expand(4, 3),
        torch.empty(0, 5),
        torch.tensor(2.5),
        torch.arange(24.0).reshape(1, 2, 3, 4).to(memory_format=torch.channels_last),
    ],
    ids=["transposed", "expanded", "empty", "scalar", "channels_last"],
)
def test_layouts_come_back(value: "torch.Tensor") -> None:
    back = trip(value)
    assert (
        back.shape == value.shape and back.stride() == value.stride() and torch.equal(back, value)
    )


def test_nesting_and_plain_values_come_back() -> None:
    value = [1, (2.5, None), {"a": [True, "x"]}]
    assert trip(value) == value and isinstance(trip(value)[1], tuple)


def test_large_tensors_travel_as_files(tmp_path: Path) -> None:
    value = torch.arange(2_000_000, dtype=torch.float32)
    out = tensors.TensorOutbox(tmp_path)
    spec = tensors.encode(value, out)
    assert not out.blobs and torch.equal(tensors.decode(spec, []), value)
    out.clear()
    assert not list(tmp_path.iterdir())


def test_what_cannot_travel_is_refused() -> None:
    for value in (object(), {1: 2}, torch.zeros(2, 2).to_sparse()):
        with pytest.raises(EvaluationError, match="could not judge"):
            tensors.encode(value, tensors.TensorOutbox())


def test_bytes_that_do_not_fit_their_description_are_an_error() -> None:
    spec = {"kind": "tensor", "dtype": "float32", "shape": [3], "stride": [1], "blob": 0}
    with pytest.raises(RuntimeError):
        tensors.decode(spec, [b"\0" * 8])


@pytest.mark.parametrize("family", inputs.FAMILIES)
def test_a_value_family_keeps_shape_dtype_and_stride(family: str) -> None:
    draw = torch.Generator().manual_seed(1)
    floats, whole = torch.rand(4, 6).T, torch.tensor([1, 2, 3])
    changed = inputs.vary([floats, whole], family, draw)
    assert changed[0].shape == floats.shape and changed[0].stride() == floats.stride()
    assert changed[0].dtype is floats.dtype and torch.equal(changed[1], whole)


def test_random_state_leaves_no_default_and_keeps_structure() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    module.register_buffer("mask", torch.tensor([1.0, 0.0]))
    state = inputs.random_state(module, torch.Generator().manual_seed(1))
    assert bool((state["1.weight"] != 1).all()) and bool((state["1.bias"] != 0).all())
    assert bool((state["1.running_var"] > 0).all()) and bool((state["1.running_mean"] != 0).all())
    assert (
        torch.equal(state["mask"], torch.tensor([1.0, 0.0]))
        and int(state["1.num_batches_tracked"]) == 0
    )


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(12.0).reshape(3, 4)[:, ::2],
        torch.arange(3.0).expand(4, 3),
        torch.arange(12.0).reshape(3, 4).T,
        torch.arange(12.0)[2:8].reshape(2, 3),
    ],
    ids=["gaps", "expanded", "transposed", "offset"],
)
def test_a_copy_has_the_strides_and_the_values_of_its_original(tensor: torch.Tensor) -> None:
    made = tensors.strided_copy(tensor, "cpu")
    assert made.stride() == tensor.stride() and torch.equal(made, tensor)
    assert made.data_ptr() != tensor.data_ptr()


@dataclass
class Pair:
    first: object
    second: object


def test_a_result_travels_with_dictionaries_instead_of_data_classes() -> None:
    one, entry = torch.ones(1), {"Pair.first": 1, "Pair.second": None}
    for kept in ([one, (1, "a")], {"key": one}, object()):
        assert tensors.portable(kept) is kept, "what needs no change is the same object"
    assert tensors.portable([one, Pair(1, None)]) == [one, entry]
    assert tensors.portable((Pair(1, None),)) == (entry,)
    assert tensors.portable({3: Pair(1, None), "3": 0}) == {"\0" + "3": entry, "3": 0}
    around: list[object] = [Pair(1, None)]
    around.append(around)
    assert tensors.portable(around)[1] is around
