"""Static guards: what the candidate's source says it will do. Standard library only.

Covers, by AST: leaving the process, walking frames or the heap, starting programs and threads,
network and files, eval/exec/ctypes and assembled attribute names, patching torch, clocks or
TF32 switches, naming the judge's own packages. Does not cover: native code, names that are
computed, imports hidden in data. It is triage: what passes here is still watched at run time,
and values and clock are judged in other processes.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from kernel_lsp import parsing

FORBIDDEN_IMPORTS = {
    "inspect": "walks the call stack", "gc": "searches the heap", "ctypes": "changes memory directly",
    "cffi": "changes memory directly", "subprocess": "starts programs", "multiprocessing": "starts processes",
    "threading": "starts threads", "_thread": "starts threads", "concurrent": "starts threads or processes",
    "asyncio": "starts threads or processes", "socket": "uses the network", "urllib": "uses the network",
    "http": "uses the network", "requests": "uses the network", "signal": "changes signal handlers",
    "faulthandler": "changes signal handlers", "mmap": "shares memory", "shutil": "touches files",
    "pathlib": "touches files", "tempfile": "touches files", "pickle": "runs code from data",
    "marshal": "runs code from data", "importlib": "loads code", "runpy": "loads code",
    "kernel_lsp": "reaches into the judge", "linecache": "reads source",
    "traceback": "walks the call stack", "unittest": "replaces functions",
}  # fmt: skip
FORBIDDEN_CALLS = {
    "eval": "runs code from data", "exec": "runs code from data", "compile": "runs code from data",
    "__import__": "loads code", "open": "touches files", "globals": "reaches into namespaces",
    "breakpoint": "stops the process", "exit": "leaves the process", "quit": "leaves the process",
}  # fmt: skip
FORBIDDEN_ATTRIBUTES = {
    "sys": {"exit", "_getframe", "_current_frames", "settrace", "setprofile", "modules", "stdout", "stderr"},
    "os": {"_exit", "fork", "kill", "killpg", "system", "popen", "execv", "environ", "putenv", "dup2", "open",
           "write", "read", "remove", "getppid", "posix_spawn", "sched_setaffinity", "nice"},
    "time": {"sleep"},
    "torch": {"set_num_threads", "set_default_dtype", "set_float32_matmul_precision", "load", "save",
              "use_deterministic_algorithms", "set_grad_enabled", "set_flush_denormal", "set_default_device"},
}  # fmt: skip
HIDDEN_ATTRIBUTES = {
    "f_back",
    "f_locals",
    "f_globals",
    "gi_frame",
    "tb_frame",
    "cr_frame",
    "__subclasses__",
    "__globals__",
    "__builtins__",
}
PATCHED_ROOTS = {"torch", "F", "nn", "time", "triton", "tl", "sys", "os", "builtins"}
SWITCHES = {
    "allow_tf32",
    "fp32_precision",
    "benchmark",
    "deterministic",
    "allow_fp16_reduced_precision_reduction",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Suspicion:
    """One thing that a candidate has no business doing."""

    line: int
    what: str


def scan(source: str) -> list[Suspicion]:
    """Suspicions in line order; a source that does not parse has none (loading it will say why)."""
    try:
        tree = parsing.parse(source)
    except (SyntaxError, ValueError):
        return []
    found = [
        Suspicion(line=getattr(node, "lineno", 0), what=what)
        for node in ast.walk(tree)
        for what in _suspect(node)
    ]
    return sorted(found, key=lambda item: item.line)


def _suspect(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [_imported(alias.name) for alias in node.names if _imported(alias.name)]
    if isinstance(node, ast.ImportFrom):
        module = node.module or ""
        return [w for w in (_imported(module), *(_member(module, a.name) for a in node.names)) if w]
    if isinstance(node, ast.Call):
        return _called(node)
    if isinstance(node, ast.Attribute):
        return _attribute(node)
    if isinstance(node, (ast.Assign, ast.AugAssign, ast.Delete)):
        return _assigned(node)
    return []


def _imported(module: str) -> str:
    root = module.split(".")[0]
    return f"imports {root}, which {FORBIDDEN_IMPORTS[root]}" if root in FORBIDDEN_IMPORTS else ""


def _member(module: str, name: str) -> str:
    return f"uses {module}.{name}" if name in FORBIDDEN_ATTRIBUTES.get(module, ()) else ""


def _called(node: ast.Call) -> list[str]:
    name = node.func.id if isinstance(node.func, ast.Name) else ""
    if name in FORBIDDEN_CALLS:
        return [f"calls {name}(), which {FORBIDDEN_CALLS[name]}"]
    if name in ("setattr", "delattr") and node.args and _root(node.args[0]) in PATCHED_ROOTS:
        return [f"replaces attributes of {_root(node.args[0])}"]
    literal = len(node.args) > 1 and isinstance(node.args[1], ast.Constant)
    if name == "getattr" and len(node.args) > 1 and not literal and _root(node.args[0]) in PATCHED_ROOTS:
        return [f"looks up an assembled name in {_root(node.args[0])}"]
    return []


def _attribute(node: ast.Attribute) -> list[str]:
    if isinstance(node.value, ast.Name) and node.attr in FORBIDDEN_ATTRIBUTES.get(node.value.id, ()):
        return [f"uses {node.value.id}.{node.attr}"]
    return [f"uses {node.attr}, which walks frames or namespaces"] if node.attr in HIDDEN_ATTRIBUTES else []


def _assigned(node: ast.Assign | ast.AugAssign | ast.Delete) -> list[str]:
    targets = [node.target] if isinstance(node, ast.AugAssign) else node.targets
    found = []
    for target in targets:
        if isinstance(target, ast.Attribute) and _root(target) in PATCHED_ROOTS:
            kind = "switches" if target.attr in SWITCHES else "replaces"
            found.append(f"{kind} {ast.unparse(target)}")
    return found


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
