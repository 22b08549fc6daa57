"""What a module's call has changed about it: caches that the first one fills (rotary tables,
positions, masks of a length).

A snapshot of a module that is still empty shows how it is filled, and not what it computes from
then on."""

from __future__ import annotations

from typing import Any

CONTAINERS = (dict, list, set)


def state_of(module: Any) -> list[Any]:
    """Equal before and after a call that changed no attribute of the module and of its parts: which
    objects they are, and how many things those hold that are containers. What lies deeper is not
    seen, nor what is written into a tensor."""
    found: list[Any] = []
    for part in module.modules():
        for name, value in vars(part).items():
            size = len(value) if isinstance(value, CONTAINERS) else 0
            found.append((name, id(value), size))
            if name in ("_parameters", "_buffers", "_modules"):
                found += map(id, value.values())
    return found
