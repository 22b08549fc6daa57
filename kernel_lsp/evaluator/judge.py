"""The judge: makes secret inputs, holds reference and float64 oracle, compares. A child process.

It imports the *reference* program only and never sees candidate code; it reads a candidate's
outputs as raw bytes. Requests: open, trial, compare, sealed (inputs for timing), timed (outputs of
timed rounds), baseline, close.
The reference's output for a trial exists only after the candidate has answered that trial.

Covers: values, dtype, shape, buffers that the reference changes, random and stateful references.
Does not cover: gradients, other shapes than the workload's, strides beyond contiguity.
"""

from __future__ import annotations

import copy
import ctypes
import secrets
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

from kernel_lsp import wire
from kernel_lsp.errors import EvaluationError, boundary
from kernel_lsp.evaluator import devices, inputs, numerics, programs, timing
from kernel_lsp.evaluator.tensors import Outbox, decode, encode, leaves, map_tensors, tensor_leaves
from kernel_lsp.records import Program, Workload

PR_SET_DUMPABLE = 4
Pair = tuple[torch.Tensor, torch.Tensor]
"""One output tensor: the candidate's, the reference's."""
RANGE_BOUND = ("binary_cross_entropy(", "BCELoss(", "multinomial(", "bernoulli(", ".erfinv(")
"""Operations that refuse (on a GPU: kill the process for) values outside a range."""


class Judge:
    """One open reference under one workload."""

    def __init__(self, message: dict[str, Any], folder: Path) -> None:
        self.program = wire.from_json(Program, message["program"])
        self.workload = wire.from_json(Workload, message["workload"])
        self.device = devices.of(message["device"])
        self.precision: str = message["precision"]
        self.folder = folder
        seed = message["seed"]
        self.seed = secrets.randbits(48) if seed is None else int(seed)
        self.trials: dict[int, dict[str, Any]] = {}
        self.oracle_outputs: list[list[torch.Tensor]] = []
        self._load()

    @property
    def grad(self) -> bool:
        return any(spec.requires_grad for spec in self.workload.inputs or ())

    def _load(self) -> None:
        torch.manual_seed(self.seed)
        with boundary(EvaluationError, "could not judge: loading the reference failed"):
            self.module = programs.load(self.program.source)
        target = programs.find(self.module, self.program.entry)
        with boundary(EvaluationError, "could not judge: get_init_inputs() failed"):
            self.init = programs.init_arguments(self.module, self.workload)
        with boundary(EvaluationError, "could not judge: constructing the reference failed"):
            self.target = programs.construct(target, self.init, self.device.place, self.workload.training)
        if not callable(self.target):
            raise EvaluationError(f"could not judge: {self.program.entry} is neither a module nor a function")
        self.oracle = copy.deepcopy(self.target).double() if self.is_module else self.target
        self.oracle_note = ""

    @property
    def is_module(self) -> bool:
        return isinstance(self.target, torch.nn.Module)

    # --- open ----------------------------------------------------------------------------

    def open(self, out: Outbox) -> dict[str, Any]:
        """Run the reference on its own inputs; say what a worker needs to know. Raises EvaluationError."""
        trial = self._draw(0, "as_given")
        with boundary(EvaluationError, "could not judge: the reference fails on its own inputs"):
            first, state = self._reference(trial, noise_seed=1)
            self.aliases = self._shares_memory(trial)
            again, _ = self._reference(trial, noise_seed=1)
            other, _ = self._reference(trial, noise_seed=2)
        if not tensor_leaves(first):
            raise EvaluationError("could not judge: the reference returns no tensor")
        if not _alike(first, again):
            raise EvaluationError(
                "could not judge: the reference gives another result when called again",
                "it keeps state outside its buffers, or draws randomness that no seed controls",
            )
        self.random = not _alike(first, other)
        self.changed = [k for k, v in state.items() if not _same(v, trial["state"][k])] if state else []
        return {
            "init": encode(list(self.init), out),
            "families": list(self._families()),
            "random": self.random,
            "changed": self.changed,
            "grad": self.grad,
            "aliases": self.aliases,
            "environment": self.device.environment(),
            "elements": sum(t.numel() for t in tensor_leaves(trial["arguments"])),
        }

    def _shares_memory(self, trial: dict[str, Any]) -> bool:
        """Whether the reference itself returns (views of) its inputs."""
        placed = map_tensors(lambda t: _place(t, self.device.place), trial["arguments"])
        with torch.set_grad_enabled(self.grad):
            result = self.target(*placed[0], **placed[1])
        mine = {t.untyped_storage().data_ptr() for t in tensor_leaves(placed) if t.numel()}
        return any(t.untyped_storage().data_ptr() in mine for t in tensor_leaves(result) if t.numel())

    def _families(self) -> tuple[str, ...]:
        bound = any(word in self.program.source for word in RANGE_BOUND)
        return inputs.IN_RANGE if bound else tuple(inputs.FAMILIES)

    # --- trials --------------------------------------------------------------------------

    def trial(self, number: int, family: str, out: Outbox) -> dict[str, Any]:
        """Draw inputs and parameters for one trial and describe them for the worker."""
        made = self._draw(number, family)
        self.trials[number] = made
        state = {k: v for k, v in made["state"].items() if isinstance(v, torch.Tensor)}
        return {
            "arguments": encode(list(made["arguments"]), out),
            "state": encode(state, out),
            "noise_seed": made["noise_seed"],
        }

    def _draw(self, number: int, family: str) -> dict[str, Any]:
        seed = (self.seed * 1_000_003 + number * 7919 + 17) % 2**48
        torch.manual_seed(seed)
        draw = torch.Generator().manual_seed(seed ^ 0x5EED)
        with boundary(EvaluationError, "could not judge: get_inputs() failed"):
            given = programs.call_arguments(self.module, self.workload)
        arguments = map_tensors(lambda t: t.detach().cpu().requires_grad_(t.requires_grad), list(given))
        # The last trial keeps the parameters as constructed: that is what users start from.
        state = self.target.state_dict() if self.is_module else {}
        if not hasattr(self, "own_state"):
            self.own_state = {k: v.clone() for k, v in state.items() if isinstance(v, torch.Tensor)}
        keep = not self.is_module or family == "as_given_again"
        fresh = self.own_state if keep else inputs.random_state(self._pristine(), draw)
        return {
            "family": family,
            "arguments": inputs.vary(arguments, family, draw),
            "state": {k: v.clone() for k, v in fresh.items() if isinstance(v, torch.Tensor)},
            "noise_seed": seed % 2**31,
            "draw": draw,
        }

    def _pristine(self) -> torch.nn.Module:
        self.target.load_state_dict({**self.target.state_dict(), **self.own_state})
        return self.target

    # --- running the reference -----------------------------------------------------------

    def _run(self, target: Any, arguments: Any, state: dict[str, Any], noise_seed: int) -> Any:
        if self.is_module:
            target.load_state_dict({**target.state_dict(), **state})
        torch.manual_seed(noise_seed)
        placed = map_tensors(lambda t: _place(t, self.device.place), arguments)
        with torch.set_grad_enabled(self.grad):
            result = target(*placed[0], **placed[1])
        self.device.synchronize()
        return result

    def _reference(self, trial: dict[str, Any], noise_seed: int) -> tuple[Any, dict[str, Any]]:
        """(output, state afterwards) on the device, in the reference's own dtype."""
        result = self._run(self.target, trial["arguments"], trial["state"], noise_seed)
        self.carries_grad = [t.requires_grad for t in tensor_leaves(result)]
        return self._own(result, self.target)

    def _own(self, result: Any, target: Any) -> tuple[Any, dict[str, Any]]:
        """Copies: a program may return one of its own buffers, and the next call changes them.

        They stay on the device: comparing 32 MB on an H200 took 0.5 s on its host and 0.1 s there.
        """
        after = target.state_dict() if self.is_module else {}
        state = {k: v.detach().clone() for k, v in after.items() if isinstance(v, torch.Tensor)}
        return map_tensors(lambda t: t.detach().clone(), result), state

    def _oracle(self, trial: dict[str, Any], moved: bool = False) -> tuple[Any, dict[str, Any]] | None:
        """(output, state afterwards) in float64; None where the program cannot run in it."""
        if self.random or self.oracle_note:
            return None

        def widen(value: torch.Tensor) -> torch.Tensor:
            if not value.dtype.is_floating_point:
                return value
            wide = value.detach().double()
            return numerics.nudge(wide, value.dtype, trial["draw"]) if moved else wide

        try:
            state = {k: widen(v) for k, v in trial["state"].items()}
            result = self._run(self.oracle, map_tensors(widen, trial["arguments"]), state, 1)
        except Exception as error:  # hard-coded dtypes: any exception means no oracle
            self.oracle_note = (
                f"no float64 oracle ({type(error).__name__}): the reference is compared with itself"
            )
            return None
        return self._own(result, self.oracle)

    # --- comparing -----------------------------------------------------------------------

    def compare(self, message: dict[str, Any], blobs: list[bytes]) -> dict[str, Any]:
        """Judge the worker's reply to a trial: {"ok", "detail", "skip", errors …}."""
        timed = "number" not in message
        trial = self._sealed_trial(message) if timed else self.trials.pop(message["number"])
        try:
            expected, state = self._reference(trial, trial["noise_seed"])
        except Exception as error:  # the reference refuses such values: nothing to compare with
            return {"skip": f"{trial['family']}: the reference raises {type(error).__name__}"}
        if message.get("error"):
            return {"ok": False, "detail": f"{trial['family']}: {message['error']}"}
        try:
            got = decode(message["outputs"], blobs, self.device.place)
            got_state = decode(message["state"], blobs, self.device.place) if message.get("state") else {}
        except (ValueError, KeyError, IndexError, RuntimeError, TypeError, AttributeError) as error:
            return {"ok": False, "detail": f"the worker's answer is not readable: {error}"}
        if self.grad and [t.requires_grad for t in tensor_leaves(got)] != self.carries_grad:
            return {"ok": False, "detail": "the output does not carry gradients where the reference's does"}
        if self.changed and not timed:
            missing = [key for key in self.changed if key not in got_state]
            if missing:
                return {"ok": False, "detail": f"buffers {missing} are not kept as the reference keeps them"}
            expected = [expected, {key: state[key] for key in self.changed}]
            got = [got, {key: got_state[key] for key in self.changed}]
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
        found = self._oracle(trial, moved)
        if found is None:
            return None
        output, state = found
        if self.changed and isinstance(expected, list) and len(expected) == 2 and _is_state(expected[1]):
            output = [output, {key: state[key] for key in expected[1]}]
        tensors, wanted = tensor_leaves(output), tensor_leaves(expected)
        if [t.shape for t in tensors] != [t.shape for t in wanted]:
            self.oracle_note = "no float64 oracle: its output has another shape"
            return None
        if any(
            r.dtype == torch.float32 and t.dtype == torch.float32
            for t, r in zip(tensors, wanted, strict=True)
        ):
            self.oracle_note = "no float64 oracle: the program casts to float32 itself"
            return None
        return tensors

    # --- sealed inputs for timing --------------------------------------------------------

    def sealed(self, count: int, out: Outbox) -> dict[str, Any]:
        """Input sets for timed rounds, under the parameters as constructed."""
        made = [self._draw(1000 + i, "as_given_again") for i in range(count)]
        self.sets = made
        return {
            "sets": [encode(list(m["arguments"]), out) for m in made],
            "state": encode(made[0]["state"], out),
            "seeds": [m["noise_seed"] for m in made],
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
        placed = [
            map_tensors(lambda t: _place(t, self.device.place), made["arguments"]) for made in self.sets
        ]
        rounds = timing.Rounds(self.device, placed, [m["noise_seed"] for m in self.sets], self.grad)
        rounds.add("eager", self.target)
        return {"clean_ms": rounds.warm_up("eager")}

    def close(self) -> dict[str, Any]:
        """What is known only after all trials: whether the workload can tell candidates apart."""
        columns = list(zip(*self.oracle_outputs, strict=True)) if self.oracle_outputs else []
        floating = [list(column) for column in columns if column[0].dtype.is_floating_point]
        reasons = [numerics.degenerate(column) for column in floating]
        dull = reasons[0] if reasons and all(reasons) else None
        return {"degenerate": dull, "oracle_note": self.oracle_note}


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


def _is_state(value: Any) -> bool:
    return isinstance(value, dict)


def _draws(expected: Any) -> int:
    """How often the oracle is moved: a small output says little about its own noise."""
    return 3 if sum(t.numel() for t in tensor_leaves(expected)) < 4096 else 1


def _place(tensor: torch.Tensor, place: str) -> torch.Tensor:
    moved = tensor.detach().to(place) if place != "cpu" else tensor.detach().clone()
    return moved.requires_grad_(tensor.requires_grad)


def _finite(value: float) -> float:
    return min(value, 1e300)


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.cpu().nan_to_num(), b.cpu().nan_to_num())


def _alike(a: Any, b: Any) -> bool:
    """Equal up to the order of atomic additions."""
    for x, y in zip(tensor_leaves(a), tensor_leaves(b), strict=True):
        left, right = numerics.real(x).double().nan_to_num(), numerics.real(y).double().nan_to_num()
        if numerics.relative_error(left, right) > 1e-3:
            return False
    return True


def answer(
    judge: Judge | None, message: dict[str, Any], blobs: list[bytes], folder: Path, out: Outbox
) -> Any:
    """(judge, reply) for one request."""
    what = message["do"]
    if what == "open":
        judge = Judge(message, folder)
        return judge, judge.open(out)
    assert judge is not None, "open comes first"
    if what == "trial":
        return judge, judge.trial(message["number"], message["family"], out)
    if what == "compare":
        return judge, judge.compare(message, blobs)
    if what == "timed":
        return judge, judge.timed(message["checks"], blobs)
    if what == "sealed":
        return judge, judge.sealed(message["count"], out)
    return judge, judge.baseline() if what == "baseline" else judge.close()


def main() -> None:
    requests, replies = wire.claim_stdio()
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0)  # no other process of this user may read our memory
    warnings.simplefilter("ignore")
    folder = Path(sys.argv[1])
    judge: Judge | None = None
    used = Outbox()
    while (request := wire.read_frame(requests)) is not None:
        what = request[0]["do"]
        if what == "compare":  # not before: other requests come while the worker still reads the files
            used.clear()
        out = Outbox(folder)
        try:
            judge, reply = answer(judge, request[0], request[1], folder, out)
        except EvaluationError as error:
            reply = {"refused": error.cause, "remedy": error.remedy}
        wire.write_frame(replies, reply, out.blobs)
        if what == "trial":  # all others' files are read by several processes and go with the folder
            used = out


if __name__ == "__main__":
    main()
