"""Compile recorded Triton kernels for GPUs that are not here: registers, spills, shared memory.

A child process of its own, because TRITON_INTERPRET must not be set and because it imports the
candidate. Does not run anything, so it proves that a kernel compiles and says nothing about speed.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import re
import subprocess
import warnings
from pathlib import Path
from typing import Any

from kernel_lsp import parsing, wire
from kernel_lsp.evaluator import programs

CAPABILITIES = (80, 90)
LIBRARIES = ("triton", "torch", "math", "__future__")
"""What kernels import."""
USED = re.compile(r"Used (\d+) registers")
SPILLED = re.compile(r"(?<!\d)(\d+) bytes spill stores, (\d+) bytes spill loads")


def compile_all(
    source: str, kernels: list[dict[str, Any]], *, alone: bool = False
) -> list[dict[str, Any]]:
    """One entry per kernel and architecture; raises what Triton raises on a kernel that is wrong.

    ``alone``: of the source only what kernels are made of is run, because it lives in a package.
    """
    module = programs.load(kernels_in(source) if alone else source)
    return [
        _compile(_find(module, kernel["name"]), kernel, capability)
        for kernel in kernels
        for capability in CAPABILITIES
    ]


def kernels_in(source: str) -> str:
    """Kernels, what they may be decorated with, and constants; every line where it was."""
    lines, tree = source.split("\n"), parsing.parse(source)
    kept = [node for node in tree.body if _belongs_to_kernels(node)]
    first = [
        min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
        for node in kept
    ]
    shown = {
        number
        for node, begin in zip(kept, first, strict=True)
        for number in range(begin, (node.end_lineno or node.lineno) + 1)
    }
    return "\n".join(line if number in shown else "" for number, line in enumerate(lines, 1))


def _belongs_to_kernels(node: ast.stmt) -> bool:
    if isinstance(node, ast.Import):
        return all(alias.name.partition(".")[0] in LIBRARIES for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        return node.level == 0 and (node.module or "").partition(".")[0] in LIBRARIES
    if isinstance(node, ast.FunctionDef):
        return any(
            word in ast.unparse(d) for d in node.decorator_list for word in ("jit", "triton")
        )
    if isinstance(node, ast.Assign):
        return isinstance(node.value, ast.Constant) or "constexpr(" in ast.unparse(node.value)
    return False


def _find(module: Any, qualname: str) -> Any:
    """The jit function itself, without autotuners and heuristics around it."""
    found: Any = module
    for part in qualname.split("."):
        found = getattr(found, part)
    while not hasattr(found, "arg_names") or hasattr(found, "configs") or hasattr(found, "values"):
        found = found.fn
    return found


def _compile(function: Any, kernel: dict[str, Any], capability: int) -> dict[str, Any]:
    import triton
    from triton.backends.compiler import GPUTarget

    compiled = triton.compile(
        _source(function, kernel["arguments"]),
        target=GPUTarget("cuda", capability, 32),
        options=kernel["options"],
    )
    registers, spills = _resources(compiled.asm["ptx"])
    return {
        "name": kernel["name"],
        "arch": f"sm_{capability}",
        "registers": registers,
        "spill_bytes": spills,
        "shared_bytes": getattr(compiled.metadata, "shared", None),
    }


def _source(function: Any, arguments: dict[str, dict[str, Any]]) -> Any:
    """Triton's description of a specialization; its parameter names changed after 3.2."""
    from triton.compiler import ASTSource

    constants = {name: _constant(a) for name, a in arguments.items() if a["type"] == "constexpr"}
    signature = {name: a["type"] for name, a in arguments.items()}
    if "constexprs" not in inspect.signature(ASTSource.__init__).parameters:
        signature = {name: kind for name, kind in signature.items() if kind != "constexpr"}
        return ASTSource(function, signature, constants=constants)
    order = list(arguments)
    aligned = {
        (order.index(name),): [["tt.divisibility", 16]]
        for name, a in arguments.items()
        if a.get("aligned")
    }
    return ASTSource(function, signature, constexprs=constants, attrs=aligned)


def _constant(argument: dict[str, Any]) -> Any:
    if "dtype" not in argument:
        return argument["constant"]
    import triton.language as tl

    return getattr(
        tl, {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}[argument["dtype"]]
    )


def _resources(ptx: str) -> tuple[int | None, int | None]:
    """(registers, spilled bytes) as ptxas reports them; None where it cannot be asked."""
    import triton

    target = re.search(r"\.target (\w+)", ptx)
    if target is None:
        return None, None
    Path("kernel.ptx").write_text(ptx)
    # Triton brings two assemblers; only one of them may know this version of PTX.
    for ptxas in sorted(
        (Path(triton.__file__).parent / "backends" / "nvidia" / "bin").glob("ptxas*")
    ):
        command = [str(ptxas), "-v", f"--gpu-name={target[1]}", "kernel.ptx", "-o", "kernel.cubin"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        used, spilled = USED.search(done.stderr), SPILLED.search(done.stderr)
        if used:
            return int(used[1]), (int(spilled[1]) if spilled else None)
    return None, None


def main() -> None:
    """Answers each frame of stdin, kernels and a device, with what compiling them has come to."""
    requests, replies = wire.claim_stdio()
    warnings.simplefilter("ignore")
    while (request := wire.read_frame(requests)) is not None:
        message = request[0]
        try:
            reply: dict[str, Any] = {
                "kernels": compile_all(
                    message["source"], message["kernels"], alone=message["alone"]
                )
            }
        except Exception as error:  # Triton raises many kinds; each means: does not compile
            text = (
                f"a kernel does not compile: {type(error).__name__}: "
                f"{' '.join(str(error).split())[:500]}"
            )
            reply = {"error": text, "kind": "compile_error"}
        with contextlib.suppress(BrokenPipeError):
            wire.write_frame(replies, reply)


if __name__ == "__main__":
    main()
