"""What no rule knows: a word that programs do not use, where a password may stand, does not leave."""

import ast
import importlib.util
import random
import time
from pathlib import Path

import pytest
import secret_corpus_marked
from hypothesis import given
from hypothesis import strategies as st

from kernel_lsp.agents import explained
from kernel_lsp.agents.secrets import Redaction, redact_prompt
from kernel_lsp.agents.wording import quote_text
from kernel_lsp.records import Message, Prompt, Role, ToolCall


def hide(text: str) -> str:
    return Redaction((text,)).hide_unexplained(text, explained.names_of(text))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("name", "shown", "hidden"),
    [
        ("sixth", 0.02, 0.08),
        ("seventh", 0.01, 0.08),
        ("eighth", 0.01, 0.06),
        ("ninth", 0.01, 0.02),
        ("tenth", 0.06, 0.02),
        ("eleventh", 0.02, 0.03),
        ("twelfth", 0.06, 0.05),
        ("thirteenth", 0.02, 0.02),
        ("fifteenth", 0.03, 0.02),
        ("sixteenth", 0.02, 0.02),
        ("fourteenth", 0.06, 0.04),
        ("seventeenth", 0.02, 0.02),
        ("eighteenth", 0.03, 0.06),
    ],
)
def test_texts_as_people_write_them(name: str, shown: float, hidden: float, seed: int) -> None:
    """At first readings: the eighth 82.9 % of 351 by the rules alone; the ninth, written after what
    that had taught, 90.1 % of 303 (and 0.9 % of 348 harmless strings, which are such as prompts
    hold; those of the others are mostly hashes, ids and public keys). Of 69 examples of the rule
    sets of others (Nosey Parker, CredSweeper, Kingfisher), which are not kept here, the rules alone
    hid 70 %, this 88 %, and 94 % after that. The tenth was written last, and nothing was changed
    after it was read: 94.0 % of 150, and none of 150 harmless strings. The eleventh and twelfth are
    halves of one that was blind (benchmarks/results/secrets-2026-11-28.txt): 90.1 % of 343, and
    10.2 % of 275 harmless strings; after what the eleventh has taught 94.1 % of the twelfth, whose
    misses nobody has read, and 9.3 %. The thirteenth and fourteenth are halves of one of the same kind:
    95.4 % of 173, and 5.3 % of 320 harmless strings; what the thirteenth has taught changed nothing
    in the fourteenth (94.2 % of 86, 5.0 % of 160), whose misses nobody has read. The fifteenth and
    sixteenth too: 98.4 % of 208, and 8.2 % of 204; what the fifteenth has taught changed nothing in
    the sixteenth (99.0 % of 104, 4.6 % of 102). Then the twelfth, fourteenth and sixteenth were read
    too. The seventeenth and eighteenth, by somebody who had seen this file's rules: 99.5 % of 280,
    and 5.3 % of 268; the misses of the eighteenth nobody has read."""
    samples = secret_corpus_marked.read(f"{name}-secrets", seed)
    missed = [one.text for one in samples if one.secret in hide(one.text)]
    assert len(missed) <= shown * len(samples), "\n".join(missed)
    harmless = secret_corpus_marked.read(f"{name}-harmless", seed)
    changed = [hide(one.text) for one in harmless if hide(one.text) != one.text]
    assert len(changed) <= hidden * len(harmless), "\n".join(changed)


@pytest.mark.parametrize("package", ["peft", "accelerate"])
def test_programs_whose_words_were_not_counted_stay_as_they_are(package: str) -> None:
    """Of 13,000 lines 1 in 3,000 was changed when this was written."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"{package} is not installed")
    files = sorted(Path(spec.origin).parent.rglob("*.py"))
    lines = changed = 0
    for file in random.Random(3).sample(files, 8):
        text = file.read_text(encoding="utf-8")[:20_000]
        names = explained.names_of(file.read_text(encoding="utf-8"))
        after = Redaction((text,)).hide_unexplained(text, names)
        lines += len(text.splitlines())
        changed += sum(x != y for x, y in zip(text.splitlines(), after.splitlines(), strict=True))
    assert changed <= 0.01 * lines


PROGRAM = '''
import torch

class Zwirbel(torch.nn.Module):
    """Connects as jo, password kuckucksuhr."""

    def forward(self, x: torch.Tensor, kuckuck: int) -> torch.Tensor:
        login("db", "jo", "murmelbahn", zwirbel=kuckuck)
        return torch.nn.functional.interpolate(x, mode="bicubic", scale_factor=kuckuck)
'''


def test_a_prompt_has_no_password_and_its_program_computes_the_same() -> None:
    prompt = Prompt(
        messages=(
            Message(role=Role.SYSTEM, text="A password is never asked for, nor a wurzelbrot."),
            Message(role=Role.USER, text=quote_text(PROGRAM, "python")),
        )
    )
    safe, redaction = redact_prompt(prompt)
    assert safe.messages[0] == prompt.messages[0]
    sent = safe.messages[1].text
    assert "kuckucksuhr" not in sent and "murmelbahn" not in sent
    assert redaction.restore(sent) == prompt.messages[1].text
    before, after = (
        [n for n in ast.walk(ast.parse(text)) if not isinstance(n, ast.Constant)]
        for text in (PROGRAM, sent.removeprefix("```python\n").removesuffix("\n```"))
    )
    assert [type(n) for n in before] == [type(n) for n in after]
    assert 'mode="bicubic"' in sent and "class Zwirbel" in sent and "zwirbel=kuckuck" in sent


def test_what_is_hidden_once_is_hidden_where_a_model_moved_it() -> None:
    call = ToolCall(name="write_rewrite", arguments={"code": "x = f('murmelbahn')\n"})
    prompt = Prompt(
        messages=(
            Message(role=Role.USER, text=quote_text(PROGRAM, "python")),
            Message(role=Role.ASSISTANT, calls=(call,)),
            Message(role=Role.TOOL, text="KeyError: murmelbahn"),
        )
    )
    safe, redaction = redact_prompt(prompt)
    assert "murmelbahn" not in repr(safe.messages)
    assert redaction.restore(safe.messages[2].text) == "KeyError: murmelbahn"


@pytest.mark.parametrize(
    ("text", "password"),
    [
        ("- name: DB_PASSWORD\n  value: wacholder", "wacholder"),
        ("password: >-\n  wacholder\n", "wacholder"),
        ('child.expect("password:")\nchild.sendline("wachol-der")', "wachol-der"),
        ('"credentials": {\n  "user": "jo",\n  "code": "wacholder"\n}', "wacholder"),
        ("[passwords]\njo = wacholder\n", "wacholder"),
        ("SMTP_PASS='am alten zaun'", "am alten zaun"),
        ("POSTGRES_PASSWORD: rot-ahorn", "rot-ahorn"),
        ("PASSWORD=summer", "summer"),
        ("jelszó: wacholder", "wacholder"),
        ("# jo:wacholder@gpu7", "wacholder"),
    ],
)
def test_a_password_is_known_by_the_lines_around_it(text: str, password: str) -> None:
    assert password not in hide(text)


@pytest.mark.parametrize(
    "text",
    [
        'pass_manager = "instcombine,gvn,licm"',
        'api_key = read_secret("wandb")',
        'secret_name = "wandb-credentials"',
        'tuning_key = "M4096_N4096_K14336_bf16"',
        "for w13, x7 in zip(w13_shards, swizzled): pass",
        "redis://:@localhost:6379",
        "postgres://postgres:postgres@localhost/test",
        "token = secrets.token_urlsafe(32)",
        'cipher = "aes-256-gcm"',
        "f = lambda hidden:hidden@weight",
    ],
)
def test_what_is_said_about_passwords_stays(text: str) -> None:
    assert hide(text) == text


@given(st.text())
def test_whatever_it_was_comes_back(text: str) -> None:
    redaction = Redaction((text,))
    assert redaction.restore(redaction.hide_unexplained(text, ())) == text


def test_it_takes_linear_time() -> None:
    for piece in (
        "a",
        "x1",
        '"',
        "'aB",
        "/",
        "password ",
        "a1_",
        "Zé",
        "aA",
        "a.com.",
        "://",
        "k" * 300,
    ):
        text = piece * (200_000 // len(piece))
        begun = time.thread_time()
        list(explained.unexplained(text))
        assert time.thread_time() - begun < 4, piece


def test_a_value_that_reads_like_a_name_is_none() -> None:
    assert explained.names_of("password: otterbau\nx = f(y.zebra)") == {"password", "x", "zebra"}
    assert explained.names_of("no python at all") == frozenset()


def test_words_are_packed_and_come_back() -> None:
    words = ["a", "ab", "abc", "b", "extraordinarily", "extraordinarilyso", "extraordinary"]
    assert list(explained.unpack(explained.pack(words))) == words
    known, common = explained.known_words()
    assert "attention" in common and common < known and "" not in known
