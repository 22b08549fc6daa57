"""Kernels written or launched in unusual ways: each opens, or is refused with a cause and a way
out."""

import pytest
from rewrite_helpers import skill

from kernel_lsp.errors import CaptureError
from kernel_lsp.pipeline.prepare import PreparedJob, prepare
from kernel_lsp.records import Job, Outcome
from kernel_lsp.rewrite.kernels.harness import written_arguments
from kernel_lsp.rewrite.kernels.session import KernelSession
from kernel_lsp.rewrite.kernels.source import KernelSource

pytestmark = pytest.mark.torch
pytest.importorskip("torch")
pytest.importorskip("triton")

SKILLS = ("block-size", "launch-options", "tuned-configs")
HEAD = """\
import torch
import triton
import triton.language as tl
IMPORTS

HELPERS


@triton.jit
def double_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    tl.store(out_ptr + offsets, VALUE, mask=offsets < n)


# kernel-lsp: workload x=f32[1000]
def double(x):
    out = torch.empty_like(x)
    LAUNCH
    return out
"""
PLAIN = "double_kernel[(triton.cdiv(x.numel(), 128),)](x, out, x.numel(), BLOCK=128)"
TUNED = "double_kernel[lambda meta: (triton.cdiv(x.numel(), meta['BLOCK']),)](x, out, x.numel())"
ASSEMBLY = "tl.inline_asm_elementwise('add.f32 $0, $1, $1;', '=r,r', [x], tl.float32, True, 1)"
CONFIGS = "[triton.Config({'BLOCK': 64}, num_warps=1), triton.Config({'BLOCK': 128})]"
HEURISTIC = "@triton.heuristics({'BLOCK': lambda given: 128 if given['n'] > 9 else 64})"


def text(
    launch: str = PLAIN,
    value: str = "x + x",
    *,
    imports: str = "",
    helpers: str = "",
    before: str = "",
) -> str:
    made = HEAD.replace("LAUNCH", launch).replace("VALUE", value).replace("IMPORTS", imports)
    return made.replace("HELPERS", helpers).replace(
        "@triton.jit\ndef double_k", f"{before}@triton.jit\ndef double_k"
    )


OPENS = {
    "inline assembly": text(value=ASSEMBLY),
    "libdevice": text(
        value="libdevice.tanh(x)", imports="from triton.language.extra import libdevice"
    ),
    "a function of another module": text(
        value="sigmoid(x)", imports="from triton.language.standard import sigmoid"
    ),
    "a constexpr function": text(
        value="x * twice(1)", helpers="@triton.constexpr_function\ndef twice(n):\n    return 2 * n"
    ),
    "heuristics": text(TUNED, before=HEURISTIC + "\n"),
    "autotune with pruning": text(
        TUNED,
        helpers="def some(configs, named_args, **kwargs):\n    return configs[:1]",
        before=f"@triton.autotune({CONFIGS}, key=['n'], prune_configs_by={{'early_config_prune': "
        f"some}})\n",
    ),
    "autotune over heuristics": text(
        TUNED,
        before="@triton.autotune([triton.Config({}, num_warps=w) for w in (2, 4)], key=['n'])\n"
        + HEURISTIC
        + "\n",
    ),
    "a tuner of a library": text(
        TUNED,
        helpers="class Tuner(triton.runtime.Autotuner):\n    def run(self, *args, **kwargs):\n"
        "        raise RuntimeError('measures')\n\n\ndef tuner(configs, key):\n"
        "    return lambda fn: Tuner(fn, fn.arg_names, configs, key, None, None)",
        before=f"@tuner(configs={CONFIGS}, key=['n'])\n",
    ),
    "a wrapper that keeps what it compiled": text(
        PLAIN,
        helpers="class Entry(triton.KernelInterface):\n    def __init__(self, fn):\n        "
        "self.fn = fn\n\n"
        "    def run(self, *args, grid, **kwargs):\n        made = self.fn.run(*args, grid=grid, "
        "**kwargs)\n"
        "        made[grid](*args)\n",
        before="@Entry\n",
    ),
    "starred arguments": text("double_kernel[(8,)](*(x, out, x.numel()), BLOCK=128)"),
    "a launch that is kept": text("run = double_kernel[(8,)]\n    run(x, out, 1000, BLOCK=128)"),
    "a launch with some arguments": text(
        "functools.partial(double_kernel[(8,)], x, out)(1000, BLOCK=128)",
        imports="import functools",
    ),
    "properties of the GPU": text(
        "sms = torch.cuda.get_device_properties(x.device).multi_processor_count\n    "
        "double_kernel[(min(sms, 8),)](x, out, x.numel(), BLOCK=128)"
    ),
}


@pytest.mark.parametrize("source", OPENS.values(), ids=OPENS)
def test_it_opens(source: str) -> None:
    made = prepare(Job(text=source, path="/w/kernels.py", qualname="double_kernel", device="cuda"))
    assert isinstance(made, PreparedJob), made
    session = KernelSession(
        made.program, made.workload, "cuda", [skill(f"triton-{name}") for name in SKILLS]
    )
    launch = session.kernel.launched[0]
    assert launch.kernel == "double_kernel" and launch.arguments["n"] == 1000
    assert session.capture().notes == ()
    for site in session.capture().sites:
        assert all(proof.holds for proof in site.proofs)


REFUSED = {
    "through another function": (
        text("start(double_kernel, x, out)", helpers="def start(k, *given):\n    k[(8,)](*given, "
                                                     "9, 128)"),
        "no function of this file launches double_kernel as double_kernel[grid](…): write one",
    ),
    "from C++": (text("torch.ops.mine.launch(x, out)"), "no function of this file launches"),
    "an extension that is not there": (
        text(imports="import my_extension", launch="my_extension.check(x)\n    " + PLAIN),
        "imports my_extension, which is not installed (choose the project's interpreter",
    ),
    "relative imports": (
        text(imports="from .sizes import LENGTH", launch="x = x[:LENGTH]\n    " + PLAIN),
        "imports from its own package by dots, which a part of a file cannot (import by",
    ),
    "another kernel for these sizes": (
        text("if x.numel() > 9999:\n        " + PLAIN + "\n    other_kernel[(1,)](x)", helpers=(
            "@triton.jit\ndef other_kernel(x_ptr):\n    tl.store(x_ptr, 1.0)"
        )),
        "launches other kernels than double_kernel for this workload (give a workload",
    ),
    "nothing for these sizes": (
        text("if x.numel() > 9999:\n        " + PLAIN),
        "launched no Triton kernel for this workload (give a workload that launches it)",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("source", "said"), REFUSED.values(), ids=REFUSED)
def test_it_is_refused_in_one_line(source: str, said: str) -> None:
    made = prepare(Job(text=source, path="/w/kernels.py", qualname="double_kernel", device="cuda"))
    if isinstance(made, Outcome):
        told = str(made.note)
    else:
        with pytest.raises(CaptureError) as refused:
            KernelSession(made.program, made.workload, "cuda", [])
        told = str(refused.value)
    assert said in told and "\n" not in told


def test_what_stars_may_hide_is_copied() -> None:
    source = text("args = (x, out)\n    double_kernel[(8,)](*args, 1000, BLOCK=128)")
    assert written_arguments(KernelSource.parse(source, "double_kernel", "double")) == ["x"]
