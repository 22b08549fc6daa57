"""Blocks and warps that triton.heuristics computes become numbers, where nothing else hangs on
them."""

from pathlib import Path

import pytest
from rewrite_helpers import interpreted, skill

from kernel_lsp.pipeline.prepare import PreparedJob, apply_candidate, prepare
from kernel_lsp.records import Job, Step
from kernel_lsp.rewrite.edit import apply_edit
from kernel_lsp.rewrite.kernels.session import KernelSession

pytestmark = pytest.mark.torch
pytest.importorskip("torch")
pytest.importorskip("triton")

TEXT = """
import torch
import triton
import triton.language as tl

TABLE = {
    "BLOCK": lambda args: min(1024, triton.next_power_of_2(args["n"])),
    "num_warps": lambda args: 4 if args["BLOCK"] < 2048 else 8,
}


def table(name):
    return TABLE


@triton.heuristics(
    {
        "BLOCK": lambda args: min(1024, triton.next_power_of_2(args["n"])),
        "num_warps": lambda args: 4 if args["BLOCK"] < 2048 else 8,  # by measurement
    }
)
@triton.jit
def total_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n, BLOCK):
        total += tl.load(x_ptr + tl.program_id(0) * n + start + at, mask=start + at < n, other=0.0)
    tl.store(out_ptr + tl.program_id(0), tl.sum(total))


# kernel-lsp: workload x=f32[8,5000]
def totals(x):
    rows, columns = x.shape
    out = torch.empty(rows, device=x.device)
    total_kernel[(rows,)](x, out, columns)
    return out


@triton.heuristics(values={"BLOCK": lambda args: 512 if args["n"] > 900 else 128})
@triton.jit
def double_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=at < n) * 2, mask=at < n)


# kernel-lsp: workload x=f32[5000]
def doubled(x):
    out = torch.empty_like(x)
    double_kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, out, x.numel())
    return out
"""
ALL = TEXT[TEXT.index('    {\n        "BLOCK"') : TEXT.index("    }\n)") + 6]
BLOCKS, OPTIONS = "triton-block-size", "triton-launch-options"


def prepared(text: str, kernel: str) -> PreparedJob:
    made = prepare(Job(text=text, path="/w/rows.py", qualname=kernel, device="cuda"))
    assert isinstance(made, PreparedJob), made
    return made


def opened(text: str, kernel: str, *skills: str) -> KernelSession:
    made = prepared(text, kernel)
    session = KernelSession(made.program, made.workload, "cuda", [skill(name) for name in skills])
    assert not session.notes
    return session


def replaced(*changes: tuple[str, str]) -> str:
    text = TEXT
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    return text


def offered(text: str, kernel: str) -> set[str]:
    session = opened(text, kernel, BLOCKS, OPTIONS)
    found = {site.skill for site in session.capture().sites}
    assert not session.notes
    return found


SPELLINGS = {
    "written out": TEXT,
    "a table": replaced((ALL, "    TABLE\n")),
    "a library's": replaced((ALL, '    table("total")\n')),
    "spread": replaced((ALL, "    {**TABLE}\n")),
    "overruled": replaced((ALL, '    {"BLOCK": lambda args: 32, **TABLE,}\n')),
    "by name": replaced((ALL, "    values=TABLE\n")),
}


@pytest.mark.parametrize("text", SPELLINGS.values(), ids=SPELLINGS)
def test_both_become_numbers_one_after_the_other(text: str) -> None:
    session = opened(text, "total_kernel", BLOCKS, OPTIONS)
    assert session.kernel.launched[0].constants == {"BLOCK": 1024}
    assert {site.skill for site in session.capture().sites} == {BLOCKS, OPTIONS}
    block = Step(skill=BLOCKS, site="BLOCK", parameters={"BLOCK": 256})
    warps = Step(skill=OPTIONS, site="launch of total_kernel", parameters={"num_warps": 2})
    for steps in ([block, warps], [warps, block]):
        kernel = session._applied(steps)[0]
        assert kernel.launched[0].constants == {"BLOCK": 256} and kernel.launched[0].options == {
            "num_warps": 2
        }
    made = session.make([block, warps])
    one = prepared(text, "total_kernel")
    assert made.edit is not None
    after = apply_edit(text, one.target.span, made.edit)
    assert "total_kernel[(rows,)](x, out, columns)" in after, "the launch stays as it is"
    checked = apply_candidate(one, made)
    assert checked is not None and checked.program.source == made.program


def test_what_is_written_out_is_replaced_where_it_stands() -> None:
    session = opened(TEXT, "total_kernel", BLOCKS)
    made = session.make([Step(skill=BLOCKS, site="BLOCK", parameters={"BLOCK": 256})])
    assert '"BLOCK": lambda _: 256,' in made.program and "# by measurement" in made.program


def test_a_block_of_the_grid_follows_where_the_grid_asks_for_it() -> None:
    assert offered(TEXT, "double_kernel") == {BLOCKS, OPTIONS}
    session = opened(TEXT, "double_kernel", BLOCKS)
    kernel = session._applied([Step(skill=BLOCKS, site="BLOCK", parameters={"BLOCK": 2048})])[0]
    assert kernel.launched[0].grid == (3,)
    fixed = replaced(('lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)', "(10,)"))
    assert offered(fixed, "double_kernel") == {OPTIONS}


COMPARE = """
import runpy, sys, torch
one, other = (runpy.run_path(name)[sys.argv[3]] for name in sys.argv[1:3])
for shape in map(eval, sys.argv[4:]):
    torch.manual_seed(0)
    x = torch.randn(shape)
    torch.testing.assert_close(other(x), one(x), rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(one(x), x.sum(1) if x.dim() == 2 else 2 * x, rtol=1e-4, atol=1e-3)
"""


@pytest.mark.parametrize(
    ("kernel", "launcher", "shapes"),
    [
        ("total_kernel", "totals", ["(8,5000)", "(3,7)", "(2,1024)", "(1,1)", "(4,3001)"]),
        ("double_kernel", "doubled", ["(5000,)", "(1,)", "(900,)", "(901,)", "(4096,)"]),
    ],
)
@pytest.mark.parametrize("size", [64, 2048])
def test_other_sizes_than_the_workload_stay_right(
    kernel: str, launcher: str, shapes: list[str], size: int, tmp_path: Path
) -> None:
    session = opened(TEXT, kernel, BLOCKS)
    made = session.make([Step(skill=BLOCKS, site="BLOCK", parameters={"BLOCK": size})])
    for name, text in (("before.py", session.program.source), ("after.py", made.program)):
        (tmp_path / name).write_text(text)
    interpreted(COMPARE, str(tmp_path / "before.py"), str(tmp_path / "after.py"), launcher, *shapes)


FIRST = '{\n        "BLOCK"'
OWN = '{\n        "EVEN": lambda args: args["n"] % 8 == 0,\n        "BLOCK"'
AT = "    at = tl.arange(0, BLOCK)\n    total"


@pytest.mark.parametrize(
    ("changes", "left"),
    [
        # Another constant is computed from the block; options may be.
        (
            (
                (FIRST, OWN),
                ("total_kernel(x_ptr, out_ptr, n, BLOCK", "total_kernel(x_ptr, out_ptr, n, "
                                                          "EVEN, BLOCK"),
                ("EVEN, BLOCK: tl.constexpr", "EVEN: tl.constexpr, BLOCK: tl.constexpr"),
            ),
            {BLOCKS, OPTIONS},
        ),
        (
            (
                ('    }\n)', '        "EVEN": lambda args: args["n"] % args["BLOCK"] == 0,\n '
                             '   }\n)'),
                ("total_kernel(x_ptr, out_ptr, n, BLOCK", "total_kernel(x_ptr, out_ptr, n, "
                                                          "EVEN, BLOCK"),
                ("EVEN, BLOCK: tl.constexpr", "EVEN: tl.constexpr, BLOCK: tl.constexpr"),
            ),
            {OPTIONS},
        ),
        (
            (
                ('    }\n)', '        "MANY": lambda args: dict(**args)["n"] > 3,\n    }\n)'),
                ("total_kernel(x_ptr, out_ptr, n, BLOCK", "total_kernel(x_ptr, out_ptr, n, "
                                                          "MANY, BLOCK"),
                ("MANY, BLOCK: tl.constexpr", "MANY: tl.constexpr, BLOCK: tl.constexpr"),
            ),
            set(),
        ),
        # A heuristic is as large as the size needs, a number is not, so without a mask it stays.
        (((", mask=start + at < n, other=0.0", ""),), {OPTIONS}),
        # The kernel is launched twice: only what is right for any launch may change.
        (
            (("    return out\n\n\n@triton.heuristics(values", "    total_kernel[(rows,)](x, out, "
                                                               "columns)\n"
              "    return out\n\n\n@triton.heuristics(values"),),
            set(),
        ),
        ((("def table(name)", "def another(x, y):\n    total_kernel[(1,)](x, y, 5)\n\n\ndef "
                              "table(name)"),),
         {OPTIONS}),
        # Which of two decorators decides is not followed.
        ((("@triton.heuristics(\n", '@triton.heuristics({"SIZE": lambda args: '
                                    '3})\n@triton.heuristics(\n'),
          ("n, BLOCK: tl.constexpr):\n    at = tl.arange", "n, SIZE: tl.constexpr, BLOCK: "
                                                           "tl.constexpr):\n"
           "    at = tl.arange")),
         set()),
        # A row that is held whole has no other block.
        ((("    for start in range(0, n, BLOCK):\n        "
           "total +=", "    start = 0\n    total +=="[:-1]),),
         {OPTIONS}),
        # What the kernel computes from its warps.
        (((AT, f"    tl.num_warps()\n{AT}"),), {BLOCKS}),
    ],
    ids=["another constant beside it", "a constant comes from it", "a constant may come from it", "no mask",
         "launched twice", "launched by another", "two decorators", "a whole row",
         "the kernel asks"],
)  # fmt: skip
def test_only_where_nothing_else_hangs_on_it(
    changes: tuple[tuple[str, str], ...], left: set[str]
) -> None:
    assert offered(replaced(*changes), "total_kernel") == left
