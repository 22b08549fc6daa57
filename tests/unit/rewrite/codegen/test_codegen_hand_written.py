"""Softmax, norms and shares of a sum as people write them out: one kernel for each, with eager's
values."""

import re

import pytest
from codegen_helpers import as_close_as_eager, for_values, matches, program, rewritten
from rewrite_helpers import session

from kernel_lsp.records import Step

pytestmark = pytest.mark.torch
pytest.importorskip("torch")
pytest.importorskip("triton")

SKILLS = ("fused-norm", "fused-row-softmax", "fused-reduction")
ROWS = "torch.randn(37, 70)"
WRITTEN = {
    "softmax": [
        "e = torch.exp(x - x.amax(-1, keepdim=True)); return e / e.sum(-1, keepdim=True)",
        "e = torch.exp(x - x.amax(-1)[:, None]); return e / e.sum(-1)[:, None]",
        "e = torch.exp(x - x.amax(-1, keepdim=True)); return e * (1.0 / e.sum(-1, keepdim=True))",
        "e = torch.exp(x - x.amax(-1, keepdim=True)); return e / (e.sum(-1, keepdim=True) + 1e-6)",
        "e = torch.exp(x); return e / e.sum(-1, keepdim=True)",
        "return torch.exp(x) / torch.sum(torch.exp(x), dim=-1, keepdim=True)",
        "return torch.exp(x - torch.logsumexp(x, dim=-1, keepdim=True))",
        "s = torch.sigmoid(x); return s / s.sum(-1, keepdim=True)",
    ],
    "logarithms": [
        "m = x.amax(-1, keepdim=True); return m + torch.log(torch.exp(x - m).sum(-1, "
        "keepdim=True))",
        "return torch.log(torch.exp(x).sum(-1))",
        "return torch.log(torch.softmax(x, dim=-1))",
        "return x - torch.logsumexp(x, -1, keepdim=True)",
        "z = x - x.amax(-1, keepdim=True); return z - torch.log(torch.exp(z).sum(-1, "
        "keepdim=True))",
        "return torch.log(torch.exp(x) / torch.exp(x).sum(-1, keepdim=True))",
        "p = torch.softmax(x, -1); return -(p * torch.log(p)).sum(-1)",
    ],
    "norms": [
        "return x / x.norm(dim=-1).unsqueeze(-1)",
        "return x / x.norm(dim=-1).view(-1, 1)",
        "return x / (x.norm(p=2, dim=-1, keepdim=True) + 1e-8)",
        "return x / torch.sqrt((x * x).sum(-1, keepdim=True))",
        "return x / x.pow(2).sum(1, keepdim=True).sqrt().clamp(min=1e-12)",
        "return x / torch.linalg.norm(x, dim=-1, keepdim=True)",
        "return x / torch.linalg.norm(x, 1, dim=0, keepdim=True)",
        "return F.normalize(x, dim=-1)",
    ],
    "shares": [
        "s = x.abs(); return s / s.sum(0, keepdim=True)",
        "s = x.abs(); return s / s.sum(1)[:, None]",
        "s = x.abs(); return s / s.sum(1).view(-1, 1)",
        "s = x.abs(); return s / s.sum(1).reshape(x.shape[0], 1)",
        "lo, hi = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True); return (x - lo) / (hi - lo "
        "+ 1e-6)",
    ],
    "root mean square": [
        "return x / torch.sqrt(torch.mean(x ** 2, dim=-1, keepdim=True) + 1e-6)",
        "return x / (x * x).mean(dim=-1, keepdim=True).add(1e-6).sqrt()",
        "return x * (x.square().mean(-1, keepdim=True) + 1e-6) ** -0.5",
        "return x / (x.norm(dim=-1, keepdim=True) * x.shape[-1] ** -0.5 + 1e-6)",
        "return x * torch.rsqrt((x ** 2).sum(-1, keepdim=True) / x.shape[-1] + 1e-6)",
        "return x * torch.rsqrt(x.pow(2).mean(-1) + 1e-6).view(-1, 1)",
    ],
    "standardized": [
        "v, m = torch.var_mean(x, -1, keepdim=True, correction=0); return (x - m) * torch.rsqrt(v "
        "+ 1e-5)",
        "v, m = torch.std_mean(x, dim=-1, keepdim=True); return (x - m) / (v + 1e-5)",
        "m = x.mean(-1, keepdim=True); v = (x - m).square().mean(-1, keepdim=True); "
        "return (x - m) / torch.sqrt(v + 1e-5)",
    ],
}


def written(text, inputs=ROWS):
    """A module whose forward has these statements."""
    body = "\n".join(f"        {line.strip()}" for line in text.split(";"))
    return re.sub(
        r"        return None\n", lambda _: f"{body}\n", program("None", inputs, arguments="x")
    )


def whole(source):
    """The skill that covers every node of the program."""
    for skill in SKILLS:
        opened, found = matches(source, skill)
        if any(
            {node.name for node in opened.graph.nodes} == {n.name for n in m.nodes} for m in found
        ):
            return skill
    raise AssertionError(f"no kernel does all of {[node.name for node in opened.graph.nodes]}")


@pytest.mark.parametrize("text", [text for texts in WRITTEN.values() for text in texts])
def test_all_of_it_is_one_kernel(interpreter, text):
    source = written(text)
    after = rewritten(source, whole(source))
    assert after.count("@triton.jit\ndef _fused") == 1
    as_close_as_eager(interpreter, source, after)


@pytest.mark.parametrize(
    "special", ["float('inf')", "float('-inf')", "float('nan')", "100.0", "-200.0"]
)
@pytest.mark.parametrize(
    "text", [*WRITTEN["softmax"][:5], WRITTEN["logarithms"][0], WRITTEN["logarithms"][4]]
)
def test_a_softmax_written_out_keeps_its_own_overflow(interpreter, text, special):
    """exp(100) is infinite in float32, whatever torch.softmax would give."""
    source = written(text, f"{ROWS}.index_fill(0, torch.tensor([5]), {special})")
    found = interpreter.ask(before=source, after=for_values(source, whole(source)))
    assert not found["fell_back"] and all(found["same_kind"])


@pytest.mark.parametrize(
    "text",
    [
        "return x / x.sum(1).view(1, -1)",  # each column by another row's sum
        "return x / torch.linalg.norm(x)",
        "e = torch.exp(x - x.max()); return e / e.sum(-1, keepdim=True)",
        "return x / x.sum(0, keepdim=True).amax(1, keepdim=True)",
    ],
)
def test_near_misses_are_other_kernels(text):
    with pytest.raises(AssertionError, match="no kernel does all"):
        whole(written(text, "torch.randn(37, 37)"))


def test_a_trained_softmax_by_max_is_one_kernel_once_its_indices_are_gone():
    rows = "e = torch.exp(h - h.max(-1, keepdim=True)[0]); return e / e.sum(-1, keepdim=True)"
    init = "self.weight = nn.Parameter(torch.rand(70))"
    source = written(f"h = x * self.weight; {rows}").replace(
        "    def forward", _constructor(init), 1
    )
    opened = session(source, "max-without-indices", "fused-reduction", training=True)
    steps = [Step(skill="max-without-indices", site="max_1", parameters={})]
    sites = [site.site for site in opened.look(steps) if site.skill == "fused-reduction"]
    assert sites == ["mul+amax_default+sub+exp+sum_1+div"]


def _constructor(init):
    return f"    def __init__(self):\n        super().__init__()\n        {init}\n\n    def forward"
