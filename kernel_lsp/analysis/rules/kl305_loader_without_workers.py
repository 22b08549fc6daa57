"""KL305: batches are made by the process that trains, between its steps."""

from __future__ import annotations

from collections.abc import Iterator

from kernel_lsp.analysis.rules.base import Hit, ScriptRule, hit
from kernel_lsp.analysis.rules.loaders import is_off, training_loaders
from kernel_lsp.analysis.scripts import Script


def _check(script: Script) -> Iterator[Hit]:
    for loader in training_loaders(script):
        if not loader.is_open and is_off(loader.workers):
            pinned = (
                "" if not is_off(loader.pinned) else " and pin_memory=True lets copies overlap them"
            )
            yield hit(
                loader.call.func,
                "DataLoader without workers makes each batch in the training process, while the "
                "GPU waits; "
                f"num_workers=4 makes batches during the steps{pinned}",
            )


KL305 = ScriptRule(
    id="KL305",
    name="loader-without-workers",
    summary="DataLoader makes batches in the training process",
    severity="hint",
    check=_check,
)
