"""Why nothing is offered: near misses of the engine, with their places, shares and roofs."""

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rewrite_helpers import SKILLS, module, program, skill, workload

from kernel_lsp import process
from kernel_lsp.errors import CaptureError
from kernel_lsp.pipeline.places import locate_error, place_misses
from kernel_lsp.pipeline.prepare import PreparedJob, prepare
from kernel_lsp.presenter.near_misses import lines
from kernel_lsp.records import Explained, Job, NearMiss, Outcome, RoofKind
from kernel_lsp.rewrite.client import Engine
from kernel_lsp.rewrite.engine import EngineSession
from kernel_lsp.rewrite.kernels.session import KernelSession

pytestmark = pytest.mark.torch

NAMES = [
    p.parent.name for p in SKILLS.glob("*/rewrite.py") if not p.parent.name.startswith("triton-")
]
HEADS = "torch.randn(4, 8, 512, 64)"
QKV = ", ".join([HEADS] * 3)
ATTENTION = """
w = torch.softmax(q @ k.transpose(-2, -1) / 8.0, -1)
w = F.dropout(w, 0.1, self.training)
return w @ v
"""
BIG = "torch.randn(4096, 4096)"


def of(
    forward: str,
    arguments: str,
    inputs: str,
    init: str = "pass",
    training: bool | None = None,
    **how: Any,
) -> Explained:
    source = module(forward, init, inputs).replace(
        "def forward(self, x)", f"def forward(self, {arguments})"
    )
    names = how.get("skills", NAMES)
    device = how.get("device", "cuda")
    session = EngineSession(
        program(source), workload(training), device, [skill(name) for name in names]
    )
    session.capture()
    found = session.explain()
    assert not session.notes, session.notes
    return found


def by(found: Explained, name: str) -> NearMiss:
    """The one of this skill."""
    (miss,) = [miss for miss in found.misses if miss.skill == name]
    return miss


# --- attention ---------------------------------------------------------------------------


def test_attention_with_a_dropout_in_training_names_it_and_the_librarys_own() -> None:
    miss = by(of(ATTENTION, "q, k, v", QKV, training=True), "flash-attention")
    assert miss.missing == "a dropout of 0.1 draws random numbers behind softmax"
    assert "dropout_p=0.1" in miss.remedy
    assert miss.op == "softmax" and miss.code.startswith("w = torch.softmax(") and miss.line == 13
    assert miss.share > 0.9  # the products too are what it would have taken


def test_attention_without_a_dropout_is_no_miss() -> None:
    for forward, training in ((ATTENTION, False), (PLAIN, False), (PLAIN, None)):
        found = of(forward, "q, k, v", QKV, training=training)
        assert "flash-attention" not in {miss.skill for miss in found.misses}


PLAIN = ATTENTION.replace("0.1", "0.0")
WIDE, DOUBLE = QKV.replace("64)", "256)"), QKV.replace("64)", "64).double()")
WAY = "w = torch.softmax({scores}, -1)\n{weights}\nreturn {result}"
OBSTACLES = [
    (f"{PLAIN.strip()}, w", QKV, "the weights are returned"),
    (PLAIN, WIDE, "heads of 256 are larger than a tile of torch.float32 may be (128)"),
    (PLAIN, DOUBLE, "no kernel computes in torch.float64"),
    (
        WAY.format(scores="torch.cummax(q @ k.mT, -1)[0]", weights="", result="w @ v"), QKV,
        "cummax between the first product and softmax has no kernel",
    ),
    (
        WAY.format(scores="q @ k.mT", weights="w = torch.sort(w)[0]", result="w @ v"), QKV,
        "sort stands between softmax and the second product",
    ),
    (
        WAY.format(scores="s", weights="", result="w @ v + s.amax()").replace("w =", "s = q @ k.mT\nw =", 1),
        QKV, "several operations read the scores (amax, softmax)",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("forward", "inputs", "missing"), OBSTACLES)
def test_what_stands_in_the_way_of_attention(forward: str, inputs: str, missing: str) -> None:
    assert by(of(forward, "q, k, v", inputs), "flash-attention").missing.startswith(missing)


def test_a_classifiers_softmax_is_no_attention() -> None:
    init = "self.a = nn.Linear(4096, 64)\nself.b = nn.Linear(64, 4096)"
    found = of("return self.b(torch.softmax(self.a(x), -1))", "x", BIG, init)
    assert "flash-attention" not in {miss.skill for miss in found.misses}


# --- chains, reductions, norms -----------------------------------------------------------


def test_a_chain_in_double_is_one_miss_with_the_way_out() -> None:
    found = of(
        "return torch.relu(x) * 2 + 1", "x", BIG.replace("4096)", "4096, dtype=torch.float64)")
    )
    (miss,) = found.misses
    assert (miss.skill, miss.missing) == ("fused-pointwise", "no kernel computes in torch.float64")
    assert "float32" in miss.remedy and miss.share == pytest.approx(1.0) and miss.places == 1


def test_a_dropout_in_training_keeps_a_chain_apart() -> None:
    forward = "return F.dropout(torch.relu(x) * 2, 1.0, self.training) + 1"
    for inputs in (BIG, f"{BIG[:-1]}, requires_grad=True)"):
        miss = by(of(forward, "x", inputs), "fused-pointwise")
        assert "a dropout of 1.0 draws random numbers" in miss.missing and miss.op == "dropout"
        assert "workload eval" in miss.remedy and miss.share == pytest.approx(0.25)
    assert of(forward, "x", BIG, training=False).misses == ()


@pytest.mark.parametrize(
    ("forward", "inputs", "name", "missing", "remedy"),
    [
        (
            "return (x * x).sum((0, 2))", "torch.randn(512, 64, 512)", "fused-reduction",
            "reduced dimensions are not adjacent", "one run of dimensions after the other",
        ),
        ("return F.softmax(x * 2, -1)", BIG[:-1] + ").double()", "fused-row-softmax", "float64", "float32"),
        ("return F.layer_norm(x, (4096,))", BIG[:-1] + ").double()", "fused-norm", "float64", "float32"),
        ("return F.mse_loss(x, x * 2)", BIG[:-1] + ").double()", "fused-loss", "float64", "float32"),
        ("return tuple(x.t().max(1))", BIG, "max-and-place", "not contiguous", ""),
        ("return torch.norm(x * 2, "
         "p=3, dim=1)", BIG, "fused-reduction", "only 1-, 2- and maximum norms", ""),
    ],
)  # fmt: skip
def test_reductions_say_what_they_lack(
    forward: str, inputs: str, name: str, missing: str, remedy: str
) -> None:
    miss = by(of(forward, "x", inputs), name)
    assert missing in miss.missing and remedy in miss.remedy


def test_a_maximum_with_its_place_is_no_near_miss_of_reductions() -> None:
    assert of("return tuple(x.max(1))", "x", BIG).misses == ()


def test_running_statistics_are_named_in_training() -> None:
    init = "self.norm = nn.InstanceNorm2d(64, track_running_stats=True)"
    found = of("return self.norm(x)", "x", "torch.randn(8, 64, 56, 56)", init, training=True)
    miss = by(found, "fused-norm")
    assert (
        miss.missing == "running statistics are an effect"
        and "track_running_stats=False" in miss.remedy
    )


# --- loops over time ---------------------------------------------------------------------

STEPS = "h = torch.zeros_like(x[0])\nfor t in range(16):\n    h = {}\nreturn h"
SEQUENCE = "torch.randn(16, 64, 256)"


DRAWS, BY_ELEMENT = "each step draws random numbers", "and the kernel goes element by element"


@pytest.mark.parametrize(
    ("step", "inputs", "missing", "remedy"),
    [
        ("F.dropout(0.9 * h + x[t], 0.1, True)", SEQUENCE, f"{DRAWS} (dropout)", "in front of it"),
        (
            "0.9 * h + torch.randn_like(x[t]) * x[t]",
            SEQUENCE,
            f"{DRAWS} (randn_like)",
            "in front of it",
        ),
        (
            "0.9 * h + torch.softmax(x[t] * h, -1)",
            SEQUENCE,
            f"each step computes softmax, {BY_ELEMENT}",
            "",
        ),
        (
            "0.9 * h + x[t] * h.mean(1, True)",
            SEQUENCE,
            f"each step computes mean, {BY_ELEMENT}",
            "",
        ),
        (
            "0.9 * h + x[t]",
            f"{SEQUENCE}.double()",
            "no kernel computes in torch.float64",
            "float32",
        ),
    ],
)
def test_what_keeps_a_loop_from_one_kernel(
    step: str, inputs: str, missing: str, remedy: str
) -> None:
    miss = by(of(STEPS.format(step), "x", inputs, training=False), "fused-recurrence")
    assert miss.missing == missing and remedy in miss.remedy
    assert (
        miss.line is not None
        and miss.code.startswith("h = ")
        and miss.places == 1
        and miss.share > 0.8
    )


def test_loops_that_are_one_kernel_and_slices_that_know_nothing_of_each_other_are_no_misses() -> (
    None
):
    apart = "return torch.stack([F.dropout(x[t], 0.1) for t in range(16)])"
    for forward in (STEPS.format("0.9 * h + x[t]"), apart):
        found = of(forward, "x", SEQUENCE, training=False)
        assert "fused-recurrence" not in {miss.skill for miss in found.misses}


# --- training, proofs, libraries ---------------------------------------------------------


def test_a_kernel_without_a_backward_says_so_where_gradients_are_recorded() -> None:
    init = "self.layer = nn.Linear(4096, 4096)"
    miss = by(of("return self.layer(x)", "x", BIG, init, training=True), "fused-matmul")
    assert "no backward" in miss.missing and "workload eval" in miss.remedy
    assert not of(
        "return self.layer(x)", "x", BIG, init, training=False
    ).misses  # it is a site there


@pytest.mark.parametrize(
    ("forward", "inputs", "missing"),
    [
        ("return q @ k", f"{BIG}.double(), {BIG}.double()", "no kernel computes in torch.float64"),
        (
            "return q @ k", "torch.randn(8, 16, 256, 256), torch.randn(16, 256, 256)",
            "batch dimensions that are broadcast have no kernel ([8, 16, 256, 256] by [16, "
            "256, 256])",
        ),
        ("return q @ k", f"{BIG}, torch.randn(4096)", "a vector times a matrix moves the "
                                                      "matrix once"),
        ("return torch.addmm(q, q, k, beta=2)", f"{BIG}, {BIG}", "addmm with factors of its own"),
    ],
)  # fmt: skip
def test_products_of_another_form(forward: str, inputs: str, missing: str) -> None:
    assert by(of(forward, "q, k", inputs), "fused-matmul").missing.startswith(missing)
    assert not [miss for miss in of(forward, "q, k", inputs, device="cpu").misses if miss.skill]


def test_convolutions_of_another_dtype() -> None:
    init = "self.conv = nn.Conv2d(64, 64, 3).double()"
    found = of("return self.conv(x)", "x", "torch.randn(8, 64, 56, 56).double()", init)
    miss = by(found, "fused-conv")
    assert miss.missing == "no kernel computes in torch.float64"


# --- what no skill speaks of -------------------------------------------------------------


def test_an_operation_without_a_kernel_is_named() -> None:
    (miss,) = of("return torch.sort(x)[0]", "x", BIG).misses
    assert (miss.skill, miss.missing, miss.roof) == ("", "no skill has a kernel for sort", None)


def test_an_operation_at_the_memorys_roof_says_so_with_numbers() -> None:
    found = of("return torch.relu(x)", "x", BIG)
    (miss,) = found.misses
    assert miss.skill == "" and miss.roof is not None and miss.roof == found.roof
    assert miss.roof.kind is RoofKind.MEMORY and miss.roof.bytes == 2 * 4 * 4096**2
    assert miss.roof.least_s == pytest.approx(miss.roof.bytes / miss.roof.bytes_per_s)
    assert miss.roof.least_s <= miss.roof.taken_s


def test_a_product_at_the_librarys_rate_is_bound_by_arithmetic() -> None:
    init = "self.layer = nn.Linear(4096, 4096).bfloat16()"
    found = of("return self.layer(x)", "x", f"{BIG}.bfloat16()", init)
    (miss,) = found.misses
    assert miss.roof is not None and miss.roof.kind is RoofKind.ARITHMETIC
    assert miss.roof.flops == 2 * 4096**3 and miss.share == pytest.approx(1.0)


def test_little_tensors_are_launches() -> None:
    found = of("return torch.relu(x)", "x", "torch.randn(8)", skills=["fused-pointwise"])
    assert found.roof is not None and found.roof.kind is RoofKind.LAUNCH


def test_an_expanded_tensor_moves_what_lies_in_memory() -> None:
    found = of("return torch.relu(x.expand(4096, 4096))", "x", "torch.randn(4096, 1)", skills=[])
    assert found.roof is not None and found.misses[0].roof is not None
    assert found.misses[0].roof.bytes == 4 * (4096 + 4096**2)


@pytest.mark.parametrize(
    ("forward", "inputs", "moved"),
    [
        ("return torch.relu(x[:8])", BIG, 2 * 8 * 4096),  # what is sliced away is not read
        ("return torch.relu(x[:8]) + torch.relu(x[8:16])", BIG, 3 * 8 * 4096),
        ("return torch.relu(x.t()).t()", BIG, 2 * 4096**2),
        ("return torch.relu(x), torch.sigmoid(x)", BIG, 3 * 4096**2),  # read once
        ("return torch.sigmoid(F.dropout(torch.relu(x), 0.5, False))", BIG, 2 * 4096**2),
        ("return torch.embedding(x, torch.arange(16))", BIG, 2 * 16 * 4096),
    ],
)
def test_a_call_moves_what_it_reads_and_returns(forward: str, inputs: str, moved: int) -> None:
    found = of(forward, "x", inputs, skills=[]).roof
    assert found is not None and found.bytes == pytest.approx(4 * moved, abs=256)  # and 16 indices
    assert found.kind is RoofKind.LAUNCH or found.least_s <= found.taken_s * 1.01


def test_a_program_that_runs_nothing_has_nothing_to_explain() -> None:
    assert of("return x.view(-1)", "x", BIG, skills=[]) == Explained()


# --- the collector -----------------------------------------------------------------------


def test_the_same_reason_in_twelve_layers_is_one_line() -> None:
    layers = "\n".join([ATTENTION.replace("return w @ v", "v = w @ v").strip()] * 12)
    found = of(f"{layers}\nreturn v", "q, k, v", QKV, training=True, skills=["flash-attention"])
    miss = by(found, "flash-attention")
    assert miss.places == 12 and miss.line == 13 and miss.share == pytest.approx(1.0, abs=0.05)


def test_few_are_told_and_the_loudest_first() -> None:
    ops = ["sort", "cummax", "msort", "lgamma", "digamma"]
    calls = "\n".join(
        f"y{i} = torch.{op}({'x' if op != 'cummax' else 'x, 0'})"
        + ("[0]" if op in ("sort", "cummax") else "")
        for i, op in enumerate(ops)
    )
    found = of(f"{calls}\nreturn {', '.join(f'y{i}' for i in range(5))}", "x", BIG, skills=[])
    shares = [miss.share for miss in found.misses]
    assert len(shares) == 3 and shares == sorted(shares, reverse=True)


def test_what_a_site_covers_is_not_said_to_be_weak() -> None:
    found = of("return torch.relu(x) * 2 + 1", "x", BIG)
    assert found.misses == () and found.roof is not None and found.roof.kind is RoofKind.NONE


def test_a_skill_that_cannot_explain_itself_hides_nothing(tmp_path: Path) -> None:
    (tmp_path / "rewrite.py").write_text(
        "def match(graph):\n    return []\ndef misses(graph):\n    raise KeyError('oops')\n"
    )
    broken = replace(skill("fused-norm"), name="broken-skill", path=str(tmp_path))
    source = module("return torch.relu(x) * 2 + 1", inputs=BIG[:-1] + ", dtype=torch.float64)")
    session = EngineSession(program(source), workload(), "cuda", [broken, skill("fused-pointwise")])
    session.capture()
    assert [miss.skill for miss in session.explain().misses] == ["fused-pointwise"]
    assert any("broken-skill" in note and "oops" in note for note in session.notes)


def test_a_proof_that_fails_is_told_where_it_is_the_only_one(tmp_path: Path) -> None:
    claims = "proof('x is positive', False, 'x may be anything')"
    text = """
from kernel_lsp.rewrite.skill import Match, aten, is_op, proof

parameters = {{}}


def match(graph):
    return [Match(nodes=(n,), label=n.name, summary="", benefit={benefit}) for n in graph.nodes]


def preconditions(graph, match):
    return [{claims}]
"""

    def told(claims: str, benefit: float) -> list[NearMiss]:
        (tmp_path / "rewrite.py").write_text(text.format(claims=claims, benefit=benefit))
        own = replace(skill("fused-norm"), name="own", path=str(tmp_path))
        session = EngineSession(
            program(module("return torch.abs(x)", inputs=BIG)), workload(), "cuda", [own]
        )
        session.capture()
        return [miss for miss in session.explain().misses if miss.skill]

    (miss,) = told(claims, 0.5)
    assert miss.missing == "not proved: x is positive (x may be anything)" and miss.skill == "own"
    assert told(f"{claims}, {claims}", 0.5) == []  # two are missing: it was not near
    assert told(claims, 0.0) == []  # nothing to gain


async def test_the_engines_process_answers_for_the_program_it_holds(tmp_path: Path) -> None:
    engine = Engine(python=sys.executable, limits=process.Limits(), confinement=None)
    source = module("return torch.sort(x)[0]", inputs="torch.randn(512, 512)")
    try:
        await engine.open(program(source), workload(), "cuda", [skill("fused-pointwise")])
        found = await engine.explain()
    finally:
        await engine.close()
    assert [miss.missing for miss in found.misses] == ["no skill has a kernel for sort"]
    assert found.misses[0].line == 13 and found.roof is not None


# --- Triton kernels ----------------------------------------------------------------------

GOLDEN = SKILLS.parent / "tests" / "cases" / "golden"


def of_kernel(text: str, *names: str, broken: Path | None = None) -> tuple[NearMiss, ...]:
    pytest.importorskip("triton")
    prepared = prepare(Job(text=text, path="/project/model.py", qualname="softmax_kernel"))
    assert isinstance(prepared, PreparedJob), prepared
    skills = [skill(name) for name in names]
    if broken is not None:
        skills.append(replace(skill("triton-hints"), name="broken-skill", path=str(broken)))
    session = KernelSession(prepared.program, prepared.workload, "cuda", skills)
    session.capture()
    return place_misses(session.explain().misses, prepared.program.source, text)


def test_a_kernels_one_precondition_is_told_at_its_definition(tmp_path: Path) -> None:
    text = (GOLDEN / "triton-online.in.py").read_text()
    (tmp_path / "rewrite.py").write_text("def match(kernel):\n    raise KeyError('oops')\n")
    (miss,) = of_kernel(text, "triton-whole-row", "triton-hints", broken=tmp_path)
    assert (miss.skill, miss.op, miss.share) == ("triton-whole-row", "softmax_kernel", 0.0)
    assert miss.missing.startswith("not proved: observed rows fit (")
    line = next(
        at for at, code in enumerate(text.split("\n"), 1) if code.startswith("def softmax_kernel")
    )
    assert miss.line == line and miss.code.startswith("def softmax_kernel")
    assert (
        "% of the time" not in lines(Outcome(qualname="k", note="n", misses=(miss,)), "model.py")[0]
    )


def test_a_kernel_that_lacks_several_things_is_not_near() -> None:
    text = (GOLDEN / "triton-online.py").read_text()  # three of its preconditions fail
    assert of_kernel(text, "triton-whole-row") == ()


# --- the page ----------------------------------------------------------------------------

PAGE = SKILLS.parent / "docs" / "explanation" / "silence.md"


def printed(text: str, qualname: str) -> str:
    """What `kernel-lsp optimize` prints on a CPU about one target for which nothing can be
    judged."""
    prepared = prepare(Job(text=text, path="example.py", qualname=qualname))
    assert isinstance(prepared, PreparedJob)
    try:
        session = EngineSession(
            prepared.program, prepared.workload, "cpu", [skill(name) for name in NAMES]
        )
    except CaptureError as error:
        return f"{qualname} {locate_error(error, prepared)}"
    assert session.capture().sites == ()
    found = session.explain()
    told = place_misses(found.misses, prepared.program.source, text)
    note = "no skill applies to this program"
    outcome = Outcome(qualname=qualname, note=note, misses=told, roof=found.roof)
    return "\n".join([qualname, note, *lines(outcome, "example.py")])


def test_the_page_shows_what_is_printed() -> None:
    kinds = ("python", "text")
    text, shown = (
        re.search(rf"^```{kind}\n(.*?)^```", PAGE.read_text(), re.M | re.S) for kind in kinds
    )
    assert text is not None and shown is not None
    names = re.findall(r"^class (\w+)", text[1], re.M)
    assert len(names) == 5
    expected = "\n".join(printed(text[1], name) for name in names)
    assert shown[1].split("\n", 1)[1].split() == expected.split(), expected
