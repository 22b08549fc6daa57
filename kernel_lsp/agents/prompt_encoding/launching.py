"""The question how much faster a Triton kernel is after some steps: two states beside each other,
one word.

    question = Question(before=…, after=…, capability="sm_90")
    said = await runtime.reply(question)              one of 33 words, each with its probability
    value_model.expected_gain(words, logprobs)  ln of it over the kernel as it is

The question says what the kernel is handed, what it does in which loops, and of both states what
decides the time: blocks, elements a thread, programs, warps, stages. Names are the author's own,
so constants are numbered. The words are those of a dialog (vocabulary.py). Not covered: which
steps there are; measuring."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kernel_lsp.agents.prompt_encoding import words
from kernel_lsp.agents.prompt_encoding.question import EncodedQuestion
from kernel_lsp.agents.prompt_encoding.vocabulary import MAX_SPACES
from kernel_lsp.records import Form, KernelView

MAX_TENSORS, MAX_OPERATIONS, MAX_CONSTANTS = 8, 48, 8
WARP, WARPS, STAGES = 32, 4, 3
"""Threads of a warp; what Triton takes where a launch says nothing."""
TOLD_AS = {
    "load": "reads",
    "store": "writes",
    "loop": "loop",
    ".": ".",
    "trans": "transpose",
    "make_tensor_descriptor": "tiles",
    "load_tensor_descriptor": "tiles",
    "num_programs": "persistent",
    "associative_scan": "scan",
    "atomic_add": "atomic",
    "multiple_of": "length",
    "max_contiguous": "length",
    "clamp": "clamp",
}
"""Names of the language that have another one in the vocabulary; what it has is said by its own
name."""
SILENT = frozenset({"program_id", "arange", "cdiv", "range", "to", "static_range"})
"""They are everywhere, or say what the numbers say better."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchQuestion(EncodedQuestion):
    """See the top of the file. Like a dialog whose turn is the model's."""

    before: KernelView
    after: KernelView
    capability: str | None
    """``sm_90``; None: unknown."""
    words: tuple[str, ...] = field(init=False)

    def _encode(self) -> Iterable[str]:
        digits = str(self.capability or "").removeprefix("sm_")
        yield from (
            "start",
            "on-cuda",
            "sm",
            *(words.number(int(digits) // 10) if digits.isdigit() else ()),
        )
        yield "given"
        for one in self.before.tensors[:MAX_TENSORS]:
            yield from _tensor(one)
        yield "operations"
        yield from _operations(self.before.operations)
        names = [
            *self.before.constants,
            *(n for n in self.after.constants if n not in self.before.constants),
        ]
        numbers = {name: place for place, name in enumerate(names[:MAX_CONSTANTS])}
        yield from ("again", *_state(self.before, numbers))
        yield from ("then", *_state(self.after, numbers))
        yield from ("gone", *_lacking(self.before, self.after))
        yield from ("more", *_lacking(self.after, self.before))
        yield "got"
        yield from _ratios(self.before, self.after)


def _tensor(one: Form) -> Iterable[str]:
    return (
        *words.name(one.dtype),
        *(word for number in one.shape[:4] for word in words.size(number)),
        ",",
    )


def _operations(names: Sequence[str]) -> Iterable[str]:
    entries = [name for name in names if name not in SILENT]
    return (word for name in entries[:MAX_OPERATIONS] for word in _name(name))


def _name(name: str) -> Iterable[str]:
    return (TOLD_AS[name],) if name in TOLD_AS else words.name(name)


def _lacking(one: KernelView, other: KernelView) -> Iterable[str]:
    """Operations that the one has and the other has not, or less often."""
    left = Counter(one.operations) - Counter(other.operations)
    return (word for name in left if name not in SILENT for word in _name(name))


def _state(view: KernelView, numbers: dict[str, int]) -> Iterable[str]:
    for name, place in numbers.items():
        if name in view.constants:
            yield from (f"P{place % MAX_SPACES}", *words.size(view.constants[name]))
    yield from (
        "programs",
        *(words.size(view.programs) if view.programs is not None else ("unknown",)),
    )
    yield from ("warps", *words.number(_warps(view)))
    yield from ("stages", *words.number(_stages(view)), *words.number(view.ahead))
    yield from (
        "lanes",
        *words.size(view.loaded),
        *words.size(view.held),
        *words.size(view.consecutive),
    )
    threads = WARP * _warps(view)
    yield from (words.gain(view.loaded / threads), words.gain((view.held or 1) / threads))
    yield from (words.gain(view.consecutive / threads), *words.number(view.masked))
    yield from words.number(view.evicting)


def _ratios(before: KernelView, after: KernelView) -> Iterable[str]:
    """How many times more: programs, warps, elements of a load and of a thread, elements in a
    row."""
    yield words.gain(
        after.programs / before.programs if after.programs and before.programs else None
    )
    yield words.gain(_warps(after) / _warps(before))
    yield words.gain(after.loaded / before.loaded)
    yield words.gain(after.loaded * _warps(before) / (before.loaded * _warps(after)))
    yield words.gain(after.consecutive / before.consecutive)


def _warps(view: KernelView) -> int:
    return max(1, view.options.get("num_warps", WARPS))


def _stages(view: KernelView) -> int:
    return view.options.get("num_stages", STAGES)
