"""From nothing to the first verified rewrite on the screen: python benchmarks/first_minutes.py
[--out FILE] [--borrow]

The commands of docs/how-to/neovim.md, as they stand and in their order, by a person with an empty
home: a clone of HEAD, a fresh environment for the tools, another for the project with torch,
nothing in pip's cache, no verdict known. Then Neovim with the page's settings opens the page's
example, and the rewrite is applied (tests/e2e/neovim_story.lua). Times are of the machine alone.
With --borrow (in tests) the project's torch is not downloaded: what this environment has of it and
of what it requires is linked there, and nothing else, so that the project has none of our packages.
Not covered: reading, installing Python and the editor, and how far the package index is away."""

from __future__ import annotations

import argparse
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))
from pages import blocks  # noqa: E402 - how the tests read the pages

from benchmarks.reporting import circumstances, write_record  # noqa: E402

PAGE = ROOT / "docs" / "how-to" / "neovim.md"
STORY = ROOT / "tests" / "e2e" / "neovim_story.lua"
BAR_S = 180
"""Without the download of torch, which is as fast as the network."""
PATIENCE_S = 240
TORCH = "python3 -m venv .venv && .venv/bin/pip install torch"
AFTERWARDS = "Neovim: undone, closed (with the CPU time of everything in it)"


@dataclass(frozen=True, kw_only=True)
class TimedStep:
    what: str
    wall_s: float
    cpu_s: float
    """Of its processes, those that it started included."""


class Stopwatch:
    """Steps one after another."""

    def __init__(self) -> None:
        self.steps: list[TimedStep] = []
        self._wall, self._cpu = time.monotonic(), _children_s()

    def step(self, what: str) -> None:
        """Ends here."""
        wall, cpu = time.monotonic(), _children_s()
        self.steps.append(TimedStep(what=what, wall_s=wall - self._wall, cpu_s=cpu - self._cpu))
        self._wall, self._cpu = wall, cpu
        print(_line(self.steps[-1]), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="JSON of what is printed")
    parser.add_argument("--borrow", action="store_true", help="link torch, do not install it")
    arguments = parser.parse_args()
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="kernel-lsp-first-") as name:
        steps = _live(Path(name), borrow=arguments.borrow)
    left_out = (AFTERWARDS, TORCH)
    seconds = sum(step.wall_s for step in steps if step.what not in left_out)
    print(
        _line(TimedStep(what="together", wall_s=seconds, cpu_s=sum(step.cpu_s for step in steps)))
    )
    load = [round(before, 2), round(os.getloadavg()[0], 2)]
    print(f"load {load[0]} before, {load[1]} after, on {os.cpu_count()} cores; bar {BAR_S} s")
    if arguments.out:
        rows = [asdict(step) for step in steps]
        found = {
            **circumstances(),
            "load": load,
            "bar_s": BAR_S,
            "wall_s": seconds,
            "steps": rows,
        }
        write_record(arguments.out, found)
    sys.exit(0 if seconds <= BAR_S else 1)


def _live(base: Path, *, borrow: bool) -> list[TimedStep]:
    home, project = base / "home", base / "project"
    for folder in (home, project, base / "tmp"):
        folder.mkdir()
    environment = _person(home, base / "tmp")
    clock = Stopwatch()
    _run(["git", "clone", "-q", str(ROOT), str(home / "kernel-lsp")], project, environment)
    clock.step("git clone")
    _run([sys.executable, "-m", "venv", str(home / "tools")], project, environment)
    clock.step("python -m venv")
    (project / "example.py").write_text(blocks(PAGE, "python")[0].text)
    (base / "init.lua").write_text(blocks(PAGE, "lua")[0].text)
    for command in (command for block in blocks(PAGE, "sh") for command in block.commands):
        if borrow and command == TORCH:
            venv.create(project / ".venv")
            _link_torch(project / ".venv")
        else:
            _run(["bash", "-c", command], project, environment)
        clock.step(command)
    _edit(base / "init.lua", project, environment, clock)
    return clock.steps


def _link_torch(environment: Path) -> None:
    """Each package that torch comes to, in an environment that has nothing else: files of its own,
    because what a symbolic link leads to is not seen in confinement."""
    (site,) = environment.glob("lib/python*/site-packages")
    wanted, seen = ["torch", "numpy"], set[str]()
    while wanted:
        name = wanted.pop()
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:  # for another system, or an extra
            continue
        if found.name in seen:
            continue
        seen.add(found.name)
        wanted += [
            re.split(r"[^\w.-]", one)[0] for one in found.requires or () if "extra" not in one
        ]
        for top in {file.parts[0] for file in found.files or () if ".." not in file.parts}:
            source = Path(str(found.locate_file(top)))
            if source.exists() and not (site / top).exists():
                _link(source, site / top)


def _link(source: Path, place: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, place, copy_function=_link_file)
    else:
        _link_file(str(source), str(place))


def _link_file(source: str, place: str) -> None:
    try:
        os.link(source, place)
    except OSError:  # on another disk
        shutil.copy2(source, place)


def _person(home: Path, scratch: Path) -> dict[str, str]:
    """The environment of somebody who never ran anything of ours, with the tools' environment
    active."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in ("LANG", "SSL_CERT_FILE", "SSL_CERT_DIR") or name.lower().endswith("_proxy")
    }
    pip = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    return {
        **kept,
        **pip,
        "HOME": str(home),
        "TMPDIR": str(scratch),
        "PATH": os.pathsep.join(
            [
                str(home / "tools/bin"),
                str(Path(sys.executable).resolve().parent),
                "/usr/bin",
                "/bin",
            ]
        ),
        "KERNEL_LSP_DEVICE": "cpu",
        "PIP_NO_CACHE_DIR": "1",
        "KL_SHORT": "yes",
        "VIRTUAL_ENV": str(home / "tools"),
        "KL_PATIENCE_MS": str(PATIENCE_S * 1000),
    }


def _edit(settings: Path, project: Path, environment: dict[str, str], clock: Stopwatch) -> None:
    """Neovim, until the rewrite is in the text."""
    command = [
        "nvim",
        "--headless",
        "-u",
        str(settings),
        "-i",
        "NONE",
        "-n",
        "example.py",
        "-c",
        f"luafile {STORY}",
    ]
    with subprocess.Popen(
        command, cwd=project, env=environment, stdout=subprocess.PIPE, text=True
    ) as editor:
        assert editor.stdout is not None
        said = []
        for line in editor.stdout:
            said.append(line.strip())
            if line.startswith("HINT"):
                clock.step("Neovim: until the hint")
            elif line.startswith("APPLIED"):
                clock.step("Neovim: diff, applied")
    clock.step(AFTERWARDS)
    if said[-1:] != ["DONE"]:
        raise SystemExit(f"the story ended with {said}")


def _run(command: list[str], folder: Path, environment: dict[str, str]) -> None:
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    misses_a_gpu = command[-1].startswith("kernel-lsp doctor") and "Traceback" not in done.stderr
    if done.returncode != 0 and not misses_a_gpu:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")


def _children_s() -> float:
    """CPU time of children that have ended; an editor that still runs is counted when it ends."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _line(step: TimedStep) -> str:
    return f"{step.what:<72} {step.wall_s:7.1f} s wall {step.cpu_s:7.1f} s CPU"


if __name__ == "__main__":
    main()
