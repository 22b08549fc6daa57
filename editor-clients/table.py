"""Write the table of features in editor-clients/README.md: python editor-clients/table.py

It comes from editor-clients/features/*.json, which the tests write and compare with what they saw.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
README, RECORDS = HERE / "README.md", HERE / "features"
BEGIN, END = "<!-- written by editor-clients/table.py -->\n", "<!-- end -->\n"
ORDER = (
    "vscode",
    "neovim",
    "neovim-0.11",
    "emacs-eglot",
    "emacs-lsp-mode",
    "emacs-29",
    "kate",
    "helix",
    "zed",
    "jetbrains",
    "sublime",
)
FEATURES = {
    "consent": "asks before code of a folder runs",
    "hint": "hint with the verified speedup",
    "hover": "evidence on hover",
    "lens": "state above each target (lens)",
    "menu": "rewrite in the editor's own menu of code actions",
    "diff": "both sides before it is applied",
    "apply": "applies, checked once more against the text",
    "undo": "an undo is noticed, the hint comes back",
    "evidence": "the full report as a document",
    "dismiss": "dismiss, for this code or this folder",
    "search": "search deeper, in the background",
    "cancel": "stops what runs",
    "progress": "progress bar with a stop button",
    "status": "what runs, in the status line",
    "restart": "restart by a command",
    "crash": "a crash is survived, or said with the remedy",
    "doctor": "doctor by a command",
}
MARKS = {True: "yes", False: "no", None: ""}


def records() -> list[dict[str, Any]]:
    found = {path.stem: json.loads(path.read_text()) for path in RECORDS.glob("*.json")}
    unknown = set(found) - set(ORDER)
    if unknown:
        raise SystemExit(f"{sorted(unknown)}: give them a place in ORDER of {__file__}")
    return [found[name] for name in ORDER if name in found]


def table(editors: list[dict[str, Any]]) -> str:
    """Markdown. An empty cell: no test looked."""
    head = ["", *(editor["editor"] for editor in editors)]
    rows = [["tested in", *(editor["how"] for editor in editors)]]
    rows += [
        [words, *(MARKS[editor["features"].get(feature)] for editor in editors)]
        for feature, words in FEATURES.items()
    ]
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def with_table(text: str) -> str:
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}{table(records())}{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    README.write_text(with_table(README.read_text()))
