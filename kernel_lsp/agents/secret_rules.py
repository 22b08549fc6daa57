"""What looks secret in source text: patterns, each with a second look at what it has found.

Forms of tokens follow the lists of detect-secrets 1.5 (Apache-2.0) and of the services themselves.
That package is none of ours: it brings `requests`, says lines rather than positions, and takes
quadratic time. Every pattern is linear (tests/unit/test_regular_expressions.py), and every
repetition that another may follow is bounded. Not covered: a secret that looks like words."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kernel_lsp.agents.secret_values import (
    LONG,
    Holds,
    always,
    holds_a_pair,
    is_given_bare,
    is_in_text,
    is_mixed,
    is_no_sample,
    is_password,
    is_plain,
    is_real_assignment,
    is_shaped,
    is_short,
    is_typographic,
    is_written_out,
    no_placeholder,
    of_an_address,
    person,
    query,
    random_hex,
    random_label,
    random_run,
    random_word,
)

_END = r"(?![A-Za-z0-9])"
_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
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
    r"|\d{15,16}\|[\w-]{27}|[\w~.]{3}\dQ~[\w~.-]{31,34}"  # applications of Facebook, of Azure
    r"|(?:amzn\.mws\.|sdk-|mob-|access-(?:sandbox|development|production)-)"
    + _UUID
    + r"|A3-[A-Z0-9]{6}-(?:[A-Z0-9]{11}|[A-Z0-9]{6}-[A-Z0-9]{5})(?:-[A-Z0-9]{5}){3}|[0-9a-f]{32}NRAL"
    r"|sha256~[\w-]{43}|(?:rzp_(?:live|test)|sm_pat)_[A-Za-z0-9]{14,}|sk-lm-\w{8}:\w{20}|(?:pat|sat)\.[\w-]{22}\.[0-9a-f]{24}\.\w{20}"
    r")" + _END
)
_CRYPT = re.compile(
    r"(?<![\w$])\$(?:1|2[abxy]?|5|6|7|g?y|apr1|argon2(?:i|d|id)|scrypt|pbkdf2[\w-]{0,16})"
    r"\$[\w./+=,$-]{20,300}+"
)
"""Hashes of passwords, as crypt writes them: what they hide can be tried out."""
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
_USER_OF_ADDRESS = re.compile(
    r"(?<=://)(?P<secret>(?=[\w-]{0,200}\d)[A-Za-z0-9_-]{20,255})(?::[\w-]{0,64})?@"
)
"""A key in the place of the user: `https://…:x-oauth-basic@github.com`."""
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
    r"(?:(?<![\w-])(?:-u|--user)[\s=]{1,4}[\"']?[\w.@+-]{0,64}[\"']?:[\"']?|sshpass\s{1,4}-p\s{0,4}[\"']?|"
    r"\b(?:smbclient|rpcclient|smbmap|net)\s[^\n]{0,100}?(?:-U|--user)[\s=]{0,4}[\"']?[\w.\\/-]{1,64}%|"
    r"\bmysql(?:dump|admin)?\s(?:[\w.=-]{1,64}\s{1,4}){0,6}-p[\"']?|<(?:password|passwd|secret|token|apikey)>|"
    r"--(?:[a-z]{1,16}-){0,2}(?:password|passwd|token|api-key|secret|secret-key)[= ][\"']?"
    r"|\bmachine\s{1,4}\S{1,100}\s{1,4}login\s{1,4}\S{1,100}\s{1,4}password\s{1,4})"
    r"(?P<secret>[^\s\"'<>{}$,;()\[\]]{6,256})"
)
_PHRASE = re.compile(
    r"(?:--?pass(?:phrase|word|wd)?[= ]"
    r"|\b(?:AES|DES3?|ARC4|Blowfish|ChaCha20\w{0,16})\.new\(\s{0,8}[rbRB]{0,2})"
    r"(?P<q>[\"'])(?P<secret>[^\"'\n]{6,256})(?P=q)"
)
"""Words with blanks between them."""
_PRODUCT_KEY = re.compile(
    r"(?<![\w-])(?=[A-Z-]{0,40}\d)(?=[\d-]{0,40}[A-Z])(?P<secret>(?:[A-Z0-9]{4,6}-){3,5}[A-Z0-9]{4,6})(?![\w-])"
)
_USER_ALONE = re.compile(
    r"\bcurl\s[^\n]{0,200}?(?<![\w-])(?:-u|--user)[\s=]{1,4}[\"']?(?P<secret>[^\s\"':$<{]{8,256}):[\"']?(?!\S)"
)
"""A key in the place of the user, with no password behind it."""
ABROAD = (
    r"(?:(?i:wachtwoord|passwort|kennwort|mot[ _]?de[ _]?passe|contrase(?:ñ|n|ny)a|contrasinal"
    r"|palavra[-_ ]passe|parola[ _]d'?ordine|l(?:ö|o)senord|adgangskode|kodeord|salasana|salasõna"
    r"|jelsz(?:ó|o)|slapta(?:ž|z)odis|lozink[au]|zaporka|fjal(?:ë|e)kalim|pasahitz|cyfrinair"
    r"|m(?:ậ|a)t[ _]kh(?:ẩ|a)u|kata[ _](?:sandi|laluan)|nenosiri|lykilorð|pasvorto)"
    r"|(?<![A-Za-z])(?i:senha|has(?:ł|l)o|heslo|(?:ş|s)ifre|parol[ăa]|parool|geslo|passord)(?![A-Za-z])"
    r"|(?i:пароль|пароля|парола|лозинка|κωδικός|συνθηματικό)|סיסמה|סיסמא|كلمة[ _](?:المرور|السر)"
    r"|رمز[ _]عبور|گذرواژه|पासवर्ड|পাসওয়ার্ড|รหัสผ่าน|密码|密碼|口令|密钥|秘钥|令牌|パスワード|暗証番号"
    r"|シークレット|비밀번호|암호|პაროლი|գաղտնաբառ|нууц[ _]үг)"
)
"""A pattern: "password" where people do not write English; words that mean more (`clave`, a key)
are left to the rules that look at values."""
_NAME = (
    r"(?i:passw(?:or)?d|passwd|passphrase|secret|credential|connection_?string|client_?secret"
    r"|(?:api|access|private|secret|encryption|account|signing|storage|master)[_.-]?key"
    r"|(?:auth|access|api|bearer|refresh|session|bot|id|jwt)[_.-]?token)[sS]?"
)
_WEAK_NAME = (
    r"(?:(?i:pwd|webhook(?:_url)?|token|auth|(?<!cache[ _-])key|salt|login|pin)"
    r"|(?<![A-Za-z])(?i:pass|pw|p/w|creds?)"
    # `dbpass`, `rootpw`, but no word that ends so
    r"|(?<![A-Za-z])(?!(?i:by|com|encom|sur|tres|over|under|multi|forward|fast)pass)(?i:[a-z]{2,8}(?:pass|pw|psk))"
    r"(?![A-Za-z]))"
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
_ASSIGNED_ABROAD = re.compile(ABROAD + _GIVEN + f"(?:{_DOUBLE}|{_SINGLE})")
"""On its own: within the others it took half as long again as all of them."""
_ASSIGNED_BLOCK = re.compile(f"(?:{_NAME}|{_WEAK_NAME})" + _GIVEN + _BLOCK)
_WEAKLY_ASSIGNED = re.compile(
    _WEAK_NAME + _EQUALS + r"[rbuRBU]{0,2}+(?P<q>[\"'])(?P<secret>[^\s\"'\\]{6,512})(?P=q)"
)
_UNQUOTED = re.compile(
    f"(?:{_NAME}|{_WEAK_NAME})"
    + r"[\"']?+(?P<equals>\s{0,4}+[:=]{1,2}+\s{0,4}+|\s{1,4}(?i:is|was)\s{1,4}+)"
    + r"(?P<secret>[^\s\"'`;,()\[\]{}<>$%\\][^\s\"'`;,()\[\]{}<>\\]{5,256}+)(?P<rest>[^\S\n]{0,8}+\n?+)"
)
_PIN = re.compile(
    r"(?<![A-Za-z])(?i:pin(?:_?code)?|otp|passcode)[\"']?\s{0,4}[:=]\s{0,4}[\"'](?P<secret>\d{4,8})[\"']"
)
_SHORT = re.compile(
    r"(?i:passw(?:or)?d|passphrase|pwd)" + _EQUALS + r"[\"'](?P<secret>[A-Za-z\d]{4,5})[\"']"
)
_VARIABLE = re.compile(
    r"(?<![\w.])(?:(?:[A-Z][A-Z0-9]{0,31}_){0,6}(?:PASSWORD|PASSWD|PASSPHRASE|PASS|PWD|PW|PSK)"
    r"|(?:[A-Z][a-z]{1,15}){1,3}(?:Pass(?:word|wd|phrase)?|Pwd|Psk))="
    r"(?:(?P<q>[\"'])(?P<single>[^\"'\n$%{}<>]{4,120})(?P=q)|(?P<secret>[^\s\"'`$%{}<>()|;&,]{4,120}))"
)
"""Of an environment, as shells and files of settings write it: its value is no expression."""
_SETTING = re.compile(
    r"(?m)^[ \t]{0,40}(?:- )?[\"']?[\w.-]{0,40}?"
    r"(?i:passw(?:or)?d|passphrase|passcode)[\"']?"
    r"(?::[ \t]{1,8}|\s?[:：=]\s?(?=\d))(?P<secret>[a-z\d][a-z\d-]{3,63})[ \t]{0,8}(?:#[^\n]{0,200})?$"
)
_USER_AT = re.compile(
    r"(?<![\w/:@.-])(?!(?:npm|pkg|workspace|image|docker|git)\b)[A-Za-z][\w.-]{1,31}:"
    r"(?P<secret>(?!v?[\d.]{1,16}@)[^\s:/@\"'()\[\]{}<>$%]{6,64})"
    r"@(?!sha\d)(?:[A-Za-z][\w-]{1,62}|\d{1,3}(?:\.\d{1,3}){3})(?![\w(\[])"
)
_CALLED = (
    f"(?:(?P<strong>{_NAME}"
    + r"|(?i:(?:hmac|salt|license|deploy|consumer|cipher|crypt|ssh|tls|ssl)[_.-]?key"
    r"|(?:app|admin|root|db|vault|auth|wifi|pre_?shared|wpa)[_.-]?key"
    r"|(?<=[a-z\d][_.-])token|authorization|passcode|securestring|requirepass|masterauth|snmp-server\s{1,4}community|identified\s{1,4}by"
    r"|passwor[dt]|kennwort|mot[ _]de[ _]passe|contrase(?:ñ|n)a|clave|senha|palavra-passe|parola"
    r"|wachtwoord|l(?:ö|o)senord|has(?:ł|l)o|(?:ş|s)ifre|пароль|密码|密碼|口令|パスワード|비밀번호"
    r"|(?<=[_.-])(?:pass|pw|pwd|psk)|(?<=[a-z])(?:P(?:wd|assword|assphrase)|Token)))"
    + f"|{_WEAK_NAME}"
    + r"|(?i:[_-]auth|(?:session|php|j)_?(?:sess)?id|cookie))(?![A-Za-z])"
)
"""A sensitive name: a strong one is that of a password or key, a weak one may be of anything."""
NAME = re.compile(f"{_CALLED}|{_NAME}|{_WEAK_NAME}")
"""With what each of the rules that are ``NAMED`` begins."""
_STEMS = re.compile(
    "pass|pw|psk|secret|cred|connection|key|token|webhook|auth|salt|login|pin|p/w|snmp|identified"
    "|kennwort|contrase|clave|senha|palavra|parola|wachtwoord|l[öo]senord|has[łl]o|[şs]ifre|парол"
    "|密码|密碼|口令|パスワード|비밀번호|sess|phpid|php_id|jid|j_id|cookie"
)
"""Each name has one of these, in small letters."""
_AS_PATTERNS_READ = str.maketrans("İıſ", "iis")
_BEFORE_STEM = 12
"""Letters of a name before it, at most: `encryption_key`."""
_CLOSED = r"\\?+[\"'`]?+\]?+\)?+"
_OPENED = r"\\?[\"'`]"
_LITERAL = r"(?P<q>\\?[\"'`])(?P<secret>[^\s\"'`\\]{6,512}+)(?P=q)"
_IN_STATEMENT = re.compile(
    _CALLED + _CLOSED + r"[^\n\"'`\\]{0,60}+(?:\n[^\n\"'`\\]{0,30}+)?" + _LITERAL
)
"""The first text behind a name, whatever joins them: `SecretStr("…")`, `PASSWORD '…'`."""
_SAID = re.compile(
    _CALLED
    + _CLOSED
    + r"(?:[^\S\n][^\W\d_][\w'/-]{0,15}){1,6}(?P<by>[^\S\n]?[:=]|[^\S\n](?i:is|was|are))"
    r"[^\S\n]{1,4}[\"'`]?(?P<secret>[^\s\"'`<>,;|\\]{6,256}+)"
)
"""In a sentence: `the passphrase of the lab: …`."""
_TRIPLE = re.compile(
    r"(?i:connect|login|sign_?in|auth\w{0,16}|credentials?)\w{0,16}\(\s{0,8}"
    r"(?:[\"'][^\"'\n]{0,100}[\"']\s{0,4},\s{0,8}){2}[\"'](?P<secret>[^\s\"'\\]{6,256})[\"']"
)
"""`connect("machine", "user", "…")`."""
_AFTER_ANOTHER = re.compile(
    _CALLED
    + _CLOSED
    + r"[^\n\"'`\\]{0,60}+(?:\n[^\n\"'`\\]{0,30}+)?"
    + _OPENED
    + r"[^\n\"'`\\]{0,60}+(?:\n[^\n\"'`\\]{0,30}+)?"
    + _OPENED
    + r"[^\n\"'`\\]{1,20}"
    + _LITERAL
)
"""The second: `os.environ.get("…") or "…"`, `{"name": "…", "value": "…"}`."""
_BARE = re.compile(
    _CALLED + _CLOSED + r"(?P<by>(?:[:{,]|\s)\s{0,4}(?:value|default)\s{0,4}[:=]\s{0,4}+"
    r"|</[\w:.-]{1,64}>\s{0,16}<[\w:.-]{1,64}>"
    r"|\s{0,4}(?:[:?+|]?=>?|[!=]==?|[-=]>|<-|[:：|>]|%3[aAdD]|,)[^\S\n]{0,4}+"
    r"(?:b?[|`]\s{0,2}|[Bb]earer\s)?+"
    r"|[^\S\n]{1,4}(?i:is|was|to)[^\S\n]{1,4}+|[^\S\n]{1,4}+)"
    r"(?P<secret>(?:[^\s\"'`<>,;|\\]|(?<=&amp);){6,256}+)"
)
"""Without quotes: shells, YAML, Make, tables, tags, forms, sentences."""
_COOKIE = re.compile(
    r"(?i:cookie)[\"']?+\s{0,4}+[:=]\s{0,4}+[\"']?+[\w-]{1,64}=(?P<secret>[^;\s\"'<>]{8,512}+)"
)
_PIPED = re.compile(
    r"(?:echo|printf)\s{1,4}(?:-n\s{1,4}|[\"']?%s(?:\\n)?[\"']?\s{1,4})?+[\"']?+"
    r"(?P<secret>[^\s\"'|<>]{6,512}+)[\"']?+\s{0,4}+(?=\|[^\n|]{1,100}(?:sudo\s|stdin|passwd))"
)
"""What is written into a program that asks for a password."""
_OPTION = re.compile(
    r"(?:\b(?:login|redis-cli|ipmitool|mosquitto_\w{3}|ldap\w{1,12}|smbclient|mongo(?:sh|dump)?|7z|zip|keytool)\b"
    r"[^\n\"']{0,100}?\s-(?:p|a|w|P|pass)|-pass(?:in|out)?\s{1,4}pass:|--passphrase"
    r"|\bopenssl\s[^\n\"']{1,80}?\s-k|\bnet\s{1,4}use\s[^\n]{1,80}?/user:\S{1,60}|thin:[\w.$]{1,64}/)"
    r"\s{0,4}+[\"']?+(?P<secret>[^\s\"'@|<>]{6,256}+)"
)
"""Options of programs that take a password, and Oracle's addresses."""
_PGPASS = re.compile(
    r"(?<![\w:.-])[\w.*-]{1,100}+:(?:\d{1,5}|\*):[\w*-]{1,64}+:[\w.*-]{1,64}+:"
    r"(?P<secret>[^\s:\"']{6,256}+)"
)
_USER_AND = re.compile(
    r"(?i:log ?in|sign in|user(?:name)?|credentials?|creds|account)[^\n\"'/]{1,40}?[^\S\n]/[^\S\n]"
    r"(?P<secret>[^\s\"'`<>,;|]{6,256}+)"
)
_AUTHS = re.compile(
    r"(?i:_?auths?)[\"']?\s{0,4}[:=]\s{0,4}[\"']?(?P<secret>[A-Za-z0-9+/]{8,2000}={0,2})"
)
_MNEMONIC = re.compile(
    r"(?i:mnemonic|(?:seed|recovery|backup)[_ -]?phrase)"
    + _EQUALS
    + r"[\"'](?P<secret>(?:[a-z]{3,8} ){11,23}[a-z]{3,8})[\"']"
)
"""Words from which a wallet's key is made again."""
_LABELED = re.compile(
    r"(?<![\w./-])[A-Za-z][A-Za-z0-9]{1,15}(?:[-_.][A-Za-z0-9]{1,12}){0,3}[-_.]"
    r"(?P<secret>[A-Za-z0-9]{20,}(?![\w-])|[A-Za-z0-9_-]{24,})" + _END
)
"""As services of these days hand out: a mark, then random text."""
_WORD = re.compile(
    r"(?<![\w+/.&?%:~@#-])(?<!:[\"'])(?P<secret>[A-Za-z0-9]{20,39})(?![\w+/.(\[@~-])"
)
_TYPED = re.compile(
    r"(?:(?P<q>[\"'`])|(?<![^\s,:])(?<!::))(?P<secret>[A-Za-z0-9_-][A-Za-z0-9!@#$^&*?~+=%_.-]{7,39})"
    r"(?(q)(?P=q)|(?![^\s,]))"
)
_IN_PATH = re.compile(
    r"https?://[\w.-]{1,100}(?:/[\w.~-]{1,24}){0,4}/(?P<secret>[A-Za-z0-9_-]{30,64})(?![\w./-])"
)
"""A key as the last part of an address, which whoever has it may use."""
_HEX = re.compile(r"(?<![A-Za-z0-9_])[0-9a-fA-F]{32,}" + _END)
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
NAMED = frozenset(
    [
        _ASSIGNED_BLOCK,
        _ASSIGNED,
        _WEAKLY_ASSIGNED,
        _SHORT,
        _UNQUOTED,
        _IN_STATEMENT,
        _AFTER_ANOTHER,
        _BARE,
        _SAID,
    ]
)
"""Rules that begin with a name. Each would try all names at every letter of a text, which was four
fifths of all time: `name_starts` does it for all of them, where a stem stands."""
RULES: tuple[tuple[re.Pattern[str], Holds], ...] = (
    (_PEM, always),
    (_WEBHOOK, no_placeholder),
    (_MATTERMOST, random_hex),
    (_PREFIXED, is_no_sample),
    (_CRYPT, always),
    (_IN_ADDRESS, of_an_address),
    (_USER_OF_ADDRESS, always),
    (_IN_QUERY, query),
    (_BEARER, always),
    (_BASIC, holds_a_pair),
    (_PAIR, no_placeholder),
    (_COMMAND, no_placeholder),
    (_PHRASE, no_placeholder),
    (_PRODUCT_KEY, no_placeholder),
    (_USER_ALONE, is_shaped),
    (_ASSIGNED_BLOCK, is_real_assignment),
    (_ASSIGNED, is_real_assignment),
    (_ASSIGNED_ABROAD, is_real_assignment),
    (_WEAKLY_ASSIGNED, is_mixed),
    (_PIN, always),
    (_SHORT, is_short),
    (_VARIABLE, is_plain),
    (_SETTING, is_plain),
    (_USER_AT, is_in_text),
    (_UNQUOTED, is_written_out),
    (_COOKIE, is_shaped),
    (_PIPED, is_shaped),
    (_OPTION, is_shaped),
    (_PGPASS, no_placeholder),
    (_USER_AND, is_shaped),
    (_AUTHS, holds_a_pair),
    (_IN_STATEMENT, is_password),
    (_AFTER_ANOTHER, is_password),
    (_BARE, is_given_bare),
    (_SAID, is_given_bare),
    (_TRIPLE, is_shaped),
    (_MNEMONIC, always),
    (_LABELED, random_label),
    (_HEX, random_hex),
    (_WORD, random_word),
    (_IN_PATH, random_word),
    (_TYPED, is_typographic),
    (_RUN, random_run),
    (_EMAIL, person),
    (_HOME, always),
)
"""In this order: what was hidden by one is not looked at by the next. A group ``secret`` is what
is hidden, otherwise all that was found."""


def name_starts(text: str) -> list[int]:
    """Where names of secrets begin, in order."""
    return [at for at in _near_stems(text) if NAME.match(text, at)]


def _near_stems(text: str) -> Iterator[int]:
    # As patterns without regard to case read these three; `lower` would make two of the first.
    plain = text if text.isascii() else text.translate(_AS_PATTERNS_READ)
    done = 0
    for stem in _STEMS.finditer(plain.lower()):
        yield from range(max(done, stem.start() - _BEFORE_STEM), stem.start() + 1)
        done = stem.start() + 1
