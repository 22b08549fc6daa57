"""KL405: a CUDA launch happens on the current device, whatever device its tensors are on."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kernel_lsp.analysis.extensions import first_launches, native_texts
from kernel_lsp.analysis.rules.base import Hit, ScriptRule, hit
from kernel_lsp.analysis.scripts import Script

_SET = re.compile(r"DeviceGuard|CUDAGuard|cudaSetDevice|DeviceSwitch")


def _check(script: Script) -> Iterator[Hit]:
    for texts in native_texts(script.file):
        if any(_SET.search(one.text) for one in texts) or _SET.search(script.file.text):
            continue
        for place in first_launches(texts):
            yield hit(
                place,
                "the launch happens on the current device: with tensors of another GPU it "
                "fails or reads foreign memory; begin the function with "
                "const at::cuda::OptionalCUDAGuard guard(device_of(x));",
            )


KL405 = ScriptRule(
    id="KL405",
    name="native-device-unset",
    summary="a CUDA launch happens on the current device, whatever its tensors are on",
    severity="warning",
    check=_check,
)
