"""What a server means when it refuses a request: a prompt too long, a field it does not know, a
wrong key.

Servers agree on status codes and on little else, so messages are searched for the words that vLLM,
OpenAI, llama.cpp and FastAPI use. Not covered: what is tried again (transport.py), weaker forms
(openai.py)."""

from __future__ import annotations

import re

from kernel_lsp.agents import secrets
from kernel_lsp.agents.backbones.transport import HttpFailure
from kernel_lsp.config import Settings
from kernel_lsp.errors import BackboneError
from kernel_lsp.origins import Endpoint
from kernel_lsp.records import ModelInfo

OPTIONAL = frozenset(
    {"max_tokens", "temperature", "top_p", "seed", "logprobs", "stream_options", "return_token_ids"}
    | {"parallel_tool_calls", "chat_template_kwargs"}
)
"""Fields that a reply can do without, where a server refuses them."""


def explain_failure(
    failure: HttpFailure,
    endpoint: Endpoint,
    settings: Settings,
    *,
    has_key: bool,
    info: ModelInfo | None,
) -> BackboneError:
    """The failure in words that say what to do."""
    origin, status = endpoint.origin, failure.status
    if status in (401, 403):
        cause = "refuses the key" if has_key else "asks for a key"
        remedy = (
            f"put it into {settings.api_key_env}, or run: keyring set {secrets.SERVICE} {origin}"
        )
        return BackboneError(f"{origin} {cause}: {failure.message}", remedy)
    if _too_long(failure):
        known = f", which has {info.context_tokens} tokens" if info and info.context_tokens else ""
        remedy = "take a model with a longer context, or serve it with a larger --max-model-len"
        return BackboneError(f"the prompt does not fit the model{known}: {failure.message}", remedy)
    if status == 404:
        remedy = f"check model and endpoint; asked was {endpoint.path}"
        return BackboneError(
            f"{origin} does not know what was asked for: {failure.message}", remedy
        )
    if status == 429:
        remedy = "wait, or set model_requests_per_minute to what it permits"
        return BackboneError(f"{origin} permits no more requests now: {failure.message}", remedy)
    if status is None:
        remedy = f"start it (vllm serve MODEL), or correct the endpoint {origin}{endpoint.path}"
        return BackboneError(f"{origin} gave no answer: {failure.message}", remedy)
    if 300 <= status < 400:
        return BackboneError(
            f"{origin} was not followed: {failure.message}", "set the endpoint to the address meant"
        )
    remedy = (
        "look into its log"
        if status >= 500
        else "this server takes no such request; its message says why"
    )
    return BackboneError(f"{origin} answered {status}: {failure.message}", remedy)


def of_the_form(failure: HttpFailure) -> bool:
    """Whether the request was refused for its form, which may be the schema or the tools; vLLM says
    500 of a grammar that it cannot compile."""
    return failure.status in (400, 422, 500, 501) and not _too_long(failure)


def _too_long(failure: HttpFailure) -> bool:
    words = failure.message.lower()
    by_name = failure.param in ("input_tokens", "input_text")
    return failure.status in (400, 413, 422) and (
        by_name
        or any(
            w in words
            for w in ("context length", "context window", "context_length", "too many tokens")
        )
    )


def field(failure: HttpFailure) -> frozenset[str]:
    """The field that a server does not know, by its ``param`` or by its words."""
    if failure.status not in (400, 422) or _too_long(failure):
        return frozenset()
    if failure.param is not None:
        return OPTIONAL & {failure.param.split(".")[0]}
    return frozenset(name for name in OPTIONAL if re.search(rf"\b{name}\b", failure.message))
