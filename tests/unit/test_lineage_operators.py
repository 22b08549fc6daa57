"""Simplification operators: what each makes of a kernel's text, and that experts end at naive kernels."""

from functools import cache
from pathlib import Path

import pytest

from kernel_lsp.errors import RewriteError
from kernel_lsp.lineage import catalog
from kernel_lsp.pipeline.prepare import Prepared, prepare
from kernel_lsp.records import Candidate, Job, Site, Step
from kernel_lsp.rewrite.kernels.session import KernelSession
from kernel_lsp.rewrite.kernels.source import Source

pytestmark = pytest.mark.torch
pytest.importorskip("torch")
pytest.importorskip("triton")

EXPERTS = Path(__file__).resolve().parents[2] / "benchmarks" / "experts"


@cache
def session(name: str) -> KernelSession:
    path = EXPERTS / f"{name}.py"
    one = prepare(Job(text=path.read_text(), path=str(path), qualname=f"{name}_kernel"))
    assert isinstance(one, Prepared)
    return KernelSession(one.program, one.workload, "cuda", list(catalog.operators()))


def test_a_statement_without_text_goes_with_its_line() -> None:
    text = "def kernel():\n    a = 1  # one\n    b = 2\n    c = 3; d = 4\n\n\ndef launch():\n    kernel()\n"
    source = Source.parse(text, "kernel", "launch")
    first, second, third, _ = source.function("kernel").body
    assert source.edited([(second, "")]).text == text.replace("    b = 2\n", "")
    assert source.edited([(first, "x = 1")]).text == text.replace("a = 1", "x = 1")
    with pytest.raises(RewriteError, match="would not compile"):  # its line holds another one
        source.edited([(third, "")])


def chain(name: str) -> tuple[Candidate, ...]:
    """Every operator that matches, one after the other, each with its most drastic choice."""
    opened, made = session(name), list[Candidate]()
    while sites := sorted(opened.look(list(_steps(made))), key=lambda site: catalog.place(site.skill)):
        made.append(opened.make([*_steps(made), _step(sites[0])]))
    return tuple(made)


def _steps(made: list[Candidate]) -> tuple[Step, ...]:
    return made[-1].steps if made else ()


def _step(site: Site) -> Step:
    return Step(skill=site.skill, site=site.site, parameters={n: c[0] for n, c in site.parameters.items()})


TAKEN = {
    "matmul": [
        "drop_autotune",
        "plain_pointers",
        "no_grouped_order",
        "unfused_epilogue",
        "exact_products",
        "one_stage",
        "smaller_tile",
        "fewer_warps",
    ],
    "softmax": [
        "two_passes",
        "plain_exponentials",
        "no_hints",
        "no_eviction",
        "one_stage",
        "smaller_tile",
        "fewer_warps",
    ],
    "layer_norm": [
        "loads_where_used",
        "one_tile_per_program",
        "no_hints",
        "no_eviction",
        "fewer_warps",
    ],
    "attention": [
        "drop_autotune",
        "loads_where_used",
        "whole_loop",
        "two_passes",
        "plain_exponentials",
        "exact_products",
        "one_stage",
        "smaller_tile",
        "fewer_warps",
    ],
    "scan": [
        "drop_autotune",
        "no_hints",
        "no_eviction",
        "plain_loops",
        "one_stage",
        "smaller_tile",
        "fewer_warps",
    ],
}


@pytest.mark.parametrize("name", TAKEN)
def test_every_expert_is_walked_back_to_a_naive_kernel(name: str) -> None:
    assert [step.skill for step in chain(name)[-1].steps] == TAKEN[name]
