import triton
import triton.language as tl

CONFIGS = [triton.Config({"BLOCK": 256}), triton.Config({"BLOCK": 512})]


@triton.autotune(configs=CONFIGS, key=["n_elements"])  #! KL213
@triton.jit
def misspelled(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offs, tl.load(x_ptr + offs, mask=offs < n), mask=offs < n)


@triton.autotune(configs=CONFIGS, key=["x_ptr"])  #! KL213
@triton.jit
def tensor(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offs, tl.load(x_ptr + offs, mask=offs < n), mask=offs < n)


@triton.autotune(
    configs=[
        triton.Config({"BLOCK": 256, "num_warps": 8}),  #! KL213
        triton.Config({"BLOCK": 512, "num_warps": 4}),
    ],
    key=["n"],
)
@triton.jit
def option(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offs, tl.load(x_ptr + offs, mask=offs < n), mask=offs < n)


# Near misses.


def drop_some(configs, named_args, **kwargs):
    return [triton.Config({"BLOCK": c.kwargs["SIZE"]}) for c in configs]


@triton.autotune(
    configs=[triton.Config({"SIZE": 256}), triton.Config({"SIZE": 512})],
    key=["n"],
    prune_configs_by={"early_config_prune": drop_some},
)
@triton.jit
def replaced(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offs, tl.load(x_ptr + offs, mask=offs < n), mask=offs < n)


@triton.autotune(configs=CONFIGS, key=["n", "dtype_size"])
@triton.jit
def right(x_ptr, y_ptr, n, dtype_size, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offs, tl.load(x_ptr + offs, mask=offs < n), mask=offs < n)


@triton.autotune(
    configs=[
        triton.Config({"BLOCK": 256, "waves_per_eu": 2, "matrix_instr_nonkdim": 16}, num_warps=4),
        triton.Config({"BLOCK": 512, "kpack": 2}, num_warps=8),
    ],
    key=["n"],
)
@triton.jit
def for_the_compiler_of_amd(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offs, tl.load(x_ptr + offs, mask=offs < n), mask=offs < n)
