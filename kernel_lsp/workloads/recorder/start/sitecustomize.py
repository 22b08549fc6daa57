"""Begins the recorder in every Python process of a program that ``kernel-lsp record`` runs, or
what times the steps of one that ``kernel-lsp optimize`` runs.

Its folder stands first in PYTHONPATH, so that ranks, workers and subprocesses are recorded as
well, and is taken out of sys.path again here. What the environment's own sitecustomize does is
done afterwards. Not covered: interpreters that ignore PYTHONPATH (-I, -E, -S)."""

import importlib.util
import os
import sys

RECORDING, STEPS = "KERNEL_LSP_RECORDING", "KERNEL_LSP_STEPS"
PACKAGE = "_kernel_lsp_recorder"
HERE = os.path.dirname(os.path.abspath(__file__))


def begin() -> None:
    """The recorder under a name of its own: the program may have another kernel_lsp."""
    folder = os.path.dirname(HERE)
    spec = importlib.util.spec_from_file_location(
        PACKAGE, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    assert spec is not None and spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules[PACKAGE] = package
    spec.loader.exec_module(package)
    if RECORDING in os.environ:
        package.begin(os.environ[RECORDING])
    else:
        package.begin_steps(os.environ[STEPS])


def hand_over() -> None:
    """Run the sitecustomize that this one stands before, if there is one."""
    ours = sys.modules.pop(__name__)
    try:
        __import__(__name__)
    except ImportError as error:
        if error.name != __name__:
            raise
    finally:
        sys.modules.setdefault(__name__, ours)


if RECORDING in os.environ or STEPS in os.environ:
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != HERE]
    try:
        begin()
    except Exception as error:  # whatever it is: the program must run as it would without us
        sys.stderr.write(
            f"kernel-lsp record: this process is not recorded ({type(error).__name__}: {error})\n"
        )
    hand_over()
