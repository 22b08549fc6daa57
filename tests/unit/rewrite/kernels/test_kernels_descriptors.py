"""Tiles by tensor descriptors: which accesses are tiles, which lanes may differ, and what a call
is asked.

Values come from Triton's interpreter, code for sm_90 from ptxas. What is written is in
tests/cases/golden."""

import functools
import json
import runpy
from dataclasses import replace
from pathlib import Path

import pytest
from golden_helpers import GOLDEN
from rewrite_helpers import interpreted, skill

from kernel_lsp.evaluator.devices import aot
from kernel_lsp.pipeline.prepare import PreparedJob, prepare
from kernel_lsp.records import Job, Step
from kernel_lsp.rewrite.edit import apply_edit
from kernel_lsp.rewrite.kernels.blocks import adjustable
from kernel_lsp.rewrite.kernels.session import KernelSession
from kernel_lsp.rewrite.kernels.source import KernelSource
from kernel_lsp.rewrite.kernels.tiles import Tiles, accesses

pytestmark = pytest.mark.torch
pytest.importorskip("torch")
pytest.importorskip("triton")

NAME = "triton-descriptors"
SUITE = Path(__file__).resolve().parents[4] / "benchmarks" / "triton"
LINEAR = (GOLDEN / f"{NAME}.in.py").read_text()
LOADS = "x_ptr, weight_ptr"
BOTH = f"{LOADS}, out_ptr"


def changed(text: str, *changes: tuple[str, str]) -> str:
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    return text


def opened(text: str, kernel: str) -> tuple[KernelSession, PreparedJob]:
    made = prepare(Job(text=text, path="/w/kernels.py", qualname=kernel, device="cuda"))
    assert isinstance(made, PreparedJob), made
    return KernelSession(made.program, made.workload, "cuda", [skill(NAME)]), made


@functools.cache
def linear() -> KernelSession:
    return opened(LINEAR, "linear_kernel")[0]


def described(text: str) -> str | None:
    """Pointers of the layer whose tiles a descriptor is offered for, all proofs holding. What is
    launched is what the text in LINEAR launches."""
    kernel, module = linear().kernel, linear().rewrites[NAME]
    kernel = replace(
        kernel, source=KernelSource.parse(text, kernel.source.kernel, kernel.source.launcher)
    )
    found = [
        m for m in module.match(kernel) if all(p.holds for p in module.preconditions(kernel, m))
    ]
    return found[0].label if found else None


def applied(text: str, kernel: str, **parameters: bool) -> str:
    session, made = opened(text, kernel)
    site = session.capture().sites[0]
    candidate = session.make([Step(skill=NAME, site=site.site, parameters=parameters)])
    assert candidate.edit is not None
    return apply_edit(text, made.target.span, candidate.edit)


ZEROS = "    total = tl.zeros"
LOAD = "tl.load(x_ptrs, mask=inner[None, :] < left, other=0.0)"
PLAIN = "x_ptrs = x_ptr + (rows % M)[:, None] * x_stride + inner[None, :]"


@pytest.mark.parametrize(
    ("changes", "left"),
    [
        ([], BOTH),
        ([(PLAIN, PLAIN.replace("rows % M", "M % rows"))], "weight_ptr, out_ptr"),
        ([(PLAIN, PLAIN.replace("inner", "inner * 2"))], "weight_ptr, out_ptr"),
        ([(PLAIN, PLAIN + " + 1")], "weight_ptr, out_ptr"),
        ([(LOAD, LOAD.replace("0.0", "1.0"))], "weight_ptr, out_ptr"),
        ([(LOAD, "tl.load(x_ptrs, inner[None, :] < left, 0.0)")], BOTH),
        ([(LOAD, "tl.load(x_ptrs, inner[None, :] < left, 0.0, (0, 1))")], "weight_ptr, out_ptr"),
        ([(LOAD, LOAD.replace("left", "left - 1"))], "weight_ptr, out_ptr"),
        ([(LOAD, LOAD.replace("other=0.0", "other=0.0, volatile=True"))], "weight_ptr, out_ptr"),
        ([("        x_ptrs += BLOCK_K", "        x_ptrs += BLOCK_K * 2")], "weight_ptr, out_ptr"),
        ([("        x_ptrs += BLOCK_K", "        x_ptrs += start")], "weight_ptr, out_ptr"),
        ([("        x_ptrs +=", "        if left > 9:\n            "
                                "x_ptrs +=")], "weight_ptr, out_ptr"),
        ([("row_block * BLOCK_M + tl", "row_block * BLOCK_M - M + tl")], "weight_ptr"),
        ([("row_block * BLOCK_M + tl", "row_block * 100 + tl")], "weight_ptr"),
        ([("    linear_kernel[grid]", "    out = x if M == N else out\n    "
                                      "linear_kernel[grid]")], None),
        ([("    linear_kernel[grid]", "    done = linear_kernel[grid]")], None),
        ([(ZEROS, f"    out_ptr = out_ptr.to(tl.pointer_type(tl.int8))\n{ZEROS}")], None),
        ([(ZEROS, f"    tl.store(K, 0.0)\n{ZEROS}")], None),
        ([("x, weight, out, M", "*(x, weight), out, M")], None),
        ([("tl.dot(x, weight, total)", "tl.dot(x, helped(weight), total)")], None),
    ],
    ids=str,
)  # fmt: skip
def test_only_what_the_text_shows_to_be_a_tile_is_read_by_a_descriptor(
    changes: list[tuple[str, str]], left: str | None
) -> None:
    text = changed(LINEAR, *changes)
    if "helped" in text:
        text = changed(
            text, ("@triton.jit", "@triton.jit\ndef helped(x):\n    return x\n\n\n@triton.jit")
        )
    assert described(text) == left


MASK = "mask = (rows[:, None] < M) & (columns[None, :] < N)"
SUM = "total = tl.dot(x, weight, total)"


@pytest.mark.parametrize(
    ("changes", "left"),
    [
        ([(MASK, "mask = columns[None, :] < N")], "weight_ptr, out_ptr"),
        ([(MASK, MASK.replace("< M", "< M - 1"))], "weight_ptr"),
        ([(MASK, MASK.replace("< M", "<= M - 1"))], BOTH),
        ([("total.to(", "tl.where(rows[:, None] < M, -total, 0).to(")], BOTH),
        ([("total.to(", "(total - tl.max(total, axis=0)[None, :]).to(")], "out_ptr"),
        ([(SUM, SUM + "\n        total += tl.sum(x, axis=0)[:, None]")], "weight_ptr, out_ptr"),
        ([(SUM, "total = tl.dot(tl.trans(weight), tl.trans(x), total)")], "out_ptr"),
        ([(SUM, SUM + '\n        tl.device_print("x", x)')], "weight_ptr, out_ptr"),
        ([(SUM, "if left > 9:\n            total = tl.dot(x, weight, total)")], "out_ptr"),
        ([("(rows % M)", "rows"), ("(columns % N)", "columns")], BOTH),
    ],
    ids=str,
)
def test_lanes_that_wrap_around_may_become_zeros_where_no_store_has_them(
    changes: list[tuple[str, str]], left: str | None
) -> None:
    assert described(changed(LINEAR, *changes)) == left


TILES = {
    ("products.py", "half_kernel"): ["a_ptr", "b_ptr", "c_ptr"],
    ("products.py", "batched_kernel"): ["a_ptr", "b_ptr", "c_ptr"],
    ("sequences.py", "attention_kernel"): ["q_ptr", "k_ptr", "v_ptr", "out_ptr"],
    ("pointwise.py", "transpose_kernel"): ["x_ptr", "out_ptr"],
    ("rows.py", "softmax_kernel"): [],
}


@pytest.mark.parametrize(("file", "kernel"), TILES)
def test_tiles_of_batches_of_advancing_pointers_and_transposed_ones_are_understood(
    file: str, kernel: str
) -> None:
    session, _ = opened((SUITE / file).read_text(), kernel)
    tiles = Tiles(session.kernel)
    found = [tiles.tile(call, stores=stores) for call, stores in accesses(session.kernel)]
    assert [one.pointer for one in found if not isinstance(one, str)] == TILES[file, kernel]


COMPARE = """
import json, runpy, sys, torch

made = []


def counted(module):
    real = module.__globals__["TensorDescriptor"]
    module.__globals__["TensorDescriptor"] = lambda *a: made.append(a) or real(*a)


def tensor(shape, dtype, how):
    n = 1
    for extent in shape:
        n *= extent
    if how == "misaligned":
        return torch.randn(n + 1).to(dtype)[1:].view(shape)
    if how == "strided":
        return torch.randn(*shape[:-1], shape[-1] + 8).to(dtype)[..., : shape[-1]]
    if how == "expanded":
        return torch.randn(shape[-1]).to(dtype).expand(shape)
    return torch.randn(shape).to(dtype)


torch.manual_seed(0)
for before, after, launcher, cases in json.loads(sys.argv[1]):
    one, two = (runpy.run_path(path)[launcher] for path in (before, after))
    counted(two)
    for shapes, dtype, how, descriptors in cases:
        inputs = [tensor(shape, getattr(torch, dtype), how) for shape in shapes]
        made.clear()
        expected, found = one(*inputs), two(*inputs)
        torch.testing.assert_close(found, expected, rtol=0, atol=0, msg=lambda s: f"{launcher} {shapes}: {s}")
        assert len(made) == descriptors, (launcher, shapes, how, len(made))
"""
SMALL = ([5, 8], [8, 8])
RUNS = {
    "linear": [
        (([20, 40], [24, 40]), "float16", "strided", 3),
        *((SMALL, "float16", how, 0) for how in ("misaligned", "expanded")),
        (SMALL, "float32", "", 0),
        (([5, 9], [8, 9]), "float16", "", 0),
        (([5, 0], [8, 0]), "float16", "", 0),
    ],
    "batched": [(([2, 20, 24], [2, 24, 40]), "float16", "", 3)],
    "transpose": [(([20, 36],), "float32", "", 2)],
}
"""Shapes, dtype, how they lie in memory, and how many descriptors the launcher makes of them."""


def test_what_is_written_computes_the_same_with_and_without_descriptors(tmp_path: Path) -> None:
    small = (("128", "16"), ("BLOCK_K=64", "BLOCK_K=16"), ("[16, 64]", "[16, 16]"))
    texts = {
        "linear": (
            changed(LINEAR, *small[:2]),
            changed(applied(LINEAR, "linear_kernel", stores=True), *small),
        )
    }
    for launcher, file in (("batched", "products.py"), ("transpose", "pointwise.py")):
        text = (SUITE / file).read_text()
        texts[launcher] = text, applied(text, f"{launcher}_kernel", stores=True)
    cases = []
    for launcher, pair in texts.items():
        paths = [tmp_path / f"{launcher}_{kind}.py" for kind in ("before", "after")]
        for path, text in zip(paths, pair, strict=True):
            path.write_text(text)
        cases.append([*map(str, paths), launcher, RUNS[launcher]])
    interpreted(COMPARE, json.dumps(cases))


def test_a_copy_unit_moves_the_tiles_and_no_register_is_spilled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.tools.tensor_descriptor import TensorDescriptor

    from kernel_lsp.evaluator.running import recorder

    path = tmp_path / "linear.py"
    path.write_text(applied(LINEAR, "linear_kernel", stores=True))
    kernel = runpy.run_path(str(path))["linear_kernel"]
    blocks = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32}
    tiles = {"x_tiles": [64, 32], "weight_tiles": [64, 32], "out_tiles": [64, 64]}
    told: dict[str, dict[str, object]]
    told = {
        n: {"type": "*fp16" if n.endswith("ptr") else "i32", "aligned": True}
        for n in kernel.arg_names
    }
    told |= {name: {"type": "constexpr", "constant": size} for name, size in blocks.items()}
    for name, block in tiles.items():
        matrix = torch.empty(128, 128, dtype=torch.float16)
        told[name] = (
            recorder._describe(kernel.fn, name, TensorDescriptor.from_tensor(matrix, block)) or {}
        )
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
    monkeypatch.chdir(tmp_path)
    made = triton.compile(aot._source(kernel, told), target=GPUTarget("cuda", 90, 32))
    assert made.asm["ptx"].count("cp.async.bulk.tensor") >= len(tiles)
    assert "ld.global" not in made.asm["ptx"] and "st.global" not in made.asm["ptx"]
    assert aot._resources(made.asm["ptx"])[1] == 0


@pytest.mark.parametrize(
    ("changes", "left"),
    [
        ([("f16[4096,2048]", "f64[4096,2048]")], "weight_ptr"),
        ([("BLOCK_K=64", "BLOCK_K=4")], "out_ptr"),
        ([("x.stride(0), w", "x.stride(0) + 0.0, w")], "weight_ptr, out_ptr"),
    ],
    ids=str,
)
def test_what_is_launched_must_fit(changes: list[tuple[str, str]], left: str) -> None:
    session, _ = opened(changed(LINEAR, *changes), "linear_kernel")
    assert [site.site for site in session.capture().sites] == [left]
    assert not session.notes


def test_a_block_that_a_descriptor_has_is_not_changed_any_more() -> None:
    text = changed(LINEAR, ("BLOCK_K=64", "BLOCK_K=x.shape[1] // 32"))
    session, _ = opened(text, "linear_kernel")
    step = Step(skill=NAME, site=session.capture().sites[0].site)
    assert "BLOCK_K" in [block.name for block in adjustable(session.kernel)]
    assert adjustable(session._applied([step])[0]) == []


@pytest.mark.parametrize(
    ("old", "new", "left"),
    [
        ("tl.program_id(1)", "tl.program_id(axis=1)", ["BLOCK_M", "BLOCK_N", "BLOCK_K"]),
        (
            "row_block = tl.program_id(0)",
            "row_block = tl.program_id(0) + 0 * M // 2",
            ["BLOCK_N", "BLOCK_K"],
        ),
        ("(triton.cdiv(M, 128), t", "(128, t", ["BLOCK_K"]),
    ],
)
def test_two_blocks_of_one_size_each_have_their_own_extent_of_the_grid(
    old: str, new: str, left: list[str]
) -> None:
    kernel = linear().kernel
    text = changed(LINEAR, (old, new))
    source = KernelSource.parse(text, kernel.source.kernel, kernel.source.launcher)
    found = adjustable(replace(kernel, source=source))
    assert [block.name for block in found] == left
    extents = [block.places[1].col_offset for block in found if block.of_grid]
    assert len(set(extents)) == len(extents)


@pytest.mark.parametrize(
    ("old", "new", "left"),
    [
        ("64, BLOCK_N=64", "64, BLOCK_N=64", ["BLOCK_M", "BLOCK_N", "BLOCK_K"]),
        ('triton.cdiv(M, meta["BLOCK_M"])', "triton.cdiv(M, 64)", ["BLOCK_M", "BLOCK_K"]),
        ("lambda meta: (", "lambda meta: (1 + 0 * 64) * (", ["BLOCK_K"]),
    ],
)
def test_a_grid_that_names_its_blocks_says_which_is_which(
    old: str, new: str, left: list[str]
) -> None:
    text = (SUITE / "products.py").read_text()
    at = text.index("def half_kernel")
    kernel = opened(text, "half_kernel")[0].kernel
    source = KernelSource.parse(text[:at] + changed(text[at:], (old, new)), "half_kernel", "half")
    found = [block.name for block in adjustable(replace(kernel, source=source))]
    assert found == left
