"""KL106: convolutions in the default layout, in a file that never mentions channels_last."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernel_lsp.analysis.rules.base import Hit, Rule, RuleSite, argument, hit, self_attribute
from kernel_lsp.analysis.source import integer
from kernel_lsp.records import TargetKind

_LAYOUTS = {"torch.nn.Conv2d": "channels_last", "torch.nn.Conv3d": "channels_last_3d"}
# With fewer channels than one 16-byte load holds, the channel dimension is no better than the row.
_MIN_CHANNELS = 8


def _check(site: RuleSite) -> Iterator[Hit]:
    if not site.submodules:
        return
    called = {name for node, _ in site.calls if (name := self_attribute(node.func))}
    convolutions = [
        (call, made)
        for name, (call, made) in site.submodules.items()
        if name in called and made in _LAYOUTS and _gains(call)
    ]
    if convolutions and "channels_last" not in site.file.text:
        call, made = convolutions[0]
        yield hit(
            call,
            f"{len(convolutions)} convolution{'s' * (len(convolutions) > 1)} in the default "
            f"layout: "
            f"memory_format=torch.{_LAYOUTS[made]} on module and input saves the transposes "
            f"around each",
            convolutions=len(convolutions),
        )


def _gains(call: ast.Call) -> bool:
    channels = integer(argument(call, 0, "in_channels"))
    if channels is not None and channels < _MIN_CHANNELS:
        return False
    kernel, stride = argument(call, 2, "kernel_size"), argument(call, 3, "stride")
    # A kernel that equals its stride cuts patches: one matrix product, whatever the layout.
    is_patching = kernel is not None and stride is not None and ast.dump(kernel) == ast.dump(stride)
    groups = argument(call, 6, "groups")
    return not is_patching and (groups is None or integer(groups) == 1)


KL106 = Rule(
    id="KL106",
    name="conv-without-channels-last",
    summary="convolutions in the default memory layout",
    severity="hint",
    kinds=frozenset({TargetKind.MODULE}),
    check=_check,
)
