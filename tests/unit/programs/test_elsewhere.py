"""Optimizers that a package makes: what its user can do is read from the call that makes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kernel_lsp.programs.elsewhere import advice

NAMED = "optimizer = torch.optim.AdamW(\n    params,\n    lr=rate(1),\n)\n"
GIVEN = "optimizer = wrap(kind(params, lr=rate(1), **self.options))\n"
PASSED = "optimizer = self.kind(params)\n"


def _said(tmp_path: Path, text: str, *, line: int = 1, **more: Any) -> str | None:
    file = tmp_path / "site-packages" / "lib" / "loop.py"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    seen = {"kind": "AdamW", "module": "torch.optim.adamw", "fused": None, "foreach": None,
            "made": (str(file), line)}  # fmt: skip
    return advice({**seen, **more}, lambda path: path.name == "train.py")


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        (NAMED, 1, "nothing can be set"),
        (NAMED, 3, "nothing can be set"),
        (GIVEN, 1, "what the package takes as self.options may hold fused=True"),
        (PASSED, 1, "(self.kind there), give it functools.partial(torch.optim.AdamW, fused=True)"),
        ("x = 1\n", 1, "see whether the package takes arguments"),
        ("def broken(:\n", 1, "see whether the package takes arguments"),
    ],
)
def test_what_a_user_can_do_is_said_with_the_place(
    tmp_path: Path, text: str, line: int, words: str
) -> None:
    said = _said(tmp_path, text, line=line)
    assert said is not None and words in said and f"in lib/loop.py:{line}," in said


@pytest.mark.parametrize(
    "more",
    [
        {"fused": True}, {"foreach": False}, {"kind": "LBFGS"}, {"made": None},
        {"module": "lib.optimizers"}, {"made": ("/work/train.py", 1)},
    ],
)  # fmt: skip
def test_one_that_is_chosen_or_the_programs_own_is_none(
    tmp_path: Path, more: dict[str, Any]
) -> None:
    assert _said(tmp_path, NAMED, **more) is None
