"""What a user gets from each skill, word for word: `tests/cases/golden/<skill>.in.py` becomes
`<skill>.py`.

KERNEL_LSP_UPDATE_GOLDEN=1 pytest tests/unit/rewrite/test_golden.py -k <skill>     writes the file; read it
"""

import ast
import difflib
import os

import golden_helpers as golden
import pytest

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

UPDATE = os.environ.get("KERNEL_LSP_UPDATE_GOLDEN") == "1"
CASES = sorted(path.name.removesuffix(".in.py") for path in golden.GOLDEN.glob("*.in.py"))


@pytest.mark.parametrize("name", CASES)
def test_the_rewritten_file_is_the_golden_one(name: str) -> None:
    path = golden.GOLDEN / f"{name}.py"
    now = golden.rewritten(name)
    if UPDATE:
        path.write_text(now)
    before = path.read_text() if path.exists() else ""
    changes = "\n".join(
        difflib.unified_diff(before.splitlines(), now.splitlines(), path.name, "now", lineterm="")
    )
    assert now == before, (
        f"run with KERNEL_LSP_UPDATE_GOLDEN=1 when this is what it should be:\n{changes}"
    )


@pytest.mark.parametrize("name", CASES)
def test_a_reader_who_never_saw_the_engine_understands_it(name: str) -> None:
    text = (golden.GOLDEN / f"{name}.py").read_text()
    ast.parse(text)
    assert golden.invented_names(text) == []
    assert golden.unexplained_masks(text) == []
    assert golden.launchers_without_shapes(text) == []


def test_every_skill_has_its_golden_pair_and_none_is_left_of_a_skill_that_is_gone() -> None:
    assert golden.names() == CASES
    stems = {
        path.name.removesuffix(".in.py").removesuffix(".py") for path in golden.GOLDEN.glob("*.py")
    }
    assert stems == set(CASES)
