"""Everything about an answer that must agree before or beside its values; each difference is a
Mismatch.

Strides: where the inputs lie as the user's do, outputs have the reference's strides (dimensions of
size 1 and empty tensors aside), because a following view() works or fails by them. Where the judge
itself has rearranged the inputs they are not compared: nobody uses such inputs here, and honest
programs differ (x * d keeps the order of x, x @ diag(d) does not). A channels-last output passes
with a note: torch's own operators choose that format, and the rewrite says that it does."""

from __future__ import annotations

from typing import Any

import torch

from kernel_lsp.evaluator.gradients import GradientsByName
from kernel_lsp.evaluator.judging.oracle import Ran
from kernel_lsp.evaluator.tensors import leaves, tensor_leaves, tensor_specs

OTHER_STREAM = (
    "could not judge: random output (the candidate draws another stream than the reference)"
)


class Mismatch(Exception):
    """The candidate's answer differs from the reference's; ``check`` names the rule."""

    def __init__(self, check: str, detail: str) -> None:
        super().__init__(detail)
        self.check = check


def match_structure(got: Any, expected: Any, name: str = "output") -> None:
    """Compares nesting, shape and dtype, before any value is looked at."""
    mine, theirs = leaves(expected), leaves(got)
    if [path for path, _ in mine] != [path for path, _ in theirs] or _nesting(got) != _nesting(
        expected
    ):
        raise Mismatch("structure", f"the {name} is nested in another way than the reference's")
    for (path, want), (_, have) in zip(mine, theirs, strict=True):
        if not isinstance(want, torch.Tensor):
            if not _equal_plain(want, have):
                raise Mismatch(
                    "structure", f"{name}{path} is {have!r}, the reference returns {want!r}"
                )
        elif not isinstance(have, torch.Tensor):
            raise Mismatch("structure", f"{name}{path} is no tensor")
        elif want.shape != have.shape:
            shapes = f"{tuple(have.shape)}, the reference's {tuple(want.shape)}"
            raise Mismatch("structure", f"{name}{path} has shape {shapes}")
        elif want.dtype != have.dtype:
            raise Mismatch(
                "structure", f"{name}{path} is {have.dtype}, the reference's {want.dtype}"
            )


def match_names(have: Any, want: list[list[str]]) -> None:
    """What the reference's callers read by name can be read so; the nesting agrees already."""
    if not isinstance(have, list) or len(have) != len(want):
        raise Mismatch("structure", "the worker's answer is not readable: it has no names")
    for mine, theirs in zip(have, want, strict=True):
        if missing := [name for name in theirs if name not in mine]:
            raise Mismatch(
                "structure", f"the output has no {_list_names(missing)}, which the reference's has"
            )


def match_metadata(spec: dict[str, Any], ran: Ran, as_given: bool) -> str:
    """Compares device, strides and requires_grad, as the worker described its tensors; shapes agree
    already.

    Returns what a user should know although it passes; empty when there is nothing."""
    note = ""
    described = zip(
        tensor_specs(spec), tensor_leaves(ran.output), ran.strides, ran.carries_grad, strict=True
    )
    for place, (described_by, tensor, strides, carries) in enumerate(described):
        if described_by.get("device") != tensor.device.type:
            devices = f"on {described_by.get('device')}, the reference's on {tensor.device.type}"
            raise Mismatch("device", f"output {place} is {devices}")
        if bool(described_by.get("requires_grad")) != carries:
            does = (
                "carries no gradient where the reference's does"
                if carries
                else "carries a gradient"
            )
            raise Mismatch("requires-grad", f"output {place} {does}")
        have = described_by.get("stride")
        if not as_given or same_strides(tensor.shape, have, strides):
            continue
        if not is_channels_last(tensor.shape, have):
            detail = f"output {place} has strides {have}, the reference's {list(strides)}"
            raise Mismatch("strides", f"{detail}: a view() that works on one fails on the other")
        note = (
            f"output {place} is channels-last, unlike the reference's: a view() may need reshape()"
        )
    return note


def is_channels_last(shape: torch.Size, stride: Any) -> bool:
    """Whether a tensor of four or five dimensions keeps the channels of one place together."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    if len(shape) not in formats:
        return False
    wanted = torch.empty(shape, device="meta", memory_format=formats[len(shape)]).stride()
    return same_strides(shape, stride, wanted)


def same_strides(shape: torch.Size, one: Any, other: Any) -> bool:
    """Whether two strides mean the same memory order: dimensions of size 1 have none."""
    if not isinstance(one, (list, tuple)) or len(one) != len(other):
        return False
    return 0 in shape or all(n == 1 or a == b for n, a, b in zip(shape, one, other, strict=True))


def match_relations(described_by: Any, expected: list[list[str]]) -> None:
    """Compares whose memory every output shares."""
    if not isinstance(described_by, list) or len(described_by) != len(expected):
        raise Mismatch(
            "aliasing",
            "the worker's answer is not readable: it does not say whose memory it returns",
        )
    for place, (have, want) in enumerate(zip(described_by, expected, strict=True)):
        if sorted(map(str, have)) != sorted(want):
            raise Mismatch(
                "aliasing",
                f"output {place} shares memory with {_list_names(have)}, the reference's with "
                f"{_list_names(want)}: "
                "writing to one would or would not change the other",
            )


def match_marks(left: Any, expected: list[str]) -> None:
    """Nothing is left on inputs and parameters that the reference does not leave there."""
    if not isinstance(left, list):
        raise Mismatch("inputs-untouched", "the worker's answer is not readable: it has no marks")
    more = sorted(set(map(str, left)) - set(expected))
    if more:
        raise Mismatch("inputs-untouched", f"the candidate leaves {_list_names(more)}")


def same_generators(have: Any, want: dict[str, str]) -> bool:
    """Whether the generators stand alike. numpy counts where both have imported it."""
    if not isinstance(have, dict) or set(want) - set(have) - {"numpy"}:
        return False
    return all(have[name] == state for name, state in want.items() if name in have)


def match_gradients(got: GradientsByName, want: GradientsByName) -> None:
    """Which gradients exist, their shapes and dtypes."""
    for name, theirs in want.items():
        mine = got.get(name)
        if (mine is None) != (theirs is None):
            have, wants = ("no gradient", "one") if mine is None else ("a gradient", "none")
            raise Mismatch("gradients", f"{name} gets {have}, in the reference {wants}")
        if theirs is not None and _kind(mine) != _kind(theirs):
            raise Mismatch("gradients", f"the gradient of {name} has another shape or type")


def _kind(value: Any) -> Any:
    return (value.shape, value.dtype) if isinstance(value, torch.Tensor) else type(value)


def _list_names(names: Any) -> str:
    return ", ".join(map(str, names)) or "nothing"


def _nesting(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [isinstance(value, tuple), *(_nesting(item) for item in value)]
    return {key: _nesting(item) for key, item in value.items()} if isinstance(value, dict) else None


def _equal_plain(want: Any, have: Any) -> bool:
    if type(want) is not type(have):
        return False
    return bool(want == have) or (want != want and have != have)
