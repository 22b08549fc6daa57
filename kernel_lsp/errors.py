"""The tree of failures, and the one place where foreign exceptions become ours.

    KernelLspError            every failure a user may read: `cause` and `remedy`
    ├── ConfigError           a setting that cannot be used (the default is used instead)
    ├── SkillError            a skill folder that breaks the format
    ├── WorkloadError         a pragma, TOML file or get_inputs() that cannot be used
    ├── SnapshotError         a recorded call that cannot be opened
    ├── CaptureError          the target could not be turned into a graph
    ├── RewriteError          a skill failed while it rewrote a graph
    ├── EvaluationError       the candidate could not be judged (judged and rejected is a result)
    │   ├── Unconfined        this machine lacks a layer of confinement that was asked for
    │   ├── WorkerLost        a child process died or was killed; may be retried once
    │   ├── Busy              others had the machine for too long; may be retried when it is quieter
    │   └── Withdrawn         nobody waits for the verdict any more
    ├── StaleProposal         the code changed since it was measured, so its rewrite is not applied
    ├── ConsentRequired       workspace code would have to run and nobody allowed it
    ├── JournalError          the journal could not be opened or written
    ├── BackboneError         the language model could not be asked, or gave no answer
    ├── ModelError            a trained policy that cannot be used, or is worse than what is used
    ├── SignatureError        a signature that does not hold
    │   └── Unsigned          nobody has signed it
    ├── TeamError             a team's registry or files cannot be used, or refuse what was asked
    ├── ArchiveError          a search archive that cannot be read or written
    └── ClusterError          a cluster that cannot be used, or is lost
        └── JobFailed         one job of it; the others go on

A failed candidate is data (`EvalStatus`); a broken evaluator is an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class KernelLspError(Exception):
    """Base of every failure that reaches a user."""

    def __init__(self, cause: str, remedy: str | None = None) -> None:
        super().__init__(cause if remedy is None else f"{cause} ({remedy})")
        self.cause = cause
        self.remedy = remedy


class ConfigError(KernelLspError):
    """A setting that cannot be used."""


class SkillError(KernelLspError):
    """A skill folder that breaks the format."""


class WorkloadError(KernelLspError):
    """A workload that cannot be read or made."""


class SnapshotError(KernelLspError):
    """A recorded call that cannot be opened."""


class CaptureError(KernelLspError):
    """The target could not be turned into a graph."""


class RewriteError(KernelLspError):
    """A skill failed while it rewrote a graph."""


class EvaluationError(KernelLspError):
    """The candidate could not be judged. (Judged and rejected is a result, not an error.)"""


class OutOfMemory(EvaluationError):
    """Judging needs more memory than is free; it may be enough when nothing else is judged."""


class Unconfined(EvaluationError):
    """This machine lacks a layer of confinement that was asked for, so nothing is run."""


class WorkerLost(EvaluationError):
    """A child process died or was killed; the request may be retried once."""


class Busy(EvaluationError):
    """Others had the machine for too long; worth another try when it is quieter."""


class Withdrawn(EvaluationError):
    """Nobody waits for the verdict any more: a better candidate is being judged."""


class StaleProposal(KernelLspError):
    """The code changed since it was measured, so its rewrite is not applied."""


class ConsentRequired(KernelLspError):
    """Workspace code would have to run and nobody allowed it."""


class JournalError(KernelLspError):
    """The journal could not be opened or written."""


class ModelError(KernelLspError):
    """A trained policy that cannot be used, or is worse than what is used."""


class BackboneError(KernelLspError):
    """The language model could not be asked, or gave no answer."""


class SignatureError(KernelLspError):
    """A signature that does not hold, or cannot be made."""


class Unsigned(SignatureError):
    """Nobody has signed it."""


class TeamError(KernelLspError):
    """A team's registry or folder of files cannot be used, or refuses what was asked."""


class TeamAway(TeamError):
    """The registry or the files do not answer now; the last good state counts."""


class ArchiveError(KernelLspError):
    """A search archive that cannot be read or written."""


class ClusterError(KernelLspError):
    """A cluster of machines that cannot be used, or is lost."""


class JobFailed(ClusterError):
    """One job of a cluster failed, or was lost with every process that tried it; the others go
    on."""


@contextmanager
def boundary(kind: type[KernelLspError], doing: str) -> Iterator[None]:
    """Label whatever foreign exception escapes the block; our own pass through unchanged."""
    try:
        yield
    except KernelLspError:
        raise
    except Exception as error:  # the one broad except: this *is* the boundary
        raise kind(f"{doing}: {type(error).__name__}: {error}") from error


def known_class(kind: type[KernelLspError]) -> type[KernelLspError]:
    """The nearest class of this file: what another process can make of a failure again."""
    return next(
        base
        for base in kind.__mro__
        if issubclass(base, KernelLspError) and base.__module__ == __name__
    )
