"""How torch.compile builds a baseline on a CPU: several C++ compilers at a time, and what all its
kernels begin with compiled once for a machine.

Both change parts of torch that are its own for the length of a block; where a torch has them not,
it compiles as it always does. The code that is generated is the same. What a candidate compiles is
compiled as before."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MAX_COMPILERS = 4
HEADERS = "headers"
"""Folder of compiled headers in the process's own scratch folder, where it starts."""


@contextmanager
def side_by_side(device: str) -> Iterator[None]:
    """Lets torch.compile use several C++ compilers at a time within the block, on a CPU: five
    kernels of a small block took 14 s one after another and 9.5 s by two on two cores. Compilers
    and the threads that wait for them are gone afterwards, also where time was over (so this goes
    around the time box, which would interrupt it)."""
    processors = min(len(os.sched_getaffinity(0)), MAX_COMPILERS)
    if device != "cpu" or processors < 2:
        yield
        return
    config: Any = importlib.import_module("torch._inductor.config")
    pool = importlib.import_module("torch._inductor.async_compile").AsyncCompile.pool
    if not hasattr(pool, "cache_clear"):  # another torch than those that were looked at
        yield
        return
    before, config.compile_threads = config.compile_threads, processors
    pool.cache_clear()
    try:
        yield
    finally:
        if pool.cache_info().currsize:
            pool().shutdown(cancel_futures=True)
            pool.cache_clear()
        config.compile_threads = before


@contextmanager
def common_header(device: str, wanted: bool) -> Iterator[list[Path]]:
    """The headers that were compiled inside the block, because they were not there.

    On a CPU a compiler takes 3.6 s of CPU time for one kernel, 2.8 of them for the header that all
    kernels begin with. To compile the header takes 6 s and 150 MB, to see that it is still the
    right one 0.7 s. ``wanted``: whether that pays; kernels have the same names in torch's cache
    either way."""
    made: list[Path] = []
    names = ("_precompile_header", "_HEADER_DIR", "_HEADER_LOCK_DIR")
    code: Any = importlib.import_module("torch._inductor.codecache")
    config: Any = importlib.import_module("torch._inductor.config")
    if device != "cpu" or not all(hasattr(code, name) for name in names):  # before torch 2.8
        yield made
        return
    folder, compile_header = Path(HEADERS).absolute(), code._precompile_header

    def header(*command: Any, **options: Any) -> str:
        """Where it lies beside what was compiled of it; "": each compiler reads it."""
        if not wanted:
            return ""
        known = _compiled(folder)
        try:
            path = Path(compile_header(*command, **options))
        except Exception:  # it only saves time: kernels are compiled without it
            return ""
        if new := _compiled(folder) - known:
            made.extend(new)
            for old in known:  # of another compiler or torch
                old.unlink(missing_ok=True)
        return str(path)

    before = [getattr(code, name) for name in names]
    values = (header, str(folder), str(folder / "locks"))
    try:
        for name, value in zip(names, values, strict=True):
            setattr(code, name, value)
        with config.patch(cpp_cache_precompile_headers=True):
            yield made
    finally:
        for name, value in zip(names, before, strict=True):
            setattr(code, name, value)


def _compiled(folder: Path) -> set[Path]:
    return {path for path in folder.glob("*.[gp]ch") if path.is_file()}
