"""Skills for Triton kernels that rest on facts of text and launches: where they apply and where
not.

That what they write computes the same is seen in Triton's interpreter, for sizes with and without
the fact."""

from pathlib import Path

import pytest
from rewrite_helpers import interpreted, skill

from kernel_lsp.pipeline.prepare import PreparedJob, prepare
from kernel_lsp.records import Job, Site, Step
from kernel_lsp.rewrite.kernels.session import KernelSession

pytestmark = pytest.mark.torch
pytest.importorskip("torch")
pytest.importorskip("triton")

GOLDEN = Path(__file__).resolve().parents[3] / "cases" / "golden"
COMPARE = """
import sys, runpy, torch
ROUNDED = ("exp2",)  # the others give the same bits
folder = sys.argv[1]
for case in sys.argv[2:]:
    name, launcher, *shapes = case.split(" ")
    before, after = (runpy.run_path(f"{folder}/triton-{name}{end}.py") for end in (".in", ""))
    for shape in shapes:
        torch.manual_seed(0)
        inputs = [torch.randn(*map(int, one.split("x"))) for one in shape.split(",")]
        expected, found = before[launcher](*inputs), after[launcher](*inputs)
        limit = {"rtol": 1e-5 if name in ROUNDED else 0, "atol": 1e-5 if name in ROUNDED else 0}
        torch.testing.assert_close(found, expected, **limit, msg=lambda s: f"{case} {shape}: {s}")
"""
CASES = {
    "eviction": "rms_norm 5x1000,1000 1x64,64",
    "exp2": "attention 40x16,40x16,40x16 1x16,1x16,1x16",
    "hints": "softmax 5x40 5x37 1x1 3x16",
    "hoisted-loads": "heads 5x40,40,5,3 1x1,1,1,1 4x16,16,4,0",
    "loop-stages": "spread 3x2500 2x1024",
    "unmasked": "row_sums 16x128 13x100 16x100 13x128",
}
"""Launcher, and sizes of its inputs: the first ones have the fact that the skill rests on."""


def test_what_is_written_computes_the_same_with_and_without_the_fact() -> None:
    cases = [f"{name} {case}" for name, case in CASES.items()]
    interpreted(COMPARE, str(GOLDEN), *cases)


def opened(text: str, kernel: str, name: str) -> KernelSession:
    made = prepare(Job(text=text, path="/w/kernels.py", qualname=kernel, device="cuda"))
    assert isinstance(made, PreparedJob), made
    return KernelSession(made.program, made.workload, "cuda", [skill(f"triton-{name}")])


def sites(text: str, kernel: str, name: str) -> tuple[Site, ...]:
    session = opened(text, kernel, name)
    found = session.capture().sites
    assert not session.notes
    return found


def golden(name: str, *changes: tuple[str, str]) -> str:
    """The case's file with some of its text replaced."""
    text = (GOLDEN / f"triton-{name}.in.py").read_text()
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    return text


# --- unmasked ---------------------------------------------------------------------------------

ROWS, COLUMNS, BOTH = "masks of n_rows", "masks of n_columns", "masks of n_rows, n_columns"


@pytest.mark.parametrize(
    ("change", "left"),
    [
        (("x=f16[4096,1024]", "x=f16[4097,1025]"), None),
        (("x=f16[4096,1024]", "x=f16[4096,1025]"), ROWS),
        (('triton.cdiv(n_rows, meta["BLOCK_R"])', "132"), COLUMNS),
        (
            ('triton.cdiv(n_rows, meta["BLOCK_R"])', 'triton.cdiv(n_rows, meta["BLOCK_R"]) + 1'),
            COLUMNS,
        ),
        (
            ('triton.cdiv(n_rows, meta["BLOCK_R"])', 'triton.cdiv(n_columns, meta["BLOCK_R"])'),
            COLUMNS,
        ),
        (("tl.program_id(0) * BLOCK_R +", "tl.program_id(0) * BLOCK_R + 1 +"), COLUMNS),
        (("tl.program_id(0) * BLOCK_R", "tl.program_id(0) * BLOCK_C"), COLUMNS),
        (("range(0, n_columns, BLOCK_C)", "range(1, n_columns, BLOCK_C)"), ROWS),
        (("range(0, n_columns, BLOCK_C)", "range(0, n_columns, BLOCK_R)"), ROWS),
        (("range(0, n_columns, BLOCK_C)", "range(0, n_columns + 1, BLOCK_C)"), ROWS),
        (("        total += tl.sum", "        start += 1\n        total += tl.sum"), ROWS),
        (("    row_mask =", "    n_rows = n_rows - 1\n    row_mask ="), COLUMNS),
        (("    row_mask =", "    if n_columns > 7:\n        rows += 1\n    row_mask ="), COLUMNS),
        (("triton.cdiv(n_rows,", "triton.cdiv(x.shape[0],"), COLUMNS),
        (("out, n_rows, n_columns,", "out, n_rows, sum([n_columns]),"), ROWS),
        (
            (
                "@triton.jit",
                '@triton.autotune([triton.Config({"BLOCK_R": 8})], key=[])\n@triton.jit',
            ),
            None,
        ),
        (("row_sums_kernel[grid](x, out,", "row_sums_kernel[grid](*(x, out),"), None),
        (("range(0, n_columns, BLOCK_C)", "range(0, n_columns, BLOCK_C * 2)"), BOTH),
        (("        x = tl.load", "        columns += 1\n        x = tl.load"), BOTH),
        (("        # The last", "        columns += 1\n        # The last"), ROWS),
        (("    row_mask =", "    rows += BLOCK_R\n    row_mask ="), COLUMNS),
        (("    row_mask =", "    rows += BLOCK_R\n    rows -= BLOCK_R\n    row_mask ="), BOTH),
        (("lambda meta:", "lambda meta, n_rows=7:"), COLUMNS),
        (("lambda meta:", 'meta = {"BLOCK_R": 4}\n    grid ='), COLUMNS),
        (("lambda meta:", "(1,)\n    if n_rows:\n        grid = lambda meta:"), COLUMNS),
        (("BLOCK_C=BLOCK_C)", "BLOCK_C=BLOCK_C, **{'num_warps': 2})"), BOTH),
        (("columns[None, :] < n_columns", "n_columns > columns[None, :]"), BOTH),
        (("columns[None, :] < n_columns", "columns[None, :] <= n_columns - 1"), BOTH),
        (
            ("columns[None, :] < n_columns", "tl.arange(0, BLOCK_C)[None, :] < n_columns - start"),
            BOTH,
        ),
        (
            (
                "range(0, n_columns, BLOCK_C):\n        columns = start",
                "range(tl.cdiv(n_columns, BLOCK_C)):\n        columns = start * BLOCK_C",
            ),
            BOTH,
        ),
    ],
)
def test_masks_go_only_where_loop_and_grid_show_that_they_hold(
    change: tuple[str, str], left: str | None
) -> None:
    found = sites(golden("unmasked", change), "row_sums_kernel", "unmasked")
    assert [site.site for site in found] == ([left] if left else [])


def test_a_size_that_is_asked_for_again_is_the_same_unless_the_tensor_was_changed() -> None:
    again = ("out, n_rows,", "out, x.shape[0],"), ("triton.cdiv(n_rows,", "triton.cdiv(x.shape[0],")
    assert [s.site for s in sites(golden("unmasked", *again), "row_sums_kernel", "unmasked")] == [
        "masks of n_rows, n_columns"
    ]
    changed = golden("unmasked", *again, ("    BLOCK_C = 64\n", "    x.t_()\n    BLOCK_C = 64\n"))
    assert [s.site for s in sites(changed, "row_sums_kernel", "unmasked")] == [COLUMNS]


# --- eviction ---------------------------------------------------------------------------------

SECOND = "        x = tl.load(x_ptr + row * width + columns, mask=mask).to(tl.float32)\n"
WEIGHT = "tl.load(weight_ptr + columns, mask=mask)"


@pytest.mark.parametrize(
    ("changes", "left"),
    [
        ([(SECOND, "")], "what is read again stays in the caches (1 of 2 loads)"),
        ([(SECOND, ""), (WEIGHT, "tl.load(weight_ptr + row * width + columns)")], None),
        ([(SECOND, SECOND.replace("columns,", "columns + 1,")), (WEIGHT, "1.0")], None),
        (
            [(WEIGHT, "tl.load(weight_ptr + tl.load(weight_ptr + columns, mask=mask))")],
            "(2 of 3 loads)",
        ),
        (
            [(WEIGHT, 'tl.load(weight_ptr + columns, mask=mask, cache_modifier=".ca")')],
            "(1 of 2 loads)",
        ),
        ([(WEIGHT, "tl.dot(x, x)")], None),
    ],
    ids=[
        "one pass",
        "all streamed",
        "other places",
        "an index that was loaded",
        "said already",
        "a product",
    ],
)
def test_policies_only_where_something_is_read_again(
    changes: list[tuple[str, str]], left: str | None
) -> None:
    found = sites(golden("eviction", *changes), "rms_norm_kernel", "eviction")
    assert len(found) == (left is not None)
    assert not left or found[0].summary.endswith(left)


# --- hints ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "left"),
    [
        ([("1000]", "1024]")], None),
        ([("1000]", "1001]")], None),
        ([("1000]", "1002]")], "(x_stride of 2, out_stride of 2, columns of 2)"),
        ([("bf16[4096,1000]", "f64[4096,1000]")], "(x_stride of 8, out_stride of 8, columns of 8)"),
        ([("x.stride(0)", "x.stride(0) + 1")], "(out_stride of 8, columns of 8)"),
        ([("x.stride(0)", "max([x.stride(0)])")], "(out_stride of 8, columns of 8)"),
        ([("stride + column", "stride + column * 2")], None),
        ([("stride + column", "stride + column * columns")], None),
        ([("row * out_stride", "row * 1024")], "(x_stride of 8, columns of 8)"),
        ([("column < columns", "row < columns")], "(x_stride of 8, out_stride of 8)"),
        (
            [("BLOCK: tl.constexpr", "BLOCK: tl.constexpr, COLUMNS_MULTIPLE: tl.constexpr = 1")],
            None,
        ),
    ],
)
def test_multiples_are_said_where_they_make_a_load_wider(
    changes: list[tuple[str, str]], left: str | None
) -> None:
    found = sites(golden("hints", *changes), "softmax_kernel", "hints")
    assert len(found) == (left is not None)
    assert not left or found[0].summary.endswith(left)


# --- hoisted loads ----------------------------------------------------------------------------

AHEAD, OUT = "weight ahead of a reduction", "gain out of a loop"
LENGTH = "    length = tl.sqrt(tl.sum(x * x, axis=0))\n"
MADE = "out = torch.empty((shift.numel(), n_rows, width), device=x.device)"


@pytest.mark.parametrize(
    ("change", "left"),
    [
        ((LENGTH, LENGTH + "    tl.store(out_ptr + row, length)\n"), [OUT]),
        ((LENGTH, LENGTH + "    length = tl.inline_asm_elementwise(length)\n"), [OUT]),
        ((LENGTH, LENGTH + "    length = rounded(length)\n"), [OUT]),
        ((LENGTH, LENGTH + "    if width > 5000:\n        return\n"), [OUT]),
        ((LENGTH, LENGTH + "    columns = columns + 0\n"), [OUT]),
        ((LENGTH, LENGTH + "    weight_ptr += 0\n"), [OUT]),
        ((LENGTH, "    weight = 1.0\n" + LENGTH + "    length *= weight\n"), [OUT]),
        (
            ("weight_ptr + columns, mask=mask)", "weight_ptr + columns, mask=mask, volatile=True)"),
            [OUT],
        ),
        (("weight = tl.load(weight_ptr + columns, mask=mask)", "weight = length"), [OUT]),
        (
            (
                "x = tl.load(x_ptr + row * width + columns, mask=mask, other=0.0)",
                "x = 1.0 * columns",
            ),
            [AHEAD, OUT],
        ),
        (("gain_ptr + row", "gain_ptr + row + head"), [AHEAD]),
        (("gain_ptr + row)", "gain_ptr + row, volatile=True)"), [AHEAD]),
        (("range(n_heads)", "range(n_heads, 0, -1)"), [AHEAD]),
        (("range(n_heads)", "range(tl.load(shift_ptr).to(tl.int32))"), [AHEAD]),
        (("        shift =", "        tl.debug_barrier()\n        shift ="), [AHEAD]),
        (("        shift =", "        tl.store(gain_ptr + row, gain)\n        shift ="), [AHEAD]),
        (("        shift =", "        gain *= 2.0\n        shift ="), [AHEAD]),
        (("        gain =", "        gain = 2.0\n        gain ="), [AHEAD]),
        (("    for head", "    gain = 0.0\n    for head"), [AHEAD]),
        ((MADE, "out = gain.view(1, n_rows, 1)"), [AHEAD]),
        (
            (
                MADE,
                MADE.replace("torch.empty", "pool.empty").replace("out", "pool = torch; out", 1),
            ),
            [AHEAD],
        ),
        ((MADE, "out = x.new_empty((shift.numel(), n_rows, width))"), [AHEAD, OUT]),
        ((MADE, f"{MADE}\n    gain = out.view(-1)"), [AHEAD]),
        ((MADE, f"{MADE}\n    gain = gain if width else out"), [AHEAD]),
        ((MADE, f"{MADE}\n    gain = gain.contiguous().view(-1)"), [AHEAD, OUT]),
        (
            ("    return out\n", "    return out\n\n\ndef other(x):\n    heads_kernel[(1,)](x)\n"),
            [AHEAD],
        ),
    ],
)
def test_loads_move_only_over_what_cannot_change_them(
    change: tuple[str, str], left: list[str]
) -> None:
    text = golden("hoisted-loads", change)
    text = text.replace(
        "\n\n\n@triton.jit", "\n\n\n@triton.jit\ndef rounded(x):\n    return x\n\n\n@triton.jit", 1
    )
    assert sorted(s.site for s in sites(text, "heads_kernel", "hoisted-loads")) == sorted(left)


# --- exp2 -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "applies"),
    [
        ("* scale", "* 0.125", True),
        (
            'tl.full((BLOCK_M,), float("-inf"), dtype=tl.float32)',
            'tl.zeros((BLOCK_M,), tl.float32) - float("inf")',
            True,
        ),
        (
            'tl.dot(q, tl.trans(k)) * scale, float("-inf")',
            "scale * tl.dot(q, tl.trans(k)), -float('inf')",
            True,
        ),
        ('float("-inf"))', "-1e9)", False),
        ('tl.full((BLOCK_M,), float("-inf")', "tl.full((BLOCK_M,), -1e9", False),
        ("* scale", "* scale + columns[None, :]", False),
        ("* scale", "* columns[None, :]", False),
        ("tl.dot(q, tl.trans(k)) * scale", "tl.dot(q, tl.trans(k))", False),
        ("tl.exp(highest - higher)", "tl.exp(highest)", False),
        ("        highest = higher", "        highest += higher - highest", False),
        ("        highest = higher", "        highest = higher + 0.0", False),
        (
            "tl.maximum(highest, tl.max(scores, axis=1))",
            "tl.maximum(highest, tl.sum(scores, axis=1))",
            False,
        ),
        ("tl.where(known[None, :],", "tl.where(rows[:, None] >= columns[None, :],", True),
        ("tl.where(known[None, :],", "tl.where(highest[:, None] < 3,", False),
        (
            "    tl.store(out_ptr",
            "    tl.store(out_ptr + rows, highest + tl.log(total))\n    tl.store(out_ptr",
            False,
        ),
        ("    highest = tl.full", "    scale = scale * 2\n    highest = tl.full", False),
        ("length, width**-0.5,", "length, q,", False),
    ],
)
def test_exp2_only_where_all_that_is_subtracted_carries_the_factor(
    old: str, new: str, applies: bool
) -> None:
    assert bool(sites(golden("exp2", (old, new)), "attention_kernel", "exp2")) is applies


def test_what_is_left_of_a_site_is_not_offered_as_another() -> None:
    made = prepare(Job(text=golden("unmasked"), path="/w/kernels.py", qualname="row_sums_kernel"))
    assert isinstance(made, PreparedJob)
    skills = [skill("triton-block-size"), skill("triton-unmasked")]
    session = KernelSession(made.program, made.workload, "cuda", skills)
    steps = [Step(skill=site.skill, site=site.site) for site in session.capture().sites]
    assert [step.site for step in steps] == ["BLOCK_R, BLOCK_C", BOTH]
    assert session.look(steps) == ()


GRID = 'grid = lambda meta: (triton.cdiv(n_rows, meta["BLOCK_R"]),)  # noqa: E731'
SWIZZLED = (
    "    block, other = tl.swizzle2d({0}, tl.program_id(1), tl.num_programs(0), "
    "tl.num_programs(1), 4)\n"
)


@pytest.mark.parametrize(
    ("first", "left"),
    [("tl.program_id(0)", BOTH), ("tl.program_id(1)", COLUMNS), ("tl.program_id(0) + 1", COLUMNS)],
)
def test_programs_in_another_order_still_cover_the_axis(first: str, left: str) -> None:
    text = golden(
        "unmasked",
        ("    rows = tl.program_id(0) *", f"{SWIZZLED.format(first)}    rows = block *"),
        (GRID, "grid = (triton.cdiv(n_rows, 8), 4)"),
    )
    assert [s.site for s in sites(text, "row_sums_kernel", "unmasked")] == [left]


# --- loop stages ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "left"),
    [
        ("    mean = tl.sum", "        tl.store(x_ptr + row, 0.0)\n    mean = tl.sum", "1 loop"),
        ("    mean = tl.sum", "        tl.debug_barrier()\n    mean = tl.sum", "1 loop"),
        (
            "    mean = tl.sum",
            "        total += tl.atomic_add(mean_ptr, 1.0)\n    mean = tl.sum",
            "1 loop",
        ),
        ("    mean = tl.sum", "        total = forget(total)\n    mean = tl.sum", "1 loop"),
        (
            "    mean = tl.sum",
            "        for j in range(2):\n            total += 1\n    mean = tl.sum",
            "1 loop",
        ),
        ("in range(0, columns, BLOCK)", "in tl.range(0, columns, BLOCK, num_stages=2)", None),
        ("in range(0, columns, BLOCK)", "in tl.range(0, columns, BLOCK)", "2 loops"),
        ("x_ptr + row * columns + column,", "x_ptr + tl.arange(0, BLOCK),", None),
        ("total += tl.load", "total += 0 * tl.dot(total, total) + tl.load", "1 loop"),
    ],
)
def test_only_loops_that_write_nothing_load_ahead(old: str, new: str, left: str | None) -> None:
    helper = "@triton.jit\ndef forget(x):\n    return x\n\n\n@triton.jit\n"
    text = golden("loop-stages", (old, new)).replace("@triton.jit\n", helper, 1)
    assert [s.site for s in sites(text, "spread_kernel", "loop-stages")] == ([left] if left else [])
