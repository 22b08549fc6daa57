"""Candidates that were written by hand before they were judged: wrong ones, each wrong in one
thing, and honest ones in unusual styles. Texts only, no torch.

A case is the body of `ModelNew`, which derives from a copy of its reference's class. What the
wrong ones have wrong is in their names. The sets differ in who wrote them; what the gate made of
each at the first reading is worth more than what it makes of it now."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from textwrap import indent

from benchmarks.gating.blind import first, second
from benchmarks.gating.blind.writing import lines

SETS = (first, second)
HEAD = """\
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

DT = torch.{dtype}


"""
ENDS = """

def get_inputs():
    return [{inputs}]


def get_init_inputs():
    return []
"""
DTYPES = {"b": "bfloat16", "h": "float16", "f": "float32"}


@dataclass(frozen=True, kw_only=True, slots=True)
class BlindCase:
    """One candidate in one type."""

    key: str
    is_wrong: bool
    dtype: str
    reference: str
    candidate: str


def cases() -> Iterator[BlindCase]:
    """All, the wrong ones of each set first."""
    for texts in SETS:
        for is_wrong, written in ((True, texts.WRONG), (False, texts.HONEST)):
            for name, types, body in written:
                program, inputs = texts.PROGRAMS[name.partition(":")[0]]
                for letter in types:
                    yield _case(name, DTYPES[letter], program, inputs, body, is_wrong)


def _case(name: str, dtype: str, program: str, inputs: str, body: str, is_wrong: bool) -> BlindCase:
    head, reference = HEAD.format(dtype=dtype), lines(program)
    original = reference.replace("class Model(", "class Original(")
    functions, _, methods = body.rpartition("----\n")
    made = indent(lines(methods), "    ")
    candidate = f"{head}{original}\n\n\n{lines(functions)}\n\n\nclass ModelNew(Original):\n{made}\n"
    return BlindCase(
        key=f"{'wrong' if is_wrong else 'honest'}/{name}/{dtype}",
        is_wrong=is_wrong,
        dtype=dtype,
        reference=f"{head}{reference}\n{ENDS.format(inputs=inputs)}",
        candidate=candidate,
    )
