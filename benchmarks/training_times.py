"""Forward and backward of every task of a folder: eager, torch.compile in two modes, ours.

    python -m benchmarks.suite DIR && python -m benchmarks.training_times DIR --out times.json

A look at many tasks in little device time, to find where rewrites lose: 12 processes open, plan
and compile tasks side by side for a while, then all stop and time what is ready, one after the
other, alone on the device. Ours is the best of the rule's first plans and some parameters of each.
Values are compared with eager's as a whole (the norm of the difference of outputs and gradients;
random numbers may differ). An existing file is continued. It is no verdict: `kernel-lsp bench`
judges and counts. Products and convolutions of max-autotune are the library's alone, since
compiling templates for them takes minutes.

``--bytes`` also times a plain kernel that reads and writes as many bytes as the forward pass has
to (inputs and outputs once each): the roof of streaming work. Not covered: peak memory."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import linecache
import math
import multiprocessing
import os
import re
import statistics
import sys
import time
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.reporting import circumstances, write_record

WORKERS = 12
TURN_S = 75.0
"""So long tasks are prepared before those that are ready are timed."""
MODES = {"compile": "default", "max-autotune": "max-autotune-no-cudagraphs"}
PLANS, VARIANTS = 2, 3
REPS, WARM, TRIES = 15, 3, 4
SPIN = 4_000_000
"""Cycles for which the device waits, so that the host is ahead of it when a step begins."""

TrainingStep = Callable[[], list[Any]]


@dataclass
class ReadyTask:
    """A task whose programs are compiled, and what is known of it."""

    name: str
    text: str
    programs: dict[str, Any] = field(default_factory=dict)
    """The callables by name; ``eager`` first."""
    row: dict[str, Any] = field(default_factory=dict)


def load(text: str, name: str) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__file__ = f"<{name}>"
    linecache.cache[module.__file__] = (len(text), None, text.splitlines(True), module.__file__)
    sys.modules[name] = module
    exec(compile(text, module.__file__, "exec"), module.__dict__)
    return module


def plans(text: str, device: str) -> Iterator[tuple[str, str]]:
    """Summary and source of the rule's first plans, each followed by other parameters of it."""
    from kernel_lsp import analysis, skillbook, workloads
    from kernel_lsp.agents.plan import Planner, RankedPlan
    from kernel_lsp.records import Snapshot
    from kernel_lsp.rewrite.engine import EngineSession

    snapshot = Snapshot(uri="file:///task.py", text=text)
    target = analysis.find_target(analysis.analyze(snapshot), "Model")
    if target is None:
        return
    known, _ = workloads.workloads_for(snapshot, target, None)
    skills = [s for s in skillbook.load([skillbook.built_in_folder()]).skills if s.executable]
    skills = [s for s in skills if s.name not in ("compile-target", "cuda-graph")]
    session = EngineSession(analysis.slice_program(snapshot, target), known[0], device, skills)

    async def first() -> list[RankedPlan]:
        async def make(steps: Any) -> Any:
            return session.make(list(steps))

        async def look(steps: Any) -> Any:
            return session.look(list(steps))

        async def weigh(steps: Any) -> float:
            return session.weigh(list(steps))

        planner = Planner(make, look, weigh=weigh)
        sites, found = session.capture().sites, []
        async for plan in planner.ranked_plans(sites, triton=True):
            if plan.steps:
                found.append(plan)
            if len(found) == PLANS:
                break
        return found

    for plan in asyncio.run(first()):
        said = plan.candidate.summary
        yield said, plan.candidate.program
        for place in plan.places()[:1]:
            made = session.variants(list(plan.steps), place, VARIANTS)
            for one in made[1:]:
                chosen = one.steps[place].parameters
                yield f"{said} {chosen}", one.program


def tensors(value: Any) -> list[Any]:
    import torch

    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [one for item in value for one in tensors(item)]
    return []


def inputs_of(module: types.ModuleType, device: str) -> list[Any]:
    import torch

    torch.manual_seed(0)
    with torch.device(device):
        return module.get_inputs()


def model_of(module: types.ModuleType, device: str, like: Any = None) -> Any:
    """With the parameters and buffers of another one, where it is given: a head of 131,072 words
    is there once."""
    import torch

    torch.manual_seed(1)
    with torch.device(device):
        model = module.Model(*module.get_init_inputs())
    if like is not None:
        model.load_state_dict(like.state_dict(), assign=True)
    return model


def step_of(program: Any, model: Any, inputs: list[Any]) -> TrainingStep:
    """One step: the forward pass and the gradients of everything that has some."""
    import torch

    leaves = [t for t in (*tensors(inputs), *model.parameters()) if t.requires_grad]
    kept: list[Any] = []

    def step() -> list[Any]:
        torch.manual_seed(2)
        results = tensors(program(*inputs))
        values = [t.detach() for t in results]
        trained = [t for t in results if t.requires_grad]
        if not trained or not leaves:
            return values
        if not kept:
            kept.extend(torch.randn_like(t) for t in trained)
        found = torch.autograd.grad(trained, leaves, kept, allow_unused=True)
        return [*values, *(g for g in found if g is not None)]

    return step


def prepared(path: Path, root: Path, device: str, modes: Sequence[str]) -> ReadyTask:
    """Everything that can be compiled before a task is timed; what fails is in the row."""
    import torch

    name = path.relative_to(root).as_posix()
    text = path.read_text()
    ready = ReadyTask(name, text, row={"notes": {}, "ours": {}})
    begun = time.monotonic()
    unique = re.sub(r"\W", "_", name)
    module = load(text, f"task_{unique}")
    model, inputs = model_of(module, device), inputs_of(module, device)
    ready.programs["eager"] = model
    expected = step_of(model, model, inputs)()
    for label in modes:
        compiled = torch.compile(model_of(module, device, model), mode=MODES[label])
        _try(ready, label, compiled, model_of_compiled(compiled), inputs, expected)
    try:
        made = list(plans(text, "cuda" if device == "cuda" else "cpu"))
    except Exception as error:  # a task that cannot be opened is silent, and says why
        ready.row["notes"]["plan"] = said_of(error)
        made = []
    ready.row["planned_s"] = round(time.monotonic() - begun, 1)
    for place, (said, source) in enumerate(made):
        label = f"ours {place}"
        ready.row["ours"][label] = said
        try:
            candidate = model_of(load(source, f"ours_{place}_{unique}"), device, model)
        except Exception as error:
            ready.row["notes"][label] = said_of(error)
            continue
        _try(ready, label, candidate, candidate, inputs, expected)
    ready.row["prepared_s"] = round(time.monotonic() - begun, 1)
    return ready


def model_of_compiled(compiled: Any) -> Any:
    return getattr(compiled, "_orig_mod", compiled)


def _try(
    ready: ReadyTask,
    label: str,
    program: Any,
    model: Any,
    inputs: list[Any],
    expected: list[Any],
) -> None:
    import torch

    try:
        found = step_of(program, model, inputs)()
        ready.row.setdefault("difference", {})[label] = difference(found, expected)
        ready.programs[label] = program
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # one program that fails must not end the others
        ready.row["notes"][label] = said_of(error)


def said_of(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:300]


def difference(found: list[Any], expected: list[Any]) -> float | None:
    """The largest relative norm of a difference; None: they are of other kinds."""
    if len(found) != len(expected) or any(
        a.shape != b.shape or a.dtype != b.dtype for a, b in zip(found, expected, strict=True)
    ):
        return None
    worst = 0.0
    for ours, eager in zip(found, expected, strict=True):
        norm = float(eager.float().norm())
        worst = max(worst, float((ours.float() - eager.float()).norm()) / max(norm, 1e-30))
    return round(worst, 6) if math.isfinite(worst) else None


def measured(ready: ReadyTask, device: str, roof: bool) -> dict[str, Any]:
    """Median times of a step, programs by turns: on the device alone, and with the host's part."""
    module = sys.modules[f"task_{re.sub(r'[^0-9A-Za-z_]', '_', ready.name)}"]
    inputs = inputs_of(module, device)
    steps: dict[str, Callable[[], Any]] = {
        label: step_of(program, model_of_compiled(program), inputs)
        for label, program in ready.programs.items()
    }
    if roof:
        with_roof(ready, steps, inputs)
    for step in steps.values():
        for _ in range(WARM):
            step()
    alone: dict[str, list[float]] = {label: [] for label in steps}
    whole: dict[str, list[float]] = {label: [] for label in steps}
    for _ in range(REPS):
        for label, step in steps.items():
            alone[label].append(_device_ms(step) if device == "cuda" else _wall_ms(step, 1))
            whole[label].append(_wall_ms(step, 2))
    ready.row["device_ms"] = {k: round(statistics.median(v), 5) for k, v in alone.items()}
    ready.row["ms"] = {k: round(statistics.median(v), 5) for k, v in whole.items()}
    return ready.row


def _device_ms(step: Callable[[], Any]) -> float:
    import torch

    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(SPIN)
    begin.record()
    step()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end))


def _wall_ms(step: Callable[[], Any], times: int) -> float:
    import torch

    settle = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    settle()
    begun = time.perf_counter()
    for _ in range(times):
        step()
    settle()
    return (time.perf_counter() - begun) / times * 1e3


def with_roof(ready: ReadyTask, steps: dict[str, Callable[[], Any]], inputs: list[Any]) -> None:
    """A kernel that moves the forward pass's bytes, in three sizes; steps are forward alone."""
    import torch

    from benchmarks import moving

    model = ready.programs["eager"]
    with torch.no_grad():
        results = tensors(model(*inputs))
    given = [*tensors(inputs), *model.parameters()]
    read = sum(t.numel() * t.element_size() for t in given)
    written = sum(t.numel() * t.element_size() for t in results)
    ready.row["bytes"] = {"read": read, "written": written}
    for label, program in ready.programs.items():
        steps[label] = _forward(program, inputs)
    for label, mover in moving.movers(read, written).items():
        steps[f"moving {label}"] = mover


def _forward(program: Any, inputs: list[Any]) -> Callable[[], Any]:
    import torch

    def step() -> Any:
        with torch.no_grad():
            return program(*inputs)

    return step


@dataclass(frozen=True)
class LookTurn:
    """What a worker is asked: so long to prepare, then to wait for its turn."""

    root: Path
    device: str
    modes: tuple[str, ...]
    roof: bool
    ends: float


def work(turns: Any, tasks: Any, rows: Any, alone: Any, barrier: Any) -> None:
    """One process: prepare until the turn ends, wait for the others, time alone, and again."""
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    os.environ["TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_BACKENDS"] = "ATEN"
    os.environ["TORCHINDUCTOR_MAX_AUTOTUNE_CONV_BACKENDS"] = "ATEN"
    import torch

    torch.set_num_threads(1)
    broken = False
    while True:
        turn: LookTurn | None = turns.get()
        if turn is None:
            return
        ready: list[ReadyTask] = []
        while time.time() < turn.ends and not broken:
            try:
                path = tasks.get(timeout=0.5)
            except Exception:  # queue.Empty: nothing is left
                break
            if (one := _prepared_or_none(path, turn, rows)) is not None:
                ready.append(one)
            if broken := broken or _is_broken(turn.device):
                break
        barrier.wait()
        for one in ready:
            with alone:
                try:
                    row = measured(one, turn.device, turn.roof)
                except Exception as error:
                    row = {**one.row, "failed": said_of(error)}
                broken = broken or _is_broken(turn.device)
            rows.put((one.name, row))
        barrier.wait()
        rows.put(None)


def _prepared_or_none(path: Path, turn: LookTurn, rows: Any) -> ReadyTask | None:
    """None: it failed, and its row says so. Where the others leave too little memory, it waits."""
    import torch

    failed = ""
    for attempt in range(TRIES):
        try:
            return prepared(path, turn.root, turn.device, turn.modes)
        except torch.OutOfMemoryError:
            failed = "out of memory"
            _forget(turn.device)
            time.sleep(4.0 * (attempt + 1))
        except Exception:
            failed = traceback.format_exc(limit=3)[-600:]
            break
    rows.put((path.relative_to(turn.root).as_posix(), {"failed": failed}))
    return None


def _is_broken(device: str) -> bool:
    """Whether a kernel has left the process without its device."""
    try:
        _forget(device)
    except Exception:
        return True
    return False


def _forget(device: str) -> None:
    import gc

    import torch

    gc.collect()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def best(row: dict[str, Any], kind: str) -> tuple[float, float] | None:
    """The fastest of the others and of ours; None where one of them was not timed."""
    times = row.get(kind, {})
    others = [v for k, v in times.items() if k in ("eager", *MODES)]
    ours = [v for k, v in times.items() if k.startswith("ours")]
    return (min(others), min(ours)) if others and ours else None


def describe(name: str, row: dict[str, Any]) -> str:
    if "failed" in row:
        return f"{name}: failed, {row['failed'].splitlines()[-1][:160]}"
    cells = []
    for kind in ("device_ms", "ms"):
        times, found = row.get(kind, {}), best(row, kind)
        said = " ".join(f"{k}={v:.3f}" for k, v in times.items())
        cells.append(f"{found[0] / found[1]:.2f}x [{said}]" if found else f"silent [{said}]")
    notes = "; ".join(f"{k}: {v[:80]}" for k, v in row.get("notes", {}).items())
    return f"{name}: device {cells[0]}" + f"; whole {cells[1].split(' [')[0]} {notes}"


def summary(rows: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Per family: tasks, share of at least 1.05, geometric mean; silence counts as 1.0."""
    families: dict[str, list[float]] = {}
    for name, row in rows.items():
        if "device_ms" in row:
            found = best(row, "device_ms")
            ratio = max(1.0, found[0] / found[1]) if found else 1.0
            parts = name.split("/")[-1].split("_")
            for key in (name.split("/")[0], f"{name.split('/')[0]}/{'_'.join(parts[1:3])}"):
                families.setdefault(key, []).append(ratio)
    for key in sorted(families):
        ratios = families[key]
        share = sum(r >= 1.05 for r in ratios) / len(ratios)
        mean = statistics.geometric_mean(ratios)
        yield f"{key:40} {len(ratios):4} tasks  1.05x: {share:5.0%}  mean {mean:.3f}"


def order(path: Path) -> tuple[int, str]:
    """By the number in the name: a chain and the operators beside it take turns."""
    found = re.match(r"\d+", path.name)
    number = int(found[0]) if found else 0
    return (number * (5 if path.parent.name == "chains" else 2), path.as_posix())


def run(options: argparse.Namespace, paths: list[Path], rows: dict[str, Any]) -> None:
    context = multiprocessing.get_context("spawn")
    turns, tasks, found = context.Queue(), context.Queue(), context.Queue()
    alone, barrier = context.Lock(), context.Barrier(options.workers)
    for path in paths:
        tasks.put(path)
    workers = [
        context.Process(target=work, args=(turns, tasks, found, alone, barrier), daemon=True)
        for _ in range(options.workers)
    ]
    for worker in workers:
        worker.start()
    end, left = time.time() + options.limit_s, len(paths)
    base = LookTurn(
        options.folder, options.device, tuple(options.modes.split(",")), options.bytes, 0.0
    )
    while left > 0 and time.time() + options.turn_s * 1.5 < end:
        turn = dataclasses.replace(base, ends=time.time() + options.turn_s)
        for _ in workers:
            turns.put(turn)
        closed = 0
        while closed < len(workers):
            item = found.get(timeout=600)
            if item is None:
                closed += 1
                continue
            name, row = item
            rows[name], left = row, left - 1
            print(describe(name, row), flush=True)
            write(options.out, rows)
    for worker in workers:
        worker.terminate()


def write(out: Path, rows: dict[str, Any]) -> None:
    import torch

    about = circumstances("cuda" if torch.cuda.is_available() else "cpu")
    write_record(out, {**about, "torch": torch.__version__, "rows": rows})


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--filter", default="")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--workers", type=int, default=WORKERS)
    parser.add_argument("--turn-s", type=float, default=TURN_S)
    parser.add_argument("--limit-s", type=float, default=470.0)
    parser.add_argument("--first", type=int, default=None, help="only so many tasks")
    parser.add_argument("--bytes", action="store_true", help="also the roof; forward alone")
    options = parser.parse_args()
    if options.limit_s < 1.5 * options.turn_s:
        parser.error("--limit-s has no room for a turn: give it 1.5 times --turn-s at least")
    rows = json.loads(options.out.read_text())["rows"] if options.out.exists() else {}
    paths = sorted(options.folder.rglob("*.py"), key=order)
    paths = [
        path
        for path in paths
        if re.search(options.filter, path.relative_to(options.folder).as_posix())
        and path.relative_to(options.folder).as_posix() not in rows
    ]
    run(options, list(islice(paths, options.first)), rows)
    print("\n".join(summary(rows)))


if __name__ == "__main__":
    main()
