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
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import takewhile

from kernel_lsp import parsing
from kernel_lsp.agents import secret_values
from kernel_lsp.agents.secret_rules import ABROAD

SHORTEST = 5
"""Shorter words are mostly abbreviations (`nvme`), and no password is that short."""
SHORTEST_WITH_DIGITS = 6
SHORTEST_OF_COMPOUND = 3
LONG_NUMBER = 12
"""Digits of a number that is no size and no port."""
LONGEST = 300
NEAR_CHARS = 40
LINE_CHARS = 2000
"""Of a longer line each part of this length is judged as a line."""

_ABOUT = re.compile(
    ABROAD + r"|(?i:passw|passphrase|passwor[dt]|kennwort|secret|credential|wrongpass"
    r"|(?:api|access|private|signing|encryption|account|license)[_-]?key|auth(?:ori[sz](?:ation|ed?|ing)|(?!or))|bearer"
    r"|(?<![a-z])(?:getpass|requirepass|mdp|log_?in|pwd?|pass(?![_-]?[a-z])|creds?|pin(?![_-]?[a-z])|sudo|ssh\w*|sftp|ftp|scp|curl|wget|smtp|imap|ldap"
    r"|smb|vpn|wifi|vault|minio|redis|mongo\w*|mysql\w*|postgres\w*|psql|pg|amqp|kafka|snowflake"
    r"|clickhouse|paramiko|keyring|hmac|pbkdf2\w*|scrypt|bcrypt|argon2\w*|fernet|cipher|jwt|oauth"
    r"|decrypt|encrypt|htpasswd|kinit|zip(?!\()|7z|unzip|rar|gpg|openssl)(?![a-z])"
    r"|(?<![a-z])(?!(?:by|com|encom|sur|tres|over|under|multi|forward|fast)pass)[a-z]{2,8}(?:pass|pw)(?![a-z])"
    r"|zipfile|\bconnect\()"
)
"""On a line that says so, a word may be a password."""
_TOKEN = re.compile(r"[^\s\"'`<>{}()\[\],;|]{5,}")
_LITERAL = re.compile(r"(?P<q>[\"'`])(?P<text>[^\s\"'`\\]{5,120})(?:\\[nrt0]){0,2}(?P=q)")
_PHRASE = re.compile(r"(?P<q>[\"'`])(?P<text>[^\s\"'`\\]{1,40}(?: [^\s\"'`\\]{1,40}){1,12})(?P=q)")
_EXPRESSION = re.compile(r"[/\\${}<>]|^[~.]|\w\.\w")
"""In a path, a reference and an attribute of something, which are no passwords."""
_CALLED = re.compile(r"(?i:passw|secret|token|credential|key)")
"""In what a secret is called: `NPM_TOKEN`, `npm-token`."""
_WORD = re.compile(r"[^\W\d_]+")
_HUMP = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[^\W\d_A-Za-z]+[a-z]*")
_PARTS = re.compile(r"[^A-Za-z0-9_\u00c0-\u024f]+|_+")
_ESCAPE = re.compile(r"\\[abfnrtv0]|\\x[0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}")
_GIVEN = re.compile(r"[:=].")
_KIND = rf"(?:(?i:passw(?:or)?d|passphrase|secret|(?<![a-z])(?:pwd|pass|pw|mdp))|{ABROAD})"
_GIVES = re.compile(_KIND + r"[\"'\]]?\s{0,4}(?:[=:]?=?>?|->|\s(?:is|was))\s{0,4}[\"'`(]?$")
_GIVEN_PHRASE = re.compile(_KIND + r"[^\n]{0,8}[\"'`][^\s\"'`]{1,40} ")
_GIVES_BELOW = re.compile(
    _KIND + r"[\"'\]]?\s{0,4}[:=][=>]?\s{0,4}(?:[(\[\\]|[>|][+-]?)?\n[\s\"'`-]{0,80}$"
)
"""The line before ends with the name."""
_OPEN = re.compile(r"[:=(\[{,>|\\-][\"']?\s*$")
_ALONE = re.compile(r"[\s-]*[\"'`]?[^\s\"'`]{5,120}[\"'`]?[,)\]}\s]*$")
_ANSWER = re.compile(
    r"[\s\-{<]*[\"']?(?i:value|default|answer|response|string_?data|(?:\w{1,32}\.)?send\w{0,16})\b"
)
"""A line whose own name says nothing: what it holds is named above."""
MAX_LINES_BELOW = 4
_HEADING = re.compile(
    r"\s*(?:\[[\w.-]{0,40}(?i:credentials?|passwords?|secrets?|logins?)\]|[\"']?[\w.-]{0,40}"
    r"(?i:credentials?|passwords|secrets|logins)[\"']?\s{0,4}[:=]\s{0,4}\{?)\s*$"
)
_ENTRY = re.compile(r"\s*[\"']?[\w.@-]{1,60}[\"']?\s{0,4}[:=]\s{0,4}[^\s{\[(]")
"""A name and its value below such a heading."""
MAX_ENTRIES = 20
_INSTALLS = re.compile(
    r"\b(?:apt(?:-get)?|pip3?|conda|mamba|yum|dnf|brew|npm|uv)\s[^\n]{0,60}?\b(?:install|add)\b"
)
_ALGORITHM = re.compile(
    r"(?i:(?:(?:scram|hmac|pbkdf2|ecdsa|ecdhe|dhe|tls)[-_]){0,3}(?:aes|sha|shake|md|rsa|[hrep]s|ed|chacha|argon|blake|curve|secp|camellia|des|crc|xxh)[-_]?\d{1,4}\w{0,4}"
    r"(?:[-_](?:gcm|cbc|ctr|ccm|xts|etm|poly\d{1,4}|sha\d{1,3}|\d{1,4})){0,3})"
)
_FUNCTION = re.compile(r"[.\w]+")
_OPTION = re.compile(r"(?<=\s)[a-z]{3,24}=(?=[\"'][{\w])")
"""Of a program, before its value: ``-o jsonpath='{…}'``."""
_ORDERS = re.compile(r"(?:^|\s)(?:aws|az|docker|gcloud|gh|helm|kubectl|vault)\s{1,4}$")
_STANDS_IN = re.compile(r"(?i:change[-_]?(?:me|it|this)\W{0,3}|[\w-]{0,12}(?:\.{3}|…))")
"""`changeme`, `sk-...`: what is to be filled in."""
_RUN_OF = re.compile(
    r"https?://[^\s?#@]{1,200}/(?:runs?|jobs?|sweeps?|experiments?|artifacts?)/[a-z\d-]{1,40}"
)
_ID = re.compile(
    r"(?<![A-Za-z])(?i:(?:run|job|build|request|trace|task)[ _-]?id)[\"']?[:=]?\s{0,2}[\"']?$"
)
_FILE = re.compile(
    r"[A-Za-z][\w-]{0,40}\.(?:txt|json|csv|ya?ml|toml|pem|crt|md|log|sql"
    r"|pth?|ckpt|safetensors|gguf|onnx|np[yz]|h5|py|ipynb|cu|ptx|cubin)"
)
_MODEL = re.compile(r"[A-Za-z][\w.-]{1,40}/[A-Za-z][\w.-]{1,80}")
"""Of a hub: whose it is, and its name."""
_LOADS = re.compile(
    r"(?:create_model|from_pretrained|load_model|hub\.load|pipeline)\(\s{0,4}[\"']$"
)
_CALLS_A_PART = re.compile(r"[a-z]{2,24}(?:[_:.][a-z]{2,24}){2,6}")
"""`accounts:password_reset_confirm`: with what a secret is called in it, a name and none."""
_SIZED = re.compile(r"[A-Za-z]{1,20}\d{1,4}(?:x\d{1,4}){1,4}")
"""Of a kernel's name: `warpgroupsize1x1x1`."""
_MODULE = re.compile(r"[a-z_][a-z_\d]*(?:\.[a-z_][a-z_\d]*){2,}(?:\.[A-Z][A-Za-z\d]{2,40})?")
_REFERS = re.compile(
    r"(?i:(?:read|get|load|fetch|look_?up|resolve)_?(?:secret|token|key|password|credential|param|variable|env)\w{0,24}"
    r"|environ\.get|variable\.get)\(\s{0,4}(?:\w{1,24}\s{0,2}=\s{0,2})?[\"']$"
    r"|(?i:name|ref|policy|mode|type|field|(?:existing|pull)_?secrets?)[\"']?\s{0,4}[:=]\s{0,4}[\"']?$"
)
"""Before what a secret is called or how it is kept, which is none."""
_GIVES_IT = re.compile(_KIND + r"[=:]")
_RUN = re.compile(r"[A-Za-z0-9+/_-]{16,}={0,2}")
_ADDRESS = re.compile(
    r"[a-z][a-z0-9+]{1,9}://"
    r"(?:[^@]*$|(?P<user>[^:@/]*):(?:(?P=user)|__REDACTEDX*_\d+__|pass(?:word)?)?@)"
)
"""Whose password was judged, or which has none."""
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
    for begin, end, about in _lines_and_subjects(text):
        for place in sorted(_tokens(text, begin, end), key=lambda one: (one[0], -one[1])):
            start, stop = place[:2]
            if start < done:
                continue
            if _is_public(text, start, stop, about=about):
                done = stop
                continue
            if _is_unexplained(_TokenLine(text, begin, about), place, own):
                yield start, stop
                done = stop


@dataclass(frozen=True, slots=True)
class _TokenLine:
    text: str
    """All of the text that it is a line of."""
    begin: int
    about: bool
    """Whether it is about credentials."""


def _is_unexplained(line: _TokenLine, place: tuple[int, int, bool], own: frozenset[str]) -> bool:
    """Whether the token at ``place`` is to be hidden."""
    text, begin, about = line.text, line.begin, line.about
    start, stop, alone = place
    token = text[start:stop]
    if _says_what_it_is(line, start, token):
        return False
    given = about and _is_given(text, begin, start, stop)
    if " " in token:
        return given and _is_phrase(token, own)
    if about and alone:
        near = not _REFERS.search(text, max(begin, start - NEAR_CHARS), start)
    else:
        near = about and not _is_syntax(text, begin, start, stop)
    near = near and not _MODULE.fullmatch(token)
    if given or (alone and near):
        return _is_compound(token, own) or is_strange(token, own, about=near)
    return is_strange(token, own, about=near, alone=alone)


def _says_what_it_is(line: _TokenLine, start: int, token: str) -> bool:
    """Whether it is an algorithm, a placeholder, or the name of something."""
    if _ALGORITHM.fullmatch(token) or _STANDS_IN.fullmatch(token) or _is_name(token):
        return True
    return not line.about and _names_a_run_or_model(line, start, token)


def _names_a_run_or_model(line: _TokenLine, start: int, token: str) -> bool:
    near = max(line.begin, start - NEAR_CHARS)
    if _RUN_OF.fullmatch(token) or _ID.search(line.text, near, start):
        return True
    loaded = _LOADS.search(line.text, near, start) or _MODEL.fullmatch(token)
    return bool(loaded) and not any(map(secret_values.is_drawn, _PARTS.split(token)))


def _is_name(token: str) -> bool:
    """Whether it is what a file or a part of a program is called."""
    if _FILE.fullmatch(token):
        return not any(secret_values.is_drawn(part) for part in _PARTS.split(token))
    return _CALLS_A_PART.fullmatch(token) is not None and _CALLED.search(token) is not None


def _lines_and_subjects(text: str) -> Iterator[tuple[int, int, bool]]:
    """Each line with whether it is about credentials, by its own words or by those above that it
    answers (`- name: DB_PASSWORD`, then `value: …`)."""
    below, before, headed = MAX_LINES_BELOW, "", 0
    for begin, end in _lines(text):
        line = text[begin:end]
        own = _ABOUT.search(line) is not None and not _INSTALLS.search(line)
        below = 0 if own else below + 1
        answers = _ANSWER.match(line) or (_OPEN.search(before) and _ALONE.match(line))
        entry = _ENTRY.match(line) if headed else None
        is_below = below < MAX_LINES_BELOW and answers is not None
        yield begin, end, own or is_below or entry is not None
        headed = MAX_ENTRIES if _HEADING.match(line) else headed - 1 if entry else 0
        before = line


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
    if _GIVEN_PHRASE.search(text, begin, end):
        for match in _PHRASE.finditer(text, begin, end):
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


def _is_syntax(text: str, begin: int, start: int, stop: int) -> bool:
    """Whether it is the name of a program, an option, of a function that is called, or of what
    refers to a secret."""
    if not text[begin:start].strip() and _GIVEN.search(text, start, stop) is None:
        return True  # the first of its line, and it gives nothing a value
    if (option := _OPTION.match(text, start)) and option.end() == stop:
        return True
    if text[start:stop].isalpha() and _ORDERS.search(text, max(begin, start - NEAR_CHARS), start):
        return True
    if text.startswith("--", start):
        return "=" not in text[start:stop]
    if _REFERS.search(text, max(begin, start - NEAR_CHARS), start):
        return True
    return text.startswith("(", stop) and _FUNCTION.fullmatch(text, start, stop) is not None


def _is_given(text: str, begin: int, start: int, stop: int) -> bool:
    """Whether it is the value of a password by the text around it."""
    before = text[max(begin, start - NEAR_CHARS) : start]
    if _GIVES.search(before) is not None:
        return True
    named = _name_in(text[start:stop])
    if named is not None and named[0] == 0:
        return True
    return _GIVES_BELOW.search(text[max(0, start - 2 * NEAR_CHARS) : start]) is not None


def _name_in(token: str) -> tuple[int, int] | None:
    """Begin and end of a name before its value, `DB_PASSWORD=`; None: there is none. What stands
    before the word is gone back over by hand: a pattern that begins with up to NEAR_CHARS letters
    tries so many at each place."""
    found = _GIVES_IT.search(token)
    if found is None:
        return None
    begin, first = found.start(), max(0, found.start() - NEAR_CHARS)
    while begin > first and (token[begin - 1].isalnum() or token[begin - 1] in "_.-"):
        begin -= 1
    return begin, found.end()


def _is_phrase(text: str, own: frozenset[str]) -> bool:
    """Whether words with blanks between them are a password: no sentence that speaks of one, and
    not of words alone that programs are full of."""
    words = [word.lower() for word in _WORD.findall(text) if len(word) >= SHORTEST_OF_COMPOUND]
    speaks = _ABOUT.search(text) is not None or _EXPRESSION.search(text) is not None
    return not speaks and not all(_is_usual(word, own) for word in words)


def _is_compound(token: str, own: frozenset[str]) -> bool:
    """Whether it is made of parts that are each too short to be judged, and one is no word of
    programs: `post-duif`."""
    begin, end = _name_in(token) or (0, 0)
    value = token[:begin] + token[end:]
    words = [word.lower() for word in _WORD.findall(value) if len(word) >= SHORTEST_OF_COMPOUND]
    return (
        len(value) >= SHORTEST_WITH_DIGITS
        and not _EXPRESSION.search(value)
        and not _CALLED.search(value)
        and not all(_is_explained(word, own) for word in words)
    )


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
    if len(part) < SHORTEST or _HEX.fullmatch(part) or (not about and _SIZED.fullmatch(part)):
        return False
    if secret_values.is_in_order(part):
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
