"""``kernel-lsp doctor``: what was found, and what to do about what was not."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import typer
from rich.table import Column, Table

from kernel_lsp import __version__, interpreter, scratch, skillbook
from kernel_lsp.agents.backbones import probing
from kernel_lsp.commands import console, journaling, searching
from kernel_lsp.config import Settings
from kernel_lsp.confinement import held
from kernel_lsp.confinement.layers import GUARANTEES
from kernel_lsp.consent import Consents
from kernel_lsp.errors import ConfigError, KernelLspError, ModelError
from kernel_lsp.evaluator.remote.link import Link
from kernel_lsp.evaluator.sharing import device_lock
from kernel_lsp.models import GRAPH, KERNEL, PolicyStore
from kernel_lsp.models.manifest import verify
from kernel_lsp.pipeline import known

TORCH, TRITON = "torch>=2.6", "triton>=3.2"


@dataclass(frozen=True, kw_only=True)
class DoctorFinding:
    part: str
    ok: bool
    found: str
    remedy: str | None = None
    fix: tuple[str, ...] = ()
    """A command that mends it; empty: only a person can."""


def doctor(
    folder: Path = typer.Argument(Path(), help="The project."),
    fix: bool = typer.Option(
        False, "--fix", help="Ask for each command that would mend something, run it, look again."
    ),
    as_json: bool = typer.Option(False, "--json", help="One JSON object on standard output."),
) -> None:
    """Say what kernel-lsp found here and how to get what is missing. Exit code 1 when something
    is."""
    folder = folder.absolute()
    settings = console.settings(folder)
    findings = _look(folder, settings)
    if fix and _mend(findings):
        findings = _look(folder, settings)
    if as_json:
        console.print_json(version=__version__, findings=findings)
    else:
        found, remedy = (Column(name, overflow="fold") for name in ("found", "what to do"))
        table = Table("", "part", found, remedy, title=f"kernel-lsp {__version__}")
        for item in findings:
            table.add_row(
                "[green]ok[/]" if item.ok else "[yellow]--[/]",
                item.part,
                item.found,
                item.remedy or "",
            )
        console.out.print(table)
    raise typer.Exit(int(not all(item.ok for item in findings)))


def _look(folder: Path, settings: Settings) -> list[DoctorFinding]:
    return [
        *console.run(_interpreter(folder, settings)),
        _sharing(settings),
        _sandbox(console.run(held.try_layers())),
        *console.run(_elsewhere(settings)),
        *_promised_layers(folder, settings),
        _compiler(),
        *_library(settings),
        _journal(settings),
        _policy(settings, GRAPH, "policy"),
        _policy(settings, KERNEL, "policy for kernels"),
        console.run(_model(folder, settings)),
    ]


def _mend(findings: list[DoctorFinding]) -> bool:
    """Whether a command was run. Nothing is without the answer of somebody at a terminal: some
    download, and one allows code to run."""
    commands = dict.fromkeys(finding.fix for finding in findings if finding.fix)
    if not sys.stdin.isatty():
        for words in commands:
            console.err.print(f"not run, as nobody can be asked: {shlex.join(words)}", markup=False)
        return False
    chosen = [words for words in commands if typer.confirm(f"run {shlex.join(words)} ?", err=True)]
    with scratch.folder("fix") as neutral:  # no file of the project is imported or configures it
        for words in chosen:
            try:
                done = subprocess.run(words, check=False, stdout=sys.stderr, cwd=neutral)
            except OSError as error:
                console.err.print(f"{words[0]}: {error.strerror}", markup=False)
                continue
            if done.returncode:
                console.err.print(f"it ended with exit code {done.returncode}", markup=False)
    return bool(chosen)


def _installation(python: str, *packages: str) -> tuple[str, ...]:
    """Into the environment of this interpreter: by uv where it is, whose environments have no
    pip."""
    uv = shutil.which("uv")
    python = str(Path(python).absolute()) if os.sep in python else python
    if uv:
        return (uv, "pip", "install", "--python", python, *packages)
    return (python, "-I", "-m", "pip", "install", *packages)


async def _interpreter(folder: Path, settings: Settings) -> list[DoctorFinding]:
    if (cause := console.refusal(settings, folder)) is not None:
        return [
            DoctorFinding(
                part="interpreter",
                ok=False,
                found=f"not asked: {cause}",
                remedy=_trust(folder),
                fix=(sys.executable, "-P", "-m", "kernel_lsp", "trust", str(folder)),
            )
        ]
    chosen = interpreter.find(folder, settings.python)
    probe = await interpreter.probe(chosen.path)
    return [
        DoctorFinding(
            part="interpreter",
            ok=not probe.problem,
            found=f"{chosen.path} ({chosen.origin})",
            remedy=probe.remedy,
        ),
        DoctorFinding(
            part="torch",
            ok=bool(probe.torch),
            found=probe.torch or probe.torch_problem or "not found",
            remedy=probe.remedy,
            fix=() if probe.torch or probe.problem else _installation(probe.python, TORCH),
        ),
        DoctorFinding(
            part="triton",
            ok=bool(probe.triton),
            found=probe.triton or probe.triton_problem or "not found",
            remedy=None
            if probe.triton
            else "install triton beside torch, or only plain PyTorch rewrites are offered",
            fix=_installation(probe.python, TRITON) if _lacks_triton(probe) else (),
        ),
        DoctorFinding(
            part="GPU",
            ok=bool(probe.cuda),
            found=probe.device or "none",
            remedy=None
            if probe.cuda
            else "without one, plain rewrites are measured on the CPU and kernels only checked",
        ),
    ]


def _lacks_triton(probe: interpreter.Probe) -> bool:
    """And can have it: it is made for Linux alone."""
    return bool(probe.torch) and not probe.triton and sys.platform == "linux"


def _trust(folder: Path) -> str:
    return f"allow it with: kernel-lsp trust {folder}, or name another with KERNEL_LSP_PYTHON"


def _policy(settings: Settings, target: str, part: str) -> DoctorFinding:
    """What plans the quick search for this kind of target: a trained policy, or the rule and
    why."""
    try:
        model = PolicyStore(Path(settings.data_dir)).used(target)
        if model is not None and model.manifest is not None:
            verify(model.folder, model.manifest)
    except ModelError as error:
        return DoctorFinding(
            part=part, ok=False, found=f"the rule plans: {error.cause}", remedy=error.remedy
        )
    if model is None or model.manifest is None:
        return DoctorFinding(
            part=part, ok=True, found="the rule plans: no trained policy is in use"
        )
    where = f"on {', '.join(model.manifest.devices)}, elsewhere the rule"
    return DoctorFinding(
        part=part, ok=True, found=f"{model.id} plans {where}: {model.manifest.held_out}"
    )


async def _model(folder: Path, settings: Settings) -> DoctorFinding:
    """Asks the endpoint that the settings name, unless it is another machine's and nobody allowed
    it."""
    try:
        allowed = searching.allowed_origin(settings, folder, now=False)
    except ConfigError as error:
        return DoctorFinding(
            part="language model", ok=False, found=error.cause, remedy=error.remedy
        )
    python = interpreter.find(folder, settings.python).path
    own = settings.policy in ("vllm", "transformers") and settings.model_python is None
    if own and (cause := console.refusal(settings, folder)) is not None:
        return DoctorFinding(
            part="language model", ok=False, found=f"not asked: {cause}", remedy=_trust(folder)
        )
    found = await probing.probe(settings, python=str(python), allowed_origin=allowed)
    return DoctorFinding(part="language model", ok=found.ok, found=found.words, remedy=found.remedy)


def _sharing(settings: Settings) -> DoctorFinding:
    """Who else is on the GPU and how it is shared. A machine without NVML is no
    defect and is named."""
    state = device_lock.status(settings)
    used = (
        f"{state.used_minutes:g} of {settings.gpu_minutes_per_hour:g} background minutes used "
        f"this hour"
    )
    parts = [
        f"{state.gpu}, driver {state.driver}" if state.gpu else None,
        used,
        f"measuring now: pid {state.holder}" if state.holder else None,
        f"also on it: {', '.join(state.neighbors)}" if state.neighbors else None,
    ]
    return DoctorFinding(
        part="GPU sharing",
        ok=True,
        found="; ".join(part for part in parts if part),
        remedy=state.problem,
    )


def _sandbox(tried: held.Held) -> DoctorFinding:
    """What confines candidates here, and what it leaves open, as a child of ours has just tried."""
    left_open = f"; left open: {', '.join(tried.open)}" if tried.open else ""
    closed = tried.problem is None and not tried.open
    remedy = (
        None if closed else "allow user namespaces here, or use a kernel with Landlock (Linux 5.13)"
    )
    return DoctorFinding(
        part="sandbox", ok=closed, found=tried.problem or f"{tried.words}{left_open}", remedy=remedy
    )


async def _elsewhere(settings: Settings) -> list[DoctorFinding]:
    """The machine that judges, where that is another one."""
    if settings.judge_on is None:
        return []
    part = "judging machine"
    try:
        async with Link(settings.judge_on, wait_s=settings.gpu_wait_s) as link:
            about = await link.look()
    except KernelLspError as error:
        return [DoctorFinding(part=part, ok=False, found=error.cause, remedy=error.remedy)]
    probe = about.probe
    found = f"{about.host}: {probe.device or 'no GPU'}, torch {probe.torch}, {about.sandbox}"
    open_there = f"left open there: {', '.join(about.left_open)}" if about.left_open else None
    return [DoctorFinding(part=part, ok=not about.left_open, found=found, remedy=open_there)]


def _promised_layers(folder: Path, settings: Settings) -> list[DoctorFinding]:
    """What was accepted for this folder: where less holds than its answer rests on, nothing is
    run."""
    required = Consents(settings.data_dir).required(folder)
    accepted = [words for name, words in GUARANTEES.items() if name not in required]
    if not accepted:
        return []
    return [DoctorFinding(part="accepted here", ok=True, found="; ".join(accepted), remedy=None)]


def _compiler() -> DoctorFinding:
    program = shutil.which("g++") or shutil.which("clang++")
    remedy = None if program else "install g++, or torch.compile is missing among the CPU baselines"
    apt = shutil.which("apt-get") if program is None else None
    sudo = () if os.name == "nt" or os.geteuid() == 0 else ("sudo",)
    return DoctorFinding(
        part="C++ compiler",
        ok=program is not None,
        found=program or "none",
        remedy=remedy,
        fix=(*sudo, apt, "install", "-y", "g++") if apt else (),
    )


def _library(settings: Settings) -> list[DoctorFinding]:
    library = skillbook.load(skillbook.folders(settings.skill_folders))
    executable = sum(skill.executable for skill in library.skills)
    tuned = known.count(Path(settings.data_dir))
    counts = (
        f"{len(library.skills)}, {executable} executable, best parameters known for {tuned} kinds "
        f"of places"
    )
    summary = DoctorFinding(part="skills", ok=executable > 0, found=counts)
    broken = [
        DoctorFinding(part="skill", ok=False, found=problem.cause, remedy=problem.remedy)
        for problem in library.problems
    ]
    return [summary, *broken]


def _journal(settings: Settings) -> DoctorFinding:
    with journaling.journal(settings) as journal:
        problems = [str(problem) for problem in journal.problems]
    return DoctorFinding(
        part="journal",
        ok=not problems,
        found=f"{settings.data_dir}/journal.db",
        remedy="; ".join(problems) or None,
    )
