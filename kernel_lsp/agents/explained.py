"""What of a text cannot be explained: words that programs do not use, where a password may stand.

The rules (secret_rules.py) know how secrets look; a password that a person made looks like
nothing. So this looks from the other side, and what it does not know is hidden: on a line about
credentials or a service every unknown word, elsewhere an unknown word with digits in it, or one
whose letters change as in no name. Known are the words that eight files or more of widely used
packages have (known_words.txt, written by scripts/known_words), and the names of the program
itself.
Not covered: a password of common words."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator
from functools import cache
from importlib.resources import files
from itertools import takewhile

from kernel_lsp import parsing
from kernel_lsp.agents import secret_values

SHORTEST = 5
"""Shorter words are mostly abbreviations (`nvme`), and no password is that short."""
SHORTEST_WITH_DIGITS = 6
LONG_NUMBER = 12
"""Digits of a number that is no size and no port."""
LONGEST = 300
NEAR_CHARS = 40
LINE_CHARS = 2000
"""Of a longer line each part of this length is judged as a line."""

_ABOUT = re.compile(
    r"(?i:passw|passphrase|passwor[dt]|kennwort|secret|credential|wrongpass"
    r"|(?:api|access|private|signing|encryption|account|license)[_-]?key|auth(?!or)|bearer"
    r"|(?<![a-z])(?:log_?in|pwd?|pass|creds?|pin|sudo|ssh\w*|sftp|ftp|scp|curl|wget|smtp|imap|ldap"
    r"|smb|vpn|wifi|vault|minio|redis|mongo\w*|mysql\w*|postgres\w*|psql|pg|amqp|kafka|snowflake"
    r"|clickhouse|paramiko|keyring|hmac|pbkdf2\w*|scrypt|bcrypt|argon2\w*|fernet|cipher|jwt|oauth"
    r"|decrypt|encrypt|htpasswd|kinit|zip|7z|unzip|rar|gpg|openssl)(?![a-z])"
    r"|zipfile|\bconnect\()"
)
"""On a line that says so, a word may be a password."""
_TOKEN = re.compile(r"[^\s\"'`<>{}()\[\],;|]{5,}")
_LITERAL = re.compile(r"(?P<q>[\"'`])(?P<text>[^\s\"'`\\]{5,120})(?P=q)")
_WORD = re.compile(r"[^\W\d_]+")
_HUMP = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[^\W\d_A-Za-z]+[a-z]*")
_PARTS = re.compile(r"[^A-Za-z0-9_\u00c0-\u024f]+|_+")
_ESCAPE = re.compile(r"\\[abfnrtv0]|\\x[0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}")
_GIVEN = re.compile(r"[:=].")
_KIND = r"(?i:passw(?:or)?d|passphrase|secret|(?<![a-z])(?:pwd|pass|pw))"
_GIVES = re.compile(_KIND + r"[\"'\]]?\s{0,4}(?:[=:]?=?>?|->|\s(?:is|was))\s{0,4}[\"'`(]?$")
_GIVES_IT = re.compile(rf"[\w.-]{{0,40}}?{_KIND}[=:]")
_RUN = re.compile(r"[A-Za-z0-9+/_-]{16,}={0,2}")
_ADDRESS = re.compile(r"[a-z][a-z0-9+]{1,9}://[^@]*$")
_HOST = re.compile(r"(?:[\w-]{1,63}\.){1,6}(?:com|org|net|io|dev|ai|co|edu|gov|eu|de|ch|uk|fr)\b")
_HEX = re.compile(r"(?:0x)?[0-9a-fA-F]+")
_MANGLED = re.compile(r"_{0,2}Z[NKLTd]?\w")
_PLACEHOLDER = re.compile(r"__REDACTEDX*_\d+__")
_SUFFIXES = ("s", "es", "d", "ed", "ing", "er", "ers", "ly", "able", "ize", "ized", "izer", "less")
_PREFIXES = ("un", "re", "non", "pre", "sub", "multi", "de", "dis", "inter", "auto", "micro")


@cache
def known_words() -> tuple[frozenset[str], frozenset[str]]:
    """(all known words, those among them that programs are full of)."""
    text = (files("kernel_lsp.agents") / "known_words.txt").read_text(encoding="ascii")
    common, _, rest = text.partition("\n\n")
    first = frozenset(unpack(common))
    return first.union(unpack(rest)), first


def pack(words: Collection[str]) -> str:
    """The words by alphabet, a line each: how many letters are those of the word before, as a
    hexadecimal digit, and the others. An editor's extension has no room for more."""
    lines, before = list[str](), ""
    for word in sorted(words):
        pairs = zip(before[:15], word, strict=False)
        same = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
        lines.append(f"{same:x}{word[same:]}")
        before = word
    return "\n".join(lines)


def unpack(text: str) -> Iterator[str]:
    """The inverse of `pack`."""
    word = ""
    for line in text.split():
        word = word[: int(line[0], 16)] + line[1:]
        yield word


def names_of(source: str) -> frozenset[str]:
    """The words, in small letters, of the names that a program binds: a value without quotes
    (`password: otter`) reads like a name, but nothing gives it one. None of a text that is no
    Python: all of it might be a secret."""
    try:
        tree = parsing.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return frozenset()
    found = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            continue
        for field in ("id", "attr", "arg", "name", "module", "asname"):
            name = getattr(node, field, None)
            if isinstance(name, str):
                found.update(word.lower() for word in _HUMP.findall(name))
    return frozenset(found)


def unexplained(text: str, names: Iterable[str] = ()) -> Iterator[tuple[int, int]]:
    """Where such words stand, in order and apart; ``names`` are known as well."""
    own = frozenset(names)
    done = 0
    for begin, end in _lines(text):
        about = _ABOUT.search(text, begin, end) is not None
        for token in sorted(_tokens(text, begin, end), key=lambda one: (one[0], -one[1])):
            start, stop, alone = token
            if start < done:
                continue
            if _is_public(text, start, stop, about=about):
                done = stop
                continue
            near = about and (alone or not _is_command(text, begin, start, stop))
            given = alone or (about and _is_given(text, begin, start, stop))
            if is_strange(text[start:stop], own, about=near, alone=given):
                yield start, stop
                done = stop


def _lines(text: str) -> Iterator[tuple[int, int]]:
    at = 0
    while at < len(text):
        end = text.find("\n", at, at + LINE_CHARS)
        end = min(len(text), at + LINE_CHARS) if end < 0 else end + 1
        yield at, end
        at = end


def _tokens(text: str, begin: int, end: int) -> Iterator[tuple[int, int, bool]]:
    """(start, end, whether it is a text of its own)."""
    for match in _LITERAL.finditer(text, begin, end):
        if match.end("text") - match.start("text") <= LONGEST:
            yield match.start("text"), match.end("text"), True
    for match in _TOKEN.finditer(text, begin, end):
        yield match.start(), match.end(), False


def _is_public(text: str, start: int, stop: int, *, about: bool) -> bool:
    """Whether all of its long runs are such as everybody may know, and it has one. A path to
    secrets is none."""
    if about and text[start] in "/~.":
        return False
    runs = list(_RUN.finditer(text, start, stop))
    return bool(runs) and all(secret_values.is_public(run[0], run) for run in runs)


def _is_command(text: str, begin: int, start: int, stop: int) -> bool:
    """Whether it is the first of its line and gives nothing a value: the name of a program."""
    return not text[begin:start].strip() and _GIVEN.search(text, start, stop) is None


def _is_given(text: str, begin: int, start: int, stop: int) -> bool:
    """Whether it is the value of a password by the text around it."""
    before = text[max(begin, start - NEAR_CHARS) : start]
    return _GIVES.search(before) is not None or _GIVES_IT.match(text, start, stop) is not None


def is_strange(token: str, own: frozenset[str], *, about: bool = True, alone: bool = True) -> bool:
    """Whether a word of the token is unknown: on a line ``about`` credentials or not, and within
    quotes of its own or not."""
    if _MANGLED.match(token) or "->" in token:
        return False
    if _ADDRESS.match(token):
        about = alone = False
    plain = token.strip("Ġ▁")
    for what in (_PLACEHOLDER, _ESCAPE, _HOST):
        plain = what.sub(" ", plain)
    whole = alone and not _ADDRESS.match(token)
    return any(_is_strange_part(part, own, about, whole) for part in _PARTS.split(plain))


def _is_strange_part(part: str, own: frozenset[str], about: bool, whole: bool) -> bool:
    if about and part.isdigit():
        return len(part) >= (SHORTEST_WITH_DIGITS if whole else LONG_NUMBER)
    if len(part) < SHORTEST or _HEX.fullmatch(part):
        return False
    if secret_values.is_drawn(part) and not _is_of_words(part, own):
        return True
    if about:
        return _is_password(part, own, whole=whole)
    return len(part) >= SHORTEST_WITH_DIGITS and _is_strange_with_digits(part, own)


def _is_strange_with_digits(part: str, own: frozenset[str]) -> bool:
    words = (w.lower() for w in _HUMP.findall(part) if len(w) >= 4 and not w.isupper())
    return any(map(str.isdigit, part)) and not all(_is_explained(word, own) for word in words)


def _is_password(part: str, own: frozenset[str], *, whole: bool) -> bool:
    """On a line about credentials a word with digits, or one that is a text of its own, may be one
    unless programs are full of it."""
    has_digits = any(map(str.isdigit, part)) and len(part) >= SHORTEST_WITH_DIGITS
    words = [w.lower() for w in _HUMP.findall(part) if len(w) >= (3 if has_digits else SHORTEST)]
    is_single = whole and words == [part.lower()]
    is_harmless = _is_usual if has_digits or is_single else _is_explained_there
    return not all(is_harmless(word, own) for word in words)


def _is_explained(word: str, own: frozenset[str]) -> bool:
    return _is_own(word, own) or is_known(word)


def _is_explained_there(word: str, own: frozenset[str]) -> bool:
    """On such a line two words that are joined explain nothing: people make passwords so."""
    known = known_words()[0]
    return _is_own(word, own) or word in known or any(stem in known for stem in _stems(word))


def _is_usual(word: str, own: frozenset[str]) -> bool:
    """Whether programs are full of the word, or of one that it is made from."""
    common = known_words()[1]
    return _is_own(word, own) or word in common or any(stem in common for stem in _stems(word))


def _is_own(word: str, own: frozenset[str]) -> bool:
    """Whether it is the program's, `xxxx`, or the name of a kind of secret (`userpassword`)."""
    if word in own or len(set(word)) < 3:
        return True
    kind = _ABOUT.search(word)
    if kind is None:
        return False
    rest = word[: kind.start()], word[kind.end() :]
    return all(len(part) < 3 or part in known_words()[0] for part in rest)


def _is_of_words(part: str, own: frozenset[str]) -> bool:
    """Whether half of its letters are of known words."""
    words = [word.lower() for word in _HUMP.findall(part)]
    found = (len(word) for word in words if len(word) >= 3 and (word in own or is_known(word)))
    return 2 * sum(found) >= sum(map(len, words))


def is_known(word: str) -> bool:
    """Whether the word, what it is made from or both of its halves are known."""
    known, common = known_words()
    return word in known or is_made_of(word, known, common)


def is_made_of(word: str, known: Collection[str], common: Collection[str]) -> bool:
    """Whether it is a known word with another ending or beginning, or two common words."""
    if any(stem in known for stem in _stems(word)):
        return True
    return any(word[:n] in common and word[n:] in common for n in range(3, len(word) - 2))


def _stems(word: str) -> Iterator[str]:
    for suffix in _SUFFIXES:
        if word.endswith(suffix) and len(word) - len(suffix) >= 3:
            stem = word[: -len(suffix)]
            yield stem
            yield stem + "e"
            if stem[-1] == stem[-2]:
                yield stem[:-1]
            if stem[-1] == "i":
                yield stem[:-1] + "y"
    for prefix in _PREFIXES:
        if word.startswith(prefix) and len(word) - len(prefix) >= 4:
            yield word[len(prefix) :]
