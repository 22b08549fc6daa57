"""Blocks that mean something: where results show how an axis was cut, no other size is tried."""

import pytest
from rewrite_helpers import skill

from kernel_lsp.pipeline.prepare import PreparedJob, prepare
from kernel_lsp.records import Job, Step
from kernel_lsp.rewrite.kernels.blocks import adjustable
from kernel_lsp.rewrite.kernels.session import KernelSession

pytestmark = pytest.mark.torch
pytest.importorskip("torch")
pytest.importorskip("triton")

HEAD = """\
import torch
import triton
import triton.language as tl


@triton.jit
def put(ptr, offsets, value):
    tl.store(ptr + offsets, value)


@triton.jit
def doubled(value):
    return value * 2.0


@triton.jit
def combined(a, b):
    return a + b


@triton.jit
def group_kernel(x_ptr, s_ptr, out_ptr, n, seed, BLOCK: tl.constexpr):
    group = tl.program_id(0)
    lanes = tl.arange(0, BLOCK)
    at = group * BLOCK + lanes
    mask = at < n
    x = tl.load(x_ptr + at, mask=mask, other=0.0)
"""
LAUNCHER = """

# kernel-lsp: workload x=f32[4096] s=f32[64]
def run(x, s, seed=7):
    BLOCK = 64
    out = torch.empty_like(x)
    parts = torch.empty(triton.cdiv(x.numel(), BLOCK), device=x.device)
    group_kernel[(triton.cdiv(x.numel(), BLOCK),)](x, SCALES, out, x.numel(), seed, BLOCK=BLOCK)
    return RESULT
"""
STORE = "tl.store(out_ptr + at, {}, mask=mask)"
PARTS = "tl.store(s_ptr + group, tl.sum(x, axis=0))"


def blocks(*body: str, scales: str = "s", result: str = "out") -> list[str]:
    launcher = LAUNCHER.replace("SCALES", scales).replace("RESULT", result)
    return found(HEAD + "".join(f"    {line}\n" for line in body) + launcher, "group_kernel")


def found(text: str, kernel: str) -> list[str]:
    return [block.name for block in adjustable(opened(text, kernel).kernel)]


def opened(text: str, kernel: str, *skills: str) -> KernelSession:
    made = prepare(Job(text=text, path="/w/kernels.py", qualname=kernel, device="cuda"))
    assert isinstance(made, PreparedJob), made
    return KernelSession(made.program, made.workload, "cuda", [skill(name) for name in skills])


GROUPS = {
    "a scale for each group": [STORE.format("x * tl.load(s_ptr + group)")],
    "a scale by its program": [STORE.format("x * tl.load(s_ptr + tl.program_id(0).to(tl.int64))")],
    "scaled by what the group has": [STORE.format("x / tl.max(tl.abs(x), axis=0)")],
    "so by a method": ["largest = tl.abs(x).max()", STORE.format("x / largest")],
    "scaled by what is kept": ["largest = tl.max(x)", PARTS, STORE.format("x / largest")],
    "a running sum": [STORE.format("tl.cumsum(x, 0)")],
    "a scan": [STORE.format("tl.associative_scan(x, 0, combined)")],
    "in order": [STORE.format("tl.sort(x)")],
    "a seed for each": [STORE.format("x * tl.rand(seed + group, lanes)")],
    "a place inside of the group": [STORE.format("x * tl.rand(seed, lanes)")],
    "a weight for each group": [
        "number = at // BLOCK",
        STORE.format("x + tl.load(s_ptr + number)"),
    ],
    "a result for each group": [PARTS],
    "a function that stores": ["put(out_ptr, at, x)"],
    "the first group is another": ["if group == 0:", "    x += 1.0", STORE.format("x")],
    "the first group alone": ["if group == 0:", f"    {STORE.format('x')}"],
    "a draw that is compared, of a seed for each": [
        STORE.format("tl.where(tl.rand(seed + group, lanes) > 0.5, x, 0.0)")
    ],
    "so by a name": [
        "keep = tl.rand(seed + group, lanes) > 0.5",
        STORE.format("tl.where(keep, x, 0.0)"),
    ],
    "the same draw for every group": [STORE.format("tl.where(tl.rand(seed, lanes) > 0.5, x, 0.0)")],
    "the largest of each": [STORE.format("tl.where(x == tl.max(x), x, 0.0)")],
    "the largest of each alone": ["tl.store(out_ptr + at, x, mask=mask & (x == tl.max(x)))"],
    "largest ones that are added up": ["tl.atomic_add(s_ptr, tl.max(x, axis=0))"],
    "sums of which the largest is kept": ["tl.atomic_max(s_ptr, tl.sum(x, axis=0))"],
    "roots that are added up": ["tl.atomic_add(s_ptr, tl.sqrt(tl.sum(x * x, axis=0)))"],
    "squares of sums": ["total = tl.sum(x, axis=0)", "tl.atomic_add(s_ptr, total * total)"],
    "sums and something": ["tl.atomic_add(s_ptr, tl.sum(x, axis=0) + 1.0)"],
    "groups that are left out": ["if tl.max(x) > 0.5:", f"    {STORE.format('x')}"],
    "groups that are doubled": ["if tl.max(x) > 0.5:", "    x *= 2.0", STORE.format("x")],
    "groups that end the program": ["if tl.sum(x) == 0.0:", "    return", STORE.format("x")],
    "a count of groups": ["tl.atomic_add(s_ptr, 1.0)", STORE.format("x")],
    "every pair of a group": [
        "both = tl.dot(x[:, None], x[None, :])",
        STORE.format("tl.sum(both, axis=1)"),
    ],
}


@pytest.mark.parametrize("why", GROUPS)
def test_a_block_that_is_a_group_stays(why: str) -> None:
    assert blocks(*GROUPS[why]) == []


FREE = {
    "arithmetic": [STORE.format("doubled(x) + tl.load(s_ptr + at // 64, mask=mask)")],
    "a seed for each place": [STORE.format("x * tl.rand(seed, at)")],
    "a draw for each place that is compared": [
        STORE.format("tl.where(tl.rand(seed, at) > 0.5, x, 0.0)")
    ],
    "a part of a sum": ["total = -tl.sum(x, axis=0) / n", "tl.atomic_add(s_ptr, total * 2.0)"],
    "two sums": ["tl.atomic_add(s_ptr, tl.sum(x, axis=0) - tl.sum(x * x, axis=0))"],
    "the largest of all": ["tl.atomic_max(s_ptr, tl.max(tl.abs(x), axis=0))"],
    "sums that are added up": ["tl.atomic_add(s_ptr, tl.sum(x, axis=0))"],
    "counted by value": ["tl.atomic_add(s_ptr + x.to(tl.int32), 1.0, mask=mask)"],
    "something in the first program": [
        "if group == 0:",
        "    tl.atomic_add(s_ptr, 1.0)",
        STORE.format("x"),
    ],
    "nothing behind the end": ["if group * BLOCK >= n:", "    return", STORE.format("x")],
}


@pytest.mark.parametrize("why", FREE)
def test_a_block_that_only_cuts_may_have_another_size(why: str) -> None:
    assert blocks(*FREE[why]) == ["BLOCK"]


@pytest.mark.parametrize(
    ("result", "free"),
    [
        ("parts.sum()", True),
        ("torch.sum(parts)", True),
        ("parts", False),
        ("out, parts", False),
        ("parts.mean()", False),
        ("parts * 2", False),
    ],
)
def test_partial_results_are_free_where_only_their_total_is_used(result: str, free: bool) -> None:
    assert blocks(PARTS, scales="parts", result=result) == (["BLOCK"] if free else [])


def test_partial_results_of_a_tuned_block_have_no_room_for_a_smaller_one() -> None:
    text = (
        HEAD
        + f"    {PARTS}\n"
        + LAUNCHER.replace("SCALES", "parts").replace("RESULT", "parts.sum()")
    )
    configs = (
        '@triton.autotune([triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 256})], '
        'key=["n"])\n'
    )
    text = text.replace("@triton.jit\ndef group", f"{configs}@triton.jit\ndef group")
    text = text.replace(", BLOCK=BLOCK)", ")").replace("(triton.cdiv(x.numel(), BLOCK),)]", "grid]")
    text = text.replace(
        "    out =", '    grid = lambda m: (triton.cdiv(x.numel(), m["BLOCK"]),)\n    out ='
    )
    assert found(text, "group_kernel") == []
    total = text.replace(PARTS, "tl.atomic_add(s_ptr, tl.sum(x, axis=0))")
    assert found(total, "group_kernel") == ["BLOCK"]


LOOP = """\
import torch
import triton
import triton.language as tl


@triton.jit
def row_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    mean = 0.0
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * n + at, mask=at < n, other=0.0)
        mean += tl.sum(x, axis=0) / n
    carry = 0.0
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * n + at, mask=at < n, other=0.0)
        value = VALUE
        carry += tl.sum(x, axis=0)
        tl.store(out_ptr + row * n + at, value, mask=at < n)


# kernel-lsp: workload x=f32[64,4096]
def run(x):
    out = torch.empty_like(x)
    row_kernel[(x.shape[0],)](x, out, x.shape[1], BLOCK=64)
    return out
"""


@pytest.mark.parametrize(
    ("value", "free"),
    [
        ("tl.cumsum(x, axis=0) + carry", True),
        ("tl.cumsum(x, axis=0)", False),
        ("x / tl.max(x, axis=0)", False),
        ("x / mean", True),
        ("x / mean + tl.max(x, axis=0)", False),
        ("x * (start // BLOCK)", False),
        ("x * start", True),
    ],
)
def test_what_a_loop_stores_goes_on_from_block_to_block(value: str, free: bool) -> None:
    assert found(LOOP.replace("VALUE", value), "row_kernel") == (["BLOCK"] if free else [])


@pytest.mark.parametrize(
    ("branch", "free"),
    [
        ("if largest > carry:\n            carry = largest", True),
        ("if largest > 0.5:\n            tl.store(out_ptr + row * n + at, x, mask=at < n)", False),
        ("if largest > 0.5:\n            tl.atomic_add(out_ptr + row, 1.0)", False),
        ("if mean > 0.5:\n            tl.store(out_ptr + row * n + at, x, mask=at < n)", True),
    ],
)
def test_what_a_loop_does_for_some_blocks_shows_them(branch: str, free: bool) -> None:
    text = LOOP.replace(
        "        value = VALUE\n", f"        largest = tl.max(x, axis=0)\n        {branch}\n"
    )
    text = text.replace("        carry += tl.sum(x, axis=0)\n", "").replace(
        "at, value, mask", "at, x + 1, mask"
    )
    assert found(text, "row_kernel") == (["BLOCK"] if free else [])


TILES = """\
import torch
import triton
import triton.language as tl


@triton.jit
def tile_kernel(x_ptr, out_ptr, n_rows, n_columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    pid_r, pid_c = tl.program_id(0), tl.program_id(1)
    rows = pid_r * ROWS + tl.arange(0, ROWS)
    columns = pid_c * COLUMNS + tl.arange(0, COLUMNS)
    mask = (rows[:, None] < n_rows) & (columns[None, :] < n_columns)
    x = tl.load(x_ptr + rows[:, None] * n_columns + columns[None, :], mask=mask, other=0.0)
    value = VALUE
    tl.store(out_ptr + rows[:, None] * n_columns + columns[None, :], value, mask=mask)


# kernel-lsp: workload x=f32[4096,4096]
def run(x):
    out = torch.empty_like(x)
    grid = lambda m: (triton.cdiv(x.shape[0], m["ROWS"]), triton.cdiv(x.shape[1], m["COLUMNS"]))
    tile_kernel[grid](x, out, *x.shape, ROWS=16, COLUMNS=64)
    return out
"""


@pytest.mark.parametrize(
    ("value", "left"),
    [
        ("x * 2", ["ROWS", "COLUMNS"]),
        ("x / tl.sum(x, axis=1)[:, None]", ["ROWS"]),
        ("x / tl.sum(x, axis=0)[None, :]", ["COLUMNS"]),
        ("x / x.sum(-1, keep_dims=True)", ["ROWS"]),
        ("x / tl.sum(tl.trans(x), axis=0)[:, None]", ["ROWS"]),
        ("x / tl.sum(x)", []),
        ("x * tl.load(out_ptr + pid_c * 7 + rows)[:, None]", ["ROWS"]),
    ],
)
def test_of_a_tile_only_the_axis_that_is_put_together_stays(value: str, left: list[str]) -> None:
    text = TILES.replace("VALUE", value).replace(
        "x, out, *x.shape,", "x, out, x.shape[0], x.shape[1],"
    )
    assert found(text, "tile_kernel") == left


GRIDS = """\
import math
import torch
import triton
import triton.language as tl
from triton import cdiv


@triton.jit
def square_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    tl.store(out_ptr + at, x * x, mask=at < n)


# kernel-lsp: workload x=f32[4096]
def run(x):
    out = torch.empty_like(x)
    n = x.numel()
    BLOCK = 256
    BEFORE
    square_kernel[GRID](x, out, n, BLOCK=BLOCK)
    return out
"""
FUNCTION = 'def grid(meta):\n        return (triton.cdiv(n, meta["BLOCK"]),)'


@pytest.mark.parametrize(
    ("before", "grid", "follows"),
    [
        ("pass", "(cdiv(n, BLOCK),)", True),
        ("pass", "[triton.cdiv(n, BLOCK)]", True),
        ("pass", "((n + BLOCK - 1) // BLOCK,)", True),
        ("pass", "((n + (BLOCK - 1)) // BLOCK, 1)", True),
        ("count = triton.cdiv(n, BLOCK)", "(count,)", True),
        (FUNCTION, "grid", True),
        ("pass", "((n + BLOCK) // BLOCK,)", False),
        ("pass", "(n // BLOCK,)", False),
        ("pass", "(1, triton.cdiv(n, BLOCK))", False),
        ("count = triton.cdiv(n, BLOCK)\n    count = 16", "(count,)", False),
        (FUNCTION.replace("return", "n = 7\n        return"), "grid", False),
        (FUNCTION + "\n    grid = (16,)", "grid", False),
    ],
)
def test_a_grid_may_be_written_in_any_way_that_rounds_up(
    before: str, grid: str, follows: bool
) -> None:
    text = GRIDS.replace("BEFORE", before).replace("GRID", grid)
    assert found(text, "square_kernel") == (["BLOCK"] if follows else [])
    session = opened(text, "square_kernel", "triton-unmasked")
    assert bool(session.capture().sites) is follows
    assert not session.notes


PRODUCT = """\
import torch
import triton
import triton.language as tl


@triton.jit
def twice(x):
    return x * 2.0


@triton.jit
def rows_here(ROWS: tl.constexpr):
    return tl.program_id(0) * ROWS + tl.arange(0, ROWS)


@triton.jit
def indirect(ROWS: tl.constexpr):
    return rows_here(ROWS)


@triton.jit
def product_kernel(a_ptr, b_ptr, out_ptr, n, length, SIZE: tl.constexpr, LENGTH: tl.constexpr):
    row = tl.program_id(0)
    BETWEEN
    column = tl.program_id(1)
    rows, columns = row * SIZE + tl.arange(0, SIZE), column * SIZE + tl.arange(0, SIZE)
    inner = tl.arange(0, LENGTH)
    a = tl.load(a_ptr + rows[:, None] * length + inner[None, :], mask=rows[:, None] < n)
    b = tl.load(b_ptr + inner[:, None] * n + columns[None, :], mask=columns[None, :] < n)
    PLACE
    tl.store(out_ptr + rows[:, None] * n + columns[None, :], twice(tl.dot(a, b)), mask=rows[:, None] < n)


# kernel-lsp: workload a=f16[8192,64] b=f16[64,8192]
def run(a, b):
    n, length = a.shape
    out = torch.empty((n, n), dtype=a.dtype, device=a.device)
    product_kernel[(triton.cdiv(n, 64), triton.cdiv(n, 64))](a, b, out, n, length, SIZE=64, LENGTH=64)
    return out
"""


@pytest.mark.parametrize(
    ("between", "place", "offered"),
    [
        ("pass", "pass", True),
        ("a_ptr += 0", "pass", True),
        ("a_ptr += row * 0", "pass", False),
        ("if row > 7:\n        a_ptr += 0", "pass", False),
        ("pass", "rows = rows_here(SIZE)", False),
        ("pass", "rows = indirect(SIZE)", False),
    ],
)
def test_programs_are_reordered_where_nothing_knows_the_old_order(
    between: str, place: str, offered: bool
) -> None:
    text = PRODUCT.replace("BETWEEN", between).replace("PLACE", place)
    session = opened(text, "product_kernel", "triton-grouped-order")
    assert bool(session.capture().sites) is offered
    assert not session.notes


SUMS = """\
import torch
import triton
import triton.language as tl


@triton.jit
def sum_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr, WHOLE: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    LOOP
        place = start + at
        total += tl.load(x_ptr + row * n + place, mask=place < n, other=0.0)
    tl.store(out_ptr + row, tl.sum(total))


# kernel-lsp: workload x=f32[64,4096]
def run(x):
    out = torch.empty(x.shape[0])
    BLOCK = min(1024, triton.next_power_of_2(x.shape[1]))
    sum_kernel[(x.shape[0],)](x, out, x.shape[1], BLOCK, False)
    return out
"""
TURNS, BEFORE, READ = (
    "for start in range(0, n, BLOCK):",
    "total = tl.zeros",
    "tl.load(x_ptr + row * n + ",
)
FLAGGED = f"""if WHOLE:
        place = at
        total += {READ}place, mask=place < n, other=0.0)
    else:
        {TURNS}
            place = start + at
            total += {READ}place, mask=place < n, other=0.0)
"""
GONE_ON = f"""place = at
    pointers = x_ptr + row * n + at
    {TURNS}
        total += tl.load(pointers, mask=start + at < n, other=0.0)
        pointers += BLOCK
"""


@pytest.mark.parametrize(
    ("changes", "free"),
    [
        ((), True),
        ((("start in range(0, n, BLOCK)", "turn in range(tl.cdiv(n, BLOCK))"),
          ("start +", "turn * BLOCK +")), True),
        ((("tl.store(", "tl.store(out_ptr + place, total, mask=place < n)\n    "
                        "tl.store("),), False),
        ((("tl.store(", f"total += {READ}at, mask=at < n)\n    tl.store("),), False),
        (((BEFORE, f"largest = {READ}at, mask=at < n)\n    {BEFORE}"),), False),
        ((("place = start + at\n", "place = start + at if WHOLE else at\n"),), False),
        ((("start + at\n", "start + at\n        if WHOLE:\n            place = at\n"),), False),
        ((("+ at\n", "+ at\n        inside = place < n\n        if WHOLE:\n            inside = "
                     "row < n\n"),
          ("mask=place < n", "mask=inside")), None),
    ],
    ids=["a loop", "turns", "stored behind the loop", "read behind the loop", "read before the loop",
         "one of two places", "set anew in a branch", "a mask of one path"],
)  # fmt: skip
def test_each_access_goes_through_the_blocks_on_every_path(
    changes: tuple[tuple[str, str], ...], free: bool | None
) -> None:
    text = SUMS.replace("LOOP", TURNS)
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    made = adjustable(opened(text, "sum_kernel").kernel)
    assert [(one.name, one.masked) for one in made] == (
        [] if free is False else [("BLOCK", free is True)]
    )


@pytest.mark.parametrize(("loop", "free"), [(FLAGGED, False), (GONE_ON, True)])
def test_a_branch_that_holds_the_row_says_nothing_of_the_loop_beside_it(
    loop: str, free: bool
) -> None:
    first, last = SUMS.index("    LOOP"), SUMS.index("    tl.store")
    text = SUMS[:first] + "    " + loop + SUMS[last:]
    assert found(text, "sum_kernel") == (["BLOCK"] if free else [])


@pytest.mark.parametrize(
    ("flag", "free"),
    [("x.shape[1] % 64 == 0", True), ("x.shape[1] % BLOCK == 0", False), ("even", False)],
)
def test_a_block_that_another_argument_comes_from_stays(flag: str, free: bool) -> None:
    text = SUMS.replace("LOOP", TURNS).replace("BLOCK, False)", f"BLOCK, {flag})")
    text = text.replace("    sum_kernel[", "    even = x.shape[1] % BLOCK == 0\n    sum_kernel[")
    assert found(text, "sum_kernel") == (["BLOCK"] if free else [])


def test_without_masks_a_computed_block_keeps_its_size() -> None:
    """The launcher's flag asks whether today's block divides the row."""
    session = opened(
        SUMS.replace("LOOP", TURNS), "sum_kernel", "triton-block-size", "triton-unmasked"
    )
    sites = {site.skill: site.site for site in session.capture().sites}
    left = session.look([Step(skill="triton-unmasked", site=sites["triton-unmasked"])])
    assert "triton-block-size" in sites and "triton-block-size" not in {one.skill for one in left}
