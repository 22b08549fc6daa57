"""One candidate's examination: secret seed, drawn trials, comparison. Lives in the judge.

Several sessions share one opened reference; each has its own seed, trials, timing sets and outputs
of the oracle. The reference's output for a trial exists only after the candidate has answered that
trial, and the weights of its gradients only after its output was accepted.

Covers: values, dtype, shape, strides, whose memory is returned, requires_grad, buffers that the
reference changes, gradients, random streams, repetition. The rule itself is in numerics.py.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from kernel_lsp.evaluator.circumstances import AUTOCAST
from kernel_lsp.evaluator.deviations import PIECE, rms
from kernel_lsp.evaluator.gradients import GradientsByName, leaves_with_gradients
from kernel_lsp.evaluator.judging import inputs, matching, needs, numerics, places, variations
from kernel_lsp.evaluator.judging.drawing import draw
from kernel_lsp.evaluator.judging.drift import Drift, SmallResult
from kernel_lsp.evaluator.judging.matching import Mismatch
from kernel_lsp.evaluator.judging.narrow import LEFT
from kernel_lsp.evaluator.judging.oracle import Ran, Reference, TrialInputs
from kernel_lsp.evaluator.judging.places import LocalDrift
from kernel_lsp.evaluator.judging.planning import plain, plan
from kernel_lsp.evaluator.judging.sealed import UNREADABLE, SealedTiming, TensorPair
from kernel_lsp.evaluator.judging.spread import (
    MANY,
    Moved,
    ResultList,
    RoundingSpread,
    RunFunctions,
    rounds_for,
    widen_until_passed,
)
from kernel_lsp.evaluator.judging.wording import JudgeReply, verdict
from kernel_lsp.evaluator.running import growth
from kernel_lsp.evaluator.tensors import (
    Blobs,
    TensorOutbox,
    decode_values,
    encode,
    map_tensors,
    same_bits,
    tensor_leaves,
    with_arithmetic,
)

GRADIENT_CONSTANTS, SECOND_CONSTANTS = 2.0, 4.0
WIDE = 2.0
"""How many times more for gradients of 32 bits and more that are faithful: those of PyTorch's own
attention on a CPU, of shifted inputs, err six times as much as a written-out one's; TF32 errs a
hundred times as much."""
MOVED_GRADIENTS = 2
"""Oracles of moved inputs for a gradient, before more is measured."""
DIFFERENTIABLE = "a backward pass that cannot be differentiated says so by once_differentiable"
NOBODY_SAID = "gradients belong to the result unless the workload says inference"
MEASURED = 3
"""Moved oracles, and as good inputs, that say how far rounding moves a result that trials are
compared by."""
AS_GOOD = 3
"""Other inputs on which a program that rounds coarsely is compared with its oracle."""
CONTROL_ELEMENTS = 2**20
"""Largest output for which the lower-precision control is judged with moved oracles."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GradientComparison:
    """Gradients of one trial that are compared."""

    trial: TrialInputs
    names: list[str]
    got: GradientsByName
    want: GradientsByName
    constants: float
    are_new: bool = True
    """False: of a graph's second use, which are the same."""
    like: dict[str, torch.Tensor] | None = None
    """What has these gradients, where one that does not exist is zero."""

    def in_order(self, found: GradientsByName | None) -> ResultList | None:
        """Those that are compared, in their order."""
        if found is None:
            return None
        filled = found if self.like is None else _zeros_for_none(found, self.names, self.like)
        return [filled[name] for name in self.names]


class Examination:
    """One candidate under examination."""

    def __init__(self, reference: Reference, seed: int | None, precision: str) -> None:
        self.reference, self.precision = reference, precision
        self.device = reference.device
        self.seed = secrets.randbits(48) if seed is None else int(seed)
        self.plan = plan(reference, self.seed)
        self.trials: dict[int, TrialInputs] = {}
        self.timing = SealedTiming(reference, self.seed)
        self.oracle_outputs: list[list[torch.Tensor]] = []
        self.drift, self.places = Drift(), LocalDrift()
        self.sizes: dict[str, float] = {}
        """Of each result in its first trial."""

    # --- trials --------------------------------------------------------------------------

    def trial(self, number: int, out: TensorOutbox) -> JudgeReply:
        """Draw inputs and parameters for one trial and describe them for the worker."""
        descriptor = self.plan[number - 1]
        made = draw(self.reference, self.seed, descriptor)
        before = {known: trial for known, trial in self.trials.items() if known == number - 1}
        # That one may not be answered yet; older ones hold outputs.
        self.trials = {**before, number: made}
        return {
            "arguments": encode(list(made["arguments"]), out),
            "state": encode(made["state"], out),
            "noise_seed": made["noise_seed"],
            "update": descriptor["update"],
            "switch": descriptor["switch"],
            "changed": made["changed"],
        }

    def rehearse(self) -> JudgeReply:
        """Compare the reference with itself on inputs that are no secret, once. A GPU loads every
        kernel when it is first called, those of the oracle too: better while the worker still
        compiles its own."""
        reference = self.reference
        if not reference.rehearsed:
            reference.rehearsed = True
            with contextlib.suppress(Exception):
                # It decides nothing: what is wrong is said when it matters.
                trial = draw(reference, 0, {**plain("as_given"), "number": 0})
                ran = reference.run(trial, trial["noise_seed"])
                pairs = [(tensor, tensor) for tensor in tensor_leaves(ran.output)]
                self._judge(trial, pairs, self._truth(trial, ran.output), ran.output, None)
        return {}

    def compare(self, message: dict[str, Any], blobs: Blobs) -> JudgeReply:
        """Judge the worker's answer to a trial: {"ok", "detail", "check", errors …} or {"skip"}.

        With "again" the answer is to the same trial once more. The reply holds "cotangents" when
        gradients are wanted next.
        """
        trial = self.trials[message["number"]]
        try:
            if message.get("again"):
                return self._compare_again(trial, message, blobs)
            return self._compare(trial, message, blobs)
        except Mismatch as problem:
            return {"ok": False, "check": problem.check, "detail": f"{trial['label']}: {problem}"}

    def cotangents(self, number: int, out: TensorOutbox) -> JudgeReply:
        """Secret weights for the gradients of a trial whose output was accepted."""
        trial, ran = self.trials[number], self.trials[number]["ran"]
        carrying = zip(tensor_leaves(ran.output), ran.carries_grad, strict=True)
        like = [tensor for tensor, carries in carrying if carries]
        trial["weights"] = self._drawn_weights(trial, like)
        reply = {"cotangents": encode(trial["weights"], out)}
        if trial["twice"]:  # others: a graph may have kept what it returned for the first
            trial["other weights"] = self._drawn_weights(trial, like)
            reply["others"] = encode(trial["other weights"], out)
        return reply

    def _drawn_weights(self, trial: TrialInputs, like: list[torch.Tensor]) -> list[torch.Tensor]:
        return self._relaid_weights(trial, [_weights(one, trial["draw"]) for one in like])

    def _relaid_weights(self, trial: TrialInputs, plain: list[torch.Tensor]) -> list[torch.Tensor]:
        """The weights in other memory, where the reference takes them so."""
        layout = trial["cotangents"]
        if layout == "as_given":
            return plain
        relaid = [variations.relay_weights(weights, layout) for weights in plain]
        try:
            self.reference.gradients(trial, relaid, trial["noise_seed"])
        except Exception:  # a backward pass of its own that asks for rows; nothing else is asked
            return plain
        return relaid

    def gradients(self, message: dict[str, Any], blobs: Blobs) -> JudgeReply:
        """Judge the gradients of a trial."""
        trial = self.trials[message["number"]]
        try:
            reply = self._compare_gradients(trial, message, blobs, "gradients")
            if reply["ok"] and message.get("again"):
                other = {**trial, "weights": trial["other weights"]}
                twice = self._compare_gradients(other, message, blobs, "again")
                if not twice["ok"]:
                    detail = f"the graph of one call used a second time: {twice['detail']}"
                    return {**twice, "detail": detail, "check": "gradients"}
            return reply
        except Mismatch as problem:
            return {"ok": False, "check": "gradients", "detail": f"{trial['label']}: {problem}"}

    def timed(self, checks: list[dict[str, Any]], blobs: Blobs) -> JudgeReply:
        """Judge outputs of timed rounds."""
        return self.timing.timed(checks, blobs, self._compare_values)

    def _compare(self, trial: TrialInputs, message: dict[str, Any], blobs: Blobs) -> JudgeReply:
        reference = self.reference
        try:
            ran = reference.run(trial, trial["noise_seed"])
        except Exception as error:  # the reference refuses such values: nothing to compare with
            if needs.is_out_of_memory(error):
                raise
            return {"skip": f"{trial['label']}: the reference raises {type(error).__name__}"}
        if message.get("error"):
            if trial["lenient"]:
                return {"skip": f"{trial['label']}: the candidate raises: {message['error']}"}
            raise Mismatch("values", str(message["error"]))
        output, state = _read(message, blobs, self.device.place)
        if trial["circumstance"] == AUTOCAST:
            output = _as_typed(output, ran.output)
        self._match_stream(ran, message)
        matching.match_marks(message.get("marks"), ran.marks)
        try:
            matching.match_structure(output, ran.output)
        except Mismatch as problem:
            if trial["single"] and "torch." in str(problem):
                return {"skip": f"{trial['label']}: the candidate has one type only: {problem}"}
            raise
        matching.match_names(message.get("names"), ran.names)
        as_given = trial["layout"] == "as_given"
        note = self._match_metadata(message["outputs"], ran, as_given)
        if as_given:  # reshape() of rearranged inputs copies where it otherwise returns a view
            matching.match_relations(message.get("relations"), ran.relations)
        expected, got = self._with_state(trial, ran, output, state)
        pairs = list(zip(tensor_leaves(got), tensor_leaves(expected), strict=True))
        trial.update(ran=ran, answer=got)
        if not pairs:  # gradients of what records none
            return {"skip": f"{trial['label']}: neither returns a tensor"}
        return {**self._compare_values(trial, pairs, expected), "note": note}

    def _match_metadata(self, spec: dict[str, Any], ran: Ran, as_given: bool) -> str:
        try:
            return matching.match_metadata(spec, ran, as_given=as_given)
        except Mismatch as problem:
            if problem.check != "requires-grad" or not self.reference.may_record_gradients:
                raise
            raise Mismatch(problem.check, f"{problem} ({NOBODY_SAID})") from None

    def _match_stream(self, ran: Ran, message: dict[str, Any]) -> None:
        if matching.same_generators(message.get("generators"), ran.generators):
            return
        if not ran.draws:
            raise Mismatch(
                "random-stream",
                "it draws random numbers or seeds a generator, which the reference does not: "
                "all that is random afterwards would change",
            )
        raise Mismatch("random-stream", matching.OTHER_STREAM)

    def _with_state(
        self, trial: TrialInputs, ran: Ran, output: Any, state: dict[str, Any]
    ) -> tuple[Any, Any]:
        """(expected, got) with the buffers that the reference changes."""
        changed = trial["changed"]
        if not changed:
            return ran.output, output
        missing = [key for key in changed if key not in state]
        if missing:
            raise Mismatch("buffers", f"buffers {missing} are not kept as the reference keeps them")
        expected = {key: ran.state[key] for key in changed}
        kept = {key: state[key] for key in changed}
        matching.match_structure(kept, expected, "state")
        return [ran.output, expected], [output, kept]

    def _compare_again(
        self, trial: TrialInputs, message: dict[str, Any], blobs: Blobs
    ) -> JudgeReply:
        if message.get("error"):
            raise Mismatch("repeatable", f"it fails when called again: {message['error']}")
        output, state = _read(message, blobs, self.device.place)
        _, again = self._with_state(trial, trial["ran"], output, state)
        first = trial["answer"]
        matching.match_structure(again, first)
        pairs = list(zip(tensor_leaves(again), tensor_leaves(first), strict=True))
        equal = all(same_bits(a, b) for a, b in pairs)
        if not equal and not self.reference.deterministic:
            equal = all(numerics.compare(a, b, None).passed for a, b in pairs)
        if not equal:
            raise Mismatch(
                "repeatable",
                "the same inputs at another address give another result (a race, or memory that "
                "it does "
                "not own); the reference's is the same bit for bit",
            )
        return {"ok": True, "detail": ""}

    # --- values --------------------------------------------------------------------------

    def _compare_values(
        self, trial: TrialInputs, pairs: list[TensorPair], expected: Any
    ) -> JudgeReply:
        truth = self._truth(trial, expected)
        if trial["family"].startswith("as_given") and self._as_usual(trial) and truth is not None:
            self.oracle_outputs.append(truth)
        results = self._judge(trial, pairs, truth, expected, None)
        spread = RoundingSpread(runs=self._runs(expected), trial=trial, truth=truth)
        names = [f"output {i}" for i in range(len(pairs))]
        results = self._together(results, spread, pairs, names, 1.0)
        if trial["number"] == 1 and truth is not None and self.reference.tells_precision is None:
            self._control(trial, truth, expected)
        reply = verdict(results, trial["label"], names)
        reply["informative"] = any(
            not r.numel() or bool(torch.isfinite(with_arithmetic(r)).any()) for _, r in pairs
        )
        return reply

    @staticmethod
    def _as_usual(trial: TrialInputs) -> bool:
        """Sizes, types and circumstances as the workload has them."""
        sized = trial["batch"] is None and trial["group"] is None
        return sized and not trial["single"] and not trial["circumstance"]

    def _judge(
        self,
        trial: TrialInputs,
        pairs: list[TensorPair],
        truth: list[torch.Tensor] | None,
        expected: Any,
        precision: str | None,
    ) -> list[numerics.Comparison]:
        is_control = precision is not None
        precision = precision or self._precision(trial)
        edge = trial["family"] if trial["family"] in inputs.EDGES else ""
        if trial["size"] == 0:  # the mean of nothing is no number
            edge = inputs.INFINITE
        results = [
            numerics.compare(c, r, truth[i] if truth else None, precision=precision, edge=edge)
            for i, (c, r) in enumerate(pairs)
        ]
        if all(result.passed for result in results):
            return results
        # What rounding makes of others can only widen the tolerance: it is measured for failures
        # alone.
        found = RoundingSpread(runs=self._runs(expected), trial=trial, truth=truth)
        found.move(_draws(expected, edge))
        found.try_as_good(AS_GOOD if self.reference.rounds_coarsely(trial) else 0)
        uncertain = self._uncertain(trial, edge, len(pairs))

        def judged(found: RoundingSpread) -> list[numerics.Comparison]:
            return [
                numerics.compare(
                    c,
                    r,
                    truth[i] if truth else None,
                    precision=precision,
                    edge=edge,
                    uncertain=uncertain[i],
                    terms=found.terms(i) if edge == inputs.EXTREME else None,
                    **found.of(i),
                )
                for i, (c, r) in enumerate(pairs)
            ]

        rounds = 0 if is_control else rounds_for(trial, expected)
        return widen_until_passed(found, judged, rounds=rounds)

    def _together(
        self,
        results: list[numerics.Comparison],
        spread: RoundingSpread,
        pairs: Sequence[TensorPair],
        names: list[str],
        constants: float,
    ) -> list[numerics.Comparison]:
        """The results of one trial, with what they have in common with earlier trials' (drift.py).
        Inputs that are like those of another trial say nothing more."""
        trial, truth = spread.trial, spread.truth
        usual = trial["family"] in {*inputs.FAMILIES, *inputs.IN_RANGE}
        again = trial["edit"] in ("parameters", "inputs")
        if truth is None or not usual or again or not all(one.passed for one in results):
            return results
        precision = self._precision(trial)
        found = list(results)
        for place, (mine, theirs) in enumerate(pairs):
            coarse = numerics.is_narrow(mine.dtype) and mine.numel() <= places.MAX_ELEMENTS
            if not coarse or numerics.class_floor(precision, mine.dtype):
                continue
            result = SmallResult(
                name=f"{names[place]} of {len(pairs)}",
                candidate=with_arithmetic(mine),
                reference=with_arithmetic(theirs),
                oracle=truth[place],
                eps=torch.finfo(mine.dtype).eps,
                constants=constants,
            )
            if self._is_as_large(result):
                measure = partial(self._noises, spread, pairs, place)
                detail = self._in_common(result, measure)
                found[place] = replace(results[place], passed=not detail, detail=detail)
        return found

    def _in_common(
        self, result: SmallResult, measure: Callable[[Sequence[str]], list[torch.Tensor]]
    ) -> str:
        """What this result has in common with those of earlier trials, as a whole or at a place."""
        whole = ""
        if result.oracle.numel() < MANY:
            whole = self.drift.problem(result, partial(measure, ("moved", "errors")))
        return whole or self.places.problem(
            result, partial(measure, ("moved", "errors", "rounded"))
        )

    def _noises(
        self, spread: RoundingSpread, pairs: Sequence[TensorPair], place: int, kinds: Sequence[str]
    ) -> list[torch.Tensor]:
        """What a result may be for all that rounding says, by these kinds of measurements."""
        rounds = min(MEASURED, rounds_for(spread.trial, [theirs for _, theirs in pairs]))
        if self.reference.range_bound:  # what is moved may leave the range
            return []
        spread.move(rounds - len(spread.moved))
        spread.try_as_good(rounds - len(spread.errors))
        if "rounded" in kinds and rounds and not spread.rounded:
            spread.round_otherwise()
        versions = spread.of(place)
        return [one for kind in kinds for one in versions[kind]]

    def _is_as_large(self, result: SmallResult) -> bool:
        """Whether it is more than what float32 leaves of terms that cancel, where the first trial's
        did not."""
        size = rms(result.oracle[torch.isfinite(result.oracle)].double())
        return size >= LEFT * result.eps * self.sizes.setdefault(result.name, size)

    def _runs(self, expected: Any) -> RunFunctions:
        def original(trial: TrialInputs) -> ResultList:
            ran = self.reference.run(trial, trial["noise_seed"])
            return list(tensor_leaves(self._with_state(trial, ran, ran.output, ran.state)[0]))

        def oracle(trial: TrialInputs, moved: Moved) -> ResultList | None:
            found = self._truth(trial, expected, moved is not Moved.NOTHING)
            return None if found is None else list(found)

        as_good = self.reference.as_good
        return RunFunctions(original=original, oracle=oracle, as_good=as_good, anew=self._anew)

    def _anew(self, trial: TrialInputs, number: int) -> TrialInputs:
        """The trial as another session would have drawn it."""
        made = draw(self.reference, self.seed + 1 + number, {**trial["descriptor"]})
        return {**made, "anew": True}

    def _uncertain(self, trial: TrialInputs, edge: str, count: int) -> list[torch.Tensor | None]:
        """Per output, where a library's float32 product on tensor cores may give NaN for a
        number."""
        if edge not in (inputs.INFINITE, inputs.EXTREME) or self.device.place == "cpu":
            return [None] * count
        try:
            ran = self.reference.run_split(trial)
        except Exception:  # it does not run on NaN: nothing is excused
            return [None] * count
        results = tensor_leaves(self._with_state(trial, ran, ran.output, ran.state)[0])
        return [torch.isnan(numerics.real(one)) for one in results]

    def _control(self, trial: TrialInputs, truth: list[torch.Tensor], expected: Any) -> None:
        """Whether this workload can tell precisions apart: the reference on coarser operands must
        fail."""
        state = {k: numerics.coarsen(v) for k, v in trial["state"].items()}
        arguments = map_tensors(
            lambda t: numerics.coarsen(t.detach()).requires_grad_(t.requires_grad),
            trial["arguments"],
        )
        try:
            coarse = self.reference.run(
                {**trial, "state": state, "arguments": arguments}, trial["noise_seed"]
            ).output
        except Exception:
            # A value at the edge of its range was rounded out of it: nothing is known.
            return
        plain = trial["ran"].output
        pairs = list(zip(tensor_leaves(coarse), tensor_leaves(plain), strict=True))
        if sum(r.numel() for _, r in pairs) > CONTROL_ELEMENTS:
            results = [numerics.compare(c, r, truth[i]) for i, (c, r) in enumerate(pairs)]
        else:
            results = self._judge(trial, pairs, truth, expected, "faithful")
        self.reference.tells_precision = not all(result.passed for result in results)

    def _truth(
        self, trial: TrialInputs, expected: Any, moved: bool = False
    ) -> list[torch.Tensor] | None:
        """The oracle's tensors in the order of ``expected``; None when there is no usable
        oracle."""
        found = self.reference.run_wide(trial, moved)
        if found is None:
            return None
        output, state = found
        tensors = tensor_leaves(output)
        wanted = tensor_leaves(expected)
        if len(tensors) < len(wanted):  # buffers that the reference changes stand behind its output
            tensors += [state[key] for key in trial["changed"]]
        if [t.shape for t in tensors] != [t.shape for t in wanted]:
            self._note_oracle(trial, "no float64 oracle: its output has another shape")
            return None
        if any(
            r.dtype == torch.float32 and t.dtype == torch.float32
            for t, r in zip(tensors, wanted, strict=True)
        ):
            self._note_oracle(trial, "no float64 oracle: the program casts to float32 itself")
            return None
        return list(map(with_arithmetic, tensors))

    def _note_oracle(self, trial: TrialInputs, why: str) -> None:
        """There is none, and there will be none."""
        if not trial["circumstance"] and "anew" not in trial:
            self.reference.oracle_note = why

    def _precision(self, trial: TrialInputs) -> str:
        """Under an autocast that was not recorded a rewrite is as exact as autocast promises."""
        return "low-precision" if trial["circumstance"] == AUTOCAST else self.precision

    # --- gradients -----------------------------------------------------------------------

    def _compare_gradients(
        self, trial: TrialInputs, message: dict[str, Any], blobs: Blobs, which: str
    ) -> JudgeReply:
        weights = trial["weights"]
        try:
            want = self.reference.gradients(trial, weights, trial["noise_seed"])
        except Exception as error:
            differentiable = self.reference.grad and not trial["circumstance"]
            if differentiable or needs.is_out_of_memory(error):
                raise
            detail = f"the reference has no backward pass here ({type(error).__name__})"
            return {"ok": True, "detail": detail, "compared": 0}
        if message.get("error") and trial["lenient"]:
            return {"ok": True, "detail": f"it raises: {message['error']}", "compared": 0}
        got = self._gradients_of(message, blobs, which)
        matching.match_gradients(got, want)
        names = [name for name, value in want.items() if value is not None]
        if not names:
            return {"ok": True, "detail": "", "compared": 0}
        results = self._compared_gradients(
            GradientComparison(
                trial=trial,
                names=names,
                got=got,
                want=want,
                constants=GRADIENT_CONSTANTS,
                are_new=which == "gradients",
            )
        )
        reply = verdict(results, trial["label"], [f"gradient of {name}" for name in names])
        return {**reply, "check": "gradients", "compared": len(names)}

    def _compared_gradients(self, asked: GradientComparison) -> list[numerics.Comparison]:
        """Gradients, or gradients of them where the trial has weights for those."""
        runs = self._gradient_runs(asked)
        truth = runs.oracle(asked.trial, Moved.NOTHING)
        found = RoundingSpread(runs=runs, trial=asked.trial, truth=truth, of_gradients=True)
        results = self._each_gradient(asked, found)
        if not asked.are_new or "second weights" in asked.trial:
            return results
        mine, theirs = (asked.in_order(one) or [] for one in (asked.got, asked.want))
        pairs = [
            (c, r) for c, r in zip(mine, theirs, strict=True) if c is not None and r is not None
        ]
        return self._together(results, found, pairs, asked.names, asked.constants)

    def _each_gradient(
        self, asked: GradientComparison, found: RoundingSpread
    ) -> list[numerics.Comparison]:
        """Each by itself, with as much of what rounding makes of others as it needs."""
        trial = asked.trial
        results = self._judge_gradients(asked, found)
        if all(result.passed for result in results):
            return results
        found.move(MOVED_GRADIENTS)
        found.try_as_good(AS_GOOD if self.reference.rounds_coarsely(trial) else 0)
        given = trial["weights"], trial.get("second weights")
        again = self.reference.gradients_wide(trial, given[0], weights=given[1], last_bit=True)
        found.last_bit = asked.in_order(again)
        rounds = rounds_for(trial, [asked.want[name] for name in asked.names])
        return widen_until_passed(
            found, lambda now: self._judge_gradients(asked, now), rounds=rounds
        )

    def _gradient_runs(self, asked: GradientComparison) -> RunFunctions:
        def original(trial: TrialInputs) -> ResultList:
            given = trial["weights"], trial["noise_seed"], trial.get("second weights")
            return asked.in_order(self.reference.gradients(trial, *given)) or []

        def oracle(trial: TrialInputs, moved: Moved) -> ResultList | None:
            found = self.reference.gradients_wide(
                trial,
                trial["weights"],
                moved is not Moved.NOTHING,
                weights=trial.get("second weights"),
                all_moved=moved is Moved.ALL,
            )
            return asked.in_order(found)

        def anew(trial: TrialInputs, number: int) -> TrialInputs:
            parts = [key for key in ("weights", "second weights") if key in trial]
            given = [trial[key] for key in parts]
            made = map_tensors(lambda t: _other_signs(t, trial["draw"]), given)
            return {**trial, **dict(zip(parts, made, strict=True)), "anew": True}

        return RunFunctions(
            original=original, oracle=oracle, as_good=self.reference.as_good, anew=anew
        )

    def _gradients_of(self, message: dict[str, Any], blobs: Blobs, which: str) -> GradientsByName:
        """Of a worker's answer; raises Mismatch when it is none."""
        if message.get("error"):
            raise Mismatch("gradients", str(message["error"]))
        try:
            return dict(decode_values(message[which], blobs, self.device.place))
        except UNREADABLE as error:
            raise Mismatch("gradients", f"the worker's answer is not readable: {error}") from error

    def _judge_gradients(
        self, asked: GradientComparison, found: RoundingSpread
    ) -> list[numerics.Comparison]:
        results, precision = [], self._precision(asked.trial)
        for place, name in enumerate(asked.names):
            mine, theirs = asked.got[name], asked.want[name]
            assert mine is not None and theirs is not None
            coarse = numerics.is_narrow(theirs.dtype)
            wide = 1.0 if coarse or numerics.class_floor(precision, theirs.dtype) else WIDE
            results.append(
                numerics.compare(
                    mine,
                    theirs,
                    found.truth[place] if found.truth else None,
                    precision=precision,
                    constants=asked.constants * wide,
                    edge=inputs.INFINITE if asked.trial["family"] == inputs.TIED else "",
                    again=found.last_bit[place] if found.last_bit else None,
                    **found.of(place),
                )
            )
        return results

    # --- gradients of gradients ------------------------------------------------------------

    def second(self, number: int, out: TensorOutbox) -> JudgeReply:
        """Secret weights for the gradients of a trial, whose own gradients are asked for next;
        none where the reference's backward pass cannot be differentiated."""
        trial = self.trials[number]
        like = self.reference.gradients(trial, trial["weights"], trial["noise_seed"])
        named = {name: one for name, one in like.items() if one is not None}
        weights = {name: _weights(one, trial["draw"]) for name, one in named.items()}
        try:
            trial["twice differentiated"] = self.reference.gradients(
                trial, trial["weights"], trial["noise_seed"], weights
            )
        except Exception:  # once differentiable, or not at all: nothing to compare with
            return {"asked": False}
        trial["second weights"] = weights
        return {"asked": True, "given": encode([trial["weights"], weights], out)}

    def compare_second(self, message: dict[str, Any], blobs: Blobs) -> JudgeReply:
        """Judge gradients of gradients. A candidate may raise; nothing may be silently missing."""
        trial = self.trials[message["number"]]
        if message.get("error"):
            return {"ok": True, "detail": f"it raises: {message['error']}", "compared": 0}
        try:
            reply = self._compare_second(trial, message, blobs)
        except Mismatch as problem:
            reply = {"ok": False, "detail": f"{trial['label']}: {problem}", "compared": 0}
        remedy = "" if reply["ok"] else f"; {DIFFERENTIABLE}"
        return {**reply, "detail": f"{reply['detail']}{remedy}", "check": "gradients"}

    def _compare_second(
        self, trial: TrialInputs, message: dict[str, Any], blobs: Blobs
    ) -> JudgeReply:
        got = self._gradients_of(message, blobs, "gradients")
        weights = trial.pop("second weights")
        want = trial.pop("twice differentiated")
        names = [n for n, value in want.items() if value is not None or got.get(n) is not None]
        if not names:
            return {"ok": True, "detail": "", "compared": 0}
        placed = map_tensors(self.reference.place, trial["arguments"])
        like = leaves_with_gradients(placed, self.reference.target)
        got, want = (_zeros_for_none(one, names, like) for one in (got, want))
        matching.match_gradients(got, want)
        asked = GradientComparison(
            trial={**trial, "second weights": weights},
            names=names,
            got=got,
            want=want,
            constants=SECOND_CONSTANTS,
            like=like,
        )
        results = self._compared_gradients(asked)
        reply = verdict(results, trial["label"], [f"gradient of gradients of {n}" for n in names])
        return {**reply, "compared": len(names)}

    # --- memory --------------------------------------------------------------------------

    def growth(self) -> JudgeReply:
        """What every call of the reference keeps, with gradients where a program may record
        them."""
        reference = self.reference
        kept = growth.Kept()
        for grad in sorted({reference.grad, reference.grad or reference.may_record_gradients}):
            trial = draw(reference, self.seed, {**plain("as_given"), "number": 1, "grad": grad})
            with contextlib.suppress(Exception):
                kept = kept or growth.kept_by(lambda trial=trial: reference.repeat(trial))  # type: ignore[misc]
        return {"host": kept.host_bytes, "device": kept.device_bytes, "tensors": kept.tensors}

    # --- summing up ----------------------------------------------------------------------

    def summary(self) -> JudgeReply:
        """What is known only after all trials: whether the workload can tell candidates apart.

        degenerate: why no output does, in words for the user; None when one does. dull: the same
        for single outputs. tells_precision: whether coarser operands would have been noticed."""
        dull = self._dull()
        floating = self._floating_outputs()
        reasons = sorted(set(dull.values()))
        constant = (
            f"your code computes a constant: {reasons[0]}"
            if floating and len(dull) == floating
            else None
        )
        return {
            "degenerate": constant,
            "dull": [f"output {place}: {reason}" for place, reason in dull.items()],
            "oracle_note": self.reference.oracle_note,
            "tells_precision": self.reference.tells_precision,
            "seed": self.seed,
        }

    def _floating_outputs(self) -> int:
        return sum(
            dtype.is_floating_point or dtype.is_complex for dtype in self.reference.output_dtypes
        )

    def _dull(self) -> dict[int, str]:
        """Place of an output -> why its values say nothing about a candidate."""
        found = dict.fromkeys(self.reference.insensitive, "it does not depend on the inputs")
        columns = list(zip(*self.oracle_outputs, strict=True)) if self.oracle_outputs else []
        for place, dtype in enumerate(self.reference.output_dtypes):
            if place >= len(columns) or not (dtype.is_floating_point or dtype.is_complex):
                continue
            reason = numerics.degenerate(list(columns[place]))
            if reason:
                found[place] = reason
        return found


def _read(message: dict[str, Any], blobs: Blobs, place: str) -> tuple[Any, dict[str, Any]]:
    """(output, state) of a worker's answer; raises Mismatch when it is no answer of ours."""
    try:
        output = decode_values(message["outputs"], blobs, place)
        state = decode_values(message["state"], blobs, place) if message.get("state") else {}
    except UNREADABLE as error:
        raise Mismatch("values", f"the worker's answer is not readable: {error}") from error
    if not isinstance(state, dict):
        raise Mismatch("values", "the worker's answer is not readable: its state has no names")
    return output, state


def _zeros_for_none(
    found: GradientsByName, names: list[str], like: dict[str, torch.Tensor]
) -> GradientsByName:
    """A gradient that does not exist is zero."""
    made: GradientsByName = {}
    for name in names:
        value = found.get(name)
        made[name] = torch.zeros_like(like[name]) if value is None else value
    return made


def _as_typed(output: Any, expected: Any) -> Any:
    """Floating results in the reference's types: autocast may be followed or not."""
    theirs = tensor_leaves(expected)
    if len(tensor_leaves(output)) != len(theirs):
        return output
    left = iter(theirs)

    def typed(tensor: torch.Tensor) -> torch.Tensor:
        dtype = next(left).dtype
        both = tensor.dtype.is_floating_point and dtype.is_floating_point
        return tensor.to(dtype) if both else tensor

    return map_tensors(typed, output)


def _weights(like: torch.Tensor, draw: torch.Generator) -> torch.Tensor:
    made = torch.randn(like.shape, generator=draw, dtype=torch.float64, device=draw.device)
    return made.to(device=like.device, dtype=like.dtype)


def _other_signs(weights: torch.Tensor, draw: torch.Generator) -> torch.Tensor:
    """The same sizes, each of either sign: what cancels by chance does not, and nothing else
    changes."""
    kind = torch.rand(weights.shape, generator=draw, device=draw.device).to(weights.device)
    return torch.where(kind < 0.5, weights, -weights)


def _draws(expected: Any, edge: str) -> int:
    """How often the oracle is moved at first: a small output says little about its own noise, and
    neither does one element."""
    count = sum(t.numel() for t in tensor_leaves(expected))
    return 3 if count < MANY or (edge == inputs.EXTREME and count <= PIECE) else 1
