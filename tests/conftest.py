"""What every test shares: hypothesis looks at behavior, never at how long a busy machine took, and files that
take long are begun first."""

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("behavior", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("behavior")

LONGEST = (
    "unit/test_codegen_conv.py",
    "adversarial/test_candidates.py",
    "unit/test_codegen_kernels.py",
    "unit/test_codegen_matmul.py",
    "e2e/test_cli.py",
    "e2e/test_docs.py",
    "e2e/test_server_bad_input.py",
    "e2e/test_server.py",
    "unit/test_cluster.py",
    "unit/test_algebra_affine.py",
    "unit/test_backbone_transformers.py",
    "unit/test_codegen_attention.py",
    "adversarial/test_baselines.py",
)
"""By measured seconds of processor time (200 to 45), save that a person's commands come after files that only
compute, when scripts/test has installed everything. xdist gives whole files to its processes in this order
(scripts/test): one of these at the end would keep one core busy for minutes, and the others idle."""


def _rank(item: pytest.Item) -> int:
    name = "/".join(item.path.parts[-2:])
    return LONGEST.index(name) if name in LONGEST else len(LONGEST)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_rank)
