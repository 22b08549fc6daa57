"""One candidate's examination: secret seed, drawn trials, comparison. Lives in the judge.

Several sessions share one opened reference; each has its own seed, trials, timing sets and outputs of
the oracle. The reference's output for a trial exists only after the candidate has answered that trial.
"""

from __future__ import annotations

import secrets
from typing import Any

import torch

from kernel_lsp.evaluator import inputs, numerics, timing
from kernel_lsp.evaluator.oracle import Reference
from kernel_lsp.evaluator.tensors import Outbox, decode, encode, leaves, map_tensors, tensor_leaves

Pair = tuple[torch.Tensor, torch.Tensor]
"""One output tensor: the candidate's, the reference's."""


class Session:
    """One candidate under examination."""

    def __init__(self, reference: Reference, seed: int | None, precision: str) -> None:
        self.reference, self.precision = reference, precision
        self.device = reference.device
        self.seed = secrets.randbits(48) if seed is None else int(seed)
        self.trials: dict[int, dict[str, Any]] = {}
        self.sets: list[dict[str, Any]] = []
        self.oracle_outputs: list[list[torch.Tensor]] = []
        families = inputs.IN_RANGE if reference.range_bound else tuple(inputs.FAMILIES)
        self.plan: list[dict[str, Any]] = [
            {"number": n, "family": family} for n, family in enumerate(families, start=1)
        ]

    # --- trials --------------------------------------------------------------------------

    def trial(self, number: int, out: Outbox) -> dict[str, Any]:
        """Draw inputs and parameters for one trial and describe them for the worker."""
        made = draw(self.reference, self.seed, number, self.plan[number - 1]["family"])
        self.trials[number] = made
        return {
            "arguments": encode(list(made["arguments"]), out),
            "state": encode(made["state"], out),
            "noise_seed": made["noise_seed"],
        }

    def compare(self, message: dict[str, Any], blobs: list[bytes]) -> dict[str, Any]:
        """Judge the worker's reply to a trial: {"ok", "detail", "skip", errors …}."""
        timed = "number" not in message
        trial = self._sealed_trial(message) if timed else self.trials.pop(message["number"])
        reference = self.reference
        try:
            expected, state = reference.run(trial, trial["noise_seed"])
        except Exception as error:  # the reference refuses such values: nothing to compare with
            return {"skip": f"{trial['family']}: the reference raises {type(error).__name__}"}
        if message.get("error"):
            return {"ok": False, "detail": f"{trial['family']}: {message['error']}"}
        try:
            got = decode(message["outputs"], blobs, self.device.place)
            got_state = decode(message["state"], blobs, self.device.place) if message.get("state") else {}
        except (ValueError, KeyError, IndexError, RuntimeError, TypeError, AttributeError) as error:
            return {"ok": False, "detail": f"the worker's answer is not readable: {error}"}
        if reference.grad and [t.requires_grad for t in tensor_leaves(got)] != reference.carries_grad:
            return {"ok": False, "detail": "the output does not carry gradients where the reference's does"}
        changed = reference.changed
        if changed and not timed:
            missing = [key for key in changed if key not in got_state]
            if missing:
                return {"ok": False, "detail": f"buffers {missing} are not kept as the reference keeps them"}
            expected = [expected, {key: state[key] for key in changed}]
            got = [got, {key: got_state[key] for key in changed}]
        problem = describe_mismatch(got, expected)
        if problem:
            return {"ok": False, "detail": f"{trial['family']}: {problem}"}
        pairs = list(zip(tensor_leaves(got), tensor_leaves(expected), strict=True))
        if timed and all(numerics.close_to_reference(c, r) for c, r in pairs):
            return {"ok": True}  # an oracle could only agree, and costs several times the reference
        return self._compare_trial(trial, pairs, expected)

    def _compare_trial(self, trial: dict[str, Any], pairs: list[Pair], expected: Any) -> dict[str, Any]:
        truth = self._truth(trial, expected)
        if trial["family"].startswith("as_given") and truth is not None:
            self.oracle_outputs.append(truth)
        results = self._compare_all(pairs, truth, [])
        if not all(result.passed for result in results):
            # Moving the oracle can only widen the tolerance, so it is needed for failures alone.
            moved = [self._truth(trial, expected, moved=True) for _ in range(_draws(expected))]
            results = self._compare_all(pairs, truth, [m for m in moved if m])
        worst = max(results, key=lambda x: (not x.passed, x.candidate_error - x.tolerance))
        return {
            "ok": worst.passed,
            "detail": f"{trial['family']}: {worst.detail}" if worst.detail else "",
            "same_strides": all(c.stride() == r.stride() for c, r in pairs),
            "informative": any(bool(torch.isfinite(r).any()) for _, r in pairs),
            "candidate_error": _finite(worst.candidate_error),
            "reference_error": _finite(worst.reference_error),
            "tolerance": _finite(worst.tolerance),
        }

    def _compare_all(
        self, pairs: list[Pair], truth: list[torch.Tensor] | None, moved: list[list[torch.Tensor]]
    ) -> list[numerics.Comparison]:
        return [
            numerics.compare(c, r, truth[i] if truth else None, tuple(m[i] for m in moved), self.precision)
            for i, (c, r) in enumerate(pairs)
        ]

    def _truth(self, trial: dict[str, Any], expected: Any, moved: bool = False) -> list[torch.Tensor] | None:
        """The oracle's tensors in the order of ``expected``; None when there is no usable oracle."""
        found = self.reference.run_wide(trial, moved)
        if found is None:
            return None
        output, state = found
        if self.reference.changed and isinstance(expected, list) and isinstance(expected[-1], dict):
            output = [output, {key: state[key] for key in expected[-1]}]
        tensors, wanted = tensor_leaves(output), tensor_leaves(expected)
        if [t.shape for t in tensors] != [t.shape for t in wanted]:
            self.reference.oracle_note = "no float64 oracle: its output has another shape"
            return None
        if any(
            r.dtype == torch.float32 and t.dtype == torch.float32
            for t, r in zip(tensors, wanted, strict=True)
        ):
            self.reference.oracle_note = "no float64 oracle: the program casts to float32 itself"
            return None
        return tensors

    # --- sealed inputs for timing --------------------------------------------------------

    def sealed(self, count: int, out: Outbox) -> dict[str, Any]:
        """Input sets for timed rounds, under the parameters as constructed."""
        self.sets = [draw(self.reference, self.seed, 1000 + i, "as_given_again") for i in range(count)]
        return {
            "sets": [encode(list(m["arguments"]), out) for m in self.sets],
            "state": encode(self.sets[0]["state"], out),
            "seeds": [m["noise_seed"] for m in self.sets],
        }

    def timed(self, checks: list[dict[str, Any]], blobs: list[bytes]) -> dict[str, Any]:
        """Judge outputs of timed rounds, up to the first wrong one."""
        verdicts: list[dict[str, Any]] = []
        for item in checks:
            verdicts.append(self.compare(item, blobs))
            if not verdicts[-1].get("ok", True):
                break
        return {"verdicts": verdicts}

    def _sealed_trial(self, message: dict[str, Any]) -> dict[str, Any]:
        made = self.sets[message["set"]]
        scale = float(message["scale"])
        return {
            **made,
            "family": "timed round",
            "arguments": map_tensors(lambda t: rescale(t, scale), made["arguments"]),
        }

    def baseline(self) -> dict[str, Any]:
        """The reference's times (ms) now, in a process that never loads a candidate."""
        placed = [map_tensors(self.reference.place, made["arguments"]) for made in self.sets]
        seeds = [m["noise_seed"] for m in self.sets]
        rounds = timing.Rounds(self.device, placed, seeds, self.reference.grad)
        rounds.add("eager", self.reference.target)
        return {"clean_ms": rounds.warm_up("eager")}

    # --- summing up ----------------------------------------------------------------------

    def summary(self) -> dict[str, Any]:
        """What is known only after all trials: whether the workload can tell candidates apart."""
        columns = list(zip(*self.oracle_outputs, strict=True)) if self.oracle_outputs else []
        floating = [list(column) for column in columns if column[0].dtype.is_floating_point]
        reasons = [numerics.degenerate(column) for column in floating]
        dull = reasons[0] if reasons and all(reasons) else None
        return {"degenerate": dull, "oracle_note": self.reference.oracle_note, "seed": self.seed}


def draw(reference: Reference, seed: int, number: int, family: str) -> dict[str, Any]:
    """Inputs and parameters of one trial; the same seed and number give the same trial everywhere."""
    seed = (seed * 1_000_003 + number * 7919 + 17) % 2**48
    generator = torch.Generator().manual_seed(seed ^ 0x5EED)
    arguments = reference.arguments(seed)
    # The last trial keeps the parameters as constructed: that is what users start from.
    keep = not reference.is_module or family == "as_given_again"
    fresh = reference.own_state if keep else inputs.random_state(reference.pristine(), generator)
    return {
        "family": family,
        "arguments": inputs.vary(arguments, family, generator),
        "state": {k: v.clone() for k, v in fresh.items() if isinstance(v, torch.Tensor)},
        "noise_seed": seed % 2**31,
        "draw": generator,
    }


def rescale(tensor: torch.Tensor, scale: float) -> torch.Tensor:
    """The change that makes each timed input new; the worker applies the same one."""
    return tensor.detach() * scale if tensor.dtype.is_floating_point else tensor


def describe_mismatch(got: Any, expected: Any) -> str:
    """Structure, shape and dtype, before any value is looked at; empty when they agree."""
    mine, theirs = leaves(expected), leaves(got)
    if [path for path, _ in mine] != [path for path, _ in theirs] or _shape_of(got) != _shape_of(expected):
        return "the output is nested in another way than the reference's"
    for (path, want), (_, have) in zip(mine, theirs, strict=True):
        if not isinstance(want, torch.Tensor):
            if type(want) is not type(have) or want != have:
                return f"output{path} is {have!r}, the reference returns {want!r}"
        elif not isinstance(have, torch.Tensor):
            return f"output{path} is no tensor"
        elif want.shape != have.shape:
            return f"output{path} has shape {tuple(have.shape)}, the reference's {tuple(want.shape)}"
        elif want.dtype != have.dtype:
            return f"output{path} is {have.dtype}, the reference's {want.dtype}"
    return ""


def _shape_of(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [type(value) is tuple, *(_shape_of(item) for item in value)]
    return {key: _shape_of(item) for key, item in value.items()} if isinstance(value, dict) else None


def _draws(expected: Any) -> int:
    """How often the oracle is moved: a small output says little about its own noise."""
    return 3 if sum(t.numel() for t in tensor_leaves(expected)) < 4096 else 1


def _finite(value: float) -> float:
    return min(value, 1e300)
