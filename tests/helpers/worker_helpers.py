"""What a worker is asked, as cascade.py asks it."""

from typing import Any

from kernel_lsp import wire
from kernel_lsp.evaluator.callees import Conduct
from kernel_lsp.records import Program, TargetKind, Workload, WorkloadOrigin


def loading(source: str, init: Any, entry: str = "target") -> dict[str, Any]:
    """The request that loads a candidate."""
    program = Program(source=source, entry=entry, kind=TargetKind.FUNCTION)
    workload = Workload(name="test", origin=WorkloadOrigin.GET_INPUTS, training=False)
    parts = {"program": program, "reference": program, "workload": workload, "conduct": Conduct()}
    return {
        "do": "load",
        "init": init,
        **{name: wire.to_json(part) for name, part in parts.items()},
    }
