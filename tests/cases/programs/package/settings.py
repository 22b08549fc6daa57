from dataclasses import dataclass, field
from enum import Enum


class Gate(Enum):
    SILU = "silu"
    GELU = "gelu"


@dataclass
class Settings:
    width: int = 64
    heads: int = 4
    gate: Gate = Gate.SILU
    limits: dict[str, float] = field(default_factory=lambda: {"clamp": 8.0})


@dataclass
class Cache:
    keys: list
    values: list
