"""What ``kernel-lsp record`` costs: small training loops, alone and recorded, by turns, in fresh processes.

    python benchmarks/recording.py                       every loop, on the GPU if there is one
    python benchmarks/recording.py --device cpu --pairs 9 --out results.json
    python benchmarks/recording.py --limit-s 240         no new pair after that many seconds

Per loop and pair: the time of a step after warm-up (of the quicker half), recorded over alone, by the clock
and by the process's own CPU time (which other programs on the machine spoil less). What is told is the median
over the pairs, and every pair's number. Bar: 5 % (issue 8).
The loops are unkind on purpose: modules so small that a call of one takes some 50 us.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from kernel_lsp.workloads import running  # noqa: E402

BAR = 1.05
WARM_UP = 60


def main() -> None:
    arguments = _arguments()
    if arguments.child:
        arguments.result.write_text(json.dumps(_loop(arguments.child, arguments.device, arguments.steps)))
        return
    began, found = time.monotonic(), {}
    for loop in arguments.loops:
        pairs: list[dict[str, float]] = []
        for _ in range(arguments.pairs):
            if pairs and time.monotonic() - began > arguments.limit_s:
                break
            pairs.append(_pair(loop, arguments))
        found[loop] = _told(loop, pairs)
    report = {"device": arguments.device, "steps": arguments.steps, "bar": BAR, "loops": found}
    if arguments.out:
        arguments.out.write_text(json.dumps(report, indent=1) + "\n")
    sys.exit(int(any(one["wall"] > BAR for one in found.values())))


def _pair(loop: str, arguments: argparse.Namespace) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        command = [sys.executable, __file__, "--child", loop, "--steps", str(arguments.steps)]
        command += ["--device", arguments.device, "--result", str(result)]
        subprocess.run(command, check=True)
        alone = json.loads(result.read_text())
        done = running.run(ROOT, command, Path(folder) / "benchmark.recorded.toml")
        recorded = json.loads(result.read_text())
    if done.status or not done.merged.seen or done.merged.notes:
        raise SystemExit(f"nothing was recorded: exit code {done.status}, {done.merged.notes}")
    return {clock: recorded[clock] / alone[clock] for clock in ("wall", "cpu")} | {"step_ms": alone["wall"]}


def _told(loop: str, pairs: list[dict[str, float]]) -> dict[str, Any]:
    """One row of the table, and the same as plain values."""
    middle = {name: statistics.median(pair[name] for pair in pairs) for name in pairs[0]}
    walls = " ".join(f"{pair['wall']:.3f}" for pair in pairs)
    print(
        f"{loop:12} step {middle['step_ms']:8.3f} ms   recorded/alone: wall {middle['wall']:.3f}"
        f"   cpu {middle['cpu']:.3f}   pairs {walls}",
        flush=True,
    )
    return {**middle, "pairs": pairs}


# --- the loops, in a process of their own ----------------------------------------------------


def _loop(name: str, device: str, steps: int) -> dict[str, float]:
    """ms of a step after warm-up: the mean of the quicker half, since other programs only make steps slow."""
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1)
    step = {"mlp": _mlp, "transformer": _transformer, "launches": _launches}[name](device)
    walls, cpus = [], []
    for _ in range(steps + WARM_UP):
        wall, cpu = time.perf_counter(), time.process_time()
        step()
        if device == "cuda":
            torch.cuda.synchronize()
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    quick = {"wall": sorted(walls[WARM_UP:]), "cpu": sorted(cpus[WARM_UP:])}
    return {clock: 1000 * statistics.fmean(times[: steps // 2]) for clock, times in quick.items()}


def _mlp(device: str) -> Any:
    import torch
    from recording_models import Tower

    return _training(Tower(width=64, depth=6).to(device), torch.randn(32, 64, device=device))


def _transformer(device: str) -> Any:
    import torch
    from recording_models import Decoder

    ids = torch.randint(0, 1000, (8, 64), device=device)
    return _training(Decoder(vocabulary=1000, width=128, depth=4).to(device), ids)


def _training(net: Any, given: Any) -> Any:
    import torch

    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        net(given).square().mean().backward()
        optimizer.step()

    return step


def _launches(device: str) -> Any:
    import torch
    from recording_models import scaled

    x = torch.randn(1 << 16, device=device)

    def step() -> None:
        y = x
        for _ in range(20):
            y = scaled(y, 1.01)

    return step


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("loops", nargs="*")
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--limit-s", type=float, default=1e9)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.device == "auto":
        import torch

        arguments.device = "cuda" if torch.cuda.is_available() else "cpu"
    arguments.loops = arguments.loops or ["mlp", "transformer"] + ["launches"] * (arguments.device == "cuda")
    return arguments


if __name__ == "__main__":
    main()
