"""KL306: batches for a GPU come from pageable memory."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kernel_lsp.analysis.rules.base import Hit, ScriptRule, hit
from kernel_lsp.analysis.rules.loaders import copies, is_off, training_loaders
from kernel_lsp.analysis.scripts import Script

# They copy each batch by themselves.
_COPIES = re.compile(r"LightningModule|\bAccelerator\(|\bFabric\(")


def _check(script: Script) -> Iterator[Hit]:
    if not (
        any(True for step in script.steps for _ in copies(step)) or _COPIES.search(script.file.text)
    ):
        return
    for loader in training_loaders(script):
        # Without workers a missing pin_memory is KL305's finding.
        if not loader.is_open and not is_off(loader.workers) and is_off(loader.pinned):
            yield hit(
                loader.call.func,
                "DataLoader without pin_memory=True hands out pageable memory, which the driver "
                "copies once "
                "more on its way to the GPU, and which .to(device, non_blocking=True) cannot copy "
                "meanwhile",
            )


KL306 = ScriptRule(
    id="KL306",
    name="loader-not-pinned",
    summary="DataLoader for a GPU without pinned memory",
    severity="hint",
    check=_check,
)
