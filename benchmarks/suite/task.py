"""One task of the suite: a row of a table, and the file it becomes."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

TEMPLATE = '''"""{doc}{family}"""

import torch
{imports}

class Model(nn.Module):
    def __init__({signature}):
        super().__init__()
{init}

    def forward(self, {arguments}):
{forward}


def get_inputs():
    return [{inputs}]


def get_init_inputs():
    return [{values}]
'''


@dataclass(frozen=True, kw_only=True, slots=True)
class SuiteTask:
    """``inputs`` maps argument names to expressions; ``init`` maps constructor arguments to literals."""

    name: str
    """File name without the suffix, unique in its group."""
    doc: str
    """One sentence. A near miss says what tempting rewrite would be wrong."""
    forward: str
    """Body of forward(); a single expression is returned."""
    inputs: dict[str, str]
    setup: str = "pass"
    """Body of __init__ after super().__init__()."""
    init: dict[str, str] | None = None
    helpers: str = ""
    """Classes and functions before Model."""
    family: str = ""
    """What the operators are, for the table of results by family."""


def source(task: SuiteTask) -> str:
    """The text of the task's file."""
    body = task.forward.strip("\n")
    lines = body if "\n" in body or body.startswith("return ") else f"return {body}"
    init = task.init or {}
    uses_functional = "F." in task.forward + task.helpers + task.setup
    head = "import torch.nn as nn" + (
        "\nimport torch.nn.functional as F" if uses_functional else ""
    )
    helpers = f"\n\n{textwrap.dedent(task.helpers).strip()}\n" if task.helpers else ""
    return TEMPLATE.format(
        doc=task.doc,
        family=f"\n\nFamily: {task.family}.\n" if task.family else "",
        imports=head + "\n" + helpers,
        signature=", ".join(["self", *init]),
        init=textwrap.indent(textwrap.dedent(task.setup).strip(), " " * 8),
        arguments=", ".join(task.inputs),
        forward=textwrap.indent(textwrap.dedent(lines), " " * 8),
        inputs=", ".join(task.inputs.values()),
        values=", ".join(init.values()),
    )
