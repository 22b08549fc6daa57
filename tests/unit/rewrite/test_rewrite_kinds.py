"""Sites that share what was found for them, and sites that do not; variants as the engine makes
them."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from rewrite_helpers import SKILLS, module, program, skill, workload  # noqa: E402

from kernel_lsp.records import Site, Step  # noqa: E402
from kernel_lsp.rewrite.engine import EngineSession  # noqa: E402

pytestmark = pytest.mark.torch

GATED = "return torch.sigmoid(x * 2.0) * x"


def session(forward: str = GATED, inputs: str = "torch.randn(3000, 1000)") -> EngineSession:
    source = module(forward, inputs=inputs)
    return EngineSession(program(source), workload(), "cuda", [skill("fused-pointwise")])


def site(forward: str = GATED, inputs: str = "torch.randn(3000, 1000)") -> Site:
    (found,) = session(forward, inputs).capture().sites
    return found


def test_a_kind_is_a_hash_that_repeats() -> None:
    assert len(site().kind) == 24 and site().kind == site().kind


@pytest.mark.parametrize(
    ("forward", "inputs"),
    [
        (GATED, "torch.randn(4096, 1024)"),  # the same powers of two
        (
            "y = torch.sigmoid(x * 3.0)\n    return y * x",
            "torch.randn(3000, 1000)",
        ),  # names and numbers
    ],
)
def test_what_is_learned_once_serves_for(forward: str, inputs: str) -> None:
    assert site(forward.replace("\n    ", "\n"), inputs).kind == site().kind


@pytest.mark.parametrize(
    ("forward", "inputs"),
    [
        (GATED, "torch.randn(5000, 1000)"),  # the next power of two
        (GATED, "torch.randn(3000, 1000, dtype=torch.bfloat16)"),
        (GATED, "torch.randn(3000, 8, 125)"),  # another rank
        ("return torch.tanh(x * 2.0) * x", "torch.randn(3000, 1000)"),  # another operation
        (
            "y = torch.sigmoid(x * 2.0)\nreturn y * y",
            "torch.randn(3000, 1000)",
        ),  # the same ones, wired otherwise
    ],
)
def test_what_is_learned_once_does_not_serve_for(forward: str, inputs: str) -> None:
    assert site(forward, inputs).kind != site().kind


def test_variants_differ_in_the_parameters_of_one_step_only() -> None:
    opened = session()
    (found,) = opened.capture().sites
    default = {name: choices[0] for name, choices in found.parameters.items()}
    steps = [Step(skill=found.skill, site=found.site, parameters=default)]
    made = opened.variants(steps, 0, 4)
    assert 2 <= len(made) <= 4 and len({candidate.id for candidate in made}) == len(made)
    assert made[0].steps[0].parameters == default
    for candidate in made:
        chosen = candidate.steps[0].parameters
        assert chosen.keys() == found.parameters.keys()
        assert all(value in found.parameters[name] for name, value in chosen.items())
        assert candidate.uses_triton and "_forward_eager" in candidate.program


def test_variants_of_a_site_that_is_not_there_are_refused() -> None:
    from kernel_lsp.errors import RewriteError

    with pytest.raises(RewriteError, match="does not apply at nowhere"):
        session().variants([Step(skill="fused-pointwise", site="nowhere")], 0, 4)


def test_a_chain_made_step_by_step_is_the_chain_made_at_once() -> None:
    """Graphs after the first steps are remembered; nothing that is done with them may show in
    later ones."""
    total = "y.sum(1, keepdim=True).sum(1, keepdim=True)"
    forward = f"y = torch.sigmoid(x * 2.0) * x\nreturn torch.softmax({total} + y, dim=1)"
    skills = [
        skill(name) for name in ("fused-pointwise", "singleton-reduction", "fused-row-softmax")
    ]
    source = module(forward, inputs="torch.randn(3000, 1000)")

    def opened() -> EngineSession:
        return EngineSession(program(source), workload(), "cuda", skills)

    slow, steps = opened(), list[Step]()
    while left := slow.look(steps):
        steps.append(Step(skill=left[0].skill, site=left[0].site))
        for other in left[1:]:
            slow.make([*steps[:-1], Step(skill=other.skill, site=other.site)])
        slow.variants(steps, len(steps) - 1, 3)
    assert len(steps) >= 2
    assert slow.make(steps) == opened().make(steps) == opened().propose(steps).candidate


def test_a_skills_estimate_chooses_among_many_combinations(tmp_path: Path) -> None:
    """Largest blocks first, and none of the default's size; the center stays the first."""
    folder = tmp_path / "fused-pointwise"
    shutil.copytree(SKILLS / "fused-pointwise", folder)
    text = (folder / "rewrite.py").read_text()
    estimate = (
        "\n\ndef estimate(graph, match, parameters):\n"
        "    block = parameters['BLOCK_SIZE']\n"
        "    return float('inf') if block == 1024 else 1.0 / block\n"
    )
    (folder / "rewrite.py").write_text(text + estimate)
    copied = replace(skill("fused-pointwise"), path=str(folder))
    opened = EngineSession(
        program(module(GATED, inputs="torch.randn(3000, 1000)")), workload(), "cuda", [copied]
    )
    (found,) = opened.capture().sites
    default = {name: choices[0] for name, choices in found.parameters.items()}
    made = opened.variants([Step(skill=found.skill, site=found.site, parameters=default)], 0, 3)
    blocks = [candidate.steps[0].parameters["BLOCK_SIZE"] for candidate in made]
    best = max(block for block in found.parameters["BLOCK_SIZE"] if block != 1024)
    assert blocks[0] == default["BLOCK_SIZE"] and set(blocks[1:]) == {best}
    assert found.kind != site().kind  # another text of the skill is another kind
