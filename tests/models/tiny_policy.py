"""Write a shipped policy of random weights: a checkpoint as trainer/ leaves it, in a moment.

    python tests/models/tiny_policy.py FOLDER [--seed 0] [--layers 2]

For tests of everything but what it says. The same seed gives the same bytes. Needs torch and
safetensors."""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from kernel_lsp.agents.backbones.small import shape as shapes
from kernel_lsp.agents.prompt_encoding import tokenizer

TINY = {"layers": 2, "hidden": 64, "heads": 4, "key_heads": 2, "head": 16, "inner": 96}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--full", action="store_true", help="of the shipped size")
    arguments = parser.parse_args()
    write(arguments.folder, seed=arguments.seed, **({} if arguments.full else TINY))


def write(
    folder: Path, *, seed: int = 0, dtype: torch.dtype = torch.bfloat16, **sizes: Any
) -> None:
    """``sizes``: of `NetworkShape`; without any, the shipped ones."""
    folder.mkdir(parents=True, exist_ok=True)
    shape = shapes.NetworkShape(**sizes)
    name = str(dtype).removeprefix("torch.")
    (folder / "config.json").write_text(json.dumps(shapes.config(shape, name), indent=1) + "\n")
    tokenizer.write(folder)
    weights = {key: tensor.to(dtype) for key, tensor in random_weights(shape, seed).items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def random_weights(shape: shapes.NetworkShape, seed: int) -> dict[str, torch.Tensor]:
    """Larger than a model begins with, so that its choices differ from each other."""
    dice = torch.Generator().manual_seed(seed)
    h, q, k = shape.hidden, shape.heads * shape.head, shape.key_heads * shape.head
    matrices = {"model.embed_tokens": (shape.vocabulary, h)}
    vectors = {"model.norm": h}
    for number in range(shape.layers):
        block = f"model.layers.{number}"
        attention, mlp = f"{block}.self_attn", f"{block}.mlp"
        matrices |= {f"{attention}.q_proj": (q, h), f"{attention}.o_proj": (h, q)}
        matrices |= {f"{attention}.{name}_proj": (k, h) for name in "kv"}
        matrices |= {f"{mlp}.{name}_proj": (shape.inner, h) for name in ("gate", "up")}
        matrices[f"{mlp}.down_proj"] = (h, shape.inner)
        vectors |= {
            f"{block}.{name}": h for name in ("input_layernorm", "post_attention_layernorm")
        }
        vectors |= {f"{attention}.{name}_norm": shape.head for name in "qk"}
    made = {f"{n}.weight": torch.randn(s, generator=dice) * 0.1 for n, s in matrices.items()}
    return made | {
        f"{n}.weight": 1.0 + 0.1 * torch.randn(s, generator=dice) for n, s in vectors.items()
    }


if __name__ == "__main__":
    main()
