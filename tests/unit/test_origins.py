"""Endpoints of language models: what they say, and which are another machine."""

import pytest

from kernel_lsp import origins
from kernel_lsp.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "origin", "path"),
    [
        ("http://127.0.0.1:8000/v1", "http://127.0.0.1:8000", "/v1"),
        ("http://localhost:8000", "http://localhost:8000", "/v1"),
        ("https://API.Example.com:443/openai/v1/", "https://api.example.com", "/openai/v1"),
        ("http://[::1]:80/v1/chat/completions", "http://[::1]", "/v1"),
        (" http://gpu-box:8000/v1\n", "http://gpu-box:8000", "/v1"),
    ],
)
def test_an_endpoint_is_its_origin_and_a_path(text: str, origin: str, path: str) -> None:
    found = origins.endpoint(text)
    assert (found.origin, found.path) == (origin, path)


def test_the_port_is_the_schemes_own_where_none_is_written() -> None:
    asked = ("http://[::1]:8000/v1", "http://localhost", "https://api.example.com/v1")
    assert [origins.endpoint(text).port for text in asked] == [8000, 80, 443]


@pytest.mark.parametrize(
    "text",
    [
        "", "127.0.0.1:8000", "ftp://host/v1", "http://", "http://[::1/v1", "http://host:99999999/v1",
        "https://user:pass@host/v1", "https://sk-abc@host/v1", "https://host/v1?key=1", "https://host/v1#x",
        "https://exämple.com/v1", "http://127.0.0.1\\@evil.com/v1", "http://host/v 1", "file:///etc/passwd",
    ],
)  # fmt: skip
def test_what_is_no_plain_address_is_refused_with_a_remedy(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        origins.endpoint(text)
    assert caught.value.remedy
    assert "sk-abc" not in str(caught.value)
    assert "pass@" not in str(caught.value)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "localhost", "[::1]"])
def test_loopback_literals_are_this_machine(host: str) -> None:
    assert not origins.endpoint(f"http://{host}:8000/v1").remote


@pytest.mark.parametrize(
    "host",
    [
        "0.0.0.0", "10.0.0.1", "example.com", "localhost.example.com", "127.0.0.1.nip.io", "127.1",
        "[::]", "[fe80::1]", "2130706433", "localhost.", "my-localhost",
    ],
)  # fmt: skip
def test_everything_else_may_be_another_machine(host: str) -> None:
    assert origins.endpoint(f"http://{host}:8000/v1").remote
