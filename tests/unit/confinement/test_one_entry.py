"""Processes are started in one place: whatever runs something foreign goes through
confinement/entry.py."""

import ast
from pathlib import Path

import pytest

import kernel_lsp
from kernel_lsp import parsing

PACKAGE = Path(kernel_lsp.__file__).parent
STARTS = {
    "subprocess": {
        "Popen",
        "run",
        "call",
        "check_call",
        "check_output",
        "getoutput",
        "getstatusoutput",
    },
    "asyncio": {"create_subprocess_exec", "create_subprocess_shell"},
    "os": {
        *("fork", "forkpty", "system", "popen", "posix_spawn", "posix_spawnp", "startfile"),
        *(f"exec{how}" for how in ("v", "ve", "vp", "vpe", "l", "le", "lp", "lpe")),
        *(f"spawn{how}" for how in ("v", "ve", "vp", "vpe", "l", "le", "lp", "lpe")),
    },
    "pty": {"spawn", "fork"},
    "multiprocessing": {"Process", "Pool", "get_context"},
    "concurrent.futures": {"ProcessPoolExecutor"},
}
ALLOWED = {
    "confinement/entry.py": "the entry: starts the launcher, which confines itself",
    "confinement/launching.py": "the launcher: becomes the program once it is confined",
    "confinement/trying.py": "a child of ours that tries to get out, forked as a zygote forks",
    "evaluator/processes/zygote.py": "confined itself; its children confine themselves by the "
    "same code",
    "process.py": "modules of ours in our own interpreter (the host); all that is confined by "
    "the entry",
    "evaluator/remote/connection.py": "ssh and srun, which are the machine's own, to a machine that "
    "its user names",
    "evaluator/remote/shim.py": "our own gate on that machine, which confines there as here",
    "signatures.py": "ssh-keygen, which is the machine's own, on files of which it runs nothing",
    "guarding/branching.py": "git, which is the machine's own, without the repository's hooks, "
    "filters and monitors",
    "checker/__init__.py": "our own analysis, by text, in several processes",
    "evaluator/devices/aot.py": "a disassembler, within a confined child",
    "evaluator/running/builder.py": "compilers, asked for their version within a confined child",
    "evaluator/devices/cuda.py": "nvidia-smi, which is the machine's own",
    "agents/backbones/serving.py": "the keeper of a model server that its user has configured",
    "agents/backbones/keeper.py": "the model server that its user has configured: it downloads "
    "weights",
    "programs/stepping.py": "the user's own command (`optimize -- …`), with the user's rights",
    "workloads/running.py": "the user's own command (`record …`), with the user's rights",
    "commands/doctor.py": "commands that mend this machine, each of which its user agreed to",
    "cluster/ranks.py": "the trainer, which is ours, on nodes of a Ray cluster that its user names",
    "commands/train.py": "the trainer, which is ours, in an interpreter that its user names",
}
"""File -> why a process may be started there beside the entry."""
UNCONFINED = {
    "hostclient.py": "the host: our own code in our own interpreter",
    "agents/backbones/transformers.py": "a language model that its user has configured: it "
    "downloads weights",
}
"""Who may call process.start without saying what the child may touch."""


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def where(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def starts(tree: ast.AST) -> list[str]:
    """Every name of a function that starts a process which is used, however it was imported."""
    modules, functions = {}, {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                modules[alias.asname or alias.name] = alias.name
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                functions[alias.asname or alias.name] = (node.module, alias.name)
    found = [f"{m}.{name}" for m, name in functions.values() if name in STARTS.get(m, ())]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            owner = modules.get(ast.unparse(node.value), "")
            if node.attr in STARTS.get(owner, ()):
                found.append(f"{owner}.{node.attr}")
    return found


@pytest.mark.parametrize(
    "text",
    [
        "import subprocess\nsubprocess.run(['x'])",
        "import subprocess as s\ns.Popen(['x'])",
        "from subprocess import run\nrun(['x'])",
        "import asyncio\nstart = asyncio.create_subprocess_exec",
        "import os\nos.fork()",
        "from os import execv as become",
        "import concurrent.futures\nconcurrent.futures.ProcessPoolExecutor()",
        "from multiprocessing import get_context",
    ],
)
def test_a_start_is_found_however_it_is_written(text: str) -> None:
    assert starts(ast.parse(text))


def test_processes_are_started_by_the_entry_and_where_a_reason_is_given() -> None:
    found = {where(path): starts(parsing.parse(path.read_text())) for path in modules()}
    using = {file for file, names in found.items() if names}
    assert using - ALLOWED.keys() == set(), "start it by confinement/entry.py, or say here why not"
    assert ALLOWED.keys() - using == set(), "these start nothing any more"


def test_whoever_starts_a_child_of_ours_says_what_it_may_touch() -> None:
    bare = set()
    for path in modules():
        for node in ast.walk(parsing.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("process.start", "start"):
                given = {keyword.arg for keyword in node.keywords}
                if "python" in given and "confinement" not in given:
                    bare.add(where(path))
    assert bare == UNCONFINED.keys()
