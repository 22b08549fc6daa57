"""The worker: the only process that runs candidate code. Confined and disposable.

Requests: load (the candidate), run (one trial), finish (what the guards saw). timer.py adds what speed
needs.
It claims its pipes before a candidate is loaded, sends raw bytes and JSON, and decides nothing:
whatever it says is checked by the judge, and its clock by the parent's.
"""

from __future__ import annotations

import contextlib
import sys
import traceback
import warnings
from typing import Any

import torch

from kernel_lsp import wire
from kernel_lsp.errors import EvaluationError
from kernel_lsp.evaluator import devices, programs, recorder, watch
from kernel_lsp.evaluator.tensors import Outbox, decode, encode, map_tensors, tensor_leaves


class Worker:
    """One candidate (and, when timing, its reference) in one process."""

    def __init__(self, device: str) -> None:
        self.device = devices.of(device)
        self.target: Any = None
        self.watch = watch.Watch()
        self.storages: dict[tuple[Any, ...], torch.UntypedStorage] = {}
        self.kept: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.recorder = recorder.Recorder()

    # --- load ----------------------------------------------------------------------------

    def load(self, message: dict[str, Any], blobs: list[bytes]) -> dict[str, Any]:
        """Load and construct the candidate with the reference's constructor arguments."""
        init = decode(message["init"], blobs)
        if not message.get("timing"):
            _poison_fresh_memory()
            if self.device.can_run_triton and "triton" in message["source"]:
                self.recorder.start(interpreted=not self.device.can_time)
        self.watch.start()
        try:
            module = programs.load(message["source"])
            target = programs.find(module, message["entry"])
            self.target = programs.construct(
                target, (init[0], init[1]), self.device.place, message["training"]
            )
        except SyntaxError as error:
            return {"error": f"line {error.lineno}: {error.msg}", "kind": "compile_error"}
        except BaseException as error:  # user code: also SystemExit and KeyboardInterrupt
            return failure(error, "loading the candidate")
        if not callable(self.target):
            return {
                "error": f"{message['entry']} is neither a module nor a function",
                "kind": "compile_error",
            }
        return {"ok": True, "keys": self._keys()}

    def _keys(self) -> list[str]:
        return list(self.target.state_dict()) if isinstance(self.target, torch.nn.Module) else []

    # --- run -----------------------------------------------------------------------------

    def run(self, message: dict[str, Any], blobs: list[bytes], out: Outbox) -> dict[str, Any]:
        """One trial: load the parameters, call, return the output as bytes and what was noticed."""
        try:
            self.load_state(decode(message["state"], blobs))
            arguments = self._place(decode(message["arguments"], blobs))
            before = [tensor.detach().clone() for tensor in tensor_leaves(arguments)]
            fixed = {key: value.clone() for key, value in self._fixed(message["changed"]).items()}
            result = self._call(self.target, arguments, message)
        except EvaluationError as error:
            return {"error": error.cause, "kind": "wrong_result"}
        except BaseException as error:  # user code: also SystemExit and KeyboardInterrupt
            return failure(error, "calling the candidate")
        notes = watch.output_problems(result, arguments, message["aliases"])
        notes += self._kept_problems() + self.watch.noticed()
        if not all(_same_bits(*pair) for pair in zip(before, tensor_leaves(arguments), strict=True)):
            notes.append({"name": "inputs-untouched", "detail": "the candidate writes into its inputs"})
        now = self._fixed(message["changed"])
        if fixed.keys() != now.keys() or not all(_same_bits(fixed[key], now[key]) for key in now):
            notes.append(
                {"name": "parameters-untouched", "detail": "the candidate writes into its parameters"}
            )
        return self._reply(result, message, notes, out)

    def _reply(
        self, result: Any, message: dict[str, Any], notes: list[dict[str, str]], out: Outbox
    ) -> dict[str, Any]:
        try:
            outputs = encode(result, out)
        except EvaluationError as error:
            return {"error": error.cause, "kind": "wrong_result"}
        self.kept = [(tensor, tensor.detach().clone()) for tensor in tensor_leaves(result)]
        state = self._state(message["changed"])
        return {"outputs": outputs, "state": encode(state, out), "notes": notes}

    def _call(self, target: Any, arguments: Any, message: dict[str, Any]) -> Any:
        torch.manual_seed(message["noise_seed"])
        with torch.set_grad_enabled(message["grad"]):
            result = target(*arguments[0], **arguments[1])
        self.device.synchronize()
        return result

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        if not isinstance(self.target, torch.nn.Module):
            return
        try:
            self.target.load_state_dict(state, strict=True)
        except (RuntimeError, KeyError) as error:
            raise EvaluationError(
                f"the candidate does not take the reference's parameters: {_first_lines(error)}"
            ) from None

    def _place(self, arguments: Any) -> Any:
        """Arguments on the device, in storage that is reused: new values at an old address.

        The tensors are new objects with a fresh version counter, so that nothing but the values
        tells a memo that the inputs have changed.
        """
        counter = iter(range(1_000_000))
        return map_tensors(lambda tensor: self._at_old_address(tensor, next(counter)), arguments)

    def _at_old_address(self, tensor: torch.Tensor, index: int) -> torch.Tensor:
        if 0 in tensor.stride() or not tensor.numel():
            return tensor.to(self.device.place)
        span = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) + 1
        key = (index, tensor.dtype, span)
        if key not in self.storages:
            flat = torch.empty(span, dtype=tensor.dtype, device=self.device.place)
            self.storages[key] = flat.untyped_storage()
        made = torch.empty(0, dtype=tensor.dtype, device=self.device.place)
        made.set_(self.storages[key], 0, tensor.shape, tensor.stride())
        fresh = torch.empty(0, dtype=tensor.dtype, device=self.device.place)
        with torch.no_grad():
            made.copy_(tensor)
            fresh.set_(self.storages[key], 0, tensor.shape, tensor.stride())
        return fresh.requires_grad_(tensor.requires_grad)

    def _kept_problems(self) -> list[dict[str, str]]:
        """The previous trial's output must still hold: a shared output buffer is no result."""
        changed = not all(_same_bits(*pair) for pair in self.kept)
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
        return {key: value.detach() for key, value in state.items() if isinstance(value, torch.Tensor)}

    def finish(self) -> dict[str, Any]:
        """What changed in this process since the candidate was loaded."""
        return {
            "notes": self.watch.problems(),
            "launched": self.recorder.launched(),
            "kernels": self.recorder.kernels(),
            "resources": self.recorder.resources(),
        }


def _poison_fresh_memory() -> None:
    """torch.empty becomes NaN (or the largest integer), so unwritten output cannot pass.

    The C++ switches are set directly: torch.use_deterministic_algorithms() would import the
    compiler's configuration, which costs a second.
    """
    torch.utils.deterministic.fill_uninitialized_memory = True
    torch._C._set_deterministic_algorithms(True, warn_only=True)


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors hold the same bytes, NaN included; compared where they are."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    one, other = (t.detach().resolve_conj().resolve_neg().contiguous().flatten() for t in (a, b))
    return torch.equal(one.view(torch.uint8), other.view(torch.uint8))


def failure(error: BaseException, doing: str) -> dict[str, Any]:
    """One user exception as data: type, message, and the candidate's own line when there is one."""
    names = {type(e).__name__ for e in (error, error.__cause__) if e is not None}
    compiling = bool(
        names & {"CompilationError", "CompileTimeAssertionFailure", "UnsupportedLanguageConstruct"}
    )
    memory = isinstance(error, MemoryError) or "out of memory" in str(error) or "can't allocate" in str(error)
    lines = [
        f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith("<program_")
    ]
    where = f", line {lines[-1]}" if lines else ""
    hint = "; it ran out of memory: give it less to do or raise the limit" if memory else ""
    text = f"{doing} raised {type(error).__name__}{where}: {_first_lines(error)}{hint}"
    return {"error": text, "kind": "compile_error" if compiling else "runtime_error"}


def _first_lines(error: BaseException) -> str:
    return " ".join(str(error).split())[:500]


def answer(worker: Worker, message: dict[str, Any], blobs: list[bytes], out: Outbox) -> dict[str, Any]:
    what = message["do"]
    if what == "load":
        return worker.load(message, blobs)
    if what == "run":
        return worker.run(message, blobs, out)
    return worker.finish()


def main() -> None:
    requests, replies = wire.claim_stdio()
    warnings.simplefilter("ignore")
    worker = Worker(sys.argv[1])
    while (request := wire.read_frame(requests)) is not None:
        out = Outbox()
        with contextlib.suppress(BrokenPipeError):
            wire.write_frame(replies, answer(worker, request[0], request[1], out), out.blobs)


if __name__ == "__main__":
    main()
