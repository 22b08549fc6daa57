"""Losses with weights, classes of maps, log targets and cosines in Triton's interpreter, against
float64."""

import pytest
from codegen_helpers import as_close_as_eager, for_values, matches, program, rewritten
from training_helpers import agrees as trained_agrees
from training_helpers import session

pytestmark = pytest.mark.torch
pytest.importorskip("torch")


def agrees(interpreter, source: str) -> str:
    after = for_values(source, "fused-loss")
    as_close_as_eager(interpreter, source, after)
    return after


def held(shape: str) -> str:
    return f"self.register_buffer('w', torch.rand({shape}) * 2)"


# --- binary cross entropy ----------------------------------------------------------------

LOGITS = [
    ("F.binary_cross_entropy_with_logits(x, y, weight=self.w)", "7"),
    ("F.binary_cross_entropy_with_logits(x * 30, y, weight=self.w, reduction='sum')", "5, 1"),
    ("F.binary_cross_entropy_with_logits(x, y, pos_weight=self.w)", "7"),
    (
        "F.binary_cross_entropy_with_logits(x, y, pos_weight=self.w, weight=self.w, "
        "reduction='none')",
        "7",
    ),
    ("F.binary_cross_entropy_with_logits(x, torch.sigmoid(y), pos_weight=self.w.exp()) * 3", "1"),
    ("F.binary_cross_entropy(torch.sigmoid(x), y)", "7"),
    ("F.binary_cross_entropy(torch.sigmoid(x), y, weight=self.w, reduction='sum')", "7"),
    ("F.binary_cross_entropy(y, y, reduction='none') + 1", "7"),
]


@pytest.mark.parametrize("dtype", ["float", "bfloat16", "half"])
@pytest.mark.parametrize("shape", ["5, 7", "3, 5, 7", "1, 7"])
@pytest.mark.parametrize("expression, weights", LOGITS)
def test_weighted_binary_losses(interpreter, expression, weights, shape, dtype) -> None:
    if weights == "5, 1" and shape == "1, 7":
        pytest.skip("more weights than elements")
    inputs = f"torch.randn({shape}).{dtype}(), torch.rand({shape}).{dtype}()"
    init = f"{held(weights)}; self.{dtype}()" if dtype != "float" else held(weights)
    agrees(interpreter, program(expression, inputs, init=init))


def test_probabilities_of_0_and_1_have_a_finite_loss(interpreter) -> None:
    inputs = (
        "torch.tensor([0.0, 1.0, 0.0, 1.0, 1e-30, 1e-44, 1 - 1e-7, 0.5, float('nan')]),"
        " torch.tensor([0.0, 1.0, 1.0, 0.0, 0.5, 1.0, 0.5, 0.3, 0.5])"
    )
    source = program("F.binary_cross_entropy(x.nan_to_num(0.5), y, reduction='none') + y", inputs)
    agrees(interpreter, source)


def test_what_is_not_checked_any_more_is_said() -> None:
    source = program("F.binary_cross_entropy(x, y)", "torch.rand(512, 512), torch.rand(512, 512)")
    opened, found = matches(source, "fused-loss")
    graph = opened.graph.copy()
    opened.rewrites["fused-loss"].apply(graph, found[0], {})
    assert any("outside of 0 to 1" in text for text in graph.caveats)


@pytest.mark.parametrize("name", ["weight", "pos_weight"])
def test_whole_number_weights_are_left_to_torch(name) -> None:
    loss = f"F.binary_cross_entropy_with_logits(x, y, {name}=torch.ones(7, dtype=torch.int64))"
    assert not matches(program(loss, "torch.randn(5, 7), torch.rand(5, 7)"), "fused-loss")[1]


# --- other losses of two tensors -----------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float", "bfloat16"])
@pytest.mark.parametrize(
    "expression",
    [
        "F.kl_div(x, y, log_target=True)",
        "F.kl_div(F.logsigmoid(x), F.logsigmoid(y), log_target=True, reduction='batchmean')",
        "F.kl_div(x, y, log_target=True, reduction='sum')",
        "F.kl_div(x, y, log_target=True, reduction='none') * 2",
        "F.smooth_l1_loss(x, y, beta=0.3)",
        "F.smooth_l1_loss(x, y, beta=0.0, reduction='sum')",
        "F.huber_loss(x, y, delta=2.5, reduction='none') + 1",
    ],
)
def test_settings_of_losses(interpreter, expression, dtype) -> None:
    agrees(
        interpreter,
        program(expression, f"torch.randn(6, 13).{dtype}(), torch.randn(6, 13).{dtype}()"),
    )


# --- cosine embedding ----------------------------------------------------------------------

LABELS = "torch.tensor([1, -1, 1, -1, -1, 0])"


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("margin", ["0.0", "0.3"])
@pytest.mark.parametrize("labels", [LABELS, f"{LABELS}.float()"])
def test_cosine_embedding(interpreter, reduction, margin, labels) -> None:
    loss = f"F.cosine_embedding_loss(x, y, z, margin={margin}, reduction='{reduction}')"
    inputs = f"torch.randn(6, 37), torch.randn(6, 37), {labels}"
    after = agrees(interpreter, program(loss, inputs, arguments="x, y, z"))
    assert after.count("tl.sum(") == 3


@pytest.mark.parametrize("shape", ["6, 2", "6, 1025"])
@pytest.mark.parametrize("scale", ["1e-4", "1e10", "0.0"])
def test_cosine_embedding_of_short_and_long_rows(interpreter, shape, scale) -> None:
    inputs = f"torch.randn({shape}) * {scale}, torch.randn({shape}), {LABELS}"
    agrees(interpreter, program("F.cosine_embedding_loss(x, y, z)", inputs, arguments="x, y, z"))


@pytest.mark.parametrize(
    "expression",
    [
        "F.cosine_embedding_loss(x.double(), y.double(), z)",
        "F.cosine_embedding_loss(x, y.bfloat16(), z)",
        "F.cosine_embedding_loss(x[0], y[0], z[0])",
    ],
)
def test_cosine_embeddings_that_are_not_covered(expression) -> None:
    inputs = f"torch.randn(6, 37), torch.randn(6, 37), {LABELS}"
    found = matches(program(expression, inputs, arguments="x, y, z"), "fused-loss")[1]
    assert not any("cosine" in match.label for match in found)


# --- classes -------------------------------------------------------------------------------

ROWS = "torch.randn(9, 5) * 5, torch.tensor([0, 4, -100, 3, 4, -100, 1, 2, 0])"
MAPS = {
    "image": "torch.randn(3, 5, 4, 7) * 5, torch.randint(0, 5, (3, 4, 7))",
    "ignored": "torch.randn(3, 5, 7) * 5, torch.randint(0, 5, (3, 7)).index_fill(1, "
    "torch.tensor([2]), -100)",
    "one position": "torch.randn(2, 5, 1) * 5, torch.randint(0, 5, (2, 1))",
    "volume": "torch.randn(1, 5, 2, 3, 5), torch.randint(0, 5, (1, 2, 3, 5))",
    "long": "torch.randn(2, 5, 701) + 3e4, torch.randint(0, 5, (2, 701))",
    "bfloat16": "torch.randn(2, 5, 300).bfloat16(), torch.randint(0, 5, (2, 300))",
    "half": "torch.randn(2, 5, 300).half(), torch.randint(0, 5, (2, 300))",
}
SETTINGS = ["", ", label_smoothing=0.2", ", weight=self.w", ", weight=self.w, label_smoothing=0.2"]


def classes_init(inputs: str) -> str:
    dtype = next((name for name in ("bfloat16", "half") if name in inputs), "float")
    return f"self.register_buffer('w', torch.rand(5).{dtype}())"


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("name", MAPS)
def test_cross_entropy_of_maps(interpreter, name, settings, reduction) -> None:
    loss = f"F.cross_entropy(x, y, reduction='{reduction}'{settings})"
    agrees(interpreter, program(loss, MAPS[name], init=classes_init(MAPS[name])))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("settings", SETTINGS[2:])
@pytest.mark.parametrize(
    "inputs", [ROWS, ROWS.replace("5) * 5", "5).half()")], ids=["float", "half"]
)
def test_cross_entropy_with_weights_of_classes(interpreter, inputs, settings, reduction) -> None:
    loss = f"F.cross_entropy(x, y, reduction='{reduction}'{settings})"
    agrees(interpreter, program(loss, inputs, init=classes_init(inputs)))


def test_a_thousand_weighted_classes(interpreter) -> None:
    loss = "F.cross_entropy(x, y, weight=self.w, label_smoothing=0.1)"
    inputs = "torch.randn(6, 5007), torch.tensor([0, 5006, 4096, 4095, 17, 3000])"
    agrees(interpreter, program(loss, inputs, init="self.register_buffer('w', torch.rand(5007))"))


@pytest.mark.parametrize("inputs", [ROWS.replace("-100", "3"), MAPS["image"]], ids=["rows", "maps"])
@pytest.mark.parametrize(
    "expression",
    [
        "F.nll_loss(F.log_softmax(x, 1), y, weight=self.w, ignore_index=3)",
        "F.nll_loss(F.log_softmax(x, dim=1), y, reduction='sum')",
        "F.nll_loss(F.log_softmax(x, dim=1 - x.dim()), y, reduction='none')",
    ],
)
def test_negative_log_likelihood_with_weights(interpreter, expression, inputs) -> None:
    agrees(interpreter, program(expression, inputs, init=held("5")))


def test_a_layer_of_cross_entropy(interpreter) -> None:
    init = "self.l = nn.CrossEntropyLoss(weight=torch.rand(5), ignore_index=2, label_smoothing=0.1)"
    after = agrees(interpreter, program("self.l(x, y)", MAPS["image"], init=init))
    assert "self.l.ignore_index" in after or "l.ignore_index" in after


@pytest.mark.parametrize("value", ["float('inf')", "float('-inf')", "float('nan')"])
@pytest.mark.parametrize("settings", ["", ", weight=self.w, label_smoothing=0.2"])
def test_special_logits_of_maps(interpreter, value, settings) -> None:
    inputs = (
        f"torch.randn(2, 5, 6).index_fill(1, torch.tensor([3]), {value})"
        ".index_fill(2, torch.tensor([4]), 0.5),"
        " torch.tensor([[0, 1, 2, 3, 4, 3], [3, 3, 1, 0, 2, 4]])"
    )
    loss = f"F.cross_entropy(x, y, reduction='none'{settings})"
    agrees(interpreter, program(loss, inputs, init=classes_init("")))


def test_a_batch_of_nothing_has_the_mean_of_nothing(interpreter) -> None:
    source = program("F.cross_entropy(x, y)", "torch.randn(3, 5, 7), torch.randint(0, 5, (3, 7))")
    empty = program("F.cross_entropy(x, y)", "torch.randn(0, 5, 7), torch.randint(0, 5, (0, 7))")
    found = interpreter.ask(before=empty, after=rewritten(source, "fused-loss"))
    assert not found["fell_back"] and found["same_kind"] == [True]


@pytest.mark.parametrize(
    "expression, inputs",
    [
        ("F.cross_entropy(x, y)", "torch.randn(3, 5, 7), torch.rand(3, 5, 7)"),  # probabilities
        (
            "F.cross_entropy(x, y)",
            "torch.randn(3, 7, 5).transpose(1, 2), torch.randint(0, 5, (3, 7))",
        ),
        ("F.cross_entropy(x.double(), y)", "torch.randn(3, 5, 7), torch.randint(0, 5, (3, 7))"),
        ("F.nll_loss(F.log_softmax(x, 2), y)", "torch.randn(3, 7, 7), torch.randint(0, 7, (3, 7))"),
        ("F.nll_loss(F.log_softmax(x, 0), y)", "torch.randn(5), torch.tensor(3)"),
    ],
)
def test_classes_that_are_not_covered(expression, inputs) -> None:
    found = matches(program(expression, inputs), "fused-loss")[1]
    assert not any("cross" in match.label or "nll" in match.label for match in found)


# --- training ------------------------------------------------------------------------------

PAIR = "torch.randn(6, 13, requires_grad=True), torch.rand(6, 13)"


@pytest.mark.parametrize(
    "expression, init",
    [
        ("F.binary_cross_entropy_with_logits(x, y, weight=self.w)", held("13")),
        (
            "F.binary_cross_entropy_with_logits(x, y, pos_weight=self.w, reduction='sum')",
            held("13"),
        ),
        ("F.binary_cross_entropy(torch.sigmoid(x), y)", ""),
        ("F.binary_cross_entropy(torch.sigmoid(x), y, weight=self.w, reduction='sum')", held("13")),
        (
            "F.binary_cross_entropy(x.clamp(0, 1), y, reduction='sum')",
            "",
        ),  # many of exactly 0 and 1
        ("F.kl_div(x, F.logsigmoid(y), log_target=True)", ""),
        ("F.kl_div(y, x, log_target=True, reduction='sum')", ""),
        ("F.smooth_l1_loss(x, y, beta=0.3)", ""),
    ],
)
def test_gradients_of_losses(trainer, expression, init) -> None:
    trained_agrees(trainer, program(expression, PAIR, init=init), "fused-loss")


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_gradients_of_cosine_embeddings(trainer, reduction) -> None:
    inputs = (
        f"torch.randn(6, 37, requires_grad=True), torch.randn(6, 37, requires_grad=True), {LABELS}"
    )
    loss = f"F.cosine_embedding_loss(x, y, z, margin=0.1, reduction='{reduction}')"
    trained_agrees(trainer, program(loss, inputs, arguments="x, y, z"), "fused-loss")


@pytest.mark.parametrize(
    "expression, inputs, init",
    [
        # A target or a weight that is trained has another gradient in torch, or none.
        (
            "F.binary_cross_entropy(torch.sigmoid(x), self.w)",
            PAIR,
            "self.w = nn.Parameter(torch.rand(6, 13))",
        ),
        (
            "F.binary_cross_entropy_with_logits(x, y, pos_weight=self.w)",
            PAIR,
            "self.w = nn.Parameter(torch.rand(13))",
        ),
        (
            "F.cross_entropy(x, y, weight=self.w)",
            "torch.randn(3, 5, requires_grad=True), torch.randint(0, 5, (3,))",
            "self.w = nn.Parameter(torch.rand(5))",
        ),
        # Weights and smoothed labels together have no backward here.
        (
            "F.cross_entropy(x, y, weight=self.w, label_smoothing=0.1)",
            "torch.randn(3, 5, 7, requires_grad=True), torch.randint(0, 5, (3, 7))",
            held("5"),
        ),
        (
            "F.cross_entropy(x, y, weight=self.w, label_smoothing=0.1)",
            "torch.randn(3, 5, requires_grad=True), torch.randint(0, 5, (3,))",
            held("5"),
        ),
    ],
)
def test_losses_that_step_aside_in_training(expression, inputs, init) -> None:
    opened = session(program(expression, inputs, init=init), "fused-loss")
    assert opened.rewrites["fused-loss"].match(opened.graph) == []


TRAINED_MAPS = {
    "image": "torch.randn(3, 5, 4, 7, requires_grad=True), torch.randint(0, 5, (3, 4, 7))",
    "ignored": "torch.randn(2, 5, 301, requires_grad=True),"
    " torch.randint(0, 5, (2, 301)).index_fill(1, torch.tensor([2, 3]), -100)",
    "one position": "torch.randn(2, 5, 1, requires_grad=True), torch.randint(0, 5, (2, 1))",
    "rows": "torch.randn(9, 5, requires_grad=True), torch.tensor([0, 4, -100, 3, 4, -100, "
    "1, 2, 0])",
}


@pytest.mark.parametrize("how", ["mean", "sum", "none"])
@pytest.mark.parametrize("settings", SETTINGS[:3])
@pytest.mark.parametrize("name", TRAINED_MAPS)
def test_gradients_of_cross_entropy(trainer, name, settings, how) -> None:
    loss = f"F.cross_entropy(x, y, reduction='{how}'{settings})"
    trained_agrees(trainer, program(loss, TRAINED_MAPS[name], init=held("5")), "fused-loss")


@pytest.mark.parametrize("name", ["image", "rows"])
def test_gradients_of_gradients_of_cross_entropy(trainer, name) -> None:
    source = program("F.cross_entropy(x, y, weight=self.w)", TRAINED_MAPS[name], init=held("5"))
    trained_agrees(trainer, source, "fused-loss", twice=True)


def test_gradients_of_bfloat16_maps(trainer) -> None:
    inputs = TRAINED_MAPS["image"].replace("4, 7, requires", "4, 7, dtype=torch.bfloat16, requires")
    trained_agrees(trainer, program("F.cross_entropy(x, y)", inputs), "fused-loss")


def test_the_loss_may_be_part_of_a_larger_gradient(trainer) -> None:
    loss = "F.cross_entropy(x * 2, y, label_smoothing=0.1) * 3 + x.square().mean()"
    trained_agrees(trainer, program(loss, TRAINED_MAPS["image"]), "fused-loss")


@pytest.mark.parametrize("inputs", [ROWS, MAPS["image"]], ids=["rows", "maps"])
def test_the_guard_counts_the_weights(inputs) -> None:
    """The kernel would read past the end where torch refuses."""
    after = rewritten(
        program("F.cross_entropy(x, y, weight=self.w)", inputs, init=held("5")), "fused-loss"
    )
    assert "w.shape == (5,)" in after


def test_a_kernel_without_a_backward_is_guarded() -> None:
    after = rewritten(program("F.cross_entropy(x, y)", MAPS["image"]), "fused-loss")
    assert "torch.is_grad_enabled()" in after
