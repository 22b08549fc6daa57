"""Rewrites of installed packages as patch modules: made, put into a library, taken back, left
out."""

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kernel_lsp import wire
from kernel_lsp.commands.app import app
from kernel_lsp.evaluator import EvaluationBudget, Gate
from kernel_lsp.guarding import guard
from kernel_lsp.patching import making, store
from kernel_lsp.patching.making import PatchError
from kernel_lsp.records import (
    Acceptance,
    EvalStatus,
    Evaluation,
    Evidence,
    Guarded,
    Holding,
    Home,
    Program,
    TargetKind,
    Workload,
    WorkloadOrigin,
)

BLOCKS = '''\
"""Blocks of a library."""
from __future__ import annotations

import torch
from torch import nn
from .helpers import expand

LIMIT = 3.0


class Base(nn.Module):
    def forward(self, x):
        return x + 1.0


class Scale(Base):
    """Columns by a diagonal."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((dim,), 2.0))

    class Inner:
        def size(self):
            return 1

    def forward(self, x: Missing, limit=LIMIT):
        # a full product
        return expand(super().forward(x), limit) @ torch.diag(self.weight)


def doubled(x):
    return x * 2.0
'''
EDITED = (
    BLOCKS.replace("from torch import nn\n", "from torch import nn\nimport math\n")
    .replace(
        "class Scale(Base):",
        "def _scaled(x, weight):\n    return x * weight * math.cos(0.0)\n\n\nclass Scale(Base):",
    )
    .replace(
        "    def forward(self, x: Missing, limit=LIMIT):\n",
        "    def forward(self, x: Missing, limit=LIMIT):\n"
        "        if x.shape[0] != 4:\n"
        "            return self._forward_eager(x, limit)\n"
        "        return _scaled(expand(super().forward(x), limit), self.weight)\n\n"
        "    def _forward_eager(self, x: Missing, limit=LIMIT):\n",
    )
    .replace("return 1", "return 5")
    .replace("return x * 2.0", "return x + x")
)
HELPERS = "def expand(x, limit):\n    return x.clamp(-limit, limit)\n"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """An environment with the library, as a package manager leaves it, and a workspace."""
    site = tmp_path / "env" / "lib" / "python3" / "site-packages"
    (site / "lib").mkdir(parents=True)
    (site / "lib" / "__init__.py").write_text("")
    (site / "lib" / "blocks.py").write_text(BLOCKS)
    (site / "lib" / "helpers.py").write_text(HELPERS)
    info = site / "lib-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lib\nVersion: 1.2\n")
    (info / "RECORD").write_text("lib/__init__.py,,\nlib/blocks.py,sha256=x,1\n")
    (tmp_path / "work").mkdir()
    return tmp_path


def blocks(home: Path) -> Path:
    return home / "env" / "lib" / "python3" / "site-packages" / "lib" / "blocks.py"


def written(home: Path) -> Path:
    """The patch module, in the workspace."""
    library = store.library_of(blocks(home), "lib.blocks")
    place = store.place_of(home / "work", home / "work", ["python", "train.py"])
    place.start.parent.mkdir()
    place.start.write_text(store.start_text())
    place.file(library).write_text(making.make(library, BLOCKS, EDITED))
    return place.file(library)


def test_a_patch_module_gives_back_the_rewritten_library(home: Path) -> None:
    path = written(home)
    text = path.read_text()
    assert 'package="lib"' in text and 'version="1.2"' in text
    assert "expand,\n" in text and "LIMIT" in text and "Missing,\n" not in text, (
        "an annotation is no use"
    )
    assert "# a full product" in text and "import math\n" in text and "__init__" not in text
    rewritten = making.rewrite_class(BLOCKS, text)
    assert (
        "return _scaled(" in rewritten and "return 5" in rewritten and "def __init__" in rewritten
    )
    (one,) = store.find_patches(home / "work")
    assert one.path == path and one.patch.names == ("Scale", "doubled")
    assert one.patch.library == store.library_of(blocks(home), "lib.blocks")
    assert store.find_patches(home / "env") == [], "installed packages hold no patches"


def test_one_target_is_removed_from_a_patch_module(home: Path) -> None:
    text = written(home).read_text()
    left = making.without(text, ["doubled"])
    assert left is not None and "def doubled" not in left
    assert (known := making.read(left)) is not None and known.names == ("Scale",)
    assert "return _scaled(" in making.rewrite_class(BLOCKS, left)
    assert making.without(text, ["doubled", "Scale"]) is None


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("class Scale(Base)", "class Scale(nn.Module)", "bases or decorators"),
        ("        return expand(super", "        return LIBRARY(super", "no class and no function"),
        ("LIMIT = 3.0\n", "", "removes LIMIT"),
        ("LIMIT = 3.0", "LIMIT = 4.0", "no class and no function"),
        (
            "class Inner:\n        def size",
            "class Inner:\n        def sizes",
            "removes Scale.Inner.size",
        ),
    ],
)
def test_what_is_no_method_and_no_function_is_refused(
    home: Path, old: str, new: str, why: str
) -> None:
    library = store.library_of(blocks(home), "lib.blocks")
    assert old in BLOCKS
    edited = BLOCKS.replace(old, new)
    if why == "no class and no function" and "LIBRARY" in new:
        edited = BLOCKS
    with pytest.raises(PatchError, match=why):
        making.make(library, BLOCKS, edited)


def test_the_line_stands_behind_the_imports_and_goes_again() -> None:
    for text in (
        'import os\nimport torch\n\nprint("x")\n',
        "import os  # é\r\nprint()\r\n",
        '"""Says."""\nprint("x")\n',
        "#!/usr/bin/python\nprint()\n",
        "import torch",
        "def main():\n    import torch\n",
    ):
        changed = store.with_line(text)
        assert changed is not None and changed.count(store.LINE) == 1
        compile(changed, "script", "exec")
        assert store.with_line(changed) == changed
        assert store.without_line(changed).rstrip("\n") == text.rstrip("\n")
    assert store.with_line("def (") is None


def test_the_place_is_where_the_program_imports_from(tmp_path: Path) -> None:
    (tmp_path / "src" / "tool").mkdir(parents=True)
    (tmp_path / "src" / "train.py").write_text("")
    (tmp_path / "src" / "tool" / "__main__.py").write_text("")

    def place(*command: str, folder: str = "") -> store.Place:
        return store.place_of(tmp_path, tmp_path / folder, command)

    script = place("torchrun", "--nproc-per-node", "2", "src/train.py", "--x")
    assert script == store.Place(folder=tmp_path / "src", script=tmp_path / "src" / "train.py")
    module = place("python", "-m", "tool", folder="src")
    assert module == store.Place(
        folder=tmp_path / "src", script=tmp_path / "src" / "tool" / "__main__.py"
    )
    assert place("pytest", "-q") == store.Place(folder=tmp_path)


@pytest.mark.parametrize("link", ["", "__init__.py", "lib_model.py"])
def test_a_link_that_a_repository_has_committed_is_not_written_through(
    tmp_path: Path, link: str
) -> None:
    """With the package's folder as a link to another package, that one's `__init__.py` was
    replaced when a rewrite was accepted."""
    library = store.PatchedLibrary(module="lib.model", sha256="0", package=None, version=None)
    other = tmp_path / "other"
    other.mkdir()
    (other / "__init__.py").write_text("mine = 1")
    place = store.Place(folder=tmp_path / "clone")
    package = place.start.parent
    if link:
        package.mkdir(parents=True)
        (package / link).symlink_to(other / "__init__.py")
    else:
        place.folder.mkdir()
        package.symlink_to(other)
    with pytest.raises(store.PatchError, match="is a link"):
        store.files(place, library, "", "")


def test_patches_are_listed_and_removed_by_command(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, root = written(home), home / "work"
    monkeypatch.setenv("KERNEL_LSP_PYTHON", str(home / "env" / "bin" / "python"))
    script = root / "train.py"
    script.write_text(str(store.with_line("import torch\nprint()\n")))
    run = CliRunner()

    def told(*words: str) -> dict[str, Any]:
        done = run.invoke(app, ["patches", *words, "--folder", str(root), "--json"])
        assert done.exit_code == 0, done.output
        return dict(json.loads(done.stdout))

    (one,) = told("list")["patches"]
    assert (one["module"], one["version"], one["targets"]) == (
        "lib.blocks",
        "1.2",
        ["Scale", "doubled"],
    )
    assert one["unpatched"] is None
    with blocks(home).open("a") as file:
        file.write("# changed\n")
    assert "not the one that was rewritten" in told("list")["patches"][0]["unpatched"]
    wrong = run.invoke(app, ["patches", "remove", "lib.blocks::Other", "--folder", str(root)])
    assert wrong.exit_code == 2 and "lib.blocks::Scale" in " ".join(wrong.output.split())
    assert told("remove", "lib.blocks::doubled")["changed"] == ["kernel_lsp_patches/lib_blocks.py"]
    assert told("list")["patches"][0]["targets"] == ["Scale"] and path.exists()
    assert set(told("remove")["changed"]) == {
        "kernel_lsp_patches/lib_blocks.py",
        "kernel_lsp_patches/__init__.py",
        "train.py",
    }
    assert script.read_text() == "import torch\nprint()\n" and not path.parent.exists()
    assert told("remove")["changed"] == [] and told("list")["patches"] == []


def accepted(path: str, qualname: str) -> Acceptance:
    """As it comes from a repository: the recorded call is somewhere else."""
    recorded = Home(
        module="lib.blocks", path="blocks.py", snapshot="x.call", search_path=(), pickler=""
    )
    reference = Program(source=BLOCKS, entry=qualname, kind=TargetKind.MODULE, home=recorded)
    evidence = Evidence(
        created="2026-11-24T00:00:00Z",
        reference=reference,
        candidate_source=EDITED,
        candidate_entry=qualname,
        workload=Workload(name="train", origin=WorkloadOrigin.RECORDED, inputs=()),
        device="cpu",
        precision="faithful",
        require_speed=True,
        uses_triton=False,
        timeout_s=60.0,
        budget=wire.to_json(EvaluationBudget()),
        seed=1,
        evaluation=Evaluation(status=EvalStatus.PASSED, device="cpu"),
    )
    return Acceptance(
        proposal="p",
        path=path,
        qualname=qualname,
        before="b",
        after="a",
        accepted="",
        evidence=evidence,
    )


@pytest.mark.parametrize(
    ("qualname", "version", "holding", "words"),
    [
        ("Scale", "1.2", Holding.UNKNOWN, "record the program again"),
        ("Base", "1.2", Holding.GONE, "has it no more"),
        (
            "Scale",
            "1.3",
            Holding.REVERTED,
            "lib 1.3 is installed, the rewrite is of 1.2: it runs unpatched",
        ),
        ("Scale", None, Holding.UNKNOWN, "the library has no Scale"),
    ],
)
def test_guard_knows_patches_of_what_is_not_installed_here(
    home: Path, qualname: str, version: str | None, holding: Holding, words: str
) -> None:
    path, root = written(home), home / "work"
    if version is None:  # somebody has edited the patch module itself
        blocks(home).write_text(BLOCKS.replace("class Scale", "class Scales"))
        pin = store.library_of(blocks(home), "lib.blocks").sha256
        path.write_text(re.sub(r"sha256=.*", f'sha256="{pin}",', path.read_text()))
    else:
        info = blocks(home).parents[1] / "lib-1.2.dist-info" / "METADATA"
        info.write_text(f"Name: lib\nVersion: {version}\n")
    one = accepted(path.relative_to(root).as_posix(), qualname)

    async def judged() -> list[Guarded]:
        python, found = str(home / "env" / "bin" / "python"), [(root / "a.json", one)]
        limits: dict[str, Any] = {"cuda": False, "timeout_s": 60.0, "data_dir": home}
        async with Gate() as gate:
            judging = guard(root, found, lambda _: None, gate=gate, python=python, **limits)
            return [verdict async for verdict in judging]

    (verdict,) = asyncio.run(judged())
    assert verdict.holding is holding and words in verdict.detail, verdict.detail


# --- in a program ---------------------------------------------------------------------------------

PROGRAM = """\
import copy, io, pickle, warnings
import torch
from lib import blocks
from lib.blocks import doubled

before = blocks.Scale(8)
kept, forward, function = pickle.dumps(before), blocks.Scale.forward, doubled
class Mine(blocks.Scale):
    def forward(self, x):
        return super().forward(x) - 1.0

x, y = torch.randn(4, 8), torch.randn(3, 8)
want = [before(x), before(y), Mine(8)(x), doubled(x), blocks.Scale.Inner().size()]
import kernel_lsp_patches; names = kernel_lsp_patches.apply()
assert names == kernel_lsp_patches.apply() == ("lib.blocks.Scale", "lib.blocks.doubled"), names
assert blocks.Scale.forward is not forward and doubled is blocks.doubled is not function
after = blocks.Scale(8)
assert type(after) is type(before) is blocks.Scale
for model in (before, after, copy.deepcopy(before), pickle.loads(kept), pickle.loads(pickle.dumps(after))):
    assert torch.equal(model(x), want[0]) and torch.equal(model(y), want[1])
assert torch.equal(Mine(8)(x), want[2]) and torch.equal(blocks.doubled(x), want[3])
assert blocks.Scale.Inner().size() == 5
after.load_state_dict(before.state_dict(), strict=True)
torch._dynamo.reset()
assert torch.allclose(torch.compile(after, backend="eager", fullgraph=True)(x), want[0])
exported = torch.export.export(after, (x,)).module()
assert torch.allclose(exported(x), want[0])
print("as it was")
"""


def run(home: Path, program: str) -> subprocess.CompletedProcess[str]:
    script = home / "work" / "train.py"
    script.write_text(program)
    environment = {
        **os.environ,
        "PYTHONPATH": str(home / "env" / "lib" / "python3" / "site-packages"),
    }
    command = [sys.executable, "-W", "always::UserWarning", str(script)]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=120
    )


@pytest.mark.torch
def test_instances_subclasses_copies_pickles_and_compilers_bear_a_patch(home: Path) -> None:
    written(home)
    done = run(home, PROGRAM)
    assert done.stdout == "as it was\n", done.stderr


UPGRADED = """\
import kernel_lsp_patches
print(kernel_lsp_patches.apply(), kernel_lsp_patches.apply())
"""


@pytest.mark.parametrize("change", ["version", "source", "removed"])
def test_another_version_of_the_library_runs_unpatched_with_one_warning(
    home: Path, change: str
) -> None:
    """Nothing here imports torch: the library's file is one without."""
    site = home / "env" / "lib" / "python3" / "site-packages"
    blocks(home).write_text("def doubled(x):\n    return x * 2\n")
    library = store.library_of(blocks(home), "lib.blocks")
    folder = home / "work" / store.PACKAGE
    folder.mkdir()
    (folder / "__init__.py").write_text(store.start_text())
    text = making.make(library, blocks(home).read_text(), "def doubled(x):\n    return x + x\n")
    (folder / "lib_blocks.py").write_text(text)
    assert run(home, UPGRADED).stdout == "('lib.blocks.doubled',) ('lib.blocks.doubled',)\n"
    if change == "version":
        (site / "lib-1.2.dist-info" / "METADATA").write_text("Name: lib\nVersion: 1.3\n")
    elif change == "source":
        blocks(home).write_text("def doubled(x):\n    return 2 * x\n")
    else:
        blocks(home).unlink()
    done = run(home, UPGRADED)
    assert done.stdout == "() ()\n" and done.returncode == 0
    assert done.stderr.count("runs unpatched") == 1, done.stderr
