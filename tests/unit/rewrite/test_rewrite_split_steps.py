"""Scans whose state has a dimension of its own: one kernel, between what is done for all steps at
once."""

import pytest
from rewrite_helpers import module, rewrite, session, sites

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from kernel_lsp.rewrite.codegen.recurrence.split_steps import split, split_of  # noqa: E402
from kernel_lsp.rewrite.loops.unrolled import loops_of  # noqa: E402

NAME = "fused-recurrence"
INIT = """
self.log_a, self.d = nn.Parameter(torch.randn(6, 4)), nn.Parameter(torch.randn(6))
self.head, self.step, self.gate = nn.Linear(6, 5), nn.Linear(6, 6), nn.Linear(6, 8)
self.w = nn.Parameter(torch.randn(4, 4))
"""
SIZES = "torch.randn(3, 7, 6)"
BEFORE = """
delta, both = F.softplus(self.step(x)), self.gate(x)
b, c = both[..., :4], both[..., 4:]
a, u = torch.exp(delta.unsqueeze(-1) * -torch.exp(self.log_a)), x
bu = delta.unsqueeze(-1) * b.unsqueeze(2) * u.unsqueeze(-1)
h = x.new_zeros(x.size(0), 6, 4)
ys = []
""".strip()
EACH = "for t in range(x.size(1)):"
STATE = "h = a[:, t] * h + bu[:, t]"
READ = "(h * c[:, t].unsqueeze(1)).sum(-1)"


def scan(
    *body: str, head: str = EACH, result: str = "torch.stack(ys, 1)", before: str = BEFORE
) -> str:
    lines = "\n    ".join(line for part in body for line in part.split("\n"))
    return f"{before}\n{head}\n    {lines}\nreturn {result}"


def source_of(forward: str, values: str = SIZES, init: str = INIT) -> str:
    return module(forward, init, values)


SCANS = {
    "a product and a sum": scan(STATE, f"ys.append({READ})"),
    "an einsum": scan(STATE, "ys.append(torch.einsum('bdn,bn->bd', h, c[:, t, :]))"),
    "an einsum with spaces": scan(
        STATE, "y = torch.einsum('b d n, b n -> b d', h, c[:, t])\nys.append(y)"
    ),
    "a matrix product": scan(STATE, "ys.append((h @ c[:, t].unsqueeze(-1)).squeeze(-1))"),
    "a skip of the input": scan(STATE, f"ys.append({READ} + self.d * u[:, t])"),
    "a layer behind it": scan(STATE, f"ys.append(self.head({READ}))"),
    "the last state too": scan(STATE, f"ys.append({READ})", result="torch.stack(ys, 1), h"),
    "all states too": scan(
        STATE,
        f"ys.append({READ})\nhs.append(h)",
        before=f"{BEFORE}\nhs = []",
        result="torch.stack(ys, 1), torch.stack(hs, 1)",
    ),
    "the last one alone": scan(STATE, f"y = {READ}", result="y"),
    "decays made in the loop": scan(
        "da = torch.exp(delta[:, t].unsqueeze(-1) * -torch.exp(self.log_a))",
        "db = delta[:, t].unsqueeze(-1) * b[:, t].unsqueeze(1)",
        "h = da * h + db * x[:, t].unsqueeze(-1)",
        f"ys.append({READ})",
    ),
    "from the end": scan(
        STATE,
        f"ys.append({READ})",
        head="for t in reversed(range(x.size(1))):",
        result="torch.stack(ys[::-1], 1)",
    ),
    "stacked in front": scan(STATE, f"ys.append({READ})", result="torch.stack(ys)"),
    "all but the first": scan(STATE, f"ys.append({READ})", head="for t in range(1, x.size(1)):"),
    "written into a tensor": scan(
        STATE,
        f"ys[:, t] = {READ}",
        result="ys",
        before=BEFORE.replace("ys = []", "ys = torch.empty_like(x)"),
    ),
    "a gate of the input in front": scan(
        "h = torch.sigmoid(self.step(x[:, t])).unsqueeze(-1) * h + bu[:, t]", f"ys.append({READ})"
    ),
    "a mean": scan(STATE, "ys.append(h.mean(-1))"),
}


def assert_fused(interpreter, source: str, slack: float = 2e-6) -> str:
    text = rewrite(source, NAME, any_batch=False).program
    found = interpreter.ask(before=source, after=text)
    assert not found["fell_back"] and all(found["same_kind"])
    for ours, eager in zip(found["ours"], found["eager"], strict=True):
        assert ours <= 2 * eager + slack
    return text


@pytest.mark.parametrize("case", SCANS)
def test_a_scan_with_a_dimension_of_states_is_one_kernel_between_others(
    interpreter, case: str
) -> None:
    text = assert_fused(interpreter, source_of(SCANS[case]))
    fast = text[text.rindex("return self._forward_eager") :]
    assert fast.count("recurrence(") == 1 and len(fast.splitlines()) < 40


@pytest.mark.parametrize("values", ["torch.randn(1, 4, 6)", "torch.randn(5, 9, 6)"])
@pytest.mark.parametrize("case", ["a product and a sum", "decays made in the loop"])
def test_other_sizes(interpreter, case: str, values: str) -> None:
    assert_fused(interpreter, source_of(SCANS[case], values))


def test_steps_in_front(interpreter) -> None:
    forward = (
        "h, ys = x.new_zeros(3, 6), []\nfor step in x:\n    h = torch.tanh(0.5 * h + "
        "self.step(step))\n"
        "    ys.append(torch.softmax(self.head(h), dim=-1))\nreturn torch.stack(ys)"
    )
    assert_fused(interpreter, source_of(forward, "torch.randn(7, 3, 6)"))


def test_steps_that_lie_along_different_dimensions(interpreter) -> None:
    forward = (
        scan(STATE, f"ys.append({READ})")
        .replace("bu[:, t]", "bu[t]")
        .replace("c[:, t]", "c[..., t]")
    )
    moved = "bu, c = bu.transpose(0, 1).contiguous(), c.transpose(1, 2).contiguous()\nh = x"
    assert_fused(interpreter, source_of(forward.replace("h = x", moved, 1)))


def test_what_is_left_of_a_step_is_the_states_own_way() -> None:
    graph = session(source_of(SCANS["decays made in the loop"])).graph
    (loop,) = loops_of(graph)
    found = split_of(graph, loop)
    assert found is not None and len(found.core) == 2 and found.dim == 1
    left = split(graph, found)
    assert left is not None and [node.target._opname for node in left.steps[1]] == ["mul", "add"]


NEAR = {
    "the state of the step before": scan("g = h", STATE, "ys.append((h - g).sum(-1))"),
    "a sum over the batch": scan(STATE, "ys.append(h.sum(0))\nh = h + 0 * h.sum(0)"),
    "a product on the state": scan("h = a[:, t] * (h @ self.w) + bu[:, t]", f"ys.append({READ})"),
    "a result that is read at once": scan(
        STATE, f"y = {READ}", "ys.append(y)", "h = h + y.unsqueeze(-1)"
    ),
    "a state that is put off": scan(
        "h = a[:, t] * h + k",
        "k = bu[:, t]",
        f"ys.append({READ})",
        before=f"{BEFORE}\nk = torch.zeros_like(h)",
    ),
    "noise": scan(STATE, "ys.append((h * torch.rand_like(h)).sum(-1))"),
}


@pytest.mark.parametrize("case", NEAR)
def test_what_cannot_be_split_is_left_alone(case: str) -> None:
    assert sites(source_of(NEAR[case]), NAME) == []


def test_a_kernel_without_a_derivative_is_not_for_training() -> None:
    assert sites(source_of(SCANS["a product and a sum"]), NAME, training=True) == []
