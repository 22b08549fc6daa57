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
LETTERS_PER_WORD = 3.4
"""Of random text of 20 to 39 letters and digits 99 in 100 have fewer, by humps of capitals: 2.1
on average. `Wav2Vec2SamePadLayer` has 3.6."""
NOBODY = frozenset(
    ["git", "hg", "user", "noreply", "no-reply", "name", "you", "username", "someone"]
)
SHORTEST = 6
SHORTEST_IN_ORDER, IN_ORDER = 16, 0.9
SHORTEST_RANDOM = 8
"""A shorter part of a name (`layer2_conv3_w1`) has digits without being random."""
STAND_INS = frozenset(["password", "passwd", "pass", "pwd", "secret", "token", "key", "pw"])
SHORTEST_PLAIN = 4
SIGNS = frozenset("!@#$^&*?~+=%")
STRONG_SIGNS = frozenset("!@#$^&*?%")
LINE_CHARS = 300
"""Of a line before a name: whether that stands in a comment or a string."""

Holds: TypeAlias = Callable[[str, "re.Match[str]"], bool]
"""Whether what a pattern has found, which may be a part of its match, is to be hidden."""

_PLACEHOLDER = re.compile(
    r"(?i)<[\w -]*+>|\$[({]|[{(]|%[({sd]|%\w++%|\*{3}|\*\w++\*|\.{1,3}(?:/|$|\w)|__|xx"
    r"|-{1,2}[a-z][\w-]*+(?:=|$)"
    r"|\[[^\s\[\]]*+\]|[\w .-]*+(?:%[sdrif]\b|\{\w*+\}$)|(?:your|my)[-_ ]|change|example"
    r"|placeholder|dummy|insert|replace|(?:not?|test|demo|sample|enter|put|fill)[-_ ]|empty$"
    r"|none\b|null\b|todo|fake|redacted|(?:ctrl|cmd|alt|shift)\+"
)
_SAMPLE = re.compile(r"EXAMPLE|x{8}|X{8}|0{12}")
_PUBLISHED = re.compile(r"pk_(?:test|live)_|pk-lf-")
"""How keys begin that a service has its users put into pages."""
_FINGERPRINT = re.compile(r"[0-9A-F]{40}")
_DIMENSIONS = re.compile(r"\d{1,4}x\d{1,4}x\d{1,4}|(?:\d{1,2}(?:de?|c)){4}")
"""Of a tile, in a kernel's name; or which of its arguments are special (`0d1d2d3de4c`)."""
_CLIENT = ".apps.googleusercontent.com"
"""Behind a program's number at Google, which is public."""
_OF_A_SERVER = re.compile(r"(?:requirepass|masterauth)\s{1,4}$")
"""A line of settings whose value is a password, whatever it looks like."""
_NUMBERED = r"[A-Za-z]{0,16}(?:\d{1,6}(?:x\d{1,6}){0,3})?(?:[a-z]\d?[a-z]{0,3})?"
_NUMBERED_NAME = re.compile(rf"(?:{_NUMBERED}[-_./:]){{1,16}}{_NUMBERED}")
"""`M4096_N4096_bf16`, `linux-py312-torch251`: what programs look things up by."""
_LOOKS_UP = re.compile(
    r"(?i:(?<!api)(?<!access)(?<!secret)(?<!private)[_.-]?key)[\"'\]]{0,2}\s{0,4}[:=]"
)
_VARIABLE = re.compile(r"\$[A-Za-z_]\w*+")
_TYPE = re.compile(
    r"(?:torch\.|tl\.|np\.|jnp\.)?(?:u?int|b?float|complex|bytes|str|e\dm|sha|md)\d\w*+"
)
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*+(?:\.\w*+)*+")
_KEYWORD = re.compile(r"[A-Za-z_]\w*+=")
_CALL = re.compile(r"[A-Za-z_][\w.]*+[(\[]")
_PLACE = re.compile(r"[/~.]|[A-Za-z]\w{1,9}+:/{1,3}")
_FOLDERS = re.compile(r"\w{1,40}+(?:/\w{1,40}+){2}")
_SHELL = re.compile(r"[\s>-]{0,40}+(?:(?:export|set|ENV|env|ARG|-e)\s{1,4}+)?[\w.\"'-]*+")
_WORDS = re.compile(r"(?:(?:[A-Za-z]++\d{0,2}|v?\d{1,3})[-_. ])*+[A-Za-z]*?[-_.]?v?\d{0,2}")
_KIND_OF_VALUE = re.compile(
    r"(?i:str|string|bytes|int|integer|object|bool|boolean|true|false|none|null|yes|no|any|required"
    r"|optional|hidden|masked|text|inherit|prompt|empty|default|field|encrypted|unset|auto)"
)
_NUMBERS_OR_PATH = re.compile(r"\w*+[/.:\\]\S*|[\d.:-]+")
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_NUMBER = re.compile(r"0x[0-9a-fA-F]+[uUlL]*")
LONGEST_NUMBER = 18
"""Of a machine, with its `0x`: `state["key"] = 0x9e3779b97f4a7c15`."""
_OF_A_PUBLIC_KEY = re.compile(r"(?i:public[-_ .]?(?:key[-_ .]?)?)$")
_HASH = re.compile(
    r"(?i:(?<![a-z])(?:sha\d{0,3}|md5|blake\w{0,4}|cache[ _-](?:key|hit|miss)"
    r"|commit|rev|revision|digest|checksum|hash|etag|integrity|fingerprint|tree|blob|layer|version|(?<!session_)id))"
    r"[\"']?\]?\s{0,2}[:=/-]?\s{0,2}[\"']?$|[a-z](?:ID|Ref)\($"
    r"|(?<![Ss]ecret)(?<![Ss]ession)[a-z]I[Dd]\s{0,2}[:=]?\s{0,2}[\"']?$"
)
"""Before a run of digits: it says which content or thing is meant, as everybody may know."""
_CONTENT = re.compile(
    r"(?i:(?<![a-z])(?:traceparent|parent|fixed\s(?:in|by)|change-id|websocket-accept|sha_?\d{0,3}|md5|hash|(?:hex)?digest|checksum|commit|checkout|revision|srcrev\w{0,40}|revert"
    r"|merge|etag|if-none-match|integrity|fingerprint|thumbprint|recv-keys|gpg[-_]key|git(?:hub)?(?!\()|subproject|resolved|[gu]uid|h1:|container|image|content"
    r"|(?:snapshots|blob|tree|files|caches?)/"
    r"|public[-_ ]?key\w*|publickey\w*|certificate-authority|kid|dkim\d?"
    r"|hashes|\w{0,16}sums?|cache[ _-](?:key|hit|miss)|expected\w{0,16}|(?:rng|random)[_ ]state|lut\w{0,16}"
    r"|ssh-(?:ed25519|rsa|dss)|ecdsa-sha2-[a-z0-9-]{1,40})s?(?![a-z])|sum\s-c|Mon Sep 17)"
    r"|refs/(?:heads|tags|remotes)/|get_(?:task|run|experiment|dataset|model|artifact|job|trial)\("
    r"|\.(?:pth?|bin|safetensors|ckpt|np[yz]|onnx|gguf|h5|parquet|tgz|tar|gz|zip|whl|so|deb|rpm|jar)(?:[\"'\s:,]|$)"
    r"|(?:Thumbprint|Fingerprint|Digest|Checksum|Hash|Commit|Revision)(?![a-z])"
)
"""On a line that names no secret: its long runs say which content is meant, or are public keys."""
_SENSITIVE = re.compile(
    r"(?i:passw|passphrase|secret|token|credential|bearer|authorization|private"
    r"|(?:api|access|auth|signing|encryption)[-_ ]?key|login|hmac)"
)
_HEX = re.compile(r"[0-9a-fA-F]+")
_MEDIA = re.compile(
    r"iVBORw0KGgo|/9j/|R0lGOD|UklGR|JVBERi0|PHN2Zy|AAAA[BC]3NzaC1|AAAAE2VjZHNh"
    r"|AAABAA|gA[JSW]V|gAN[9j]|k05VTVBZ|f0VMR|H4sI|UEsDB|QlpoO|/Td6W|KLUv/|d09G|AAEAAA|T2dnU|SUQz|PD94bW"
    r"|MII[BC]IjANBgkqhkiG9w0BAQEFAAOC|MFkwEwYHKoZIzj0|7f454c46|89504e47|1f8b08|504b0304|934e554d"
)
"""How pictures, documents, archives, pickles, programs and public keys begin in base64, and some in
hexadecimal digits."""
_DECODED = re.compile(
    r"(?:b64decode|b85decode|fromhex|unhexlify|frombuffer)\(\s{0,4}[rb]{0,2}[\"']{1,3}$"
)
"""Before a run: it is content in letters; keys are seldom so long and seldom without a name."""
LONG_CONTENT = 64
LONGEST_KEY = 100
"""Of a key whose line does not say that it is one: more are weights, pictures and programs."""
_KEY = re.compile(
    r"(?i:key|token|salt|cipher|aes|auth|session|cookie|cred|sig|pem|pass|pwd|account|sas|jwt|x-amz|secure|crypt|kube)"
)
_QUERY = re.compile(r"[?&][\w.-]{1,64}=$")
_DATA = re.compile(r"(?:data:[\w/.+;=-]{0,80}|;)base64,$")
_FILE = re.compile(r"(?:-\w{1,8})?\.[a-z]{1,8}\b(?!\()")
"""What goes on so was the name of a file: compilers' caches call their files by hashes."""
_HUMP = re.compile(r"[A-Z]?[a-z]++|[A-Z]++(?![a-z])")
_EXPRESSION = re.compile(
    r"[-+]?(?:[A-Za-z_][\w.]*+|[\d.]++)(?:[-+*%&=?!~^#]{1,3}(?:[A-Za-z_][\w.]*+|[\d.]++))*+[*&]{0,2}"
    r"|[\w./:-]++@[\w.-]++,?"
)
_CONSTANT = re.compile(r"_?[A-Z][A-Z_]*+\d*+(?:_\d+)?")
_DOTTED = re.compile(r"(?:[a-z_][a-z_\d]*+\.){2,}+[A-Za-z_]\w*+")
_BEGIN = "-----BEGIN "
_PUBLIC = re.compile(
    r"(?:TRUSTED )?(?:CERTIFICATE|(?:RSA |EC |DSA |PGP )?PUBLIC KEY|PGP SIGNATURE|PGP MESSAGE|X509)"
)
BLOCK_CHARS = 8000
"""Before a run of base64: how far back the beginning of its certificate is looked for."""
_HEX_PART = re.compile(r"(?<![A-Za-z0-9])[0-9a-fA-F]{32,}(?![A-Za-z0-9])")
_INTEGRITY = re.compile(
    r"sha\d{1,3}-|_{0,2}Z[NKLTd]?\w|(?:bc1[qp]|age1)[a-z0-9]{38,}$|baf[yk][a-z2-7]{50,}$|Qm\w{43,44}$"
)
"""How hashes of packages, the names that a C++ compiler makes, and public addresses begin."""


def always(secret: str, match: re.Match[str]) -> bool:
    """True: whatever stands in that place is a secret."""
    return True


def is_no_sample(secret: str, match: re.Match[str]) -> bool:
    """Whether a token is none of a manual's: `AKIAIOSFODNN7EXAMPLE`, `ghp_xxxxxxxxxxxx`."""
    return _SAMPLE.search(secret) is None and _PUBLISHED.match(secret) is None


def no_placeholder(secret: str, match: re.Match[str]) -> bool:
    """Whether it is neither `"YOUR_PASSWORD"`, `"${PASSWORD}"` and `"<password>"`, nor a
    sentence."""
    edges = secret[:1].isspace() or secret[-1:].isspace()
    named = match.string[max(0, match.start() - 12) : match.start()]
    return (
        len(secret) >= SHORTEST
        and not _OF_A_PUBLIC_KEY.search(named)
        and not (named.upper().endswith("GPG_") and _FINGERPRINT.fullmatch(secret))
        and secret.lower() not in STAND_INS
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


def is_short(secret: str, match: re.Match[str]) -> bool:
    """Whether four or five letters and digits behind its name are a password: not without a digit."""
    return any(map(str.isdigit, secret))


def is_plain(secret: str, match: re.Match[str]) -> bool:
    """Whether a word without quotes is a password where a file of settings gives one: whatever it
    is, but for what stands for it, and types of fields."""
    return (
        not _names_a_placeholder(secret)
        and not _VARIABLE.match(secret)
        and secret.lower() not in STAND_INS
        and not _KIND_OF_VALUE.fullmatch(secret)
        and not (secret.isdigit() and len(secret) < SHORTEST_PLAIN)
    )


def is_in_text(secret: str, match: re.Match[str]) -> bool:
    """Whether `user:password@machine` stands in a comment or a string: elsewhere it multiplies
    matrices."""
    first = max(0, match.start() - LINE_CHARS)
    before = match.string[first : match.start()].rpartition("\n")[2]
    return no_placeholder(secret, match) and _is_comment_or_string(before)


def is_mixed(secret: str, match: re.Match[str]) -> bool:
    """Whether it is a secret behind a weak name: letters and digits, or signs that no word has."""
    return (
        no_placeholder(secret, match)
        and not _NUMBERS_OR_PATH.fullmatch(secret)
        and not _is_looked_up(secret, match)
        and _like_password(secret)
    )


def is_shaped(secret: str, match: re.Match[str]) -> bool:
    """Whether it is a secret where the place says that it is a password: its text does not look
    like a name."""
    return (
        no_placeholder(secret, match)
        and not _PLACE.match(secret)
        and not _DOTTED.fullmatch(secret)
        and (not _FOLDERS.match(secret) or looks_random(secret))
        and (_like_password(secret) or _has_many_humps(secret))
    )


def is_password(secret: str, match: re.Match[str]) -> bool:
    """Whether it is a secret anywhere in the statement of a sensitive name: a password, or random
    text for a weak one."""
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
    """Random letters without a digit."""
    if len(secret) < 12 or not secret.isalpha():
        return False
    return 0 < _count_letters_per_word(secret) <= 2.5 or _count_breaks(secret) >= len(secret) / 4


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
    """Whether it is a secret without quotes: in a comment, a string, a line of a shell or of YAML,
    but no expression."""
    if _names_a_placeholder(secret) or not no_placeholder(secret, match):
        return False
    if _is_looked_up(secret, match):
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
    """Whether it is a secret without quotes, whatever the syntax: no name of a program has its
    letters and digits so mixed, and behind a strong name no word has such signs."""
    if _names_a_placeholder(secret.rstrip(").")) or secret.startswith(":"):
        return False
    if not _like_password(secret) and not (match["strong"] and _has_many_humps(secret)):
        return False
    is_keyword = match["by"].startswith(",") and (
        _KEYWORD.match(secret) or _CONSTANT.fullmatch(secret.rstrip(")"))
    )
    if _CALL.match(secret) or is_keyword or not no_placeholder(secret, match):
        return False
    if looks_random(secret):
        return True
    if match["strong"] is None:
        return False
    if match["by"].isspace():
        return _is_behind_blanks(secret, match)
    return not _assigns_a_name(secret, match["by"])


def holds_a_pair(secret: str, match: re.Match[str]) -> bool:
    """Whether it is Basic authorization: a name and a password in base64."""
    try:
        pair = base64.b64decode(secret + "=" * (-len(secret) % 4), validate=True).decode()
    except (binascii.Error, ValueError):
        return False
    return ":" in pair and pair.isprintable()


def of_an_address(secret: str, match: re.Match[str]) -> bool:
    """Whether it is a secret between user and machine, and does not
    only stand for one: the word itself, the user's own name again."""
    user = match.string[match.start() : match.end()].partition(":")[0]
    stands_for_itself = secret.lower() in {*STAND_INS, user.lower()}
    return not stands_for_itself and not _PLACEHOLDER.match(secret)


def random_hex(run: str, match: re.Match[str]) -> bool:
    """Whether a run of hexadecimal digits looks drawn rather than written, and its text does not
    say what it is."""
    if _says_which(match) or _is_of_public_content(run, match):
        return False
    letters = {c for c in run if c.isalpha()}
    return any(c.isdigit() for c in run) and len(letters) > 1 and len(set(run)) >= 8


def random_label(run: str, match: re.Match[str]) -> bool:
    """Whether it is random text behind the mark of a service, which may be shorter than random text
    that has none."""
    text = match.string[max(0, match.end() - 36) : match.end()]
    is_known = _says_which(match) or _is_in_a_public_block(match.string, match.start())
    if (
        is_known
        or _UUID.fullmatch(text)
        or _INTEGRITY.match(match[0])
        or _PUBLISHED.match(match[0])
    ):
        return False
    return _DIMENSIONS.search(run) is None and is_random(run, share=0.25, kinds=10)


def random_run(run: str, match: re.Match[str]) -> bool:
    """``random_hex`` has judged the hexadecimal parts of a path."""
    if _INTEGRITY.match(run) or _says_which(match) or _is_of_public_content(run, match):
        return False
    if _NUMBER.fullmatch(run) and match.string[match.start() - 1 : match.start()] not in ("'", '"'):
        return False
    rest = _HEX_PART.sub("", run)
    return is_random(rest) and (rest == run or len(rest) >= LONG)


def is_drawn(word: str) -> bool:
    """Whether a word of letters and digits was drawn by a machine: no name changes so often
    between small letters, capitals and digits."""
    if len(word) >= 16 and is_random(word, share=0.15, kinds=10):
        return True
    if word.isalpha():
        return _has_many_humps(word) and not word.isupper() and len(word) >= 12
    if not all(any(map(kind, word)) for kind in (str.islower, str.isupper, str.isdigit)):
        return False
    return len(word) >= SHORTEST_RANDOM and 4 * _count_breaks(word) >= len(word)


def is_public(run: str, match: re.Match[str]) -> bool:
    """Whether all may know a long run: its text says which content is meant, or what it is."""
    return (
        _INTEGRITY.match(run) is not None or _says_which(match) or _is_of_public_content(run, match)
    )


def is_typographic(secret: str, match: re.Match[str]) -> bool:
    """Whether it has capital and small letters, digits and signs in one word, as only passwords
    have them."""
    word = secret.rstrip("?")
    kinds = (str.islower, str.isupper, str.isdigit, STRONG_SIGNS.__contains__)
    if not all(any(map(kind, word)) for kind in kinds) or not no_placeholder(secret, match):
        return False
    return match["q"] is not None or not _EXPRESSION.fullmatch(word)


def random_word(run: str, match: re.Match[str]) -> bool:
    """A text of its own, shorter than random text within others may be: all kinds of letters, and
    changing more often than in a name."""
    kinds = (str.islower, str.isupper, str.isdigit)
    if not all(any(map(kind, run)) for kind in kinds) or _QUERY.search(
        match.string[max(0, match.start() - LINE_CHARS) : match.start()]
    ):
        return False
    if sum(map(str.isdigit, run)) < 2 and _count_letters_per_word(run) > 2.8:
        return False
    is_known = _says_which(match) or _is_in_a_public_block(match.string, match.start())
    if is_known or _NUMBER.fullmatch(run):
        return False
    return is_random(run, kinds=12)


def is_random(run: str, *, share: float = RANDOM, kinds: int = 16) -> bool:
    """Whether no name has such letters: base64 changes their kind far more often than words do,
    CamelCase included; and it is not made of short parts, as names of kernels are."""
    if is_in_order(run):
        return False
    parts = re.split(r"[-_/]", run)
    if len(parts) > 3 and max(map(len, parts)) < 16:
        return False
    if len(parts) > 8 and len(run) < 10 * len(parts) and run.islower():
        return False
    if _count_letters_per_word(run) > LETTERS_PER_WORD:
        return False
    pairs = sum(x.isalnum() and y.isalnum() for x, y in pairwise(run))
    return _count_breaks(run) >= share * pairs and len(set(run)) >= kinds


def is_in_order(run: str) -> bool:
    """Whether its letters follow each other as in an alphabet; of drawn ones half do."""
    ascending = sum(x < y for x, y in pairwise(run))
    return len(run) >= SHORTEST_IN_ORDER and ascending >= IN_ORDER * (len(run) - 1)


def person(secret: str, match: re.Match[str]) -> bool:
    """Whether a name is that of a person, rather than one that stands for nobody."""
    return match["name"].lower() not in NOBODY


def _is_comment_or_string(before: str) -> bool:
    """Whether what follows ``before`` on its line stands in a comment or within quotes."""
    is_comment = "#" in before or "//" in before
    return is_comment or before.count('"') % 2 == 1 or before.count("'") % 2 == 1


def _names_a_placeholder(secret: str) -> bool:
    is_number = _NUMBER.fullmatch(secret) and len(secret) <= LONGEST_NUMBER
    return bool(
        is_number or _PLACE.match(secret) or _PLACEHOLDER.match(secret) or _TYPE.fullmatch(secret)
    )


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
    named = _HASH.search(match.string[max(0, match.start() - 32) : match.start()])
    return named is not None or match.string.startswith(_CLIENT, match.end())


def _is_of_public_content(run: str, match: re.Match[str]) -> bool:
    """Whether all may know it: a picture, a public key, a certificate, a file of a cache, or which
    commit or content is meant."""
    text, start, end = match.string, match.start(), match.end()
    if (
        _MEDIA.match(run)
        or _PUBLISHED.match(run)
        or _DATA.search(text[max(0, start - 100) : start])
    ):
        return True
    is_named = "/" in text[max(0, start - 1) : end] or _HEX.fullmatch(run)
    if is_named and _FILE.match(text, end):
        return True
    before = text[max(0, start - LINE_CHARS) : start].rpartition("\n")[2]
    after = text[end : end + LINE_CHARS].partition("\n")[0]
    line = f"{before} {after}"
    is_decoded = len(run) >= LONG_CONTENT and _DECODED.search(before) is not None
    is_long = len(run) > LONGEST_KEY
    is_content = (is_decoded or is_long) and not _KEY.search(line) and not _holds_text(run)
    says_so = is_content or _CONTENT.search(line) is not None
    if says_so and not _SENSITIVE.search(line):
        return True
    return _is_in_a_public_block(text, start)


def _is_behind_blanks(secret: str, match: re.Match[str]) -> bool:
    """Whether it is a password where only blanks are between its name and it."""
    if _OF_A_SERVER.search(match.string[match.start() : match.start("secret")]):
        return True
    word = secret.rstrip("?.,:=")
    return len(secret) >= SHORTEST_RANDOM and not _IDENTIFIER.fullmatch(word)


def _is_looked_up(secret: str, match: re.Match[str]) -> bool:
    """Whether it is the key of a table: parts of letters and then digits, behind `key`."""
    named = _LOOKS_UP.match(match.string, match.start()) is not None
    return named and _NUMBERED_NAME.fullmatch(secret) is not None


def _holds_text(run: str) -> bool:
    """Whether it begins as text in base64, such as a configuration with keys in it."""
    try:
        begins = base64.b64decode(run[:16], validate=True)
    except ValueError:
        return False
    return all(0x20 <= byte < 0x7F or byte in b"\t\n\r" for byte in begins)


def _is_in_a_public_block(text: str, at: int) -> bool:
    begun = text.rfind(_BEGIN, max(0, at - BLOCK_CHARS), at)
    if begun < 0 or text.find("-----END ", begun, at) >= 0:
        return False
    return _PUBLIC.match(text, begun + len(_BEGIN)) is not None


def _count_letters_per_word(run: str) -> float:
    """As CamelCase is read; 0 where all letters are of one case."""
    if run.islower() or run.isupper():
        return 0.0
    words = _HUMP.findall(run)
    return sum(map(len, words)) / max(1, len(words))


def _count_breaks(run: str) -> int:
    """Neighbors of different kinds, but the capital that begins a word (Ab)."""
    kinds = "".join(
        "a" if c.islower() else "A" if c.isupper() else "1" if c.isdigit() else " " for c in run
    )
    return sum(x + y in ("aA", "a1", "A1", "1a", "1A") for x, y in pairwise(kinds))
