"""The judge: makes secret inputs, holds reference and float64 oracle, compares. A child process.

It imports the *reference* program only and never sees candidate code; it reads a candidate's
outputs as raw bytes. One judge serves many candidates of the same reference under the same
workload:

    ready{device}                             imported, and its context made: limits count from here
    open                                      the reference; answered once
    begin{session, seed, precision}           a new secret seed -> the list of trials
    trial{session, number}                    inputs and parameters of one trial
    rehearse{session}                         nothing; what a first comparison loads is there then
    compare{session, number, outputs …}       the verdict on that trial (again=True: repeated)
    cotangents{session, number}               secret weights for its gradients
    gradients{session, number, gradients}     the verdict on them
    second{session, number}                   secret weights for gradients of these gradients
    compare_second{session, number, gradients}  the verdict on them
    sealed, timed, baseline{session}          inputs and outputs of timed rounds, clean times
    growth{session}                           memory that every call of the reference keeps
    summary{session}                          what is known after all trials
    close{session}                            forgets it

Sessions may be open at the same time; requests are answered in order. The work is done in
oracle.py (the reference) and session.py (one candidate)."""

from __future__ import annotations

import ctypes
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from kernel_lsp import wire
from kernel_lsp.errors import EvaluationError, OutOfMemory, boundary
from kernel_lsp.evaluator import devices
from kernel_lsp.evaluator.judging import needs, study, usable
from kernel_lsp.evaluator.judging.drawing import draw
from kernel_lsp.evaluator.judging.oracle import Reference
from kernel_lsp.evaluator.judging.planning import plain
from kernel_lsp.evaluator.judging.session import Examination
from kernel_lsp.evaluator.processes import allocating, waiting
from kernel_lsp.evaluator.tensors import Blobs, TensorOutbox, encode
from kernel_lsp.records import Program, Workload

PR_SET_DUMPABLE = 4


class Judge:
    """One open reference and the candidates that are being judged by it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.reference: Reference | None = None
        self.place = "cpu"
        self.seen_bytes = 0
        """What the program seems to need while it is being opened."""
        self.sessions: dict[int, Examination] = {}
        self.files: dict[int, list[TensorOutbox]] = {}
        self.drawn: dict[int, list[TensorOutbox]] = {}
        """The files of a session's last two trials: the worker may still read the first."""

    def answer(self, message: dict[str, Any], blobs: Blobs) -> tuple[dict[str, Any], list[bytes]]:
        """Reply and blobs for one request. A refusal is a reply: {"refused", "remedy"}."""
        out = TensorOutbox(self.folder)
        try:
            with boundary(
                EvaluationError, f"could not judge: the judge failed at {message['do']!r}"
            ):
                reply = self._answer_again_without_memory(message, blobs, out)
        except EvaluationError as error:
            memory = isinstance(error, OutOfMemory)
            reply = {"refused": error.cause, "remedy": error.remedy, "memory": memory}
        return reply, out.blobs

    def _answer_again_without_memory(
        self, message: dict[str, Any], blobs: Blobs, out: TensorOutbox
    ) -> dict[str, Any]:
        """Where there is no memory left, once more after what nothing holds was given back. Raises
        OutOfMemory, which says how much it takes."""
        for again in (True, False):
            try:
                return self._answer(message, blobs, out)
            except Exception as error:
                if not needs.is_out_of_memory(error) or not self.needed_bytes:
                    raise
            out.clear()
            needs.make_room(self.place)  # only now: the error's frames held tensors
            if not again:
                free = needs.free_bytes(self.place)
                size = needs.in_words(self.needed_bytes, free)
                raise OutOfMemory(f"could not judge: {size}", needs.REMEDY)
        raise AssertionError

    @property
    def needed_bytes(self) -> int:
        """Bytes that judging takes; 0: not known yet."""
        return self.reference.needed_bytes if self.reference is not None else self.seen_bytes

    def _answer(self, message: dict[str, Any], blobs: Blobs, out: TensorOutbox) -> dict[str, Any]:
        what = message["do"]
        if what == "ready":
            devices.of(message["device"])  # which makes its context
            return {"ok": True}
        if what == "open":
            return self._open(message, out)
        number = int(message["session"])
        if what == "begin":
            return self._begin(number, message)
        if what == "close":
            return self._close(number)
        if number not in self.sessions:
            raise EvaluationError(
                f"could not judge: session {number} is not open", "begin it first"
            )
        return self._ask(self.sessions[number], number, message, blobs, out)

    def _ask(
        self,
        session: Examination,
        number: int,
        message: dict[str, Any],
        blobs: Blobs,
        out: TensorOutbox,
    ) -> dict[str, Any]:
        what = message["do"]
        if what == "trial":
            self.drawn.setdefault(number, []).append(out)
            self._drop_drawn(number, but=2)
            return session.trial(message["number"], out)
        if what in ("cotangents", "second", "sealed"):
            self.files.setdefault(number, []).append(out)
        answers: dict[str, Callable[[], dict[str, Any]]] = {
            "rehearse": session.rehearse,
            "compare": lambda: session.compare(message, blobs),
            "cotangents": lambda: session.cotangents(message["number"], out),
            "gradients": lambda: session.gradients(message, blobs),
            "second": lambda: session.second(message["number"], out),
            "compare_second": lambda: session.compare_second(message, blobs),
            "sealed": lambda: session.timing.sealed(message["count"], out),
            "timed": lambda: session.timed(message["checks"], blobs),
            "baseline": session.timing.baseline,
            "needed": session.timing.needed,
            "growth": session.growth,
            "summary": session.summary,
        }
        return answers[what]()

    def _open(self, message: dict[str, Any], out: TensorOutbox) -> dict[str, Any]:
        """Run the reference on its own inputs; say what a worker needs to know."""
        reference = Reference(
            wire.from_json(Program, message["program"]),
            wire.from_json(Workload, message["workload"]),
            message["device"],
        )
        same = {**plain("as_given"), "number": 0}
        other = same if reference.range_bound else {**same, "family": "heavy_tailed"}
        self.place = reference.device.place
        given = reference.given(0)
        usable.refuse_arguments(given)
        inputs, state = needs.bytes_of(given), needs.bytes_of(reference.own_state)
        self.seen_bytes = needs.needed_bytes(inputs, state, inputs)
        reference.settle(given)
        del given
        trial = draw(reference, 0, same)
        usable.first_call(reference, trial)
        again = {**draw(reference, 1, other), "state": trial["state"]}
        study.study(reference, trial, again, message.get("without", ()))
        reference.needed_bytes = needs.needed_bytes(inputs, state, reference.result_bytes)
        self.reference = reference
        return {
            "init": encode(list(reference.init), out),
            "random": reference.random,
            "changed": reference.changed,
            "grad": reference.grad,
            "aliases": reference.aliases,
            "conduct": wire.to_json(reference.subject.conduct),
            "environment": reference.device.environment(),
            "elements": reference.elements,
            "needed_bytes": reference.needed_bytes,
            "total_bytes": needs.total_bytes(self.place),
            "size": needs.in_words(reference.needed_bytes, needs.free_bytes(self.place)),
        }

    def _begin(self, number: int, message: dict[str, Any]) -> dict[str, Any]:
        if self.reference is None:
            raise EvaluationError("could not judge: no reference is open", "open one first")
        self._close(number)
        self.sessions[number] = Examination(self.reference, message["seed"], message["precision"])
        return {"trials": self.sessions[number].plan}

    def _close(self, number: int) -> dict[str, Any]:
        self._drop_drawn(number)
        for used in self.files.pop(number, []):
            used.clear()
        self.sessions.pop(number, None)
        allocating.return_freed_memory()
        return {"ok": True}

    def _drop_drawn(self, number: int, but: int = 0) -> None:
        """The files of all trials but the last; the last two live until the next is drawn."""
        drawn = self.drawn.pop(number, [])
        for out in drawn[: len(drawn) - but]:
            out.clear()
        if but:
            self.drawn[number] = drawn[-but:]


def main() -> None:
    """Answers each frame of stdin as the judge, until stdin ends."""
    requests, replies = wire.claim_stdio()
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0)  # no other process of this user may read our memory
    warnings.simplefilter("ignore")
    waiting.sleep_soon(torch.get_num_threads())
    allocating.keep_freed_memory()
    judge, folder = Judge(Path(sys.argv[1])), Path.cwd()
    while (request := wire.read_frame(requests)) is not None:
        message, blobs = request
        files = {int(number): folder / name for number, name in message.pop("left", {}).items()}
        given = [files.get(number, blob) for number, blob in enumerate(blobs)]
        wire.write_frame(replies, *judge.answer(message, given))
        for file in files.values():
            file.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
