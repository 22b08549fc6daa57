"""Generated kernels against eager and torch.compile on a CUDA device: a table and JSON rows.

    PYTHONPATH=. python3 benchmarks/kernels.py --out results.json [--only softmax] [--seconds 200]

Each row goes the way a user's file goes: capture, match, apply, write source, run it. Results are
checked against a float64 oracle before anything is timed. Times are CUDA events, providers
interleaved, L2 flushed before each rep; GB/s counts each input and output once. A failing row is
reported and the rest goes on. Not covered: launch overhead on an idle CPU (the flush hides it),
gradients."""

from __future__ import annotations

import argparse
import copy
import importlib.util
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from benchmarks.reporting import circumstances, write_record
from kernel_lsp.records import (
    Program,
    Skill,
    Step,
    TargetKind,
    TorchSetting,
    Workload,
    WorkloadOrigin,
)
from kernel_lsp.rewrite.engine import EngineSession

ROOT = Path(__file__).resolve().parent.parent
COPY_BYTES_PER_S = 4.3e12  # device-to-device copy of an H200, bytes read + written
NUM_WARMUP, NUM_REPS = 5, 40

HEAD = """\
import torch
import torch.nn as nn
import torch.nn.functional as F

DTYPE = torch.{dtype}


class Model(nn.Module):
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelCase:
    name: str
    skill: str
    body: str
    """The class's methods, indented."""
    inputs: str
    """Expressions of get_inputs()."""

    def program(self, dtype: str) -> str:
        return (
            f"{HEAD.format(dtype=dtype)}{self.body}\n\ndef get_inputs():\n    return "
            f"[{self.inputs}]\n"
        )


def _forward(expression: str, arguments: str = "x", init: str = "") -> str:
    lines = "".join(f"        {line}\n" for line in init.split("; ") if line)
    setup = f"    def __init__(self):\n        super().__init__()\n{lines}\n" if init else ""
    return f"{setup}    def forward(self, {arguments}):\n        return {expression}\n"


def _randn(*sizes: int) -> str:
    return f"torch.randn({', '.join(map(str, sizes))}, dtype=DTYPE)"


def _case(
    name: str, skill: str, expression: str, arguments: str, inputs: list[str], init: str = ""
) -> KernelCase:
    body = _forward(expression, arguments, init)
    return KernelCase(name=name, skill=skill, body=body, inputs=", ".join(inputs))


SCALE = "self.scale = nn.Parameter(torch.randn({0}, dtype=DTYPE))"
BIAS = "self.bias = nn.Parameter(torch.randn({0}, dtype=DTYPE))"

CASES = (
    _case(
        "bias gelu residual 16384x4096",
        "fused-pointwise",
        "F.gelu(x + self.bias) * 0.5 + r",
        "x, r",
        [_randn(16384, 4096), _randn(16384, 4096)],
        BIAS.format(4096),
    ),
    _case(
        "channel scale mish 64x256x56x56",
        "fused-pointwise",
        "F.mish(x * self.scale[None, :, None, None] + 1.0)",
        "x",
        [_randn(64, 256, 56, 56)],
        SCALE.format(256),
    ),
    _case(
        "softsign 8192x8192", "fused-pointwise", "x / (1 + torch.abs(x))", "x", [_randn(8192, 8192)]
    ),
    _case(
        "softmax scale mask 16x16x1024x1024",
        "fused-row-softmax",
        "torch.softmax(x * 0.125 + m, dim=-1)",
        "x, m",
        [_randn(16, 16, 1024, 1024), _randn(1024, 1024)],
    ),
    _case(
        "log_softmax 256x131072",
        "fused-row-softmax",
        "F.log_softmax(x * 0.5, dim=-1)",
        "x",
        [_randn(256, 131072)],
    ),
    _case(
        "softmax dim 1 64x64x128x128",
        "fused-row-softmax",
        "torch.softmax(x, dim=1) * 2",
        "x",
        [_randn(64, 64, 128, 128)],
    ),
    _case(
        "add layer_norm 16384x4096",
        "fused-norm",
        "self.norm(x + r)",
        "x, r",
        [_randn(16384, 4096), _randn(16384, 4096)],
        "self.norm = nn.LayerNorm(4096, dtype=DTYPE)",
    ),
    _case(
        "layer_norm 16x64x256x256 (few long rows)",
        "fused-norm",
        "self.norm(x)",
        "x",
        [_randn(16, 64, 256, 256)],
        "self.norm = nn.LayerNorm((64, 256, 256), dtype=DTYPE)",
    ),
    _case(
        "rms_norm by hand 16384x4096",
        "fused-norm",
        "x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.scale",
        "x",
        [_randn(16384, 4096)],
        SCALE.format(4096),
    ),
    _case(
        "group_norm silu 32x256x64x64",
        "fused-norm",
        "F.silu(self.norm(x))",
        "x",
        [_randn(32, 256, 64, 64)],
        "self.norm = nn.GroupNorm(32, 256, dtype=DTYPE)",
    ),
    _case(
        "instance_norm relu 32x64x256x256",
        "fused-norm",
        "F.relu(self.norm(x))",
        "x",
        [_randn(32, 64, 256, 256)],
        "self.norm = nn.InstanceNorm2d(64)",
    ),
    _case(
        "mean of squares 128M",
        "fused-reduction",
        "torch.mean((x - y) ** 2)",
        "x, y",
        [_randn(32768, 4096), _randn(32768, 4096)],
    ),
    _case(
        "row logsumexp 16384x8192",
        "fused-reduction",
        "torch.logsumexp(x * 2, dim=-1)",
        "x",
        [_randn(16384, 8192)],
    ),
    _case(
        "huber 32768x4096",
        "fused-loss",
        "F.huber_loss(x, y, delta=0.5)",
        "x, y",
        [_randn(32768, 4096), _randn(32768, 4096)],
    ),
    _case(
        "cross_entropy 8192x50257",
        "fused-loss",
        "F.cross_entropy(x, t)",
        "x, t",
        [_randn(8192, 50257), "torch.randint(0, 50257, (8192,))"],
    ),
)


def rewrite(case: KernelCase, dtype: str, device: str = "cuda") -> str:
    """The program with the skill applied at its first site. Raises RuntimeError when it has
    none."""
    folder = ROOT / "skills" / case.skill
    skill = Skill(
        name=case.skill, description="", scope="graph", tags=(), version=1, body="",
        path=str(folder), executable=True,
    )  # fmt: skip
    program = Program(source=case.program(dtype), entry="Model", kind=TargetKind.MODULE)
    workload = Workload(
        name="benchmark", origin=WorkloadOrigin.GET_INPUTS, setting=TorchSetting(gradients=False)
    )
    session = EngineSession(program, workload, device, [skill])
    matches = session.rewrites[case.skill].match(session.graph)
    if not matches:
        raise RuntimeError(
            f"{case.skill} does not match: {session.notes or [n.name for n in session.graph.nodes]}"
        )
    best = max(matches, key=lambda match: len(match.nodes))
    return session.propose([Step(skill=case.skill, site=best.label)]).candidate.program


def load(text: str) -> ModuleType:
    """Run source from a real file: Triton reads its kernels' source back."""
    with tempfile.NamedTemporaryFile("w", suffix=".py", prefix="kernel_", delete=False) as file:
        file.write(text)
    spec = importlib.util.spec_from_file_location(Path(file.name).stem, file.name)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def pair(case: KernelCase, dtype: str, device: str) -> tuple[Any, Any, list[Any]]:
    """Eager model, rewritten model with the same random parameters, and inputs."""
    torch.manual_seed(0)
    before, after = load(case.program(dtype)), load(rewrite(case, dtype, device))
    with torch.device(device):
        eager, fused, inputs = before.Model(), after.Model(), before.get_inputs()
    with torch.no_grad():
        for parameter in eager.parameters():
            parameter.normal_()
    fused.load_state_dict(eager.state_dict())

    def fail(*_: Any) -> Any:
        raise RuntimeError("the guard took the original path")

    fused._forward_eager = fail
    return eager, fused, inputs


def error(result: torch.Tensor, oracle: torch.Tensor) -> float:
    """Largest difference relative to the oracle's RMS."""
    rms = oracle.square().mean().sqrt().clamp_min(1e-30)
    return float((result.double() - oracle).abs().max() / rms)


def oracle(model: Any, inputs: list[Any]) -> torch.Tensor:
    exact = [item.double() if item.is_floating_point() else item for item in inputs]
    return copy.deepcopy(model).double()(*exact)


def times_ms(providers: dict[str, Any], inputs: list[Any]) -> dict[str, list[float]]:
    """Interleaved reps, L2 flushed before each."""
    flush = torch.empty(256 * 2**20, dtype=torch.int8, device="cuda")
    for call in providers.values():
        for _ in range(NUM_WARMUP):
            call(*inputs)
    events: dict[str, list[Any]] = {name: [] for name in providers}
    for _ in range(NUM_REPS):
        for name, call in providers.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            flush.zero_()
            begin.record()
            call(*inputs)
            end.record()
            events[name].append((begin, end))
    torch.cuda.synchronize()
    return {name: sorted(b.elapsed_time(e) for b, e in found) for name, found in events.items()}


def measure(case: KernelCase, dtype: str, *, compiled: bool) -> dict[str, Any]:
    eager, fused, inputs = pair(case, dtype, "cuda")
    exact = oracle(eager, inputs)
    result, reference = fused(*inputs), eager(*inputs)
    errors = {"candidate_error": error(result, exact), "eager_error": error(reference, exact)}
    moved = sum(t.numel() * t.element_size() for t in [*inputs, *eager.parameters(), result])
    del exact, reference, result
    providers = {"eager": eager, "candidate": fused}
    if compiled:
        torch._dynamo.reset()
        providers["compile"] = torch.compile(eager)
    found = times_ms(providers, inputs)
    medians = {name: statistics.median(values) for name, values in found.items()}
    spread = {name: (v[len(v) // 5], v[len(v) * 4 // 5]) for name, v in found.items()}
    best = min(ms for name, ms in medians.items() if name != "candidate")
    return {
        **errors,
        "median_ms": medians,
        "p20_p80_ms": spread,
        "speedup_eager": medians["eager"] / medians["candidate"],
        "speedup_best": best / medians["candidate"],
        "gb_per_s": moved / medians["candidate"] / 1e6,
        "share_of_copy": moved / medians["candidate"] * 1e3 / COPY_BYTES_PER_S,
    }


def show(row: dict[str, Any]) -> str:
    if "error" in row:
        return f"{row['case']:<42} {row['dtype']:<9} ERROR {row['error'][:200]}"
    ms = row["median_ms"]
    return (
        f"{row['case']:<42} {row['dtype']:<9} {ms['eager']:>8.3f} "
        f"{ms.get('compile', float('nan')):>8.3f}"
        f" {ms['candidate']:>8.3f} {row['speedup_eager']:>6.2f}x {row['speedup_best']:>6.2f}x"
        f" {row['gb_per_s']:>6.0f} {row['share_of_copy']:>5.0%}"
        f"  {row['candidate_error']:.1e} / {row['eager_error']:.1e}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default="", help="part of a case's name")
    parser.add_argument(
        "--seconds", type=float, default=200, help="torch.compile is skipped after this time"
    )
    options = parser.parse_args()
    started, rows = time.monotonic(), []
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    print(f"medians of {NUM_REPS} reps in ms, L2 flushed before each")
    print(f"{'case':<42} {'dtype':<9} {'eager':>8} {'compile':>8} {'ours':>8} {'eager':>7} "
          f"{'best':>7}"
          f" {'GB/s':>6} {'copy':>5}  error ours / eager")  # fmt: skip
    for case in CASES:
        for dtype in ("float32", "bfloat16") if options.only in case.name else ():
            row: dict[str, Any] = {"case": case.name, "skill": case.skill, "dtype": dtype}
            compiled = time.monotonic() - started < options.seconds
            try:
                with torch.no_grad():
                    row |= measure(case, dtype, compiled=compiled)
            except Exception as problem:  # one broad except: a failing row must not hide the others
                row["error"] = f"{type(problem).__name__}: {problem}"
            rows.append(row)
            print(show(row), flush=True)
            torch.cuda.empty_cache()
    if options.out:
        about = {**circumstances("cuda"), "torch": torch.__version__, "num_reps": NUM_REPS}
        write_record(options.out, {**about, "rows": rows})


if __name__ == "__main__":
    main()
