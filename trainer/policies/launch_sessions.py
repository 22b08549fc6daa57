"""A policy for Triton kernels goes on learning from logged sessions, offline.

    python -m trainer.policies.launches --journal journal.db --out sessions.json.xz
    python -m trainer.policies.launch_sessions --launches sessions.json.xz --start
    kernel_lsp/models/launch-small-1 \\
        --version 2 --out policy/

What sessions judged are plans like any other, fewer of each kernel; what people did with them
raises or lowers what a plan is worth (rewards.HUMAN), not by how much it is said to be faster. One
kind of GPU counts, that of most kernels unless another is named. Part of the kernels is held out;
where its first suggestions for these became worse nothing is packed, else they are its held-out
check. Not covered: reading journals (launches.py), learning from a recording of one's own
(launch_policy). """

from __future__ import annotations

import argparse
import copy
import hashlib
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from kernel_lsp.errors import ConfigError, KernelLspError
from kernel_lsp.files import replace_file
from kernel_lsp.models import HeldOut, Manifest, manifest
from kernel_lsp.records import Json
from trainer import config
from trainer.policies import exact, launch_policy, launches, models, shipping
from trainer.policies.exact import Schedule
from trainer.policies.launch_report import comparable, policy, report
from trainer.policies.launches import KernelPlans

HELD_OUT = 0.25
SCHEDULE = Schedule(
    form="weigh", rate=3e-4, batch=256, steps=150, rl_rate=1.5e-4, rl_steps=100, tasks=32, warmup=15
)
TINY = Schedule(form="weigh", batch=16, steps=4, rl_steps=2, tasks=3)


def deal_tasks(tasks: Sequence[KernelPlans]) -> tuple[list[KernelPlans], list[KernelPlans]]:
    """(to learn from, held out), by a hash of the name alone: the same with more sessions."""
    able = {tasks[place].name for place in comparable(tasks)}
    out = {name for name in able if _mark(name) < HELD_OUT}
    return [one for one in tasks if one.name not in out], [one for one in tasks if one.name in out]


def _mark(name: str) -> float:
    """In [0, 1)."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) / 2**64


def load_policy(folder: Path, device: str) -> Any:
    """The weights of a packed policy. Raises ConfigError, ModelError."""
    found = manifest.read(folder)
    if not (found.weighs and "kernel" in found.targets):
        raise ConfigError(f"{found.id} is no policy for Triton kernels", "start from launch-small")
    manifest.verify(folder, found)
    recipe = config.read(
        {"model": {"path": str(folder.absolute())}, "sft": {}}, Path("sessions.toml")
    )
    return models.load(recipe, ())[0].to(device)


def of_one_device(tasks: Sequence[KernelPlans], name: str | None) -> list[KernelPlans]:
    """Those that the named GPU measured; None: the GPU that measured most."""
    counts = Counter(one.device_name for one in tasks)
    chosen = name or max(counts, key=lambda one: counts[one], default=None)
    for other, count in counts.items():
        if other != chosen:
            _say(
                f"left out: {count} kernels that {other or 'an unknown device'} measured, not "
                f"{chosen}"
            )
    return [one for one in tasks if one.device_name == chosen]


def look_up(model: Any, tasks: Sequence[KernelPlans], device: str, capability: str) -> Json:
    """Its first suggestions for these kernels, looked up."""
    known = launch_policy.lesson(tasks, device, 0, capability)
    scores = exact.scores(model, known, range(len(tasks)))
    return report([policy(task, scores[place]) for place, task in enumerate(tasks)])


def learn_sessions(options: argparse.Namespace, device: str) -> tuple[Any, Json]:
    """(the model, what it and the one before suggest for what was held out)."""
    every = [one for path in options.launches for one in launches.load(path)]
    learn, held_out = deal_tasks(of_one_device(every, options.device_name))
    if not learn or not held_out:
        cause = (
            f"{len(learn)} kernels to learn from and {len(held_out)} to check it with are too few"
        )
        raise ConfigError(cause, "wait for more sessions, or add others with --launches")
    before = load_policy(options.start, device)
    after = copy.deepcopy(before)
    known = launch_policy.lesson(learn, device, capability=options.capability)
    schedule = TINY if options.tiny else SCHEDULE
    exact.learn(after, known, schedule, range(len(learn)), options.seed, report=_say)
    models_ = {"before": before, "after": after}
    record = {
        name: look_up(one, held_out, device, options.capability) for name, one in models_.items()
    }
    measured = {
        "device": learn[0].device_name,
        "learned from": len(learn),
        "held out": len(held_out),
    }
    return after, {**measured, **record}


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def pack_policy(model: Any, outcome: Json, options: argparse.Namespace) -> Manifest:
    """The policy as it is shipped, with its check. Raises ConfigError for one that is worse than it
    was."""
    low, mean, high = outcome["after"]["first_over_best"]
    if mean < (was := outcome["before"]["first_over_best"][1]):
        cause = (
            f"first / best was {was:.3f} before and is {mean:.3f} on {outcome['held out']} held-out "
            f"kernels"
        )
        raise ConfigError(f"it became worse, and is not packed: {cause}", "wait for more sessions")
    names = json.dumps(sorted(outcome["after"]["each"]))
    check = HeldOut(
        metric="first/best",
        tasks=outcome["held out"],
        value=mean,
        low=low,
        high=high,
        rule=outcome["after"]["rule_over_best"][1],
        device=outcome["device"] or "unknown",
        suite=hashlib.sha256(names.encode()).hexdigest()[:16],
    )
    start = manifest.read(options.start)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return shipping.pack(
            Path(folder),
            options.out / start.name,
            name=start.name,
            version=options.version,
            held_out=check,
            devices=(f"cuda:{options.capability}",),
            weighs=True,
            targets=start.targets,
            unasked=False,
            notes=f"{start.id}, which went on with {outcome['learned from']} kernels of logged "
            f"sessions.\n",
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--launches", type=Path, action="append", required=True, help="of trainer.policies.launches"
    )
    parser.add_argument(
        "--start", type=Path, required=True, help="folder of the policy that goes on"
    )
    parser.add_argument("--version", required=True, help="of the new policy")
    parser.add_argument("--out", type=Path, required=True, help="folder for results and the policy")
    parser.add_argument("--device-name", help="the GPU that measured (default: of most kernels)")
    parser.add_argument(
        "--capability", default=launch_policy.CAPABILITY, help="of that GPU (sm_90)"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tiny", action="store_true", help="a few steps: a rehearsal")
    options = parser.parse_args()
    begun, device = time.monotonic(), "cuda" if torch.cuda.is_available() else "cpu"
    try:
        model, outcome = learn_sessions(options, device)
        options.out.mkdir(parents=True, exist_ok=True)
        replace_file(options.out / "sessions.json", (json.dumps(outcome, indent=1) + "\n").encode())
        for name in ("before", "after"):
            low, mean, high = outcome[name]["first_over_best"]
            print(f"{name:7} first / best {mean:.3f} [{low:.3f}, {high:.3f}]", flush=True)
        made = pack_policy(model, outcome, options)
    except KernelLspError as error:
        sys.exit(f"launch_sessions: {error}")
    print(f"{made.id} in {options.out}, {time.monotonic() - begun:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
