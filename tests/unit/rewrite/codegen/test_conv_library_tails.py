"""What happens around a convolution that stays the library's: its bias, its layout, its place in a
plan."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
import torch
from codegen_helpers import Child
from rewrite_helpers import instance, module, on_cpu, program, skill, workload

from kernel_lsp.records import Step
from kernel_lsp.rewrite.engine import EngineSession

pytestmark = pytest.mark.torch


def opened(source: str, *names: str, device: str = "cuda") -> EngineSession:
    return EngineSession(program(source), workload(), device, [skill(name) for name in names])


def proved(session: EngineSession, name: str) -> list[str]:
    """Labels where every precondition is proved, worth it or not."""
    rewrites = session.rewrites[name]
    found = rewrites.match(session.graph)
    return [
        m.label for m in found if all(p.holds for p in rewrites.preconditions(session.graph, m))
    ]


def for_a_gpu(source: str, names: Sequence[str]) -> str:
    """The program after each skill at its first proved place, with a guard that lets CPU tensors
    in."""
    session, steps = opened(source, *names), list[Step]()
    for name in names:
        graph = session._replay(session.graph, steps)[0]
        rewrites = session.rewrites[name]
        fits = (
            m
            for m in rewrites.match(graph)
            if all(p.holds for p in rewrites.preconditions(graph, m))
        )
        steps.append(Step(skill=name, site=next(fits).label))
    return on_cpu(session.make(steps).program)


def agree_in_float64(
    source: str, after: str, x: torch.Tensor, training: bool | None = None
) -> None:
    wide = after.replace("torch.float32", "torch.float64")
    first, second = (instance(text, training, torch.float64) for text in (source, wide))

    def never(*_args: object) -> None:
        raise AssertionError("the guard refused the verified workload")

    second._forward_eager = never
    with torch.no_grad():
        torch.testing.assert_close(second(x), first(x), rtol=1e-12, atol=1e-12, equal_nan=True)


# --- bias-into-tail ----------------------------------------------------------------------

BIASED = [
    ("Conv1d(3, 5, 4, stride=3, padding=2)", (3, 3, 31)),
    ("Conv2d(4, 6, (3, 5), groups=2, padding='same')", (2, 4, 9, 7)),
    ("Conv3d(2, 4, 3, dilation=2, padding=2)", (2, 2, 5, 6, 7)),
    ("ConvTranspose1d(3, 5, 4, stride=2, output_padding=1)", (2, 3, 11)),
    ("ConvTranspose2d(4, 6, 3, 2, 1, 1, groups=2)", (2, 4, 7, 6)),
    ("ConvTranspose3d(2, 3, 3, stride=2, dilation=2)", (1, 2, 3, 4, 3)),
    ("Conv2d(3, 4, 3)", (3, 8, 8)),  # without a batch
]


@pytest.mark.parametrize(("layer", "shape"), BIASED)
def test_the_bias_is_the_same_number_for_each_channel(layer: str, shape: tuple[int, ...]) -> None:
    source = module(
        "return torch.relu(self.conv(x))", f"self.conv = nn.{layer}", f"torch.randn{shape}"
    )
    after = for_a_gpu(source, ["bias-into-tail"])
    assert "conv.bias" in after and "self.conv(x)" in after.split("_forward_eager")[1]
    agree_in_float64(source, after, torch.randn(shape, dtype=torch.float64))


def test_the_bias_of_a_functional_call_may_be_named() -> None:
    init = "self.w = nn.Parameter(torch.randn(4, 3, 3, 3)); self.b = nn.Parameter(torch.randn(4))"
    source = module(
        "return F.conv2d(x, self.w, stride=2, bias=self.b).tanh()", init, "torch.randn(2, 3, 9, 9)"
    )
    agree_in_float64(
        source, for_a_gpu(source, ["bias-into-tail"]), torch.randn(2, 3, 9, 9).double()
    )


TAILS = [
    ("torch.tanh(h) * 0.5 + h", "fused-pointwise", "ConvTranspose2d(3, 5, 4, 2, 1)"),
    ("F.relu(F.max_pool2d(h, 2))", "fused-pool", "ConvTranspose2d(3, 5, 4, 2, 1)"),
    ("F.group_norm(F.gelu(h) * 2, 2)", "fused-norm", "Conv2d(3, 6, 3)"),
    ("torch.sigmoid(torch.softmax(h, 1))", "fused-row-softmax", "ConvTranspose2d(3, 5, 3)"),
]


@pytest.mark.parametrize(("tail", "name", "layer"), TAILS)
def test_the_tail_adds_it(interpreter: Child, tail: str, name: str, layer: str) -> None:
    source = module(
        f"h = self.conv(x)\nreturn {tail}", f"self.conv = nn.{layer}", "torch.randn(2, 3, 10, 9)"
    )
    after = for_a_gpu(source, ["bias-into-tail", name])
    # No addition is left outside of the kernel.
    assert after.split("def forward")[1].count("+") == 0
    result = interpreter.ask(before=source, after=after)
    assert not result["fell_back"] and all(result["same_kind"])
    errors = zip(result["ours"], result["eager"], strict=True)
    assert all(ours <= max(2 * theirs, 1e-6) for ours, theirs in errors)


LARGE = "torch.randn(8, 16, 64, 64)"


@pytest.mark.parametrize(
    ("layer", "tail", "inputs"),
    [
        ("Conv2d(16, 32, 3, bias=False)", "torch.relu(h)", LARGE),
        ("Conv2d(16, 32, 3)", "h", LARGE),  # nothing follows
        ("Conv2d(16, 32, 3)", "h.view(8, -1)", LARGE),
        ("Conv2d(16, 32, 3)", "F.instance_norm(h)", LARGE),  # cancels: cancel-shift
        ("Conv2d(16, 32, 3)", "F.conv2d(h, self.conv.weight[:, :1].expand(32, 32, 3, 3))", LARGE),
        ("Conv2d(4, 4, 3)", "torch.relu(h)", "torch.randn(2, 4, 16, 16)"),  # a launch, no pass
    ],
)
def test_a_bias_stays_where_nothing_takes_it(layer: str, tail: str, inputs: str) -> None:
    source = module(f"h = self.conv(x)\nreturn {tail}", f"self.conv = nn.{layer}", inputs)
    session = opened(source, "bias-into-tail")
    assert session.capture().sites == () and not session.notes


def test_on_a_cpu_the_library_adds_it() -> None:
    source = module("return self.conv(x).relu()", "self.conv = nn.Conv2d(16, 32, 3)", LARGE)
    assert opened(source, "bias-into-tail", device="cpu").capture().sites == ()
    assert len(opened(source, "bias-into-tail").capture().sites) == 1


def test_a_bias_of_another_dtype_is_refused() -> None:
    init = "self.w = nn.Parameter(torch.randn(4, 3, 3, 3)); self.b = nn.Parameter(torch.randn(4))"
    forward = "return F.conv2d(x.bfloat16(), self.w.bfloat16(), self.b.bfloat16()).relu()"
    session = opened(module(forward, init, "torch.randn(2, 3, 9, 9)"), "bias-into-tail")
    assert len(proved(session, "bias-into-tail")) == 1  # one dtype after the casts
    (match,) = session.rewrites["bias-into-tail"].match(session.graph)
    (node,) = match.nodes
    node.meta["val"] = node.meta["val"].float()
    assert proved(session, "bias-into-tail") == []


def test_the_convolution_stays_the_librarys() -> None:
    """Whoever takes the bias out plans a fused tail behind the library's call: nobody replaces
    that call."""
    init = "self.conv = nn.ConvTranspose2d(16, 32, 4, 2, 1)"
    source = module("return self.conv(x).tanh() * 2", init, LARGE)
    session = opened(source, "bias-into-tail", "conv-transpose-by-phase", "fused-pointwise")
    assert "conv-transpose-by-phase" in {site.skill for site in session.capture().sites}
    left = session.look([Step(skill="bias-into-tail", site="conv_transpose2d")])
    assert {site.skill for site in left} == {"fused-pointwise"}


# --- patches-as-channels -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("layer", "tail"),
    [
        ("Conv2d(3, 10, 4, stride=4)", "h.flatten(2).transpose(1, 2)"),
        ("Conv2d(3, 10, 4, stride=4, bias=False)", "h.flatten(2).permute(0, 2, 1) * 2"),
        ("Conv2d(3, 10, (2, 4), stride=(2, 4))", "h"),
        ("Conv2d(3, 10, (4, 1), stride=(4, 1))", "h.relu().view(2, -1)"),
        ("Conv2d(3, 10, 4, stride=4)", "h.flatten(1).tanh()"),
    ],
)
def test_windows_side_by_side_are_one_product(layer: str, tail: str) -> None:
    source = module(
        f"h = self.conv(x)\nreturn {tail}", f"self.conv = nn.{layer}", "torch.randn(2, 3, 8, 12)"
    )
    after = for_a_gpu(source, ["patches-as-channels"])
    assert "stride" not in after.split("_forward_eager(x)")[1]
    agree_in_float64(source, after, torch.randn(2, 3, 8, 12, dtype=torch.float64))
    wide = after.replace("torch.float32", "torch.float64")
    results = [
        instance(text, None, torch.float64)(torch.randn(2, 3, 8, 12).double())
        for text in (source, wide)
    ]
    if not tail.startswith("h.flatten(2)"):
        assert results[0].stride() == results[1].stride()


@pytest.mark.parametrize(
    "layer",
    [
        "Conv2d(3, 10, 4, stride=2)",  # overlap
        "Conv2d(3, 10, 2, stride=4)",  # gaps
        "Conv2d(3, 10, 5, stride=5)",  # a rest at the edges
        "Conv2d(3, 10, 4, stride=4, padding=2)",
        "Conv2d(3, 10, 2, stride=2, dilation=2)",
        "Conv2d(3, 9, 4, stride=4, groups=3)",
        "Conv2d(3, 10, 1)",
        "ConvTranspose2d(3, 10, 4, stride=4)",
    ],
)
def test_other_windows_are_left_alone(layer: str) -> None:
    source = module("return self.conv(x)", f"self.conv = nn.{layer}", "torch.randn(2, 3, 8, 12)")
    assert proved(opened(source, "patches-as-channels"), "patches-as-channels") == []


def test_one_window_is_a_product_already() -> None:
    several = module(
        "return self.conv(x)",
        "self.conv = nn.Conv2d(3, 384, 16, 16)",
        "torch.randn(64, 3, 224, 224)",
    )
    one = module(
        "return self.conv(x)",
        "self.conv = nn.Conv2d(3, 384, 32, 32)",
        "torch.randn(4096, 3, 32, 32)",
    )
    assert [
        len(opened(text, "patches-as-channels").capture().sites) for text in (several, one)
    ] == [1, 0]


# --- channels-last-conv ------------------------------------------------------------------


def test_a_layer_of_few_input_channels_keeps_its_format() -> None:
    """In channels_last cuDNN may choose another precision for it than in NCHW."""
    init = "self.stem = nn.Conv2d(3, 16, 3)\nself.conv = nn.Conv2d(16, 32, 3)"
    source = module("return self.conv(self.stem(x)).relu()", init, "torch.randn(2, 3, 24, 24)")
    after = for_a_gpu(source, ["channels-last-conv"])
    fast = after.split("return self._forward_eager(x)")[1]
    assert "self.stem(x)" in fast and not re.search(r"\bconv\(", fast)
    agree_in_float64(source, after, torch.randn(2, 3, 24, 24, dtype=torch.float64))
    alone = module(
        "return self.stem(x)", "self.stem = nn.Conv2d(3, 16, 3)", "torch.randn(2, 3, 24, 24)"
    )
    assert proved(opened(alone, "channels-last-conv"), "channels-last-conv") == []
