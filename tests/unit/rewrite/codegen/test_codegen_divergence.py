"""Divergences of distributions that nearly agree, where tl.exp is off as on a GPU: all results one
way."""

import pytest
from codegen_helpers import ROOT, Child, program, rewritten
from training_helpers import agrees as trained

from kernel_lsp.records import Program, Skill, Step, TargetKind, Workload, WorkloadOrigin

pytestmark = pytest.mark.torch
pytest.importorskip("torch")
pytest.importorskip("triton")

AS_ON_A_GPU = """
import numpy
from triton.runtime import interpreter


def exp2_of_a_rounded_product(self, arg):
    with numpy.errstate(all="ignore"):
        power = (arg.data * numpy.float32(1.4426950408889634)).astype(numpy.float64)
        value = numpy.exp2(power) * (1 - 2.0**-22)
    return interpreter.TensorHandle(value.astype(arg.data.dtype), arg.dtype.scalar)


interpreter.InterpreterBuilder.create_exp = exp2_of_a_rounded_product
"""
STUDENT = "torch.manual_seed(1) and torch.randn({size})"
NEAR = f"({STUDENT}) + 3e-3 * torch.randn({{size}})"
LOGITS, TEACHER = f"{STUDENT}, {NEAR}", f"{STUDENT}, torch.softmax({NEAR}, -1)"
NOISE = 4e-3
"""Of a divergence of 5e-6: a unit in the last place of a row's logarithm, averaged over the
rows."""


@pytest.fixture(scope="module")
def gpu_like():
    child = Child("run")
    yield child
    child.close()


def fused(source):
    """Row by row where that is a step of its own, then the largest fusion."""
    from kernel_lsp.rewrite.engine import EngineSession

    skills = [
        Skill(name=name, description="", scope="graph", tags=(), version=1, body="",
              path=str(ROOT / "skills" / name), executable=True)
        for name in ("total-by-rows", "fused-reduction")
    ]  # fmt: skip
    target = Program(source=source, entry="Model", kind=TargetKind.MODULE)
    opened = EngineSession(
        target, Workload(name="test", origin=WorkloadOrigin.GET_INPUTS), "cpu", skills
    )
    first = [site for site in opened.look([]) if site.skill == "total-by-rows"]
    steps = [Step(skill=site.skill, site=site.site, parameters={}) for site in first]
    last = max(
        (s for s in opened.look(steps) if s.skill != "total-by-rows"), key=lambda s: len(s.site)
    )
    steps.append(Step(skill=last.skill, site=last.site, parameters={}))
    return opened.propose(steps).candidate.program


DIVERGENCES = [
    ("F.kl_div(F.log_softmax(x, -1), F.softmax(y, -1), reduction='batchmean')", LOGITS),
    ("F.kl_div(F.log_softmax(x, -1), y, reduction='batchmean')", TEACHER),
    ("F.kl_div(F.log_softmax(x * 2.0, -1), F.softmax(y * 2.0, -1), reduction='sum')", LOGITS),
    ("(F.softmax(y, -1) * (F.log_softmax(y, -1) - F.log_softmax(x, -1))).sum(-1).mean()", LOGITS),
    ("(F.softmax(y, -1) * (F.softmax(y, -1).log() - F.log_softmax(x, -1))).sum(-1).mean()", LOGITS),
    ("(y * (y.log() - F.log_softmax(x, -1))).sum(-1).mean()", TEACHER),
]


@pytest.mark.parametrize("size", ["96, 100", "300, 33"])
@pytest.mark.parametrize("expression, inputs", DIVERGENCES)
def test_a_divergence_of_nearly_equal_distributions_keeps_its_digits(
    gpu_like, expression, inputs, size
):
    source = program(expression, inputs.format(size=size))
    found = gpu_like.ask(before=source, after=AS_ON_A_GPU + fused(source))
    assert not found["fell_back"] and all(found["same_kind"])
    assert found["ours"][0] <= 2 * found["eager"][0] + NOISE


def test_the_exponential_of_triton_would_not_do(gpu_like):
    """The emulation is as far off as the device."""
    source = program(*(part.format(size="96, 100") for part in DIVERGENCES[1]))
    after = fused(source)
    assert "_expf(shifted)" in after
    found = gpu_like.ask(
        before=source, after=AS_ON_A_GPU + after.replace("_expf(shifted)", "tl.exp(shifted)")
    )
    assert found["ours"][0] > 0.04


@pytest.mark.parametrize(
    "special", ["float('-inf')", "float('nan')", "float('inf')", "-1e30", "1e30"]
)
@pytest.mark.parametrize("expression", [DIVERGENCES[0][0], DIVERGENCES[3][0]])
@pytest.mark.parametrize("side", ["x", "y"])
def test_special_logits_give_what_eager_gives(interpreter, expression, special, side):
    """By element, so that one row does not hide the others."""
    expression = expression.replace(".mean()", "").replace(
        "reduction='batchmean'", "reduction='sum'"
    )
    touched = f"{side}.index_fill(1, torch.tensor([3]), {special})"
    source = program(expression.replace(f"({side},", f"({touched},"), LOGITS.format(size="5, 40"))
    found = interpreter.ask(before=source, after=fused(source))
    assert all(found["same_kind"])


def test_probabilities_that_are_written_use_the_hardware():
    source = program("torch.log_softmax(x * 0.5, -1) + y", LOGITS.format(size="5, 40"))
    assert "_expf" not in rewritten(source, "fused-row-softmax")


def test_long_rows_walk_block_by_block(gpu_like):
    """The logarithms, of 10, have longer last places."""
    source = program(DIVERGENCES[5][0], TEACHER.format(size="24, 20000"))
    after = fused(source)
    assert "_expf(lane_max" in after
    found = gpu_like.ask(before=source, after=AS_ON_A_GPU + after)
    assert found["ours"][0] <= 2 * found["eager"][0] + 0.015


def test_they_compile(compiler):
    source = program(DIVERGENCES[0][0], "torch.randn(4096, 1000), torch.randn(4096, 1000)")
    assert all(kernel["spill_bytes"] == 0 for kernel in compiler.ask(after=fused(source)))


@pytest.mark.parametrize(
    "expression",
    [
        "(torch.log_softmax(h, -1) * y).sum(-1)",
        "(torch.softmax(h, -1) * torch.log_softmax(h, -1)).sum(-1)",
    ],
)
def test_they_train(trainer, expression):
    source = program(
        f"(lambda h: {expression})(x * self.weight)", "torch.randn(5, 40), torch.rand(5, 40)",
        init="self.weight = nn.Parameter(torch.rand(40))",
    )  # fmt: skip
    assert "_expf(" in trained(trainer, source, "fused-row-softmax")
