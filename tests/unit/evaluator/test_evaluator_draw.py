"""Trials that are drawn on the device are the same trials: values, strides, gradients."""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from kernel_lsp.evaluator.judging import planning  # noqa: E402
from kernel_lsp.evaluator.judging import study as judging_study  # noqa: E402
from kernel_lsp.evaluator.judging.oracle import Reference  # noqa: E402
from kernel_lsp.evaluator.judging.session import draw  # noqa: E402
from kernel_lsp.evaluator.judging.study import study  # noqa: E402
from kernel_lsp.evaluator.tensors import tensor_leaves  # noqa: E402
from kernel_lsp.records import Program, TargetKind, Workload, WorkloadOrigin  # noqa: E402

pytestmark = pytest.mark.torch
SOURCE = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x, y):
        return self.layer(x) + y

def get_inputs():
    return [torch.randn(6, 8, requires_grad=True)[:, ::2], torch.rand(4).expand(6, 4)]
"""


def reference(source: str = SOURCE) -> Reference:
    program = Program(source=source, entry="Model", kind=TargetKind.MODULE)
    return Reference(program, Workload(name="w", origin=WorkloadOrigin.GET_INPUTS), "cpu")


def test_where_a_trial_is_drawn_changes_nothing_but_the_place() -> None:
    """On a CPU both places are the same memory, so the trials must agree bit for bit."""
    far, near = reference(), reference()
    near.draws_near = True
    for descriptor in planning.plan(far, 7):
        one, other = draw(far, 7, descriptor), draw(near, 7, descriptor)
        for a, b in zip(
            tensor_leaves(one["arguments"]), tensor_leaves(other["arguments"]), strict=True
        ):
            assert (
                torch.equal(a, b)
                and a.stride() == b.stride()
                and a.requires_grad == b.requires_grad
            )
        assert all(torch.equal(one["state"][key], other["state"][key]) for key in one["state"])


def test_inputs_that_cannot_be_made_under_a_device_are_made_as_before() -> None:
    """get_inputs() refuses whenever torch would place its tensors by itself."""
    refusing = SOURCE.replace(
        "def get_inputs():\n",
        "def get_inputs():\n"
        "    from torch.utils._device import DeviceContext\n"
        "    from torch.overrides import _get_current_function_mode_stack as modes\n"
        "    assert not any(isinstance(mode, DeviceContext) for mode in modes())\n",
    )
    made = reference(refusing)
    made.draws_near = True
    arguments = tensor_leaves(made.arguments(3))
    assert [tuple(t.shape) for t in arguments] == [(6, 4), (6, 4)]


def test_a_cpu_draws_where_it_always_did() -> None:
    made = reference()
    made.settle(made.given(0))
    assert not made.draws_near and made.generator(1).device.type == "cpu"


SCALED = """
import ctypes
import torch

def behind(tensor):
    return torch.frombuffer((ctypes.c_float * 64).from_address(tensor.data_ptr()), dtype=torch.float32)

class Model(torch.nn.Module):
    def forward(self, x, scale):
        return x * {read}

def get_inputs():
    return [torch.randn(64, 64), torch.randn(64)]
"""


@pytest.mark.parametrize(
    ("read", "batched"),
    [("scale[:, None]", (0, 1)), ("scale.as_strided((64,), (1,))", (0,)), ("behind(scale)", (0,))],
    ids=["rows have a scale", "columns have one, of as many", "as a kernel reads it"],
)
def test_a_batch_is_made_smaller_only_where_nobody_reads_behind_it(
    read: str, batched: tuple[int, ...]
) -> None:
    """Both sizes are 64. A kernel does not look at the size of what it reads, so nothing is
    raised."""
    made = reference(SCALED.format(read=read))
    plain = {"number": 0, "family": "as_given", "layout": "as_given", "batch": None}
    study(made, draw(made, 0, plain), draw(made, 1, plain))
    assert made.batch is not None and made.batch[0] == batched


SUMS = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        rows, columns = x.shape
        return torch.logsumexp({read}, dim=1)

def get_inputs():
    return [torch.randn(16, 65536)]
"""


@pytest.mark.parametrize(
    ("read", "layouts"),
    [
        ("x", ["transposed", "sliced", "offset"]),
        ("x.as_strided((rows, columns), (columns, 1))", ["offset"]),
    ],
    ids=["follows strides", "ignores strides"],
)
def test_other_layouts_are_asked_only_where_a_reference_follows_strides(
    read: str, layouts: list[str]
) -> None:
    """Sums over long rows differ by a thousandth: other numbers of the same kind give nearly the
    same."""
    made = reference(SUMS.format(read=read))
    plain = {"number": 0, "family": "as_given", "layout": "as_given", "batch": None}
    study(made, draw(made, 0, plain), draw(made, 1, plain))
    assert made.layouts == layouts


LOOKUP = """
import torch

class Model(torch.nn.Module):
    def forward(self, ids, table):
        return torch.nn.functional.embedding(ids, table)

def get_inputs():
    return [torch.randint(60, (12,)), torch.randn(64, 6)]
"""


def test_a_table_is_asked_about_on_a_gpu_with_every_row_that_an_index_may_mean(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of its 64 rows and 6 columns; a CPU refuses an index beyond by an exception."""
    asked = reference(LOOKUP)
    trial = draw(asked, 7, planning.plain("as_given") | {"number": 0})
    rows, columns = ((1, 0),), ((1, 1),)
    assert not judging_study._is_indexed_beyond(asked, trial, rows, 3)
    monkeypatch.setattr(asked, "device", SimpleNamespace(name="cuda"))
    refused = [
        n for n in (1, 61, 63, 65) if judging_study._is_indexed_beyond(asked, trial, rows, n)
    ]
    assert refused == [1, 61, 63]
    assert not judging_study._is_indexed_beyond(asked, trial, columns, 1)
