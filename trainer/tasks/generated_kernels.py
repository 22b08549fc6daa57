"""Our own Triton kernels, as many as wanted: forms with random choices, one file each, the same
for one seed.

    python -m trainer.tasks.generated_kernels --out kernels/ --count 200 --seed 1

Each file has one kernel, the function that launches it and a comment that says what it is called
with (`# kernel-lsp: workload`). Each has been run in Triton's interpreter on a tiny workload and
compared with plain PyTorch, and the same kernel is written once. `manifest.json` beside them as
for `trainer.tasks.generated`. Not covered: how long a kernel takes on a device."""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from typing import Any

from trainer.records import Tally
from trainer.tasks import generated
from trainer.tasks.families import structure
from trainer.tasks.generated import GeneratedTask
from trainer.tasks.kernel_forms import FORMS, Draw, KernelForm

TRIES = 5
"""Drawn per kernel that is wanted, at most."""
NEAR = 1e-4
"""Of the largest result, in float32: sums in another order."""
TEMPLATE = '''"""A generated kernel: {number} of seed {seed}."""

import torch
import triton
import triton.language as tl


@triton.jit
{kernel}

# kernel-lsp: workload {workload}
{launcher}'''


@dataclass(frozen=True, kw_only=True, slots=True)
class Built:
    name: str
    """``k<seed>_<number>``: says nothing of what is inside."""
    source: str
    form: KernelForm

    @property
    def task(self) -> GeneratedTask:
        """The kernel as a task of a suite."""
        found = structure(self.source, "kernel")
        assert found is not None  # the template has it
        return GeneratedTask(name=self.name, source=self.source, structure=found)


def build(seed: int, number: int) -> Built:
    """One kernel. Pure."""
    rng = random.Random(f"kernel-lsp kernel {seed} {number}")
    make = rng.choices(list(FORMS), list(FORMS.values()))[0]
    form = make(Draw(rng))
    text = " ".join(
        f"{name}={_spec(dtype, shapes[0])}" for name, (dtype, shapes) in form.inputs.items()
    )
    source = TEMPLATE.format(
        number=number, seed=seed, kernel=form.kernel, workload=text, launcher=form.launcher
    )
    return Built(name=f"k{seed}_{number:05d}", source=source, form=form)


def _spec(dtype: str, shape: tuple[int, ...]) -> str:
    sizes = ",".join(map(str, shape))
    kind, _, below = dtype.partition(":")
    return f"i64[{sizes}]<{below}" if kind == "index" else f"{kind}[{sizes}]"


def generate(
    count: int, seed: int, tally: Tally, report: Callable[[int], None] = lambda made: None
) -> Iterator[Built]:
    """Checked kernels; fewer than ``count`` when `TRIES` draws for each were too few, ``tally``
    says why."""
    known: set[str] = set()
    made = 0
    for number in range(count * TRIES):
        if made == count:
            return
        one = build(seed, number)
        tally.read += 1
        text = one.source.partition("\n")[2]
        if text in known:
            tally.skip("the same kernel was generated before", one.name)
        elif problem := check(one):
            tally.skip(problem, one.name)
        else:
            known.add(text)
            tally.kept = made = made + 1
            report(made)
            yield one


# --- checks: only ever of our own text, which is executed here ------------------------------------


def check(one: Built) -> str | None:
    """Why a kernel is of no use; None: it is. In Triton's interpreter, which has to be switched on
    before, on few numbers in float32."""
    import torch

    generator = torch.Generator().manual_seed(7)
    given = {
        name: torch.randint(5, twin, generator=generator)
        if dtype.startswith("index")
        else torch.randn(twin, generator=generator)
        for name, (dtype, (_, twin)) in one.form.inputs.items()
    }
    try:
        with _module(one) as module:
            ours = module.launch(*given.values()).double()
    except Exception as error:
        return f"does not run: {type(error).__name__}"
    theirs = eval(one.form.plain, {"torch": torch, **given}).double()
    size = float(theirs.abs().max())
    if ours.shape != theirs.shape or not float((ours - theirs).abs().max()) <= NEAR * max(
        size, 1e-3
    ):
        return "its result is not that of PyTorch"
    return "its result is constant" if float(theirs.std()) < 1e-6 * max(size, 1e-9) else None


@contextlib.contextmanager
def _module(one: Built) -> Iterator[Any]:
    """From a file: Triton reads the text of its kernels there, when they are launched."""
    with tempfile.TemporaryDirectory(prefix="kernel-") as folder:
        path = Path(folder, f"{one.name}.py")
        path.write_text(one.source)
        spec = util.spec_from_file_location(one.name, path)
        assert spec is not None and spec.loader is not None
        module = util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module


# --- the command ---------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the kernels; the exit code: 1 where fewer were made than asked for, 2 where the folder
    cannot be used."""
    parser = argparse.ArgumentParser(
        prog="python -m trainer.tasks.generated_kernels", description=__doc__.split("\n")[0]
    )
    parser.add_argument(
        "--out", type=Path, required=True, help="folder; must not exist or be empty"
    )
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    options = parser.parse_args(arguments)
    if options.out.exists() and any(options.out.iterdir()):
        print(
            f"{options.out} is not empty: name a new folder, a suite is written once",
            file=sys.stderr,
        )
        return 2
    os.environ["TRITON_INTERPRET"] = "1"  # before the first import of triton
    tally = Tally()
    kernels = list(
        generate(options.count, options.seed, tally, lambda made: _report(made, options.count))
    )
    generated.write([one.task for one in kernels], options.out, {"seed": options.seed})
    print(f"{len(kernels)} kernels in {options.out}")
    for one in tally.skipped:
        print(f"  left out {one.count:5d}: {one.reason}")
    return 0 if len(kernels) == options.count else 1


def _report(made: int, wanted: int) -> None:
    if made % 50 == 0:
        print(f"{made} of {wanted} kernels", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
