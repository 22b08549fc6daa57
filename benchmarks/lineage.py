"""Lineages of the five experts: what each step gains, and whether a fresh process sees the same.

    PYTHONPATH=. python3 benchmarks/lineage.py --device cuda --limit-s 480 --out
    lineage-h200-DATE.json
    … --packages DIR     kernels of installed packages are experts too (triton_targets.py says how)

Every expert of benchmarks/experts is walked back, all in one process, so that one is compiled
while another is timed. Then a fresh process judges each accepted step again. Everything judged
lies under --data, so a run that was stopped, also by --limit-s, goes on with the same command. Two
files are written: --out, and beside it the whole records (``….records.json``), from which drafts
can be made elsewhere. On a CPU the interpreter judges small shapes: nothing has an effect, nothing
is reproduced, and packages' shapes are too large. Not covered: whether the skills help on other
kernels (trainer/LOG.md: they hardly do)."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import triton_targets
from benchmarks.reporting import write_record
from kernel_lsp import config, wire
from kernel_lsp.errors import KernelLspError
from kernel_lsp.files import read_source, replace_file
from kernel_lsp.lineage import environment, kept, lessons, walking
from kernel_lsp.lineage.environment import LineageRequest
from kernel_lsp.lineage.kept import Judgements
from kernel_lsp.lineage.walking import LineageState
from kernel_lsp.pipeline import Pipeline
from kernel_lsp.presenter import lineages as presenting
from kernel_lsp.records import Interval, Job, Judgement, Lineage, Report
from kernel_lsp.workloads import pragma
from trainer.tasks import timed_tasks

EXPERTS = Path(__file__).resolve().parent / "experts"
SMALL = {
    "attention": "q=f16[1,2,70,16] k=f16[1,2,70,16] v=f16[1,2,70,16]",
    "layer_norm": "x=bf16[20,100] weight=bf16[100] bias=bf16[100]",
    "matmul": "a=f16[24,40] b=f16[40,56] bias=f16[56]",
    "scan": "gate=f32[2,50,24] x=f32[2,50,24]",
    "softmax": "x=bf16[3,20000]",
}
"""For the interpreter. Sizes in one workload differ: the gate changes a batch wherever its size
stands."""
SAME = 0.02
"""Two measurements of one ratio differ by about this much beyond their intervals."""
MIN_STEPS = 4
WALKING = 0.75
"""Share of the time in which walks may go on; the rest is for judging again."""


def experts(device: str, only: str, packages: Path | None) -> dict[str, LineageRequest]:
    """By name; with ``packages`` also what the workloads of triton/installed name there."""
    found = {path.stem: _own(path, device) for path in sorted(EXPERTS.glob("*.py"))}
    for job in triton_targets.installed(device, packages) if packages else ():
        found[_name(job.qualname)] = LineageRequest(job=job)
    return {name: found[name] for name in (only.split(",") if only else found)}


def _own(path: Path, device: str) -> LineageRequest:
    qualname = f"{path.stem}_kernel"
    job = Job(text=read_source(path).text, path=str(path), qualname=qualname, device=device)
    return LineageRequest(
        job=job, workload=pragma.parse(SMALL[path.stem]) if device == "cpu" else None
    )


def _name(qualname: str) -> str:
    return qualname.removesuffix("_kernel")


async def walked(pipeline: Pipeline, expert: LineageRequest) -> Lineage:
    """One expert, from where an earlier run had come to."""
    begun = time.monotonic()
    async with environment.set_up(pipeline, expert, lambda step: None) as on:
        walk = walking.LineageWalk(
            on=on, judgements=Judgements(on.place), report=_reporter(expert.job.qualname)
        )
        found = await lessons.learn(walk, await walk.run())
        kept.write(on.place, found, presenting.markdown(found))
    print(f"{presenting.brief(found)}\n     in {time.monotonic() - begun:.0f} s\n", flush=True)
    return found


async def again(pipeline: Pipeline, expert: LineageRequest) -> dict[str, Judgement]:
    """Every accepted step and the whole, judged anew; child's hash -> judgement."""
    async with environment.set_up(pipeline, expert, lambda step: None) as on:
        known = next(
            (one for one in kept.lineages(on.place.parents[1]) if _is(one, expert, on)), None
        )
        if known is None:
            return {}
        walk = walking.LineageWalk(
            on=on,
            judgements=Judgements(on.place / "again"),
            report=_reporter(expert.job.qualname),
        )
        texts = [known.text, *(step.text for step in known.steps)]
        states = [LineageState(program=replace(on.prepared.program, source=text)) for text in texts]
        pairs = [*itertools.pairwise(states), (states[0], states[-1])]
        return {f"{a.id}-{b.id}": await walk.judged(a, b) for a, b in pairs if a is not b}


def _is(one: Lineage, expert: LineageRequest, on: environment.Setup) -> bool:
    """Also of a walk that has not ended: what it has accepted stands."""
    return one.hardware == on.hardware and one.qualname == expert.job.qualname


def _reporter(name: str) -> Report:
    return lambda step: print(f"{name}: {step.message}", file=sys.stderr, flush=True)


async def over(
    chosen: dict[str, LineageRequest], options: argparse.Namespace, work: Any
) -> dict[str, Any]:
    """The work on every expert, ``--lanes`` at a time, as long as the time lasts; what failed is
    said."""
    found, end = dict[str, Any](), time.monotonic() + options.limit_s
    settings = replace(config.load(None)[0], data_dir=str(options.data))
    if options.packages:
        place = options.data / "venv"
        settings = replace(settings, python=triton_targets.interpreter(options.packages, place))
    pipeline = Pipeline(settings)

    async def one(name: str) -> None:
        try:
            found[name] = await work(pipeline, chosen[name])
        except KernelLspError as error:
            print(f"{name}: {error}", flush=True)

    try:
        await timed_tasks.share(timed_tasks.until(end, chosen), one, options.lanes, end)
    finally:
        await pipeline.close()
    return found


# --- results ------------------------------------------------------------------------------


def reproduced(first: Interval | None, second: Interval | None) -> bool | None:
    """Whether the intervals meet, and what paid still does; None: one of them is unknown."""
    if first is None or second is None:
        return None
    meet = second.low <= first.high * (1 + SAME) and first.low <= second.high * (1 + SAME)
    return meet and (first.low < lessons.PAYS or second.low > 1.0)


def row(one: Lineage, fresh: dict[str, Judgement]) -> dict[str, Any]:
    """What is printed of one expert."""
    steps = []
    for step in one.steps:
        anew = fresh.get(f"{step.judgement.parent}-{step.judgement.child}")
        effect = anew.effect if anew else None
        record: dict[str, Any] = {"operator": step.operator, "parameters": step.parameters}
        record |= {"effect": _ends(step.judgement.effect), "again": _ends(effect)}
        steps.append({**record, "reproduced": reproduced(step.judgement.effect, effect)})
    return {
        "accepted": len(one.steps),
        "rejected": len(one.avoided),
        "finished": one.finished,
        "steps": steps,
        "avoided": [
            f"{step.operator} {step.parameters}: {step.reason[:160]}" for step in one.avoided
        ],
        "whole": _ends(one.whole.effect if one.whole else None),
        "skills": {skill.name: [skill.standing, skill.how] for skill in one.skills},
    }


def _ends(found: Interval | None) -> list[float] | None:
    return [round(end, 4) for end in (found.low, found.mid, found.high)] if found else None


def read_results(options: argparse.Namespace, names: Iterable[str]) -> dict[str, Any]:
    """Everything on disk for these experts, also of earlier runs."""
    device = "interpreter" if options.device == "cpu" else options.device
    known = {
        _name(one.qualname): one
        for one in kept.lineages(options.data)
        if one.hardware.split(":")[0] == device
    }
    anew = {name: _anew(options.data / f"again-{name}.json") for name in names if name in known}
    rows = {name: row(known[name], fresh) for name, fresh in anew.items()}
    steps = [step for one in rows.values() for step in one["steps"]]
    return {
        "schema_version": 1,
        "date": time.strftime("%Y-%m-%d"),
        "device": next((one.device_name for one in known.values()), None),
        "versions": next((one.versions for one in known.values()), None),
        "bars": {
            "experts with at least 4 accepted steps": sum(
                r["accepted"] >= MIN_STEPS for r in rows.values()
            ),
            "experts": len(rows),
            "effects reproduced": sum(step["reproduced"] is True for step in steps),
            "effects": len(steps),
        },
        "experts": rows,
        "records": {name: wire.to_json(known[name]) for name in rows},
    }


def _anew(path: Path) -> dict[str, Judgement]:
    if not path.exists():
        return {}
    return {
        key: wire.from_json(Judgement, data) for key, data in json.loads(path.read_text()).items()
    }


def show(found: dict[str, Any]) -> None:
    for name, one in found["experts"].items():
        same = [step["reproduced"] for step in one["steps"]]
        whole = f"{one['whole'][1]:.2f}x" if one["whole"] else "unmeasured"
        print(
            f"{name:12} {one['accepted']:3} accepted {one['rejected']:3} rejected  whole {whole:11}"
            f" reproduced {sum(s is True for s in same)} of {len(same)}"
        )
    print(", ".join(f"{name}: {number}" for name, number in found["bars"].items()))


def recheck(options: argparse.Namespace, chosen: dict[str, LineageRequest]) -> None:
    """In this process, which has timed nothing before. Each expert's file is written when it is
    done."""

    async def kept_again(pipeline: Pipeline, expert: LineageRequest) -> None:
        judgements = await again(pipeline, expert)
        text = json.dumps(wire.to_json(judgements), indent=1) + "\n"
        name = _name(expert.job.qualname)
        replace_file(options.data / f"again-{name}.json", text.encode())

    asyncio.run(over(chosen, options, kept_again))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument(
        "--limit-s", type=float, default=480, help="stops then, and goes on next time (480)"
    )
    parser.add_argument("--lanes", type=int, default=5, help="experts at a time (5; 1 on a CPU)")
    parser.add_argument("--only", default="", help="experts by name, with commas; default: all")
    parser.add_argument(
        "--data", type=Path, default=Path(".kernel-lsp/lineage"), help="what is kept"
    )
    parser.add_argument("--packages", type=Path, help="folder of unpacked wheels; needs a GPU")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--recheck", action="store_true", help="only judge again, in this process")
    options = parser.parse_args()
    options.lanes = 1 if options.device == "cpu" else options.lanes
    options.data.mkdir(parents=True, exist_ok=True)
    chosen = experts(options.device, options.only, options.packages)
    begun = time.monotonic()
    if options.recheck:
        return recheck(options, chosen)
    whole, options.limit_s = options.limit_s, WALKING * options.limit_s
    asyncio.run(over(chosen, options, walked))
    options.limit_s = whole - (time.monotonic() - begun)
    if options.limit_s > 0:
        subprocess.run([*_myself(options), "--recheck"], check=False)
    found = read_results(options, chosen)
    show(found)
    if options.out:
        records = found.pop("records")
        write_record(options.out, found)
        beside = options.out.with_suffix(".records.json")
        replace_file(beside, (json.dumps(records) + "\n").encode())
    return None


def _myself(options: argparse.Namespace) -> list[str]:
    named = ["device", "limit_s", "lanes", "only", "data"]
    named += ["packages"] if options.packages else []
    flags = [f"--{name.replace('_', '-')}={getattr(options, name)}" for name in named]
    return [sys.executable, __file__, *flags]


if __name__ == "__main__":
    main()
