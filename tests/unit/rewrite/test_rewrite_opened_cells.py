"""Recurrent cells opened: the product of all inputs before the loop, the rest as torch computes it
there."""

from collections.abc import Iterator

import pytest
from rewrite_helpers import (
    assert_same,
    instance,
    module,
    on_cpu,
    program,
    rewrite,
    sites,
    skill,
    workload,
)

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from kernel_lsp.records import Step  # noqa: E402
from kernel_lsp.rewrite.engine import EngineSession  # noqa: E402

NAME = "hoist-recurrent-input"
INIT = """
self.gru, self.lstm, self.rnn = nn.GRUCell(6, 8), nn.LSTMCell(6, 8), nn.RNNCell(6, 8)
self.bare, self.relu = nn.GRUCell(6, 8, bias=False), nn.RNNCell(6, 8, nonlinearity="relu", bias=False)
self.second, self.square = nn.GRUCell(8, 8), nn.GRUCell(8, 8)
"""
SHAPE = (3, 7, 6)
EACH, BACKWARD = "for t in range(x.size(1)):", "for t in reversed(range(x.size(1))):"
ZEROS = "h = c = x.new_zeros(x.size(0), 8)"
GRU, LSTM = "h = self.gru(x[:, t], h)", "h, c = self.lstm(x[:, t], (h, c))"


def loop(
    body: str, head: str = EACH, result: str = "torch.stack(out, 1)", start: str = ZEROS
) -> str:
    lines = "\n    ".join(body.split("\n"))
    return f"{start}\nout = []\n{head}\n    {lines}\n    out.append(h)\nreturn {result}"


def source_of(forward: str) -> str:
    return module(forward, INIT, f"torch.randn{SHAPE}")


def for_a_gpu(source: str, training: bool | None = None) -> str:
    """The rewrite for a GPU, with a guard that lets the CPU in."""
    opened = EngineSession(program(source), workload(training), "cuda", [skill(NAME)])
    steps, left = list[Step](), opened.capture().sites
    while left:
        steps.append(Step(skill=NAME, site=left[0].site))
        proposed = opened.propose(steps)
        left = proposed.sites_left
    assert steps and not opened.notes
    return on_cpu(proposed.candidate.program)


def gru_kernel(inputs, states, hx, of_input=None, of_state=None):
    """What torch's kernel computes on a GPU (ATen/native/cuda/RNN.cu)."""
    r, z, n = (inputs + (0 if of_input is None else of_input)).chunk(3, 1)
    hr, hz, hn = (states + (0 if of_state is None else of_state)).chunk(3, 1)
    reset, keep = torch.sigmoid(r + hr), torch.sigmoid(z + hz)
    new = torch.tanh(n + reset * hn)
    return new + keep * (hx - new), torch.cat([reset, keep, new, hx, hn], 1)


def lstm_kernel(inputs, states, cx, of_input=None, of_state=None):
    both = inputs + states
    for bias in (of_input, of_state):
        both = both if bias is None else both + bias
    i, f, g, o = both.chunk(4, 1)
    gates = [torch.sigmoid(i), torch.sigmoid(f), torch.tanh(g), torch.sigmoid(o)]
    cy = gates[1] * cx + gates[0] * gates[2]
    return gates[3] * torch.tanh(cy), cy, torch.cat(gates, 1)


@pytest.fixture
def kernels() -> Iterator[None]:
    """The two kernels that torch has for GPUs alone."""
    library = torch.library.Library("aten", "IMPL")
    library.impl("_thnn_fused_gru_cell", gru_kernel, "CPU")
    library.impl("_thnn_fused_lstm_cell", lstm_kernel, "CPU")
    yield
    library._destroy()


LOOPS = {
    "gru": loop(GRU),
    "gru without biases": loop("h = self.bare(x[:, t], h)"),
    "lstm": loop(LSTM),
    "lstm, with its last states": loop(LSTM, result="torch.stack(out, 1), h, c"),
    "from the end": loop(LSTM, BACKWARD, "torch.stack(out[::-1], 1)"),
    "rnn": loop("h = self.rnn(x[:, t], h)"),
    "rnn with relu": loop("h = self.relu(x[:, t], h)"),
    "the last state": loop(GRU, result="h"),
    "two upon each other": loop(f"{GRU}\nc = self.second(h, c)", result="torch.stack(out, 1), c"),
    "a mask on the state": loop("h = torch.where(x[:, t, :1] > 0, self.gru(x[:, t], h), h)"),
    "a state that is scaled": loop(GRU.replace(", h)", ", 0.5 * h)")),
    "all memory of an LSTM": loop(LSTM.replace("h, c = ", "c, h = ").replace("(h, c)", "(c, h)")),
}


@pytest.mark.parametrize("case", LOOPS)
def test_products_of_all_inputs_stand_before_a_loop_over_cells(kernels, case: str) -> None:
    source, x = source_of(LOOPS[case]), torch.randn(SHAPE, dtype=torch.float64)
    text = for_a_gpu(source)
    fast = text[text.rindex("return self._forward_eager") :]
    assert "F.linear(x, " in fast and "self.gru(" not in fast
    wide = text.replace("torch.float32", "torch.float64")
    before, after = (instance(each, None, torch.float64) for each in (source, wide))
    after._forward_eager = None
    with torch.no_grad():
        torch.testing.assert_close(after(x), before(x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "case", ["gru", "lstm, with its last states", "rnn", "two upon each other"]
)
def test_gradients_flow_through_opened_cells(kernels, case: str, training: bool) -> None:
    source, x, found = source_of(LOOPS[case]), torch.randn(SHAPE, dtype=torch.float64), []
    text = for_a_gpu(source, training).replace("torch.float32", "torch.float64")
    for each in (source, text):
        made = instance(each, training, torch.float64)
        with torch.no_grad():
            for weight in made.parameters():  # around 1 the gates would be closed or open
                weight.mul_(0.3)
        given = x.clone().requires_grad_()
        results = made(given)
        total = sum(
            r.square().sum() for r in (results if isinstance(results, tuple) else (results,))
        )
        # The kernels' own derivatives need a GPU, those with a graph do not.
        wanted = [given, *made.parameters()]
        found.append(torch.autograd.grad(total, wanted, create_graph=True, allow_unused=True))
    torch.testing.assert_close(found[1], found[0], rtol=1e-9, atol=1e-9)


def test_on_a_cpu_the_cell_of_an_rnn_alone_is_opened() -> None:
    assert sites(source_of(LOOPS["gru"]), NAME) == sites(source_of(LOOPS["lstm"]), NAME) == []
    source = source_of(LOOPS["rnn"])
    assert_same(source, rewrite(source, NAME), torch.randn(SHAPE, dtype=torch.float64))


NEAR = {
    "the output is the next input": loop("h = self.square(h, x[:, t, :1] * h)"),
    "an input that the state scales": loop("h = self.gru(x[:, t] * h.sum(), h)"),
    "weights that the state scales": loop(
        "h = torch.gru_cell(x[:, t], h, self.gru.weight_ih * h.sum(), self.gru.weight_hh)"
    ),
    "one bias alone": loop(
        "h = torch.gru_cell(x[:, t], h, self.gru.weight_ih, self.gru.weight_hh, self.gru.bias_ih)"
    ),
    "another cell in one step": loop("h = (self.gru if t != 3 else self.bare)(x[:, t], h)"),
    "three steps": loop(GRU, "for t in range(3):"),
}


@pytest.mark.parametrize("case", NEAR)
def test_cells_without_a_product_of_all_inputs_stay_closed(case: str) -> None:
    opened = EngineSession(program(source_of(NEAR[case])), workload(), "cuda", [skill(NAME)])
    assert opened.capture().sites == () and not opened.notes


def test_one_loop_of_two_is_opened_alone() -> None:
    both = (
        f"{ZEROS}\nout, back = [], []\n{EACH}\n    {GRU}\n    out.append(h)\n{BACKWARD}\n    "
        "c = self.bare(x[:, t], c)\n    back.append(c)\nreturn torch.stack(out, 1), "
        "torch.stack(back, 1)"
    )
    opened = EngineSession(program(source_of(both)), workload(), "cuda", [skill(NAME)])
    first, second = opened.capture().sites
    for site in (first, second):
        proposed = opened.propose([Step(skill=NAME, site=site.site)])
        assert proposed.candidate.program.count("torch.gru_cell(") == 7
        assert len(proposed.sites_left) == 1


def test_an_rnn_of_another_kind_takes_the_persons_path() -> None:
    made = instance(rewrite(source_of(LOOPS["rnn"]), NAME).program, None, torch.float32)
    made.rnn.nonlinearity = "relu"
    x = torch.randn(SHAPE)
    torch.testing.assert_close(made(x), made._forward_eager(x))
