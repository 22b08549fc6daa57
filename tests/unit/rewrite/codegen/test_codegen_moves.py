"""fused-moves: values and gradients of moved reads against float64, and what must be left alone."""

import re

import pytest
import torch
from codegen_helpers import as_close_as_eager, for_values, matches, program, rewritten
from example_helpers import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from training_helpers import agrees as agrees_trained
from training_helpers import rewritten as rewritten_trained
from training_helpers import session

from kernel_lsp.rewrite.codegen.moving import fuse

pytestmark = pytest.mark.torch
SKILL = "fused-moves"
G = "requires_grad=True"


@pytest.fixture(autouse=True)
def always_worth_it(monkeypatch) -> None:
    """Tensors that an interpreter can walk are too small to be worth a kernel."""
    monkeypatch.setattr(fuse, "_benefit", lambda graph, planned: 0.5)


CASES = {
    "difference of columns": ("x[:, 1:] - x[:, :-1]", "(5, 37)"),
    "difference of rows": ("x[1:] - x[:-1]", "(7, 11)"),
    "second difference": ("x[:, 2:] - 2 * x[:, 1:-1] + x[:, :-2]", "(3, 7, 13)"),
    "one dimension": ("x[1:] * x[:-1]", "(131,)"),
    "last of five": ("x[..., 1:] + x[..., :-1]", "(2, 3, 1, 4, 9)"),
    "diff": ("torch.diff(x, dim=1).abs()", "(4, 9, 6)"),
    "roll": ("torch.roll(x, (-3, 2), (1, 2)) * 2", "(2, 7, 9, 4)"),
    "roll of all": ("torch.roll(x, 5) * x", "(3, 7)"),
    "rolled by more than there is": ("torch.roll(x, 11, 1).exp()", "(3, 7, 2)"),
    "pad": ("F.pad(x, (1, 2, 0, 3)).relu() * 1.5", "(2, 7, 9)"),
    "pad with a number": ("F.pad(x, (1, 2), value=1.5).exp()", "(2, 7, 9)"),
    "pad and cut": ("F.pad(x, (-1, 2)).tanh()[:, 1::2] * 2", "(4, 9)"),
    "token shift": ("x + (F.pad(x, (0, 0, 1, -1)) - x) * 0.3", "(2, 7, 5)"),
    "flip": ("x.flip(-1, 1) * 0.5 + x", "(2, 3, 7)"),
    "steps": ("x[:, ::3] * x[:, 1:][:, 1::2].sigmoid()", "(2, 10, 3)"),
    "pairs of neighbors": (
        "(lambda a, b: torch.stack((-b, a), -1).flatten(-2))(x[..., ::2], x[..., 1::2]) * 2 + x",
        "(2, 5, 12)",
    ),
    "halves": ("torch.cat((x[..., 3:] * -1, x[..., :3]), -1) * 0.7 - x", "(2, 5, 6)"),
    "channels shifted": (
        "torch.cat((F.pad(x[:, :2], (1, -1)), F.pad(x[:, 2:4], (-1, 1)), x[:, 4:]), 1) * 2",
        "(2, 7, 5)",
    ),
    "activations joined": ("torch.cat((torch.relu(x), torch.relu(-x)), 1)", "(2, 3, 5)"),
    "heads": ("x[:, :, None].expand(-1, -1, 4, -1, -1).reshape(2, -1, 5, 7) * 2", "(2, 3, 5, 7)"),
    "heads interleaved": ("x.repeat_interleave(3, 1) * 2", "(2, 3, 5)"),
    "repeat": ("x.repeat(2, 1, 2, 3) * 2", "(2, 3, 5)"),
    "heads split": ("x.view(2, 5, 3, 4).transpose(1, 2).contiguous().relu()", "(2, 5, 12)"),
    "heads merged": ("x.transpose(1, 2).reshape(2, 5, -1).tanh()", "(2, 3, 5, 4)"),
    "shifted windows": (
        "torch.roll(x, (-3, -3), (1, 2)).view(2, 2, 4, 2, 4, 5).permute(0, 1, 3, 2, 4, 5)"
        ".reshape(-1, 16, 5)",
        "(2, 8, 8, 5)",
    ),
    "patches": (
        "x.view(2, 3, 2, 4, 3, 4).permute(0, 2, 4, 1, 3, 5).contiguous() * 2", "(2, 3, 8, 12)"
    ),
    "space to channels": (
        "torch.cat((x[..., ::2, ::2], x[..., 1::2, ::2], x[..., ::2, 1::2], x[..., 1::2, 1::2]), 1)",
        "(2, 3, 4, 6)",
    ),
    "channels last": ("F.silu(x).permute(0, 2, 3, 1).contiguous()", "(2, 5, 16, 8)"),
    "all parts of a split": ("(lambda a, b: torch.cat((b, F.gelu(a)), 1))(*x.chunk(2, 1))", "(3, 8, 5)"),
    "select": ("x[:, 0] * x[:, -1]", "(3, 4, 5)"),
    "unbind": ("(lambda a, b, c: torch.stack((c, a * b, a), 1))(*x.unbind(1))", "(3, 3, 5)"),
    "a transposed result": ("(x[:, 1:] * torch.sigmoid(x[:, :-1])).transpose(0, 1)", "(4, 9, 6)"),
    "a transposed operand": ("x.transpose(1, 2)[:, 1:] - x.transpose(1, 2)[:, :-1]", "(2, 5, 9)"),
    "total variation": (
        "(x[..., 1:, :] - x[..., :-1, :]).abs().mean() + (x[..., 1:] - x[..., :-1]).abs().mean() * 2",
        "(2, 3, 7, 9)",
    ),
    "sum of squared differences": ("((x[:, 1:] - x[:, :-1]) ** 2).sum()", "(5, 37)"),
    "one element of a dimension": ("F.pad(x, (1, 1)) * 2", "(3, 1)"),
    "padding alone is kept": ("F.pad(x, (1, 1))[:, ::2] * 2", "(3, 1)"),
}  # fmt: skip


def _source(name: str, dtype: str = "float32", more: str = f", {G}") -> str:
    expression, shape = CASES[name]
    return program(expression, f"torch.randn({shape}, dtype=torch.{dtype}{more})", arguments="x")


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_agree_with_torch(trainer, name) -> None:
    agrees_trained(trainer, _source(name), SKILL)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["second difference", "pairs of neighbors", "shifted windows"])
def test_half_precision_agrees_with_torch(trainer, name, dtype) -> None:
    agrees_trained(trainer, _source(name, dtype), SKILL)


@pytest.mark.parametrize("name", ["second difference", "pad with a number", "heads merged"])
def test_without_gradients_values_agree_with_torch(interpreter, name) -> None:
    source = _source(name, more="")
    as_close_as_eager(interpreter, source, for_values(source, SKILL))


TWO = {
    "broadcast tables": (
        "(lambda a, b: torch.stack((a * y - b * z, a * z + b * y), -1).flatten(-2))"
        "(x[..., ::2], x[..., 1::2])",
        f"torch.randn(2, 3, 5, 8, {G}), torch.randn(5, 4), torch.randn(1, 1, 5, 4)",
    ),
    "a mask": (
        "torch.where(y[:, 1:], x[:, 1:] - x[:, :-1], z)",
        f"torch.randn(3, 9, {G}), torch.rand(3, 9) < 0.5, torch.randn(3, 8, {G})",
    ),
    "trained operands of several shapes": (
        "torch.cat((x, y * 2), 1) * z",
        f"torch.randn(3, 4, 5, {G}), torch.randn(3, 2, 5, {G}), torch.randn(3, 6, 5, {G})",
    ),
    "trained operands that are broadcast a little": (
        "F.pad(x, (1, 1)) * y + z",
        f"torch.randn(3, 4, 5, {G}), torch.randn(3, 1, 7, {G}), torch.randn(7, {G})",
    ),
    "non-contiguous operands": (
        "(x[:, 1:] - x[:, :-1]) * y + z",
        f"torch.randn(9, 4, {G}).t(), torch.randn(4, 16)[:, ::2], torch.randn(8).expand(4, 8)",
    ),
    "trained operands that are broadcast much": (
        "x + (F.pad(x, (0, 0, 1, -1)) - x) * y * z[:, :, :1].cos()",
        f"torch.randn(3, 7, 20, {G}), torch.randn(20, {G}), torch.randn(3, 7, 4, {G})",
    ),
    "gradients in several orders": (
        "torch.sigmoid(x.transpose(1, 2).reshape(2, 5, -1)) * y.roll(3, 2) + z.flip(2)",
        f"torch.randn(2, 3, 5, 4, {G}), torch.randn(2, 5, 12, {G}), torch.randn(2, 5, 12, {G})",
    ),
    "skips beside upsampling": (
        "x.repeat_interleave(2, -1).repeat_interleave(2, -2) * y + z",
        f"torch.randn(2, 3, 5, 7, {G}), torch.randn(2, 3, 10, 14, {G}), torch.randn(3, 10, 1, {G})",
    ),
    "a number as a tensor": (
        "x.flip(1) * y + z", f"torch.randn(30, 4, {G}), torch.randn((), {G}), torch.randn(30, 1, {G})"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TWO)
def test_several_operands_agree_with_torch(trainer, name) -> None:
    expression, inputs = TWO[name]
    agrees_trained(trainer, program(expression, inputs, arguments="x, y, z"), SKILL)


def test_gradients_of_gradients_agree(trainer) -> None:
    source = program("x[:, 1:] * x[:, :-1].tanh()", f"torch.randn(4, 9, {G})", arguments="x")
    agrees_trained(trainer, source, SKILL, twice=True)


def test_an_incoming_gradient_is_not_stored_again(trainer) -> None:
    inputs = f"torch.randn(2, 7, 9, {G}), torch.randn(2, 7, 9, {G})"
    after = agrees_trained(trainer, program("y + torch.roll(x, 3, 1)", inputs), SKILL)
    assert "return grad_x, grad\n" in after or "return grad, grad_x\n" in after


def test_one_kernel_makes_the_gradient_of_all_slices() -> None:
    after = rewritten_trained(_source("second difference"), SKILL)
    assert after.count("_kernel[(n_programs,)](") == 2 and "atomic" not in after


@pytest.mark.parametrize(
    "expression, inputs",
    [
        (CASES["total variation"][0] + " + x[1:].sum()", f"torch.randn(2, 3, 7, 9, {G})"),
        ("((x[:, 1:] - x[:, :-1]) ** 2).mean()", f"torch.randn(7, 137, {G})"),
        ("((x[..., 1::2] - x[..., ::2]) ** 2).sum()", f"torch.randn(3, 7, 38, {G})"),
        (
            "x + (F.pad(x, (0, 0, 1, -1)) - x) * y",
            f"torch.randn(3, 17, 40, {G}), torch.randn(40, {G})",
        ),
        (
            "x.roll(1, 1) * y + z",
            f"torch.randn(19, 5, 40, {G}), torch.randn(1, 5, 40, {G}), torch.randn(5, 40, {G})",
        ),
    ],
)
@pytest.mark.parametrize("programs", [2, 5, 1024])
def test_sums_over_many_tiles_agree_with_torch(
    trainer, monkeypatch, expression, inputs, programs
) -> None:
    monkeypatch.setattr("kernel_lsp.rewrite.codegen.moving.source.PROGRAMS", programs)
    arguments = ", ".join("xyz"[: inputs.count("torch.")])
    agrees_trained(trainer, program(expression, inputs, arguments=arguments), SKILL)


def test_sums_of_one_pass_read_it_once() -> None:
    after = rewritten_trained(_source("total variation"), SKILL)
    assert after.count("_kernel[(n_programs,)](") == 2 and ".unbind(0)" in after


def test_a_trained_weight_costs_no_tensor_of_gradients() -> None:
    expression = "x + (F.pad(x, (0, 0, 1, -1)) - x) * y"
    inputs = f"torch.randn(3, 17, 40, {G}), torch.randn(40, {G})"
    after = rewritten_trained(program(expression, inputs), SKILL)
    assert "full_1 = torch.empty((n_sums, 40)" in after


def test_gradients_in_several_orders_share_a_kernel() -> None:
    expression = "torch.sigmoid(x.transpose(1, 2).reshape(2, 5, -1)) * y"
    inputs = f"torch.randn(2, 3, 5, 4, {G}), torch.randn(2, 5, 12, {G})"
    after = rewritten_trained(program(expression, inputs), SKILL)
    assert after.count("_kernel[(n_programs,)](") == 2


# --- pairs of neighbors ------------------------------------------------------------------

PAIRS = {
    "stacked": "torch.stack((a * y - b * z, a * z + b * y), -1).flatten(-2)",
    "turned": "x * y.repeat_interleave(2, -1) + torch.stack((-b, a), -1).reshape(x.shape) "
    "* z.repeat_interleave(2, -1)",
    "swapped": "torch.stack((b, a.sigmoid()), -1).flatten(-2) * x",
    "two beside two": "torch.stack((a, b, a + b, a * b), -1).flatten(-2) * 2",
}
TAKEN = {
    "steps": "x[..., ::2], x[..., 1::2]",
    "unbound": "x.reshape(*x.shape[:-1], -1, 2).unbind(-1)",
    "unflattened": "x.unflatten(-1, (-1, 2)).unbind(-1)",
    "indexed": "x.view(*x.shape[:-1], -1, 2)[..., 0], x.view(*x.shape[:-1], -1, 2)[..., 1]",
}


def _pairs(form: str, taken: str, shape: tuple[int, ...], dtype: str) -> str:
    tables = f"torch.randn({shape[-2]}, {shape[-1] // 2}, dtype=torch.{dtype})"
    first = f"torch.randn({shape}, dtype=torch.{dtype}, {G})"
    expression = f"(lambda a, b: {PAIRS[form]})({'*(' + TAKEN[taken] + ')'})"
    return program(expression, f"{first}, {tables}, {tables}", arguments="x, y, z")


@settings(max_examples=examples(25))
@given(
    st.sampled_from(sorted(PAIRS)),
    st.sampled_from(sorted(TAKEN)),
    st.sampled_from([(1,), (2,), (3, 1), (2, 3)]),
    st.integers(1, 7),
    st.sampled_from([1, 2, 3, 5, 32, 37]),
    st.sampled_from(["float32", "float16"]),
)
def test_pairs_agree_with_torch(trainer, form, taken, lead, rows, pairs, dtype) -> None:
    agrees_trained(trainer, _pairs(form, taken, (*lead, rows, 2 * pairs), dtype), SKILL)


@pytest.mark.parametrize("form", PAIRS)
def test_pairs_of_bfloat16_agree_with_torch(trainer, form) -> None:
    """Of a size: the interpreter rounds them towards zero, which eager's error must hide."""
    agrees_trained(trainer, _pairs(form, "steps", (2, 3, 7, 74), "bfloat16"), SKILL)


@pytest.mark.parametrize("form", ["stacked", "turned", "swapped"])
@pytest.mark.parametrize("taken", TAKEN)
def test_both_of_a_pair_are_read_and_written_as_one(form, taken) -> None:
    after = rewritten_trained(_pairs(form, taken, (2, 3, 5, 16), "bfloat16"), SKILL)
    assert after.count("tl.split(") >= 2 and after.count("tl.interleave(") == 2
    assert not re.search(r"(//|%) 2\b", after.split("class Model")[0])


COMPLEX = {
    "Llama's": "torch.view_as_real(torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))"
    " * y.view(1, x.shape[1], 1, -1)).flatten(3).type_as(x)",
    "by a real table": "torch.view_as_real(torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))"
    " * y.view(1, x.shape[1], 1, -1).real * y.view(1, x.shape[1], 1, -1)).flatten(3)",
}


@pytest.mark.parametrize("form", COMPLEX)
@pytest.mark.parametrize("dtype, shape", [("float16", (2, 7, 3, 74)), ("float32", (1, 5, 2, 6))])
def test_complex_numbers_are_pairs(trainer, form, dtype, shape) -> None:
    sizes = f"{shape[1]}, {shape[-1] // 2}"
    table = f"torch.polar(torch.ones({sizes}), torch.randn({sizes}))"
    inputs = f"torch.randn({shape}, dtype=torch.{dtype}, {G}), {table}"
    source = program(
        COMPLEX[form].replace(".float()", ".to(torch.promote_types(x.dtype, torch.float32))"),
        inputs,
    )
    after = rewritten_trained(source, SKILL)
    assert after.count("tl.split(") >= 2 and after.count("tl.interleave(") == 2
    agrees_trained(trainer, source, SKILL)


def test_gradients_of_gradients_of_complex_numbers_agree(trainer) -> None:
    table = "torch.polar(torch.ones(5, 3), torch.randn(5, 3))"
    source = program(COMPLEX["Llama's"], f"torch.randn(1, 5, 2, 6, {G}), {table}")
    source = source.replace(".float()", "").replace(".type_as(x)", ".type_as(x) * x")
    agrees_trained(trainer, source, SKILL, twice=True)


@pytest.mark.parametrize("trained", [True, False])
def test_a_complex_table_that_is_trained_later_takes_the_original_path(trained) -> None:
    table = "torch.polar(torch.ones(5, 3), torch.randn(5, 3))"
    source = program(
        COMPLEX["Llama's"], f"torch.randn(1, 5, 2, 6{', ' + G if trained else ''}), {table}"
    )
    after = rewritten_trained(source, SKILL) if trained else rewritten(source, SKILL)
    guard = after[after.index("if not (") : after.rindex("return self._forward_eager")]
    assert "y.requires_grad" in guard


def test_a_conjugated_table_agrees_with_torch(trainer) -> None:
    table = "torch.polar(torch.ones(5, 3), torch.randn(5, 3)).conj()"
    source = program(COMPLEX["Llama's"], f"torch.randn(1, 5, 2, 6, {G}), {table}")
    agrees_trained(trainer, source.replace(".float()", ""), SKILL)


@pytest.mark.parametrize(
    "expression",
    [
        "torch.view_as_real(torch.view_as_complex(x).conj() * y)[:, ::2] * 2",
        "torch.view_as_real(torch.view_as_complex(x).exp())[:, ::2] * 2",
    ],
)
def test_other_operations_on_complex_numbers_stay(expression) -> None:
    inputs = "torch.randn(4, 6, 2), torch.randn(4, 6, dtype=torch.complex64)"
    found = matches(program(expression, inputs), SKILL)[1]
    assert all("view_as_complex" not in match.label for match in found)


def test_conditions_of_neighbors_are_of_a_form_that_keeps_vectors() -> None:
    """GPT-J turns the first pairs of a head: of `cols * 2 <= 63` Triton does not know that it holds
    for a whole vector, and loads element by element."""
    expression = (
        "(lambda t, y: torch.cat((t * y + torch.stack((-t[..., 1::2], t[..., ::2]), -1).flatten(-2)"
        " * y, x[..., 32:]), -1))(x[..., :32], y.repeat_interleave(2, -1))"
    )
    inputs = f"torch.randn(2, 5, 3, 64, {G}), torch.randn(5, 1, 16)"
    after = rewritten_trained(program(expression, inputs), SKILL)
    kernels = after.split("class Model")[0]
    assert "cols < 16" in kernels and "<=" not in kernels


def test_what_an_upsampled_element_gathers_is_read_as_one() -> None:
    expression, inputs = TWO["skips beside upsampling"]
    after = rewritten_trained(program(expression, inputs, arguments="x, y, z"), SKILL)
    assert "cols * 2" not in after and after.count("tl.split(") >= 3


@pytest.mark.parametrize("name", ["difference of columns", "heads", "shifted windows", "flip"])
def test_the_batch_stays_free(name) -> None:
    expression, shape = CASES[name]
    expression = expression.replace("(2, -1, 5, 7)", "(x.shape[0], -1, 5, 7)")
    expression = expression.replace("view(2, 2, 4", "view(x.shape[0], 2, 4")
    source = program(expression, f"torch.randn({shape})", arguments="x")
    assert "x.shape[1:] ==" in rewritten(source, SKILL)


def test_a_batch_that_is_moved_itself_is_held() -> None:
    source = program("x[1:] - x[:-1]", f"torch.randn(7, 11, {G})", arguments="x")
    assert "x.shape == (7, 11)" in rewritten_trained(source, SKILL)


def test_tensors_of_another_batch_and_empty_ones_take_the_kernel(interpreter) -> None:
    source = program("x[:, 1:] - x[:, :-1]", "torch.randn(5, 37)", arguments="x")
    after = rewritten(source, SKILL)
    for batch in (0, 1, 3, 200):
        before = source.replace("(5, 37)", f"({batch}, 37)")
        as_close_as_eager(interpreter, before, after.replace("(5, 37)", f"({batch}, 37)"))


@pytest.mark.parametrize(
    "expression",
    [
        "x * 2 + 1",  # nothing moves
        "F.pad(x, (1, 1), mode='reflect')",
        "x.unfold(1, 3, 1) * 2",
        "torch.roll(x.double(), 1, 1)",
        "x[:, y] * 2",  # places that a tensor says
        "x.transpose(0, 1)",  # a view
        "torch.where(F.pad(x > 0, (1, 1), value=True), 2.0, 1.0)",
    ],
)
def test_what_no_kernel_can_be_made_of_is_left_alone(expression) -> None:
    source = program(expression, "torch.randn(4, 6), torch.randint(0, 6, (3,))")
    assert matches(source, SKILL)[1] == []


def test_a_batch_that_is_turned_and_repeated_is_left_as_a_whole() -> None:
    """Its places fall without end, for all that is known of a batch."""
    expression = (
        "(lambda h: h + h.flip(0) * 0.3)(x.repeat_interleave(2, 0)).repeat_interleave(2, 0) * 2"
    )
    found = matches(program(expression, "torch.randn(1)", arguments="x"), SKILL)[1]
    assert all("mul_1" not in match.label for match in found)


def test_what_others_read_is_not_computed_again() -> None:
    source = program(
        "(lambda h: (h[:, 1:] - h[:, :-1], h))(x.exp())", "torch.randn(4, 6)", arguments="x"
    )
    assert all("exp" not in match.label for match in matches(source, SKILL)[1])


# --- any composition ---------------------------------------------------------------------

MOVES = {
    "cut": "h[{all}, {a}:] if h.shape[{d}] > {a} else h",
    "step": "h[{all}, ::2]",
    "taken": "h[{all}, {a} % h.shape[{d}]]",
    "flip": "h.flip({d})",
    "roll": "torch.roll(h, {a}, {d})",
    "pad": "F.pad(h, ({a}, 1), value={v})",
    "cat": "torch.cat((h, h * 0.5), {d})",
    "stack": "torch.stack((h, -h), {d})",
    "repeat": "h.repeat_interleave(2, {d})",
    "turn": "h.transpose(0, -1)",
    "flat": "h.flatten()",
    "new": "h.unsqueeze({d})",
    "copy": "h.transpose(0, -1).contiguous()",
    "act": "torch.tanh(h)",
    "twice": "h + h.flip({d}) * 0.3",
}


@st.composite
def compositions(draw) -> tuple[str, tuple[int, ...]]:
    shape = tuple(draw(st.lists(st.sampled_from([1, 2, 3, 5, 7]), min_size=1, max_size=4)))
    names = draw(st.lists(st.sampled_from(sorted(MOVES)), min_size=2, max_size=4))
    lines, h = [], torch.empty(shape)
    for name in names:
        if h.dim() == 0:
            break
        d = draw(st.integers(0, h.dim() - 1))
        filled = {"d": d, "a": draw(st.integers(1, 3)), "v": draw(st.sampled_from([0.0, 1.5]))}
        line = MOVES[name].format(all=", ".join([":"] * d), **filled).replace("[, ", "[")
        h = eval(line, {"h": h, "torch": torch, "F": torch.nn.functional})
        lines.append(f"(lambda h: {line})")
    made = "x"
    for line in lines:
        made = f"{line}({made})"
    return f"{made} * 2", shape


@settings(max_examples=examples(30))
@given(compositions())
def test_any_composition_agrees_with_torch(trainer, drawn) -> None:
    expression, shape = drawn
    source = program(expression, f"torch.randn({shape}, {G})", arguments="x")
    opened = session(source, SKILL)
    found = opened.rewrites[SKILL].match(opened.graph)
    if found:
        agrees_trained(trainer, source, SKILL)


LARGE = {
    "difference": ("x[:, 1:] - x[:, :-1]", "(16, 1024, 3072)"),
    "columns": ("x[..., 1:] - x[..., :-1]", "(12345, 2049)"),
    "pairs": (
        "(lambda a, b: torch.stack((-b, a), -1).flatten(-2))(x[..., ::2], x[..., 1::2]) * 2 + x",
        "(4, 32, 2048, 128)",
    ),
    "windows": (
        "torch.roll(x, (-3, -3), (1, 2)).view(32, 8, 7, 8, 7, 96).permute(0, 1, 3, 2, 4, 5)"
        ".reshape(-1, 49, 96)",
        "(32, 56, 56, 96)",
    ),
    "channels last": ("F.silu(x).permute(0, 2, 3, 1).contiguous()", "(64, 64, 112, 112)"),
}


@pytest.mark.parametrize("name", LARGE)
def test_kernels_compile_without_spills(compiler, name) -> None:
    expression, shape = LARGE[name]
    for dtype in ("float32", "bfloat16"):
        inputs = f"torch.randn({shape}, dtype=torch.{dtype})"
        source = program(expression, inputs, arguments="x")
        kernels = compiler.ask(after=rewritten(source, SKILL))
        assert kernels and all(kernel["spill_bytes"] == 0 for kernel in kernels), kernels
