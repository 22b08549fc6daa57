"""Are rewrites of Triton kernels right, and do they compile for sm_90? Without a GPU, and without
any speed.

    PYTHONPATH=. python benchmarks/triton_check.py interpret [--packages DIR] [--only REGEX] [--out
    FILE]
    PYTHONPATH=. python benchmarks/triton_check.py compile   …

Of each kernel of triton_targets.py: every site that is found with its first choice and two others,
then all sites after one another. ``interpret`` runs original and rewrite in Triton's interpreter
on small inputs (sizes above 1024 divided by 64) and compares all results; an autotuned kernel runs
with its last configuration, the one that a rewrite adds. ``compile`` translates what each launch
would compile, for the real sizes, and asks ptxas for registers and spills. Not covered: results
that only full sizes have."""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import os
import re
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks.reporting import write_record
from benchmarks.triton_targets import jobs, name
from kernel_lsp import skillbook
from kernel_lsp.errors import KernelLspError
from kernel_lsp.pipeline.prepare import PreparedJob, prepare
from kernel_lsp.records import ArgSpec, Candidate, Program, Skill, Step, Workload

ROOT = Path(__file__).resolve().parents[1]
SMALL, LARGEST = 64, 1024
CHOICES = 3
CheckProgram = Callable[[Program, Candidate | None, Workload], str]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("how", choices=("interpret", "compile"))
    parser.add_argument("--packages", type=Path, help="folder of unpacked wheels")
    parser.add_argument("--only", default="")
    parser.add_argument("--skills", default="triton-", help="only skills whose name matches")
    parser.add_argument("--limit-s", type=float, default=1e9, help="no kernel is begun after that")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.how == "interpret":
        os.environ["TRITON_INTERPRET"] = "1"
    if options.packages:
        sys.path.insert(0, str(options.packages.resolve()))
        os.environ.setdefault("GEMS_VENDOR", "nvidia")
    warnings.simplefilter("ignore")
    skills = [s for s in _skills() if re.search(options.skills, s.name)]
    check = interpreted(options.packages) if options.how == "interpret" else compiled
    end, rows = time.monotonic() + options.limit_s, {}
    for job in jobs("cuda", options.only, options.packages):
        if time.monotonic() > end:
            break
        begun = time.monotonic()
        rows[name(job)] = found = dict(_checked(prepare(job), skills, check))
        wrong = {what: said for what, said in found.items() if not said.startswith("ok")}
        text = f"{len(found) - len(wrong)} of {len(found)} right" if found else "nothing applies"
        print(
            f"{name(job).rpartition('/')[2]:52} {time.monotonic() - begun:5.1f} s  {text}",
            flush=True,
        )
        for what, said in wrong.items():
            print(f"    {what}: {said[:300]}", flush=True)
    bad = sum(not said.startswith("ok") for found in rows.values() for said in found.values())
    print(f"{len(rows)} kernels, {sum(map(len, rows.values()))} rewrites, {bad} not right")
    write_record(options.out, rows)


def _skills() -> list[Skill]:
    return [skill for skill in skillbook.load([ROOT / "skills"]).skills if skill.executable]


def _checked(prepared: Any, skills: list[Skill], check: CheckProgram) -> Iterator[tuple[str, str]]:
    """(which rewrite, ``ok`` and what is known of it, or what is wrong)."""
    from kernel_lsp.rewrite.kernels.session import KernelSession

    if not isinstance(prepared, PreparedJob):
        yield "open", str(prepared.note)
        return
    try:
        session = KernelSession(prepared.program, prepared.workload, "cuda", skills)
    except KernelLspError as error:
        yield "open", str(error)
        return
    original = check(prepared.program, None, prepared.workload)
    yield "as it is", original
    if not original.startswith("ok"):
        return
    chain: list[Step] = []
    for site in session.capture().sites:
        step = Step(skill=site.skill, site=site.site)
        for candidate in session.variants([step], 0, CHOICES):
            what = f"{step.skill} {candidate.steps[0].parameters}"
            yield what, check(prepared.program, candidate, prepared.workload)
        if any((s.skill, s.site) == (step.skill, step.site) for s in session.look(chain)):
            chain.append(step)
    if len(chain) > 1:
        try:
            all_steps = session.make(chain)
        except KernelLspError as error:
            yield "all steps", f"cannot be made: {error}"
        else:
            yield "all steps", check(prepared.program, all_steps, prepared.workload)


# --- values, in the interpreter --------------------------------------------------------------


def interpreted(packages: Path | None) -> CheckProgram:
    import torch

    from kernel_lsp.rewrite.kernels.fake_device import on_a_gpu

    _pin()
    _complete()
    with on_a_gpu():
        if packages and (packages / "flag_gems").exists():
            _without_entries()

    def check(program: Program, candidate: Candidate | None, workload: Workload) -> str:
        small = replace(workload, inputs=tuple(map(_smaller, workload.inputs or ())))
        try:
            with on_a_gpu():
                expected = _run(program, program.source, small)
                found = _run(
                    program, program.source if candidate is None else candidate.program, small
                )
        except Exception as error:  # whatever a kernel raises is what this program looks for
            return f"{type(error).__name__}: {' '.join(str(error).split())[-300:]}"
        try:
            torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-3, equal_nan=True)
        except AssertionError as error:
            return " ".join(str(error).split())
        return "ok"

    return check


def _run(program: Program, source: str, workload: Workload) -> Any:
    import torch

    from kernel_lsp.rewrite.capture.loading import execute, lookup

    torch.manual_seed(17)
    args = [_made(spec) for spec in workload.inputs or () if spec.name is None]
    kwargs = {spec.name: _made(spec) for spec in workload.inputs or () if spec.name is not None}
    return lookup(execute(source), program)(*args, **kwargs)


def _made(spec: ArgSpec) -> Any:
    import torch

    if spec.dtype is None or spec.shape is None:
        return spec.value
    dtype = getattr(torch, spec.dtype)
    if spec.distribution.startswith("index:"):
        values = torch.randint(int(spec.distribution.partition(":")[2]), spec.shape)
    elif spec.dtype == "bool":
        values = torch.rand(spec.shape) < 0.5
    else:
        values = (
            torch.rand(spec.shape) + 0.01
            if spec.distribution == "uniform"
            else torch.randn(spec.shape)
        )
    made = torch.empty_strided(
        spec.shape, spec.stride or torch.empty(spec.shape).stride(), dtype=dtype
    )
    return made.copy_(values)


def _smaller(spec: ArgSpec) -> ArgSpec:
    """Sizes, strides and numbers above 1024 divided by 64, so that they still fit one another."""

    def less(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return type(value)(map(less, value))
        return value // SMALL if type(value) is int and value > LARGEST else value

    index = re.fullmatch(r"index:(\d+)", spec.distribution)
    return replace(
        spec,
        shape=less(spec.shape),
        stride=less(spec.stride),
        value=less(spec.value),
        distribution=f"index:{less(int(index[1]))}" if index else spec.distribution,
    )


def _pin() -> None:
    """Autotune takes its last configuration: the interpreter has no times to choose by."""
    from triton.runtime.autotuner import Autotuner

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self.fn.run(*args, **{**kwargs, **self.configs[-1].kwargs})

    Autotuner.run = run


LIBDEVICE = """
import triton
import triton.language as tl


@triton.jit
def tanh(x):
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0


@triton.jit
def rsqrt(x):
    return tl.rsqrt(x)
"""


def _complete() -> None:
    """What the interpreter lacks: functions of CUDA's library, and float arguments that are
    tensors."""
    import numpy as np
    import triton.language as tl
    from triton.language.extra import libdevice
    from triton.language.extra.cuda import libdevice as of_cuda
    from triton.runtime import interpreter

    from kernel_lsp.rewrite.capture.loading import execute

    functions = execute(LIBDEVICE)
    for owner in (libdevice, of_cuda):
        owner.rsqrt, owner.tanh = functions["rsqrt"], functions["tanh"]
    convert = interpreter._implicit_cvt

    def converted(value: Any) -> Any:
        if type(value) is not float:
            return convert(value)
        handle = interpreter.TensorHandle(np.array([value], dtype=np.float32), tl.float32)
        return tl.tensor(handle, tl.float32)

    interpreter._implicit_cvt = converted


def _without_entries() -> None:
    """What flag-gems puts around a kernel knows compiled kernels alone: here it hands launches
    on."""
    import triton
    from triton.runtime.interpreter import InterpretedFunction

    owners, real = (triton.runtime, triton.runtime.jit), triton.runtime.JITFunction
    for attribute, value in {"params": (), "signature": None, "cache_key": "", "src": ""}.items():
        setattr(InterpretedFunction, attribute, value)
    for owner in owners:
        owner.JITFunction = InterpretedFunction
    try:
        importlib.import_module("flag_gems.utils.libentry")
    finally:
        for owner in owners:
            owner.JITFunction = real
    module: Any = sys.modules["flag_gems.utils.libentry"]
    for wrapper in (module.LibEntry, module.LibTuner):
        wrapper.run = functools.partialmethod(_handed_on)
    module.triton = SimpleNamespace(runtime=SimpleNamespace(JITFunction=InterpretedFunction))


def _handed_on(self: Any, *args: Any, **kwargs: Any) -> Any:
    last = self.configs[-1].kwargs if hasattr(self, "configs") else {}
    return self.fn.run(*args, **{**kwargs, **last})


# --- code, ahead of time ---------------------------------------------------------------------


def compiled(program: Program, candidate: Candidate | None, workload: Workload) -> str:
    """Registers, spilled bytes and shared memory of what each launch of the kernel compiles."""
    from kernel_lsp.evaluator.devices import aot
    from kernel_lsp.rewrite.capture.loading import execute
    from kernel_lsp.rewrite.kernels.fake_device import on_a_gpu
    from kernel_lsp.rewrite.kernels.launching import observe

    source = program.source if candidate is None else candidate.program
    launched = [
        one
        for one in observe(replace(program, source=source), workload)
        if one.kernel == program.kernel
    ]
    said = []
    for one in launched[-1:]:
        chosen = one.configs[-1] if one.configs else {}
        with on_a_gpu():
            function = execute(source)[str(program.kernel)]
        while hasattr(function.fn, "fn"):
            if hasattr(function, "values"):
                return "ok (heuristics choose constants)"
            function = function.fn
        constants = {**one.constants, **{k: v for k, v in chosen.items() if k not in OPTIONS}}
        options = {**one.options, **{k: v for k, v in chosen.items() if k in OPTIONS}}
        try:
            with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
                # ptxas writes there.
                made = aot._compile(
                    function, _description(function, one.arguments, constants, options), 90
                )
        except Exception as error:  # whatever Triton raises means: does not compile
            return f"{type(error).__name__}: {' '.join(str(error).split())[-300:]}"
        said.append(
            f"{made['registers']} registers, {made['spill_bytes']} spilled, "
            f"{made['shared_bytes']} shared"
        )
    return f"ok ({'; '.join(said)})"


OPTIONS = ("num_warps", "num_stages", "num_ctas")
KINDS = {
    "float32": "*fp32", "float16": "*fp16", "bfloat16": "*bf16", "float64": "*fp64", "bool": "*i1",
    "int64": "*i64", "int32": "*i32", "int16": "*i16", "int8": "*i8", "uint8": "*u8",
}  # fmt: skip


def _description(function: Any, arguments: Any, constants: Any, options: Any) -> dict[str, Any]:
    """As evaluator/running/recorder.py tells a launch."""
    from kernel_lsp.rewrite.kernels.launched import Blocks

    record: dict[str, dict[str, Any]] = {}
    for parameter in function.arg_names:
        value = constants[parameter] if parameter in constants else arguments.get(parameter)
        dtype = getattr(value, "dtype", None)
        if parameter in constants or value is None or (isinstance(value, int) and value == 1):
            record[parameter] = {"type": "constexpr", "constant": value}
        elif isinstance(value, Blocks):
            element = KINDS[value.of.dtype].removeprefix("*")
            record[parameter] = {"type": f"tensordesc<{element}{[*value.block]}>".replace(" ", "")}
        elif dtype is not None:
            record[parameter] = {"type": KINDS[dtype], "aligned": True}
        elif isinstance(value, float):
            record[parameter] = {"type": "fp32"}
        else:
            wide = "i64" if abs(value) >= 2**31 else "i32"
            record[parameter] = {"type": wide, "aligned": value % 16 == 0}
    return {"name": function.__name__, "arguments": record, "options": options}


if __name__ == "__main__":
    main()
