"""What a client announced, reduced to the questions we ask. Nothing is sent that was not
announced."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lsprotocol import types

SHOW_PICTURES = (
    "Visual Studio Code",
    "Visual Studio Code - Insiders",
    "Code - OSS",
    "VSCodium",
    "code-server",
    "Cursor",
    "Windsurf",
)
"""LSP has no word for it; others show the text of an image, which is a wall of letters."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Abilities:
    resolve: bool = False
    """Code actions may be given their edit later, and bring our data back."""
    disabled: bool = False
    preferred: bool = False
    literals: bool = False
    """Code actions may be more than bare commands."""
    versioned: bool = False
    """Edits may carry the version they were made for."""
    apply_edit: bool = False
    creates: bool = False
    """Edits may make new files."""
    annotations: bool = False
    """Edits may ask which of their changes are wanted."""
    diagnostic_data: bool = False
    diagnostic_version: bool = False
    diagnostic_link: bool = False
    """Diagnostics may link to the page of their rule."""
    diagnostic_tags: bool = False
    """What is unnecessary is drawn faded."""
    pull: bool = False
    """The client asks for diagnostics, and takes it when it is told to ask again."""
    renames: bool = False
    """The client asks for edits before it renames files."""
    lens_refresh: bool = False
    inlay_refresh: bool = False
    progress: bool = False
    show_document: bool = False
    configuration: bool = False
    watched_files: bool = False
    status: bool = False
    markdown: bool = False
    pictures: bool = False
    """Hovers show images that are part of their text."""
    name: str | None = None
    """Editor and version, for the journal."""


def of(params: types.InitializeParams) -> Abilities:
    """What the client can do, as it said when it connected; what it did not mention it cannot."""
    caps = params.capabilities
    action = _get(caps, "text_document.code_action")
    published = _get(caps, "text_document.publish_diagnostics")
    resolvable = _get(action, "resolve_support.properties") or []
    formats = _get(caps, "text_document.hover.content_format") or []
    experimental = caps.experimental if isinstance(caps.experimental, dict) else {}
    info = params.client_info
    return Abilities(
        resolve="edit" in resolvable
        and bool(_get(action, "data_support"))
        and not _is_lsp_mode(info),
        disabled=bool(_get(action, "disabled_support")),
        preferred=bool(_get(action, "is_preferred_support")),
        literals=_get(action, "code_action_literal_support") is not None,
        versioned=bool(_get(caps, "workspace.workspace_edit.document_changes")),
        creates=types.ResourceOperationKind.Create
        in (_get(caps, "workspace.workspace_edit.resource_operations") or []),
        annotations=bool(_get(caps, "workspace.workspace_edit.document_changes"))
        and _get(caps, "workspace.workspace_edit.change_annotation_support") is not None,
        apply_edit=bool(_get(caps, "workspace.apply_edit")),
        diagnostic_data=bool(_get(published, "data_support")),
        diagnostic_version=bool(_get(published, "version_support")),
        diagnostic_link=bool(_get(published, "code_description_support")),
        diagnostic_tags=types.DiagnosticTag.Unnecessary
        in (_get(published, "tag_support.value_set") or []),
        pull=_get(caps, "text_document.diagnostic") is not None
        and bool(_get(caps, "workspace.diagnostics.refresh_support")),
        renames=bool(_get(caps, "workspace.file_operations.will_rename")),
        lens_refresh=bool(_get(caps, "workspace.code_lens.refresh_support")),
        inlay_refresh=bool(_get(caps, "workspace.inlay_hint.refresh_support")),
        progress=bool(_get(caps, "window.work_done_progress")),
        show_document=bool(_get(caps, "window.show_document.support")),
        configuration=bool(_get(caps, "workspace.configuration")),
        watched_files=bool(_get(caps, "workspace.did_change_watched_files.dynamic_registration")),
        status=bool(experimental.get("serverStatusNotification")),
        markdown=types.MarkupKind.Markdown in formats,
        pictures=types.MarkupKind.Markdown in formats
        and info is not None
        and info.name in SHOW_PICTURES,
        name=f"{info.name} {info.version or ''}".strip() if info is not None else None,
    )


def _is_lsp_mode(info: types.ClientInfo | None) -> bool:
    """Emacs's lsp-mode announces that it resolves actions, but runs one with a command without its
    edit."""
    return (
        info is not None and info.name == "emacs" and (info.version or "").startswith("GNU Emacs")
    )


def _get(root: Any, path: str) -> Any:
    for name in path.split("."):
        root = getattr(root, name, None)
    return root
