"""What is told of a Triton kernel's launch, and the question that a policy is asked about two
states."""

from __future__ import annotations

from pathlib import Path

from kernel_lsp.agents.prompt_encoding.launching import LaunchQuestion
from kernel_lsp.records import Step
from kernel_lsp.rewrite.engine import open_session
from kernel_lsp.skillbook import built_in_folder, load
from trainer.tasks import task_suites

SOURCE = """
import torch
import triton
import triton.language as tl


@triton.jit
def kernel(x_ptr, out_ptr, rows, columns, R: tl.constexpr, C: tl.constexpr):
    column = tl.program_id(0) * C + tl.arange(0, C)
    acc = tl.zeros((R, C), dtype=tl.float32)
    for start in range(0, rows, R):
        row = start + tl.arange(0, R)
        mask = (row[:, None] < rows) & (column[None, :] < columns)
        acc += tl.load(x_ptr + row[:, None] * columns + column[None, :], mask=mask, other=0.0)
    for start in range(0, rows, R):
        row = start + tl.arange(0, R)
    tl.store(out_ptr + column, tl.sum(acc, axis=0), mask=column < columns)


# kernel-lsp: workload x=f32[4096,256]
def launch(x):
    rows, columns = x.shape
    out = torch.empty(columns, device=x.device)
    kernel[(triton.cdiv(columns, 16),)](x, out, rows, columns, R=64, C=16, num_warps=8)
    return out
"""


def session(tmp_path: Path):
    path = tmp_path / "one.py"
    path.write_text(SOURCE)
    (task,) = task_suites.load(tmp_path).tasks
    skills = [skill for skill in load([built_in_folder()]).skills if skill.executable]
    return open_session(task.program, task.workload, "cuda", skills)


def test_a_launch_is_told_by_what_decides_its_time(tmp_path: Path) -> None:
    told = session(tmp_path).launched([])
    assert [form.shape for form in told.tensors] == [(4096, 256), (256,)]
    assert told.constants == {"R": 64, "C": 16} and told.options == {"num_warps": 8}
    assert told.programs == 16
    assert told.loaded == 64 * 16  # the rows of two loops are one range
    assert (told.held, told.consecutive, told.masked, told.evicting, told.ahead) == (
        1024,
        16,
        2,
        0,
        1,
    )
    assert [one for one in told.operations if one in ("loop", ".", "load", "sum", "store")] == [
        *("loop", "load", ".", "loop", ".", "sum", "store")
    ]


def test_steps_change_what_is_told_and_the_question_says_how(tmp_path: Path) -> None:
    one = session(tmp_path)
    site = next(site for site in one.capture().sites if site.skill == "triton-launch-options")
    after = one.launched([Step(skill=site.skill, site=site.site, parameters={"num_warps": 2})])
    assert after.options["num_warps"] == 2
    question = LaunchQuestion(before=one.launched([]), after=after, capability="sm_90")
    words = " ".join(question.words)
    assert words.startswith("start on-cuda sm i9 given float32 p12 p8 , float32 p8 , operations")
    assert "warps i8" in words and "warps i2" in words
    # a quarter of the warps, four times the elements of each thread
    assert words.endswith("got g0 g-16 g0 g16 g0")
    assert len(question.tokens) == len(question.words)
