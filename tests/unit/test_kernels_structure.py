"""Skills that change how a Triton kernel goes through its data: where they must not, and what comes out.

What they write is in tests/cases/golden. Everything is computed in one process by Triton's interpreter.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from golden_helpers import GOLDEN, rewritten
from rewrite_helpers import skill

from kernel_lsp.pipeline.prepare import Prepared, prepare
from kernel_lsp.records import Job
from kernel_lsp.rewrite.kernels.session import KernelSession

pytestmark = pytest.mark.torch
pytest.importorskip("torch")
pytest.importorskip("triton")


def offered(text: str, kernel: str, name: str) -> bool:
    """Whether the skill applies somewhere, all proofs holding. A skill that fails is an error here."""
    made = prepare(Job(text=text, path="/w/kernels.py", qualname=kernel, device="cuda"))
    assert isinstance(made, Prepared), made
    session = KernelSession(made.program, made.workload, "cuda", [skill(name)])
    sites = session.capture().sites
    assert not session.notes
    return bool(sites)


def changed(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new)


KERNELS = {
    "triton-whole-row": "log_softmax_kernel",
}
NEAR_MISSES = {
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
            "tl.store(out_ptr + row * n_classes, shift)\n    total = tl.load(out_ptr + row * n_classes + 1)",
        ),
        "rows too long": ("scores=f32[4096,8000]", "scores=f32[4096,80000]"),
        "a row is one block already": ("f32[4096,8000]", "f32[4096,500]"),
        "another launcher": (
            "# kernel-lsp",
            "def other(x, out):\n    log_softmax_kernel[(4,)](x, out, 9, BLOCK=4)\n\n\n# kernel-lsp",
        ),
        "a value across lanes": ("tl.exp(scores - shift)", "tl.cumsum(tl.exp(scores - shift))"),
    },
}
MISSES = [(name, why) for name, cases in NEAR_MISSES.items() for why in cases]


@pytest.mark.parametrize("name", KERNELS)
def test_it_is_offered_for_its_example(name: str) -> None:
    assert offered((GOLDEN / f"{name}.in.py").read_text(), KERNELS[name], name)


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
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance, equal_nan=True)
        if inputs[0].numel():
            inputs[0][0, 0] = float("nan"); inputs[0][-1, :] = float("-inf")
            expected, found = one(*inputs), two(*inputs)
            torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance, equal_nan=True)
"""
RUNS = {
    "triton-whole-row": ("log_softmax", ["3x700:float32", "2x1024:float32", "1x16390:float32"]),
}


def test_rewritten_kernels_compute_the_same_in_the_interpreter(tmp_path: Path) -> None:
    cases = []
    for name, (launcher, shapes) in RUNS.items():
        after = tmp_path / f"{name}.py"
        after.write_text(rewritten(name))
        cases.append([str(GOLDEN / f"{name}.in.py"), str(after), launcher, shapes, 1e-5])
    done = subprocess.run(
        [sys.executable, "-c", COMPARE, json.dumps(cases)],
        env={"TRITON_INTERPRET": "1", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
