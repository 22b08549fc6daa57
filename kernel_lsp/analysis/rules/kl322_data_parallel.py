"""KL322: nn.DataParallel copies the model to every GPU at every step."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kernel_lsp.analysis.rules.base import Hit, ScriptRule, hit
from kernel_lsp.analysis.scripts import Script

# The program has both; which one runs is its user's choice.
_CHOICE = re.compile(r"DistributedDataParallel|\bDDP\b")


def _check(script: Script) -> Iterator[Hit]:
    if _CHOICE.search(script.file.text):
        return
    for call, _ in script.constructed("torch.nn.DataParallel", "torch.nn.parallel.DataParallel"):
        if script.training:
            yield hit(  # once: it is one decision, however many places carry it out
                call,
                "DataParallel copies the parameters to every GPU and gathers all outputs on one, "
                "at every "
                "step, in threads of one process; DistributedDataParallel only sums gradients, in "
                "backward",
            )
            return


KL322 = ScriptRule(
    id="KL322",
    name="data-parallel",
    summary="nn.DataParallel copies the model at every step",
    severity="hint",
    check=_check,
)
