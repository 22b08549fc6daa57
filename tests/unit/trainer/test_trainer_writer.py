"""A small writer of kernels: its form, its split, its data and its numbers."""

from __future__ import annotations

import ast
import json
import math
import re
from pathlib import Path

import pytest

from kernel_lsp import wire
from kernel_lsp.records import (
    Form,
    GraphView,
    Operation,
    OperationRole,
    Program,
    SourceEdit,
    TargetKind,
)
from trainer.tasks.families import structure
from trainer.tasks.likeness import mark
from trainer.writer import data, short_form, split
from trainer.writer.rows import WriterRow, WrittenReply, make_row
from trainer.writer.split import WriterPart

pytestmark = pytest.mark.torch

SOURCE = '''"""Said about it."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 4)

    def forward(self, x):
        """What it does."""
        return torch.relu(self.fc(x))


def get_inputs():
    return [torch.randn(2, 8)]
'''
PROGRAM = Program(source=SOURCE, entry="Model", kind=TargetKind.MODULE)
GRAPH = GraphView(
    operations=(
        Operation(name="x", role=OperationRole.INPUT, op="", forms=(Form(dtype="float32", shape=(2, 8)),)),
        Operation(name="relu", role=OperationRole.CALL, op="relu", reads=(0,), numbers=(1.5,),
                  forms=(Form(dtype="float32", shape=(2, 4)),), output=True),
    )
)  # fmt: skip
TARGET = """class Model(nn.Module):
    def _forward_eager(self, x):
        return torch.relu(self.fc(x))

    def forward(self, x):
        if not (x.is_cuda and (fc := self.fc) and (w := fc.weight).dtype == torch.float32):
            return self._forward_eager(x)
        # said by the engine
        return fused_linear(x, w)
"""
DEFINITIONS = '''@triton.jit
def _tanh(x):
    return x


@triton.jit
def _fused_linear_kernel(x_ptr):
    """One tile."""
    tl.store(x_ptr, _tanh(1.0))


def fused_linear(x, w):
    _fused_linear_kernel[(1,)](x)
    return x
'''
REPLY = """# fused-matmul
@triton.jit
def _tanh(x):
    return x
@triton.jit
def k1(x_ptr):
    tl.store(x_ptr, _tanh(1.0))
def f1(x, w):
    k1[1,](x)
    return x
def forward(self, x):
    return f1(x, self.fc.weight)
"""


def test_a_question_tells_program_graph_and_skills_without_what_is_only_said() -> None:
    told = short_form.encode_question(
        PROGRAM, GRAPH, [("fused-matmul", "Products with their tails.")]
    )
    assert "What it does" not in told and "get_inputs" not in told and "import" not in told
    assert (
        "x: input f32[2, 8]\nrelu = relu(x, 1.5) f32[2, 4] returned\n<|skills|>\nfused-matmul"
        in told
    )
    assert told.endswith("<|write|>\n")


def test_text_of_others_ends_no_part_of_a_question() -> None:
    sly = SOURCE.replace("torch.relu(self.fc(x))", "print('<|write|>')")
    told = short_form.encode_question(
        Program(source=sly, entry="Model", kind=TargetKind.MODULE), GRAPH
    )
    assert told.count("<|write|>") == 1


def test_a_further_turn_is_told_the_failed_reply_and_why() -> None:
    tried = short_form.TriedRewrite(reply="def forward(self, x): ...", heard="wrong  values")
    told = short_form.encode_question(PROGRAM, GRAPH, (), tried)
    assert "<|tried|>\ndef forward(self, x): ...\n<|heard|>\nwrong values\n<|write|>" in told


def test_a_rewrite_of_the_engine_becomes_a_reply_with_short_names_and_no_guard() -> None:
    edit = SourceEdit(qualname="Model", definitions=DEFINITIONS, target=TARGET)
    assert short_form.encode_rewrite(edit, ["fused-matmul", "fused-matmul"]) == REPLY


@pytest.mark.parametrize("broken", ["    def _forward_steps(self):\n        pass\n", ""])
def test_a_rewrite_around_the_forward_is_no_reply(broken: str) -> None:
    target = TARGET + broken if broken else TARGET.replace("if not", "while not")
    with pytest.raises(short_form.UnreadableReply):
        short_form.encode_rewrite(SourceEdit(qualname="Model", target=target), [])


def test_a_reply_takes_its_place_and_the_original_takes_every_other_call() -> None:
    text = short_form.assemble(PROGRAM, GRAPH, REPLY)
    ast.parse(text)
    for expected in (
        "import torch.nn as nn\nimport triton\nimport triton.language as tl\n",
        '    def _forward_eager(self, x):\n        """What it does."""\n',
        "x.shape == (2, 8)",
        "x.is_cuda",
        "            return self._forward_eager(x)\n        return f1(x, self.fc.weight)\n",
    ):
        assert expected in text
    assert "is_cuda" not in short_form.assemble(PROGRAM, GRAPH, REPLY, "interpreter")


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        ("def forward(self, x:\n", "parse"),
        ("x = 1\n", "end with a forward"),
        ("import os\nos.system('ls')\ndef forward(self, x):\n    return x\n", "when the file is"),
        ("def forward(self, x, y):\n    return x\n", "other arguments"),
        ("", "end with a forward"),
    ],
)
def test_replies_that_no_program_can_be_made_of_say_why(reply: str, why: str) -> None:
    with pytest.raises(short_form.UnreadableReply, match=why):
        short_form.assemble(PROGRAM, GRAPH, reply)


def test_held_out_operators_count_wherever_they_are_seen() -> None:
    plain, held = (
        structure(f"class Model:\n    def forward(self, x):\n        return F.{op}(x @ x).sum()\n")
        for op in ("relu", "mish")
    )
    assert plain is not None and held is not None
    assert split.part_of(held, "") is WriterPart.OPERATORS
    assert split.part_of(plain, "", ["leaky_relu_"]) is WriterPart.OPERATORS
    assert split.part_of(plain, "") is split.part_of(plain, "", ["relu"])
    assert split.part_of(plain, "") is not WriterPart.OPERATORS


def test_one_of_eight_known_tasks_is_kept_for_reinforcement() -> None:
    single = structure("class Model:\n    def forward(self, x):\n        return F.relu(x)\n")
    assert single is not None
    parts = [split.part_of(single, str(number)) for number in range(800)]
    assert set(parts) == {WriterPart.TRAIN, WriterPart.REINFORCED}
    assert 70 < parts.count(WriterPart.REINFORCED) < 130


def test_near_duplicates_are_found_by_tree_operators_and_text() -> None:
    other = SOURCE.replace("torch.relu(self.fc(x))", "torch.tanh(x).sum(dim=0) * 3")
    marks = [mark(text) for text in (SOURCE, SOURCE.replace("8, 4", "16, 4"), other)]
    first, resized, third = (one for one in marks if one is not None)
    found = split.near_duplicates([resized, third], [first])
    assert (found["same_tree"], found["same_operators"], found["same_text"]) == (1, 1, 1)


@pytest.fixture(scope="module")
def row() -> WriterRow:
    found = (make_row(11, number, large=False) for number in range(20))
    return next(one for one in found if isinstance(one, WriterRow))


def test_a_row_is_the_same_for_its_seed_and_survives_its_file(row: WriterRow) -> None:
    number = int(row.name.partition("_")[2])
    assert make_row(11, number, large=False) == row
    assert wire.from_json(WriterRow, json.loads(wire.dumps(row))) == row


def test_what_the_engine_wrote_can_be_put_into_its_program(row: WriterRow) -> None:
    for reply in row.replies:
        compile(row.assemble(reply.text, {}), "<row>", "exec")


def test_supervised_rows_are_expected_to_be_faster_and_of_many_skills(row: WriterRow) -> None:
    from dataclasses import replace

    def reply(skill: str, gain: float) -> WrittenReply:
        return WrittenReply(text=skill, skills=(skill,), gain=gain)

    longest = replace(reply("c", 3.0), text="c, and more to get wrong")
    slow = replace(row, replies=(reply("a", 0.9), longest, reply("b", 1.5)))
    common = [replace(row, replies=(reply("a", 2.0),)) for _ in range(18)]
    never = replace(row, replies=(reply("a", 0.5),))
    kept = data.filtered([slow, *common, never])
    assert kept[0] == (slow, slow.replies[2])
    assert len(kept) == 1 + int(data.MAX_SKILL_SHARE * 19)


def test_the_chance_of_one_right_of_k_is_counted_without_bias() -> None:
    from trainer.writer.evaluating import one_of

    assert one_of(4, 1, 1) == 0.25
    assert one_of(4, 2, 2) == pytest.approx(1 - 1 / 6)  # one of six pairs has none
    assert one_of(16, 0, 16) == 0.0 and one_of(16, 1, 16) == 1.0


def test_the_nearest_rewrite_shares_most_of_the_text_and_takes_this_task_s_inputs(
    row: WriterRow,
) -> None:
    from dataclasses import replace

    from trainer.writer.evaluating import NearestRewrites

    def known(name: str, grams: tuple[int, ...]) -> WriterRow:
        reply = replace(row.replies[0], text=f"def forward(self, x7, x8):\n    return {name}\n")
        return replace(row, name=name, grams=grams, replies=(reply,))

    nearest = NearestRewrites([known("far", (1, 2, 3, 9, 8)), known("near", (1, 2, 3, 4))])
    inputs = ", ".join(["self", *row.names.inputs.values()])
    expected = f"def forward({inputs}):\n    return "
    assert nearest.reply(replace(row, grams=(1, 2, 3, 5))) == f"{expected}near\n"
    assert nearest.reply(replace(row, grams=(77,))) == f"{expected}far\n"  # any, where none is


def test_the_vocabulary_gives_every_text_back() -> None:
    from trainer.writer.tokens import encode, train_tokenizer

    tokenizer = train_tokenizer([REPLY, SOURCE], 400, 512)
    for text in (REPLY, "x = 1_024 * b_2  # é\n\n\tx ~= 'ß'", "<|program|>\n<|end|>"):
        assert tokenizer.decode(encode(tokenizer, text)) == text
    assert len(encode(tokenizer, "<|end|>")) == 1
    often = train_tokenizer(["x = 4096 * BLOCK_SIZE\n" * 5], 400, 512)
    assert len(encode(often, "4096")) == len(encode(often, "BLOCK_SIZE")) == 1
    assert encode(often, "x = 4096\n")[-2:] == encode(often, "f(4096\n")[-2:]  # the same token


def test_what_decides_is_the_loss_of_a_whole_reply() -> None:
    from types import SimpleNamespace

    import torch

    from trainer.writer.training import TokenRow, _held_out

    scores = torch.tensor([0.5, 0.25, 0.125, 0.125]).log()

    class Same:
        def eval(self) -> None: ...

        def __call__(self, *, input_ids: torch.Tensor, use_cache: bool) -> SimpleNamespace:
            return SimpleNamespace(logits=scores.expand(*input_ids.shape, 4))

    rows = [TokenRow((3, 0, 0, 1), 1), TokenRow((3, 1, 0, 0), 2)]
    found = _held_out(Same(), rows, 2, "cpu")
    assert found["replies"] == 2 and found["likeliest"] == 0.5  # 0 is the likeliest each time
    assert found["loss_of_reply"] == pytest.approx(3 * math.log(2))  # (1 + 1 + 2 + 1 + 1) / 2
    assert found["loss_of_token"] == pytest.approx(6 / 5 * math.log(2))


def test_lines_that_many_replies_share_are_one_token_unless_they_name_something() -> None:
    from trainer.writer.tokens import encode, idioms, train_tokenizer

    shared, named = "    mask = cols < n_cols", "    n3 = x1 + n2 * 0.5"
    replies = [f"def f1(x1):\n{shared}\n{named}\n    return {n} * n_cols\n" for n in range(200)]
    lines = idioms(replies, train_tokenizer(replies, 400, 512))
    assert lines == [f"\n{shared}"]  # the last line is another one in each
    tokenizer = train_tokenizer(replies, 400, 512, lines)
    assert len(encode(tokenizer, lines[0])) == 1
    longer = replies[0].replace("n_cols\n", "n_cols_2\n")
    assert tokenizer.decode(encode(tokenizer, longer)) == longer


def test_a_program_left_as_it_was_is_no_rewrite(row: WriterRow) -> None:
    from trainer.writer.judging import WrittenCase, _is_unchanged

    own = ast.unparse(next(
        node for node in ast.walk(ast.parse(row.names.program(row.source)))
        if isinstance(node, ast.FunctionDef) and node.name == "forward"
    ))  # fmt: skip
    assert _is_unchanged(WrittenCase(row, own))
    assert _is_unchanged(
        WrittenCase(row, "def forward(self, x):\n    return self._forward_eager(x)")
    )
    assert not _is_unchanged(WrittenCase(row, row.replies[0].text))


def test_replies_to_some_tasks_are_judged_by_turns_and_then_those_to_others(
    row: WriterRow,
) -> None:
    from dataclasses import replace

    from trainer.writer.judging import TASKS_AT_ONCE, WrittenCase, by_turns

    rows = [replace(row, name=f"{number:02}") for number in range(TASKS_AT_ONCE + 1)]
    cases = [WrittenCase(one, f"r{reply}") for one in rows for reply in range(2)]
    found = [(int(case.row.name), case.reply) for case in by_turns([*cases[:2], *cases[3:]])]
    first = [(number, "r0") for number in range(TASKS_AT_ONCE) if number != 1]
    assert sorted(found[:TASKS_AT_ONCE]) == [(0, "r0"), (1, "r1"), *first[1:]]
    assert found[-2:] == [(TASKS_AT_ONCE, "r0"), (TASKS_AT_ONCE, "r1")]


def test_a_small_batch_changes_inputs_and_guard_and_nothing_else() -> None:
    from dataclasses import replace

    from trainer.writer.judging import with_small_batch

    source = SOURCE.replace("randn(2, 8)", "randn(8, 8)")
    graph = GraphView(
        operations=(
            replace(GRAPH.operations[0], forms=(Form(dtype="float32", shape=(8, 8)),)),
            GRAPH.operations[1],
        )
    )
    row = WriterRow(
        name="t", part=WriterPart.TRAIN, family="f", source=source, graph=graph, question="",
        plain="", replies=(), grams=(), digest="", ops=(),
    )  # fmt: skip
    small = with_small_batch(row)
    assert small.graph == GRAPH
    assert ast.dump(ast.parse(small.source)) == ast.dump(ast.parse(SOURCE))
    assert with_small_batch(small) is small


def test_writing_is_what_transformers_writes_whoever_shares_the_places() -> None:
    import time

    import torch
    import transformers

    from trainer.writer.decoding import WriterDecoder

    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        vocab_size=40, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, head_dim=8,
        num_key_value_heads=2, intermediate_size=48, initializer_range=0.4,
        pad_token_id=0, eos_token_id=7, bos_token_id=None,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    questions = [[3, 5, 9], [11, 2, 30, 4, 8, 17], [21], [6] * 64, [9, 5, 3, 2]]
    expected = []
    for question in questions:
        with torch.no_grad():
            made = model.generate(
                torch.tensor([question]), max_new_tokens=12, do_sample=False, pad_token_id=0
            )
        reply = made[0, len(question) :].tolist()
        expected.append(reply[: reply.index(7) + 1] if 7 in reply else reply)
    expected[3] = []  # longer than its place

    def choose(scores: torch.Tensor) -> torch.Tensor:
        return scores.argmax(-1)

    for places in (1, 2, 5):
        decoder = WriterDecoder(model, places, context=32)
        assert decoder.replies(questions, choose, 7, 12, time.monotonic() + 60) == expected
    assert decoder.replies(questions, choose, 7, 12, 0.0) == [None] * 5


def test_tokens_are_drawn_as_often_as_their_chances_and_none_of_the_tail() -> None:
    import torch

    from trainer.writer.sampling import SamplingPlan, _drawn

    torch.manual_seed(0)
    scores = torch.tensor([0.5, 0.2, 0.25, 0.05]).log().expand(20_000, 4)
    for top_p, chances in ((1.0, [0.5, 0.2, 0.25, 0.05]), (0.7, [2 / 3, 0.0, 1 / 3, 0.0])):
        drawn = _drawn(scores, SamplingPlan(temperature=1.0, top_p=top_p))
        shares = drawn.bincount(minlength=4) / len(drawn)
        assert shares.tolist() == pytest.approx(chances, abs=0.015)
        assert all(share > 0 for share, chance in zip(shares, chances, strict=True) if chance)
    square = _drawn(scores, SamplingPlan(temperature=0.5, top_p=1.0)).bincount() / len(scores)
    assert square[0] == pytest.approx(0.25 / (0.25 + 0.04 + 0.0625 + 0.0025), abs=0.015)


# --- names, helpers, data that arrives, a model that travels ------------------------------------

NAMED = """class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList([nn.Linear(4, 4)])
        self.norms_scale = nn.Parameter(torch.ones(4))

    def forward(self, q, other):
        hidden = q * self.norms_scale
        return self.norms[0](hidden) + other
"""
NAMED_GRAPH = GraphView(
    operations=(
        Operation(name="p_norms_scale", role=OperationRole.STATE, op="", forms=()),
        Operation(name="p_norms_0_weight", role=OperationRole.STATE, op="", forms=()),
        Operation(name="b_norms_0_running_mean", role=OperationRole.STATE, op="", forms=()),
        Operation(name="q", role=OperationRole.INPUT, op="", forms=()),
        Operation(name="other", role=OperationRole.INPUT, op="", forms=()),
        Operation(name="mul", role=OperationRole.CALL, op="mul", reads=(3, 0), forms=()),
    )
)
LONG = """# fused-matmul
@triton.jit
def k1(hidden_ptr, mean_ptr, out_ptr, n_cols, BLOCK: tl.constexpr):
    hidden = tl.load(hidden_ptr + n_cols)
    mean = tl.sum(hidden)
    n6 = mean * tl.load(mean_ptr)
    tl.store(out_ptr, n6)
def f1(hidden, mean):
    hidden, mean = (hidden.contiguous(), mean.contiguous())
    k1[1,](hidden, mean, hidden, 4, BLOCK=4)
    return hidden
@triton.jit
def k2(q_ptr, add_ptr, out_ptr, n_cols, BLOCK: tl.constexpr):
    q = tl.load(q_ptr + n_cols)
    mean = tl.sum(q)
    n7 = mean * tl.load(add_ptr)
    tl.store(out_ptr, n7)
def f2(q, add):
    q = q.contiguous()
    add = add.contiguous()
    k2[1,](q, add, q, 4, BLOCK=4)
    return q
def f3(layer):
    return layer.training
@triton.jit
def k4(q_ptr):
    tl.store(q_ptr, 1.0)
def f4(q):
    k4[1,](q)
    return q
def forward(self, q, other):
    n6 = f1(q, self.norms_scale)
    n7 = f2(n6, self.norms[0].weight)
    total = f4(n7)
    return total + other
"""
SHORT = """# fused-matmul
def forward(self, x1, x2):
    n6 = f1(x1, self.a2)
    n7 = f1(n6, self.a1[0].weight)
    v2 = f2(n7)
    return v2 + x2
def f1(x1, a2):
    x1 = x1.contiguous()
    a2 = a2.contiguous()
    k1[1,](x1, a2, x1, 4, BLOCK=4)
    return x1
def f2(n7):
    k2[1,](n7)
    return n7
@triton.jit
def k1(x1_ptr, a2_ptr, out_ptr, n_cols, BLOCK: tl.constexpr):
    x1 = tl.load(x1_ptr + n_cols)
    mean = tl.sum(x1)
    n6 = mean * tl.load(a2_ptr)
    tl.store(out_ptr, n6)
@triton.jit
def k2(n7_ptr):
    tl.store(n7_ptr, 1.0)
"""


def test_a_reply_has_numbers_for_names_and_equal_kernels_once() -> None:
    from trainer.writer.names import Names

    names = Names.of(NAMED, "Model", NAMED_GRAPH)
    assert list(names.values.values()) == [
        "a2", "a1[0].weight", "a1[0].running_mean", "x1", "x2", "n1"
    ]  # fmt: skip
    assert "v1 = x1 * self.a2" in names.program(NAMED)
    assert names.shorten(LONG) == SHORT
    assert names.restore(SHORT).endswith(
        "def forward(self, q, other):\n    n6 = f1(q, self.norms_scale)\n"
        "    n7 = f1(n6, self.norms[0].weight)\n    v2 = f2(n7)\n    return v2 + other\n"
    )


def test_names_are_dealt_anew_alike_in_question_and_reply_and_in_order() -> None:
    import random

    import numpy

    from trainer.writer.dealing import NameDealer
    from trainer.writer.tokens import encode, train_tokenizer

    texts = [f"n{one} = add(n{one}, a{one}.weight, mean{one})\n" for one in range(1, 30)]
    tokenizer = train_tokenizer(texts * 3, 600, 64)
    text = "n1 = add(x1, a2.weight)\nn3 = mean2(n1, n1000, a2_bias)\n"
    ids, draw, deal = numpy.array(encode(tokenizer, text)), random.Random(0), NameDealer(tokenizer)
    made = {tokenizer.decode(deal(ids, draw).tolist()) for _ in range(50)}
    assert len(made) > 40
    for one in made:
        n1, a2, n3 = re.match(r"(n\d+) = add\(x1, (a\d+).weight\)\n(n\d+) = ", one).groups()
        assert one == f"{n1} = add(x1, {a2}.weight)\n{n3} = mean2({n1}, n1000, {a2}_bias)\n"
        assert int(n1[1:]) < int(n3[1:]) < 30
    assert deal(ids[:0], draw).size == 0


def test_a_program_with_such_names_of_its_own_is_refused() -> None:
    from trainer.writer.names import Names

    with pytest.raises(short_form.UnreadableReply, match="x1 itself"):
        Names.of(NAMED.replace("other", "x1"), "Model", NAMED_GRAPH)


FAULTLESS = """# fused-pointwise
def forward(self, x1):
    n1 = self.a1(x1)
    return f1(n1)
def f1(n1):
    out = torch.empty_like(n1)
    k1[1,](n1, out, BLOCK_SIZE=1024, num_warps=4)
    return out
@triton.jit
def k1(n1_ptr, out_ptr, BLOCK_SIZE: tl.constexpr):
    offs = tl.arange(0, BLOCK_SIZE)
    n1 = tl.load(n1_ptr + offs)
    n2 = _tanh(n1)
    tl.store(out_ptr + offs, n2)
"""


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("", "", ""),
        ("n2 = _tanh", "kept = n1\n    shifted = _tanh", "k1 has no n2"),
        ("n1 = tl.load", "n3 = tl.load", "k1 has no n1"),
        ("    n2 = _tanh(n1)\n    tl.store(out_ptr + offs, n2)", "    tl.store(out_ptr, n1)",
         "f1 does not compute n2"),
        ("self.a1", "self.a2", "the program has no a2"),
        ("(n1, out, BLOCK", "(n1, BLOCK", "f1 calls k1 with other arguments than it has"),
        ("return f1(n1)", "return f1(n1, x1)", "forward calls f1 with other arguments than it has"),
    ],
)  # fmt: skip
def test_faults_are_found_by_reading_and_the_draft_with_fewest_is_chosen(
    old: str, new: str, fault: str
) -> None:
    from trainer.writer.faults import chosen, faults

    source = (
        "import torch\nimport torch.nn as nn\nclass Model(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.act = nn.ReLU()\n"
        "    def forward(self, x):\n        return torch.tanh(self.act(x))\n"
    )
    graph = GraphView(
        operations=(
            Operation(name="x", role=OperationRole.INPUT, op="", forms=()),
            Operation(name="relu", role=OperationRole.CALL, op="relu", reads=(0,), forms=()),
            Operation(
                name="tanh", role=OperationRole.CALL, op="tanh", reads=(1,), forms=(), output=True
            ),
        )
    )
    asked = WriterRow(
        name="w", part=WriterPart.TRAIN, family="pointwise", source=source, graph=graph,
        question="", plain="", replies=(), grams=(), digest="", ops=(),
    )  # fmt: skip
    shared = {"_tanh": "@triton.jit\ndef _tanh(x):\n    return x"}
    draft = FAULTLESS.replace(old, new) if old else FAULTLESS
    found = faults(asked, draft, shared)
    assert (fault in found) if fault else (found == [])
    drafts = ["def forward(self:", draft, FAULTLESS]
    assert chosen(asked, drafts, shared) == (FAULTLESS if fault else draft)


def test_functions_that_many_replies_share_are_called_and_not_written() -> None:
    from trainer.writer import helpers

    shared = helpers.find([REPLY, REPLY, REPLY.replace("return x\n@", "return -x\n@")], seen=2)
    assert shared == {}  # one name with two texts is no helper
    shared = helpers.find([REPLY, REPLY], seen=2)
    assert list(shared) == ["_tanh"]
    short = helpers.without(REPLY, shared)
    assert "def _tanh" not in short and "_tanh(1.0)" in short
    assert helpers.complete(short, shared) == REPLY
    assert helpers.complete(REPLY, shared) == REPLY


def test_rows_that_are_made_meanwhile_are_read_once_and_whole(
    tmp_path: Path, row: WriterRow
) -> None:
    arriving = data.Arriving(tmp_path)
    assert arriving.take() == []
    (tmp_path / data.MORE).mkdir()
    file, line = tmp_path / data.MORE / data.GROWING, wire.dumps(row) + "\n"
    file.write_text(line + line[:50])
    assert arriving.take() == [row] and arriving.take() == []
    file.write_text(line + line)
    assert arriving.take() == [row]
    (tmp_path / data.ROWS).write_text(line)
    assert data.read(tmp_path) == [row]  # the same question three times


def test_a_model_of_8_bits_is_off_by_half_a_step_at_most(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    from trainer.writer import __main__, packing

    whole = {"a": torch.randn(7, 33), "b": torch.randn(5)}
    (tmp_path / "model").mkdir()
    save_file(whole, tmp_path / "model" / "model.safetensors")
    (tmp_path / "model" / "config.json").write_text("{}")
    packing.pack(tmp_path / "model", tmp_path / "out")
    packing.unpack(tmp_path / "out", tmp_path / "again")
    found = load_file(tmp_path / "again" / "model.safetensors")
    step = whole["a"].abs().amax(dim=1, keepdim=True) / 127
    rounding = whole["a"].abs() / 256  # of bfloat16
    assert ((found["a"].float() - whole["a"]).abs() <= step / 2 + rounding + 1e-6).all()
    assert torch.equal(found["b"], whole["b"].bfloat16())
    assert (tmp_path / "again" / "config.json").read_text() == "{}"
    __main__._unpack(tmp_path / "out", tmp_path)
    assert torch.equal(load_file(tmp_path / "model" / "model.safetensors")["a"], whole["a"])
    __main__._unpack(tmp_path / "out", tmp_path / "work")
    assert (tmp_path / "work" / "model" / "config.json").read_text() == "{}"
    assert sum(file.stat().st_size for file in (tmp_path / "out").glob("*.safetensors")) < 1000
