"""C++ extensions of a candidate: read as literals, built once and confined, judged like any
other."""

import ast
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from kernel_lsp.errors import EvaluationError
from kernel_lsp.evaluator import (
    COMPILED,
    EvaluationBudget,
    EvaluationRequest,
    Gate,
    evidence,
    guards,
    native,
)
from kernel_lsp.evaluator.findings import PartialEvaluation
from kernel_lsp.evaluator.verify import request_from_files
from kernel_lsp.guarding import accept_file, acceptances, guard
from kernel_lsp.records import Acceptance, EvalStatus, Evaluation, Evidence, Holding

REFERENCE = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return x.sum(dim=1, keepdim=True)

def get_inputs():
    return [torch.rand(64, 32)]

def get_init_inputs():
    return []
"""
SOURCES = '''
import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
template <typename F> torch::Tensor each_row(torch::Tensor x, F finish) {
  TORCH_CHECK(x.dim() == 2 && x.is_contiguous() && x.scalar_type() == torch::kFloat);
  auto out = torch::empty({x.size(0), 1}, x.options());
  auto a = x.accessor<float, 2>();
  auto o = out.accessor<float, 2>();
  for (int64_t i = 0; i < x.size(0); ++i) {
    double s = 0;
    for (int64_t j = 0; j < x.size(1); ++j) s += a[i][j];
    o[i][0] = finish(s);
  }
  return out;
}
torch::Tensor right(torch::Tensor x) { return each_row(x, [](double s) { return s; }); }
torch::Tensor wrong(torch::Tensor x) { return each_row(x, [](double s) { return s + 1e-2; }); }
torch::Tensor endless(torch::Tensor x) { volatile int go = 1; while (go) {} return x; }
torch::Tensor crash(torch::Tensor x) { *(volatile int*)8 = 1; return x; }
"""
rows = load_inline("row_sums", SOURCE, functions=["right", "wrong", "endless", "crash"])


class ModelNew(nn.Module):
    def forward(self, x):
        return rows.right(x.contiguous())
'''

WITHOUT_HEADERS = """
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = "int right(int x) { doubel s = x; return s; }"
rows = load_inline("row_sums", SOURCE, functions=["right"], no_implicit_headers=True)


"""


def request(candidate: str) -> EvaluationRequest:
    made = request_from_files(
        REFERENCE,
        candidate,
        device="cpu",
        require_speed=False,
        inference=True,
        allow_native=True,
    )
    return replace(made, budget=EvaluationBudget(call_s=8.0))


# --- reading --------------------------------------------------------------------------------


def test_a_call_is_read_as_it_will_be_made() -> None:
    (extension,) = native.find(SOURCES)
    assert extension["name"] == "row_sums" and "each_row" in extension["cpp_sources"][0]
    same = native.normalized(
        {
            "name": "row_sums",
            "cpp_sources": extension["cpp_sources"][0],
            "functions": ("right", "wrong", "endless", "crash"),
            "verbose": True,
        }
    )
    assert native.key(same) == native.key(extension)
    assert native.key({**same, "with_cuda": False}) != native.key(extension)


@pytest.mark.parametrize(
    ("call", "why"),
    [
        ("load_inline('a', open('x').read())", "is no literal"),
        ("load_inline('a', TEXT, extra_ldflags=['-lfoo'])", "extra_ldflags"),
        ("load_inline('a', TEXT, extra_include_paths=['/etc'])", "extra_include_paths"),
        ("load_inline('../a', TEXT)", "no name of a module"),
        ("load_inline(*SOME)", "is no literal"),
        ("load_inline('a', **SOME)", "not named"),
        ("load('a', ['a.cpp'])", "reads files"),
        ("load_inline({[]: 1})", "is no literal"),
        ("load_inline('a', TEXT, functions={'f': b'x'})", "functions"),
        ("load_inline('a', TEXT, with_cuda=b'x')", "with_cuda"),
        ("load_inline('a', TEXT, with_cuda=1j)", "with_cuda"),
        ("load_inline(True, TEXT)", "no name of a module"),
        ("load_inline('a' 'b' '" + "c" * 200 + "', TEXT)", "no name of a module"),
        (r"load_inline('a', '\ud800')", "cpp_sources"),
        ("[load_inline('a', str(i)) for i in x]", "is no literal"),
        ("(" + ", ".join(f"load_inline('a{i}', TEXT)" for i in range(9)) + ")", "at most 8"),
    ],
)
def test_what_is_not_written_in_literals_is_not_judged(call: str, why: str) -> None:
    text = f"from torch.utils.cpp_extension import load, load_inline\nTEXT = ''\nm = {call}\n"
    with pytest.raises(EvaluationError, match=why):
        native.find(text)


def test_a_name_that_is_assigned_twice_is_no_literal() -> None:
    text = "from torch.utils import cpp_extension as c\nT = 'a'\nT += 'b'\nc.load_inline('a', T)\n"
    with pytest.raises(EvaluationError, match="T is no literal"):
        native.find(text)


@pytest.mark.parametrize(
    ("text", "suspicious"),
    [
        ("from torch.utils.cpp_extension import load_inline as build\nbuild('a', '')", False),
        ("import torch.utils.cpp_extension as c\nc.load_inline('a', '')", False),
        ("from torch.utils import cpp_extension\ncpp_extension.load_inline('a', '')", False),
        ("from torch.utils import cpp_extension\ncpp_extension.subprocess.run('id')", True),
        ("import torch.utils.cpp_extension as c\nc.os.system('id')", True),
        ("import torch.utils.cpp_extension as c\nf = c\nf.load('a', [])", True),
        ("from torch.utils.cpp_extension import load_inline, subprocess", True),
        ("import torch.utils.cpp_extension, subprocess", True),
    ],
)
def test_only_load_inline_is_no_suspicion(text: str, suspicious: bool) -> None:
    ast.parse(text)
    assert bool(guards.scan(text, native=True)) is suspicious
    assert guards.scan(text)  # whoever may not bring native code


def test_a_persons_files_may_bring_it_and_evidence_says_so() -> None:
    asked = request(SOURCES)
    assert asked.native and asked.timeout_s > native.BUILD_S
    plain = request(SOURCES.replace("cpp_extension", "other"))
    assert not request_from_files(REFERENCE, SOURCES).native  # who asks for a model's candidate
    for one in (asked, plain):
        verdict = Evaluation(status=EvalStatus.PASSED, device="cpu")
        kept = evidence.gather(evidence.with_seed(one), PartialEvaluation(), verdict)
        assert evidence.request_of(kept).native is one.native is (one is asked)


# --- judging ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def gate(data_dir: Path) -> AsyncIterator[Gate]:
    """With the folder of what was built that `guard` has: a build takes 20 s, and is kept by its
    sources."""
    async with Gate(cache=data_dir / COMPILED) as made:
        yield made


@pytest.mark.torch
@pytest.mark.timeout(900)
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("function", "status", "words"),
    [
        ("right", EvalStatus.PASSED, ""),
        ("wrong", EvalStatus.WRONG_RESULT, ""),
        ("endless", EvalStatus.TIMED_OUT, "took longer than 8 s"),
        ("crash", EvalStatus.RUNTIME_ERROR, "process died"),
    ],
)
async def test_a_compiled_candidate_is_judged_by_what_it_does(
    gate: Gate, function: str, status: EvalStatus, words: str
) -> None:
    text = SOURCES.replace("rows.right", f"rows.{function}")
    found = await gate.evaluate(request(text), lambda progress: None)
    assert found.status is status and words in found.detail, found.detail
    assert "native" in found.environment
    assert any(check.name == "native-code" and check.passed is None for check in found.checks)


@pytest.mark.torch
@pytest.mark.timeout(900)
@pytest.mark.asyncio(loop_scope="module")
async def test_what_does_not_compile_says_what_the_compiler_said(gate: Gate) -> None:
    text = f"{WITHOUT_HEADERS}{SOURCES[SOURCES.index('class ModelNew') :]}"
    found = await gate.evaluate(request(text), lambda progress: None)
    assert found.status is EvalStatus.COMPILE_ERROR and "doubel" in found.detail


@pytest.mark.torch
@pytest.mark.timeout(900)
@pytest.mark.asyncio(loop_scope="module")
async def test_arguments_that_are_made_at_run_time_find_no_library(gate: Gate) -> None:
    text = SOURCES.replace("rows = load_inline(", "rows = (load_inline if 1 else None)(")
    found = await gate.evaluate(request(text), lambda progress: None)
    assert found.status is EvalStatus.RUNTIME_ERROR and "was not built" in found.detail


@pytest.mark.torch
@pytest.mark.timeout(900)
@pytest.mark.asyncio(loop_scope="module")
async def test_an_accepted_file_is_guarded(gate: Gate, tmp_path: Path, data_dir: Path) -> None:
    kept: list[Evidence] = []
    await gate.evaluate(request(SOURCES), lambda progress: None, kept.append)
    file = tmp_path / "rows.py"
    file.write_text(SOURCES)
    accept_file(tmp_path, file, kept[0])

    async def holding() -> Holding:
        read = [(path, one) for path, one in acceptances(tmp_path) if isinstance(one, Acceptance)]
        limits = {"python": sys.executable, "cuda": False, "timeout_s": 600.0}
        async with Gate(cache=data_dir / COMPILED) as gate:
            limits |= {"gate": gate, "data_dir": data_dir}
            (judged,) = [
                one async for one in guard(tmp_path, read, lambda progress: None, **limits)
            ]
        return judged.holding

    assert await holding() is Holding.RIGHT
    file.write_text(SOURCES.replace("rows.right", "rows.wrong"))
    assert await holding() is Holding.WRONG
    with pytest.raises(EvaluationError, match="is not below"):
        accept_file(tmp_path / "elsewhere", file, kept[0])
