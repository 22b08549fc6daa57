"""Recorded workloads: ``.kernel-lsp/workloads.toml`` and its neighbors, under a workspace root.

[[workload]]
target = "models/block.py::Block"     # path from the root, two colons, qualified name
name = "train step, batch 8"          # optional
training = true                       # optional; absent: as constructed

[[workload.inputs]]                   # in call order; absent: get_inputs() makes them
name = "x"                            # absent: positional
dtype = "float32"                     # or short: f32
shape = [8, 4096]
stride = [4096, 1]                    # absent: contiguous
distribution = "normal"               # normal, uniform, zeros, ones, index:N
requires_grad = true                  # absent: false

[[workload.inputs]]
name = "scale"
value = 0.5                           # a plain value; neither dtype nor value: None

[[workload.init]]                     # constructor arguments, same keys
value = 4096
"""

from __future__ import annotations

import re
import tomllib
import urllib.parse
from pathlib import Path
from typing import Any

from kernel_lsp.errors import WorkloadError
from kernel_lsp.records import ArgSpec, Snapshot, Target, Workload, WorkloadOrigin
from kernel_lsp.workloads.values import DISTRIBUTIONS, SHORT_DTYPES, full_dtype

FOLDER = ".kernel-lsp"
_WORKLOAD_KEYS = {"target", "name", "training", "inputs", "init"}
_ARGUMENT_KEYS = {"name", "dtype", "shape", "stride", "distribution", "requires_grad", "value"}


def recorded(
    snapshot: Snapshot, target: Target, folder: str
) -> tuple[tuple[Workload, ...], tuple[WorkloadError, ...]]:
    """The target's workloads in the root's TOML files, ``workloads.toml`` first."""
    key = f"{_relative(snapshot.uri, folder)}::{target.qualname}"
    found: list[Workload] = []
    problems: list[WorkloadError] = []
    files = Path(folder, FOLDER).glob("*.toml")
    for path in sorted(files, key=lambda p: (p.name != "workloads.toml", p.name)):
        try:
            for index, entry in enumerate(_entries(path), 1):
                found += [_workload(path, index, entry)] if _target_of(path, index, entry) == key else []
        except WorkloadError as error:
            problems.append(error)
    return tuple(found), tuple(problems)


def _relative(uri: str, folder: str) -> str:
    """Path from the root with forward slashes; the whole path for a file outside it."""
    parsed = urllib.parse.urlsplit(uri)
    path = Path(urllib.parse.unquote(parsed.path) if parsed.scheme == "file" else uri)
    absolute = path if path.is_absolute() else Path(folder, path)
    return absolute.relative_to(folder).as_posix() if absolute.is_relative_to(folder) else absolute.as_posix()


def _entries(path: Path) -> list[dict[str, Any]]:
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise WorkloadError(f"{path} cannot be read: {error}", "make it a readable UTF-8 file") from error
    except tomllib.TOMLDecodeError as error:
        raise WorkloadError(f"{path} is no TOML: {error}", "correct that line") from error
    entries = data.get("workload", [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise WorkloadError(f"{path}: workload is no array of tables", "write [[workload]] with two brackets")
    return entries


def _target_of(path: Path, index: int, entry: dict[str, Any]) -> str:
    target = entry.get("target")
    if not isinstance(target, str) or "::" not in target:
        raise _wrong(path, index, "target", f"is {target!r}", 'write "path/file.py::QualifiedName"')
    return target


def _workload(path: Path, index: int, entry: dict[str, Any]) -> Workload:
    _refuse_unknown(path, index, entry, _WORKLOAD_KEYS)
    training = entry.get("training")
    if not isinstance(training, bool | None):
        raise _wrong(path, index, "training", f"is {training!r}", "write true or false")
    return Workload(
        name=str(entry.get("name", f"{path.name} #{index}")),
        origin=WorkloadOrigin.RECORDED,
        inputs=_arguments(path, index, entry, "inputs"),
        init=_arguments(path, index, entry, "init"),
        training=training,
    )


def _arguments(path: Path, index: int, entry: dict[str, Any], key: str) -> tuple[ArgSpec, ...] | None:
    given = entry.get(key)
    if given is None:
        return None
    if not isinstance(given, list) or not all(isinstance(item, dict) for item in given):
        raise _wrong(path, index, key, "is no array of tables", f"write [[workload.{key}]]")
    return tuple(_argument(path, index, item) for item in given)


def _argument(path: Path, index: int, item: dict[str, Any]) -> ArgSpec:
    _refuse_unknown(path, index, item, _ARGUMENT_KEYS)
    name = item.get("name")
    if not isinstance(name, str | None):
        raise _wrong(path, index, "name", f"is {name!r}", "write a string or leave it out")
    if "dtype" not in item:
        return ArgSpec(name=name, value=item.get("value"))
    dtype = full_dtype(str(item["dtype"]))
    if dtype is None:
        raise _wrong(path, index, "dtype", f"is {item['dtype']!r}", f"use one of {' '.join(SHORT_DTYPES)}")
    shape = _sizes(path, index, item, "shape")
    if shape is None:
        raise _wrong(path, index, "shape", "is missing", "a tensor needs dtype and shape, e.g. [8, 4096]")
    stride = _sizes(path, index, item, "stride")
    if stride is not None and len(stride) != len(shape):
        raise _wrong(path, index, "stride", "has another length than shape", "one step per dimension")
    return ArgSpec(
        name=name,
        dtype=dtype,
        shape=shape,
        stride=stride,
        distribution=_distribution(path, index, item),
        requires_grad=bool(item.get("requires_grad", False)),
    )


def _sizes(path: Path, index: int, item: dict[str, Any], key: str) -> tuple[int, ...] | None:
    given = item.get(key)
    if given is None:
        return None
    if not isinstance(given, list) or not all(type(size) is int and size >= 0 for size in given):
        raise _wrong(path, index, key, f"is {given!r}", "write a list of sizes, e.g. [8, 4096]")
    return tuple(given)


def _distribution(path: Path, index: int, item: dict[str, Any]) -> str:
    given = str(item.get("distribution", "normal"))
    if given not in DISTRIBUTIONS and not re.fullmatch(r"index:[1-9]\d*", given):
        raise _wrong(
            path, index, "distribution", f"is {given!r}", f"use {', '.join(DISTRIBUTIONS)} or index:N"
        )
    return given


def _refuse_unknown(path: Path, index: int, given: dict[str, Any], known: set[str]) -> None:
    if unknown := sorted(given.keys() - known):
        raise _wrong(path, index, unknown[0], "is unknown", f"known keys: {', '.join(sorted(known))}")


def _wrong(path: Path, index: int, key: str, what: str, remedy: str) -> WorkloadError:
    return WorkloadError(f"{path}: workload {index}: {key} {what}", remedy)
