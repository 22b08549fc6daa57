"""KL214: a configuration that autotuning measures twice."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernel_lsp.analysis.launches import Config
from kernel_lsp.analysis.rules.base import Hit, Rule, RuleSite, hit
from kernel_lsp.records import TargetKind

# What Triton takes for an option that a configuration leaves out.
_DEFAULTS = {
    "num_warps": "Constant(value=4)",
    "num_stages": "Constant(value=3)",
    "num_ctas": "Constant(value=1)",
}


def _check(site: RuleSite) -> Iterator[Hit]:
    tuning = site.tuning
    seen: dict[frozenset[tuple[str, str]], int] = {}
    for config in (tuning.configs or ()) if tuning else ():
        identity = _identity(config)
        if identity in seen:
            yield hit(
                config.node,
                f"the same configuration as in line {seen[identity]}: it is compiled and "
                f"measured twice",
                first_line=seen[identity],
            )
        seen.setdefault(identity, config.node.lineno)


def _identity(config: Config) -> frozenset[tuple[str, str]]:
    options = _DEFAULTS | {name: ast.dump(value) for name, value in config.options.items()}
    values = {name: ast.dump(value) for name, value in config.values.items()}
    return frozenset({**options, **values}.items())


KL214 = Rule(
    id="KL214",
    name="duplicate-autotune-config",
    summary="the same autotune configuration twice",
    severity="hint",
    kinds=frozenset({TargetKind.TRITON_KERNEL}),
    check=_check,
    unnecessary=True,
)
