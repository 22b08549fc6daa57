"""Whether a text that stands where a secret may stand looks like one: each takes what a pattern
(secret_rules.py) has found, and its match.

Not covered: a secret that looks like words."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from itertools import pairwise
from typing import TypeAlias

LONG = 40
"""Characters of random text that are no accident: 240 bits of base64."""
RANDOM = 0.2
"""From which share of neighbors where a word cannot go on (aB, a1, 1a) a run counts as random.
Measured: of 100,000 runs of 40 letters of base64 1 in 2,000 has less; of 2,037 names of 40 letters
in torch and transformers 20 have more; those are hidden for nothing, and come back."""
NOBODY = frozenset(
    ["git", "hg", "user", "noreply", "no-reply", "name", "you", "username", "someone"]
)
SHORTEST = 6
SHORTEST_RANDOM = 8
"""A shorter part of a name (`layer2_conv3_w1`) has digits without being random."""
SIGNS = frozenset("!@#$^&*?~+=%")
LINE_CHARS = 300
"""Of a line before a name: whether that stands in a comment or a string."""

Holds: TypeAlias = Callable[[str, "re.Match[str]"], bool]
"""Whether what a pattern has found, which may be a part of its match, is to be hidden."""

_PLACEHOLDER = re.compile(
    r"(?i)<[\w -]*+>|\$[({]|[{(]|%[({sd]|%\w++%|\*{3}|\*\w++\*|\.{1,3}(?:/|$|\w)|__|-{1,2}[a-z]|xx"
    r"|\[[^\s\[\]]*+\]|[\w .-]*+(?:%[sdrif]\b|\{\w*+\}$)|(?:your|my)[-_ ]|change|example"
    r"|placeholder|dummy|insert|none\b|null\b|todo|fake|redacted"
)
_VARIABLE = re.compile(r"\$[A-Za-z_]\w*+")
_TYPE = re.compile(r"(?:torch\.|tl\.|np\.|jnp\.)?(?:u?int|b?float|complex|bytes|str|e\dm)\d\w*+")
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*+(?:\.\w*+)*+")
_KEYWORD = re.compile(r"[A-Za-z_]\w*+=")
_CALL = re.compile(r"[A-Za-z_][\w.]*+[(\[]")
_PLACE = re.compile(r"[/~.]|[A-Za-z]\w{1,9}+:/{1,3}")
_FOLDERS = re.compile(r"\w{1,40}+(?:/\w{1,40}+){2}")
_SHELL = re.compile(r"[\s>-]{0,40}+(?:(?:export|set|ENV|env|ARG|-e)\s{1,4}+)?[\w.\"'-]*+")
_WORDS = re.compile(r"(?:(?:[A-Za-z]++\d{0,2}|v?\d{1,3})[-_. ])*+[A-Za-z]*?[-_.]?v?\d{0,2}")
_NUMBERS_OR_PATH = re.compile(r"\w*+[/.:\\]\S*|[\d.:-]+")
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_HASH = re.compile(
    r"(?i:(?<![a-z])(?:sha\d{0,3}|md5|blake\w{0,4}|commit|rev|revision|digest|checksum|hash|etag"
    r"|integrity|fingerprint|tree|blob|layer|version|(?<!session_)id))"
    r"[\"']?\]?\s{0,2}[:=/-]?\s{0,2}[\"']?$"
)
"""Before a run of digits: it says which content or thing is meant, as everybody may know."""
_HEX_PART = re.compile(r"(?<![A-Za-z0-9])[0-9a-fA-F]{32,}(?![A-Za-z0-9])")
_INTEGRITY = re.compile(r"sha\d{3}-|_{0,2}Z[NKLTd]?\w")
"""How hashes of packages and the names that a C++ compiler makes begin."""


def always(secret: str, match: re.Match[str]) -> bool:
    """True: whatever stands in that place is a secret."""
    return True


def no_placeholder(secret: str, match: re.Match[str]) -> bool:
    """Neither `"YOUR_PASSWORD"`, `"${PASSWORD}"` and `"<password>"`, nor a sentence."""
    edges = secret[:1].isspace() or secret[-1:].isspace()
    return (
        len(secret) >= SHORTEST
        and not _PLACEHOLDER.match(secret)
        and (not _VARIABLE.match(secret) or looks_random(secret))
        and secret.count(" ") < 4
        and not edges
    )


def is_real_assignment(secret: str, match: re.Match[str]) -> bool:
    """What stands for itself is no secret: `secret = "secret"`."""
    named = match.string[match.start() : match.end() - len(secret)].lower()
    beside = "," in named  # `setenv("API_KEY", "…")`, and any list of words
    return (
        no_placeholder(secret, match)
        and secret.strip("_-").lower() not in named
        and (not beside or _like_password(secret))
    )


def is_mixed(secret: str, match: re.Match[str]) -> bool:
    """Behind a weak name: letters and digits, or signs that no word has."""
    return (
        no_placeholder(secret, match)
        and not _NUMBERS_OR_PATH.fullmatch(secret)
        and _like_password(secret)
    )


def is_shaped(secret: str, match: re.Match[str]) -> bool:
    """Where the place says that it is a password, and the text does not look like a name."""
    return (
        no_placeholder(secret, match)
        and not _PLACE.match(secret)
        and (not _FOLDERS.match(secret) or looks_random(secret))
        and (_like_password(secret) or _has_many_humps(secret))
    )


def is_password(secret: str, match: re.Match[str]) -> bool:
    """Anywhere in the statement of a sensitive name: a password, or random text for a weak one."""
    if not is_shaped(secret, match):
        return False
    return match["strong"] is not None or (_like_password(secret) and looks_random(secret))


def _like_password(secret: str) -> bool:
    digits = any(c.isdigit() for c in secret)
    if not any(c.isalpha() for c in secret):
        return False
    if digits and not _WORDS.fullmatch(secret):
        return True
    humps = any(x.islower() and y.isupper() for x, y in pairwise(secret))
    return (digits and humps) or (any(c in SIGNS for c in secret) and len(secret) >= 8)


def _has_many_humps(secret: str) -> bool:
    """Base64 that happens to have no digit."""
    return len(secret) >= 12 and secret.isalpha() and _count_breaks(secret) >= len(secret) / 4


def looks_random(secret: str) -> bool:
    """Letters and digits change places as in no word and no name with numbers in it."""
    longest = max(re.split(r"[-_./:]", secret), key=len)
    random = len(longest) >= SHORTEST_RANDOM and _count_breaks(longest) >= 3
    return random or _UUID.fullmatch(secret) is not None


def query(secret: str, match: re.Match[str]) -> bool:
    """Whether the value of a query parameter may be a key: no placeholder, and with a digit or 20
    characters."""
    return not _PLACEHOLDER.match(secret) and (
        any(c.isdigit() for c in secret) or len(secret) >= 20
    )


def is_written_out(secret: str, match: re.Match[str]) -> bool:
    """Without quotes: in a comment, a string, a line of a shell or of YAML, but no expression."""
    if _names_a_placeholder(secret):
        return False
    mixed = any(c.isdigit() for c in secret) and any(c.isalpha() for c in secret)
    if not mixed and not any(c in SIGNS for c in secret):
        return False
    first = max(0, match.start() - LINE_CHARS)
    before = match.string[first : match.start()].rpartition("\n")[2]
    if _is_comment_or_string(before):
        return True
    if match["equals"] == "=" and ";" in (
        before.strip()[-1:],
        match.string[match.end() : match.end() + 1],
    ):
        return True  # a connection string: `Server=db;Pwd=…;Database=x`
    if not _ends_there(match) or _assigns_a_name(secret, match["equals"]):
        return False
    return _SHELL.fullmatch(before) is not None


def is_given_bare(secret: str, match: re.Match[str]) -> bool:
    """Without quotes, whatever the syntax: no name of a program has its letters and digits so
    mixed, and behind a strong name no word has such signs."""
    if _names_a_placeholder(secret):
        return False
    if not _like_password(secret) and not (match["strong"] and _has_many_humps(secret)):
        return False
    is_keyword = match["by"].startswith(",") and _KEYWORD.match(secret)
    if _CALL.match(secret) or is_keyword or not no_placeholder(secret, match):
        return False
    if looks_random(secret):
        return True
    if match["strong"] is None:
        return False
    if match["by"].isspace():
        return len(secret) >= SHORTEST_RANDOM and not _IDENTIFIER.fullmatch(secret)
    return not _assigns_a_name(secret, match["by"])


def holds_a_pair(secret: str, match: re.Match[str]) -> bool:
    """Of Basic authorization: a name and a password in base64."""
    try:
        pair = base64.b64decode(secret + "=" * (-len(secret) % 4), validate=True).decode()
    except (binascii.Error, ValueError):
        return False
    return ":" in pair and pair.isprintable()


def random_hex(run: str, match: re.Match[str]) -> bool:
    """Whether a run of hexadecimal digits looks drawn rather than written, and its text does not
    say what it is."""
    if _says_which(match):
        return False
    return any(c.isdigit() for c in run) and any(c.isalpha() for c in run) and len(set(run)) >= 8


def random_label(run: str, match: re.Match[str]) -> bool:
    """Behind the mark of a service, which may be shorter than random text that has none."""
    return not _says_which(match) and is_random(run, share=0.25, kinds=10)


def random_run(run: str, match: re.Match[str]) -> bool:
    """``random_hex`` has judged the hexadecimal parts of a path."""
    if _INTEGRITY.match(run) or _says_which(match):
        return False
    rest = _HEX_PART.sub("", run)
    return is_random(rest) and (rest == run or len(rest) >= LONG)


def is_random(run: str, *, share: float = RANDOM, kinds: int = 16) -> bool:
    """Whether no name has such letters: base64 changes their kind far more often than words do,
    CamelCase included; and it is not made of short parts, as names of kernels are."""
    parts = re.split(r"[-_/]", run)
    if len(parts) > 3 and max(map(len, parts)) < 16:
        return False
    pairs = sum(x.isalnum() and y.isalnum() for x, y in pairwise(run))
    return _count_breaks(run) >= share * pairs and len(set(run)) >= kinds


def person(secret: str, match: re.Match[str]) -> bool:
    """Whether a name is that of a person, rather than one that stands for nobody."""
    return match["name"].lower() not in NOBODY


def _is_comment_or_string(before: str) -> bool:
    """Whether what follows ``before`` on its line stands in a comment or within quotes."""
    is_comment = "#" in before or "//" in before
    return is_comment or before.count('"') % 2 == 1 or before.count("'") % 2 == 1


def _names_a_placeholder(secret: str) -> bool:
    return bool(_PLACE.match(secret) or _PLACEHOLDER.match(secret) or _TYPE.fullmatch(secret))


def _assigns_a_name(secret: str, equals: str) -> bool:
    """``key = name``: an expression; a shell writes no spaces, and a name no number such as 2031."""
    is_name = _IDENTIFIER.fullmatch(secret) and not secret[-3:].isdigit()
    return bool("=" in equals and equals != "=" and is_name)


def _ends_there(match: re.Match[str]) -> bool:
    """With its line, or where a shell goes on with a command: `PGPASSWORD=… psql`."""
    if match["equals"] == "=" and match.string[match.start()].isupper():
        return True
    return match["rest"].endswith("\n") or match.end() == len(match.string)


def _says_which(match: re.Match[str]) -> bool:
    return bool(_HASH.search(match.string[max(0, match.start() - 32) : match.start()]))


def _count_breaks(run: str) -> int:
    """Neighbors of different kinds, but the capital that begins a word (Ab)."""
    kinds = "".join(
        "a" if c.islower() else "A" if c.isupper() else "1" if c.isdigit() else " " for c in run
    )
    return sum(x + y in ("aA", "a1", "A1", "1a", "1A") for x, y in pairwise(kinds))
