"""What a module's call has changed about it: caches that the first one fills (rotary tables,
positions, masks of a length).

A snapshot of a module that is still empty shows how it is filled, and not what it computes from
then on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

CONTAINERS = (dict, list, set)


@dataclass(frozen=True)
class ModuleAttributes:
    """Of a module and its parts at one time; equal where no attribute has changed."""

    found: list[Any]
    held: list[Any] = field(compare=False)
    """What the attributes held: another object cannot take the place of one that is held."""


def state_of(module: Any) -> ModuleAttributes:
    """Which objects the attributes of the module and of its parts are, and how many things those
    hold that are containers. What lies deeper is not seen, nor what is written into a tensor."""
    found, held = list[Any](), list[Any]()
    for part in module.modules():
        for name, value in vars(part).items():
            size = len(value) if isinstance(value, CONTAINERS) else 0
            found.append((name, id(value), size))
            held.append(value)
            if name in ("_parameters", "_buffers", "_modules"):
                found += map(id, value.values())
                held += value.values()
    return ModuleAttributes(found, held)
