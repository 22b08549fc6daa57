"""What scripts read on standard output: one JSON object, with the version of its shape."""

from __future__ import annotations

import json

from kernel_lsp import wire
from kernel_lsp.records import SCHEMA_VERSION


def to_versioned_json(**content: object) -> str:
    """Records become plain values. Ends without a line break."""
    return json.dumps({"schema_version": SCHEMA_VERSION, **wire.to_json(content)}, indent=2)
