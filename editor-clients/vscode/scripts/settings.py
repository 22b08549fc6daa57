"""Write the settings of kernel_lsp/config.py into package.json, or with --check say that they are
stale.

    python editor-clients/vscode/scripts/settings.py [--check]

Names, types, limits and descriptions have one home, the server. Not covered: the extension's own
settings, which stand in package.json and stay there."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import re
import sys
import typing
from pathlib import Path
from typing import Any

from kernel_lsp import config

MANIFEST = Path(__file__).resolve().parents[1] / "package.json"
OWN = ("server", "trace.server")
_MACHINE = "machine"
_TYPES = {int: "integer", float: "number", bool: "boolean", str: "string"}
_OF_TRUSTED_WORKSPACES = {"python": "machine-overridable", "skill_folders": "resource"}
"""What package.json restricts in workspaces that are not trusted, and what others may choose by
folder."""


def properties() -> dict[str, Any]:
    """One entry per server setting, in the order of the dataclass."""
    hints, words = typing.get_type_hints(config.Settings), descriptions()
    return {
        f"kernel-lsp.{field.name}": _entry(field, hints[field.name], words[field.name])
        for field in dataclasses.fields(config.Settings)
    }


def _entry(field: dataclasses.Field[Any], hint: Any, description: str) -> dict[str, Any]:
    kinds = [kind for kind in typing.get_args(hint) or (hint,) if kind is not type(None)]
    optional = type(None) in typing.get_args(hint)
    words = field.metadata.get("table_of")
    if words:
        texts = {"type": "string"}
        values = (
            {"type": "array", "items": texts}
            if words == "lists"
            else {**texts, "enum": list(words)}
        )
        entry: dict[str, Any] = {"type": "object", "additionalProperties": values}
    elif typing.get_origin(hint) is tuple:
        entry = {"type": "array", "items": {"type": "string"}}
    else:
        name = _TYPES[kinds[0]]
        entry = {"type": [name, "null"] if optional or field.name == "data_dir" else name}
    if choices := field.metadata.get("choices"):
        entry["enum"] = list(choices)
    if "low" in field.metadata:
        entry |= {"minimum": field.metadata["low"], "maximum": field.metadata["high"]}
    # The data folder's default is another one on each machine, and the server knows it.
    default = None if field.default is dataclasses.MISSING else field.default
    entry["default"] = list(default) if isinstance(default, tuple) else default
    if words:
        entry["default"] = {}
    entry["markdownDescription"] = description
    entry["scope"] = _scope(field.name)
    return entry


def _scope(name: str) -> str:
    """What a cloned repository may not decide cannot be set in its .vscode/settings.json either."""
    others = _MACHINE if name in config.NOT_FROM_PROJECT else "resource"
    return _OF_TRUSTED_WORKSPACES.get(name, others)


def descriptions() -> dict[str, str]:
    """The texts below the fields; one that goes on with "... and" is written out here."""
    tree = ast.parse(inspect.getsource(config))
    body = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Settings").body
    found: dict[str, str] = {}
    for field, text in zip(body, [*body[1:], ast.Pass()], strict=True):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            said = (
                text.value.value
                if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
                else ""
            )
            found[field.target.id] = (
                re.sub(r"\s+", " ", str(said)).replace("``", "`").replace("None:", "Unset:")
            )
    return found


def updated(manifest: dict[str, Any]) -> dict[str, Any]:
    settings = manifest["contributes"]["configuration"]
    own = {f"kernel-lsp.{name}": settings["properties"][f"kernel-lsp.{name}"] for name in OWN}
    settings["properties"] = {**own, **properties()}
    return manifest


def main() -> int:
    before = MANIFEST.read_text(encoding="utf-8")
    after = json.dumps(updated(json.loads(before)), indent=2, ensure_ascii=False) + "\n"
    if "--check" in sys.argv:
        if json.loads(before) != json.loads(after):
            print(
                f"{MANIFEST} does not list the server's settings: run {sys.argv[0]}",
                file=sys.stderr,
            )
            return 1
        return 0
    MANIFEST.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
