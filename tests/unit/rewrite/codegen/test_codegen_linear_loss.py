"""A linear layer with its cross entropy, in training, in Triton's interpreter, against float64."""

import pytest
from codegen_helpers import program
from training_helpers import agrees, session

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

SKILL = "fused-linear-loss"


def head(
    loss: str, *, rows: str = "6", dtype: str = "float32", classes: int = 13, bias=True
) -> str:
    """A program whose loss reads ``self.head(x)``."""
    return program(
        loss,
        f"torch.randn({rows}, 16, dtype=torch.{dtype}, requires_grad=True),"
        f" torch.randint(0, {classes}, ({rows},))",
        init=f"self.head = nn.Linear(16, {classes}, bias={bias}).to(torch.{dtype})",
    )


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("classes", [13, 16, 100])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_gradients(trainer, dtype, classes, bias) -> None:
    source = head("F.cross_entropy(self.head(x), y)", dtype=dtype, classes=classes, bias=bias)
    after = agrees(trainer, source, SKILL)
    assert ("pad(weight" in after) == (classes % 16 != 0)


@pytest.mark.parametrize(
    "settings",
    [
        ", reduction='sum'",
        ", label_smoothing=0.1",
        ", ignore_index=3",
        ", ignore_index=3, label_smoothing=0.2, reduction='sum'",
    ],
)
def test_settings_of_the_loss(trainer, settings) -> None:
    loss = f"F.cross_entropy(self.head(x).float(), y{settings}) * 2 + x.square().mean().float()"
    agrees(trainer, head(loss, rows="9", dtype="bfloat16"), SKILL)


def test_the_next_token_of_a_sequence(trainer) -> None:
    loss = "F.cross_entropy(self.head(x)[:, :-1].reshape(-1, 13).float(), y[:, 1:].flatten())"
    after = agrees(trainer, head(loss, rows="2, 5", dtype="bfloat16"), SKILL)
    assert "fused_linear_cross_entropy(" in after


def test_gradients_of_gradients(trainer) -> None:
    agrees(trainer, head("F.cross_entropy(self.head(x), y)"), SKILL, twice=True)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("settings", ["", ", reduction='sum', label_smoothing=0.1"])
def test_float16_waits_for_the_scale_of_the_loss(trainer, settings, bias) -> None:
    """A small probability over many rows is no number of float16 until the loss is scaled, so the
    gradient of the loss is there before gradients of logits are rounded."""
    loss = f"F.cross_entropy(self.head(x).float(), y{settings}) * 1024"
    after = agrees(trainer, head(loss, rows="40", dtype="float16", bias=bias), SKILL)
    assert "grad_out / count" in after


def test_rows_in_pieces_agree(trainer) -> None:
    """More rows than classes and features, so that the sum in float32 is the smaller one."""
    source = head("F.cross_entropy(self.head(x), y)", rows="150", dtype="bfloat16")
    opened = session(source, SKILL)
    (found,) = opened.rewrites[SKILL].match(opened.graph)
    assert found.data["parameters"]["PIECES"] == [1, 4, 16, 0]
    after = _with_pieces(opened, found)
    replies = trainer.ask(before=source, after=after, twice=False)
    assert "torch.zeros(weight.shape, dtype=torch.float32" in after
    for ours, eager in zip(replies["ours"], replies["eager"], strict=True):
        assert ours <= 2 * eager + 2**-6


def _with_pieces(opened, found) -> str:
    from kernel_lsp.records import Step

    parameters = {"PIECES": 4, "BLOCK_SIZE": 64, "num_warps": 4}
    step = Step(skill=SKILL, site=found.label, parameters=parameters)
    return opened.propose([step]).candidate.program


@pytest.mark.parametrize(
    "loss, dtype",
    [
        ("F.cross_entropy(self.head(x), y, reduction='none')", "float32"),
        ("F.cross_entropy(self.head(x), y, weight=torch.ones(13))", "float32"),
        ("F.cross_entropy(torch.relu(self.head(x)), y)", "float32"),
        ("(lambda h: F.cross_entropy(h, y) + h.sum())(self.head(x))", "float32"),
        ("F.cross_entropy(self.head(x).view(-1, 26)[:, :13], y[::2])", "float32"),
    ],
)
def test_what_is_left_alone(loss, dtype) -> None:
    opened = session(head(loss, dtype=dtype), SKILL)
    assert not opened.rewrites[SKILL].match(opened.graph)


def test_operations_with_a_number_for_a_weight_are_no_losses() -> None:
    pair = "torch.randn(4, 5, requires_grad=True), torch.randn(4, 5, requires_grad=True)"
    opened = session(program("torch.lerp(x, y, 0.3)", pair), SKILL)
    assert opened.rewrites[SKILL].match(opened.graph) == []
