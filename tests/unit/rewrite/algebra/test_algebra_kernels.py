"""The Triton kernels of the algebra skills, interpreted on the CPU and compared with float64."""

from __future__ import annotations

import pytest
from codegen_helpers import Child
from rewrite_helpers import module, on_cpu, program, skill, workload

from kernel_lsp.records import Step
from kernel_lsp.rewrite.engine import EngineSession

pytestmark = pytest.mark.torch


def for_a_gpu(source: str, name: str, **parameters: object) -> str:
    """The program as rewritten for a GPU, with a guard that lets CPU tensors of the interpreter
    in."""
    opened = EngineSession(program(source), workload(), "cuda", [skill(name)])
    (found,) = opened.rewrites[name].match(opened.graph)
    step = Step(skill=name, site=found.label, parameters=parameters)
    (made,) = opened.variants([step], 0, 1)  # with a fixed batch, which saves two captures
    assert made.uses_triton
    return on_cpu(made.program)


@pytest.mark.parametrize(
    ("layer", "shape", "tail"),
    [
        ("ConvTranspose2d(3, 5, 4, stride=2, "
         "padding=1)", "(2, 3, 9, 7)", "(y * 2).mean((2, 3), True)"),
        ("Conv2d(4, 6, (3, 5), stride=(2, 1), padding=(1, 2), "
         "groups=2)", "(2, 4, 40, 70)", "y.sum((2, 3))"),
        ("Conv1d(3, 4, 3, padding=2, dilation=2)", "(2, 3, 1500)", "y.mean(dim=2)"),
        ("ConvTranspose3d(2, 4, 3, 2, 1, "
         "output_padding=1)", "(2, 2, 5, 6, 20)", "y.mean(dim=(1, 2, 3, 4))"),
        ("Conv3d(2, 4, 3, padding=1, "
         "bias=False)", "(2, 2, 5, 6, 7)", "F.adaptive_avg_pool3d(y, 1)"),
    ],
)  # fmt: skip
def test_sums_by_tap(interpreter: Child, layer: str, shape: str, tail: str) -> None:
    source = module(
        f"y = self.layer(x)\nreturn {tail}", f"self.layer = nn.{layer}", f"torch.randn{shape}"
    )
    after = for_a_gpu(source, "reduce-before-conv")
    result = interpreter.ask(before=source, after=after)
    assert not result["fell_back"] and all(result["same_kind"])
    assert all(
        ours <= max(2 * theirs, 1e-6)
        for ours, theirs in zip(result["ours"], result["eager"], strict=True)
    )


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        ("ConvTranspose1d(3, 5, 4, stride=2, padding=1)", "(2, 3, 700)"),
        (
            "ConvTranspose1d(2, 3, 3, stride=5, output_padding=4, bias=False)",
            "(2, 2, 9)",
        ),  # gaps, and past the end
        ("ConvTranspose2d(4, 6, 3, stride=2, padding=1, groups=2)", "(2, 4, 7, 6)"),
        (
            "ConvTranspose2d(3, 4, (4, 3), stride=(3, 1), padding=(2, 0), output_padding=(2, 0))",
            "(2, 3, 5, 6)",
        ),
        ("ConvTranspose3d(2, 4, 3, stride=2, padding=1, output_padding=1)", "(2, 2, 3, 4, 5)"),
        ("ConvTranspose3d(2, 2, 2, stride=(1, 2, 3), groups=2)", "(1, 2, 3, 4, 5)"),
    ],
)
def test_phases_of_a_transposed_convolution(interpreter: Child, layer: str, shape: str) -> None:
    source = module(
        "return torch.relu(self.layer(x))", f"self.layer = nn.{layer}", f"torch.randn{shape}"
    )
    result = interpreter.ask(before=source, after=for_a_gpu(source, "conv-transpose-by-phase"))
    assert not result["fell_back"] and all(result["same_kind"])
    errors = zip(result["ours"], result["eager"], strict=True)
    assert all(ours <= max(2 * theirs, 1e-6) for ours, theirs in errors)


@pytest.mark.parametrize(
    "layer",
    [
        "ConvTranspose2d(3, 4, 3)",
        "ConvTranspose2d(3, 4, 3, stride=2, dilation=2)",
        "Conv2d(3, 4, 3, stride=2)",
    ],
)
def test_convolutions_without_phases_are_left_alone(layer: str) -> None:
    source = module("return self.layer(x)", f"self.layer = nn.{layer}", "torch.randn(2, 3, 9, 9)")
    opened = EngineSession(program(source), workload(), "cuda", [skill("conv-transpose-by-phase")])
    rewrites = opened.rewrites["conv-transpose-by-phase"]
    found = rewrites.match(opened.graph)
    assert not any(
        all(item.holds for item in rewrites.preconditions(opened.graph, one)) for one in found
    )


COMPILED = [
    (
        "reduce-before-conv",
        "ConvTranspose3d(16, 24, 4, 2, 1)",
        "(8, 16, 9, 24, 24)",
        "y.mean((2, 3, 4))",
    ),
    ("reduce-before-conv", "Conv2d(3, 64, 7, 2, 3)", "(16, 3, 224, 224)", "y.mean((2, 3))"),
    ("reduce-before-conv", "Conv1d(16, 64, 3, padding=1)", "(32, 16, 8192)", "y.sum(2)"),
    (
        "conv-transpose-by-phase",
        "ConvTranspose3d(16, 24, 3, 2)",
        "(8, 16, 12, 24, 24)",
        "F.gelu(y)",
    ),
]


@pytest.mark.parametrize(("name", "layer", "shape", "tail"), COMPILED)
def test_kernels_compile_without_spills(
    compiler: Child, name: str, layer: str, shape: str, tail: str
) -> None:
    source = module(
        f"y = self.layer(x)\nreturn {tail}", f"self.layer = nn.{layer}", f"torch.randn{shape}"
    )
    kernels = compiler.ask(after=for_a_gpu(source, name))
    assert {kernel["arch"] for kernel in kernels} == {80, 90}
    assert all(kernel["spill_bytes"] == 0 for kernel in kernels), kernels
