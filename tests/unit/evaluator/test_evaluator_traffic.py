"""Bytes that a program cannot do without, counted by hand."""

import pytest

torch = pytest.importorskip("torch")

from kernel_lsp.evaluator.judging import traffic  # noqa: E402
from kernel_lsp.evaluator.judging.oracle import Reference  # noqa: E402
from kernel_lsp.records import Program, TargetKind, Workload, WorkloadOrigin  # noqa: E402

pytestmark = pytest.mark.torch
SOURCE = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(10, 4) + 1)

    def forward(self, x):
        return {body}

def get_inputs():
    return [{given}]
"""


def needed(body: str, given: str = "torch.rand(6, 4) + 1") -> dict[str, int] | None:
    program = Program(
        source=SOURCE.format(body=body, given=given), entry="Model", kind=TargetKind.MODULE
    )
    reference = Reference(program, Workload(name="w", origin=WorkloadOrigin.GET_INPUTS), "cpu")
    trial = {
        "arguments": reference.arguments(3),
        "state": reference.own_state,
        "noise_seed": 5,
        **reference.behavior(""),
        "label": "as_given",
        "draw": torch.Generator().manual_seed(1),
    }
    return traffic.needed_bytes(reference, trial)


@pytest.mark.parametrize(
    ("body", "read", "written"),
    [
        ("x * 2", 6 * 4 * 4, 6 * 4 * 4),
        ("x @ self.weight.T", (6 * 4 + 10 * 4) * 4, 6 * 10 * 4),
        ("(x * 2)[:, 0]", 6 * 4, 6 * 4),
        ("torch.relu(x - 100)", 0, 6 * 4 * 4),
        ("torch.softmax(x, -1).sum()", 0, 4),
        ("x + (self.weight - self.weight).sum()", 6 * 4 * 4, 6 * 4 * 4),
    ],
)
def test_only_what_the_result_depends_on_counts(body: str, read: int, written: int) -> None:
    found = needed(body)
    assert found is not None and found["written"] == written
    # The rows of a softmax sum to 1 up to rounding: their derivatives are rounding errors of one
    # another.
    assert found["read"] == read or "softmax" in body


def test_rows_of_a_table_that_are_not_looked_up_need_not_be_read() -> None:
    found = needed("torch.nn.functional.embedding(x, self.weight)", "torch.tensor([1, 1, 3])")
    assert found == {"read": 2 * 4 * 4, "written": 3 * 4 * 4}


def test_a_program_that_cannot_be_differentiated_is_unknown_and_keeps_its_oracle() -> None:
    source = SOURCE.format(body="torch.no_grad()(lambda: x * 2)()", given="torch.rand(3)")
    program = Program(source=source, entry="Model", kind=TargetKind.MODULE)
    reference = Reference(program, Workload(name="w", origin=WorkloadOrigin.GET_INPUTS), "cpu")
    trial = {
        "arguments": reference.arguments(3), "state": reference.own_state, "noise_seed": 5,
        "label": "given",
        "draw": torch.Generator().manual_seed(1),
    }  # fmt: skip
    found = traffic.needed_bytes(reference, trial)
    assert found is None or found["read"] == 0
    assert reference.oracle_note == "" and reference.grad is False
