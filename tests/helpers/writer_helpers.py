"""A writer of a few thousand random weights with three tasks, and judges that need no gate."""

import json
from dataclasses import replace
from pathlib import Path

import torch

from kernel_lsp import wire
from kernel_lsp.records import EvalStatus, Form, GraphView, Operation, OperationRole
from trainer.writer import data, helpers
from trainer.writer.judging import KnownVerdicts, WriterJudge, WriterVerdict, WrittenCase
from trainer.writer.reinforcing import ReinforcementPlan
from trainer.writer.rows import WriterRow, WrittenReply
from trainer.writer.sampling import SamplingPlan
from trainer.writer.short_form import encode_question
from trainer.writer.split import WriterPart
from trainer.writer.tokens import train_tokenizer
from trainer.writer.training import MODEL, TrainPlan, make_model

SOURCE = """import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x) * {number}


def get_inputs():
    return [torch.randn(2, 8)]
"""
PLAN = ReinforcementPlan(
    steps=3, pool=3, tasks=2, group=4, rate=5e-3, warmup=0, at_once=1, reward="right",
    sampling=SamplingPlan(temperature=1.0, top_p=1.0, new_tokens=6, places=4),
)  # fmt: skip
RIGHT = WriterVerdict(status=EvalStatus.PASSED.value, compiled=True)
WRONG = WriterVerdict(status=EvalStatus.WRONG_RESULT.value, detail="off by 2", compiled=True)


def make_task(number: int) -> WriterRow:
    form = Form(dtype="float32", shape=(2, 8))
    graph = GraphView(
        operations=(
            Operation(name="x", role=OperationRole.INPUT, op="", forms=(form,)),
            Operation(name="relu", role=OperationRole.CALL, op="relu", reads=(0,), forms=(form,)),
        )
    )
    row = WriterRow(
        name=f"t{number}", part=WriterPart.REINFORCED, family="f", source=SOURCE.format(number=number),
        graph=graph, question="", plain="", grams=(), digest=str(number), ops=("relu",),
        replies=(WrittenReply(text="def forward(self, x1):\n    return x1\n",
                              skills=(str(number),), gain=None),),
    )  # fmt: skip
    asked = encode_question(row.program, graph)
    return replace(row, question=asked, plain=asked + " ")


def write_run(folder: Path) -> None:
    """What the stages before have left."""
    rows = [make_task(number) for number in (2, 3, 4)]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / data.ROWS).write_text("".join(wire.dumps(row) + "\n" for row in rows))
    tokenizer = train_tokenizer([row.question for row in rows], 300, 512)
    torch.manual_seed(0)
    plan = TrainPlan(hidden=32, layers=1, heads=2, key_heads=1, inner=32)
    make_model(plan, tokenizer).save_pretrained(folder / MODEL)
    tokenizer.save_pretrained(folder / MODEL)
    helpers.write(folder / MODEL, {})


class VowelJudge:
    """A reply with a vowel is right."""

    def __init__(self, right: WriterVerdict = RIGHT, wrong: WriterVerdict | None = WRONG) -> None:
        self.known: dict[str, WriterVerdict] = {}
        self._right, self._wrong = right, wrong

    async def judge(self, cases, end, *, timed=False):
        for case in cases:
            verdict = self._right if set("aeiou") & set(case.reply) else self._wrong
            if verdict is not None:
                self.known[case.key] = verdict

    async def close(self):
        pass


class CountingJudge(WriterJudge):
    """Keeps its verdicts on disk like the gate's, and writes down each reply that it looks at."""

    def __init__(self, folder: Path) -> None:
        super().__init__("interpreter", 1, {}, KnownVerdicts(folder / "known.jsonl"))
        self._counts = folder / "counts.jsonl"

    def _settled(self, case: WrittenCase) -> str:
        return json.dumps([case.row.name, case.reply])

    async def _verdict(self, case: WrittenCase, text: str, timed: bool) -> WriterVerdict:
        with self._counts.open("a") as file:
            file.write(text + "\n")
        return RIGHT if set("aeiou") & set(case.reply) else WRONG
