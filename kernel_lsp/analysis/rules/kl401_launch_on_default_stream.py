"""KL401: a CUDA launch that names no stream runs on the default one, not on torch's."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kernel_lsp.analysis.extensions import launches, native_texts
from kernel_lsp.analysis.rules.base import Hit, ScriptRule, hit
from kernel_lsp.analysis.scripts import Script

_NESTED = re.compile(r"\([^()]*\)|<[^<>]*>|\{[^{}]*\}")


def _check(script: Script) -> Iterator[Hit]:
    for texts in native_texts(script.file):
        for one in texts:
            for launch in launches(one.text):
                if len(_arguments(launch[1])) < 4:
                    yield hit(
                        one.place(launch.start()),
                        "the launch names no stream: it runs on the default one, beside what torch "
                        "has queued; add at::cuda::getCurrentCUDAStream() as the fourth argument",
                    )


def _arguments(text: str) -> list[str]:
    while (plain := _NESTED.sub("", text)) != text:
        text = plain
    return text.split(",")


KL401 = ScriptRule(
    id="KL401",
    name="launch-on-default-stream",
    summary="a CUDA launch names no stream",
    severity="warning",
    check=_check,
)
