"""Arguments of a call in TOML: tensors by dtype and shape, and plain values. Checked, never
guessed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernel_lsp import wire
from kernel_lsp.errors import WorkloadError
from kernel_lsp.records import ArgSpec, ValueSummary
from kernel_lsp.workloads.values import DISTRIBUTIONS, SHORT_DTYPES, full_dtype

KEYS = {"name", "dtype", "shape", "stride", "distribution", "requires_grad", "value", "tuple"}
SEEN_KEYS = {"device", "alignment", "values", "unknown"}
"""What recordings say beyond."""


@dataclass(frozen=True, slots=True)
class FilePlace:
    """An entry of a file, for messages."""

    path: Path
    table: str
    index: int
    """From 1."""

    def wrong(self, key: str, what: str, remedy: str) -> WorkloadError:
        """An error that names file, table, entry and key; for the caller to raise."""
        return WorkloadError(f"{self.path}: {self.table} {self.index}: {key} {what}", remedy)

    def refuse_unknown(self, given: dict[str, Any], known: set[str]) -> None:
        """Raises WorkloadError when the entry has a key that is not among the known ones."""
        if unknown := sorted(given.keys() - known):
            raise self.wrong(unknown[0], "is unknown", f"known keys: {', '.join(sorted(known))}")


def arguments(place: FilePlace, entry: dict[str, Any], key: str) -> tuple[ArgSpec, ...] | None:
    """The specs of an array of tables; None where it is absent. Raises WorkloadError."""
    given = entry.get(key)
    if given is None:
        return None
    if not isinstance(given, list) or not all(isinstance(item, dict) for item in given):
        raise place.wrong(key, "is no array of tables", f"write [[{place.table}.{key}]]")
    return tuple(_argument(place, item) for item in given)


def _argument(place: FilePlace, item: dict[str, Any]) -> ArgSpec:
    place.refuse_unknown(item, KEYS | SEEN_KEYS)
    name = item.get("name")
    if not isinstance(name, str | None):
        raise place.wrong("name", f"is {name!r}", "write a string or leave it out")
    if "dtype" not in item:
        value = item.get("value")
        return ArgSpec(
            name=name,
            value=tuple(value) if item.get("tuple") and isinstance(value, list) else value,
        )
    dtype = full_dtype(str(item["dtype"]))
    if dtype is None:
        raise place.wrong("dtype", f"is {item['dtype']!r}", f"use one of {' '.join(SHORT_DTYPES)}")
    shape = _sizes(place, item, "shape")
    if shape is None:
        raise place.wrong("shape", "is missing", "a tensor needs dtype and shape, e.g. [8, 4096]")
    stride = _sizes(place, item, "stride")
    if stride is not None and len(stride) != len(shape):
        raise place.wrong("stride", "has another length than shape", "one step per dimension")
    values = _values(place, item)
    return ArgSpec(
        name=name,
        dtype=dtype,
        shape=shape,
        stride=stride,
        distribution=_distribution(place, item, values, dtype),
        requires_grad=bool(item.get("requires_grad", False)),
        values=values,
        device=item.get("device"),
        alignment=item.get("alignment"),
    )


def _sizes(place: FilePlace, item: dict[str, Any], key: str) -> tuple[int, ...] | None:
    given = item.get(key)
    if given is None:
        return None
    if not isinstance(given, list) or not all(type(size) is int and size >= 0 for size in given):
        raise place.wrong(key, f"is {given!r}", "write a list of sizes, e.g. [8, 4096]")
    return tuple(given)


def _values(place: FilePlace, item: dict[str, Any]) -> ValueSummary | None:
    if "values" not in item:
        return None
    try:
        return wire.from_json(ValueSummary, item["values"])
    except (TypeError, ValueError) as error:
        raise place.wrong("values", f"cannot be read: {error}", "record it again") from error


def _distribution(
    place: FilePlace, item: dict[str, Any], values: ValueSummary | None, dtype: str
) -> str:
    if "distribution" not in item and values is not None:
        return _as_seen(values, dtype)
    given = str(item.get("distribution", "normal"))
    if given not in DISTRIBUTIONS and not re.fullmatch(r"index:[1-9]\d*", given):
        raise place.wrong(
            "distribution", f"is {given!r}", f"use {', '.join(DISTRIBUTIONS)} or index:N"
        )
    return given


def _as_seen(values: ValueSummary, dtype: str) -> str:
    """The distribution that is nearest to what was recorded; the gate stretches it to the range."""
    low, high = values.low, values.high
    if low is None or high is None or dtype == "bool":
        return "normal"
    if low == high and low in (0, 1):
        return "ones" if low else "zeros"
    if dtype.startswith(("int", "uint")):
        return f"index:{int(high) + 1}" if low >= 0 else "normal"
    return "uniform" if low >= 0 else "normal"
