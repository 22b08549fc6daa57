"""fused-rotary: the rotation of halves against float64, both ways, and what must be left alone."""

import pytest
from codegen_helpers import matches, program, rewritten
from training_helpers import agrees as agrees_trained
from training_helpers import session

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

TURN = "torch.cat((-x[..., {h}:], x[..., :{h}]), dim=-1)"
CHUNKED = "(lambda a, b: x * c + torch.cat((-b, a), dim=-1) * s)(*x.chunk(2, -1))"
WHOLE = "torch.randn(2, 3, 5, 12), torch.randn(2, 3, 5, 12), torch.randn(2, 3, 5, 12)"
OF_PLACES = "torch.randn(2, 3, 37, 12), torch.randn(37, 12), torch.randn(1, 1, 37, 12)"
CASES = {
    "slices": (f"x * c + {TURN.format(h=6)} * s", WHOLE),
    "chunk, places alone": (CHUNKED, OF_PLACES),
    "times -1, the other way round": (
        "torch.cat([x[..., 6:] * -1, x[..., :6]], -1) * s + c * x", OF_PLACES
    ),
    "rows": (f"x * c + {TURN.format(h=3)} * s", "torch.randn(41, 6), torch.randn(6), torch.randn(41, 6)"),
    "three dimensions": (CHUNKED, "torch.randn(3, 19, 8), torch.randn(19, 8), torch.randn(19, 8)"),
    "16 bits": (CHUNKED, OF_PLACES.replace("12)", "12, dtype=torch.bfloat16)")),
}  # fmt: skip
TRANSPOSED = (
    "(lambda q: (lambda a, b: q * c + torch.cat((-b, a), dim=-1) * s)(*q.chunk(2, -1)))"
    "(x.view(2, 37, 3, 12).transpose(1, 2))"
)


def _source(expression: str, inputs: str) -> str:
    return program(expression, inputs, arguments="x, c, s")


def _trained(inputs: str, *names: int) -> str:
    parts = inputs.split("), ")
    made = [f"{p.rstrip(')')}, requires_grad=True" if i in names else p.rstrip(")")
            for i, p in enumerate(parts)]  # fmt: skip
    return ", ".join(f"{part})" for part in made)


def agrees(interpreter, source) -> str:
    after = rewritten(source, "fused-rotary")
    found = interpreter.ask(before=source, after=after)
    assert not found["fell_back"]
    assert all(found["same_kind"])
    slack = 2**-8 if "bfloat16" in source else 3e-6
    for ours, eager in zip(found["ours"], found["eager"], strict=True):
        assert ours <= 2 * eager + slack
    return after


@pytest.mark.parametrize("name", CASES)
def test_rotations_agree_with_torch(interpreter, name) -> None:
    agrees(interpreter, _source(*CASES[name]))


def test_heads_transposed_behind_a_projection_are_walked_by_strides(interpreter) -> None:
    inputs = "torch.randn(2, 37, 36), torch.randn(37, 12), torch.randn(37, 12)"
    assert ".contiguous()" not in agrees(interpreter, _source(TRANSPOSED, inputs))


CUT = TRANSPOSED.replace("x.view(2, 37, 3, 12)", "x[..., 12:48].view(2, 37, 3, 12)")


def test_heads_cut_from_one_product_are_not_copied_first(interpreter, trainer) -> None:
    inputs = "torch.randn(2, 37, 60), torch.randn(37, 12), torch.randn(37, 12)"
    assert ".contiguous()" not in agrees(interpreter, _source(CUT, inputs))
    agrees_trained(trainer, _source(CUT, _trained(inputs, 0)), "fused-rotary")


@pytest.mark.parametrize("name", CASES)
def test_gradients_of_x_agree_with_torch(trainer, name) -> None:
    expression, inputs = CASES[name]
    agrees_trained(trainer, _source(expression, _trained(inputs, 0)), "fused-rotary")


@pytest.mark.parametrize("names", [(1,), (0, 2), (0, 1, 2)])
def test_gradients_of_whole_cosines_and_sines_agree(trainer, names) -> None:
    source = _source(CASES["slices"][0], _trained(WHOLE, *names))
    agrees_trained(trainer, source, "fused-rotary")


def test_gradients_through_transposed_heads_and_of_gradients_agree(trainer) -> None:
    inputs = "torch.randn(2, 37, 36), torch.randn(37, 12), torch.randn(37, 12)"
    agrees_trained(trainer, _source(TRANSPOSED, _trained(inputs, 0)), "fused-rotary")
    source = _source(CASES["slices"][0], _trained(WHOLE, 0, 1, 2))
    agrees_trained(trainer, source, "fused-rotary", twice=True)


@pytest.mark.parametrize(
    "expression",
    [
        "x * c + torch.cat((x[..., 6:], x[..., :6]), dim=-1) * s",  # not negated
        "x * c + torch.cat((-x[..., :6], x[..., 6:]), dim=-1) * s",  # the halves as they were
        "x * c + torch.cat((-x[..., 6:], c[..., :6]), dim=-1) * s",  # of two tensors
        "c * s + torch.cat((-x[..., 6:], x[..., :6]), dim=-1) * s",  # another straight tensor
        "x * c + torch.cat((x[..., 6:] * -2, x[..., :6]), dim=-1) * s",
        "x * c - torch.cat((-x[..., 6:], x[..., :6]), dim=-1) * s",
        "torch.add(x * c, torch.cat((-x[..., 6:], x[..., :6]), -1) * s, alpha=2)",
        "x * c + torch.cat((-x[..., 6:], x[..., :6]), dim=2).reshape(x.shape) * s",
        "x * c + torch.cat((-x[..., 7:], x[..., :7]), dim=-1) * s",  # no halves
        "(lambda t: (t, x * c + t * s))(torch.cat((-x[..., 6:], x[..., :6]), -1))",  # read twice
    ],
)
def test_what_is_no_rotation_is_left_alone(expression) -> None:
    assert matches(_source(expression, WHOLE), "fused-rotary")[1] == []


def test_trained_cosines_that_are_broadcast_are_left_alone() -> None:
    source = _source(CHUNKED, _trained(OF_PLACES, 0, 1))
    opened = session(source, "fused-rotary")
    assert opened.rewrites["fused-rotary"].match(opened.graph) == []


def test_a_cosine_that_is_trained_later_takes_the_original_path() -> None:
    after = rewritten(_source(CASES["slices"][0], _trained(WHOLE, 0)), "fused-rotary")
    assert "c.requires_grad" in after and "s.requires_grad" in after


def test_kernels_compile_without_spills(compiler) -> None:
    large = "torch.randn(4, 32, 2048, 128), torch.randn(2048, 128), torch.randn(2048, 128)"
    for dtype in ("float32", "bfloat16"):
        inputs = large.replace("128)", f"128, dtype=torch.{dtype})")
        kernels = compiler.ask(after=rewritten(_source(CHUNKED, inputs), "fused-rotary"))
        assert kernels and all(kernel["spill_bytes"] == 0 for kernel in kernels), kernels
