"""A skill that is text, read by a model that does what it says: pairs, the null half, no second
asking."""

from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from library_helpers import lesson
from scripted_model import Say, ScriptedModel
from test_pipeline_deep import Scene

from kernel_lsp.errors import EvaluationError
from kernel_lsp.library import SkillLibrary
from kernel_lsp.library.store import Shelved
from kernel_lsp.pipeline.skill_validation import Validating, VerificationRequest
from kernel_lsp.records import Lesson, SkillDraft, Verification

TEXT = """## Motivation

Small values of a are slow.

## Key Idea

Take the largest a: THREE.

## Example

```
a = 3
```

## Pitfalls

None is known.
"""


def draft(folder: Path) -> Shelved:
    library = SkillLibrary(folder)
    made = SkillDraft(
        name="large-a", description="Take a large a", scope="graph", tags=("a",), content=TEXT
    )
    library.stage(Lesson(draft=made, origin=lesson().origin))
    (found,) = library.staged()
    return found


def obedient(body: dict[str, Any]) -> Say:
    """f with a = 3 when it reads the skill, with a = 0 otherwise."""
    told = "THREE" in str(body["messages"])
    return Say(
        tool="apply_skill",
        arguments={"skill": "f", "site": "n", "parameters": {"a": 3 if told else 0}},
    )


async def verified(folder: Path, server: ScriptedModel) -> Verification:
    scene = Scene(folder)

    @asynccontextmanager
    async def opened(job: object) -> Any:
        async with scene.turn():
            yield scene.opened()

    settings = scene.settings(policy="openai", endpoint=server.endpoint)
    pipeline: Any = SimpleNamespace(settings=settings, opened=opened)
    (folder / "task.py").write_text("class Model: ...")
    asked = VerificationRequest(tasks=(folder / "task.py",), samples=2)
    proof = Validating(
        pipeline=pipeline, shelved=_only(folder), library=(), asked=asked, report=lambda step: None
    )
    return await proof.run()


def _only(folder: Path) -> Shelved:
    (found,) = SkillLibrary(folder).staged()
    return found


async def test_the_same_turn_with_and_without_the_text(tmp_path: Path) -> None:
    """f3 is 1.8 times as fast, f0 1.2 times: the scripted judge says so."""
    draft(tmp_path)
    async with ScriptedModel(obedient) as server:
        found = await verified(tmp_path, server)
        asked = [str(request) for request in server.requests if "messages" in str(request)]
        assert len(asked) == 4 and sum("THREE" in one for one in asked) == 2
        again = await verified(tmp_path, server)
        assert len([one for one in server.requests if "messages" in str(one)]) == 4
    (task,) = found.tasks
    assert (task.samples, task.right_with, task.right_without) == (2, 2, 2)
    assert (task.gain_with, task.gain_without) == pytest.approx((0.5878, 0.1823), abs=1e-4)
    assert found.credit == {"large-a": pytest.approx(0.4055, abs=1e-4)}
    assert found.versions["model"].startswith("openai:") and not found.accepted and found.undecided
    assert again.tasks == found.tasks


async def test_what_a_model_says_that_is_no_rewrite_gains_nothing(tmp_path: Path) -> None:
    draft(tmp_path)
    async with ScriptedModel([Say("I would rather not.")]) as server:
        (task,) = (await verified(tmp_path, server)).tasks
    assert (task.right_with, task.right_without, task.gain_with) == (0, 0, 0.0)


async def test_without_a_model_it_is_said_what_is_missing(tmp_path: Path) -> None:
    draft(tmp_path)
    pipeline: Any = SimpleNamespace(settings=Scene(tmp_path).settings())
    proof = Validating(
        pipeline=pipeline,
        shelved=_only(tmp_path),
        library=(),
        asked=VerificationRequest(tasks=(tmp_path,)),
        report=lambda step: None,
    )
    with pytest.raises(EvaluationError, match="is text, and no language model is set"):
        await proof.run()
