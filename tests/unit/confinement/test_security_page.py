"""docs/explanation/security.md names only what is there."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_every_file_and_page_that_the_threat_model_names_exists() -> None:
    text = (ROOT / "docs" / "explanation" / "security.md").read_text()
    named = set(re.findall(r"`(kernel_lsp/[\w/.]+)`", text))
    assert len(named) >= 7
    assert not [path for path in named if not (ROOT / path).exists()]
    for link in re.findall(r"\]\(([\w./-]+\.md)\)", text):
        assert (ROOT / "docs" / "explanation" / link).exists(), link


def test_everybody_who_is_distrusted_has_what_remains() -> None:
    text = (ROOT / "docs" / "explanation" / "security.md").read_text()
    parts = text.split("\n### ")[1:]
    assert [part.split()[1].strip(":,") for part in parts] == [
        "repository", "candidate", "language", "teammate", "policy", "node",
    ]  # fmt: skip
    assert all("What remains:" in part for part in parts)
