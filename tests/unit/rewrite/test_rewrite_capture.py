"""Capture: what becomes a graph, what is refused and how it is said."""

import pytest
import torch
from rewrite_helpers import graph_of, module, program, workload

from kernel_lsp.errors import CaptureError
from kernel_lsp.evaluator import programs
from kernel_lsp.records import ArgSpec, Program, TargetKind, Workload, WorkloadOrigin
from kernel_lsp.rewrite.capture import tracing
from kernel_lsp.rewrite.capture.tracing import capture

pytestmark = pytest.mark.torch


def ops(source: str) -> list[str]:
    return [node.target._opname for node in graph_of(source).nodes]


def test_operations_stay_at_the_level_a_person_wrote() -> None:
    init = "self.fc = nn.Linear(8, 4)\nself.norm = nn.LayerNorm(4)"
    assert ops(module("return F.gelu(self.norm(self.fc(x)))", init)) == [
        "linear",
        "layer_norm",
        "gelu",
    ]


def test_an_object_that_export_does_not_know_is_named_and_not_quoted() -> None:
    said = "Unsupported input type <class 'lazy.tensors.Lazy'>. Export only supports pytree"
    error = tracing._explain("Net", ValueError(said))
    assert error.cause == "Net is given a Lazy, an object that a graph cannot take"


def test_a_hundred_gigabytes_of_input_need_no_memory() -> None:
    graph = graph_of(module("return torch.relu(x)", inputs="torch.randn(25_000, 1_000_000)"))
    assert graph.fact(graph.nodes[0]).shape == (25_000, 1_000_000)


def test_state_inputs_and_attribute_reads_are_known() -> None:
    init = (
        "self.net = nn.Sequential(nn.Linear(8, 4), nn.ReLU())\nself.scale = 0.5\nself.mask = "
        "torch.ones(4)"
    )
    graph = graph_of(module("return self.net(x) * self.scale + self.mask", init))
    assert sorted(graph.state.values()) == ["mask", "net.0.bias", "net.0.weight"]
    assert graph.origin.reads == (("scale", 0.5),)
    assert [call.path for call in graph.origin.calls] == ["net.0", "net.1"]
    assert [item.source for item in graph.inputs] == ["x"]


SHARED = """
import torch
from torch import nn

class Basis(nn.Module):
    def __init__(self):
        super().__init__()
        self.size = 3

    def forward(self, x):
        return x[:, : self.size], x[:, self.size :]

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        activation = nn.ReLU()
        self.layers = nn.Sequential(nn.Linear(8, 8), activation, nn.Linear(8, 8), activation)
        self.basis = Basis()
        self.blocks = nn.ModuleList([self.basis, Basis()])

    def forward(self, x):
        h = self.layers(x)
        for block in self.blocks:
            h = torch.cat(block(h), 1)
        first, second = self.basis(h)
        return first * 2.0, second + 1.0

def get_inputs():
    return [torch.randn(4, 8)]
"""


def test_one_layer_in_two_places_is_read_as_what_it_is() -> None:
    graph = graph_of(SHARED)
    assert [name for name, _ in graph.origin.reads] == ["basis.size", "blocks.1.size"]


def test_a_mask_that_is_drawn_in_place_is_an_ordinary_draw() -> None:
    forward = "mask = x.new_empty((x.shape[0], 1)).bernoulli_(0.9)\nmask.div_(0.9)\nreturn x * mask"
    graph = graph_of(module(forward), training=True)
    assert [str(node.target) for node in graph.nodes if "bernoulli" in node.name] == [
        "aten.bernoulli.p"
    ]


def test_ops_in_place_on_fresh_tensors_become_ordinary() -> None:
    assert ops(module("y = x * 2\ny.relu_()\ny += 1\nreturn y")) == ["mul", "relu", "add"]


@pytest.mark.parametrize(
    "forward, message",
    [
        ("x.relu_()\nreturn x", "in place"),
        ("y = x * 2\nz = y[:2]\ny.relu_()\nreturn z", "in place"),
        ("y = x * 2\ny[0] = 1.0\nreturn y", "in place"),
        ("if x.sum() > 0:\n    return x\nreturn -x", "tensor values"),
        ("return torch.full((2,), x.sum().item())", "a Python number"),
        (
            "rows, _ = torch.where(x > 0)\nreturn x[rows]",
            "size depends on values: `rows, _ = torch.where",
        ),
        ("return x.unique()", "size depends on values: `return x.unique"),
        ("return x.numpy()", "leaves torch"),
        ("return undefined_name(x)", "traced"),
    ],
)
def test_what_no_graph_can_hold_is_refused_with_its_reason(forward: str, message: str) -> None:
    with pytest.raises(CaptureError, match=message):
        graph_of(module(forward))


@pytest.mark.parametrize(
    "source, message",
    [
        ("import no_such_package\nclass Model: ...", "no_such_package, which is not installed"),
        ("raise ValueError('boom')", "boom"),
        (module("return x", "raise OSError('no weights')"), "no weights"),
        (module("return x", inputs="1 / 0"), "get_inputs.. failed: ZeroDivisionError"),
        (module("return x").replace("get_inputs", "inputs"), "no get_inputs"),
        (module("return x", inputs="torch.ones(1), torch.ones(2)"), "does not fit the signature"),
        (module("return x").replace("class Model", "class Other"), "not defined"),
    ],
)
def test_programs_that_do_not_run_are_refused_with_cause(source: str, message: str) -> None:
    with pytest.raises(CaptureError, match=message):
        graph_of(source)


SIZES = """
{future}
import dataclasses

@dataclasses.dataclass
class Sizes:
    wide: int = 16


{module}
"""


@pytest.mark.parametrize("future", ["", "from __future__ import annotations"])
def test_a_programs_own_dataclasses_are_made_as_in_its_file(future: str) -> None:
    made = module("return self.fc(x)", "self.fc = nn.Linear(8, Sizes().wide)")
    opened = graph_of(SIZES.format(future=future, module=made))
    assert opened.nodes[-1].meta["val"].shape == (6, 16)


def test_annotations_are_what_the_program_says() -> None:
    source = module("assert Model.forward.__annotations__['x'] is int\nreturn x + 1")
    source = source.replace("self, x", "self, x: int")
    assert graph_of(source).nodes
    assert programs.load(source).Model.forward.__annotations__ == {"x": int}


@pytest.mark.parametrize(
    "made",
    ['{"y": torch.ones(8), "x": torch.ones(6, 8)}', '[torch.ones(6, 8)], {"y": torch.ones(8)}'],
    ids=["by name", "both ways"],
)
def test_inputs_may_be_given_by_name(made: str) -> None:
    source = module("return x + y").replace("self, x", "self, x, *, y")
    opened = graph_of(source.replace("[torch.randn(6, 8)]", made))
    shapes = {item.source: item.node.meta["val"].shape for item in opened.inputs}
    assert shapes == {"x": (6, 8), "y": (8,)}


def test_one_tensor_is_one_argument() -> None:
    opened = graph_of(module("return x * 2").replace("[torch.randn(6, 8)]", "torch.randn(6, 8)"))
    assert opened.nodes[-1].meta["val"].shape == (6, 8)


def test_a_missing_name_is_reported_before_anything_runs() -> None:
    missing = Program(
        source="raise SystemExit", entry="Model", kind=TargetKind.MODULE, missing=("helper",)
    )
    with pytest.raises(CaptureError, match="helper"):
        capture(missing, workload(), "cpu")


def test_a_function_is_captured_with_pragma_arguments() -> None:
    source = "import torch\ndef scale(x, *, factor=2.0):\n    return x * factor\n"
    specs = (ArgSpec(name=None, dtype="float32", shape=(3, 4)), ArgSpec(name="factor", value=3.0))
    load = Workload(name="p", origin=WorkloadOrigin.PRAGMA, inputs=specs)
    graph = capture(program(source, "scale", "function"), load, "cuda")
    assert [item.source for item in graph.inputs] == ["x", "factor"]
    assert graph.inputs[1].node is None and graph.nodes[0].args[1] == 3.0


def test_strides_and_dtypes_of_the_workload_are_kept() -> None:
    specs = (ArgSpec(name=None, dtype="bfloat16", shape=(3, 4), stride=(1, 3)),)
    load = Workload(name="p", origin=WorkloadOrigin.PRAGMA, inputs=specs)
    graph = capture(program(module("return x + 1")), load, "cpu")
    fact = graph.fact(graph.inputs[0].node)
    assert fact.dtype == torch.bfloat16 and fact.stride == (1, 3) and not fact.contiguous


def test_explicit_cuda_devices_are_captured_without_a_gpu() -> None:
    source = module(
        "return x.to('cuda') + torch.ones(8, device='cuda').cuda()",
        inputs="torch.randn(6, 8, device='cuda')",
    )
    assert ops(source)[-1] == "add"


def test_training_mode_follows_the_workload() -> None:
    source = module("return self.drop(x)", "self.drop = nn.Dropout(0.5)")
    assert graph_of(source).training
    assert not graph_of(source, training=False).training
