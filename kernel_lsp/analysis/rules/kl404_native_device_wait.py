"""KL404: native code makes the CPU wait for the device at every call."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kernel_lsp.analysis.extensions import native_texts
from kernel_lsp.analysis.rules.base import Hit, ScriptRule, hit
from kernel_lsp.analysis.scripts import Script

_WAITS = re.compile(
    r"\bcuda(?:DeviceSynchronize|StreamSynchronize|ThreadSynchronize|Malloc|Free|Memcpy)\s*\("
)


def _check(script: Script) -> Iterator[Hit]:
    for texts in native_texts(script.file):
        for one in texts:
            for call in _WAITS.finditer(one.text):
                name = call[0].rstrip("( ")
                yield hit(
                    one.place(call.start()),
                    f"{name}() makes the CPU wait until everything that is queued has run, at every "
                    "call; torch orders kernels by their stream, and torch::empty takes memory "
                    "without waiting",
                )


KL404 = ScriptRule(
    id="KL404",
    name="native-device-wait",
    summary="native code makes the CPU wait for the device",
    severity="hint",
    check=_check,
)
