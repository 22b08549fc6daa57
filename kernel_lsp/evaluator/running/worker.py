"""The worker: the only process that runs candidate code. Confined and disposable.

Requests: load (the candidate), run (one trial), backward (its gradients), finish (what the guards
saw). timer.py adds what speed needs. It claims its pipes before a candidate is loaded, sends raw
bytes and JSON, and decides nothing: whatever it says is checked by the judge, and its clock by the
parent's."""

from __future__ import annotations

import contextlib
import importlib
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from kernel_lsp import wire
from kernel_lsp.errors import EvaluationError
from kernel_lsp.evaluator import callees, circumstances, devices, relations
from kernel_lsp.evaluator.callees import Callee, Conduct
from kernel_lsp.evaluator.devices import interpreter
from kernel_lsp.evaluator.gradients import backward, leaves_with_gradients, second_order
from kernel_lsp.evaluator.processes import waiting
from kernel_lsp.evaluator.running import growth, memory, native_loading, parameters, recorder, watch
from kernel_lsp.evaluator.tensors import (
    DeferredOutbox,
    TensorOutbox,
    decode,
    encode,
    map_tensors,
    same_bits,
    stage,
    strided_copy,
    tensor_leaves,
)
from kernel_lsp.records import Program, Workload

COMPILER_RECURSION_LIMIT = 2000
WorkerOperation = Callable[[dict[str, Any], list[bytes], TensorOutbox], dict[str, Any]]


class Worker:
    """One candidate (and, when timing, its reference) in one process."""

    def __init__(self, device: str) -> None:
        self.device = devices.of(device)
        if device == "cuda":
            stage()  # before a candidate is watched: what it leaves is told from what was there
        self.callee: Callee = Callee(None)
        self.conduct = Conduct()
        self.watch = watch.Watch()
        self.memory = memory.Memory(self.device.place)
        self.called: tuple[Any, Any] = (None, None)
        self.again: dict[bool, tuple[Any, dict[str, Any]]] = {}
        """The last call without gradients, and the last with them."""
        self.early: list[tuple[torch.Tensor, torch.Tensor]] = []
        """Outputs of the last call, each with what the next operator would have read of it."""
        self.kept: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.recorder = recorder.LaunchRecorder()
        self.sample: tuple[Any, Any, dict[str, Any]] | None = None
        self.construct: Callable[[], Callee] | None = None
        """Load and construct the candidate once more."""

    # --- load ----------------------------------------------------------------------------

    def load(self, message: dict[str, Any], blobs: list[bytes]) -> dict[str, Any]:
        """Load and construct the candidate with the reference's constructor arguments."""
        init = decode(message["init"], blobs)
        program = wire.from_json(Program, message["program"])
        workload = wire.from_json(Workload, message["workload"])
        self.conduct = wire.from_json(Conduct, message["conduct"])
        reference = wire.from_json(Program, message["reference"])
        if message.get("timing"):
            callees.unload(reference)
        else:
            callees.prepare(reference, workload, self.device.place)
            _poison_fresh_memory()
            if self.device.can_run_triton and "triton" in program.source:
                self.recorder.start(interpreted=not self.device.can_time)
        if needs_compiler(program.source):
            import_compiler(judged=not message.get("timing"))
        if (built := message.get("extensions")) is not None:
            native_loading.install(built, blobs[len(blobs) - len(built) :])
        self.watch.start()

        def construct() -> Callee:
            place = self.device.place
            return callees.callee_of(program, workload, (init[0], init[1]), place, self.conduct)

        self.construct = construct
        try:
            self.callee = construct()
        except SyntaxError as error:
            return {"error": f"line {error.lineno}: {error.msg}", "kind": "compile_error"}
        except BaseException as error:  # user code: also SystemExit and KeyboardInterrupt
            return failure(error, "loading the candidate")
        if not callable(self.target):
            return {
                "error": f"{program.entry} is neither a module nor a function",
                "kind": "compile_error",
            }
        return {"ok": True, "keys": self._keys()}

    @property
    def target(self) -> Any:
        """The candidate as it is called: a constructed module or a function."""
        return self.callee.target

    def _keys(self) -> list[str]:
        return list(self.target.state_dict()) if isinstance(self.target, torch.nn.Module) else []

    # --- run -----------------------------------------------------------------------------

    def run(self, message: dict[str, Any], blobs: list[bytes], out: TensorOutbox) -> dict[str, Any]:
        """One trial: new parameters, one call, the output as bytes and what was noticed."""
        with self._in_single() if message.get("single") else contextlib.nullcontext():
            return self._run(message, blobs, out)

    @contextlib.contextmanager
    def _in_single(self) -> Iterator[None]:
        """Parameters and buffers of 16 bits are float32 meanwhile, each by itself: a candidate may
        have others of its own."""
        if not isinstance(self.target, torch.nn.Module):
            yield
            return
        own = parameters.tensors_of(self.target).items()
        before = {k: t.dtype for k, t in own if t.dtype in (torch.float16, torch.bfloat16)}
        parameters.cast(self.target, dict.fromkeys(before, torch.float32))
        try:
            yield
        finally:
            parameters.cast(self.target, before)

    def _run(
        self, message: dict[str, Any], blobs: list[bytes], out: TensorOutbox
    ) -> dict[str, Any]:
        try:
            self._update(decode(message["state"], blobs, self.device.place), message)
            given = decode(message["arguments"], blobs, self.device.place)
            arguments = self.memory.place(given, fresh=message["fresh"])
            del given
            required = relations.requirements(arguments)
            fixed = {key: value.clone() for key, value in self._fixed(message["changed"]).items()}
            with relations.held_gradients(self.target if message.get("held") else None) as left:
                result = self._call(self.callee, arguments, message)
            drawn = relations.generators(self.device.place)
            if self.recorder.recording and self.sample is None:
                state = decode(message["state"], blobs)
                self.sample = state, decode(message["arguments"], blobs, self.device.place), message
        except EvaluationError as error:
            return {"error": error.cause, "kind": "wrong_result"}
        except BaseException as error:  # user code: also SystemExit and KeyboardInterrupt
            return failure(error, "calling the candidate")
        notes = watch.output_problems(result, arguments, message["aliases"])
        notes += self._order_problems() + self._kept_problems()
        notes += self.watch.noticed() + self.memory.problems(self.conduct.writes)
        now = self._fixed(message["changed"])
        if fixed.keys() != now.keys() or not all(same_bits(fixed[key], now[key]) for key in now):
            notes.append(
                {
                    "name": "parameters-untouched",
                    "detail": "the candidate writes into its parameters",
                }
            )
        reply = self._reply(result, message, notes, out)
        state = {
            key: value
            for key, value in self._state(self._keys()).items()
            if key in message["state"]["items"]
        }
        if self.conduct.buffers:
            state |= callees.unsaved_buffers(self.target)
        self.called = arguments, result
        if not message.get("single") and not message.get("circumstance"):
            self.again[bool(message.get("grad"))] = arguments, message
        shares = relations.relations(result, arguments, state)
        self._keep(result, shares)
        marks = left + relations.marks(arguments, self.target, required)
        return {**reply, "generators": drawn, "relations": shares, "marks": marks,
            "names": relations.names(result)}  # fmt: skip

    def _keep(self, result: Any, shares: list[list[str]]) -> None:
        """Outputs that must still hold after the next call. Those in memory of inputs or
        parameters change with them; whether the reference's do too is the aliasing check's to
        say."""
        own = [t for t, names in zip(tensor_leaves(result), shares, strict=True) if not names]
        self.kept = [(tensor, tensor.detach().clone()) for tensor in own]

    def _update(self, state: dict[str, torch.Tensor], message: dict[str, Any]) -> None:
        if message["switch"]:
            parameters.switch_mode(self.target)
        parameters.update(self.target, state, message["update"])

    def backward(
        self, message: dict[str, Any], blobs: list[bytes], out: TensorOutbox
    ) -> dict[str, Any]:
        """Gradients of the last trial's output, weighted as the judge wants them only now."""
        arguments, result = self.called
        weights = decode(message["cotangents"], blobs, self.device.place)
        try:
            wanted = leaves_with_gradients(arguments, self.target)
            twice, keep = bool(message.get("twice")), bool(message.get("keep"))
            found = backward(result, wanted, weights, keep=twice or keep)
            again = {}
            if twice:
                others = decode(message["others"], blobs, self.device.place)
                again = {"again": encode(backward(result, wanted, others, keep=keep), out)}
            self.device.synchronize()
        except BaseException as error:  # user code: also SystemExit and KeyboardInterrupt
            return failure(error, "the backward pass of the candidate")
        return {
            "gradients": encode(found, out),
            **again,
            "notes": self.memory.problems(self.conduct.writes),
        }

    def second(
        self, message: dict[str, Any], blobs: list[bytes], out: TensorOutbox
    ) -> dict[str, Any]:
        """Gradients of the gradients of the last trial."""
        arguments, result = self.called
        cotangents, weights = decode(message["given"], blobs, self.device.place)
        try:
            wanted = leaves_with_gradients(arguments, self.target)
            found = second_order(result, wanted, cotangents, weights)
            self.device.synchronize()
        except BaseException as error:  # user code: also SystemExit and KeyboardInterrupt
            return failure(error, "differentiating the backward pass of the candidate")
        return {"gradients": encode(found, out)}

    def _reply(
        self, result: Any, message: dict[str, Any], notes: list[dict[str, str]], out: TensorOutbox
    ) -> dict[str, Any]:
        try:
            outputs = encode(result, out)
        except EvaluationError as error:
            return {"error": error.cause, "kind": "wrong_result"}
        state = self._state(message["changed"])
        return {"outputs": outputs, "state": encode(state, out), "notes": notes}

    def _call(self, callee: Callee, arguments: Any, message: dict[str, Any]) -> Any:
        relations.seed(message["noise_seed"])
        within = circumstances.within(
            message.get("circumstance", ""), callee.target, self.device.place
        )
        with torch.set_grad_enabled(message["grad"]), within:
            result = callee(callee.bind(arguments))
        self.early = self.device.read_by_next(tensor_leaves(result))
        self.device.synchronize()
        return result

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        """Copies the reference's parameters and buffers into the candidate, by name. Raises where
        they do not fit."""
        parameters.update(self.target, state, "load_state_dict")

    def _order_problems(self) -> list[dict[str, str]]:
        """An output must be there for the operator that follows. Covers work on another stream
        that is not done by the time a copy runs; what is quicker than that is left to the clocks
        (vetoes.py)."""
        late = not all(same_bits(*pair) for pair in self.early)
        self.early = []
        detail = (
            "the next operator reads the output before it is written: a stream that nobody "
            "waits for"
        )
        return [{"name": "output-in-order", "detail": detail}] if late else []

    def _kept_problems(self) -> list[dict[str, str]]:
        """The previous trial's output must still hold: a shared output buffer is no result."""
        changed = not all(same_bits(*pair) for pair in self.kept)
        self.kept = []
        detail = "an earlier result changed when the candidate was called again"
        return [{"name": "results-stay", "detail": detail}] if changed else []

    def _state(self, keys: list[str]) -> dict[str, torch.Tensor]:
        if not isinstance(self.target, torch.nn.Module):
            return {}
        state = self.target.state_dict()
        return {key: state[key] for key in keys if key in state}

    def _fixed(self, changed: list[str]) -> dict[str, torch.Tensor]:
        """Parameters and buffers that the reference leaves as they are."""
        state = self._state([key for key in self._keys() if key not in changed])
        return {
            key: value.detach() for key, value in state.items() if isinstance(value, torch.Tensor)
        }

    def knock_out(self) -> dict[str, Any]:
        """The share of the first trial's output that changes when no kernel runs; None when it
        fails.

        It is loaded anew for that: a graph that was recorded while kernels ran would go on running
        them."""
        if self.sample is None or self.construct is None:
            return {"changed": None}
        state, arguments, message = self.sample
        try:
            self._update(state, message)
            usual = self._call(self.callee, arguments, message)
            with self.recorder.knocked_out():
                self.callee = self.construct()
                self.load_state(state)
                silent = self._call(self.callee, arguments, message)
            return {"changed": recorder.changed_share(usual, silent)}
        except BaseException:  # a candidate that cannot go on without its kernels needs them
            return {"changed": None}

    def growth(self) -> dict[str, int]:
        """What every further call keeps; nothing where a call fails. Each has inputs of its own:
        who keeps them is found by what they take."""
        kept = growth.Kept()
        for grad, (arguments, message) in self.again.items():

            def call(arguments: Any = arguments, message: Any = message, grad: bool = grad) -> None:
                given = map_tensors(lambda t: strided_copy(t, self.device.place), arguments)
                result = self._call(self.callee, given, message)
                outputs = [t for t in tensor_leaves(result) if t.requires_grad]
                if grad and outputs:
                    wanted = leaves_with_gradients(given, self.target)
                    backward(result, wanted, [torch.ones_like(t) for t in outputs])

            with contextlib.suppress(Exception):
                kept = kept or growth.kept_by(call)
        return {"host": kept.host_bytes, "device": kept.device_bytes, "tensors": kept.tensors}

    def finish(self) -> dict[str, Any]:
        """What changed in this process since the candidate was loaded."""
        self.called = (None, None)
        return {
            "growth": self.growth(),
            "notes": self.watch.problems(),
            "launched": self.recorder.launched(),
            "kernels": self.recorder.kernels(),
            "tuned": self.recorder.tuned(),
            "resources": self.recorder.resources(),
        }


def _poison_fresh_memory() -> None:
    """torch.empty becomes NaN (or the largest integer), so unwritten output cannot pass.

    The C++ switches are set directly: torch.use_deterministic_algorithms() would import the
    compiler's configuration, which costs a second.
    """
    torch.utils.deterministic.fill_uninitialized_memory = True
    torch._C._set_deterministic_algorithms(True, warn_only=True)


def needs_compiler(source: str) -> bool:
    """Whether a program may call torch.compile. The guard of a rewrite only asks whether it is
    being compiled, and importing the compiler for that took half of a verdict's time."""
    return "compile" in source.replace("torch.compiler.is_compiling()", "")


def import_compiler(judged: bool) -> None:
    """Import what torch.compile needs (3 s), and set the recursion limit that it raises when it
    compiles (torch._inductor.compile_fx): before a candidate is watched, so that neither is taken
    for the candidate's doing.

    ``judged``: the graph of one call is used a second time, which compiled code allows only where
    its backward pass does not reuse the memory of what it saved."""
    with contextlib.suppress(Exception):  # a broken compiler is reported when it is used
        importlib.import_module("torch._inductor.compile_fx")
        sys.setrecursionlimit(max(sys.getrecursionlimit(), COMPILER_RECURSION_LIMIT))
        if judged:
            config: Any = importlib.import_module("torch._functorch.config")
            config.donated_buffer = False


def failure(error: BaseException, doing: str) -> dict[str, Any]:
    """One user exception as data: type, message, and the candidate's own line when there is one."""
    if why := interpreter.find_unsupported(error):
        return {"error": f"{why} ({interpreter.REMEDY})", "kind": "unsupported"}
    names = {type(e).__name__ for e in (error, error.__cause__) if e is not None}
    compiling = bool(
        names & {"CompilationError", "CompileTimeAssertionFailure", "UnsupportedLanguageConstruct"}
    )
    memory = (
        isinstance(error, MemoryError)
        or "out of memory" in str(error)
        or "can't allocate" in str(error)
    )
    lines = [
        f.lineno
        for f in traceback.extract_tb(error.__traceback__)
        if f.filename.startswith("<program_")
    ]
    where = f", line {lines[-1]}" if lines else ""
    hint = "; it ran out of memory: give it less to do or raise the limit" if memory else ""
    text = f"{doing} raised {type(error).__name__}{where}: {_first_lines(error)}{hint}"
    kind = "compile_error" if compiling else "runtime_error"
    return {"error": text, "kind": kind, "memory": memory}


def _first_lines(error: BaseException) -> str:
    return " ".join(str(error).split())[:500]


def answer(
    worker: Worker, message: dict[str, Any], blobs: list[bytes], out: TensorOutbox
) -> dict[str, Any]:
    """The reply to one request of the parent, with its blobs."""
    what = message["do"]
    if what == "ready":  # constructing the device has made its context
        return {"ok": True}
    if what == "load":
        return worker.load(message, blobs)
    if what == "run":
        return worker.run(message, blobs, out)
    if what == "knock_out":
        return worker.knock_out()
    if what == "second":
        return worker.second(message, blobs, out)
    return worker.backward(message, blobs, out) if what == "backward" else worker.finish()


def serve(requests: wire.Pipe, replies: wire.Pipe, answer: WorkerOperation) -> None:
    """Answer until the parent goes; what is large is left in this process's folder."""
    folder = Path.cwd()
    while (request := wire.read_frame(requests)) is not None:
        out = DeferredOutbox(folder)
        reply = answer(*request, out)
        record = {"left": out.left} if out.left else {}
        with contextlib.suppress(BrokenPipeError):
            wire.write_frame(replies, {**reply, **record}, out.blobs)


def main() -> None:
    """Answers each frame of stdin as the worker, until stdin ends."""
    requests, replies = wire.claim_stdio()
    warnings.simplefilter("ignore")
    worker = Worker(sys.argv[1])
    devices.few_threads(worker.device)
    waiting.sleep_soon(torch.get_num_threads())
    serve(requests, replies, lambda message, blobs, out: answer(worker, message, blobs, out))


if __name__ == "__main__":
    main()
