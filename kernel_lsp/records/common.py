"""What every kind of record may use."""

from __future__ import annotations

from typing import Any, TypeAlias

Json: TypeAlias = dict[str, Any]
SCHEMA_VERSION = 1
