"""Targets that no graph can hold whole: the engine rewrites what it can prove, or says why in one
line.

`tests/cases/bad_targets/*.py` begin with what is expected: `# expect: refused: <cause>`, `silent`
or `rewritten`; what is rewritten is run and compared with the original."""

import importlib
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")


from kernel_lsp import analysis, skillbook, workloads  # noqa: E402
from kernel_lsp.config import Settings  # noqa: E402
from kernel_lsp.errors import CaptureError  # noqa: E402
from kernel_lsp.pipeline import compiler  # noqa: E402
from kernel_lsp.records import Skill, Snapshot, Step  # noqa: E402
from kernel_lsp.rewrite.engine import EngineSession  # noqa: E402

CASES = sorted((Path(__file__).resolve().parents[2] / "cases" / "bad_targets").glob("*.py"))
MAX_SITES = 3


def expected(path: Path) -> str:
    return path.read_text().split("\n", 1)[0].removeprefix("# expect: ")


@pytest.fixture(scope="module")
def skills() -> list[Skill]:
    return [
        skill for skill in skillbook.load([skillbook.built_in_folder()]).skills if skill.executable
    ]


def session(path: Path, skills: list[Skill], device: str) -> EngineSession:
    snapshot = Snapshot(uri=path.as_uri(), text=path.read_text())
    target = analysis.find_target(analysis.analyze(snapshot), "Model")
    assert target is not None
    known, problems = workloads.workloads_for(snapshot, target, None)
    assert not problems
    return EngineSession(analysis.slice_program(snapshot, target), known[0], device, skills)


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_the_engine_says_in_one_line_why_or_finds_what_it_can_prove(path: Path, skills) -> None:
    verdict, _, cause = expected(path).partition(": ")
    try:
        opened = session(path, skills, "cuda")
    except CaptureError as error:
        assert (verdict, error.cause) == ("refused", cause)
        assert "\n" not in str(error) and len(str(error)) < 260 and error.remedy
        return
    sites = opened.capture().sites
    found = compiler.others(sites, Settings())  # torch.compile of the whole target fits nearly all
    assert verdict == ("rewritten" if found else "silent")
    assert not opened.notes, "a skill failed on it"


RUNNABLE = [p for p in CASES if expected(p) == "rewritten" and 'device="cuda"' not in p.read_text()]


@pytest.mark.parametrize("path", RUNNABLE, ids=lambda path: path.stem)
def test_what_is_rewritten_computes_the_same(path: Path, skills, interpreter) -> None:
    opened = session(path, skills, "cpu")
    for site in opened.capture().sites[:MAX_SITES]:
        after = opened.propose([Step(skill=site.skill, site=site.site)]).candidate.program
        found = interpreter.ask(before=opened.program.source, after=after)
        assert all(found["same_kind"]), site
        for ours, eager in zip(found["ours"], found["eager"], strict=True):
            assert ours <= 2 * eager + 3e-6, site


@pytest.mark.parametrize("name", ["custom_autograd_function", "no_grad_inside", "no_grad_helper"])
def test_a_derivative_that_the_graph_does_not_show_stays_the_authors(
    name: str, skills, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    path = next(path for path in CASES if path.stem == name)
    opened = session(path, skills, "cpu")
    sites = opened.capture().sites
    assert sites
    for number, site in enumerate(sites):
        after = opened.propose([Step(skill=site.skill, site=site.site)]).candidate.program
        slopes = [
            slope(f"{name}_{number}_{which}", text, tmp_path)
            for which, text in (("before", opened.program.source), ("after", after))
        ]
        assert torch.equal(*slopes)


def slope(name: str, text: str, folder: Path) -> "torch.Tensor":
    """Of the sum of the result by the input. Kernels can only be defined in files."""
    (folder / f"{name}.py").write_text(text)
    torch.manual_seed(0)
    x = torch.randn(6, 8, requires_grad=True)
    importlib.import_module(name).Model()(x).sum().backward()
    assert x.grad is not None
    return x.grad
