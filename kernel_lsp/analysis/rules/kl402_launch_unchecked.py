"""KL402: nothing asks whether a CUDA launch failed, so its error shows up elsewhere or never."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kernel_lsp.analysis.extensions import first_launches, native_texts
from kernel_lsp.analysis.rules.base import Hit, ScriptRule, hit
from kernel_lsp.analysis.scripts import Script

_ASKED = re.compile(r"LAUNCH_CHECK|cudaGetLastError|cudaPeekAtLastError|CUDA_CHECK")


def _check(script: Script) -> Iterator[Hit]:
    for texts in native_texts(script.file):
        if any(_ASKED.search(one.text) for one in texts):
            continue
        for place in first_launches(texts):
            yield hit(
                place,
                "nothing asks whether the launch failed: with too many threads or too much "
                "shared memory it does not run, and the output is what memory held; add "
                "C10_CUDA_KERNEL_LAUNCH_CHECK() after it",
            )


KL402 = ScriptRule(
    id="KL402",
    name="launch-unchecked",
    summary="nothing asks whether a CUDA launch failed",
    severity="warning",
    check=_check,
)
