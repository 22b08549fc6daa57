"""What a language model behind a real vLLM gives back, by the formats that our backbone uses.

The model's weights are random: what is valid here is valid by construction, not because the model is clever.
"""

import http.client
import json
import time
import urllib.request
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit

import jsonschema
import pytest

# Making the environment takes two minutes, loading the server another half.
pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[2]
SKILLS = sorted(path.parent.name for path in (ROOT / "skills").glob("*/SKILL.md"))
PROMPT = [
    {"role": "system", "content": "You make PyTorch code faster."},
    {"role": "user", "content": "def f(x, w):\n    return torch.softmax(x @ w, dim=-1)\n"},
]
AT_ONCE = 16

# Bounded text is a pattern: for maxLength xgrammar 0.2.8 lets raw control characters into the string
# (16 of 32 replies were not JSON), and it cannot compile more than 128 repeats.
TEXT = {"type": "string", "pattern": r"^[ !#-\[\]-~]{0,100}$"}


def strict_object(**properties: object) -> dict[str, Any]:
    """A JSON schema of an object with just these keys, all required."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


APPLY_SKILL = strict_object(
    name={"enum": SKILLS},
    site={"type": "integer", "enum": [0, 1, 2, 3]},
    parameters=strict_object(BLOCK={"enum": [32, 64, 128]}, num_warps={"enum": [1, 2, 4, 8]}),
)
SELECT_SKILLS = strict_object(
    think=TEXT,
    selected_skills={
        "type": "array",
        "maxItems": 3,
        "items": strict_object(name={"enum": SKILLS}, reason=TEXT),
    },
)
SCHEMAS = {"apply_skill": APPLY_SKILL, "select_skills": SELECT_SKILLS}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": name, "parameters": schema}}
    for name, schema in SCHEMAS.items()
]
NAMED = {"tool_choice": {"type": "function", "function": {"name": "apply_skill"}}}
# One call: allowed to make several, a random model does so until it is cut; the server then drops them all.
REQUIRED = {"tool_choice": "required", "parallel_tool_calls": False}

STANDARD = {
    "response_format": {"type": "json_schema", "json_schema": {"name": "call", "schema": APPLY_SKILL}}
}
VLLM_ONLY = {"structured_outputs": {"json": APPLY_SKILL}}


@pytest.mark.parametrize("form", [STANDARD, VLLM_ONLY], ids=["response_format", "structured_outputs"])
def test_two_hundred_replies_all_follow_their_schema(vllm_url: str, form: dict[str, Any]) -> None:
    replies = chat_many(vllm_url, 200, form)

    calls = [json.loads(reply["choices"][0]["message"]["content"]) for reply in replies]
    for call in calls:
        jsonschema.validate(call, APPLY_SKILL)
    assert len({call["name"] for call in calls}) > 5, "a random model should choose many skills"


@pytest.mark.parametrize("choice", [NAMED, REQUIRED], ids=["named", "required"])
def test_a_hundred_tool_calls_all_follow_their_schema(vllm_url: str, choice: dict[str, Any]) -> None:
    replies = chat_many(vllm_url, 100, {"tools": TOOLS, **choice})

    functions = [only_call(reply["choices"][0]["message"])["function"] for reply in replies]
    for function in functions:
        jsonschema.validate(json.loads(function["arguments"]), SCHEMAS[function["name"]])
    expected = {"apply_skill"} if choice is NAMED else set(SCHEMAS)
    assert {function["name"] for function in functions} == expected


def test_a_schema_holds_without_whitespace(vllm_url: str) -> None:
    text = content(chat(vllm_url, STANDARD))

    assert text == json.dumps(json.loads(text), separators=(",", ":"))


def test_every_token_has_its_log_probability_and_id(vllm_url: str) -> None:
    reply = chat(vllm_url, {**STANDARD, "logprobs": True, "return_token_ids": True})

    choice = reply["choices"][0]
    tokens = choice["logprobs"]["content"]
    assert len(tokens) == len(choice["token_ids"]) == reply["usage"]["completion_tokens"]
    assert len(reply["prompt_token_ids"]) == reply["usage"]["prompt_tokens"]
    assert all(token["logprob"] <= 0 for token in tokens)
    written = b"".join(bytes(token["bytes"]) for token in tokens[:-1])  # the last one ends the turn
    assert written.decode() == content(reply)


def test_the_same_seed_gives_the_same_reply(vllm_url: str) -> None:
    first, again, other = (content(chat(vllm_url, {"seed": seed, "max_tokens": 30})) for seed in (7, 7, 8))

    assert first == again
    assert first != other


def test_the_server_tells_its_model_and_context(vllm_url: str) -> None:
    models = get_json(f"{vllm_url}/v1/models")["data"]

    assert [(model["id"], model["max_model_len"]) for model in models] == [("tiny", 16384)]


def test_the_tokenizer_loses_nothing_and_the_template_shows_tools(vllm_url: str) -> None:
    text = "def f(x):\n\treturn x @ w  # naïve, 漢字 🙂 \x00\r\n<tool_call>\n"
    assert detokenize(vllm_url, {"prompt": text, "add_special_tokens": False}) == text

    answered = [
        {"role": "assistant", "tool_calls": [a_call()]},
        {"role": "tool", "content": "1.7 times faster"},
    ]
    shown = detokenize(vllm_url, {"messages": PROMPT + answered, "tools": TOOLS})
    assert shown.startswith("<|im_start|>system\nYou make PyTorch code faster.\n\n# Tools")
    assert '"name": "select_skills"' in shown
    assert '<tool_call>\n{"name": "apply_skill", "arguments": {"site": 1}}\n</tool_call><|im_end|>' in shown
    assert "<tool_response>\n1.7 times faster\n</tool_response><|im_end|>" in shown
    assert shown.endswith("<|im_start|>assistant\n")


def test_a_streamed_reply_comes_in_pieces_and_ends_with_its_usage(vllm_url: str) -> None:
    chunks = list(stream(vllm_url, STANDARD))

    pieces = [chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks if chunk["choices"]]
    assert sum(map(bool, pieces)) > 5
    jsonschema.validate(json.loads("".join(pieces)), APPLY_SKILL)
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] > 5


@pytest.mark.parametrize("choice", [NAMED, REQUIRED], ids=["named", "required"])
def test_a_streamed_tool_call_adds_up(vllm_url: str, choice: dict[str, Any]) -> None:
    chunks = stream(vllm_url, {"tools": TOOLS, **choice})
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]

    functions = [only_call(delta)["function"] for delta in deltas if delta.get("tool_calls")]
    names = [function["name"] for function in functions if function.get("name")]
    assert len(names) == 1
    arguments = json.loads("".join(function.get("arguments") or "" for function in functions))
    jsonschema.validate(arguments, SCHEMAS[names[0]])


def test_closing_the_connection_stops_the_engine(vllm_url: str) -> None:
    before = metric(vllm_url, "generation_tokens_total")
    chunks = stream(vllm_url, {"max_tokens": 15_000, "ignore_eos": True})
    next(chunks)
    chunks.close()

    while metric(vllm_url, "num_requests_running"):
        time.sleep(0.02)
    assert metric(vllm_url, "generation_tokens_total") - before < 15_000


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"model": "absent"}, 404, "does not exist"),
        (
            {"messages": [{"role": "user", "content": "x y z " * 20_000}]},
            400,
            "maximum context length is 16384",
        ),
        (
            {"structured_outputs": {"json": {"type": "array", "uniqueItems": True}}},
            400,
            "not supported by xgrammar",
        ),
    ],
    ids=["model", "context", "schema"],
)
def test_a_bad_request_is_refused_with_its_reason(
    vllm_url: str, body: dict[str, Any], status: int, words: str
) -> None:
    with pytest.raises(HTTPError) as refused:
        chat(vllm_url, body)

    with refused.value as answer:
        assert answer.code == status
        assert words in json.load(answer)["error"]["message"]


def chat(url: str, body: dict[str, Any]) -> dict[str, Any]:
    return post_json(f"{url}/v1/chat/completions", _request(body))


def chat_many(url: str, count: int, body: dict[str, Any]) -> list[dict[str, Any]]:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(lambda seed: chat(url, {**body, "seed": seed}), range(count)))


def stream(url: str, body: dict[str, Any]) -> Generator[dict[str, Any], None, None]:
    """Chunks as they come. Closing the generator closes the connection."""
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=120)
    try:
        options = {"stream": True, "stream_options": {"include_usage": True}}
        data = json.dumps(_request(body) | options)
        connection.request("POST", "/v1/chat/completions", data, {"Content-Type": "application/json"})
        response = connection.getresponse()
        assert response.status == 200, response.read()
        with response:
            for line in response:
                if line.startswith(b"data: {"):
                    yield json.loads(line[len(b"data: ") :])
    finally:
        connection.close()


def _request(body: dict[str, Any]) -> dict[str, Any]:
    return {"model": "tiny", "messages": PROMPT, "max_tokens": 1000} | body


def content(reply: dict[str, Any]) -> str:
    text: str = reply["choices"][0]["message"]["content"]
    return text


def only_call(message: dict[str, Any]) -> dict[str, Any]:
    assert len(message["tool_calls"]) == 1, message
    call: dict[str, Any] = message["tool_calls"][0]
    return call


def a_call() -> dict[str, Any]:
    return {"id": "1", "type": "function", "function": {"name": "apply_skill", "arguments": '{"site": 1}'}}


def detokenize(url: str, what: dict[str, Any]) -> str:
    tokens = post_json(f"{url}/tokenize", {"model": "tiny", **what})["tokens"]
    text: str = post_json(f"{url}/detokenize", {"model": "tiny", "tokens": tokens})["prompt"]
    return text


def metric(url: str, name: str) -> float:
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(f"vllm:{name}{{"))


def post_json(url: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        value: dict[str, Any] = json.load(answer)
        return value


def get_json(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(url, timeout=30) as answer:
        value: dict[str, Any] = json.load(answer)
        return value
