"""Child of the code generation tests; a program, not a test.

    TRITON_INTERPRET=1 python codegen_child.py run    compare two programs on the CPU, or run one
    python codegen_child.py compile                   compile a program's kernels ahead of time

Triton decides at import whether kernels are interpreted, so each mode needs a process of its own.
One JSON request a line on stdin, one JSON reply a line on stdout.
"""

import atexit
import copy
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import traceback
import warnings
from pathlib import Path

import interpreter_speed
import torch

POINTERS = {
    "float32": "*fp32",
    "bfloat16": "*bf16",
    "float16": "*fp16",
    "int64": "*i64",
    "bool": "*i1",
    "int8": "*i8",
    "uint8": "*u8",
}


FOLDER, PROCESS = tempfile.mkdtemp(prefix="kernels_"), os.getpid()


@atexit.register
def remove():
    """What was loaded: Triton reads its files again. A fork leaves them to its parent."""
    if os.getpid() == PROCESS:
        shutil.rmtree(FOLDER, ignore_errors=True)


def load(text):
    with tempfile.NamedTemporaryFile(
        "w", suffix=".py", prefix="kernel_", dir=FOLDER, delete=False
    ) as file:
        file.write(text)
    spec = importlib.util.spec_from_file_location(Path(file.name).stem, file.name)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def run(request):
    """Errors of the rewritten program and of eager against float64, and whether NaNs agree."""
    before, after = load(request["before"]), load(request["after"])
    torch.manual_seed(request.get("seed", 0))
    with torch.device(request.get("device", "cpu")):
        eager, fused, inputs = before.Model(), after.Model(), before.get_inputs()
    with torch.no_grad():
        for parameter in eager.parameters():
            parameter.normal_()
    fused.load_state_dict(eager.state_dict())
    fell_back = []
    original = fused._forward_eager
    fused._forward_eager = lambda *args: (fell_back.append(True), original(*args))[1]
    with torch.no_grad():
        ours, theirs = leaves(fused(*inputs)), leaves(eager(*inputs))
        exact = leaves(copy.deepcopy(eager).double()(*[widen(item) for item in inputs]))
    return {
        "ours": [error(a, b) for a, b in zip(ours, exact, strict=True)],
        "eager": [error(a, b) for a, b in zip(theirs, exact, strict=True)],
        "same_kind": [same_kind(a, b) for a, b in zip(ours, theirs, strict=True)],
        "strides": [[a.stride(), b.stride()] for a, b in zip(ours, theirs, strict=True)],
        "fell_back": bool(fell_back),
    }


def run_apart(request):
    """How a program ended that ran in a fork of this process, and what it wrote last."""
    with tempfile.TemporaryFile("w+") as said:
        process = os.fork()
        if process == 0:
            become(request["program"], request["arguments"], said)
        _, status = os.waitpid(process, 0)
        said.seek(0)
        return {"code": os.waitstatus_to_exitcode(status), "said": said.read()[-2000:]}


def become(text, arguments, said):
    """Run the program as Python's ``-c`` does; this process ends with it."""
    code = 1
    try:
        for stream in (1, 2):
            os.dup2(said.fileno(), stream)
        sys.argv = ["-c", *arguments]
        exec(compile(text, "<string>", "exec"), {"__name__": "__main__"})
        code = 0
    except BaseException:  # whatever ends it: the traceback is what the test reads
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def leaves(result):
    return list(result) if isinstance(result, tuple) else [result]


def widen(item):
    return item.double() if item.is_floating_point() else item


def error(result, exact):
    """Largest difference over finite elements, relative to their RMS."""
    finite = exact.isfinite() & result.isfinite()
    difference = (result.double() - exact.double())[finite].abs()
    rms = exact[finite].double().square().mean().sqrt().clamp_min(1e-30)
    return float(difference.max() / rms) if difference.numel() else 0.0


def same_kind(ours, theirs):
    """Same shape and dtype, and NaN and infinities at the same places."""
    alike = ours.shape == theirs.shape and ours.dtype == theirs.dtype
    special = [(t.isnan(), t == float("inf"), t == float("-inf")) for t in (ours, theirs)]
    return bool(alike and all(torch.equal(a, b) for a, b in zip(*special, strict=True)))


def compile_kernels(request):
    """Name, architecture, registers and spilled bytes of each launch of the fast path."""
    module, launches = load(request["after"]), []
    for name, value in list(vars(module).items()):
        if type(value).__name__ == "JITFunction" and name.endswith("_kernel"):
            setattr(module, name, Recorder(value, launches))
    with torch.device("meta"), torch.no_grad():
        fast_path(module, request["after"])(module.Model(), *module.get_inputs())
    return [
        {"name": launch[0].__name__, "arch": arch, **compile_one(*launch, arch)}
        for launch in launches
        for arch in (80, 90)
    ]


class Recorder:
    """Stands for a kernel; remembers what it would have been launched with."""

    def __init__(self, kernel, launches):
        self.kernel, self.launches = kernel, launches

    def __getitem__(self, grid):
        return lambda *args, **kwargs: self.launches.append((self.kernel, args, kwargs))


def fast_path(module, text):
    """The statements after the guard, which meta tensors would not pass, and the names that it
    binds."""
    rest = text[text.index("def _forward_eager") :]
    parameters = re.search(r"    def forward\(self, (.*?)\):", rest)[1]
    guard, body = rest[: (end := rest.rindex("return self._forward_eager("))], rest[end:]
    body = textwrap.dedent(body.split("\n", 1)[1].split("\n\ndef get_")[0])
    bound = [f"{name} = {path}" for name, path in re.findall(r"(\w+) := ([\w.\[\]]+)", guard)]
    body = "\n".join([*bound, body])
    exec(f"def fast(self, {parameters}):\n{textwrap.indent(body, '    ')}", vars(module))
    return module.fast


def compile_one(kernel, args, kwargs, arch):
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    known = ("num_warps", "num_stages", "enable_fp_fusion")
    options = {name: kwargs[name] for name in known if name in kwargs}
    values = {**dict(zip(kernel.arg_names, args, strict=False)), **kwargs}
    signature, constants, attributes = {}, {}, {}
    for index, parameter in enumerate(kernel.params):
        value = values[parameter.name]
        if parameter.is_constexpr:
            signature[parameter.name], constants[(index,)] = "constexpr", value
            continue
        if hasattr(value, "block_shape"):
            element = POINTERS[str(value.base.dtype).removeprefix("torch.")][1:]
            signature[parameter.name] = f"tensordesc<{element}{value.block_shape}>".replace(" ", "")
            continue
        if not isinstance(value, torch.Tensor) and value == 1:  # Triton makes a constant of a one
            signature[parameter.name], constants[(index,)] = "constexpr", 1
            continue
        tensor = isinstance(value, torch.Tensor)
        signature[parameter.name] = (
            POINTERS[str(value.dtype).removeprefix("torch.")] if tensor else "i32"
        )
        if tensor or value % 16 == 0:
            attributes[(index,)] = [["tt.divisibility", 16]]
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attributes)
    made = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)
    return {**resources(made.asm["ptx"]), "contracted": made.asm["ptx"].count("fma.rn.f32")}


def leave_out_cubin():
    """Triton stops at PTX: its own ptxas (a sixth of a compilation) would be asked what `resources`
    asks. In a cache of its own: nobody may find a kernel there that has no code."""
    from triton.backends.nvidia.compiler import CUDABackend

    os.environ["TRITON_CACHE_DIR"] = str(Path(tempfile.gettempdir(), f"ptx-{os.getuid()}"))
    CUDABackend.make_cubin = lambda *_, **__: b""


def resources(ptx):
    import triton

    folder = Path(triton.__file__).parent / "backends/nvidia/bin"
    with tempfile.NamedTemporaryFile("w", suffix=".ptx", delete=False) as file:
        file.write(ptx)
    for program in ("ptxas", "ptxas-blackwell"):  # Triton 3.9 ships the newer one for newer PTX
        target = re.search(r"\.target (\w+)", ptx)[1]
        command = [folder / program, "-v", "--gpu-name", target, file.name, "-o", "/dev/null"]
        said = subprocess.run(command, capture_output=True, text=True, check=False).stderr
        if spilled := re.search(r"(\d+) bytes spill stores", said):
            return {
                "spill_bytes": int(spilled[1]),
                "registers": int(re.search(r"Used (\d+) reg", said)[1]),
            }
    raise RuntimeError(said)


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # the interpreter computes with numpy, which warns about NaN
    if sys.argv[1] == "run":
        interpreter_speed.apply()
    else:
        leave_out_cubin()
    work = {"run": run, "compile": compile_kernels}[sys.argv[1]]
    for line in sys.stdin:
        try:
            request = json.loads(line)
            reply = {"result": (run_apart if "program" in request else work)(request)}
        except Exception as problem:  # any failure belongs to the test that asked
            reply = {"error": f"{type(problem).__name__}: {problem}"}
        print(json.dumps(reply), flush=True)
