"""A recorded call, made in this process: a module of a file of its own, called once."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import cloudpickle
import torch

from kernel_lsp.records import Home, Program, TargetKind, TorchSetting, Workload, WorkloadOrigin
from kernel_lsp.snapshots import store
from kernel_lsp.snapshots.keeping import Keeper

HEAD = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n\n"


def recorded(
    folder: Path,
    text: str,
    entry: str,
    init: tuple[Any, ...],
    *args: Any,
    gradients: bool = True,
    **kwargs: Any,
) -> tuple[Program, Workload]:
    """``text``: of a file that defines the class ``entry``, behind `HEAD`; ``init``: its
    constructor's."""
    name = f"recorded_{folder.name}_{entry.lower()}".replace("-", "_")
    path = folder / f"{name}.py"
    path.write_text(HEAD + text)
    sys.path.insert(0, str(folder))
    try:
        importlib.invalidate_caches()
        module = importlib.import_module(name)
        torch.manual_seed(0)
        made = getattr(module, entry)
        target = made(*init) if isinstance(made, type) else made
        kept = Keeper(str(folder), cloudpickle, torch).keep(target, args, kwargs, {})
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop(name, None)
    home = Home(
        module=name,
        path=str(path),
        snapshot=str(folder / kept.name),
        search_path=(str(folder), *sys.path),
        pickler=store.cloudpickle_file(),
    )
    kind = TargetKind.MODULE if isinstance(made, type) else TargetKind.FUNCTION
    program = Program(source=path.read_text(), entry=entry, kind=kind, home=home)
    workload = Workload(
        name="recorded",
        origin=WorkloadOrigin.RECORDED,
        training=True,
        setting=TorchSetting(gradients=True),
    )
    return program, workload
