"""Links of pages that lead out of docs/ become links to the repository.

A file that is not there is a warning, for which `mkdocs build --strict` fails.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

LOG = logging.getLogger("mkdocs.hooks.links")
LINK = re.compile(r"(\]\(|^\[[^\]]+\]: )((?:\.\./)+[^)\s#]+)", re.M)


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    docs = Path(config.docs_dir).resolve()
    here = Path(page.file.abs_src_path).parent

    def lead_out(found: re.Match[str]) -> str:
        target = (here / found[2]).resolve()
        if target.is_relative_to(docs):
            return found[0]
        if not target.exists():
            LOG.warning("%s: %s is not in the repository", page.file.src_path, found[2])
        kind = "tree" if target.is_dir() else "blob"
        return f"{found[1]}{config.repo_url}/{kind}/main/{target.relative_to(docs.parent)}"

    return LINK.sub(lead_out, markdown)
