"""Loops over torch's recurrent cells: as one layer of the library, forward and backward like the
loop."""

import warnings

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

from kernel_lsp.rewrite.codegen.recurrence.cells import cell_loops  # noqa: E402
from kernel_lsp.rewrite.engine import EngineSession  # noqa: E402

NAME = "cells-as-layer"
MEMBERS = {
    "gru": "nn.GRUCell(6, 8)",
    "lstm": "nn.LSTMCell(6, 8)",
    "rnn": "nn.RNNCell(6, 8)",
    "bare": "nn.GRUCell(6, 8, bias=False)",
    "relu": 'nn.RNNCell(6, 8, nonlinearity="relu")',
    "short": "nn.LSTMCell(6, 8, bias=False)",
    "second": "nn.GRUCell(8, 8)",
    "third": "nn.LSTMCell(8, 5)",
    "square": "nn.GRUCell(8, 8)",
    "head": "nn.Linear(8, 3)",
    "see": "nn.Linear(6, 6)",
    "norm": "nn.LayerNorm(6)",
    "start": "nn.Parameter(torch.randn(1, 8))",
    "words": "nn.Embedding(11, 6)",
    "drop": "nn.Dropout(0.5)",
}
BATCH_FIRST = (3, 7, 6)
EACH = "for t in range(x.size(1)):"
BACKWARD = "for t in reversed(range(x.size(1))):"
GRU = "h = self.gru(x[:, t], h)"
LSTM = "h, c = self.lstm(x[:, t], (h, c))"
ZEROS = "h = c = x.new_zeros(x.size(0), 8)"


def loop(
    body: str = GRU, head: str = EACH, result: str = "torch.stack(out, 1)", start: str = ZEROS
) -> str:
    lines = "\n    ".join(body.split("\n"))
    out = "" if "out.append" in body else "\n    out.append(h)"
    return f"{start}\nout = []\n{head}\n    {lines}{out}\nreturn {result}"


def init_of(forward: str) -> str:
    """Members that forward reads: a capture takes longer with each one, read or not."""
    return "\n".join(
        f"self.{name} = {made}" for name, made in MEMBERS.items() if f"self.{name}" in forward
    )


def source_of(forward: str, shape: tuple[int, ...] = BATCH_FIRST) -> str:
    return module(forward, init_of(forward), f"torch.randn{shape}")


LOOPS = {
    "gru": loop(),
    "gru without biases": loop("h = self.bare(x[:, t], h)"),
    "lstm": loop(LSTM),
    "lstm without biases": loop("h, c = self.short(x[:, t], (h, c))"),
    "rnn": loop("h = self.rnn(x[:, t], h)"),
    "rnn with relu": loop("h = self.relu(x[:, t], h)"),
    "no state given": loop("h = self.gru(x[:, t], h)", start="h = None"),
    "a pair of states": loop("s = self.lstm(x[:, t], s)\nout.append(s[0])", start="s = None"),
    "a learned start": loop(start="h = self.start.expand(x.size(0), -1)"),
    "a start by the input": loop(start="h = x.mean(1) @ self.gru.weight_ih[:8].t()"),
    "from the end": loop(LSTM, BACKWARD, "torch.stack(out[::-1], 1)"),
    "from the end, in the order of steps": loop(GRU, BACKWARD),
    "the last state": loop(result="h"),
    "both last states": loop(LSTM, result="h, c"),
    "all states and the last": loop(LSTM, result="torch.stack(out, 1), h, c"),
    "stacked in front": loop(result="torch.stack(out)"),
    "all but the first": loop(head="for t in range(1, x.size(1)):"),
    "slices": loop("h = self.gru(step, h)", "for step in x.unbind(1):"),
    "written into a tensor": (
        f"h = x.new_zeros(x.size(0), 8)\nout = x.new_empty(x.size(0), x.size(1), 8)\n{EACH}\n    "
        f"{GRU}\n"
        "    out[:, t] = h\nreturn out"
    ),
    "two upon each other": loop(
        f"{GRU}\nc = self.second(h, c)\nout.append(c)", result="torch.stack(out, 1), h"
    ),
    "three kinds": loop(
        f"{GRU}\nc = self.second(h, c)\nd, e = self.third(c, (d, e))\nout.append(d)",
        start=f"{ZEROS}\nd = e = x.new_zeros(x.size(0), 5)",
    ),
    "a layer of the state": loop(f"{GRU}\nout.append(self.head(h))"),
    "a layer of the state, of which the last is read": loop(f"{GRU}\ny = self.head(h)", result="y"),
    "softmax and scale": loop(f"{GRU}\nout.append(torch.softmax(self.head(h) * 2, dim=-1))"),
    "a layer of the input": loop("h = self.gru(torch.relu(self.see(x[:, t])), h)"),
    "a norm of the input": loop("h = self.gru(self.norm(x[:, t]), h)"),
    "beside the input": loop(f"{LSTM}\nout.append(torch.cat([h, x[:, t]], dim=1))"),
    "a residual": loop("h = self.gru(x[:, t], h)\nout.append(h + 2 * self.start)"),
    "layer by layer": f"{ZEROS}\nout = []\n{EACH}\n    {GRU}\n    out.append(h)\nlast = []\nfor h "
    f"in out:\n"
    "    c = self.second(h, c)\n    last.append(c)\nreturn torch.stack(last, 1)",
    "both directions": f"{ZEROS}\nout, back = [], []\n{EACH}\n    {GRU}\n    "
    f"out.append(h)\n{BACKWARD}\n"
    "    c = self.bare(x[:, t], c)\n    back.append(c)\n"
    "return torch.cat([torch.stack(out, 1), torch.stack(back[::-1], 1)], 2)",
}


@pytest.mark.parametrize("case", LOOPS)
def test_a_layer_agrees_with_the_loop_over_its_cell(case: str) -> None:
    source = source_of(LOOPS[case])
    candidate = rewrite(source, NAME, any_batch=False)
    fast = candidate.program[candidate.program.rindex("return self._forward_eager") :]
    assert "_steps(" in fast and "_cell" not in fast
    assert_same(source, candidate, torch.randn(BATCH_FIRST, dtype=torch.float64))


@pytest.mark.parametrize("shape", [(1, 4, 6), (5, 33, 6)])
@pytest.mark.parametrize(
    "case", ["lstm", "two upon each other", "from the end", "beside the input"]
)
def test_other_sizes(case: str, shape: tuple[int, ...]) -> None:
    source = source_of(LOOPS[case], shape)
    assert_same(source, rewrite(source, NAME), torch.randn(shape, dtype=torch.float64))


@pytest.mark.parametrize(
    ("step", "shape", "dim"),
    [("x[t]", (7, 3, 6), 0), ("x[:, :, t]", (3, 6, 7), 2), ("x[..., t]", (3, 6, 7), 2)],
)
def test_time_lies_along_any_dimension(step: str, shape: tuple[int, ...], dim: int) -> None:
    forward = loop(
        GRU.replace("x[:, t]", step),
        f"for t in range(x.size({dim})):",
        start="h = x.new_zeros(3, 8)",
    )
    source = source_of(forward, shape)
    assert_same(source, rewrite(source, NAME), torch.randn(shape, dtype=torch.float64))


def test_words_are_looked_up_at_once() -> None:
    forward = loop(
        GRU.replace("x[:, t]", "self.words(x[:, t])"), start="h = self.start.expand(3, -1)"
    )
    source = module(forward, init_of(forward), "torch.randint(0, 11, (3, 7))")
    assert_same(source, rewrite(source, NAME), torch.randint(0, 11, (3, 7)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "case", ["gru", "lstm", "rnn", "three kinds", "both last states", "a learned start"]
)
def test_gradients_are_those_of_the_loop(case: str, training: bool, dtype: torch.dtype) -> None:
    source = source_of(LOOPS[case])
    text = rewrite(source, NAME, training=training, any_batch=False).program.replace(
        "torch.float32", str(dtype)
    )
    x, found = torch.randn(BATCH_FIRST, dtype=dtype), []
    for each in (source, text):
        made = instance(each, training, dtype)
        with torch.no_grad():
            for weight in made.parameters():  # around 1 the gates would be closed or open
                weight.mul_(0.3)
        given = x.clone().requires_grad_()
        results = made(given)
        total = sum(
            r.square().sum() for r in (results if isinstance(results, tuple) else (results,))
        )
        total.backward()
        found.append([given.grad, *(p.grad for p in made.parameters() if p.grad is not None)])
    slack = 1e-9 if dtype == torch.float64 else 2e-4
    torch.testing.assert_close(found[1], found[0], rtol=slack, atol=slack)


def test_results_lie_and_live_like_those_of_the_loop() -> None:
    for case in (
        "gru",
        "lstm",
        "all states and the last",
        "a layer of the state, of which the last is read",
    ):
        source = source_of(LOOPS[case])
        x = torch.randn(BATCH_FIRST)
        before, after = (
            instance(text, None, torch.float32)(x)
            for text in (source, rewrite(source, NAME, any_batch=False).program)
        )
        pairs = zip(*(r if isinstance(r, tuple) else (r,) for r in (before, after)), strict=True)
        assert all(one.stride() == other.stride() for one, other in pairs), case
        several = after if isinstance(after, tuple) else (after,)
        assert len({r.untyped_storage().data_ptr() for r in several}) == len(several), case


# --- near misses -----------------------------------------------------------------------------

NEAR = {
    "the output is the next input": loop("h = self.square(h, x[:, t, :1] * h)", start=ZEROS),
    "a mask on the state": loop("h = torch.where(x[:, t, :1] > 0, self.gru(x[:, t], h), h)"),
    "attention over the state": loop("h = self.gru(x[:, t] * h.sum(1, keepdim=True), h)"),
    "the other one's state": loop("h, c = self.gru(x[:, t], c), self.gru(x[:, t], h)"),
    "states exchanged": loop("c, h = self.lstm(x[:, t], (h, c))"),
    "all memory of an LSTM": loop(f"{LSTM}\nout.append(c)"),
    "a layer of the memory": loop(f"{LSTM}\nout.append(self.head(c))"),
    "a sum over the batch": loop(f"{GRU}\nout.append(h - h.mean())"),
    "the state of the step before": loop(f"g = h\n{GRU}\nout.append(h - g)"),
    "a state that is scaled": loop("h = self.gru(x[:, t], 0.5 * h)"),
    "weights scaled by the step": loop(
        "h = torch.gru_cell(x[:, t], h, self.gru.weight_ih * (t + 1), self.gru.weight_hh)"
    ),
    "another cell in one step": loop("h = (self.gru if t != 3 else self.bare)(x[:, t], h)"),
    "weights that the state scales": loop(
        "h = torch.gru_cell(x[:, t], h, self.gru.weight_ih * h.sum(), self.gru.weight_hh)"
    ),
    "one bias alone": loop(
        "h = torch.gru_cell(x[:, t], h, self.gru.weight_ih, self.gru.weight_hh, self.gru.bias_ih)"
    ),
    "dropout between": loop(f"{GRU}\nh = F.dropout(h, 0.5, True)"),
    "three steps": loop(head="for t in range(3):"),
}


@pytest.mark.parametrize("case", NEAR)
def test_what_is_no_layer_is_left_alone(case: str) -> None:
    assert sites(source_of(NEAR[case]), NAME, training=None) == []


def test_dropout_of_a_layer_in_between_is_a_layer_in_evaluation_alone() -> None:
    source = source_of(loop(f"{GRU}\nc = self.second(self.drop(h), c)\nout.append(c)"))
    assert sites(source, NAME, training=True) == []
    assert len(sites(source, NAME, training=False)) == 1


def test_on_a_gpu_float32_is_left_to_the_cell_and_sixteen_bits_are_not() -> None:
    def found(source: str) -> int:
        opened = EngineSession(program(source), workload(), "cuda", [skill(NAME)])
        return len(opened.capture().sites)

    assert found(source_of(LOOPS["gru"])) == 0
    half = module(
        LOOPS["gru"],
        f"{init_of(LOOPS['gru'])}\nself.to(torch.bfloat16)",
        f"torch.randn{BATCH_FIRST}.bfloat16()",
    )
    assert found(half) == 1
    assert sites(half, NAME) == []


def test_a_cell_that_became_another_takes_the_persons_path() -> None:
    text = rewrite(source_of(LOOPS["rnn"]), NAME).program
    x = torch.randn(BATCH_FIRST)
    for change in (
        lambda made: setattr(made.rnn, "nonlinearity", "relu"),
        lambda made: setattr(made, "rnn", torch.nn.RNNCell(6, 8, bias=False)),
        lambda made: setattr(
            made, "rnn", torch.nn.RNNCell(6, 8, dtype=torch.float32).requires_grad_(False)
        ),
        lambda made: made.rnn.register_forward_hook(lambda *args: args[-1] * 2),
    ):
        made = instance(text, None, torch.float32)
        change(made)
        torch.testing.assert_close(made(x), made._forward_eager(x))


def test_vmap_takes_the_persons_path() -> None:
    made = instance(rewrite(source_of(LOOPS["gru"]), NAME).program, None, torch.float32)
    x = torch.randn(2, *BATCH_FIRST)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # vmap's own, about speed
        torch.testing.assert_close(torch.vmap(made)(x), torch.stack([made(each) for each in x]))


def test_a_loop_whose_memory_nobody_reads_at_last_is_whole() -> None:
    (found,) = cell_loops(session(source_of(LOOPS["lstm"])).graph)
    assert found.loop.length == 7 and found.dim == 1
