"""The builder: compiles a candidate's C++ and CUDA sources, confined. It loads nothing of them.

One request: build, answered by the library's bytes (kept in the folder native/), or by what the
compiler said. Not covered: how
long a compiler takes and how much it writes (the parent's limits)."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

from kernel_lsp import wire
from kernel_lsp.records import Json

MAX_SHOWN = 900
"""Characters of the compiler's errors."""


def build(extension: Json, folder: Path) -> bytes:
    """The library that the extension's sources are compiled to, as bytes. Raises what torch raises
    where it does not compile."""
    from torch.utils import cpp_extension

    # It is built here and imported by those who run the candidate.
    cpp_extension._import_module_from_library = lambda *arguments: None
    folder.mkdir()
    cpp_extension.load_inline(**extension, build_directory=str(folder), verbose=False)
    (library,) = folder.glob("*.so")
    return library.read_bytes()


def describe_compiler(extension: Json) -> str:
    """The first line of its version, and the release of nvcc where CUDA is built."""
    said = _first_line(os.environ.get("CXX", "c++"), "--version")
    if "cuda_sources" not in extension:
        return said
    from torch.utils.cpp_extension import CUDA_HOME

    nvcc = Path(CUDA_HOME or "/usr/local/cuda", "bin", "nvcc")
    return f"{said}; {_first_line(str(nvcc), '--version', word='release')}"


def _first_line(*command: str, word: str = "") -> str:
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        return next((line for line in done.stdout.splitlines() if word in line), "").strip()
    return "unknown"


def explain(error: BaseException) -> str:
    """The compiler's errors of a failed build, else the exception."""
    if shutil.which("ninja") is None:
        return "building needs ninja, which is not here: pip install ninja"
    lines = [line.strip() for line in str(error).splitlines()]
    named = [line for line in lines if "error" in line.lower() and not line.startswith("FAILED")]
    named = [line for line in named if "Error building extension" not in line] or lines
    return " | ".join(named)[:MAX_SHOWN]


def _answer(message: dict[str, Any], number: int) -> tuple[dict[str, Any], list[bytes]]:
    extension, place = message["extension"], Path("native", message["place"])
    try:
        if place.exists():  # of an earlier judgement
            return {"compiler": describe_compiler(extension)}, [place.read_bytes()]
        library = build(extension, Path(f"extension{number}").absolute())
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(library)
    except Exception as error:  # a compiler may fail in any way; each means: does not compile
        text = f"the extension {extension['name']} was not built: {explain(error)}"
        return {"error": text, "kind": "compile_error"}, []
    return {"compiler": describe_compiler(extension)}, [library]


def main() -> None:
    """Builds what each frame of stdin holds, until stdin ends."""
    requests, replies = wire.claim_stdio()
    warnings.simplefilter("ignore")
    # The interpreter's own programs: ninja is a package in many environments.
    own = str(Path(sys.executable).parent)
    os.environ["PATH"] = os.pathsep.join([own, os.environ.get("PATH", os.defpath)])
    number = 0
    while (request := wire.read_frame(requests)) is not None:
        reply, blobs = _answer(request[0], number)
        number += 1
        with contextlib.suppress(BrokenPipeError):
            wire.write_frame(replies, reply, blobs)


if __name__ == "__main__":
    main()
