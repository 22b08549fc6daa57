"""Where the time of a judgement's values goes: the judge's steps in one process, under a profiler.

    python -m benchmarks.judging [--filter RE] [--device cuda] [--sessions 2] [--out FILE]

The candidate is the reference itself, so every comparison passes and none ends early. What is told is the
last session's: a first one also loads the libraries' kernels. A row is one of our functions with all that it
calls, so rows overlap: `compare` holds `run`, `run_wide` and `numerics.compare`. Kernels of a GPU are counted
where somebody waits for them. Not covered: the pipes between processes and who works beside whom
(`kernel-lsp bench` has the whole time).
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import re
import tempfile
from pathlib import Path
from typing import Any

import torch

from kernel_lsp import analysis, wire, workloads
from kernel_lsp.evaluator.judging.judge import Judge
from kernel_lsp.evaluator.tensors import Blobs, Left, decode, encode
from kernel_lsp.records import Snapshot

ROOT = Path(__file__).resolve().parent
TASKS = ROOT / "tasks"
MOST_ROWS = 24


class Judged:
    """One task's judge and a stand-in for the worker, which calls the reference."""

    def __init__(self, path: Path, device: str, folder: Path) -> None:
        snapshot = Snapshot(uri=path.as_uri(), text=path.read_text())
        target = analysis.find_target(analysis.analyze(snapshot), "Model")
        assert target is not None, f"no Model in {path}"
        known, _ = workloads.workloads_for(snapshot, target, None)
        self.folder, self.judge = folder, Judge(folder)
        program = wire.to_json(analysis.slice_program(snapshot, target))
        self.ask("open", program=program, workload=wire.to_json(known[0]), device=device)
        assert self.judge.reference is not None
        self.reference = self.judge.reference

    def ask(self, what: str, blobs: Blobs = (), **message: Any) -> dict[str, Any]:
        reply, self.blobs = self.judge.answer({"do": what, "session": 1, **message}, blobs)
        assert "refused" not in reply, reply["refused"]
        return reply

    def session(self) -> None:
        plan = self.ask("begin", seed=None, precision="faithful")["trials"]
        for trial in plan:
            drawn = self.ask("trial", number=trial["number"])
            answer, left = self.called(drawn)
            reply = self.ask("compare", left, number=trial["number"], **answer)
            assert reply.get("ok", True), reply["detail"]
        self.ask("summary")
        self.ask("close")

    def called(self, drawn: dict[str, Any]) -> tuple[dict[str, Any], Blobs]:
        """A worker's answer."""
        arguments, state = (decode(drawn[what], self.blobs) for what in ("arguments", "state"))
        given = {"label": "what a worker is asked", "arguments": arguments, "state": state}
        ran, out = self.reference.run(given, drawn["noise_seed"]), Left(self.folder)
        answer = {
            "outputs": encode(ran.output, out),
            "state": encode({name: ran.state[name] for name in self.reference.changed}, out),
            "relations": ran.relations,
            "generators": ran.generators,
        }
        left = {int(number): self.folder / name for number, name in out.left.items()}
        return answer, [left.get(number, blob) for number, blob in enumerate(out.blobs)]


def profiled(judged: Judged, sessions: int) -> list[dict[str, Any]]:
    """Our functions in the last session, the dearest first, in seconds."""
    for _ in range(sessions - 1):
        judged.session()
    profile = cProfile.Profile()
    profile.runcall(judged.session)
    stats: Any = pstats.Stats(profile)
    found = [
        {"what": f"{Path(file).stem}.{name}", "calls": calls, "seconds": total, "itself": own}
        for (file, _, name), (calls, _, own, total, _) in stats.stats.items()
        if "kernel_lsp" in file or Path(file) == Path(__file__)
    ]
    return sorted(found, key=lambda row: -row["seconds"])[:MOST_ROWS]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--filter", default="chains/linear_|chains/conv2d_b", help="tasks whose path matches")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--sessions", type=int, default=2)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found = {}
    for path in sorted(TASKS.rglob("*.py")):
        name = path.relative_to(TASKS).as_posix()
        if re.search(options.filter, name):
            with tempfile.TemporaryDirectory() as folder:
                found[name] = profiled(Judged(path, options.device, Path(folder)), options.sessions)
            print(f"\n{name} on {options.device}\n{'seconds':>8}{'itself':>8}{'calls':>7}")
            for row in found[name]:
                print(f"{row['seconds']:8.3f}{row['itself']:8.3f}{row['calls']:7}  {row['what']}")
    if options.out:
        options.out.write_text(json.dumps({"device": options.device, "tasks": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
