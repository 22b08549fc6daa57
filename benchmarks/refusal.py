"""Why a candidate was refused, number by number: the failed comparisons of one verdict, made again.

    PYTHONPATH=. python3 benchmarks/refusal.py ~/.local/share/kernel-lsp/evidence/*.json
    PYTHONPATH=. python3 benchmarks/refusal.py --seeds 5 --device cuda evidence.json

Runs reference and candidate of an evidence file in this process, without any confinement, so give
it only candidates that you would run anyway. Each trial that the file names as failed (with
`--seeds`: all trials, of so many other seeds) is drawn and compared as the judge does it; what
fails is printed as JSON lines: the rule, the elements farthest beyond their bound with candidate,
reference, oracle and the noises that the bound was made of, and their rows. Files whose candidate
was accepted are passed over."""

from __future__ import annotations

import argparse
import contextlib
import json
import secrets
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from kernel_lsp import wire
from kernel_lsp.evaluator import callees, circumstances, deviations
from kernel_lsp.evaluator.gradients import backward, leaves_with_gradients
from kernel_lsp.evaluator.judging import judge, narrow, numerics, session
from kernel_lsp.evaluator.judging.drawing import draw
from kernel_lsp.evaluator.judging.session import Examination
from kernel_lsp.evaluator.running import parameters
from kernel_lsp.evaluator.tensors import map_tensors, tensor_leaves, with_arithmetic
from kernel_lsp.records import Program, Workload

ELEMENTS = 6
"""Farthest elements that are printed of one comparison."""
ROW = 8
"""Of a row: so many of its elements around."""


class Again:
    """Reference and candidate of one evidence file, open in this process."""

    def __init__(self, kept: dict[str, Any], device: str) -> None:
        program = wire.from_json(Program, kept["reference"])
        workload = wire.from_json(Workload, kept["workload"])
        opened = judge.Judge(Path.cwd())
        reply, _ = opened.answer(
            {"do": "open", "program": kept["reference"], "workload": kept["workload"],
             "device": device}, []
        )  # fmt: skip
        if opened.reference is None:
            raise SystemExit(f"could not open the reference: {reply}")
        self.reference, self.precision = opened.reference, kept["precision"]
        candidate = wire.to_json(program) | {
            "source": kept["candidate_source"], "entry": kept["candidate_entry"]
        }  # fmt: skip
        self.callee = callees.callee_of(
            wire.from_json(Program, candidate), workload, self.reference.init,
            self.reference.device.place, self.reference.subject.conduct,
        )  # fmt: skip

    def failures(self, seed: int, numbers: set[int] | None) -> Iterator[dict[str, Any]]:
        """What fails of these trials; None: of all."""
        examination = Examination(self.reference, seed, self.precision)
        for descriptor in examination.plan:
            if numbers is not None and descriptor["number"] not in numbers:
                continue
            failed: list[dict[str, Any]] = []
            with _watching(failed):
                try:
                    self._compare(examination, descriptor)
                except Exception as error:  # whatever it is, the next trial may say more
                    failed.append({"error": f"{type(error).__name__}: {error}"[:500]})
            for one in failed:
                yield {"seed": seed, "trial": descriptor, **one}

    def _compare(self, examination: Examination, descriptor: dict[str, Any]) -> None:
        reference, trial = self.reference, draw(self.reference, examination.seed, descriptor)
        ran = reference.run(trial, trial["noise_seed"])
        placed = map_tensors(reference.place, trial["arguments"])
        torch.manual_seed(trial["noise_seed"])
        self._load(trial)
        within = circumstances.within(
            trial["circumstance"], self.callee.target, reference.device.place
        )
        with torch.set_grad_enabled(bool(trial["grad"])), within, self._in_type(trial):
            result = self.callee(self.callee.bind(placed))
        got = map_tensors(lambda t: t.detach().clone(), result)
        pairs = list(zip(tensor_leaves(got), tensor_leaves(ran.output), strict=True))
        trial["ran"] = ran
        truth = examination._truth(trial, ran.output)
        examination._judge(trial, pairs, truth, ran.output, None)
        if not trial["gradients"]:
            return
        carrying = zip(tensor_leaves(ran.output), ran.carries_grad, strict=True)
        plain = [session._weights(t, trial["draw"]) for t, carries in carrying if carries]
        weights = trial["weights"] = examination._relaid_weights(trial, plain)
        mine = backward(result, leaves_with_gradients(placed, self.callee.target), weights)
        want = reference.gradients(trial, weights, trial["noise_seed"])
        asked = session.GradientComparison(
            trial=trial,
            names=[name for name, value in want.items() if value is not None],
            got=mine,
            want=want,
            constants=session.GRADIENT_CONSTANTS,
        )
        examination._compared_gradients(asked)

    def _load(self, trial: dict[str, Any]) -> None:
        if isinstance(self.callee.target, torch.nn.Module):
            self.callee.target.load_state_dict(trial["state"])

    @contextlib.contextmanager
    def _in_type(self, trial: dict[str, Any]) -> Iterator[None]:
        """In float32 where the trial is."""
        target = self.callee.target
        if not (trial["single"] and isinstance(target, torch.nn.Module)):
            yield
            return
        before = {name: t.dtype for name, t in parameters.tensors_of(target).items()}
        parameters.cast(target, {name: t.dtype for name, t in trial["state"].items()})
        self._load(trial)
        try:
            yield
        finally:
            parameters.cast(target, before)


class _watching:
    """Inside the block, the last failed comparison of each tensor is described in ``failed``."""

    def __init__(self, failed: list[dict[str, Any]]) -> None:
        self.failed, self._compare = failed, numerics.compare

    def __enter__(self) -> None:
        last: dict[int, dict[str, Any]] = {}

        def watched(c: Any, r: Any, o: Any, **how: Any) -> Any:
            found = self._compare(c, r, o, **how)
            if id(c) in last:  # compared again with more of what rounding makes
                self.failed.remove(last.pop(id(c)))
            if not found.passed:
                moved = (*how.get("moved", ()), *how.get("further", ()), *how.get("errors", ()))
                last[id(c)] = {**asdict(found), **_described(c, r, o, moved)}
                self.failed.append(last[id(c)])
            return found

        self._patch = patch.object(numerics, "compare", watched)
        self._patch.start()

    def __exit__(self, *problem: object) -> None:
        self._patch.stop()


def _described(
    candidate: torch.Tensor, reference: torch.Tensor, oracle: torch.Tensor | None, moved: Any
) -> dict[str, Any]:
    """The elements farthest beyond what narrow.py allows, and what it is made of."""
    c, r = (with_arithmetic(numerics.real(t)).double() for t in (candidate, reference))
    o = numerics.real(oracle).double() if oracle is not None else r
    others = [numerics.real(m).double() for m in moved]
    noises = [r - o, *(m - o for m in others)]
    eps = torch.finfo(candidate.dtype).eps
    around = torch.stack([narrow.around(one) for one in noises]).amax(0)
    own = torch.stack([one.abs() for one in noises]).amax(0)
    bound = narrow.ELEMENT_FACTOR * (eps / 2 * o.abs() + around + own)
    beyond = ((c - o).abs() / bound.clamp_min(1e-300)).nan_to_num(0.0).flatten()
    elements = []
    for place in beyond.topk(min(ELEMENTS, beyond.numel())).indices.tolist():
        index = numerics._index(place, c.shape)
        row = index[:-1]
        first = max(0, index[-1] - ROW // 2) if index else 0
        near = {
            name: t[tuple(row)][first : first + ROW].tolist() if index else float(t)
            for name, t in {"candidate": c, "reference": r, "oracle": o}.items()
        }
        rows = {
            name: deviations.rms(t[tuple(row)] if index else t)
            for name, t in {"error": c - o, "noise": r - o, "oracle": o}.items()
        }
        flat = {"own_noise": own, "around": around, "bound": bound, "oracle": o}
        elements.append({
            "index": index, "beyond": float(beyond[place]), "row_rms": rows, "near": near,
            **{name: float(t.flatten()[place]) for name, t in flat.items()},
            "noises": [float(one.flatten()[place]) for one in noises],
        })  # fmt: skip
    return {
        "shape": list(c.shape), "dtype": str(candidate.dtype), "eps": eps,
        "rms": {"oracle": deviations.rms(o), "candidate": deviations.rms(c - o),
                "reference": deviations.rms(r - o)},
        "beyond_8": int((beyond > 1).sum()), "beyond_4": int((beyond > 0.5).sum()),
        "elements": elements,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", type=Path, nargs="+", help="evidence of refused candidates")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seeds", type=int, default=0, help="other seeds, all trials of each")
    options = parser.parse_args()
    for file in options.files:
        kept = json.loads(file.read_text())
        if kept["evaluation"]["status"] != "wrong_result" and not options.seeds:
            continue
        head = {"file": file.name, "entry": kept["candidate_entry"], **_outcome(kept)}
        print(json.dumps(head), flush=True)
        again = Again(kept, options.device)
        failed = {row["number"] for row in kept["trials"] if row["passed"] is False}
        asked: list[tuple[int, set[int] | None]] = [(kept["seed"], failed)] if failed else []
        asked += [(secrets.randbits(48), None) for _ in range(options.seeds)]
        for seed, numbers in asked:
            for one in again.failures(seed, numbers):
                print(json.dumps(one), flush=True)
        del again
        torch.cuda.empty_cache()


def _outcome(kept: dict[str, Any]) -> dict[str, Any]:
    evaluation = kept["evaluation"]
    return {"status": evaluation["status"], "detail": evaluation["detail"]}


if __name__ == "__main__":
    main()
