"""Whose code a file is, and at which line of a program something happened."""

from __future__ import annotations

import contextlib
import linecache
import os
from pathlib import Path
from types import FrameType

import torch

TORCH = str(Path(torch.__file__).parent)
OURS = f"{Path(__file__).parents[2]}{os.sep}"
STANDARD_LIBRARY = str(Path(contextlib.__file__).parent)


def is_program(filename: str) -> bool:
    """Whether a file is the program's own or an installed package's."""
    if filename.startswith("<kernel-lsp"):
        return True
    installed = "site-packages" in filename or "dist-packages" in filename
    if installed and "/triton/" in filename:  # as torch's own
        return False
    if filename.startswith(STANDARD_LIBRARY) and not installed:
        return False
    return not filename.startswith((TORCH, OURS, "<"))


def program_line(frame: FrameType | None) -> str:
    """The program's line that is at work in this frame or around it; empty: there is none."""
    while frame is not None and not is_program(frame.f_code.co_filename):
        frame = frame.f_back
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip() if frame else ""
