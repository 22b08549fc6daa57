"""Generated convolutions: right in Triton's interpreter, free of spills, silent where they must
be."""

import pytest
from codegen_helpers import for_values, matches, program, rewritten

pytestmark = pytest.mark.torch
pytest.importorskip("torch")
pytest.importorskip("triton")

IMAGE = "torch.randn(2, 6, 9, 11)"
WIDE = "torch.randn(2, 20, 9, 11)"


def source(expression: str, inputs: str, layer: str, more: str = "", arguments: str = "x") -> str:
    """``h`` in the expression is the convolution of ``x``."""
    init = f"self.conv = nn.{layer}" + (f"; {more}" if more else "")
    text = program("RESULT", inputs, arguments=arguments, init=init)
    return text.replace("return RESULT", f"h = self.conv(x)\n        return {expression}")


def agrees(interpreter, text: str, skill: str = "fused-conv", **parameters) -> None:
    """The exact precisions are as close to float64 as eager is; TF32 itself is the GPU's to
    judge."""
    found = interpreter.ask(before=text, after=for_values(text, skill, **parameters))
    assert not found["fell_back"]
    assert all(found["same_kind"])
    slack = 2**-8 if "bfloat16" in text else 3e-6
    for ours, eager in zip(found["ours"], found["eager"], strict=True):
        assert ours <= 2 * eager + slack


LAYERS = [
    ("Conv2d(6, 5, 3)", IMAGE),
    ("Conv2d(6, 5, 3, padding=1, bias=False)", IMAGE),
    ("Conv2d(6, 7, (5, 2), stride=(2, 3), padding=(3, 1))", IMAGE),
    ("Conv2d(6, 8, 3, dilation=(2, 3), padding=2)", IMAGE),
    ("Conv2d(6, 9, 3, groups=3, padding=1)", IMAGE),
    ("Conv2d(6, 5, (2, 4), padding='same')", IMAGE),
    ("Conv2d(6, 5, 1, stride=2)", IMAGE),
    ("Conv2d(20, 33, 3, padding=1)", WIDE),
    ("Conv2d(20, 5, 1)", WIDE),
    ("Conv2d(20, 5, 1, padding=1)", WIDE),
    ("Conv2d(40, 18, 3, groups=2, stride=2)", "torch.randn(2, 40, 9, 8)"),
    ("Conv1d(3, 5, 4, stride=3, padding=2)", "torch.randn(3, 3, 31)"),
    ("Conv1d(20, 17, 5, dilation=2)", "torch.randn(2, 20, 31)"),
    ("Conv3d(2, 5, 3, padding=(0, 1, 2), stride=(1, 2, 1))", "torch.randn(2, 2, 5, 6, 7)"),
    ("Conv3d(17, 4, (2, 1, 3), padding=1)", "torch.randn(1, 17, 4, 3, 5)"),
    ("ConvTranspose2d(6, 5, 3, padding=1)", IMAGE),
    ("ConvTranspose2d(20, 33, (5, 2), padding=(3, 0), bias=False)", WIDE),
    ("ConvTranspose2d(6, 7, 3, dilation=(2, 3), output_padding=(1, 2))", IMAGE),
    ("ConvTranspose2d(20, 5, 1)", WIDE),
    ("ConvTranspose1d(3, 5, 4, padding=3)", "torch.randn(3, 3, 31)"),
    ("ConvTranspose3d(2, 5, (3, 1, 2), padding=(2, 0, 1))", "torch.randn(2, 2, 5, 6, 7)"),
    ("ConvTranspose1d(3, 5, 4, stride=2, padding=1)", "torch.randn(2, 3, 31)"),
    ("ConvTranspose1d(2, 3, 3, stride=5, output_padding=4, bias=False)", "torch.randn(2, 2, 9)"),
    ("ConvTranspose2d(20, 18, 4, stride=2, padding=1)", WIDE),
    (
        "ConvTranspose2d(3, 4, (4, 3), (3, 1), (2, 0), (2, 0), dilation=(1, 2))",
        "torch.randn(2, 3, 5, 6)",
    ),
    (
        "ConvTranspose3d(2, 4, 3, stride=2, padding=1, output_padding=1)",
        "torch.randn(2, 2, 3, 4, 5)",
    ),
    ("ConvTranspose3d(2, 2, 2, stride=(1, 2, 3))", "torch.randn(1, 2, 3, 4, 5)"),
]


@pytest.mark.parametrize("way", ["gather", "taps", "rows", "library"])
@pytest.mark.parametrize("layer, inputs", LAYERS)
def test_sizes_strides_padding_dilation_and_groups(interpreter, layer, inputs, way):
    text = source("h * 2", inputs, layer)
    if "Transpose" in layer and way != "taps":
        pytest.skip("a transposed convolution goes tap by tap")
    if way == "rows" and "Conv1d" in layer:
        pytest.skip("a signal's filter is one row")
    if way == "library" and "same" in layer:
        pytest.skip("an odd zero goes behind, which the library has no number for")
    agrees(
        interpreter,
        text,
        way=way,
        precision="tf32x3",
        BLOCK_PIXELS=32,
        BLOCK_K=128 if way == "rows" else 16,
    )


TAILS = [
    "F.gelu(h)",
    "F.mish(F.leaky_relu(h, 0.2)) - 0.5",
    "torch.clamp(h + h.sigmoid(), -1, 1)",
    "F.max_pool2d(torch.tanh(h), 2)",
    "torch.sigmoid(F.avg_pool2d(F.relu(h), (3, 2)))",
    "F.max_pool2d(F.max_pool2d(h, 2), (1, 2)) * 3",
    "F.max_pool2d(h.amax(1, keepdim=True), (2, 1)).tanh()",
    "F.avg_pool2d(torch.softmax(h, 1), 2).mean((2, 3))",
    "h.min(dim=1, keepdim=True).values.tanh()",
    "h.max(dim=1, keepdim=True)[0]",
    "h.amax(1, keepdim=True) + 1",
    "torch.softmax(h, dim=1)",
    "F.log_softmax(h / 2, dim=1)",
    "torch.logsumexp(F.max_pool2d(h, 2), dim=1, keepdim=True).relu()",
    "h.mean(1, keepdim=True)",
    "F.relu(h).mean((2, 3), keepdim=True)",
    "F.hardswish(h).sum((1, 2, 3))",
    "F.adaptive_avg_pool2d(F.relu(h), 1)",
    "torch.relu(h).amax((2, 3))",
    "(F.max_pool2d(h, 2) + 1).mean((2, 3))",
    "torch.where(h > 0, h, 0.3)",
]


@pytest.mark.parametrize("way", ["gather", "library"])
@pytest.mark.parametrize("expression", TAILS)
def test_tails_run_in_the_same_kernel(interpreter, expression, way):
    text = source(expression, IMAGE, "Conv2d(6, 5, 3, padding=1)")
    assert fast_path(rewritten(text, "fused-conv", way=way)).startswith("return fused_conv2d")
    agrees(interpreter, text, way=way, BLOCK_PIXELS=32)


@pytest.mark.parametrize(
    "expression",
    ["F.gelu(h) * h", "torch.softmax(h, 1).sigmoid()", "h.amax(1, keepdim=True) + 1", "F.relu(h + y) - 0.5",
     "(h.min(dim=1, keepdim=True).values).tanh()"],
)  # fmt: skip
def test_tails_of_transposed_convolutions(interpreter, expression):
    layer = (
        "ConvTranspose2d(6, 5, 3, stride=2, padding=1)"  # 17 x 21: phases of 9 and 8, of 11 and 10
    )
    inputs = f"{IMAGE}, torch.randn(2, 5, 17, 21)" if "y" in expression else IMAGE
    text = source(expression, inputs, layer, arguments="x, y" if "y" in expression else "x")
    assert fast_path(rewritten(text, "fused-conv")).startswith("return fused_conv_transpose2d")
    agrees(interpreter, text, precision="tf32x3", BLOCK_PIXELS=32)


@pytest.mark.parametrize("tail", ["F.max_pool2d(h.relu(), 2)", "h.relu().mean((2, 3))"])
def test_pixels_of_several_phases_stay_outside_of_the_tail(tail):
    text = source(tail, IMAGE, "ConvTranspose2d(6, 5, 3, stride=2)")
    (match,) = matches(text, "fused-conv")[1]
    assert match.nodes[-1].name == "relu"


def test_a_transposed_convolution_goes_tap_by_tap():
    with pytest.raises(Exception, match="choose the way taps"):
        rewritten(source("h", IMAGE, "ConvTranspose2d(6, 5, 3)"), "fused-conv", way="gather")


def fast_path(text: str) -> str:
    """The statements of the new forward behind its guard."""
    return (
        text[text.rindex("return self._forward_eager(") :]
        .split("\n", 1)[1]
        .split("def get_")[0]
        .strip()
    )


OPERANDS = [
    ("F.relu(h + y)", "torch.randn(2, 5, 9, 11)", ""),
    ("F.max_pool2d(h * y, 2)", "torch.randn(2, 5, 9, 11)", ""),
    ("F.max_pool2d(h, 2) * y", "torch.randn(2, 5, 4, 5)", ""),
    ("h * self.scale + y", "torch.randn(())", "self.scale = nn.Parameter(torch.ones(5, 1, 1))"),
    ("torch.where(y > 0, h, self.scale)", "torch.randn(1, 5, 1, 1)",
     "self.scale = nn.Parameter(torch.ones(1))"),
    ("F.relu(self.norm(h)) - y", "torch.randn(5, 1, 1)", "self.norm = nn.BatchNorm2d(5).eval()"),
    ("self.norm(h) - y", "torch.randn(5, 1, 1)", "self.norm = nn.BatchNorm2d(5, "
                                                 "affine=False).eval()"),
]  # fmt: skip


@pytest.mark.parametrize("expression, other, more", OPERANDS)
def test_other_tensors_are_read_where_they_lie(interpreter, expression, other, more):
    text = source(expression, f"{IMAGE}, {other}", "Conv2d(6, 5, 3, padding=1)", more, "x, y")
    assert "return fused_conv2d" in fast_path(rewritten(text, "fused-conv"))
    agrees(interpreter, text)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("channels", [6, 20])
def test_low_precision_sums_in_float32(interpreter, channels, dtype):
    inputs = f"torch.randn(2, {channels}, 9, 11, dtype=torch.{dtype})"
    layer = f"Conv2d({channels}, 7, 3, padding=1, dtype=torch.{dtype})"
    agrees(interpreter, source("F.silu(h)", inputs, layer))


@pytest.mark.parametrize("special", ["nan", "inf", "-inf"])
@pytest.mark.parametrize(
    "expression", ["torch.relu(h)", "h.amin(1, keepdim=True)", "F.max_pool2d(h, 2)"]
)
def test_one_special_number_spreads_as_in_torch(interpreter, expression, special):
    inputs = f"torch.randn(1, 2, 8, 8).index_fill_(2, torch.tensor([3]), float('{special}'))"
    agrees(interpreter, source(expression, inputs, "Conv2d(2, 3, 3, padding=1)"))


DEPTHWISE = [
    ("F.relu6(h)", "Conv2d(6, 6, 3, padding=1, groups=6)", IMAGE),
    ("h * 2", "Conv2d(6, 12, (3, 1), stride=2, groups=6, bias=False)", IMAGE),
    ("F.avg_pool2d(F.silu(h), 2)", "Conv2d(6, 6, 5, padding=2, groups=6)", IMAGE),
    ("h.mean((2, 3))", "Conv2d(6, 6, 3, padding=2, dilation=2, groups=6)", IMAGE),
    ("torch.tanh(h)", "Conv1d(4, 4, 7, padding=3, groups=4)", "torch.randn(2, 4, 19)"),
    ("F.gelu(h)", "Conv3d(2, 4, 3, padding=1, groups=2)", "torch.randn(2, 2, 4, 5, 6)"),
    ("h", "Conv2d(6, 6, 3, padding=1, groups=6)", IMAGE),
    ("h", "Conv2d(6, 6, 3, groups=6, dtype=torch.bfloat16)", "torch.randn(2, 6, 9, 9, "
                                                             "dtype=torch.bfloat16)"),
]  # fmt: skip


@pytest.mark.parametrize("expression, layer, inputs", DEPTHWISE)
def test_depthwise_is_one_direct_kernel(interpreter, expression, layer, inputs):
    text = source(expression, inputs, layer)
    assert "tl.dot" not in rewritten(text, "depthwise-conv")
    agrees(interpreter, text, "depthwise-conv")


@pytest.mark.parametrize(
    "expression, layer, more, last",
    [
        ("torch.relu(self.norm(h))", "Conv2d(6, 5, 3)", "self.norm = nn.BatchNorm2d(5)", "conv2d"),
        ("torch.relu(h) * h.mean()", "Conv2d(6, 5, 3)", "", "conv2d"),
        ("(torch.relu(h), torch.tanh(h))", "Conv2d(6, 5, 3)", "", "conv2d"),
        ("torch.relu(F.max_pool2d(h, 3, 2))", "Conv2d(6, 5, 3)", "", "conv2d"),
        ("F.max_pool2d(h, 2, padding=1)", "Conv2d(6, 5, 3)", "", "conv2d"),
        ("F.avg_pool2d(h, 2, ceil_mode=True)", "Conv2d(6, 5, 3)", "", "conv2d"),
        ("F.avg_pool2d(F.max_pool2d(h, 2), 2)", "Conv2d(6, 5, 3)", "", "max_pool2d"),
        ("torch.softmax(h, dim=2)", "Conv2d(6, 5, 3)", "", "conv2d"),
        ("torch.softmax(h, dim=1)", "Conv2d(6, 6, 3, groups=2)", "", "conv2d"),
        ("h.max(dim=1, keepdim=True).indices", "Conv2d(6, 5, 3)", "", "conv2d"),
        ("h * self.scale", "Conv2d(6, 5, 3, padding=1)", "self.scale = nn.Parameter(torch.ones(11))",
         "conv2d"),
        ("F.group_norm(h, 5)", "Conv2d(6, 5, 3)", "", "conv2d"),
        ("F.dropout(h, 0.5, training=True)", "Conv2d(6, 5, 3)", "", "conv2d"),
        ("h.double()", "Conv2d(6, 5, 3)", "", "conv2d"),
    ],
)  # fmt: skip
def test_a_tail_ends_before_what_cannot_join(expression, layer, more, last):
    _, found = matches(source(expression, IMAGE, layer, more), "fused-conv")
    assert [match.nodes[-1].name for match in found] == [last]


@pytest.mark.parametrize(
    "layer, inputs",
    [
        ("ConvTranspose2d(6, 5, 3, stride=2, dilation=2)", IMAGE),
        ("ConvTranspose2d(6, 6, 3, groups=2)", IMAGE),
        ("Conv2d(6, 5, 3)", f"{IMAGE}.contiguous(memory_format=torch.channels_last)"),
        ("Conv2d(6, 5, 3)", "torch.randn(6, 9, 11)"),
        ("Conv2d(6, 5, 3, dtype=torch.float64)", "torch.randn(2, 6, 9, 11, dtype=torch.float64)"),
        ("Conv2d(6, 6, 3, groups=6)", IMAGE),
    ],
)
def test_other_convolutions_are_left_alone(layer, inputs):
    assert not matches(source("torch.relu(h)", inputs, layer), "fused-conv")[1]


def test_other_paddings_stay_operations_of_their_own():
    text = source("torch.relu(h)", IMAGE, "Conv2d(6, 5, 3, padding=1, padding_mode='circular')")
    (match,) = matches(text, "fused-conv")[1]
    assert [node.name for node in match.nodes] == ["conv2d", "relu"]
    assert "F.pad(" in fast_path(rewritten(text, "fused-conv"))


def test_tf32_is_taken_only_while_the_flag_allows_it():
    from kernel_lsp.records import Program, Step, TargetKind, Workload, WorkloadOrigin
    from kernel_lsp.rewrite.engine import EngineSession

    text = source("torch.relu(h)", WIDE, "Conv2d(20, 16, 3)")
    opened, found = matches(text, "fused-conv")
    session = EngineSession(
        Program(source=text, entry="Model", kind=TargetKind.MODULE),
        Workload(name="test", origin=WorkloadOrigin.GET_INPUTS), "cuda", [],
    )  # fmt: skip
    session.rewrites = opened.rewrites
    flag = "torch.backends.cudnn.allow_tf32"
    for precision, guarded in (("tf32", True), ("tf32x3", False)):
        step = Step(skill="fused-conv", site=found[0].label, parameters={"precision": precision})
        assert (flag in session.propose([step]).candidate.program) is guarded


@pytest.mark.parametrize(
    ("layer", "channels", "first"),
    [
        ("Conv2d(16, 48, 3)", 16, "tf32x3"), ("Conv2d(24, 32, 3)", 24, "tf32x3"),
        ("Conv2d(240, 240, 1, groups=3)", 240, "tf32x3"), ("Conv2d(16, 64, 3)", 16, "tf32"),
        ("Conv2d(32, 48, 3)", 32, "tf32"), ("ConvTranspose2d(16, 24, 3)", 16, "tf32"),
    ],
)  # fmt: skip
def test_where_the_library_was_seen_to_multiply_exactly_the_kernel_begins_so(
    layer, channels, first
):
    from kernel_lsp.rewrite.codegen.convolution import fuse as conv_fuse
    from kernel_lsp.rewrite.codegen.convolution.facts import conv_of

    text = source("torch.relu(h)", f"torch.randn(2, {channels}, 48, 48)", layer)
    graph = matches(text, "fused-conv")[0].graph
    (facts,) = [found for node in graph.nodes if (found := conv_of(node)) is not None]
    assert conv_fuse.precisions(facts)[0] == first


def test_offsets_of_huge_images_are_refused():
    text = source("torch.relu(h)", "torch.empty(1, 3, 30000, 30000)", "Conv2d(3, 4, 3)")
    assert not matches(text, "fused-conv")[1]


COMPILED = [
    ("fused-conv", "torch.sigmoid(F.max_pool2d(h, 2))", "Conv2d(3, 24, 3)", "torch.randn(2, 3, 128, 128)"),
    ("fused-conv", "F.mish(h)", "Conv2d(32, 64, 3, padding=1)", "torch.randn(2, 32, 96, 96)"),
    ("fused-conv", "torch.softmax(h, dim=1)", "Conv1d(64, 96, 5)", "torch.randn(2, 64, 4096)"),
    ("fused-conv", "F.gelu(h)", "Conv3d(8, 24, 3, padding=1)", "torch.randn(2, 8, 16, 48, 48)"),
    ("fused-conv", "h", "Conv2d(256, 128, 1)", "torch.randn(2, 256, 64, 64)"),
    ("fused-conv", "F.mish(h)", "ConvTranspose2d(64, 48, 4, 2, 1)", "torch.randn(2, 64, 48, 48)"),
    ("fused-conv", "torch.softmax(h, 1)", "ConvTranspose3d(16, 24, 3, 2)", "torch.randn(2, 16, 12, 24, 24)"),
    ("fused-conv", "F.gelu(h)", "Conv2d(64, 128, 3, dtype=torch.bfloat16)",
     "torch.randn(2, 64, 56, 56, dtype=torch.bfloat16)"),
    ("depthwise-conv", "F.relu6(h)", "Conv2d(64, 64, 3, groups=64)", "torch.randn(2, 64, 96, 96)"),
    ("depthwise-conv", "h", "Conv2d(64, 64, 7, groups=64)", "torch.randn(2, 64, 96, 96)"),
]  # fmt: skip


@pytest.mark.parametrize("skill, expression, layer, inputs", COMPILED)
def test_kernels_compile_without_spills(compiler, skill, expression, layer, inputs):
    kernels = compiler.ask(after=rewritten(source(expression, inputs, layer), skill))
    hopper = [kernel for kernel in kernels if kernel["arch"] == 90]
    assert hopper and all(kernel["spill_bytes"] == 0 for kernel in hopper), kernels


def test_a_row_of_the_filter_must_fit_its_block():
    from kernel_lsp.errors import RewriteError

    text = source("torch.relu(h)", IMAGE, "Conv2d(6, 5, 3)")
    with pytest.raises(RewriteError, match="choose BLOCK_K of at least 18"):
        rewritten(text, "fused-conv", way="rows", BLOCK_K=16)


@pytest.mark.parametrize(
    "layer, inputs, speaks",
    [
        ("Conv2d(3, 24, 3)", "torch.randn(64, 3, 128, 128)", True),
        ("Conv2d(512, 512, 3, padding=1)", "torch.randn(32, 512, 28, 28)", False),
        (
            "Conv2d(256, 256, 3, dtype=torch.bfloat16)",
            "torch.randn(32, 256, 56, 56, dtype=torch.bfloat16)",
            False,
        ),
    ],
)
def test_the_estimate_is_silent_where_the_library_is_at_the_roof(layer, inputs, speaks):
    (match,) = matches(source("h", inputs, layer), "fused-conv")[1]
    assert (match.benefit > 0) is speaks


def test_every_space_is_small_and_its_defaults_come_first():
    import math

    for layer, inputs, _ in [
        ("Conv2d(3, 24, 3)", "torch.randn(8, 3, 64, 64)", True),
        ("Conv2d(3, 64, 7, stride=2)", "torch.randn(8, 3, 64, 64)", True),
        ("Conv2d(32, 64, 3)", "torch.randn(8, 32, 64, 64)", True),
        ("Conv3d(8, 24, 3)", "torch.randn(2, 8, 16, 16, 16)", True),
    ]:
        session, found = matches(source("F.relu(h)", inputs, layer), "fused-conv")
        space = session.rewrites["fused-conv"].parameters(session.graph, found[0])
        # as many as one comparison takes
        assert math.prod(len(choices) for choices in space.values()) <= 16
        assert all(len(set(choices)) == len(choices) for choices in space.values())
