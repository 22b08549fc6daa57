"""`kernel-lsp record` on a GPU: what autotune chose, device times, values nobody waited for, CUDA
graphs."""

import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from kernel_lsp.workloads import busy, launches, running  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
PROGRAM = """
import torch, triton
import triton.language as tl
from torch import nn

configs = [triton.Config({"BLOCK": 256}, num_warps=2), triton.Config({"BLOCK": 1024}, num_warps=8)]

@triton.autotune(configs=configs, key=["n"])
@triton.jit
def scale(x_ptr, out_ptr, n, factor, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=mask) * factor, mask=mask)

def launch(x):
    out = torch.zeros_like(x)
    scale[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, out, x.numel(), 2.0)
    return out

class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        return torch.relu(self.linear(x))

net, x = Net(256).cuda(), torch.randn(64, 256, device="cuda")
with torch.no_grad():
    for _ in range(200):
        launch(net(x))
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            net(x)
    torch.cuda.current_stream().wait_stream(stream)
    with torch.cuda.graph(graph):
        captured = net(x)
    graph.replay()
    assert torch.equal(captured, net(x))
"""


def test_launches_and_modules_on_a_gpu(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    out = tmp_path / ".kernel-lsp" / "program.recorded.toml"
    done = running.run(tmp_path, [sys.executable, str(tmp_path / "program.py")], out, tmp_path)
    assert done.status == 0 and not done.merged.notes
    assert done.merged.devices == (torch.cuda.get_device_name(),)
    (one,), problems = launches(str(tmp_path))
    assert not problems and one.autotuned
    assert (one.constants["BLOCK"], one.num_warps) in ((256, 2), (1024, 8)), (
        "only what was chosen is counted"
    )
    assert one.grid == (-(-64 * 256 // one.constants["BLOCK"]),)
    assert one.busy.calls == 200 and one.busy.mean_us is not None and 1 < one.busy.mean_us < 10_000
    x, out_ptr, _, _ = one.arguments
    assert x.device == "cuda" and x.values is not None and x.values.low == 0.0 and x.values.finite
    assert out_ptr.values is not None and out_ptr.values.zeros == 1.0
    assert busy(str(tmp_path))["program.py::Net"].calls == 205, (
        "the captured call is counted as well"
    )


def test_it_runs_alone_as_well(tmp_path: Path) -> None:
    """Otherwise the other test says nothing."""
    (tmp_path / "program.py").write_text(PROGRAM)
    assert (
        subprocess.run([sys.executable, str(tmp_path / "program.py")], timeout=200).returncode == 0
    )
