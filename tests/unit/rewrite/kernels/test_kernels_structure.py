"""Skills that change how a Triton kernel goes through its data: where they must not, and what
comes out.

What they write is in tests/cases/golden. Everything is computed in one process by Triton's
interpreter."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from golden_helpers import GOLDEN, rewritten
from rewrite_helpers import interpreted, skill

from kernel_lsp.errors import RewriteError
from kernel_lsp.pipeline.prepare import PreparedJob, prepare
from kernel_lsp.records import Job, Step
from kernel_lsp.rewrite.edit import apply_edit
from kernel_lsp.rewrite.kernels.session import KernelSession

pytestmark = pytest.mark.torch
pytest.importorskip("torch")
pytest.importorskip("triton")


def offered(text: str, kernel: str, name: str, elsewhere: str | None = None) -> bool:
    """Whether the skill applies somewhere, all proofs holding. A skill that fails is an error
    here."""
    made = prepare(Job(text=text, path="/w/kernels.py", qualname=kernel, device="cuda"))
    assert isinstance(made, PreparedJob), made
    program = replace(made.program, elsewhere=elsewhere)
    session = KernelSession(program, made.workload, "cuda", [skill(name)])
    sites = session.capture().sites
    assert not session.notes
    return bool(sites)


def changed(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new)


KERNELS = {
    "triton-fused-launches": "scale_kernel",
    "triton-online": "softmax_kernel",
    "triton-persistent": "rms_norm_kernel",
    "triton-split-k": "weight_kernel",
    "triton-whole-row": "log_softmax_kernel",
}
NEAR_MISSES = {
    "triton-fused-launches": {
        "another grid": ("gate_kernel[(n_rows,)]", "gate_kernel[(n_rows - 1,)]"),
        "another block": ("out, width, SIZE=block", "out, width, SIZE=block * 2"),
        "other columns": ("(row * n_columns + cols), mask", "(row * n_columns + cols + 1), mask"),
        "another program's row": (
            "(row * n_columns + cols), mask",
            "((row + 1) * n_columns + cols), mask",
        ),
        "another mask": ("    mask = cols < n_columns", "    mask = cols < n_columns - 1"),
        "the second reduces": ("x * tl.sigmoid(gate)", "x / tl.sum(gate, axis=0)"),
        "the second writes what the first reads": ("gate, out, width", "gate, x, width"),
        "the second reads what the first writes elsewhere": (
            "gate_ptr + row * n_columns",
            "normed_ptr + 1 + row * n_columns",
        ),
        "the caller's tensor may be the first's input": (
            "gate: torch.Tensor) -> torch.Tensor:",
            "gate: torch.Tensor, y: torch.Tensor = None) -> torch.Tensor:\n    gate = y if y "
            "else gate",
        ),
        "the first ends early": (
            "    place = row",
            "    if row > 3:\n        return\n    place = row",
        ),
        "the first stores in a branch": (
            "    tl.store(normed_ptr + place, x * scale, mask=mask)",
            "    if row > 3:\n        tl.store(normed_ptr + place, x * scale, mask=mask)",
        ),
        "an address that changes": (
            "    place = row * width + columns\n",
            "    place = row * width\n    place += columns\n",
        ),
        "something happens in between": (
            "    out = torch",
            "    normed.add_(1.0)\n    out = torch",
        ),
        "a dtype that is not known": (
            "normed = torch.empty_like(x)",
            "normed = torch.empty(x.shape)",
        ),
        "memory of somebody else": ("normed = torch.empty_like(x)", "normed = x.view(x.shape)"),
        "another launcher": (
            "# kernel-lsp",
            "def other(x, out):\n    scale_kernel[(4,)](x, out, 4, BLOCK=4)\n\n\n# kernel-lsp",
        ),
    },
    "triton-online": {
        "the loops read different tensors": (
            'scores = tl.load(scores_ptr + row * n_tokens + tokens, mask=mask, other=float("-inf"))'
            ".to(tl.float32)\n        total",
            'scores = tl.load(out_ptr + row * n_tokens + tokens, mask=mask, other=float("-inf"))'
            ".to(tl.float32)\n        total",
        ),
        "another multiple in the second loop": (
            "total += tl.exp(scores -",
            "total += tl.exp(2 * scores -",
        ),
        "no exponential": ("total += tl.exp(scores - shift)", "total += scores - shift"),
        "the maximum is scaled": ("tl.max(largest, axis=0)\n", "tl.max(largest, axis=0) * 0.5\n"),
        "the sum begins at something": ("tl.zeros((BLOCK,), dtype", "tl.full((BLOCK,), 1.0, dtype"),
        "the maximum begins at 0": ('(BLOCK,), float("-inf")', "(BLOCK,), 0.0"),
        "sums in half precision": ("dtype=tl.float32", "dtype=tl.float16"),
        "the first loop stores": (
            "        largest = tl.max",
            "        tl.store(out_ptr + tokens, scores, mask=mask)\n        largest = tl.max",
        ),
        "the loops end elsewhere": (
            "= 1.0 / tl.sum(total, axis=0)\n    for start in range(0, n_tokens, BLOCK)",
            "= 1.0 / tl.sum(total, axis=0)\n    for start in range(0, n_tokens - 1, BLOCK)",
        ),
        "what lies between needs the sum": (
            "dtype=tl.float32)\n",
            "dtype=tl.float32)\n    early = tl.sum(total, axis=0) + 1.0\n",
        ),
    },
    "triton-persistent": {
        "programs add to one place": (
            "    tl.store(",
            "    tl.atomic_add(weight_ptr, 1.0)\n    tl.store(",
        ),
        "a program ends early": ("    x_ptr +=", "    if row > 9:\n        return\n    x_ptr +="),
        "a program waits": (
            "    x_ptr +=",
            "    while tl.load(out_ptr) != 0:\n        pass\n    x_ptr +=",
        ),
        "a wrapper around the kernel": (
            "@triton.jit\n",
            "def kept(kernel):\n    return kernel\n\n\n@kept\n@triton.jit\n",
        ),
        "a second axis": ("columns = tl", "columns = tl.program_id(1) + tl"),
        "a size that changes": (
            "    rms_norm_kernel[grid]",
            "    x = x.view(-1, 1024)\n    rms_norm_kernel[grid]",
        ),
        "nothing is the same for all rows": ("weight_ptr + columns", "weight_ptr + row + columns"),
        "few rows": ("x=bf16[65536,1024]", "x=bf16[132,1024]"),
        "a grid of which the text says nothing": (
            "grid = (x.shape[0],)",
            "grid = tuple(x.shape[:1])",
        ),
        "another launcher": (
            "# kernel-lsp",
            "def other(x, out):\n    rms_norm_kernel[(4,)](x, x, out, 4, 0.0, BLOCK=4)\n\n\n# "
            "kernel-lsp",
        ),
        "a function that may know its program": ("tl.sum(x * x, axis=0)", "triton.testing.f(x)"),
    },
    "triton-split-k": {
        "something is done with the sum": ("total.to(tl.bfloat16)", "tl.maximum(total, 0.0)"),
        "the sum is read elsewhere": (
            "    mask = out_mask",
            "    total += 1.0\n    mask = out_mask",
        ),
        "the sum begins at something": (
            "tl.zeros((BLOCK_O, BLOCK_I), dtype",
            "tl.full((BLOCK_O, BLOCK_I), 1.0, dtype",
        ),
        "sums in half precision": ("dtype=tl.float32", "dtype=tl.float16"),
        "a turn depends on the one before": (
            "        row_mask = rows",
            "        n_out = n_out + 1\n        row_mask = rows",
        ),
        "the last piece is used": (
            "    mask = out_mask[:, None] & in",
            "    mask = grad_mask[:, :1] & out_mask[:, None] & in",
        ),
        "another dtype than the result's": ("total.to(tl.bfloat16)", "total.to(tl.float16)"),
        "the result keeps what it had": ("out = torch.empty(", "out = torch.zeros("),
        "the result is written before": ("    grid = (tri", "    out.zero_()\n    grid = (tri"),
        "the launch is repeated": (
            "    weight_kernel[grid](grad,",
            "    for _ in range(2):\n        weight_kernel[grid](grad,",
        ),
        "an operand is the result": ("[grid](grad, x, out", "[grid](grad, out.view(-1), out"),
        "enough tiles": ("x=bf16[65536,256]", "x=bf16[65536,8192]"),
        "a short sum": (
            "grad=bf16[65536,128] x=bf16[65536,256]",
            "grad=bf16[256,128] x=bf16[256,256]",
        ),
        "programs that add": (
            "    tl.store(out_ptr",
            "    tl.atomic_add(grad_ptr, 0.0)\n    tl.store(out_ptr",
        ),
        "another launcher": (
            "# kernel-lsp",
            "def other(a):\n    weight_kernel[(1, 1)](a, a, a, 4, 4, 4, 16, 16, 16)\n\n\n# "
            "kernel-lsp",
        ),
    },
    "triton-whole-row": {
        "lanes behind the end count": (
            'other=float("-inf"))\n        total',
            "other=0.0)\n        total",
        ),
        "a load without a mask": (", mask=mask, other=0.0)", ")"),
        "each lane's own share is used": ("scores - shift - ", "scores - largest - "),
        "a number of pieces": ("total += tl", "total += 1 + tl"),
        "where a piece begins is a value": ("scores - shift - ", "scores - start - shift - "),
        "what is stored is read elsewhere": (
            "total = 0.0",
            "tl.store(out_ptr + row * n_classes, shift)\n    total = tl.load(out_ptr + row * "
            "n_classes + 1)",
        ),
        "an extreme of each piece": (
            "        tl.store(out",
            "        tl.store(out_ptr + row, tl.max(scores, axis=0))\n        tl.store(out",
        ),
        "a store that another mask ends": (
            "shift - tl.log(total), mask=mask",
            "shift, mask=classes != 3",
        ),
        "rows too long": ("scores=f32[4096,8000]", "scores=f32[4096,80000]"),
        "a row is one block already": ("f32[4096,8000]", "f32[4096,500]"),
        "another launcher": (
            "# kernel-lsp",
            "def other(x, out):\n    log_softmax_kernel[(4,)](x, out, 9, BLOCK=4)\n\n\n# "
            "kernel-lsp",
        ),
        "a value across lanes": ("tl.exp(scores - shift)", "tl.cumsum(tl.exp(scores - shift))"),
    },
}
MISSES = [(name, why) for name, cases in NEAR_MISSES.items() for why in cases]


@pytest.mark.parametrize("name", KERNELS)
def test_it_is_offered_for_its_example(name: str) -> None:
    assert offered((GOLDEN / f"{name}.in.py").read_text(), KERNELS[name], name)


@pytest.mark.parametrize("name", sorted(set(KERNELS) - {"triton-online"}))
def test_a_kernel_that_other_files_name_keeps_its_parameters(name: str) -> None:
    text = (GOLDEN / f"{name}.in.py").read_text()
    assert not offered(text, KERNELS[name], name, elsewhere="test_kernels.py")


@pytest.mark.parametrize(("name", "why"), MISSES, ids=[f"{name}: {why}" for name, why in MISSES])
def test_it_is_not_offered_where_that_is_not_proved(name: str, why: str) -> None:
    text = (GOLDEN / f"{name}.in.py").read_text()
    assert not offered(changed(text, *NEAR_MISSES[name][why]), KERNELS[name], name)


COMPARE = """
import json, sys, runpy, torch
def made(spec):
    shape, dtype = spec.split(":")
    x = torch.randn(*map(int, shape.split("x")))
    return (x * 4 + 30).to(getattr(torch, dtype)) if x.numel() else x
for before, after, name, shapes, tolerance in json.loads(sys.argv[1]):
    one, two = (runpy.run_path(path)[name] for path in (before, after))
    for shape in shapes:
        torch.manual_seed(0)
        inputs = [made(spec) for spec in shape.split(",")]
        expected, found = one(*inputs), two(*inputs)
        if found.dtype == torch.bfloat16:
            tolerance = 8e-3  # one step of bfloat16
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance, equal_nan=True)
        if inputs[0].numel():
            inputs[0][0, 0] = float("nan"); inputs[0][-1, :] = float("-inf")
            expected, found = one(*inputs), two(*inputs)
            torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance, equal_nan=True)
"""
RUNS = {
    "triton-split-k": ("weight_gradient", ["300x70:float32,300x40:float32"]),
    "triton-fused-launches": (
        "gated_norm",
        ["3x50:float32,3x50:float32", "2x40:bfloat16,2x40:bfloat16"],
    ),
    "triton-persistent": ("rms_norm", ["10x5:float32,5:float32"]),
    "triton-online": ("softmax", ["2x5000:float32", "1x4096:bfloat16"]),
    "triton-whole-row": ("log_softmax", ["2x700:float32", "1x1024:float32", "1x16390:float32"]),
}
SUITE = Path(__file__).resolve().parents[4] / "benchmarks" / "triton"
SHORT = "a=bf16[8192,512] b=bf16[512,8192]"
NORM = SUITE / "rows.py"


def applied(text: str, kernel: str, name: str) -> str:
    made = prepare(Job(text=text, path="/w/kernels.py", qualname=kernel, device="cuda"))
    assert isinstance(made, PreparedJob), made
    session = KernelSession(made.program, made.workload, "cuda", [skill(name)])
    site = session.capture().sites[0]
    candidate = session.make([Step(skill=name, site=site.site)])
    assert candidate.edit is not None
    return apply_edit(text, made.target.span, candidate.edit)


def test_rewritten_kernels_compute_the_same_in_the_interpreter(tmp_path: Path) -> None:
    texts = [
        ((GOLDEN / f"{name}.in.py").read_text(), rewritten(name), *RUNS[name]) for name in RUNS
    ]
    norm = NORM.read_text()
    shapes = ["2x300:float32,300:float32,300:float32"]
    texts.append((norm, applied(norm, "layer_norm_kernel", "triton-online"), "layer_norm", shapes))
    product = changed(
        (SUITE / "products.py").read_text(), "a=bf16[8192,4096] b=bf16[4096,8192]", SHORT
    )
    shapes = ["130x30:bfloat16,30x70:bfloat16"]
    texts.append((product, applied(product, "half_kernel", "triton-persistent"), "half", shapes))
    cases = []
    for number, (before, after, launcher, shapes) in enumerate(texts):
        paths = [tmp_path / f"{number}_{kind}.py" for kind in ("before", "after")]
        for path, text in zip(paths, (before, after), strict=True):
            # Three programs instead of hundreds: each of a persistent kernel's has several tiles.
            path.write_text(re.sub(r"min\(tiles, \d+\)", "min(tiles, 3)", text))
        cases.append([*map(str, paths), launcher, shapes, 1e-5])
    interpreted(COMPARE, json.dumps(cases))


def test_pieces_of_a_row_have_another_size_before_it_is_one_block_and_not_behind(
    tmp_path: Path,
) -> None:
    """One block of another size would be less than the row, and nothing would read the rest of
    it."""
    before = GOLDEN / "triton-whole-row.in.py"
    text = before.read_text()
    made = prepare(
        Job(text=text, path="/w/kernels.py", qualname="log_softmax_kernel", device="cuda")
    )
    assert isinstance(made, PreparedJob), made
    skills = [
        skill(name) for name in ("triton-block-size", "triton-whole-row", "triton-launch-options")
    ]
    session = KernelSession(made.program, made.workload, "cuda", skills)
    row = Step(skill="triton-whole-row", site="row")
    block = Step(skill="triton-block-size", site="BLOCK", parameters={"BLOCK": 256})
    assert {one.skill for one in session.look([row])} == {"triton-launch-options"}
    with pytest.raises(RewriteError, match="does not apply"):
        session.make([row, block])
    after = tmp_path / "after.py"
    after.write_text(session.make([block, row]).program)
    assert "if whole_row else 256" in after.read_text()
    launcher, shapes = RUNS["triton-whole-row"]
    interpreted(COMPARE, json.dumps([[str(before), str(after), launcher, shapes[:2], 1e-5]]))


def test_what_no_program_changes_moves_before_the_loop_unless_it_may_be_written() -> None:
    text = (GOLDEN / "triton-persistent.in.py").read_text()
    before, after = applied(text, "rms_norm_kernel", "triton-persistent").split("for tile in")
    assert "weight = tl.load" in before and "tl.load" in after
    given = changed(text, "weight: torch.Tensor) ->", "weight: torch.Tensor, out: torch.Tensor) ->")
    given = changed(given, "    out = torch.empty_like(x)\n", "")
    given = changed(given, "weight=bf16[1024]\n", "weight=bf16[1024] out=bf16[65536,1024]\n")
    assert not offered(given, "rms_norm_kernel", "triton-persistent")


def test_what_something_else_reads_is_still_stored() -> None:
    text = (GOLDEN / "triton-fused-launches.in.py").read_text()
    made = applied(
        changed(text, "return out", "return out, normed"), "scale_kernel", "triton-fused-launches"
    )
    first = made.split("def gate_kernel")[0]
    assert "tl.store(normed_ptr + place" in first and "tl.store(out_ptr + row" in first
    in_place = changed(
        text,
        "gate_kernel[(n_rows,)](normed, gate, out",
        "gate_kernel[(n_rows,)](normed, gate, normed",
    )
    made = applied(
        changed(in_place, "return out", "return normed"), "scale_kernel", "triton-fused-launches"
    )
    assert made.split("def gate_kernel")[0].count("tl.store(normed_ptr + row") == 1


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("x - mean, 0.0)", "x - mean, 1.0)"),
        ("tl.where(column < columns, x - mean", "tl.where(column < columns - 1, x - mean"),
        ("mean = tl.sum(total, axis=0) / columns", "mean = tl.sum(total, axis=0) / (columns - 1)"),
        ("square += away * away", "square += away * tl.abs(away)"),
        (
            "columns + column, mask=column < columns, other=0.0)\n    mean",
            "columns + column, mask=column < columns)\n    mean",
        ),
        ("rsqrt(tl.sum(square", "rsqrt(tl.sum(total) + tl.sum(square"),
    ],
    ids=[
        "not 0 behind the end",
        "another mask",
        "another mean",
        "no squares",
        "unknown behind the end",
        "the sum is needed",
    ],
)
def test_a_variance_that_is_not_proved_keeps_its_two_loops(old: str, new: str) -> None:
    assert not offered(changed(NORM.read_text(), old, new), "layer_norm_kernel", "triton-online")
