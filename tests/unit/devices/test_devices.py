"""Devices are data: one description per architecture, and costs follow the one that a target will
run on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kernel_lsp import devices

ROOT = Path(__file__).resolve().parents[3]


def test_the_reference_is_what_costs_were_fitted_on() -> None:
    for found in (
        devices.describe("cuda"),
        devices.describe("cuda", "sm_90", "NVIDIA H100 80GB HBM3"),
    ):
        assert (found.processors, found.bytes_per_s, found.flops_per_s) == (132, 4.3e12, 50e12)
        assert found.overhead_s == 6e-6


@pytest.mark.parametrize(
    ("capability", "used"),
    [
        *((name, name) for name in devices.GPUS),
        ("sm_75", "sm_80"),
        ("sm_86", "sm_80"),
        ("sm_103", "sm_100"),
        ("sm_121", "sm_120"),
    ],
)
def test_an_unlisted_architecture_is_the_nearest_older_one(capability: str, used: str) -> None:
    assert devices.describe("cuda", capability).capability == used


def test_every_description_is_complete_and_none_is_another_one() -> None:
    assert set(devices.GPUS) == {"sm_80", "sm_89", "sm_90", "sm_100", "sm_120"}
    rates = {(one.bytes_per_s, one.flops_per_s, one.processors) for one in devices.GPUS.values()}
    assert len(rates) == len(devices.GPUS)
    for name, one in devices.GPUS.items():
        assert one.capability == name and "bf16" in one.features
        assert one.shared_bytes and one.l2_bytes and one.title.split()[0] in ("a", "an")


def test_cards_of_one_architecture_differ_in_their_memory() -> None:
    slow = devices.describe("cuda", "sm_89", "NVIDIA L4")
    fast = devices.describe("cuda", "sm_89", "NVIDIA GeForce RTX 4090")
    assert (slow.title, fast.title) == ("an L4", "an RTX 4090")
    assert fast.bytes_per_s / slow.bytes_per_s == pytest.approx(1008 / 300)
    assert devices.describe("cuda", "sm_80", "NVIDIA A100-SXM4-80GB") == devices.GPUS["sm_80"]
    assert devices.describe("cuda", "sm_89", "Some Card") == devices.GPUS["sm_89"]


def test_a_cpu_is_a_cpu_whatever_gpu_stands_beside_it() -> None:
    assert devices.describe("cpu", "sm_90", "NVIDIA H200") == devices.CPU


def test_no_cost_model_and_no_generated_text_names_a_card() -> None:
    """Comments and docstrings say where numbers were measured; code and text for users do not."""
    sources = [
        *(ROOT / "kernel_lsp" / "rewrite").rglob("*.py"),
        *(ROOT / "skills").glob("*/rewrite.py"),
    ]
    for path in sources:
        code = re.sub(r'""".*?"""|#[^\n]*', "", path.read_text(), flags=re.S)
        assert not re.search(r"\b132\b", code), path
        assert "H200's" not in re.sub(r"_ANSWERS.*", "", code, flags=re.S), path


@pytest.mark.torch
def test_costs_follow_the_device_and_survive_a_rewrite() -> None:
    from rewrite_helpers import module, program, skill, workload

    from kernel_lsp.records import Step
    from kernel_lsp.rewrite import engine
    from kernel_lsp.rewrite.cost import operations as cost

    source = module("return torch.relu(x * 2.0 + 1.0)", inputs="torch.randn(4096, 4096)")
    skills = [skill("fused-pointwise")]
    seconds = {}
    for capability in ("sm_80", "sm_90", "sm_100"):
        session = engine.open_session(
            program(source), workload(), "cuda", skills, gpu=(capability, None)
        )
        assert isinstance(session, engine.EngineSession)
        seconds[capability] = cost.total(session.graph)
        roof = session.explain().roof
        assert roof is not None and roof.device == devices.GPUS[capability].title
        (site,) = session.capture().sites
        step = Step(skill=site.skill, site=site.site)
        assert session.propose([step]).candidate.edit is not None
        assert session.graph.copy().hardware.capability == capability
    assert seconds["sm_80"] > seconds["sm_90"] > seconds["sm_100"]
    plain = engine.open_session(program(source), workload(), "cuda", skills)
    assert isinstance(plain, engine.EngineSession) and cost.total(plain.graph) == seconds["sm_90"]
