"""Static guard: imports, names and calls that a rewrite of tensor code has no business with.

Covers: leaving the process, walking frames or the heap, starting programs, processes and threads,
network and files, running code from data, native libraries, reseeding or rewinding the random
stream, overriding operations, hooks on every module, process-wide settings, naming the judge's own
packages; under other names, too (names.py). Does not cover: names that are put together at run
time (watch/ sees what they do)."""

from __future__ import annotations

import ast

from kernel_lsp.evaluator.guards.names import ModuleNames

IMPORTS = {
    "inspect": "walks the call stack", "gc": "searches the heap",
    "ctypes": "changes memory directly",
    "cffi": "changes memory directly", "subprocess": "starts programs",
    "multiprocessing": "starts processes",
    "threading": "starts threads", "_thread": "starts threads",
    "concurrent": "starts threads or processes",
    "asyncio": "starts threads or processes", "socket": "uses the network",
    "urllib": "uses the network",
    "http": "uses the network", "requests": "uses the network", "signal": "changes signal handlers",
    "faulthandler": "changes signal handlers", "mmap": "shares memory", "shutil": "touches files",
    "pathlib": "touches files", "tempfile": "touches files", "pickle": "runs code from data",
    "marshal": "runs code from data", "importlib": "loads code", "runpy": "loads code",
    "kernel_lsp": "reaches into the judge", "linecache": "reads source",
    "atexit": "leaves work for later",
    "traceback": "walks the call stack", "unittest": "replaces functions", "pty": "starts programs",
    "resource": "changes the limits of its process", "fcntl": "controls descriptors",
    "builtins": "reaches into namespaces", "code": "runs code from data",
    "sqlite3": "touches files",
}  # fmt: skip
BUILTINS = {
    "eval": "runs code from data", "exec": "runs code from data", "compile": "runs code from data",
    "__import__": "loads code", "open": "touches files", "globals": "reaches into namespaces",
    "breakpoint": "stops the process", "exit": "leaves the process", "quit": "leaves the process",
}  # fmt: skip
NEVER_NAMED = {"eval", "exec", "__import__", "__builtins__"}
"""Builtins that are suspicious without being called: under another name they would be."""
_SEEDS = "reads or sets the random stream"
DOTTED = {
    "torch.multiprocessing": "starts processes", "torch.utils.cpp_extension": "builds native code",
    "torch.hub": "loads code", "torch.package": "loads code",
    "torch.distributed": "starts processes",
    "torch.ops.load_library": "loads native code",
    "torch.classes.load_library": "loads native code",
    "torch.jit.fork": "works on another thread", "torch.jit._fork": "works on another thread",
    "torch.futures": "works on another thread", "torch.from_file": "touches files",
    "torch.load": "touches files", "torch.save": "touches files", "torch.jit.load": "touches files",
    "torch.jit.save": "touches files", "torch.UntypedStorage.from_file": "touches files",
    "torch.manual_seed": _SEEDS, "torch.seed": _SEEDS, "torch.initial_seed": _SEEDS,
    "torch.get_rng_state": _SEEDS, "torch.set_rng_state": _SEEDS, "torch.random": _SEEDS,
    "torch.cuda.manual_seed": _SEEDS, "torch.cuda.manual_seed_all": _SEEDS,
    "torch.cuda.seed": _SEEDS,
    "torch.cuda.get_rng_state": _SEEDS, "torch.cuda.set_rng_state": _SEEDS,
    "torch.cuda.random": _SEEDS,
    "torch.default_generator": _SEEDS,
    "numpy.load": "touches files", "numpy.save": "touches files", "numpy.savez": "touches files",
    "numpy.memmap": "touches files", "numpy.fromfile": "touches files",
    "numpy.loadtxt": "touches files",
    "numpy.savetxt": "touches files", "numpy.ctypeslib": "changes memory directly",
    "torch.nn.modules.module": "reaches what all modules share",
    "torch.cuda.memory.change_current_allocator": "replaces the allocator",
    "torch.cuda.set_per_process_memory_fraction": "changes the limits of its process",
    **{f"torch.{name}": "reaches modules of the system through torch"
       for name in ("os", "sys", "ctypes", "inspect", "threading", "importlib", "builtins")},
}  # fmt: skip
"""A dotted name, or anything below it, and what it does."""
SETTINGS = {
    "sys": {"exit", "_getframe", "_current_frames", "settrace", "setprofile", "modules",
            "stdout", "stderr", "meta_path", "path_hooks", "addaudithook", "setrecursionlimit",
            "setswitchinterval"},
    "os": {"_exit", "fork", "kill", "killpg", "system", "popen", "execv", "environ", "putenv",
           "dup2", "open", "write", "read", "remove", "getppid", "posix_spawn",
           "sched_setaffinity", "nice", "abort", "chdir", "close", "closerange", "dup",
           "forkpty", "listdir", "makedirs", "mkdir", "pipe", "rename", "scandir", "setpriority",
           "setsid", "unlink", "umask", "walk", "execve", "execvp", "spawnv"},
    "time": {"sleep"},
    "torch": {"set_num_threads", "set_num_interop_threads", "set_default_dtype",
              "set_default_device", "set_default_tensor_type", "set_float32_matmul_precision",
              "use_deterministic_algorithms", "set_grad_enabled", "set_flush_denormal",
              "set_anomaly_enabled"},
}  # fmt: skip
HIDDEN = {
    "f_back", "f_locals", "f_globals", "gi_frame", "tb_frame", "cr_frame", "ag_frame",
    "__subclasses__",
    "__globals__", "__builtins__", "__code__", "__closure__", "__defaults__", "__kwdefaults__",
}  # fmt: skip


def suspect(node: ast.AST, names: ModuleNames) -> list[str]:
    """What is wrong with one node, in words that follow `the candidate line N`."""
    if isinstance(node, ast.Import):
        return [word for alias in node.names for word in _check_imports(alias.name)]
    if isinstance(node, ast.ImportFrom):
        module = node.module or ""
        return [
            *_check_imports(module),
            *(w for a in node.names for w in _check_names(f"{module}.{a.name}")),
        ]
    if isinstance(node, ast.Call):
        return _check_calls(node, names)
    if isinstance(node, ast.Attribute):
        hidden = (
            [f"uses {node.attr}, which walks frames or namespaces"] if node.attr in HIDDEN else []
        )
        return hidden or _check_names(names.dotted(node))
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        return [f"names {node.id}"] if node.id in NEVER_NAMED else _check_aliases(node, names)
    return []


def _check_imports(module: str) -> list[str]:
    root = module.split(".")[0]
    return [f"imports {root}, which {IMPORTS[root]}"] if root in IMPORTS else _check_names(module)


def _check_names(dotted: str) -> list[str]:
    """Only the shortest forbidden prefix counts, so that a chain of attributes is named once."""
    module, _, name = dotted.rpartition(".")
    if name in SETTINGS.get(module, ()) or (module == "torch._C" and name.startswith("_set")):
        return [f"uses {dotted}"]
    return [f"uses {dotted}, which {DOTTED[dotted]}"] if dotted in DOTTED else []


def _check_aliases(node: ast.Name, names: ModuleNames) -> list[str]:
    """A bare name that stands for something forbidden."""
    dotted = names.dotted(node)
    return _check_names(dotted) if dotted != node.id else []


def _check_calls(node: ast.Call, names: ModuleNames) -> list[str]:
    name = node.func.id if isinstance(node.func, ast.Name) else ""
    if name in BUILTINS:
        return [f"calls {name}(), which {BUILTINS[name]}"]
    literal = len(node.args) > 1 and isinstance(node.args[1], ast.Constant)
    if name == "getattr" and len(node.args) > 1 and not literal and names.foreign(node.args[0]):
        return [f"looks up an assembled name in {ast.unparse(node.args[0])}"]
    if names.dotted(node.func) in ("torch.library.Library", "torch.library.impl") and node.args:
        about = node.args[0].value if isinstance(node.args[0], ast.Constant) else ""
        if str(about).split("::")[0] in ("aten", "prims", ""):
            return ["overrides operations of torch"]
    return []
