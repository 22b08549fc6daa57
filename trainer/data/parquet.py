"""A data set on disk: Parquet files and a manifest that is written last, so that what has one is
whole.

``turns-<part>.parquet`` has one row per turn, flat, for supervised training and for looking at;
``trajectories-<part>.parquet`` has each trajectory whole, for offline training. Nested values are
JSON text. Every row says what its owner allowed; a row that was not allowed, or has text that was
not, is refused here once more, whoever made it. Not covered: which rows are wanted (datasets.py).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kernel_lsp import wire
from kernel_lsp.errors import ConfigError
from kernel_lsp.files import replace_file
from trainer.data.datasets import DatasetRow
from trainer.records import SCHEMA_VERSION, Trajectory
from trainer.tasks.task_suites import DataPart

MANIFEST = "dataset.json"
BATCH = 1000
PERMISSION = (
    ("allowed_training", pa.bool_()),
    ("allowed_source", pa.bool_()),
    ("redacted", pa.bool_()),
    ("allowed_because", pa.string()),
)
TURNS = pa.schema(
    [
        *(
            (name, pa.string())
            for name in ("trajectory", "task", "task_name", "family", "device", "device_name")
        ),
        *(
            (name, pa.string())
            for name in ("source", "origin", "contributor", "rollout", "scheme", "created", "agent")
        ),
        ("number", pa.int32()),
        ("step", pa.int32()),
        ("parent", pa.int32()),
        ("example", pa.bool_()),
        *((name, pa.string()) for name in ("left_out", "messages", "tools", "reply", "calls")),
        *((name, pa.string()) for name in ("steps_before", "steps", "program", "workload")),
        ("prompt_ids", pa.list_(pa.int32())),
        ("reply_ids", pa.list_(pa.int32())),
        ("logprobs", pa.list_(pa.float32())),
        ("status", pa.string()),
        ("correct", pa.bool_()),
        *(
            (name, pa.float64())
            for name in ("speedup_low", "speedup_mid", "speedup_high", "candidate_ms")
        ),
        *(
            (name, pa.string())
            for name in ("speedups", "baseline_ms", "parent_outcome", "human", "candidate")
        ),
        ("skills", pa.list_(pa.string())),
        ("model", pa.string()),
        ("seconds", pa.float64()),
        ("prompt_tokens", pa.int64()),
        ("reply_tokens", pa.int64()),
        *PERMISSION,
    ]
)
TRAJECTORIES = pa.schema(
    [
        *(
            (name, pa.string())
            for name in (
                "trajectory",
                "task",
                "family",
                "device_name",
                "source",
                "origin",
                "contributor",
            )
        ),
        *((name, pa.string()) for name in ("human", "body")),
        *PERMISSION,
    ]
)


def write(
    folder: Path,
    parts: Mapping[DataPart, Sequence[DatasetRow]],
    about: dict[str, Any],
    report: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """A new data set; returns its manifest. Raises ConfigError for a folder that is not empty or a
    row that is not allowed; OSError for a disk that refuses. Without its manifest a folder is no
    data set."""
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty", "name a new folder: a data set is written once")
    folder.mkdir(parents=True, exist_ok=True)
    files = {}
    for part, rows in parts.items():
        report(f"writing {part}: {len(rows)} turns")
        whole = list({row.trajectory.id: row.trajectory for row in rows}.values())
        for name, schema, values in (
            (f"turns-{part}.parquet", TURNS, map(_turn, rows)),
            (f"trajectories-{part}.parquet", TRAJECTORIES, map(_trajectory, whole)),
        ):
            count = _write(folder / name, schema, values)
            files[name] = {"rows": count, "sha256": _digest(folder / name)}
    manifest = {"schema_version": SCHEMA_VERSION, **about, "files": files}
    replace_file(folder / MANIFEST, (json.dumps(manifest, indent=1) + "\n").encode())
    return manifest


def _write(path: Path, schema: pa.Schema, values: Iterable[dict[str, Any]]) -> int:
    count, values = 0, iter(values)
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        while batch := list(islice(values, BATCH)):
            writer.write_table(pa.Table.from_pylist(batch, schema=schema))
            count += len(batch)
    return count


# --- reading -------------------------------------------------------------------------------------


def manifest(folder: Path) -> dict[str, Any]:
    """Raises ConfigError for what is no data set, or one of another schema."""
    path = folder / MANIFEST
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        version = found["schema_version"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        remedy = (
            "its writing was not finished, or it is none: make it with `python -m trainer.export`"
        )
        raise ConfigError(f"{folder} is no data set: {error!r}", remedy) from error
    if version != SCHEMA_VERSION:
        remedy = "export it again with this kernel-lsp"
        raise ConfigError(
            f"{folder} has schema {version}, and this trainer reads {SCHEMA_VERSION}", remedy
        )
    return dict(found)


def turns(folder: Path, part: DataPart, *, examples: bool = False) -> Iterator[dict[str, Any]]:
    """Rows of `TURNS` with JSON columns parsed; ``examples``: only those to imitate."""
    for row in _rows(folder, f"turns-{part}.parquet"):
        if row["example"] or not examples:
            yield {k: json.loads(v) if k in _JSON and v is not None else v for k, v in row.items()}


def trajectories(folder: Path, part: DataPart) -> Iterator[Trajectory]:
    """The trajectories of one part of a data set that was written here."""
    for row in _rows(folder, f"trajectories-{part}.parquet"):
        yield wire.from_json(Trajectory, json.loads(row["body"]))


def _rows(folder: Path, name: str) -> Iterator[dict[str, Any]]:
    listed = manifest(folder)["files"].get(name)
    path = folder / name
    if listed is None or not path.is_file() or _digest(path) != listed["sha256"]:
        raise ConfigError(f"{path} is not what {MANIFEST} says", "export the data set again")
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(BATCH):
            yield from batch.to_pylist()


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# --- rows ----------------------------------------------------------------------------------------

_JSON = {
    "messages",
    "tools",
    "calls",
    "steps_before",
    "steps",
    "workload",
    "speedups",
    "baseline_ms",
}
_JSON |= {"parent_outcome"}


def check_permission(one: Trajectory) -> Trajectory:
    """Raises ConfigError for a trajectory that its permission does not cover."""
    allowed = one.permission
    text = one.program is not None or any(t.messages is not None or t.reply for t in one.turns)
    if not allowed.training or (text and not (allowed.source and allowed.redacted)):
        cause = f"{one.origin} holds more than was allowed ({allowed.because})"
        raise ConfigError(
            cause, "this is a defect of whatever made the trajectory; nothing was written of it"
        )
    return one


def _common(one: Trajectory) -> dict[str, Any]:
    allowed = check_permission(one).permission
    return {
        "trajectory": one.id,
        "task": one.task,
        "family": one.family,
        "device_name": one.device_name,
        "source": one.source.value,
        "origin": one.origin,
        "contributor": one.contributor,
        "allowed_training": allowed.training,
        "allowed_source": allowed.source,
        "redacted": allowed.redacted,
        "allowed_because": allowed.because,
    }


def _trajectory(one: Trajectory) -> dict[str, Any]:
    return {**_common(one), "human": one.human and one.human.value, "body": wire.dumps(one)}


def _turn(row: DatasetRow) -> dict[str, Any]:
    one, turn = row.trajectory, row.turn
    outcome, speedup = turn.outcome, turn.outcome.speedup
    return {
        **_common(one),
        "task_name": one.task_name,
        "device": one.device,
        "rollout": one.rollout,
        "scheme": one.scheme,
        "created": one.created,
        "agent": turn.agent.value,
        "number": turn.number,
        "step": turn.step,
        "parent": turn.parent,
        "example": row.example,
        "left_out": row.left_out,
        "messages": None if turn.messages is None else wire.dumps(turn.messages),
        "tools": wire.dumps(turn.tools),
        "reply": turn.reply,
        "calls": wire.dumps(turn.calls),
        "steps_before": wire.dumps(row.before),
        "steps": wire.dumps(turn.steps),
        "program": one.program,
        "workload": wire.dumps(one.workload),
        "prompt_ids": turn.prompt_ids,
        "reply_ids": turn.reply_ids,
        "logprobs": turn.logprobs,
        "status": outcome.status.value,
        "correct": outcome.correct,
        "speedup_low": outcome.lower_bound,
        "speedup_mid": speedup and speedup.mid,
        "speedup_high": speedup and speedup.high,
        "candidate_ms": outcome.candidate_ms,
        "speedups": wire.dumps(outcome.speedups),
        "baseline_ms": wire.dumps(outcome.baseline_ms),
        "parent_outcome": None if turn.parent_outcome is None else wire.dumps(turn.parent_outcome),
        "human": turn.human and turn.human.value,
        "candidate": turn.candidate,
        "skills": list(turn.skills),
        "model": turn.model,
        "seconds": turn.seconds,
        "prompt_tokens": turn.prompt_tokens,
        "reply_tokens": turn.reply_tokens,
    }
