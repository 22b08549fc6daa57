"""Products of a few rows with weights of 8 and 4 bits against float64, in Triton's interpreter."""

import pytest
from codegen_helpers import as_close_as_eager, for_values, matches, program

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

INT8 = "self.register_buffer('w', torch.randint(-128, 128, (37, 96), dtype=torch.int8))"
BYTES = "self.register_buffer('w', torch.randint(0, 256, (37, 96), dtype=torch.uint8))"
ROWS = "; self.register_buffer('s', torch.rand(37, dtype=torch.{d}))"
GROUPS = "; self.register_buffer('s', torch.rand(37, {g}, 1, dtype=torch.{d}))"
ZEROS = "; self.register_buffer('z', torch.randint(0, 9, (37, {g}, 1), dtype=torch.uint8))"
UNPACKED = "torch.stack(((self.w & 15).to(torch.int8) - 8, (self.w >> 4).to(torch.int8) - 8), -1)"
CASES = {
    "scaled after": ("F.linear(x, self.w.to(x.dtype)) * self.s", INT8 + ROWS, 96),
    "scaled before": ("F.linear(x, self.w.to(x.dtype) * self.s[:, None], self.b)", INT8 + ROWS, 96),
    "by mm": ("x @ (self.s.unsqueeze(1) * self.w.to(x.dtype)).t()", INT8 + ROWS, 96),
    "unscaled": ("F.linear(x, self.w.to(x.dtype))", INT8, 96),
    "groups": (
        "F.linear(x, (self.w.view(37, 3, 32).to(x.dtype) * self.s).view(37, 96), self.b)",
        INT8 + GROUPS.replace("{g}", "3"), 96,
    ),
    "zero points": (
        "F.linear(x, ((self.w.view(37, 3, 32).to(x.dtype) - self.z) * self.s).reshape(37, -1))",
        BYTES + GROUPS.replace("{g}", "3") + ZEROS.replace("{g}", "3"), 96,
    ),
    "a number as zero point": ("F.linear(x, (self.w.to(x.dtype) - 128) * self.s[:, None])", BYTES + ROWS, 96),
    "4 bits": (
        f"F.linear(x, {UNPACKED}.reshape(37, 192).to(x.dtype)) * self.s", BYTES + ROWS, 192
    ),
    "4 bits in groups": (
        f"F.linear(x, ({UNPACKED}.reshape(37, 6, 32).to(x.dtype) * self.s).reshape(37, 192))",
        BYTES + GROUPS.replace("{g}", "6"), 192,
    ),
}  # fmt: skip


def _source(expression: str, init: str, inner: int, rows: str, dtype: str) -> str:
    bias = "; self.register_buffer('b', torch.rand(37, dtype=torch.{d}))"
    return program(
        expression, f"torch.randn({rows}, {inner}, dtype=torch.{dtype})", arguments="x",
        init=(init + bias).replace("{d}", dtype),
    )  # fmt: skip


@pytest.mark.parametrize("rows, dtype", [("1, 1", "bfloat16"), ("5", "float16")])
@pytest.mark.parametrize("name", CASES)
def test_products_are_as_close_as_eager_s(interpreter, name, rows, dtype) -> None:
    source = _source(*CASES[name], rows, dtype)
    as_close_as_eager(interpreter, source, for_values(source, "dequantized-linear"))


@pytest.mark.parametrize("expression, init, rows", [
    (*CASES["scaled after"][:2], "9"),
    ("F.linear(x, self.w.float().to(x.dtype))", INT8, "3"),
    ("F.linear(x, (self.w.view(37, 3, 32).to(x.dtype) * self.s).view(37, 96))",
     INT8 + GROUPS.replace("{g}", "1"), "3"),
    ("F.linear(x, (self.w.view(37, 96).to(x.dtype)))", INT8.replace("37, 96", "74, 48"), "3"),
    (f"F.linear(x, {UNPACKED.replace('.to(torch.int8)', '')}.view(37, 192).to(x.dtype))",
     BYTES, "3"),  # wraps
    ("F.linear(x, self.w.to(x.dtype) * x[:1, :1])", INT8, "3"),
])  # fmt: skip
def test_what_is_left_alone(expression, init, rows) -> None:
    source = _source(expression, init, 192 if "192" in expression else 96, rows, "float16")
    assert matches(source, "dequantized-linear")[1] == []
