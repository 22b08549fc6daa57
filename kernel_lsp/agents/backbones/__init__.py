"""Language models behind one protocol (`records.Backbone`): what answers a prompt.

`make` gives the one that the settings name. Nothing is started or asked before its `open`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from kernel_lsp.errors import BackboneError, ConfigError
from kernel_lsp.records import Backbone

if TYPE_CHECKING:
    # child.py is loaded through this package where platformdirs, which it needs, is missing.
    from kernel_lsp.config import Settings

__all__ = ["make", "stop_all"]


def make(settings: Settings, *, python: str, allowed_origin: str | None, data_dir: str) -> Backbone:
    """The backbone of ``settings.policy``.

    ``python`` is the project's interpreter, ``allowed_origin`` the remote one that this folder's
    user has allowed; another machine is refused here, before its name is looked up. Raises
    BackboneError."""
    return _MAKERS[settings.policy](settings, python, allowed_origin, data_dir)


def stop_all() -> None:
    """End the model servers that this process has started, which would end when idle or with the
    process."""
    serving = sys.modules.get("kernel_lsp.agents.backbones.serving")
    if serving is not None:  # never loaded: nothing was started
        serving.stop_all()


def _openai(settings: Settings, python: str, allowed_origin: str | None, data_dir: str) -> Backbone:
    if settings.endpoint is None:
        remedy = (
            "set endpoint (--endpoint), e.g. http://127.0.0.1:8000/v1 after: vllm serve "
            "Qwen/Qwen3-8B"
        )
        raise BackboneError("policy openai needs to know where the model is served", remedy)
    from kernel_lsp import origins

    try:
        endpoint = origins.endpoint(settings.endpoint)
    except ConfigError as error:
        raise BackboneError(error.cause, error.remedy) from None
    if endpoint.remote and endpoint.origin != allowed_origin:
        cause = (
            f"prompts with source code would leave this machine for {endpoint.origin}, and nobody "
            f"allowed it"
        )
        remedy = (
            f"kernel-lsp trust FOLDER --remote {endpoint.origin}, or --allow-remote for one run"
        )
        raise BackboneError(cause, remedy)
    # httpx2: 90 ms that no other backbone needs.
    from kernel_lsp.agents.backbones.openai import OpenAI

    return OpenAI(endpoint, settings)


def _plan(settings: Settings, python: str, allowed_origin: str | None, data_dir: str) -> Backbone:
    from kernel_lsp.agents.backbones.plan import PlanBackbone

    return PlanBackbone()


def _vllm(settings: Settings, python: str, allowed_origin: str | None, data_dir: str) -> Backbone:
    from kernel_lsp.agents.backbones.vllm import VLLM

    return VLLM(settings, python, data_dir)


def _transformers(
    settings: Settings, python: str, allowed_origin: str | None, data_dir: str
) -> Backbone:
    from kernel_lsp.agents.backbones.transformers import Transformers

    return Transformers(settings, python)


_MAKERS = {"plan": _plan, "openai": _openai, "vllm": _vllm, "transformers": _transformers}
