"""What is redacted: planted secrets never leave, code stays as it is, and everything comes back."""

import base64
import json
import random
import string
import time
from pathlib import Path

import pytest
import secret_corpus
import secret_corpus_crossed
import secret_corpus_fresh
import secret_corpus_marked
import secret_corpus_written
from hypothesis import given
from hypothesis import strategies as st

from kernel_lsp.agents import secret_values, secrets
from kernel_lsp.agents.secret_rules import NAME, name_starts
from kernel_lsp.agents.secrets import Redaction, key_for, key_source, redact, redact_prompt
from kernel_lsp.config import Settings
from kernel_lsp.records import Message, Prompt, Role, ToolCall

ROOT = Path(__file__).resolve().parents[3]
LETTERS = string.ascii_letters + string.digits


def drawn(alphabet: str, length: int) -> st.SearchStrategy[str]:
    """As random as a real key: hypothesis would rather draw forty times the letter A."""
    return st.integers(0, 2**64).map(
        lambda s: "".join(random.Random(s).choices(alphabet, k=length))
    )


PASSWORD = drawn(LETTERS, 8)
PLANTED = st.one_of(
    drawn(LETTERS, 36).map(lambda s: (f"ghp_{s}", "x = '{}'")),
    drawn(LETTERS + "-_", 48).map(lambda s: (f"sk-proj-1{s}a", "client(key={!r})")),
    drawn(string.ascii_letters, 34).map(lambda s: (f"hf_Aa{s}", "login({!r})")),
    drawn(string.ascii_uppercase + string.digits, 16).map(lambda s: (f"AKIA{s}", "# {}")),
    drawn(LETTERS, 20).map(lambda s: (f"aB1{s}2cD", "auth = '{}'")),
    drawn("0123456789abcdef", 32).map(lambda s: (f"a1b2c3d4{s}", "wandb.login({!r})")),
    drawn(LETTERS + "+/", 64).map(lambda s: (f"aB1{s}cD2", "blob = '''{}'''")),
    PASSWORD.map(lambda s: (s, "password = '{}'")),
    PASSWORD.map(lambda s: (s, 'config = {{"db_password": "{}"}}')),
    PASSWORD.map(lambda s: (s, "API_KEY: str = r'{}'")),
    PASSWORD.map(lambda s: (s, "url = 'postgres://me:{}@db.internal/x'")),
    drawn(LETTERS, 30).map(lambda s: (f"1{s}", "headers = 'Authorization: Bearer {}'")),
    st.binary(min_size=96, max_size=96).map(
        lambda b: (
            base64.b64encode(b + b"0123").decode(),
            "-----BEGIN RSA PRIVATE KEY-----\n{}\n-----END RSA PRIVATE KEY-----",
        )
    ),
)
CODE = st.sampled_from(
    [
        "import torch\n",
        "class FusedRotaryPositionalEmbeddingWithLearnedScaleAndBias(nn.Module):\n",
        "    def forward(self, x, key_padding_mask=None):\n        return "
        "self.token_embedding(x)\n",
        'tokenizer = AutoTokenizer.from_pretrained("Qwen/Qwen3-8B")\n',
        "MASK = 0xFFFFFFFFFFFFFFFF\nkey = 'layers.0.self_attn.q_proj.weight'\n",
        "parser.add_argument('--token-count', default='1024')\n",
        "password = os.environ['DB_PASSWORD']\nif secret == other: pass\n",
        "# see https://github.com/pytorch/pytorch/blob/main/torch/nn/functional.py\n",
        "pad_token = '<|endoftext|>'\nauthor = 'somebody'\n",
        "'''" + "-" * 60 + "'''\n" + "=" * 70 + "\n",
        "    __REDACTED_1__ = 3\n",
    ]
)


@given(st.lists(CODE, max_size=6), PLANTED, st.lists(CODE, max_size=6))
def test_planted_secrets_never_leave_and_always_come_back(
    before: list[str], planted: tuple[str, str], after: list[str]
) -> None:
    secret, around = planted
    text = "".join(before) + around.format(secret) + "\n" + "".join(after)
    hidden, restore = redact(text)
    assert secret not in hidden
    assert restore(hidden) == text


@given(st.lists(CODE))
def test_code_without_secrets_stays_as_it_is(parts: list[str]) -> None:
    assert redact("".join(parts))[0] == "".join(parts)


@given(st.text())
def test_what_is_redacted_comes_back_whatever_it_was(text: str) -> None:
    hidden, restore = redact(text)
    assert restore(hidden) == text


def test_our_own_sources_hold_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    # A name in our sources, as /root, may be this user's home.
    monkeypatch.setattr(secrets, "of_this_machine", lambda: ())
    for path in sorted((ROOT / "kernel_lsp").rglob("*.py")):
        if path.name == "secret_rules.py":  # patterns look like what they find
            continue
        text = path.read_text()
        hidden, restore = redact(text)
        assert restore(hidden) == text
        assert hidden == text, path


def test_the_same_secret_is_the_same_placeholder_in_all_messages_and_a_reply_is_mended() -> None:
    token = "ghp_" + "aB3" * 12
    messages = (
        Message(role=Role.SYSTEM, text=f"a {token}"),
        Message(role=Role.USER, text=f"b '{token}' and __REDACTED_1__"),
        Message(
            role=Role.ASSISTANT, calls=(ToolCall(name="w", arguments={"code": [f"x={token}"]}),)
        ),
    )
    safe, redaction = redact_prompt(Prompt(messages=messages))
    assert safe.messages[0].text == "a __REDACTEDX_1__"  # the plain stem is in use already
    assert safe.messages[1].text == "b '__REDACTEDX_1__' and __REDACTED_1__"
    assert safe.messages[2].calls[0].arguments == {"code": ["x=__REDACTEDX_1__"]}
    assert (
        redaction.restore("y = '__REDACTEDX_1__' + '__REDACTEDX_2__'")
        == f"y = '{token}' + '__REDACTEDX_2__'"
    )
    assert redaction.count == 1


def test_values_of_telling_environment_variables_are_secrets_wherever_they_stand(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MY_SERVICE_TOKEN", "correct horse")
    monkeypatch.setenv("SSH_KEY_FILE", "/etc/keys/id_rsa")
    monkeypatch.setenv("SHORT_KEY", "abc")
    hidden, restore = redact("say 'correct horse' abc /etc/keys/id_rsa")
    assert hidden == "say '__REDACTED_1__' abc /etc/keys/id_rsa"
    assert restore(hidden) == "say 'correct horse' abc /etc/keys/id_rsa"


def test_a_secret_inside_another_comes_back() -> None:
    inner = "inner-secret-value"
    text = f"password = 'outer {inner} x'; {inner}"
    hidden, restore = redact(text, (inner,))
    assert inner not in hidden
    assert restore(hidden) == text


@given(st.from_regex(NAME))
def test_a_name_is_found_by_its_stem(text: str) -> None:
    match = NAME.search(text)
    assert match is not None
    assert match.start() in name_starts(text)


def test_redacting_takes_linear_time() -> None:
    for piece in (
        "a",
        "-----BEGIN PRIVATE KEY-----",
        "sk-",
        "://x:",
        "password='",
        "eyJaaaaaaaa.",
        "A1b/",
        "bearer ",
    ):
        text = piece * (200_000 // len(piece))
        begun = time.thread_time()
        redact(text)
        assert time.thread_time() - begun < 2.5, piece


def test_keys_come_from_the_environment_then_from_the_keyring(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stored = {("kernel-lsp", "https://models.example.com"): " from-keyring\n"}
    monkeypatch.setattr("keyring.get_password", lambda service, user: stored.get((service, user)))
    monkeypatch.delenv("KERNEL_LSP_API_KEY", raising=False)
    settings = Settings()
    assert key_for("https://models.example.com", settings) == "from-keyring"
    assert key_for("https://other.example.com", settings) is None
    monkeypatch.setenv("MY_KEY", "from-environment")
    other = Settings(api_key_env="MY_KEY")
    assert key_source("https://models.example.com", other) == (
        "from-environment",
        "environment variable MY_KEY",
    )


@pytest.mark.parametrize(
    ("url", "origin", "known"),
    [
        ("", "https://api.openai.com", True),
        ("", "http://127.0.0.1:8000", False),
        ("http://127.0.0.1:8000/v1/", "http://127.0.0.1:8000", True),
        ("http://127.0.0.1:8000/v1/", "https://api.openai.com", False),
        ("https://models.example.com", "https://models.example.com.evil.example", False),
        ("no address", "https://api.openai.com", False),
    ],
)
def test_the_key_of_openais_clients_goes_to_its_own_server_alone(
    monkeypatch: pytest.MonkeyPatch, url: str, origin: str, known: bool
) -> None:
    monkeypatch.setattr("keyring.get_password", lambda service, user: None)
    monkeypatch.setenv("OPENAI_API_KEY", "a-key-of-somebody")
    monkeypatch.setenv("OPENAI_BASE_URL", url)
    monkeypatch.delenv("KERNEL_LSP_API_KEY", raising=False)
    assert (key_for(origin, Settings()) is not None) == known
    monkeypatch.setenv("KERNEL_LSP_API_KEY", "ours")
    assert key_for(origin, Settings()) == "ours"


def test_a_keyring_that_is_locked_or_missing_is_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    import keyring.errors

    monkeypatch.delenv("KERNEL_LSP_API_KEY", raising=False)
    for error in (
        keyring.errors.NoKeyringError(),
        keyring.errors.KeyringLocked(),
        OSError(),
        RuntimeError(),
    ):

        def broken(service: str, user: str, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr("keyring.get_password", broken)
        assert key_for("https://models.example.com", Settings()) is None


def test_settings_hold_no_key() -> None:
    assert "key" not in json.dumps(sorted(Settings.__slots__)).replace("api_key_env", "")


def test_random_runs_are_told_from_names() -> None:
    assert secret_values.is_random("aG9k3Zb7Qx1Lm0PvR5tYw8UeKj2HnSd4FcVgBzMi")
    for name in (
        "FusedRotaryPositionalEmbeddingWithLearnedScaleAndBias",
        "test_scaled_dot_product_attention_bfloat16_cuda",
        "layers/0/self_attn/q_proj/weight/and/many/more/parts",
        "0" * 64,
        "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz",
    ):
        assert not secret_values.is_random(name)


def test_many_texts_share_one_redaction() -> None:
    redaction = Redaction(("x", "y"), ("known-secret-1",))
    assert redaction.hide("known-secret-1") == redaction.hide("known-secret-1") == "__REDACTED_1__"


@pytest.mark.parametrize("seed", range(3))
def test_99_of_100_secrets_are_hidden(seed: int) -> None:
    samples = secret_corpus.secrets(seed)
    assert len(samples) >= 200
    shown = [text for text, secret in samples if secret in redact(text)[0]]
    assert len(shown) <= 0.01 * len(samples), "\n".join(shown)
    for text, _ in samples:
        hidden, restore = redact(f"import torch\n{text}\nx = 1\n")
        assert restore(hidden) == f"import torch\n{text}\nx = 1\n"


@pytest.mark.parametrize("seed", range(1, 4))
def test_a_corpus_that_was_written_without_knowing_the_rules(seed: int) -> None:
    """At its first reading 94.3 % were hidden and no harmless string; what was missed has rules
    since."""
    check(secret_corpus_fresh.secrets(seed), secret_corpus_fresh.harmless(seed))


@pytest.mark.parametrize("seed", range(3))
def test_values_of_services_in_the_forms_of_languages_and_tools(seed: int) -> None:
    """At its first reading 82.0 % of 1,200 were hidden, and 5.5 % of 1,200 harmless strings."""
    check(secret_corpus_crossed.secrets(seed), secret_corpus_crossed.harmless(seed))


@pytest.mark.parametrize("seed", range(3))
def test_values_where_writers_of_formats_put_them(seed: int) -> None:
    """At its first reading, with what the corpus before had taught, 93.3 % of 1,200 were hidden,
    and 0.2 % of 1,200 lines of installed packages."""
    check(secret_corpus_written.secrets(seed), secret_corpus_written.harmless(seed))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("name", "share"), [("sixth", 0.02), ("seventh", 0.08)])
def test_texts_as_people_write_them_before_they_read_a_rule(
    name: str, share: float, seed: int
) -> None:
    """At their first readings 95.1 % of 226 and then, with what those had taught, 88.0 % of 108
    were hidden; of harmless strings, most of them hashes, ids and public keys, 10.7 % and 9.2 %.
    What is still missed of the seventh are passwords that a person made, as arguments of programs
    that no rule knows. An eighth would show less than the shares below."""
    secret = secret_corpus_marked.read(f"{name}-secrets", seed)
    shown = [one.text for one in secret if one.secret in redact(one.text)[0]]
    assert len(shown) <= share * len(secret), "\n".join(shown)
    harmless = secret_corpus_marked.read(f"{name}-harmless", seed)
    hidden = [one.text for one in harmless if redact(one.text)[0] != one.text]
    assert len(hidden) <= 0.02 * len(harmless), "\n".join(hidden)


def check(samples: list[tuple[str, str]], harmless: list[str]) -> None:
    shown = [text for text, secret in samples if secret in redact(text)[0]]
    assert len(samples) >= 200
    assert len(shown) <= 0.01 * len(samples), "\n".join(shown)
    hidden = [text for text in harmless if redact(text)[0] != text]
    assert len(harmless) >= 200
    assert len(hidden) <= 0.02 * len(harmless), "\n".join(hidden)
    for text, _ in samples:
        concealed, restore = redact(text)
        assert restore(concealed) == text


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("PGPASSWORD=s3cr3tP4ss psql -h db", "s3cr3tP4ss"),
        ('mysql -u root -p"Qw3rty!uiop" -h db', "Qw3rty!uiop"),
        (
            f'mnemonic = "{"legal winner thank year wave sausage " * 2}"'.replace(' "', '"'),
            "sausage",
        ),
    ],
)
def test_what_a_third_corpus_has_shown(text: str, secret: str) -> None:
    """Of 75 samples 69 were hidden at its first reading, of 37 harmless strings 2."""
    assert secret not in redact(text)[0]


@pytest.mark.parametrize("before", ["sha256:", "commit ", 'revision="', "'sha256': '", "md5="])
def test_a_hash_of_what_is_meant_is_no_secret(before: str) -> None:
    text = f"{before}7e51b429fe8110102c995f1abef543b5dfce8a98"
    assert redact(text)[0] == text


def test_at_most_2_of_100_harmless_strings_are_hidden() -> None:
    samples = secret_corpus.harmless()
    assert len(samples) >= 200
    hidden = [redact(text)[0] for text in samples if redact(text)[0] != text]
    assert len(hidden) <= 0.02 * len(samples), "\n".join(hidden)


def test_a_prompt_says_neither_whose_machine_this_is_nor_where(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", "/clusters/home7/grace")
    monkeypatch.setattr("platform.node", lambda: "gpu-17.cluster.example.org")
    secrets.of_this_machine.cache_clear()
    try:
        text = (
            "open('/clusters/home7/grace/x.pt')  # on gpu-17, or gpu-17.cluster.example.org; not "
            "gpu-170"
        )
        hidden, restore = redact(text)
        assert "grace" not in hidden and "gpu-17," not in hidden and "cluster.example" not in hidden
        assert hidden.endswith("not gpu-170") and restore(hidden) == text
    finally:
        secrets.of_this_machine.cache_clear()
