"""``# kernel-lsp: workload x=f32[128,4096] mask=bool[128,1] n=4 | init hidden=4096``

Grammar, one workload per comment line, in the comment lines right above the target:

    line   := "# kernel-lsp: workload" word* ["|" "init" item*]
    word   := item | "train" | "eval" | "inference" | mark
    item   := [name "="] (dtype "[" sizes "]" ["<" below] | Python literal)
    mark   := "grad" | "normal" | "uniform" | "zeros" | "ones"    of the tensor before it

dtypes: f16 bf16 f32 f64 i8 i16 i32 i64 u8 bool, or torch's names. ``ids=i64[8,128]<32000`` draws
indices below 32000. Without items before the bar, get_inputs() makes the inputs. ``inference``:
nobody differentiates these calls; without it gradients belong to the result."""

from __future__ import annotations

import ast
import re
from dataclasses import replace

from kernel_lsp.errors import WorkloadError
from kernel_lsp.records import ArgSpec, Snapshot, Target, TorchSetting, Workload, WorkloadOrigin
from kernel_lsp.workloads.values import DISTRIBUTIONS, SHORT_DTYPES, full_dtype

EXAMPLE = "# kernel-lsp: workload x=f32[128,4096] mask=bool[128,1] | init hidden=4096"

_PRAGMA = re.compile(r"\s*#\s*kernel-lsp:\s*workload\b(?P<rest>.*)")
_LINE_END = re.compile(r"\r\n|\r|\n")
# A word ends at white space that is in no bracket and no quotes.
_WORD = re.compile(r"""(?:\[[^\[\]]*\]|\([^()]*\)|"[^"]*"|'[^']*'|[^\s\[\]()"'|])+|[|\[\]()"']""")
_ITEM = re.compile(r"(?:(?P<name>[^\W\d]\w*)=)?(?P<value>.+)", re.DOTALL)
_TENSOR = re.compile(r"(?P<dtype>[a-z]+\d*)\[(?P<shape>[^\]]*)\](?:<(?P<below>.*))?")
MAX_CHARS = 4000
"""Of one comment: people write some dozens, and what is wrong with it is shown."""
_MODES = {"train": True, "eval": False}
_INFERENCE = "inference"


def pragmas(
    snapshot: Snapshot, target: Target
) -> tuple[tuple[Workload, ...], tuple[WorkloadError, ...]]:
    """The workloads in the comment block right above the target, top to bottom."""
    found: list[Workload] = []
    problems: list[WorkloadError] = []
    for line, rest in _pragma_lines(snapshot.text, target.span.start):
        try:
            found.append(parse(rest))
        except WorkloadError as error:
            problems.append(
                WorkloadError(
                    f"line {line}: workload comment: {error.cause}",
                    error.remedy or f"e.g. {EXAMPLE}",
                )
            )
    return tuple(found), tuple(problems)


def _pragma_lines(text: str, start: int) -> list[tuple[int, str]]:
    """(line from 1, what follows ``workload``) of the comment lines above the offset."""
    if "kernel-lsp:" not in text:
        return []
    lines = _LINE_END.split(text[:start])
    found: list[tuple[int, str]] = []
    for index in range(len(lines) - 2, -1, -1):
        # The last piece is the indentation of the target itself.
        if not lines[index].lstrip().startswith("#"):
            break
        if match := _PRAGMA.fullmatch(lines[index]):
            found.append((index + 1, match["rest"]))
    return found[::-1]


def parse(rest: str) -> Workload:
    """What a pragma says behind its mark. Raises WorkloadError."""
    if len(rest) > MAX_CHARS:
        raise WorkloadError(f"it is longer than {MAX_CHARS} characters", f"e.g. {EXAMPLE}")
    words = _WORD.findall(rest)
    bar = [*words, "|"].index("|")
    before, after = words[:bar], words[bar + 1 :]
    training = next((_MODES[word] for word in before if word in _MODES), None)
    inference = _INFERENCE in before
    modes = {*_MODES, _INFERENCE}
    inputs = _items([word for word in before if word not in modes])
    has_init = bar < len(words)
    if has_init and after[:1] != ["init"]:
        raise WorkloadError(
            f"expected `init` after `|`, found {' '.join(after)!r}", f"e.g. {EXAMPLE}"
        )
    if training and inference:
        raise WorkloadError("`train` and `inference` contradict each other", "keep one of them")
    if not before and not has_init:
        raise WorkloadError("it names no argument", f"e.g. {EXAMPLE}")
    return Workload(
        name=" ".join(words),
        origin=WorkloadOrigin.PRAGMA,
        inputs=inputs or None,
        init=_items(after[1:]) if has_init else None,
        training=training,
        setting=TorchSetting(gradients=False) if inference else TorchSetting(),
    )


def _items(words: list[str]) -> tuple[ArgSpec, ...]:
    specs: list[ArgSpec] = []
    for word in words:
        if word == "grad" or word in DISTRIBUTIONS:
            specs[-1:] = [_apply_mark(specs[-1] if specs else None, word)]
        else:
            specs.append(_item(word))
    _check_names(specs)
    return tuple(specs)


def _apply_mark(spec: ArgSpec | None, mark: str) -> ArgSpec:
    if spec is None or spec.dtype is None:
        raise WorkloadError(f"`{mark}` must follow a tensor", "e.g. x=f32[128,64] grad")
    if mark != "grad":
        return replace(spec, distribution=mark)
    if not spec.dtype.startswith(("float", "bfloat")):
        raise WorkloadError(f"`grad` on {spec.dtype}", "only floating-point tensors have gradients")
    return replace(spec, requires_grad=True)


def _item(word: str) -> ArgSpec:
    match = _ITEM.fullmatch(word)
    if match is None:
        raise WorkloadError(f"expected name=value, found {word!r}", f"e.g. {EXAMPLE}")
    tensor = _TENSOR.fullmatch(match["value"])
    if tensor is not None:
        return _tensor(match["name"], tensor)
    try:
        value = ast.literal_eval(match["value"])
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        raise WorkloadError(
            f"{match['value']!r} is neither dtype[sizes] nor a Python literal",
            f"e.g. x=f32[128,4096] n=4 mode='mean'; dtypes: {' '.join(SHORT_DTYPES)}",
        ) from None
    return ArgSpec(name=match["name"], value=value)


def _tensor(name: str | None, match: re.Match[str]) -> ArgSpec:
    dtype = full_dtype(match["dtype"])
    if dtype is None:
        raise WorkloadError(
            f"{match['dtype']!r} is no dtype", f"use one of {' '.join(SHORT_DTYPES)}"
        )
    sizes = [size.strip() for size in match["shape"].split(",")] if match["shape"].strip() else []
    if not all(size.isascii() and size.isdigit() for size in sizes):
        raise WorkloadError(
            f"the sizes [{match['shape']}] are no integers",
            "write every dimension out, e.g. f32[128,4096]",
        )
    return ArgSpec(
        name=name,
        dtype=dtype,
        shape=tuple(int(size) for size in sizes),
        distribution="normal" if match["below"] is None else _index(match["below"], dtype),
    )


def _index(below: str, dtype: str) -> str:
    if not (below.isascii() and below.isdigit() and int(below) > 0):
        raise WorkloadError(
            f"expected a positive integer after `<`, found {below!r}", "e.g. ids=i64[8,128]<32000"
        )
    if not dtype.startswith(("int", "uint")):
        raise WorkloadError(
            f"`<{below}` draws indices, which {dtype} cannot hold", "e.g. ids=i64[8,128]<32000"
        )
    return f"index:{int(below)}"


def _check_names(specs: list[ArgSpec]) -> None:
    names = [spec.name for spec in specs if spec.name is not None]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise WorkloadError(f"{twice} is given twice", "keep one of them")
    if any(spec.name is None for spec in specs[_first_named(specs) :]):
        raise WorkloadError(
            "an argument without a name follows a named one", "put unnamed arguments first"
        )


def _first_named(specs: list[ArgSpec]) -> int:
    return next((index for index, spec in enumerate(specs) if spec.name is not None), len(specs))
