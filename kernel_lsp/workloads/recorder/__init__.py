"""The half of ``kernel-lsp record`` that runs inside the user's program. Standard library only.

It imports neither torch nor triton: it waits until the program does (imports.py), and then stands
before module calls (modules.py) and Triton launches (launches.py). What it sees goes into one JSON
file per process (spool.py), which recordings.py merges. Loaded by start/sitecustomize.py under
another name than kernel_lsp, so everything in here imports relatively."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # a process that never imports torch pays for nothing
    from .reading import FilesRead
    from .recording import ProcessRecording

__all__ = ["begin", "begin_steps"]


def begin(settings: str) -> None:
    """Begins to record this process.

    ``calls`` in it (see calls.py): snapshots of calls are wanted; ``steps`` (see limit.py): it ends
    early; ``marked`` (see marking.py): the module and name of the function that is a step."""
    from . import imports

    given = json.loads(settings)
    recorder = _Recorder(given)
    imports.after("torch", recorder.saw_torch)
    imports.after("triton.runtime.jit", recorder.saw_jit)
    imports.after("triton.runtime.interpreter", recorder.saw_interpreter)
    imports.after("triton.runtime.autotuner", recorder.saw_autotuner)


def begin_steps(settings: str) -> None:
    """Time the steps of the program instead; see steps.py."""
    from . import steps

    steps.begin(settings)


class _Recorder:
    """What is done with a module of torch's or triton's when the program has imported it."""

    def __init__(self, given: dict[str, Any]) -> None:
        self._root, self._spool = given["root"], given["spool"]
        self._calls, self._steps = given.get("calls"), given.get("steps")
        self._seconds = given.get("seconds")
        self._marked = given.get("marked")
        self._recording: ProcessRecording | None = None
        self._files: FilesRead | None = None
        if self._calls is not None:
            from .reading import FilesRead

            self._files = FilesRead(self._root)

    def _begun(self) -> ProcessRecording:
        from .recording import ProcessRecording

        if self._recording is None:
            self._recording = ProcessRecording(self._root, self._spool)
            self._recording.keep_until_the_end()
        return self._recording

    def saw_torch(self, torch: Any) -> None:
        """Observe modules, Functions and steps, now that torch is there."""
        from . import modules

        recording = self._begun()
        if self._calls is not None:
            from .calls import CallKeeper

            recording.calls = CallKeeper(self._calls, torch)
            recording.files = self._files
        from . import imports
        from .limit import StepCounts

        counts = StepCounts(
            self._steps,
            lambda: recording.write(wait=True),
            lambda: recording.look_at_files(),
            is_marked=self._marked is not None,
            seconds=self._seconds,
        )
        recording.counts = counts
        imports.after("torch.optim.optimizer", counts.saw_optimizers)
        imports.after("torch.utils.data.dataloader", counts.saw_loaders)
        if self._marked is not None:
            from .marking import StepMark

            StepMark(self._marked, counts.returned).saw_torch(torch)
        modules.install(torch, recording)

    def saw_jit(self, jit: Any) -> None:
        """Observe launches, now that Triton is there."""
        from . import launches

        launches.install(jit.JITFunction, self._begun())

    def saw_interpreter(self, interpreter: Any) -> None:
        """Observe launches in Triton's interpreter."""
        from . import launches

        launches.install(interpreter.InterpretedFunction, self._begun())

    def saw_autotuner(self, autotuner: Any) -> None:
        """Leave out the launches by which an autotuner chooses."""
        from . import launches

        launches.leave_out(autotuner.Autotuner, self._begun())
