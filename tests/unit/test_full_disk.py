"""A disk that is full, for real: nothing is lost, one line says why and what helps, and what is
written works again once there is room."""

import contextlib
import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kernel_lsp import leftovers
from kernel_lsp.cache import Cache
from kernel_lsp.errors import EvaluationError
from kernel_lsp.evaluator import EvaluationBudget, EvaluationRequest, Gate, evidence
from kernel_lsp.evaluator import gate as gates
from kernel_lsp.evaluator.processes.compiled import CompiledKernels
from kernel_lsp.evaluator.verify import request_from_files
from kernel_lsp.pipeline.tournament import Tournament
from kernel_lsp.records import EvalStatus, Evaluation, Evidence

DISK_BYTES = 2**20
MOUNT = ("mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of 1 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    try:
        mounted = subprocess.run([*MOUNT, str(place)], capture_output=True, check=False)
    except OSError:
        pytest.skip("there is no mount here")
    if mounted.returncode:
        pytest.skip("file systems are mounted by root")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill(disk: Path, *, leave: int = 0) -> Path:
    """A file that takes all room but some."""
    path = disk / "filler"
    with path.open("wb", buffering=0) as stream, contextlib.suppress(OSError):
        while True:
            stream.write(b"x" * 4096)
    os.truncate(path, path.stat().st_size - leave)
    return path


def made_evidence() -> Evidence:
    verdict = Evaluation(status=EvalStatus.PASSED, device="cpu")
    return evidence.gather(evidence.with_seed(request("pass")), gates.PartialEvaluation(), verdict)


def test_no_part_of_a_compiled_kernel_is_taken_for_the_whole(disk: Path) -> None:
    filler = fill(disk, leave=8192)
    with leftovers.open_folder(disk) as folder:
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            leftovers.write(folder, ("kernel.so",), b"x" * 100_000, 0o755)
        assert list(disk.iterdir()) == [filler]
        filler.unlink()
        assert leftovers.write(folder, ("kernel.so",), b"x" * 100_000, 0o755)


def test_compiled_kernels_are_laid_out_and_kept_whole_or_not(disk: Path, tmp_path: Path) -> None:
    def compiled(where: Path) -> Path:
        return where / "triton" / "kernel.so"

    scratch_folder, other = tmp_path / "scratch", disk / "other"
    compiled(scratch_folder).parent.mkdir(parents=True)
    compiled(scratch_folder).write_bytes(b"x" * 100_000)
    store = CompiledKernels(disk / "compiled")
    filler = fill(disk, leave=16384)
    store.take_in("key", scratch_folder)
    assert not store.holds("key") and not list((disk / "compiled").iterdir())
    filler.unlink()
    store.take_in("key", scratch_folder)
    assert store.holds("key")
    filler = fill(disk, leave=16384)
    assert not store.lay_out("key", other) and not compiled(other).exists()
    filler.unlink()
    assert store.lay_out("key", other) and compiled(other).stat().st_size == 100_000


def test_evidence_that_has_no_room_says_so_and_leaves_the_one_before(disk: Path) -> None:
    folder, found = disk / "evidence", made_evidence()
    before = evidence.keep(folder, "before", found)
    filler = fill(disk)
    with pytest.raises(EvaluationError) as refused:
        evidence.keep(folder, "before", replace(found, candidate_source="# another"))
    cause = os.strerror(errno.ENOSPC)
    assert cause in str(refused.value) and "free space on its disk" in str(refused.value)
    assert str(refused.value).count("\n") == 0
    assert evidence.read(before) == found and len(list(folder.iterdir())) == 1
    filler.unlink()
    assert evidence.read(evidence.keep(folder, "after", found)) == found


@dataclass(frozen=True)
class JudgedProposal:
    """As much of a proposal as has to do with its evidence."""

    evaluation: Evaluation
    evidence: str | None = None
    id: str = "p"


def test_a_verdict_without_evidence_says_why(disk: Path) -> None:
    fill(disk)
    tournament: Any = SimpleNamespace(settings=SimpleNamespace(data_dir=str(disk)))
    evaluation = Evaluation(status=EvalStatus.PASSED, device="cpu")
    proposal: Any = JudgedProposal(evaluation=evaluation)
    kept = Tournament._with_evidence(tournament, proposal, made_evidence())
    (check,) = kept.evaluation.checks
    assert check.name == "evidence" and "free space" in check.detail and kept.evidence is None


def test_a_cache_that_has_no_room_keeps_what_it_has(disk: Path) -> None:
    cache = Cache(disk / "cache")
    (disk / "cache").mkdir()
    filler = fill(disk)
    cache.put("key", cast(Any, "an outcome that is only measured again"))
    assert not list((disk / "cache").iterdir())
    filler.unlink()
    cache.put("key", cast(Any, "an outcome"))
    assert [path.name for path in (disk / "cache").iterdir()] == ["key.json"]


PROGRAM = """
import os
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        {body}
        return torch.tanh(x) + 1

def get_inputs():
    return [torch.rand(32, 16)]
"""
NO_ROOM = "raise OSError(28, os.strerror(28))"


def request(body: str) -> EvaluationRequest:
    texts = [PROGRAM.format(body=one) for one in ("pass", body)]
    made = request_from_files(*texts, device="cpu", inference=True)
    return replace(made, require_speed=False, budget=EvaluationBudget())


@pytest.mark.torch
async def test_a_candidate_is_not_blamed_for_a_full_disk_and_is_judged_once_there_is_room(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gates, "disk_usage", lambda folder: shutil.disk_usage(disk))
    monkeypatch.setattr(gates, "MIN_DISK_BYTES", DISK_BYTES // 2)
    async with Gate() as gate:
        filler = fill(disk)
        with pytest.raises(EvaluationError, match=r"the disk of .* is full.*free space"):
            await gate.evaluate(request(NO_ROOM))
        filler.unlink()
        refused = await gate.evaluate(request(NO_ROOM))
        assert refused.status is EvalStatus.RUNTIME_ERROR  # there was room
        assert (await gate.evaluate(request("pass"))).status is EvalStatus.PASSED
