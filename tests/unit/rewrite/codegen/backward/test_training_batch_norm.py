"""Train-mode batch norm in the interpreter: results, gradients and running statistics as in
eager."""

import pytest
from codegen_helpers import program
from rewrite_helpers import sites
from training_helpers import agrees, rewritten, session

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from kernel_lsp.rewrite.codegen.normalization import batch_norm_channels  # noqa: E402

SKILL = "batch-norm-train"
IMAGE = "torch.randn(3, 5, 4, 6, requires_grad=True)"
CASES = {
    "relu": ("torch.relu(self.n(x))", IMAGE, "nn.BatchNorm2d(5)"),
    "residual": ("torch.relu(self.n(x) + x * 2)", IMAGE, "nn.BatchNorm2d(5)"),
    "alone": ("self.n(x)", IMAGE, "nn.BatchNorm2d(5, momentum=0.25, eps=1e-3)"),
    "no weights": ("F.silu(self.n(x))", IMAGE, "nn.BatchNorm2d(5, affine=False)"),
    "no running statistics": (
        "F.gelu(self.n(x))",
        IMAGE,
        "nn.BatchNorm2d(5, track_running_stats=False)",
    ),
    "features": (
        "F.gelu(self.n(x))",
        "torch.randn(70, 37, requires_grad=True)",
        "nn.BatchNorm1d(37)",
    ),
    "sequences": (
        "torch.tanh(self.n(x))",
        "torch.randn(4, 5, 9, requires_grad=True)",
        "nn.BatchNorm1d(5)",
    ),
    "volumes": (
        "torch.relu(self.n(x))",
        "torch.randn(2, 3, 2, 3, 4, requires_grad=True)",
        "nn.BatchNorm3d(3)",
    ),
    "bfloat16": (
        "torch.relu(self.n(x))",
        IMAGE.replace("requires_grad", "dtype=torch.bfloat16, requires_grad"),
        "nn.BatchNorm2d(5, dtype=torch.bfloat16)",
    ),
    "mixed dtypes": (
        "torch.relu(self.n(x))",
        IMAGE.replace("requires_grad", "dtype=torch.bfloat16, requires_grad"),
        "nn.BatchNorm2d(5)",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_results_gradients_and_running_statistics_are_eager_s(trainer, name) -> None:
    expression, inputs, layer = CASES[name]
    source = program(expression, inputs, arguments="x", init=f"self.n = {layer}")
    agrees(trainer, source, SKILL)


def test_a_large_mean_cancels_nothing(trainer) -> None:
    inputs = "(torch.randn(9, 5, 40) + 1e4).requires_grad_()"
    source = program(
        "torch.relu(self.n(x))", inputs, arguments="x", init="self.n = nn.BatchNorm1d(5)"
    )
    agrees(trainer, source, SKILL)


def test_the_backward_takes_two_passes_and_the_residual_shares_the_gradient(trainer) -> None:
    inputs = f"{IMAGE}, {IMAGE}"
    source = program("torch.relu(self.n(x) + y)", inputs, init="self.n = nn.BatchNorm2d(5)")
    text = agrees(trainer, source, SKILL)
    assert "grad_x_ptr, grad_y_ptr" in text
    assert text.count("sums_kernel[") == 1


def test_the_counter_and_the_versions_of_the_statistics_move() -> None:
    source = program(
        "torch.relu(self.n(x))", IMAGE, arguments="x", init="self.n = nn.BatchNorm2d(5)"
    )
    text = rewritten(source, SKILL)
    assert "n.num_batches_tracked.add_(1)" in text
    assert "increment_version((running_mean, running_var))" in text


RELU, NORM = "torch.relu(self.n(x))", "nn.BatchNorm2d(5)"
NEAR_MISSES = {
    "eval mode": (RELU, IMAGE, NORM, False),
    "channels last": (
        RELU.replace("(x)", "(x.to(memory_format=torch.channels_last))"),
        IMAGE,
        NORM,
        True,
    ),
    "shared statistics": (f"{RELU} + self.n(x * 2)", IMAGE, NORM, True),
    "one channel": (RELU, "torch.randn(9, 1, 4, requires_grad=True)", "nn.BatchNorm1d(1)", True),
    "a batch of one": (RELU, "torch.randn(1, 5, 4, 6, requires_grad=True)", NORM, True),
    "float64": (
        RELU,
        IMAGE.replace("requires", "dtype=torch.float64, requires"),
        f"{NORM}.double()",
        True,
    ),
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_what_is_not_covered_is_left_alone(name) -> None:
    expression, inputs, layer, training = NEAR_MISSES[name]
    source = program(expression, inputs, arguments="x", init=f"self.n = {layer}")
    opened = session(source, SKILL, training)
    assert opened.rewrites[SKILL].match(opened.graph) == []
    assert not opened.notes


def test_an_average_over_all_calls_is_not_captured() -> None:
    from kernel_lsp.errors import CaptureError

    layer = "nn.BatchNorm2d(5, momentum=None)"
    source = program("torch.relu(self.n(x))", IMAGE, arguments="x", init=f"self.n = {layer}")
    with pytest.raises(CaptureError, match="tensor values"):
        session(source, SKILL)


def test_a_tail_that_trains_a_broadcast_operand_is_left_to_eager() -> None:
    init = "self.n = nn.BatchNorm2d(5); self.s = nn.Parameter(torch.ones(5, 1, 1))"
    source = program("torch.relu(self.n(x)) * self.s", IMAGE, arguments="x", init=init)
    opened = session(source, SKILL)
    assert opened.rewrites[SKILL].match(opened.graph) == []


def test_where_no_gradient_is_recorded_the_guard_keeps_eager_for_those_who_do() -> None:
    inputs = IMAGE.replace(", requires_grad=True", "")
    source = program(
        "torch.relu(self.n(x))", inputs, arguments="x", init="self.n = nn.BatchNorm2d(5)"
    )
    text = rewritten(source, SKILL, training=None)
    assert "autograd.Function" not in text
    assert "not (torch.is_grad_enabled() and" in text
    assert "and n.training" in text


def test_batch_norm_alone_is_worth_two_passes_where_it_is_large() -> None:
    """Eager's takes 1.4 to 3.1 times its bytes (H100)."""
    given = "torch.randn(64, 64, 56, 56, requires_grad=True)"
    source = program("self.n(x)", given, arguments="x", init="self.n = nn.BatchNorm2d(64)")
    assert len(sites(source, SKILL)) == 1


IN_RUNS = {name: case for name, case in CASES.items() if name != "features"} | {
    "several blocks": (
        "torch.relu(self.n(x) + x)",
        "torch.randn(8, 3, 15, 15, requires_grad=True)",
        "nn.BatchNorm2d(3)",
    ),
    "a large mean": (
        "torch.relu(self.n(x))",
        "(torch.randn(40, 3, 90) + 1e4).requires_grad_()",
        "nn.BatchNorm1d(3)",
    ),
}


@pytest.mark.parametrize("name", IN_RUNS)
def test_a_program_for_each_channel_computes_the_same(
    trainer, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(batch_norm_channels, "is_preferred", lambda parts: True)
    expression, inputs, layer = IN_RUNS[name]
    source = program(expression, inputs, arguments="x", init=f"self.n = {layer}")
    text = agrees(trainer, source, SKILL)
    assert "_normalize_kernel[" in text and "_sums_kernel[" not in text


def test_gradients_of_gradients_are_eager_s_where_a_program_has_a_channel(
    trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_norm_channels, "is_preferred", lambda parts: True)
    source = program("F.silu(self.n(x))", IMAGE, arguments="x", init="self.n = nn.BatchNorm2d(5)")
    agrees(trainer, source, SKILL, twice=True)


def test_many_small_channels_get_a_program_each() -> None:
    for inputs, layer, whole in (
        ("torch.randn(16, 512, 7, 7, requires_grad=True)", "nn.BatchNorm2d(512)", [True, False]),
        ("torch.randn(16, 64, 56, 56, requires_grad=True)", "nn.BatchNorm2d(64)", [False, True]),
        ("torch.randn(512, 512, requires_grad=True)", "nn.BatchNorm1d(512)", None),
    ):
        source = program("torch.relu(self.n(x))", inputs, arguments="x", init=f"self.n = {layer}")
        (site,) = session(source, SKILL).capture().sites
        assert site.parameters.get("whole_channels") == whole
