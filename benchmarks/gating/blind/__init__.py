"""Candidates that were written by hand before they were judged, by somebody who had read the judge:
wrong ones, each wrong in one thing, and honest ones in unusual styles. Texts only, no torch.

A case is the body of `ModelNew`, which derives from a copy of its reference's class. What the
wrong ones have wrong is in their names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.gating.blind.honest import HONEST
from benchmarks.gating.blind.programs import HEAD, PROGRAMS
from benchmarks.gating.blind.wrong import WRONG

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
    """All, the wrong ones first."""
    for is_wrong, texts in ((True, WRONG), (False, HONEST)):
        for name, types, body in texts:
            for letter in types:
                yield _case(name, DTYPES[letter], body, is_wrong)


def _case(name: str, dtype: str, body: str, is_wrong: bool) -> BlindCase:
    program, inputs = PROGRAMS[name.partition(":")[0]]
    head = HEAD.replace("DTYPE", f"torch.{dtype}")
    ends = ENDS.format(inputs=inputs)
    original = program.replace("class Model(", "class Original(")
    functions, _, rest = body.rpartition("----\n")
    made = "\n".join(f"    {line}" if line else "" for line in rest.strip().split("\n"))
    candidate = f"{head}{original}\n{functions}\nclass ModelNew(Original):\n{made}\n"
    return BlindCase(
        key=f"{'wrong' if is_wrong else 'honest'}/{name}/{dtype}",
        is_wrong=is_wrong,
        dtype=dtype,
        reference=f"{head}{program}{ends}",
        candidate=candidate,
    )
