"""KL403: native code takes a tensor's pointer, and nothing makes sure that it is contiguous."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kernel_lsp.analysis.extensions import native_texts
from kernel_lsp.analysis.rules.base import Hit, ScriptRule, hit
from kernel_lsp.analysis.scripts import Script

_POINTER = re.compile(r"\b(?:mutable_|const_)?data_ptr\s*(?:<[^<>]*>\s*)?\(")
_SURE = re.compile(r"contiguous|stride|accessor|memory_format", re.IGNORECASE)


def _check(script: Script) -> Iterator[Hit]:
    # Whoever calls it may make its inputs contiguous: then nothing is wrong.
    if _SURE.search(script.file.text):
        return
    for texts in native_texts(script.file):
        for one in texts:
            if pointer := _POINTER.search(one.text):
                yield hit(
                    one.place(pointer.start()),
                    "its elements are read in the order of memory, and nothing makes sure that the "
                    "tensor is contiguous: a transposed or sliced one gives another result; add "
                    "x = x.contiguous() or TORCH_CHECK(x.is_contiguous())",
                )


KL403 = ScriptRule(
    id="KL403",
    name="native-strides-ignored",
    summary="native code reads a tensor as if it were contiguous",
    severity="warning",
    check=_check,
)
