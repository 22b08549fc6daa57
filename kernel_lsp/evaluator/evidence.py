"""Evidence of a verdict: gathered from an evaluation, written, read back, turned into the same
request again.

Standard library only. A document holds the programs' source text, like the cache and unlike the
journal. Reading runs nothing; what a document asks for (times, devices) is checked before it is
believed, because it may come from somebody else. Its ``python`` is never started. Not covered:
whether a verdict still holds (repeat.py) and documents that were changed with intent: there is no
signature, repeating the verdict is the proof."""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

from kernel_lsp import foreign, wire
from kernel_lsp.errors import EvaluationError
from kernel_lsp.evaluator.findings import PartialEvaluation
from kernel_lsp.evaluator.request import TIMEOUT_S, EvaluationBudget, EvaluationRequest, Precision
from kernel_lsp.files import keep_newest, replace_file
from kernel_lsp.records import EVIDENCE_VERSION, Evaluation, Evidence, Samples, Trial

Keep: TypeAlias = Callable[[Evidence], None]
"""What a caller does with the evidence of a verdict."""
MAX_BYTES = 32 * 1024**2
"""Of one document: a thousand rounds of four providers are 100 kB, so this is mostly source
text."""
MAX_KEPT_BYTES = 4 * 1024**2
"""Of one document that is kept without being asked for."""
MAX_KEPT_FILES = 500
MAX_SECONDS = 86_400.0
"""What asks for more is damaged, or made to hold whoever judges it."""
PATIENCE = 4.0
"""By which a judgement in the background may take longer than `EvaluationBudget` says
(pipeline/tournament.py)."""
DEVICES = ("cpu", "cuda", "interpreter")


def with_seed(request: EvaluationRequest) -> EvaluationRequest:
    """The request with a secret seed of its own, unless it repeats one.

    The parent draws it and not the judge, so that it is known for a candidate that ends in the
    first trial."""
    return request if request.seed is not None else replace(request, seed=secrets.randbits(48))


def gather(
    request: EvaluationRequest, found: PartialEvaluation, evaluation: Evaluation
) -> Evidence:
    """Everything about one verdict that is needed to reach it again."""
    return Evidence(
        created=datetime.now(UTC).isoformat(timespec="milliseconds"),
        reference=request.reference,
        candidate_source=request.candidate_source,
        candidate_entry=request.candidate_entry,
        workload=request.workload,
        device=request.device,
        precision=str(request.precision),
        require_speed=request.require_speed,
        uses_triton=request.uses_triton,
        native=request.native,
        timeout_s=request.timeout_s,
        budget=wire.to_json(request.budget),
        seed=request.seed,
        trials=tuple(_trial(number, entry) for number, entry in enumerate(found.trials, start=1)),
        samples=tuple(_samples(provider, entry) for provider, entry in found.samples_ms.items()),
        evaluation=evaluation,
        python=request.python,
    )


def _trial(place: int, entry: Mapping[str, Any]) -> Trial:
    passed = entry.get("passed")
    return Trial(
        number=int(entry.get("number", place)),
        family=str(entry.get("family", "")),
        variation=str(entry.get("variation") or ""),
        candidate_error=_number(entry.get("candidate_error")),
        reference_error=_number(entry.get("reference_error")),
        tolerance=_number(entry.get("tolerance")),
        passed=None if passed is None else bool(passed),
        detail=str(entry.get("detail") or ""),
    )


def _samples(provider: str, entry: Mapping[str, Any]) -> Samples:
    device = entry.get("device")
    return Samples(
        provider=provider,
        call_ms=tuple(map(float, entry.get("call", ()))),
        device_ms=tuple(map(float, device)) if device else None,
        dropped_rounds=tuple(map(int, entry.get("dropped", ()))),
    )


def _number(value: float | None) -> float | None:
    """JSON has no NaN and no infinity."""
    if value is None or math.isnan(value):
        return None
    return float(min(max(value, -1e300), 1e300))


# --- files ----------------------------------------------------------------------------------


def write(path: Path, evidence: Evidence) -> None:
    """One JSON document, replaced in one step. Raises EvaluationError when it cannot be written."""
    try:
        replace_file(path, _text(evidence))
    except OSError as error:
        raise EvaluationError(
            f"the evidence could not be written to {path}: {error.strerror or error}",
            "name a file in a folder that exists, that you may write to and that has room",
        ) from error


def keep(folder: Path, name: str, evidence: Evidence) -> Path:
    """Write ``name``.json into a folder that stays small. Raises EvaluationError when it is too
    large or cannot be written, which must not cost the verdict."""
    content = _text(evidence)
    if len(content) > MAX_KEPT_BYTES:
        raise EvaluationError(
            f"the evidence is not kept: it has {len(content) / 2**20:.0f} MiB",
            "verify --save-evidence writes it whatever its size",
        )
    path = folder / f"{name}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        replace_file(path, content)
    except OSError as error:
        raise EvaluationError(
            f"the evidence is not kept in {folder}: {error.strerror or error}",
            "free space on its disk, or make the folder writable, and optimize again",
        ) from error
    with contextlib.suppress(OSError):  # another process may do the same at this moment
        keep_newest(folder, MAX_KEPT_FILES)
    return path


def _text(evidence: Evidence) -> bytes:
    return (json.dumps(wire.to_json(evidence), indent=1) + "\n").encode()


def read(path: Path) -> Evidence:
    """The evidence in that file. Raises EvaluationError, with cause and remedy, on everything that
    is no evidence."""
    evidence = parse(_content(path), str(path))
    request_of(evidence)
    return evidence


def _content(path: Path) -> bytes:
    try:
        if not path.exists():
            raise _refusal(
                f"{path} does not exist", "name the file that --save-evidence has written"
            )
        if not path.is_file():
            raise _refusal(
                f"{path} is no regular file", "name the file that --save-evidence has written"
            )
        if (size := path.stat().st_size) > MAX_BYTES:
            cause = f"{path} has {size / 2**20:.0f} MiB, evidence at most {MAX_BYTES / 2**20:.0f}"
            raise _refusal(cause, "name the file that --save-evidence has written")
        return foreign.read_bytes(path, most=MAX_BYTES)
    except OSError as error:
        raise _refusal(
            f"{path} cannot be read: {error.strerror or error}", "check its permissions"
        ) from error
    except ValueError as error:  # a null byte in the name
        raise _refusal(f"{str(path)!r} is no file name", "name a file") from error


def parse(content: bytes, name: str = "the evidence") -> Evidence:
    """The document. Raises EvaluationError when it is damaged or of a newer schema."""
    damaged = "it is damaged or was changed by hand: judge the two programs anew and save it again"
    try:
        data = json.loads(content)
        version = data["schema_version"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise _refusal(f"{name} is no evidence ({type(error).__name__})", damaged) from error
    if isinstance(version, int) and version > EVIDENCE_VERSION:
        cause = (
            f"{name} has schema version {version}, this kernel-lsp reads up to {EVIDENCE_VERSION}"
        )
        raise _refusal(cause, "update kernel-lsp")
    try:
        return wire.from_json(Evidence, data)
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        raise _refusal(
            f"{name} is no evidence: {' '.join(str(error).split())[:200]}", damaged
        ) from error


def request_of(evidence: Evidence, *, timeout_s: float = PATIENCE * TIMEOUT_S) -> EvaluationRequest:
    """The request that led to the evidence, seed included, for our own interpreter, within local
    limits: what a document allows itself counts only where it is less. ``timeout_s``: this user's.

    Raises EvaluationError when it asks for what cannot be.
    """
    try:
        budget = wire.from_json(EvaluationBudget, evidence.budget)
        precision = Precision(evidence.precision)
    except (ValueError, TypeError) as error:
        raise _refusal(
            f"the evidence asks for what is unknown here: {error}", "update kernel-lsp"
        ) from error
    if evidence.device not in DEVICES:
        raise _refusal(
            f"the evidence names the device {evidence.device!r}",
            "it must be cuda, cpu or interpreter",
        )
    if not _possible(evidence.timeout_s, budget):
        cause = "the evidence asks for limits of time or memory that cannot be"
        raise _refusal(cause, "judge the two programs anew and save the evidence again")
    return EvaluationRequest(
        reference=evidence.reference,
        candidate_source=evidence.candidate_source,
        candidate_entry=evidence.candidate_entry,
        workload=evidence.workload,
        device=evidence.device,
        require_speed=evidence.require_speed,
        uses_triton=evidence.uses_triton,
        native=evidence.native,
        timeout_s=min(evidence.timeout_s, timeout_s),
        budget=_within_ours(budget),
        seed=evidence.seed,
        precision=precision,
    )


def _within_ours(budget: EvaluationBudget) -> EvaluationBudget:
    ours = EvaluationBudget()
    parts = {name: PATIENCE * getattr(ours, name) for name in ("load_s", "call_s", "compile_s")}
    parts["timing_s"] = ours.timing_s
    memory = budget.memory_bytes
    return replace(
        budget,
        **{name: min(most, getattr(budget, name)) for name, most in parts.items()},
        memory_bytes=None if memory is None or memory > _memory_here() else memory,
    )


def _memory_here() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _possible(timeout_s: float, budget: EvaluationBudget) -> bool:
    times = (timeout_s, budget.load_s, budget.call_s, budget.timing_s)
    memory = budget.memory_bytes
    return (
        all(0 < seconds <= MAX_SECONDS for seconds in times)
        and 0 <= budget.compile_s <= MAX_SECONDS
        and (memory is None or 2**20 <= memory <= 2**50)
    )


def _refusal(cause: str, remedy: str) -> EvaluationError:
    return EvaluationError(f"could not judge: {cause}", remedy)
