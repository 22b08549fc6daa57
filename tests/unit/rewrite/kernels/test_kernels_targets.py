"""A Triton kernel as a target: what is seen and proved of it, what changes, and that it still
computes."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from rewrite_helpers import interpreted, skill

from kernel_lsp import analysis
from kernel_lsp.errors import CaptureError, RewriteError
from kernel_lsp.pipeline.prepare import PreparedJob, apply_candidate, prepare
from kernel_lsp.records import Candidate, Job, Outcome, Step
from kernel_lsp.rewrite.edit import apply_edit
from kernel_lsp.rewrite.kernels.blocks import adjustable
from kernel_lsp.rewrite.kernels.harness import launcher_of, written_arguments
from kernel_lsp.rewrite.kernels.launched import Pointer
from kernel_lsp.rewrite.kernels.session import KernelSession
from kernel_lsp.rewrite.kernels.source import KernelSource

pytestmark = pytest.mark.torch
pytest.importorskip("torch")
pytest.importorskip("triton")

SKILLS = ("block-size", "dot-precision", "grouped-order", "launch-options", "tuned-configs")
GOLDEN = Path(__file__).resolve().parents[3] / "cases" / "golden"
HEAD = "import torch\nimport triton\nimport triton.language as tl\n\n\n"
ADD = """
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, x + tl.load(y_ptr + offsets, mask=mask), mask=mask)


# kernel-lsp: workload x=f32[1000] y=f32[1000]
def add(x, y):
    out = torch.empty_like(x)
    add_kernel[(triton.cdiv(x.numel(), 128),)](x, y, out, x.numel(), BLOCK=128)
    return out
"""


def prepared(text: str, kernel: str) -> PreparedJob:
    made = prepare(Job(text=text, path="/w/kernels.py", qualname=kernel, device="cuda"))
    assert isinstance(made, PreparedJob), made
    return made


def opened(text: str, kernel: str) -> tuple[PreparedJob, KernelSession]:
    one = prepared(text, kernel)
    return one, KernelSession(
        one.program, one.workload, "cuda", [skill(f"triton-{name}") for name in SKILLS]
    )


def test_launches_are_seen_without_a_gpu() -> None:
    _, session = opened(HEAD + ADD, "add_kernel")
    (launch,) = session.kernel.launched
    assert (
        launch.grid == (8,) and launch.constants == {"BLOCK": 128} and launch.arguments["n"] == 1000
    )
    assert launch.arguments["x_ptr"] == Pointer("float32", (1000,), (1,), "x")
    assert launch.arguments["out_ptr"] == Pointer("float32", (1000,), (1,), None)


def test_a_number_in_launch_and_grid_changes_in_both() -> None:
    one, session = opened(HEAD + ADD, "add_kernel")
    step = Step(skill="triton-block-size", site="BLOCK", parameters={"BLOCK": 512})
    made = session.make([step])
    assert made.edit is not None
    text = apply_edit(one.snapshot.text, one.target.span, made.edit)
    assert "triton.cdiv(x.numel(), 512)" in text and "BLOCK=512" in text and "128" not in text
    after = apply_candidate(one, made)
    assert after is not None and after.program.source == made.program


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            "out = torch.empty_like(x)\n",
            "out = torch.empty(x.shape)\n    parts = torch.empty(128)\n",
        ),
        ("(triton.cdiv(x.numel(), 128),)", "(8,)"),
        (
            "+ tl.arange(0, BLOCK)\n",
            "+ tl.arange(0, BLOCK)\n    if BLOCK > 64:\n        offsets += 0\n",
        ),
        ("offsets, x + tl", "offsets, x * BLOCK + tl"),
        ("offsets, x + tl", "offsets, x / BLOCK + tl"),
    ],
    ids=[
        "the number stands elsewhere",
        "the grid does not follow",
        "the size selects code",
        "it scales",
        "it divides",
    ],
)
def test_a_block_size_whose_meaning_is_not_seen_stays(old: str, new: str) -> None:
    assert old in ADD
    _, session = opened(HEAD + ADD.replace(old, new), "add_kernel")
    assert adjustable(session.kernel) == []


def test_without_a_mask_only_divisors_of_the_size_are_tried() -> None:
    text = HEAD + ADD.replace("tl.load(x_ptr + offsets, mask=mask)", "tl.load(x_ptr + offsets)")
    (block,) = adjustable(opened(text, "add_kernel")[1].kernel)
    assert not block.masked and block.choices() == [128, 64, 32, 16]


def test_offsets_that_wrap_around_need_no_mask() -> None:
    text = HEAD + ADD.replace(
        "tl.load(x_ptr + offsets, mask=mask)", "tl.load(x_ptr + inside)"
    ).replace("    mask = offsets < n\n", "    mask = offsets < n\n    inside = offsets % n\n")
    (block,) = adjustable(opened(text, "add_kernel")[1].kernel)
    assert block.masked and 1024 in block.choices()


SUM = """
@triton.jit
def sum_kernel(x_ptr, w_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n, BLOCK):
        inside = start + at < n
        total += tl.load(x_ptr + tl.program_id(0) * n + start + at, mask=inside, other=0.0) * WEIGHT
    tl.store(out_ptr + tl.program_id(0), tl.sum(total))


# kernel-lsp: workload x=f32[8,1000] w=f32[1000]
def sums(x, w):
    out = torch.empty(8)
    BLOCK = min(4096, triton.next_power_of_2(x.shape[1]))
    sum_kernel[(8,)](x, w, out, 1000, BLOCK, num_warps=4 if BLOCK < 2048 else 8, **{})
    return out
"""


def test_a_block_that_the_launcher_computes_changes_at_the_launch() -> None:
    text = HEAD + SUM.replace("WEIGHT", "tl.load(w_ptr + start + at, mask=inside, other=0.0)")
    one, session = opened(text, "sum_kernel")
    assert {site.skill for site in session.capture().sites} >= {
        "triton-block-size",
        "triton-launch-options",
    }
    made = session.make([Step(skill="triton-block-size", site="BLOCK", parameters={"BLOCK": 256})])
    assert made.edit is not None
    assert "(x, w, out, 1000, 256, num_warps" in apply_edit(text, one.target.span, made.edit)


def test_a_block_that_holds_all_of_a_row_stays() -> None:
    """The weights of the first block would be taken for those of all."""
    text = HEAD + SUM.replace("WEIGHT", "tl.load(w_ptr + at, mask=at < n, other=0.0)")
    assert adjustable(opened(text, "sum_kernel")[1].kernel) == []


IN_PLACE = """
@triton.jit
def scale_kernel(x_ptr, n, factor, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    place = x_ptr + offsets
    tl.store(place, tl.load(place, mask=offsets < n) * factor, mask=offsets < n)


# kernel-lsp: workload x=f32[1000]
def scale(x, factor=0.5):
    scale_kernel[(triton.cdiv(x.numel(), 128),)](x, x.numel(), factor, BLOCK=128)
"""


def test_a_kernel_that_works_in_place_is_judged_on_copies() -> None:
    one, session = opened(HEAD + IN_PLACE, "scale_kernel")
    assert one.program.entry == "launch_on_copies" and one.program.launcher == "scale"
    assert launcher_of(one.program.source, one.program.entry) == "scale"
    assert one.program.source.endswith(
        "def launch_on_copies(x, factor=0.5):\n"
        "    x = x.clone()\n"
        "    result = scale(x, factor)\n"
        "    return result, x\n"
    )
    made = session.make([Step(skill="triton-launch-options", site="launch of scale_kernel")])
    assert made.edit is not None
    assert "launch_on_copies" not in apply_edit(one.snapshot.text, one.target.span, made.edit)


@pytest.mark.parametrize(
    ("launcher", "copied"),
    [
        ("def f(x):\n    x = x.view(-1).contiguous()\n    KERNEL(x)", ["x"]),
        (
            "def f(x, out=None):\n    y = torch.empty_like(x) if out is None else out\n    "
            "KERNEL(y)",
            ["out"],
        ),
        ("def f(x, k):\n    x, k = prepared(x, k)\n    KERNEL(k)", ["x", "k"]),
        ("def f(x):\n    out = torch.empty_like(x)\n    KERNEL(out)", []),
        ("def f(x):\n    out = x.clone()\n    KERNEL(out)", []),
        ("def f(x):\n    KERNEL(torch.view_as_real(x))", ["x"]),
    ],
    ids=[
        "a view",
        "one of two",
        "through a function",
        "a fresh one",
        "a copy",
        "a function of torch",
    ],
)
def test_what_a_launcher_writes_is_found_under_other_names(
    launcher: str, copied: list[str]
) -> None:
    kernel = "@triton.jit\ndef kernel(p, n):\n    write(p + n, n)\n"
    helper = "@triton.jit\ndef write(at, value):\n    tl.store(at, value)\n\n\n"
    call = re.sub(r"KERNEL\((.*)\)", r"kernel[(1,)](\1, 4)", launcher)
    assert (
        written_arguments(KernelSource.parse(f"{HEAD}{helper}{kernel}\n\n{call}\n", "kernel", "f"))
        == copied
    )


TWO_LAUNCHERS = (
    ADD
    + """

# kernel-lsp: workload x=f32[64]
def doubled(x):
    return add(x, x)


# kernel-lsp: workload x=f32[2000]
def double(x):
    out = torch.empty_like(x)
    add_kernel[(triton.cdiv(x.numel(), 128),)](x, x, out, x.numel(), BLOCK=128)
    return out
"""
)


def test_the_launcher_that_has_a_workload_is_the_one_that_is_followed() -> None:
    one, session = opened(HEAD + TWO_LAUNCHERS, "add_kernel")
    assert one.program.launcher == "add" and session.kernel.launched[0].grid == (8,)
    text = TWO_LAUNCHERS.replace("# kernel-lsp: workload x=f32[1000] y=f32[1000]\n", "")
    one, session = opened(HEAD + text, "add_kernel")
    assert one.program.launcher == "double" and session.kernel.launched[0].grid == (16,)
    step = Step(
        skill="triton-launch-options", site="launch of add_kernel", parameters={"num_warps": 1}
    )
    after = apply_candidate(one, session.make([step]))
    assert after is not None and after.program.launcher == "double"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (ADD.split("# kernel-lsp")[0], "no function of this file launches add_kernel"),
        (ADD.replace("# kernel-lsp: workload x=f32[1000] y=f32[1000]\n", ""), "no workload"),
    ],
    ids=["no launcher", "no workload"],
)
def test_what_cannot_be_opened_is_said_in_one_line(text: str, said: str) -> None:
    made = prepare(Job(text=HEAD + text, path="/w/kernels.py", qualname="add_kernel"))
    assert isinstance(made, Outcome) and made.note is not None and said in made.note


def test_a_launcher_that_chooses_by_values_is_refused_with_its_reason() -> None:
    text = HEAD + ADD.replace(
        "    out = torch", "    if x.sum() > 0:\n        return x\n    out = torch"
    )
    with pytest.raises(CaptureError, match="chooses what it launches by values"):
        opened(text, "add_kernel")


def test_a_number_that_only_data_tells_is_unknown() -> None:
    """Losses count what they do not ignore: the launch follows from shapes all the same."""
    text = HEAD + ADD.replace(
        "    out = torch", "    assert x.max() < 9\n    count = y.sum().item()\n    out = torch"
    )
    text = text.replace("(x_ptr, y_ptr, out_ptr, n,", "(x_ptr, y_ptr, out_ptr, n, count,").replace(
        "x.numel(), BLOCK=128", "x.numel(), count, BLOCK=128"
    )
    (launch,) = opened(text, "add_kernel")[1].kernel.launched
    assert (
        launch.arguments["n"] == 1000 and launch.arguments["count"] is None and launch.grid == (8,)
    )


def test_a_tuned_kernel_keeps_its_configurations_where_only_the_interpreter_is() -> None:
    """It runs the first of them alone: one that a step appends would be called right and never
    have run."""
    text = (GOLDEN / "triton-tuned-configs.in.py").read_text()
    one = prepared(text, "squared_relu_kernel")
    session = KernelSession(one.program, one.workload, "cpu", [skill("triton-tuned-configs")])
    (site,) = session.capture().sites
    with pytest.raises(RewriteError, match="runs the first alone"):
        session.make([Step(skill=site.skill, site=site.site)])


@pytest.mark.parametrize(
    ("given", "grown"),
    [
        ("CONFIGS", "[*CONFIGS, "),
        ("CONFIGS if CONFIGS else []", "[*(CONFIGS if CONFIGS else []), "),
    ],
)
def test_a_list_of_configurations_grows_however_it_is_said(given: str, grown: str) -> None:
    text = (GOLDEN / "triton-tuned-configs.in.py").read_text()
    start, end = text.index("    configs=["), text.index("    key=[")
    listed = text[start:end].strip().removesuffix(",").replace("configs=", "CONFIGS = ")
    text = f"{text[:start]}    configs={given},\n{text[end:]}"
    text = text.replace("@triton.autotune", f"{listed}\n\n\n@triton.autotune")
    _, session = opened(text, "squared_relu_kernel")
    (site,) = session.capture().sites
    made = session.make([Step(skill=site.skill, site=site.site)])
    assert f"configs={grown}triton.Config(" in made.program


def test_a_kernel_that_only_a_method_launches_is_refused_with_the_way_out() -> None:
    method = ADD.replace("def add(x, y):", "class Add:\n  def forward(self, x, y):")
    made = prepare(Job(text=HEAD + method, path="/w/kernels.py", qualname="add_kernel"))
    assert isinstance(made, Outcome) and made.note is not None
    assert "launched by Add.forward, a method" in made.note and "write a function" in made.note


def test_a_function_that_launches_goes_before_a_method() -> None:
    method = (
        "class Add(torch.nn.Module):\n    def forward(self, x, y):\n        add_kernel[(8,)](x, "
        "y, x, 9, 128)"
    )
    one, _ = opened(f"{HEAD}{method}\n\n{ADD}", "add_kernel")
    assert one.program.launcher == "add"


def test_steps_that_change_nothing_are_refused() -> None:
    _, session = opened(HEAD + ADD, "add_kernel")
    with pytest.raises(RewriteError, match="change nothing"):
        session.make([Step(skill="triton-block-size", site="BLOCK", parameters={"BLOCK": 128})])


def test_a_skill_is_not_offered_twice_at_one_place() -> None:
    _, session = opened(HEAD + ADD, "add_kernel")
    left = session.look([Step(skill="triton-block-size", site="BLOCK", parameters={"BLOCK": 512})])
    assert [site.skill for site in left] == ["triton-launch-options"]


COMPARE = """
import sys, runpy, torch
before, after = runpy.run_path(sys.argv[1]), runpy.run_path(sys.argv[2])
name, shapes = sys.argv[3:]
torch.manual_seed(0)
inputs = [torch.randn(*map(int, shape.split("x"))) for shape in shapes.split(",")]
for one in (inputs, [x[: x.shape[0] - 3] for x in inputs]):
    expected, found = before[name](*one), after[name](*one)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
"""
SHAPES = {
    "dot-precision": ("scores_kernel", "scores", "70x40,130x40"),
    "grouped-order": ("scores_kernel", "scores", "200x32,330x32"),
    "block-size": ("residual_kernel", "residual", "9x100,9x100"),
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_rewritten_kernel_computes_the_same_in_the_interpreter(name: str, tmp_path: Path) -> None:
    kernel, launcher, shapes = SHAPES[name]
    text = (GOLDEN / f"triton-{name}.in.py").read_text()
    one, session = opened(text, kernel)
    site = next(site for site in session.capture().sites if site.skill == f"triton-{name}")
    made: list[Candidate] = session.variants([Step(skill=site.skill, site=site.site)], 0, 6)
    assert made and made[-1].edit is not None
    before, after = tmp_path / "before.py", tmp_path / "after.py"
    before.write_text(text)
    after.write_text(apply_edit(text, one.target.span, made[-1].edit))
    assert after.read_text() != text
    interpreted(COMPARE, str(before), str(after), launcher, shapes)


def test_a_guess_follows_the_step_that_is_searched() -> None:
    _, session = opened(HEAD + ADD, "add_kernel")
    block = Step(skill="triton-block-size", site="BLOCK", parameters={"BLOCK": 256})
    warps = Step(
        skill="triton-launch-options", site="launch of add_kernel", parameters={"num_warps": 1}
    )
    made = session.variants([block, warps], 0, 16)
    found = {one.steps[0].parameters["BLOCK"]: one.steps[1].parameters["num_warps"] for one in made}
    assert found[256] == 1 and found[512] == 2 and found[2048] == 8
    chosen = replace(warps, parameters={"num_warps": 2})
    made = session.variants([block, chosen], 0, 16)
    assert {one.steps[1].parameters["num_warps"] for one in made} == {2}


def test_a_change_of_the_launcher_is_a_change_of_the_kernel_too() -> None:
    """Its rewrite edits the launcher: after another edit there it must not be applied any more."""
    before = prepared(HEAD + ADD, "add_kernel").target.fingerprint
    assert (
        prepared(HEAD + ADD.replace("BLOCK=128", "BLOCK=256"), "add_kernel").target.fingerprint
        != before
    )
    assert prepared(HEAD + "# a comment\n" + ADD, "add_kernel").target.fingerprint == before
    assert analysis.fingerprint_of(HEAD + ADD, "add_kernel") == before


BYTES = """
@triton.jit
def product_kernel(a_ptr, b_ptr, c_ptr, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    total = tl.zeros((32, 32), tl.float32)
    for start in range(0, n, BLOCK):
        k = start + at
        a = tl.load(a_ptr + tl.arange(0, 32)[:, None] * n + k[None, :], mask=k[None, :] < n, other=0)
        b = tl.load(b_ptr + k[:, None] * 32 + tl.arange(0, 32)[None, :], mask=k[:, None] < n, other=0)
        total += tl.dot(a, b)
    tl.store(c_ptr + tl.arange(0, 32)[:, None] * 32 + tl.arange(0, 32)[None, :], total)


# kernel-lsp: workload a=KIND[32,100] b=KIND[100,32]
def product(a, b):
    c = torch.empty(32, 32)
    product_kernel[(1,)](a, b, c, a.shape[1], BLOCK=64)
    return c
"""


@pytest.mark.parametrize(("kind", "least"), [("i8", 32), ("u8", 32), ("f16", 16), ("f32", 16)])
def test_products_of_bytes_need_blocks_of_32(kind: str, least: int) -> None:
    (block,) = adjustable(opened(HEAD + BYTES.replace("KIND", kind), "product_kernel")[1].kernel)
    assert min(block.choices()) == least
