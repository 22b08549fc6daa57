"""The picture of `kernel-lsp optimize` in README: python docs/picture.py

It is what the program prints about the example of the pages, as SVG. tests/e2e/test_docs.py makes
it again and compares: same words, other numbers."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

PICTURE = Path(__file__).with_name("optimize.svg")
PAGE = Path(__file__).parent / "how-to" / "neovim.md"
COLUMNS = 112


def printed(folder: Path, data_dir: Path) -> str:
    """What `kernel-lsp optimize example.py` prints in a terminal, with its colors."""
    environment = {
        **os.environ,
        "KERNEL_LSP_DATA_DIR": str(data_dir),
        "FORCE_COLOR": "1",
        "COLUMNS": str(COLUMNS),
        "TERM": "xterm-256color",
    }
    environment.pop("NO_COLOR", None)
    command = [sys.executable, "-m", "kernel_lsp", "optimize", "example.py", "--device", "cpu"]
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"nothing to draw: {done.stdout}{done.stderr}")
    text = done.stdout.replace("  (from the cache)", "")
    return re.sub(r"evidence: \S+/", "evidence: ~/.local/share/kernel-lsp/evidence/", text)


def svg(text: str) -> str:
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(f"$ kernel-lsp optimize example.py\n{text}"))
    drawn = console.export_svg(title="kernel-lsp optimize", unique_id="optimize")
    return re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.S)  # fonts from the net


def words(drawn: str) -> set[str]:
    """Without numbers, and without where lines are broken."""
    shown = re.sub(r"<style>.*?</style>|<[^>]+>", " ", drawn, flags=re.S).replace("&#160;", " ")
    return {
        re.sub(r"[0-9a-f]*\d[0-9a-f]*", "#", word) for word in re.split(r"[\s─-╿]+", shown) if word
    }


def main() -> None:
    example = re.search(r"^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    assert example is not None
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "example.py").write_text(example[1])
        PICTURE.write_text(svg(printed(Path(name), Path(name) / "data")))
    print(f"{PICTURE} is written")


if __name__ == "__main__":
    main()
