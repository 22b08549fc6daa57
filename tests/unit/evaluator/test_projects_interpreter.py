"""What runs in a project's interpreter needs torch and the standard library, and nothing of ours."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.torch
OURS = (
    "psutil", "pygls", "lsprotocol", "watchdog", "rank_bm25", "pathspec", "tomlkit", "pydantic", "yaml",
    "sqlalchemy", "alembic", "platformdirs", "filelock", "pynvml", "typer", "jinja2", "rich", "httpx2",
    "keyring",
)  # fmt: skip
"""What pyproject.toml makes the host depend on, but for numpy and cloudpickle, which are brought
along or do without."""
CHILDREN = (
    "kernel_lsp.evaluator.running.worker",
    "kernel_lsp.evaluator.running.timer",
    "kernel_lsp.evaluator.running.tuner",
    "kernel_lsp.evaluator.running.builder",
    "kernel_lsp.evaluator.judging.judge",
    "kernel_lsp.evaluator.processes.zygote",
    "kernel_lsp.evaluator.devices.aot",
    "kernel_lsp.rewrite.engine",
    "kernel_lsp.workloads.recorder",
)
PROGRAM = """
import importlib, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in OURS:
            raise ModuleNotFoundError(f"No module named {name!r}")

sys.meta_path.insert(0, Absent())
importlib.import_module(CHILD)
"""


@pytest.mark.parametrize("child", CHILDREN)
def test_a_child_in_a_projects_interpreter_starts_without_our_dependencies(child: str) -> None:
    program = PROGRAM.replace("OURS", repr(OURS)).replace("CHILD", repr(child))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-500:]
