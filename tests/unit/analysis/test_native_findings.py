"""Findings in C++ and CUDA texts: where they are shown, and what is no finding."""

import pytest

from kernel_lsp.analysis import analyze
from kernel_lsp.records import Snapshot

FILE = '''
from torch.utils.cpp_extension import load_inline

CUDA = r"""
__global__ void k(float* p) {}
torch::Tensor run(torch::Tensor x) {
BODY
  return x;
}
"""
built = load_inline("built", "", CUDA, functions=["run"])
'''
CAREFUL = """  TORCH_CHECK(x.is_contiguous());
  const c10::cuda::CUDAGuard guard(x.device());
  k<<<1, 32, 0, at::cuda::getCurrentCUDAStream()>>>(x.data_ptr<float>());
  C10_CUDA_KERNEL_LAUNCH_CHECK();"""


def findings(text: str) -> dict[str, str]:
    """Rule -> the marked text."""
    found = analyze(Snapshot(uri="a.py", text=text)).findings
    return {one.rule: text[one.span.start : one.span.end] for one in found}


def test_a_careful_extension_has_none() -> None:
    assert findings(FILE.replace("BODY", CAREFUL)) == {}


@pytest.mark.parametrize(
    ("without", "instead", "rule"),
    [
        (", 0, at::cuda::getCurrentCUDAStream()", "", "KL401"),
        ("  C10_CUDA_KERNEL_LAUNCH_CHECK();", "", "KL402"),
        ("  TORCH_CHECK(x.is_contiguous());", "", "KL403"),
        ("  C10_CUDA_KERNEL", "  cudaDeviceSynchronize(); C10_CUDA_KERNEL", "KL404"),
        ("  const c10::cuda::CUDAGuard guard(x.device());", "", "KL405"),
    ],
)
def test_each_mistake_is_found_by_itself_on_its_line(without: str, instead: str, rule: str) -> None:
    body = CAREFUL.replace(without, instead)
    assert body != CAREFUL
    found = findings(FILE.replace("BODY", body))
    assert list(found) == [rule]
    line = found[rule]
    assert line in body and "\n" not in line and not line.startswith(" ")


def test_a_caller_that_makes_its_inputs_contiguous_is_believed() -> None:
    body = CAREFUL.replace("  TORCH_CHECK(x.is_contiguous());\n", "")
    text = FILE.replace("BODY", body) + "def call(x):\n    return built.run(x.contiguous())\n"
    assert findings(text) == {}


def test_a_text_with_escapes_is_marked_as_a_whole() -> None:
    text = (
        "from torch.utils.cpp_extension import load_inline\n"
        'built = load_inline("built", "", "void run() {\\n  cudaDeviceSynchronize();\\n}")\n'
    )
    assert findings(text) == {"KL404": text.split(", ")[2].removesuffix(")\n")}


def test_other_texts_and_other_functions_are_no_sources() -> None:
    text = FILE.replace("BODY", "  cudaDeviceSynchronize();")
    assert "KL404" in findings(text)
    assert findings(text.replace("load_inline(", "print(")) == {}
