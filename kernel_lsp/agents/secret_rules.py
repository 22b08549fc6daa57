"""What looks secret in source text: patterns, each with a second look at what it has found.

Forms of tokens follow the lists of detect-secrets 1.5 (Apache-2.0) and of the services themselves.
That package is none of ours: it brings `requests`, says lines rather than positions, and takes
quadratic time. Every pattern is linear (tests/unit/test_regular_expressions.py), and every
repetition that another may follow is bounded. Not covered: a secret that looks like words."""

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
SIGNS = frozenset("!@#$^&*?~+=")
LINE_CHARS = 300
"""Of a line before a name: whether that stands in a comment or a string."""

Holds: TypeAlias = Callable[[str, "re.Match[str]"], bool]
"""Whether what a pattern has found, which may be a part of its match, is to be hidden."""

_END = r"(?![A-Za-z0-9])"
_PEM = re.compile(
    r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY[A-Z ]{0,40}-----"
    # No second beginning inside, or each of many beginnings is read on for 20,000 characters (7 s
    # in 400 kB).
    r"(?:[A-Za-z0-9+/=\s\"'\\,:()]|-(?!----BEGIN )){0,20000}?"
    r"-----END [A-Z ]{0,40}PRIVATE KEY[A-Z ]{0,40}-----"
)
_PREFIXED = re.compile(
    r"(?<![A-Za-z0-9_])(?:"
    r"(?:sk|rk|pk)[-_](?=[\w-]{0,200}\d)[\w-]{16,}"  # OpenAI, Anthropic, Stripe
    r"|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|gl[a-z]{2,5}-(?=[\w-]{0,200}\d)[\w-]{16,}"
    r"|GR1348941[\w-]{20,}|hf_(?=[A-Za-z]{0,200}[A-Z])[A-Za-z]{30,}|gsk_[A-Za-z0-9]{20,}"
    r"|r8_[A-Za-z0-9]{30,}|nvapi-[\w-]{20,}|(?:xai|pplx|tvly|fw|together)-(?=[\w-]{0,200}\d)[\w-]{20,}"
    r"|xox[a-z]-[A-Za-z0-9-]{10,}|xapp-[A-Za-z0-9-]{20,}|(?:A3T[A-Z0-9]|ABIA|ACCA|AKIA|ASIA)[A-Z0-9]{16}"
    r"|LTAI[A-Za-z0-9]{12,}|AIza[\w-]{30,}|GOCSPX-[\w-]{20,}|ya29\.[\w.-]{20,}|1//0[\w-]{30,}"
    r"|(?<!-)eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*|(?<!-)SG\.[\w-]{16,}\.[\w-]{16,}"
    r"|(?:npm|pypi|dckr_pat|shp[a-z]{2}|do[opr]_v1|tskey|lin_api|sntry[su]|glsa|figd|sbp|pul|rubygems|whsec"
    r"|ATATT3|hvs|hvb|PMAK|ntn|wandb_v1|sq0[a-z]{3}|EAA[A-Z]|SK|AC|key|dapi|AKCp?|PRIVATE)"
    r"[-_.]?(?=[\w-]{0,200}\d)[\w-]{24,}"
    r"|sq0[a-z]{3}-(?=[\w-]{0,200}\d)[\w-]{20,}|fw_(?=\w{0,200}\d)(?=\w{0,200}[A-Z])\w{20,}"
    r"|api_org_(?=[A-Za-z]{0,200}[A-Z])[A-Za-z]{30,}|LL\|\d{14,18}\|[\w-]{20,}"
    r"|AGE-SECRET-KEY-1[A-Z0-9]{30,}|[0-9a-f]{32}-us\d{1,2}|oy2[a-z0-9]{43}"
    r"|\d{8,10}:A[\w-]{33,35}"  # bots of Telegram
    r"|[MNO][\w-]{22,26}\.[\w-]{6}\.[\w-]{27,40}"  # and of Discord
    r")" + _END
)
_WEBHOOK = re.compile(
    r"(?i:hooks\.slack\.com/(?:services|workflows|triggers)"
    r"|discord(?:app)?\.com/api/(?:v\d{1,2}/)?webhooks|webhook\.office\.com/webhookb2|logic\.azure\.com"
    r"|open\.(?:feishu\.cn|larksuite\.com)/open-apis/bot/v2/hook|hooks\.zapier\.com/hooks/catch"
    r"|maker\.ifttt\.com/(?:trigger|use)|chat\.googleapis\.com/v1/spaces|api\.telegram\.org/bot"
    r"|outlook\.office\.com/webhook|qyapi\.weixin\.qq\.com/cgi-bin/webhook)"
    r"(?P<secret>[/?\d][^\s\"'`<>\\]{7,500})"
)
_MATTERMOST = re.compile(r"(?<=/hooks/)(?P<secret>[a-z0-9]{26})" + _END)
_IN_ADDRESS = re.compile(
    r"(?<=://)[^\s/:@'\"]{0,64}:(?P<secret>[^\s/@'\"{}$%<>][^\s/@'\"{}<>]{0,255}+)@"
)
_IN_QUERY = re.compile(
    r"(?i:[?&](?:access_|auth_|api_|id_|refresh_|sas_)?(?:token|key|apikey|sig|signature|secret|password|pwd|auth"
    r"|code|x-amz-signature|x-amz-security-token|x-amz-credential)=)(?P<secret>[^\s&\"'#<>{}$`\\]{6,2000})"
)
_BEARER = re.compile(
    r"(?i:bearer|token)\s{1,4}(?P<secret>(?=[\w.~+/-]{0,200}\d)[\w.~+/-]{16,2000}={0,2})" + _END
)
_BASIC = re.compile(r"(?i:basic)\s{1,4}(?P<secret>[A-Za-z0-9+/]{8,2000}={0,2})")
_PAIR = re.compile(
    r"(?i:auth\s{0,4}=\s{0,4}|\b(?:log_?in|\w{0,32}auth|authenticate))\(\s{0,8}[\"'][^\"'\n]{1,100}[\"']\s{0,4},\s{0,8}"
    r"[\"'](?P<secret>[^\"'\n]{6,256})[\"']"
)
_COMMAND = re.compile(
    r"(?:(?<![\w-])(?:-u|--user)\s{1,4}[\"']?[\w.-]{1,64}:|sshpass\s{1,4}-p\s{0,4}[\"']?|"
    r"\bmysql(?:dump|admin)?\s(?:[\w.=-]{1,64}\s{1,4}){0,6}-p[\"']?|<(?:password|passwd|secret|token|apikey)>|"
    r"--(?:[a-z]{1,16}-){0,2}(?:password|passwd|token|api-key|secret|secret-key)[= ][\"']?"
    r"|\bmachine\s{1,4}\S{1,100}\s{1,4}login\s{1,4}\S{1,100}\s{1,4}password\s{1,4})"
    r"(?P<secret>[^\s\"'<>{}$,;()\[\]]{6,256})"
)
_NAME = (
    r"(?i:passw(?:or)?d|passwd|passphrase|secret|credential|connection_?string|client_?secret"
    r"|(?:api|access|private|secret|encryption|account|signing|storage|master)[_-]?key"
    r"|(?:auth|access|api|bearer|refresh|session|bot|id|jwt)[_-]?token)s?"
)
_WEAK_NAME = (
    r"(?:(?i:pwd|webhook(?:_url)?|token|auth|key|salt|login|pin)|(?<![A-Za-z])(?i:pass|pw|p/w))"
)
_EQUALS = r"[\"']?+\]?+\s{0,8}+(?::\s{0,8}+str\s{0,8}+)?[:=]=?+\s{0,8}+"
_GIVEN = (
    f"(?:{_EQUALS}"
    + r"\(?+\s{0,8}+|[\"']\s{0,4}+,\s{0,4}+|[\"']?+\]?+\)?+\s{0,4}+[!=]=\s{0,4}+)[rbuRBU]{0,2}+"
)
"""Assigned, passed beside its name, or compared."""
_DOUBLE = r"\"(?P<secret>[^\"\\\n]{0,512}+(?:\\.[^\"\\\n]{0,512}+){0,8}+)\""
_SINGLE = r"'(?P<single>[^'\\\n]{0,512}+(?:\\.[^'\\\n]{0,512}+){0,8}+)'"
_BLOCK = r"(?P<q>\"\"\"|'{3})\s{0,80}+(?P<secret>[^\s\"'\\]{6,512}+)\s{0,80}+(?P=q)"
_ASSIGNED = re.compile(_NAME + _GIVEN + f"(?:{_DOUBLE}|{_SINGLE})")
_ASSIGNED_BLOCK = re.compile(f"(?:{_NAME}|{_WEAK_NAME})" + _GIVEN + _BLOCK)
_WEAKLY_ASSIGNED = re.compile(
    _WEAK_NAME + _EQUALS + r"[rbuRBU]{0,2}+(?P<q>[\"'])(?P<secret>[^\s\"'\\]{6,512})(?P=q)"
)
_UNQUOTED = re.compile(
    f"(?:{_NAME}|{_WEAK_NAME})"
    + r"[\"']?+(?P<equals>\s{0,4}+[:=]{1,2}+\s{0,4}+|\s{1,4}(?i:is|was)\s{1,4}+)"
    + r"(?P<secret>[^\s\"'`;,()\[\]{}<>$%\\][^\s\"'`;,()\[\]{}<>\\]{5,256}+)(?P<rest>[^\S\n]{0,8}+\n?+)"
)
_MNEMONIC = re.compile(
    r"(?i:mnemonic|(?:seed|recovery|backup)[_ -]?phrase)"
    + _EQUALS
    + r"[\"'](?P<secret>(?:[a-z]{3,8} ){11,23}[a-z]{3,8})[\"']"
)
"""Words from which a wallet's key is made again."""
_HEX = re.compile(r"(?<![A-Za-z0-9_])[0-9a-fA-F]{32,}" + _END)
_HASH = re.compile(
    r"(?i:\b(?:sha\d{0,3}|md5|blake\w{0,4}|commit|rev|revision|digest|checksum|hash))"
    r"[\"']?\]?\s{0,2}[:=-]?\s{0,2}[\"']?$"
)
"""Before a run of hexadecimal digits: it says which content is meant, as everybody may know."""
_RUN = re.compile(rf"(?<![A-Za-z0-9+/_-])[A-Za-z0-9+/_-]{{{LONG},}}={{0,2}}")
_HOME = re.compile(
    r"(?<![\w.])(?:/home/|/Users/|[A-Za-z]:\\{1,2}Users\\{1,2})[\w.-]{1,64}+(?![\w.-])"
)
_PEOPLE = (
    r"com|org|net|edu|gov|mil|int|info|biz|dev|ai|io|co|me|app|cloud|tech|xyz|eu|uk|de|fr|nl|be|ch|at|es|pt|se"
    r"|no|fi|dk|pl|cz|ru|ua|cn|jp|kr|tw|hk|sg|au|nz|ca|us|br|mx|ar|il|tr|gr|ie|lu|internal|corp|local|lan"
)
_EMAIL = re.compile(
    r"(?<![\w.+/@-])(?P<name>[A-Za-z0-9][\w.+-]{1,63})@(?:[A-Za-z0-9-]{2,63}\.){1,6}(?:"
    + _PEOPLE
    + r")"
    r"(?![\w(\[@-]|\.\w)"
)
_PLACEHOLDER = re.compile(
    r"(?i)[<{$%*._#-]|xx|your|my[-_ "
    r"]|change|example|placeholder|dummy|insert|none\b|null\b|todo|fake"
)
_TYPE = re.compile(r"(?:torch\.|tl\.|np\.|jnp\.)?(?:u?int|b?float|complex|bytes|str|e\dm)\d\w*+")
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*+(?:\.\w*+)*+")
_SHELL = re.compile(r"[\s>-]{0,40}+(?:(?:export|set|ENV|env|ARG|-e)\s{1,4}+)?[\w.\"'-]*+")
_WORDS = re.compile(r"(?:[A-Za-z]++[-_. ])*+[A-Za-z]*?[-_.]?v?\d{0,2}")
_NUMBERS_OR_PATH = re.compile(r"\w*+[/.:\\]\S*|[\d.:-]+")


def _always(secret: str, match: re.Match[str]) -> bool:
    return True


def _no_placeholder(secret: str, match: re.Match[str]) -> bool:
    """Neither `"YOUR_PASSWORD"`, `"${PASSWORD}"` and `"<password>"`, nor a sentence."""
    edges = secret[:1].isspace() or secret[-1:].isspace()
    return (
        len(secret) >= SHORTEST
        and not _PLACEHOLDER.match(secret)
        and secret.count(" ") < 4
        and not edges
    )


def _is_real_assignment(secret: str, match: re.Match[str]) -> bool:
    """What stands for itself is no secret: `secret = "secret"`."""
    named = match.string[match.start() : match.end() - len(secret)].lower()
    beside = "," in named  # `setenv("API_KEY", "…")`, and any list of words
    return (
        _no_placeholder(secret, match)
        and secret.strip("_-").lower() not in named
        and (not beside or _like_password(secret))
    )


def _is_mixed(secret: str, match: re.Match[str]) -> bool:
    """Behind a weak name: letters and digits, or signs that no word has."""
    return (
        _no_placeholder(secret, match)
        and not _NUMBERS_OR_PATH.fullmatch(secret)
        and _like_password(secret)
    )


def _like_password(secret: str) -> bool:
    digits = any(c.isdigit() for c in secret)
    if not any(c.isalpha() for c in secret):
        return False
    if digits and not _WORDS.fullmatch(secret):
        return True
    humps = any(x.islower() and y.isupper() for x, y in pairwise(secret))
    return (digits and humps) or (any(c in SIGNS for c in secret) and len(secret) >= 8)


def _query(secret: str, match: re.Match[str]) -> bool:
    return not _PLACEHOLDER.match(secret) and (
        any(c.isdigit() for c in secret) or len(secret) >= 20
    )


def _is_comment_or_string(before: str) -> bool:
    """Whether what follows ``before`` on its line stands in a comment or within quotes."""
    is_comment = "#" in before or "//" in before
    return is_comment or before.count('"') % 2 == 1 or before.count("'") % 2 == 1


def _names_a_placeholder(secret: str) -> bool:
    is_path = secret.startswith(("/", "~", "http"))
    return is_path or bool(_PLACEHOLDER.match(secret) or _TYPE.fullmatch(secret))


def _assigns_a_name(secret: str, equals: str) -> bool:
    """``key = name``: an expression; a shell writes no spaces."""
    return "=" in equals and equals != "=" and _IDENTIFIER.fullmatch(secret) is not None


def _is_written_out(secret: str, match: re.Match[str]) -> bool:
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


def _ends_there(match: re.Match[str]) -> bool:
    """With its line, or where a shell goes on with a command: `PGPASSWORD=… psql`."""
    if match["equals"] == "=" and match.string[match.start()].isupper():
        return True
    return match["rest"].endswith("\n") or match.end() == len(match.string)


def _two_words(secret: str, match: re.Match[str]) -> bool:
    """Of Basic authorization: a name and a password in base64."""
    try:
        return b":" in base64.b64decode(secret + "=" * (-len(secret) % 4), validate=True)
    except (binascii.Error, ValueError):
        return False


def _random_hex(run: str, match: re.Match[str]) -> bool:
    if _HASH.search(match.string[max(0, match.start() - 32) : match.start()]):
        return False
    return any(c.isdigit() for c in run) and any(c.isalpha() for c in run) and len(set(run)) >= 8


def _random(run: str, match: re.Match[str]) -> bool:
    return is_random(run)


def is_random(run: str) -> bool:
    return _breaks(run) and len(set(run)) >= 16


def _breaks(run: str) -> bool:
    """Letters of base64 change their kind far more often than words do, CamelCase included."""
    kinds = "".join(
        "a" if c.islower() else "A" if c.isupper() else "1" if c.isdigit() else " " for c in run
    )
    pairs = [x + y for x, y in pairwise(kinds) if " " not in (x, y)]
    breaks = sum(pair in ("aA", "a1", "A1", "1a", "1A") for pair in pairs)
    return breaks >= RANDOM * len(pairs)


def _person(secret: str, match: re.Match[str]) -> bool:
    return match["name"].lower() not in NOBODY


RULES: tuple[tuple[re.Pattern[str], Holds], ...] = (
    (_PEM, _always),
    (_WEBHOOK, _no_placeholder),
    (_MATTERMOST, _random_hex),
    (_PREFIXED, _always),
    (_IN_ADDRESS, _always),
    (_IN_QUERY, _query),
    (_BEARER, _always),
    (_BASIC, _two_words),
    (_PAIR, _no_placeholder),
    (_COMMAND, _no_placeholder),
    (_ASSIGNED_BLOCK, _is_real_assignment),
    (_ASSIGNED, _is_real_assignment),
    (_WEAKLY_ASSIGNED, _is_mixed),
    (_UNQUOTED, _is_written_out),
    (_MNEMONIC, _always),
    (_HEX, _random_hex),
    (_RUN, _random),
    (_EMAIL, _person),
    (_HOME, _always),
)
"""In this order: what was hidden by one is not looked at by the next. A group ``secret`` is what
is hidden, otherwise all that was found."""
