"""What would be sent to a language model, in a document of the editor."""

from __future__ import annotations

import re
from pathlib import Path

from lsprotocol import types

from kernel_lsp.records import Json
from kernel_lsp.server.app import KernelServer


async def show(ls: KernelServer, uri: str, qualname: str) -> Json:
    """Shown where the client can show a document, and returned in any case. Raises
    KernelLspError."""
    document = ls.session.documents[uri]
    settings = ls.settings(document.folder)
    text: str = await ls.host.ask("prompts", job=ls.job(uri, qualname), settings=settings)
    name = re.sub(r"[^\w.-]", "_", qualname)
    path = Path(settings.data_dir) / "reports" / f"prompt-{name}.md"
    try:
        await ls.off_loop(write, path, text)
    except OSError as error:
        ls.say(f"{path} cannot be written: {error}", types.MessageType.Warning)
        return {"qualname": qualname, "prompt": text}
    if ls.abilities.show_document:
        await ls.window_show_document_async(
            types.ShowDocumentParams(uri=path.as_uri(), take_focus=True)
        )
    else:
        ls.say(text)
    return {"qualname": qualname, "prompt": text, "path": str(path)}


def write(path: Path, text: str) -> None:
    """Writes the text, and makes the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
