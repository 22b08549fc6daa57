"""Loops over time as people write them: along any dimension, in both directions, collected in many
ways."""

import pytest
from rewrite_helpers import (
    assert_same,
    instance,
    module,
    program,
    rewrite,
    session,
    sites,
    skill,
    workload,
)

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from kernel_lsp.errors import CaptureError  # noqa: E402
from kernel_lsp.rewrite.engine import EngineSession  # noqa: E402
from kernel_lsp.rewrite.loops.unrolled import UnrolledLoop, is_unrolled, loops_of  # noqa: E402

BATCH_FIRST = "torch.randn(3, 6, 8)"
INIT = """
self.see, self.keep, self.both = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(16, 8)
self.gates, self.drop, self.decay = nn.Linear(16, 32), nn.Dropout(0.5), nn.Parameter(torch.randn(8))
self.w = nn.Parameter(torch.randn(8, 8))
"""
CELL = "h = torch.tanh(self.see(x[:, t]) + self.keep(h))"
SCAN = "h = 0.5 * h + self.decay * x[:, t]"
EACH = "for t in range(x.size(1)):"
STACK = "torch.stack(out, dim=1)"


def recurrent(
    body: str, head: str = EACH, result: str = STACK, start: str = "h = x.new_zeros(x.size(0), 8)"
) -> str:
    """A forward whose loop appends its state to ``out``."""
    lines = "\n    ".join(body.split("\n"))
    return f"{start}\nout = []\n{head}\n    {lines}\n    out.append(h)\nreturn {result}"


def one_loop(forward: str, values: str = BATCH_FIRST) -> UnrolledLoop:
    (loop,) = loops_of(session(module(forward, INIT, values)).graph)
    return loop


def assert_fused(
    interpreter, forward: str, values: str = BATCH_FIRST, init: str = INIT, slack=3e-6
) -> str:
    source = module(forward, init, values)
    text = rewrite(source, "fused-recurrence", any_batch=False).program
    found = interpreter.ask(before=source, after=text)
    assert not found["fell_back"] and all(found["same_kind"])
    for ours, eager in zip(found["ours"], found["eager"], strict=True):
        assert ours <= 2 * eager + slack
    return text


def assert_hoisted(forward: str, *shape: int, init: str = INIT) -> str:
    source = module(forward, init, f"torch.randn{shape or (3, 6, 8)}")
    candidate = rewrite(source, "hoist-recurrent-input", any_batch=False)
    assert_same(source, candidate, torch.randn(*(shape or (3, 6, 8)), dtype=torch.float64))
    return candidate.program


# --- what is read ----------------------------------------------------------------------------

READ = {
    "an index": (EACH, "x[:, t]", range(6)),
    "an index and the rest": (EACH, "x[:, t, :]", range(6)),
    "select": (EACH, "x.select(1, t)", range(6)),
    "unbind": ("for s in x.unbind(1):", "s", range(6)),
    "unbind by name": ("for s in torch.unbind(x, dim=-2):", "s", range(6)),
    "transpose": ("for s in x.transpose(0, 1):", "s", range(6)),
    "permute and copy": ("for s in x.permute(1, 0, 2).contiguous():", "s", range(6)),
    "enumerate": ("for t, s in enumerate(x.unbind(1)):", "s", range(6)),
    "an index from the end": (EACH, "x[:, -1 - t]", range(5, -1, -1)),
    "a range downwards": ("for t in range(x.size(1) - 1, -1, -1):", "x[:, t]", range(5, -1, -1)),
    "reversed": ("for t in reversed(range(x.size(1))):", "x[:, t]", range(5, -1, -1)),
    "a reversed list": ("for s in x.unbind(1)[::-1]:", "s", range(5, -1, -1)),
    "flip": ("for s in x.flip(1).unbind(1):", "s", range(5, -1, -1)),
    "flip behind a transpose": ("for s in x.transpose(0, 1).flip(0):", "s", range(5, -1, -1)),
    "flipped twice": ("for s in reversed(x.flip(1).unbind(1)):", "s", range(6)),
    "all but the first": ("for t in range(1, x.size(1)):", "x[:, t]", range(1, 6)),
    "a slice": ("for s in x[:, 1:].unbind(1):", "s", range(1, 6)),
    "a slice from the end": ("for s in reversed(x[:, :-1].unbind(1)):", "s", range(4, -1, -1)),
    "until it breaks": (f"{EACH}\n    if t == 5:\n        break", "x[:, t]", range(5)),
}


@pytest.mark.parametrize("case", READ)
def test_dimension_and_direction_of_what_is_read_are_found(interpreter, case: str) -> None:
    head, step, indices = READ[case]
    loop = one_loop(recurrent(SCAN.replace("x[:, t]", step), head))
    (walk,) = loop.walks
    assert (walk.base.name, walk.dim, walk.indices) == ("x", 1, indices)
    assert_fused(interpreter, recurrent(SCAN.replace("x[:, t]", step), head))
    assert_hoisted(recurrent(CELL.replace("x[:, t]", step), head))


@pytest.mark.parametrize(
    ("step", "values"),
    [
        ("x[t]", "torch.randn(6, 3, 8)"),
        ("x[:, :, t]", "torch.randn(3, 8, 6)"),
        ("x[..., t]", "torch.randn(3, 8, 6)"),
    ],
)
def test_other_dimensions_are_walked_too(interpreter, step: str, values: str) -> None:
    dim = 0 if step == "x[t]" else 2
    loop = recurrent(
        SCAN.replace("x[:, t]", step), f"for t in range(x.size({dim})):", f"torch.stack(out, {dim})"
    )
    assert one_loop(loop.replace("x.size(0), 8", "3, 8"), values).walks[0].dim == dim
    assert_fused(interpreter, loop.replace("x.size(0), 8", "3, 8"), values)
    hoisted = recurrent(CELL.replace("x[:, t]", step), f"for t in range(x.size({dim})):")
    assert_hoisted(
        hoisted.replace("x.size(0), 8", "3, 8"), *(eval(values.removeprefix("torch.randn")))
    )


FUSED = {
    "a gate of its own": (
        "g = torch.sigmoid(self.see(x))",
        "h = g[:, t] * h + (1 - g[:, t]) * x[:, t]",
    ),
    "a slice read twice": ("pass", "h = 0.5 * h * torch.tanh(x[:, t]) + x[:, t] * x[:, t]"),
    "the slice of the step before": ("pass", "h = torch.tanh(x[:, t] + 0.5 * h * x[:, t - 1])"),
    "a product of two steps back": (
        "out = []",
        "h = 0.5 * (out[-2] if t > 1 else h) + x[:, t]",
    ),
    "both directions in one loop": (
        "pass",
        "h = 0.5 * h + x[:, t] - 0.25 * x[:, x.size(1) - 1 - t]",
    ),
    "a constant made in every step": (
        "pass",
        "a = torch.sigmoid(self.decay)\nh = a * h + (1 - a) * x[:, t]",
    ),
    "changed in place": ("pass", "h.mul_(0.5).add_(x[:, t])\nh = h * 1.5"),
}


@pytest.mark.parametrize("shape", [(3, 6, 8), (1, 7, 8), (37, 6, 8)])
@pytest.mark.parametrize("case", FUSED)
def test_steps_in_one_kernel_agree_with_the_loop(
    interpreter, case: str, shape: tuple[int, ...]
) -> None:
    before, body = FUSED[case]
    assert_fused(interpreter, f"{before}\n{recurrent(body)}", f"torch.randn{shape}")


def test_many_dimensions_and_sizes_that_are_no_powers_of_two(interpreter) -> None:
    forward = recurrent(
        "h = self.decay * h + x[:, :, t]", "for t in range(x.size(2)):", "torch.stack(out, 2)"
    )
    forward = forward.replace("x.size(0), 8", "2, 3, 5, 8")
    assert_fused(interpreter, forward, "torch.randn(2, 3, 7, 5, 8)")


def test_a_state_without_a_batch_and_numbers_that_follow_each_other(interpreter) -> None:
    alone = recurrent(
        "h = 0.5 * h + x[t]", "for t in range(x.size(0)):", "torch.stack(out)", "h = x.new_zeros(8)"
    )
    assert_fused(interpreter, alone, "torch.randn(6, 8)")
    flat = recurrent("h = 0.5 * h + x[:, t]", start="h = x.new_zeros(x.size(0))")
    assert_fused(interpreter, flat, "torch.randn(5, 7)")


def test_a_tensor_that_is_not_contiguous_is_copied_once(interpreter) -> None:
    text = assert_fused(interpreter, recurrent(SCAN), "torch.randn(6, 3, 8).transpose(0, 1)")
    assert "x = x.contiguous()" in text


def test_bfloat16_keeps_its_state_in_float32(interpreter) -> None:
    init = INIT + "\nself.to(torch.bfloat16)"
    assert_fused(interpreter, recurrent(SCAN), f"{BATCH_FIRST}.bfloat16()", init, slack=2**-5)


# --- what is made of it ----------------------------------------------------------------------

BACKWARD = "for t in reversed(range(x.size(1))):"
COLLECTED = {
    "stacked": (EACH, STACK, "torch.stack(every_h, dim=1)"),
    "stacked in front": (EACH, "torch.stack(out)", "torch.stack(every_h)"),
    "stacked in front and transposed": (
        EACH,
        "torch.stack(out).transpose(0, 1)",
        "torch.stack(every_h)",
    ),
    "stacked last": (EACH, "torch.stack(out, -1)", "torch.stack(every_h, dim=2)"),
    "joined": (
        EACH,
        "torch.cat([o.unsqueeze(1) for o in out], dim=1)",
        "torch.stack(every_h, dim=1)",
    ),
    "in the order of time": (
        BACKWARD,
        "torch.stack(out[::-1], dim=1)",
        "torch.stack(every_h[::-1], dim=1)",
    ),
    "flipped": (BACKWARD, "torch.stack(out, dim=1).flip(1)", "torch.stack(every_h[::-1], dim=1)"),
    "in the order of steps": (BACKWARD, STACK, "torch.stack(every_h, dim=1)"),
    "in two ways": (
        EACH,
        "torch.stack(out, 1), torch.stack(out[::-1]), out[2]",
        "torch.stack(every_h, dim=1)",
    ),
    "and the last state": (EACH, "torch.stack(out, 1), h", "torch.stack(every_h, dim=1)"),
    "the last state": (EACH, "h", "return h"),
    "the last of the list": (BACKWARD, "out[-1] * 2", "return h"),
    "every second": (EACH, "torch.stack(out[::2], 1)", "torch.stack(every_h)"),
    "as a tuple": (EACH, "tuple(out)", "torch.stack(every_h)"),
}


@pytest.mark.parametrize("case", COLLECTED)
def test_results_are_written_as_they_are_collected(interpreter, case: str) -> None:
    head, result, spelled = COLLECTED[case]
    assert spelled in assert_hoisted(recurrent(CELL, head, result))
    assert_fused(interpreter, recurrent(SCAN, head, result))


def test_a_kernel_writes_the_tensor_that_is_returned() -> None:
    text = rewrite(
        module(recurrent(SCAN, BACKWARD, "torch.stack(out[::-1], 1)"), INIT, BATCH_FIRST),
        "fused-recurrence",
    ).program
    fast = text[text.rindex("return self._forward_eager") :]
    assert "stack" not in fast and "flip" not in fast and "contiguous" not in fast


FILLED = {
    "empty": ("out = x.new_empty(x.size(0), x.size(1), 8)", EACH, SCAN),
    "zeros like": ("out = torch.zeros_like(x)", EACH, SCAN),
    "from the end": ("out = torch.zeros_like(x)", BACKWARD, SCAN),
    "a state changed in place before": (
        "out = torch.empty_like(x)",
        EACH,
        "h.mul_(0.5).add_(x[:, t])",
    ),
}


@pytest.mark.parametrize("case", FILLED)
def test_a_tensor_that_is_filled_step_by_step_is_a_stack(interpreter, case: str) -> None:
    start, head, body = FILLED[case]
    lines = body.replace("\n", "\n    ")
    forward = (
        f"h = x.new_zeros(x.size(0), 8)\n{start}\n{head}\n    {lines}\n    out[:, t] = "
        f"h\nreturn out"
    )
    assert "torch.stack" not in assert_fused(interpreter, forward).split("_forward_eager(x)\n")[-1]


def test_what_is_changed_in_place_after_it_was_written_stays_as_it_was_written(interpreter) -> None:
    body = "h = 0.5 * h + x[:, t]\n    out[:, t] = h\n    h.mul_(2)"
    forward = (
        f"h = x.new_zeros(x.size(0), 8)\nout = torch.empty_like(x)\n{EACH}\n    {body}\nreturn out"
    )
    assert_fused(interpreter, forward)


def test_a_slice_that_was_written_is_read_again(interpreter) -> None:
    forward = (
        "out = torch.empty_like(x)\nout[:, 0] = x[:, 0]\nfor t in range(1, x.size(1)):\n"
        "    out[:, t] = 0.5 * out[:, t - 1] + x[:, t]\nreturn out"
    )
    assert_fused(interpreter, forward)


NOT_FILLED = {
    "a slice stays as it was": (
        "out = torch.zeros_like(x)\nfor t in range(1, 6):\n    out[:, t] = x[:, t]\nreturn out"
    ),
    "read before it is written": (
        "out = torch.zeros_like(x)\nfor t in range(6):\n    out[:, t] = out[:, t - 1] + x[:, "
        "t]\nreturn out"
    ),
    "written twice": (
        "out = torch.zeros_like(x)\nfor t in range(6):\n    out[:, t] = x[:, t]\n"
        "out[:, 0] = x[:, 1]\nreturn out"
    ),
    "a view that is older": (
        "out = torch.zeros_like(x)\ny = out * 2\nz = out.view(-1)\nfor t in range(6):\n"
        "    out[:, t] = x[:, t]\nreturn z + y.view(-1)"
    ),
    "a part of a slice": (
        "out = torch.zeros_like(x)\nfor t in range(6):\n    out[:, t, :4] = x[:, t, :4]\nreturn out"
    ),
    "in two dimensions": (
        "out = x.new_zeros(6, 6)\nfor t in range(5):\n    out[:, t] = x[0, :, t]\n"
        "out[5] = x[0, :, 5]\nreturn out"
    ),
    "a slice changed where it lies": (
        "out = torch.zeros_like(x)\nfor t in range(6):\n    out[:, t] = out[:, "
        "t].sigmoid_()\nreturn out"
    ),
    "an input": "for t in range(6):\n    x[:, t] = x[:, t] * 2\nreturn x",
}


@pytest.mark.parametrize("case", NOT_FILLED)
def test_other_changes_in_place_are_refused_with_their_line(case: str) -> None:
    with pytest.raises(CaptureError, match="in place"):
        session(module(NOT_FILLED[case], INIT, BATCH_FIRST))


def test_a_tensor_that_is_read_before_and_after_is_its_old_and_its_new_self() -> None:
    forward = (
        "out = torch.ones_like(x)\nz = torch.zeros_like(out)\nfor t in range(6):\n"
        "    out[:, t] = x[:, t]\nreturn out + z"
    )
    opened = session(module(forward, INIT, BATCH_FIRST))
    assert not opened.notes and any(node.target._opname == "stack" for node in opened.graph.nodes)


@pytest.mark.parametrize(
    ("made", "stays"),
    [
        ("torch.empty(3, 6, 8, device=x.device)", True),
        ("torch.empty(3, 6, 8)", False),
        ('torch.empty(3, 6, 8, device="cpu")', False),
    ],
)
def test_on_a_gpu_a_filled_tensor_has_to_lie_there(made: str, stays: bool) -> None:
    source = module(
        f"out = {made}\nfor t in range(6):\n    out[:, t] = x[:, t] * 2\nreturn out",
        INIT,
        BATCH_FIRST,
    )
    if stays:
        EngineSession(program(source), workload(), "cuda", [])
    else:
        with pytest.raises(CaptureError, match="in place"):
            EngineSession(program(source), workload(), "cuda", [])


# --- whole cells -----------------------------------------------------------------------------

LSTM = """
i, f, g, o = {gates}.chunk(4, dim=1)
c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
h = torch.sigmoid(o) * torch.tanh(c)""".strip()
GRU = """
both = torch.cat([h, x[:, t]], dim=1)
z = torch.sigmoid(self.both(both))
h = (1 - z) * h + z * torch.tanh(self.see(x[:, t]) + z * self.keep(h))""".strip()
TWO_STATES = "h = x.new_zeros(x.size(0), 8)\nc = torch.zeros_like(h)"
CELLS = {
    "the state last": LSTM.format(gates="self.gates(torch.cat([x[:, t], h], dim=1))"),
    "the state first": LSTM.format(gates="self.gates(torch.cat((h, x[:, t]), dim=-1))"),
    "gated": GRU,
    "two states beside the input": (
        "h = torch.tanh(self.three(torch.cat([h, c, x[:, t]], 1)))\nc = 0.5 * c + h"
    ),
    "a matrix": "h = torch.tanh(x[:, t] @ self.w + torch.mm(h, self.w.t()))",
    "a layer of the result": "h = torch.tanh(self.see(x[:, t]) + h)\ny = self.keep(h)\nc = c + y",
}


@pytest.mark.parametrize("shape", [(3, 6, 8), (1, 4, 8), (5, 7, 8)])
@pytest.mark.parametrize("case", CELLS)
def test_products_of_all_inputs_stand_before_the_loop(case: str, shape: tuple[int, ...]) -> None:
    init = INIT + "self.three = nn.Linear(24, 8)"
    assert "projected" in assert_hoisted(
        recurrent(CELLS[case], start=TWO_STATES), *shape, init=init
    )


SHARED_STARTS = {
    "by two states": (
        "h = c = x.new_zeros(x.size(0), 8)",
        LSTM.format(gates="self.gates(torch.cat([x[:, t], h], 1))"),
    ),
    "by a state and every step": (
        "first = h = self.see(x[:, 0])",
        "h = torch.tanh(self.see(x[:, t]) + h) * first",
    ),
    "by a state and a product": (
        "h = c = self.w[:3]",
        "h = torch.tanh(self.see(x[:, t]) + self.keep(h))\nc = c * h",
    ),
}


@pytest.mark.parametrize("case", SHARED_STARTS)
def test_a_first_value_that_is_used_twice_stays_itself(case: str) -> None:
    start, body = SHARED_STARTS[case]
    assert_hoisted(recurrent(body, start=start, result="torch.stack(out, 1), h"))


def test_a_bidirectional_pair_is_two_loops(interpreter) -> None:
    halves = [
        recurrent(body, head, f"torch.stack({order}, 1)").replace("return ", f"{name} = ")
        for name, body, head, order in (
            ("there", "{}", EACH, "out"),
            ("back", "{}", BACKWARD, "out[::-1]"),
        )
    ]
    forward = "\n".join([*halves, "return torch.cat([there, back], dim=-1)"])
    assert len(loops_of(session(module(forward.replace("{}", CELL), INIT, BATCH_FIRST)).graph)) == 2
    text = assert_hoisted(forward.replace("{}", CELL))
    assert text.count("def recurrent_steps") == 2
    assert_fused(interpreter, forward.replace("{}", SCAN))
    shared = forward.replace(
        f"h = x.new_zeros(x.size(0), 8)\nout = []\n{EACH}",
        f"s = x.unbind(1)\nh = x.new_zeros(x.size(0), 8)\nout = []\n{EACH}",
    )
    assert_fused(interpreter, shared.replace("{}", SCAN.replace("x[:, t]", "s[t]")))


def test_both_halves_of_a_long_pair_count_as_unrolled() -> None:
    halves = "\n".join(
        recurrent(CELL, head, "torch.stack(out, 1)").replace("return ", f"{name} = ")
        for name, head in (("there", EACH), ("back", BACKWARD))
    )
    source = module(f"{halves}\nreturn there + back", INIT, "torch.randn(3, 24, 8)")
    assert is_unrolled(session(source).graph)


@pytest.mark.parametrize("training", [True, None])
def test_gradients_flow_through_hoisted_products(training: bool | None) -> None:
    source = module(
        recurrent(
            LSTM.format(gates="self.gates(torch.cat([x[:, t], h], 1))"),
            BACKWARD,
            "torch.stack(out[::-1], 1)",
            TWO_STATES,
        ),
        INIT,
        BATCH_FIRST,
    )
    text = rewrite(source, "hoist-recurrent-input", training=training).program.replace(
        "torch.float32", "torch.float64"
    )
    x, found = torch.randn(3, 6, 8, dtype=torch.float64), []
    for each in (source, text):
        made = instance(each, training, torch.float64)
        given = x.clone().requires_grad_()
        made(given).square().sum().backward()
        found.append([given.grad, *(p.grad for p in made.gates.parameters())])
    torch.testing.assert_close(found[1], found[0], rtol=1e-9, atol=1e-9)


def test_a_kernel_without_a_derivative_is_not_for_training() -> None:
    assert (
        sites(module(recurrent(SCAN), INIT, BATCH_FIRST), "fused-recurrence", training=True) == []
    )


# --- near misses -----------------------------------------------------------------------------

NEAR = {
    "an index that data decides": "h = torch.tanh(self.see(x[:, t]) + h * x.gather(1, (x > "
    "t).long())[:, t])",
    "two slices at once": "h = torch.tanh(self.see(x[:, t]) + h * x[:, t : t + 2].sum(1))",
    "the number of the step": "h = torch.tanh(self.see(x[:, t]) + h) * t",
    "another cell in one step": "h = torch.tanh((self.see if t != 3 else self.keep)(x[:, t]) + h)",
    "two steps back": "h = torch.tanh(self.see(x[:, t]) + (out[-2] if t > 1 else h))",
    "no state": "h = torch.tanh(self.see(x[:, t]))",
    "dropout": "h = torch.tanh(self.see(x[:, t]) + self.drop(h))",
    "noise": "h = torch.tanh(self.see(x[:, t]) + h + torch.randn(3, 8))",
    "a decay that grows": "c = c * 0.5\nh = torch.tanh(self.see(x[:, t]) + h) * c",
    "every second slice": "h = torch.tanh(self.see(x[:, 2 * t % 6]) + h)",
}


@pytest.mark.parametrize("case", NEAR)
@pytest.mark.parametrize("name", ["fused-recurrence", "hoist-recurrent-input"])
def test_what_is_no_such_loop_is_left_alone(case: str, name: str) -> None:
    for body in (NEAR[case], NEAR[case].replace("self.see(x[:, t])", "x[:, t]")):
        assert (
            sites(module(recurrent(body, start=TWO_STATES), INIT, BATCH_FIRST), name, training=None)
            == []
        )


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_few_steps_are_no_loop(steps: int) -> None:
    assert (
        loops_of(session(module(recurrent(CELL), INIT, f"torch.randn(3, {steps}, 8)")).graph) == []
    )


def test_an_exit_that_data_decides_is_refused_with_its_line() -> None:
    body = f"{CELL}\nif h.norm() > 3:\n    break"
    with pytest.raises(CaptureError, match="decides by tensor values"):
        session(module(recurrent(body), INIT, BATCH_FIRST))


def test_a_transpose_that_turns_the_slices_is_no_walk_through_the_tensor_behind_it() -> None:
    forward = recurrent(
        "h = 0.5 * h + x[t]",
        "for t in range(6):",
        "torch.stack(out)",
        "x = x.permute(1, 2, 0)\nh = x.new_zeros(8, 3)",
    )
    (walk,) = one_loop(forward).walks
    assert (walk.base.name, walk.dim) == ("permute", 0)


@pytest.mark.parametrize("head", [EACH, BACKWARD, "for t in range(1, x.size(1)):"])
def test_kernels_compile_for_gpus_without_spilling(compiler, head: str) -> None:
    source = module(recurrent(SCAN, head), INIT, "torch.randn(64, 32, 8)")
    kernels = compiler.ask(after=rewrite(source, "fused-recurrence").program)
    assert {kernel["arch"] for kernel in kernels} == {80, 90}
    assert all(kernel["spill_bytes"] == 0 for kernel in kernels)


def test_skills_that_know_no_loops_stay_silent_on_a_long_one() -> None:
    source = module(recurrent(CELL), INIT, "torch.randn(3, 32, 8)")
    opened = EngineSession(
        program(source),
        workload(),
        "cuda",
        [skill("fused-pointwise"), skill("hoist-recurrent-input")],
    )
    assert {site.skill for site in opened.capture().sites} == {"hoist-recurrent-input"}
