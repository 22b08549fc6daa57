"""Our own tasks, as many as wanted: modules put together at random, one file each, the same for
one seed.

    python -m trainer.tasks.generated --out tasks/ --count 1000 --seed 1 [--sizes cpu] [--without
    BENCHMARK_FOLDER]

Each file follows the convention (Model, get_inputs, get_init_inputs) and has passed two checks: on
meta tensors (shapes and dtypes fit, nothing large is made), and as a tiny twin with real values
(results are finite and depend on the inputs, so that no task is "always zero"). Tasks that repeat
one another too often, or a file of a benchmark that is named, are left out and counted.
`manifest.json` beside them has the hash of every file: one that was changed since is noticed. Not
covered: how long a task takes on a device."""

from __future__ import annotations

import argparse
import json
import random
import sys
import textwrap
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from kernel_lsp.errors import ConfigError
from kernel_lsp.files import replace_file
from trainer.records import Tally
from trainer.tasks.families import TaskStructure, structure
from trainer.tasks.grammar import TaskDraft
from trainer.tasks.likeness import Likeness, Mark, mark
from trainer.tasks.moves import compose
from trainer.tasks.task_suites import MANIFEST, digest, source_files

LENGTHS = (1, 2, 3, 3, 4, 4, 5, 6, 8)
"""Moves after the start."""
DTYPES = (("float32", 7), ("bfloat16", 2), ("float16", 1))
MAX_ALIKE = 4
"""Tasks with the same operators in the same order: they differ in shapes, dtypes and spelling."""
MAX_BYTES = 6 * 2**30
"""That all results of one call may take together."""
TRIES = 40
"""Drawn per task that is wanted, at most."""
TEMPLATE = '''"""A generated task: {number} of seed {seed}."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
{init}

    def forward(self, {arguments}):
{forward}
        return h


def get_inputs():
    return [{inputs}]


def get_init_inputs():
    return []
'''


@dataclass(frozen=True, kw_only=True, slots=True)
class GeneratedTask:
    name: str
    """``g<seed>_<number>``: says nothing of what is inside."""
    source: str
    structure: TaskStructure


def build(seed: int, number: int, *, tiny: bool = False, large: bool = True) -> str:
    """The text of one task. ``tiny``: its twin, the same lines with small sizes. Pure."""
    rng = random.Random(f"kernel-lsp task {seed} {number}")
    dtype = rng.choices([name for name, _ in DTYPES], [weight for _, weight in DTYPES])[0]
    odd, length = rng.random() < 0.12, rng.choice(LENGTHS)
    draft = TaskDraft(rng=rng, tiny=tiny, large=large, odd=odd, dtype="float32" if tiny else dtype)
    compose(draft, length)
    used = "F." in "".join(draft.forward)
    text = TEMPLATE.format(
        number=number,
        seed=seed,
        init=textwrap.indent("\n".join(draft.init) or "pass", " " * 8),
        arguments=", ".join(draft.inputs),
        forward=textwrap.indent("\n".join(draft.forward), " " * 8),
        inputs=", ".join(draft.inputs.values()),
    )
    return text if used else text.replace("import torch.nn.functional as F\n", "")


def generate(
    count: int,
    seed: int,
    *,
    large: bool = True,
    without: Likeness | None = None,
    most_alike: int = MAX_ALIKE,
    tally: Tally | None = None,
    report: Callable[[int], None] = lambda made: None,
) -> Iterator[GeneratedTask]:
    """Checked tasks. Fewer than ``count`` when `TRIES` draws for each were not enough; ``tally``
    says why."""
    tally = tally or Tally()
    marks: set[str] = set()
    alike: Counter[tuple[str, ...]] = Counter()
    number = made = 0
    while made < count and number < count * TRIES:
        source = build(seed, number, large=large)
        name, number = f"g{seed}_{number:05d}", number + 1
        tally.read += 1
        found, seen = structure(source), mark(source)
        if found is None or seen is None or not found.ops:
            tally.skip("nothing is computed", name)
        elif alike[found.ops] >= most_alike:
            tally.skip("enough tasks have these operators", name)
        elif _identity(source, seen) in marks:
            tally.skip("the same task was generated before", name)
        elif without and (likeness := without.why(source)):
            tally.skip(f"repeats a benchmark file: {likeness}", name)
        elif problem := check(source, build(seed, number - 1, tiny=True, large=large)):
            tally.skip(problem, name)
        else:
            marks.add(_identity(source, seen))
            alike[found.ops] += 1
            tally.kept = made = made + 1
            report(made)
            yield GeneratedTask(name=name, source=source, structure=found)


def _identity(source: str, seen: Mark) -> str:
    """The same lines and the same inputs, whatever the numbers inside are called."""
    return seen.digest + source.split("def get_inputs")[1]


# --- checks: only ever of our own text, which is executed here ------------------------------------


def check(source: str, twin: str) -> str | None:
    """Why a generated task is of no use; None: it is. Takes about 10 ms, most of it making the
    modules."""
    found, small = structure(source), structure(twin)
    if found is None or small is None or found.ops != small.ops:
        return "its twin has other operators"
    return on_meta(source) or with_values(twin)


def on_meta(source: str) -> str | None:
    """Shapes and dtypes, without any memory."""
    import torch

    try:
        with torch.device("meta"), torch.no_grad(), _ComputedBytes() as sizes:
            module = _module(source)
            out = module.Model(*module.get_init_inputs())(*module.get_inputs())
    except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError) as error:
        return f"does not run: {type(error).__name__}"
    if not isinstance(out, torch.Tensor) or 0 in out.shape:
        return "its result is empty"
    return "needs too much memory" if sizes.total > MAX_BYTES else None


def with_values(twin: str) -> str | None:
    """Two runs of the tiny twin with other inputs."""
    import torch

    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(7)
        try:
            module = _module(twin)
            model = module.Model(*module.get_init_inputs())
            first, second = (model(*module.get_inputs()).double() for _ in range(2))
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            return f"does not run: {type(error).__name__}"
    if not (torch.isfinite(first).all() and torch.isfinite(second).all()):
        return "its result is not finite"
    size = first.abs().max().clamp_min(1e-12)
    if size < 1e-9 or (first - second).abs().max() < 1e-4 * size:
        return "its result hardly depends on the inputs"
    return None


def _module(source: str) -> ModuleType:
    module = ModuleType("generated_task")
    exec(compile(source, "<generated task>", "exec"), module.__dict__)
    return module


class _ComputedBytes:
    """Bytes of everything that is computed inside."""

    def __init__(self) -> None:
        self.total = 0

    def __enter__(self) -> _ComputedBytes:
        from torch.utils._python_dispatch import TorchDispatchMode

        counted = self

        class Mode(TorchDispatchMode):
            def __torch_dispatch__(
                self, func: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                out = func(*args, **(kwargs or {}))
                for one in out if isinstance(out, tuple | list) else (out,):
                    if hasattr(one, "element_size"):
                        counted.total += one.numel() * one.element_size()
                return out

        self._mode = Mode()
        self._mode.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._mode.__exit__(*error)


# --- files ---------------------------------------------------------------------------------------


def write(tasks: Sequence[GeneratedTask], folder: Path, about: dict[str, Any]) -> None:
    """One file each and the manifest, which is written last. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    for task in tasks:
        (folder / f"{task.name}.py").write_text(task.source, encoding="utf-8")
    listed = {
        f"{t.name}.py": {"sha256": digest(t.source), "family": t.structure.family} for t in tasks
    }
    text = json.dumps({"schema_version": 1, **about, "tasks": listed}, indent=1) + "\n"
    replace_file(folder / MANIFEST, text.encode())


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the suite; the exit code: 1 where fewer tasks were made than asked for, 2 where the folder
    cannot be used."""
    parser = argparse.ArgumentParser(
        prog="python -m trainer.tasks.generated", description=__doc__.split("\n")[0]
    )
    parser.add_argument(
        "--out", type=Path, required=True, help="folder; must not exist or be empty"
    )
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--sizes", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument("--without", type=Path, action="append", default=[], metavar="FOLDER",
                        help="leave out what repeats a file below it")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="the summary as one JSON object")
    options = parser.parse_args(arguments)
    try:
        summary = run(options)
    except (ConfigError, OSError) as error:
        print(f"generated: {error}", file=sys.stderr)
        return 2
    print(json.dumps(summary) if options.json else _text(summary))
    return 0 if summary["tasks"] == options.count else 1


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Writes a suite of generated tasks to a new folder; what its manifest says."""
    if options.out.exists() and any(options.out.iterdir()):
        raise ConfigError(
            f"{options.out} is not empty", "name a new folder: a suite is written once"
        )
    marks = [
        found for path in source_files(options.without) if (found := mark(path.read_text("utf-8")))
    ]
    tally = Tally()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, about what a random module does
        tasks = list(
            generate(
                options.count,
                options.seed,
                large=options.sizes == "gpu",
                without=Likeness(marks) if marks else None,
                tally=tally,
                report=lambda made: _report(made, options.count),
            )
        )
    families = Counter(task.structure.family for task in tasks)
    write(tasks, options.out, {"seed": options.seed, "sizes": options.sizes})
    return {
        "schema_version": 1,
        "out": str(options.out),
        "tasks": len(tasks),
        "families": len(families),
        "largest_family": max(families.values(), default=0),
        "drawn": tally.read,
        "left_out": {one.reason: one.count for one in tally.skipped},
        "compared_with": len(marks),
    }


def _report(made: int, wanted: int) -> None:
    if made % 100 == 0:
        print(f"{made} of {wanted} tasks", file=sys.stderr)


def _text(summary: dict[str, Any]) -> str:
    lines = [
        f"{summary['tasks']} tasks of {summary['families']} structural families in {summary['out']}"
    ]
    lines += [f"  left out {count:5d}: {reason}" for reason, count in summary["left_out"].items()]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
