"""A run that is started early imports its libraries, and waits before it computes anything.

Imports are most of a short run's time (5 of 8.5 s of a 12-layer model on an H100), and need one
core and no GPU: they happen while the run before gets ready. The run waits at its first module or
its first use of a GPU, whichever comes first, until a file is there; and at each import while
another file is there, so that nothing is imported beside steps whose times count.

Standard library alone; torch is the program's."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from . import functions

POLL_S = 0.01


class RunTurn:
    """Whose turn it is: files that who has started the run makes and removes."""

    def __init__(self, go: str, pause: str) -> None:
        self._go, self._pause, self._parent = Path(go), Path(pause), os.getppid()
        self.waited_s = 0.0

    def wait_to_import(self) -> None:
        """Wait while the file that pauses programs is there."""
        self._wait(lambda: not self._pause.exists())

    def wait_to_compute(self) -> None:
        """Wait until the file that lets this program compute is there."""
        self._wait(self._go.exists)

    def find_spec(self, *_: Any) -> None:
        """As the first of the finders of modules; it finds none."""
        self.wait_to_import()

    def _wait(self, may_go_on: Callable[[], bool]) -> None:
        begin = time.time()
        while not may_go_on():
            if not self._go.parent.exists() or os.getppid() != self._parent:
                os._exit(1)  # who has started it is gone
            time.sleep(POLL_S)
            self.waited_s += time.time() - begin
            begin = time.time()


class FirstUse:
    """Before the first module and the first use of a GPU."""

    def __init__(self, torch: Any, turn: RunTurn) -> None:
        self._turn = turn
        self._module = torch.nn.Module
        self._init, self._lazy = torch.nn.Module.__init__, torch.cuda._lazy_init
        self._is_over = False

        def first_module(module: Any, /, *args: Any, **kwargs: Any) -> None:
            self._wait()
            self._init(module, *args, **kwargs)

        def first_use() -> None:
            self._wait()
            self._lazy()

        self._waiting: Any = first_use
        self._module.__init__ = first_module
        functions.replace({self._lazy: first_use}, _names_of_cuda())

    def _wait(self) -> None:
        if self._is_over:
            return
        self._is_over = True
        self._turn.wait_to_compute()
        self._module.__init__ = self._init
        functions.replace({self._waiting: self._lazy}, _names_of_cuda())
        if self._turn in sys.meta_path:
            sys.meta_path.remove(self._turn)


def _names_of_cuda() -> list[dict[str, Any]]:
    """Modules of torch that hold the function by a name of their own."""
    return [
        vars(module)
        for name, module in list(sys.modules.items())
        if name.startswith("torch.cuda") and isinstance(module, ModuleType)
    ]
