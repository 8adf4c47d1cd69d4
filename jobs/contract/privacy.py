"""Rules about what may leave the machine that measures, all in this file.

A worker gets an allow-listed environment, since nsys stores all of it in every report. An export of nsys keeps
allow-listed tables. Text that is recorded loses folders, users and hosts. What is published is searched for anything
that looks private.
"""

import base64
import getpass
import hmac
import html
import os
import re
import socket
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from urllib.parse import unquote

# nsys stores the environment of the profiled process in every report, so the process gets only what it needs.
COMPILED = "TORCHINDUCTOR_CACHE_DIR"  # a folder that workers share: what one compiled, the others find

ENVIRONMENT = (
    "PATH",
    "LD_LIBRARY_PATH",
    "PYTHONPATH",
    "VIRTUAL_ENV",
    "LANG",
    "LC_ALL",
    "CUDA_HOME",
    "CUDA_MODULE_LOADING",
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES",
    "NCCL_NVLS_ENABLE",
    "NCCL_SOCKET_IFNAME",
    "NCCL_IB_HCA",
    "GLOO_SOCKET_IFNAME",
    "NVSHMEM_DISABLE_NVLS",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_ALLOC_CONF",
    COMPILED,
)


KEPT_TABLES = (
    *("CUPTI_", "CUDA_GRAPH", "ENUM_", "NVTX_EVENTS", "StringIds", "TARGET_INFO_GPU", "TARGET_INFO_CUDA_"),
    *("TARGET_INFO_SESSION_START_TIME", "META_DATA_EXPORT", "ANALYSIS_DETAILS", "PROFILER_OVERHEAD"),
)
STRING_COLUMNS = ("demangledName", "shortName", "mangledName", "nameId", "textId", "name")
GPU_IDS = {"uuid", "busLocation", "luid", "ctxswDevPath", "ctrlDevPath"}
"""An export of nsys keeps tables whose names begin so, the strings that their columns refer to, and of a GPU everything
but these columns. Everything else (environment, processes, host) is dropped."""

FOLDERS = re.compile(r"(?<![\w.])/(?:[\w.+@-]+/)+")
"""Folders of a path, in what nsys says."""

PRIVATE_LINE = re.compile(
    r"(?i:secret|token|passw|credential|api[ _-]?key|access_?key|private key)|\b[A-Z][A-Z0-9_]+=\S"
)
"""A line of a log that may hold a secret, and is left out."""

_BUT_TOKEN = (
    r"secret|passw(?:or)?d|passphrase|passcode|credential|api[ _-]?key|access_?key|account_?key|client_?secret"
    r"|private_?key|key-data"
)
_SECRET = rf"(?:{_BUT_TOKEN}|token)"
_SAID_SECRET = rf"(?:{_BUT_TOKEN}|token(?!s(?![a-z])|iz|_id['\"]?\s*[:=]\s*\d{{1,6}}\b))"
"""Names of secrets in a text, where tokens are what a model reads."""

_KEYWORD = (
    r"(?:(?:api|auth|service|account|db|database|priv|private|client)_?key|(?:db|database|key)_?pass|passw(?:or)?d|pwd"
    r"|secret|contrase[nñ]a)"
)
"""Names of secrets, from detect-secrets, whose own rule takes the cube of a text's length. The secret is in quotes."""

_ROOTS = (
    r"(?:home|Users|root|mnt|media|data|scratch|export|opt|srv|var|tmp|private|workspace|work|gpfs|lustre|nfs|net|efs"
    r"|fsx|projects?|shared?|storage)\d*"
)
_PATH = (
    r"(?<![\w.)>/\\*])(?:~[\w.-]*)?/(?:[\w.+@%-]+/)+[\w.+@%-]"  # no relative path, operator, address of a page
    rf"|(?:(?<=[)>*])|(?<![\w.-])-[A-Za-z]|(?<![:/\w])/+)/{_ROOTS}/[\w.+@%-]"
    rf"|(?<![\w./-])(?:\.{{1,2}}/)+(?:home|Users|root)/[\w.+@%-]|(?<=[^\x00-\x7f])/{_ROOTS}/[\w.+@%-]"
    r"|\\/(?:[\w.+@%-]+\\/)+[\w.+@%-]"  # as JSON may write them
    r"|(?<![\w~])~[\w.-]*/\w|(?i:file):/+\w"
    r"|(?<!\w)[A-Za-z]:[/\\](?![/\\])(?:[\w.+@%-]+[/\\])*\w|(?<!\\)\\\\[\w.-]+\\\w"
)

_HEX = "[0-9a-fA-F]"
_DOMAINS = (
    "com|org|net|edu|gov|mil|io|ai|cloud|dev|ac|de|fr|ch|eu|uk|us|cn|jp|in|nl|se|it|es|ca|au|kr|tw"
    "|ru|br|mx|dk|cz|pt|ie|nz|za|sg|hk|ro|hu|gr|tr|ua|il|xyz|app|tech|online|club|biz|gg|computer|systems|website"
    "|technology|engineering|science|academy|university|digital|solutions|software|studio|ventures|icu|vip|shop|blog"
    "|lol|moe|wiki"
)
"""Those that are usual: each further one is taken for the name of an attribute or a file somewhere."""
_INTERNAL = (
    r"local|localdomain|localnet|internal|intranet|intra|private|priv|lan|corp|home|home\.arpa|consul|svc|hpc|cluster"
)
_OCTET = r"(?:25[0-5]|2[0-4]\d|1?\d?\d)"
_KNOWN_SITES = (
    "(?:pytorch|python|github|nvidia|huggingface|numpy|triton-lang|llvm|apache|readthedocs|pypi|gnu|kernel|perfetto|w3"
    "|sitemaps|speedscope)"
)

PRIVATE = {
    "AWS key": r"\b(?:AKIA|ASIA|ABIA|ACCA|AGPA|AIDA|AIPA|ANPA|ANVA|AROA)[A-Z0-9]{16}\b",
    "AWS secret": r"(?<![\w/+-])(?=[a-zA-Z/+]*\d)(?=[A-Z\d/+]*[a-z])(?=[a-z\d/+]*[A-Z])[A-Za-z\d/+]{40}(?![\w/+=-])",
    "Google key": r"\bAIza[\w-]{30,}|\bGOCSPX-[\w-]{20,}|\bya29\.[\w-]{16,}|\b1//0[\w-]{20,}",
    "Azure key": r"(?i)\b(?:Account|SharedAccess)(?:Key|Signature)=\S+|(?<!\w)sig=[\w%/+-]{20,}"
    r"|\b\w{3}8Q~[\w.~-]{30,}",
    "Slack token": r"\bxox[a-z](?:\.xox[a-z])?-[\w-]{10,}|\bxapp-[\w-]{10,}|hooks\.slack\.com/\S+"
    r"|/api/webhooks/\d+/\S+",
    "npm token": r"\bnpm_[A-Za-z0-9]{16,}|(?<!\w)_(?:auth(?:Token)?|password)\s*=\s*\S+",
    "Docker token": r"\bdckr_(?:pat|oat)_[\w-]{16,}|['\"]auth['\"]\s*:\s*['\"][\w+/]{8,}={0,2}['\"]",
    "PyPI token": r"\bpypi-[\w-]{16,}",
    "Stripe key": r"\b(?:[spr]k_(?:live|test)_|whsec_)[A-Za-z0-9]{10,}",
    "token": r"\b(?:hf_|api_org_|gh[pousr]_|github_pat_|gl[a-z]{2,5}-|sk-|nvapi-|r8_|dop_v1_|SG\.|xai-|gsk_"
    r"|tskey-|hv[sbr]\.|dp\.[a-z]{2,5}\.|lin_api_|figd_|glsa_|glc_|NRAK-|shp(?:at|ca|pa|ss)_|pplx-|tgp_v1_|KGAT_|pul-"
    r"|AT[AC]TT|PMAK-|sntry[su]_|ntn_|rubygems_|cfut_|cio_|fw_|csk-|pcsk_|sbp_"
    r"|lsv2_(?:pt|sk)_|fm[12][ar]?_|FlyV1 )"
    r"[\w.-]{16,}|\b(?:dapi|jina_)[0-9a-f]{32}|\btvly-(?:dev-|prod-)?(?=[A-Za-z]*\d)\w{24,}",
    "token of a service": r"\b(?:do[or]_v1_|nfp_|rnd_|HRKU-|sb_secret_|NRII-|hca[ib]k_|ATBB|sq0[a-z]{3}-|xkeysib-"
    r"|CCIPAT_|bkua_|CFPAT-|pscale_[a-z]+_|pnu_|tfp_|fio-u-|EZ[AT]K|(?:duffel|shippo)_(?:live|test)_|CLOJARS_"
    r"|FLWSECK[_-]|rdme_|p8e-|polar_[a-z]+_|dd[pw]_|vercel_blob_rw_|ico-|ph[cx]_|sm_aat_|LTAI|AKID|AKLT|AQVN|YCAJE"
    r"|ops_eyJ)(?=[A-Za-z_.-]{0,40}\d)[\w.-]{16,}|\b(?:sk|live|test|sq[aup])_[0-9a-f]{35,}|\bkey-[0-9a-f]{32}\b"
    r"|\bpa-[\w-]{43}\b|\bre_(?=[A-Za-z]*\d)\w{8}_\w{20,}|\bpat\w{14}\.[0-9a-f]{64}|\bcmVmdGtu\w{40,}"
    r"|\b(?:cio|ovh_)(?=[A-Za-z]*\d)[A-Za-z\d]{32}\b|\boy2(?=[a-z]*\d)[a-z\d]{43}\b|\w\.atlasv1\.[\w-]{40,}"
    r"|\bSCW(?=[A-Z]*\d)[A-Z\d]{17}\b|\bv1\.0-[0-9a-f]{24}-[0-9a-f]{100,}|\bsl\.[\w.-]{100,}"
    r"|(?<!\w)s\.(?=[A-Za-z]*\d)[A-Za-z\d]{24}\b",
    "password hash": r"\$(?:1|2[abxy]?|5|6|y|7|apr1|argon2\w*|scrypt)\$[\w./,=+$-]{20,}",
    "password of a command": r"\bsshpass\s+-p\s*\S|\bmysql\w*\s[^\n]{0,60}?-p\w|\bredis-cli\s[^\n]{0,60}?-a\s+\S"
    r"|\blogin\s+\S+\s+password\s+\S|(?i:;\s*|\b(?=uid|user))[^\n]{0,40}?\bPwd=\S",
    # RunPod, Prime Intellect, Modal, Lambda, Vast: the last has as many digits as a SHA-256.
    "key of a GPU cloud": r"\brpa_[A-Za-z0-9]{20,}|\bpit_(?=[a-z]*\d)[A-Za-z0-9]{20,}"
    r"|(?<![\w-])(?:ak|as)-(?=[A-Z\d]*[a-z])(?=[a-z\d]*[A-Z])[A-Za-z\d]{22}(?![\w-])"
    rf"|\bsecret_[\w-]{{1,100}}_{_HEX}{{32}}\.\w{{16,}}|(?i:\bvast)[^\n]{{0,60}}?\b{_HEX}{{64}}\b",
    "JWT": r"\beyJ[\w-]{8,}\.[\w-]{4,}(?:\.[\w-]*)?",
    "authorization": r"(?i)\bbearer['\"]?\s*[:=]?\s+(?:(?=\S*[\d=+/_])[\w.~+/=-]{8,}|[\w.~+/=-]{20,})"
    r"|\bauthorization(?:['\"]?\s*[=:]\s*\S+|\s+bearer\s+\S+)|\b(?:set-)?cookie['\"]?\s*:\s*[^\s=]{1,64}=\S"
    r"|(?<!\w)-(?:u|-user)\s+\w[\w.-]*:\S|\bX-Amz-Signature="
    # What holds a colon in base64, in one of its three places: `user:password`.
    r"|\b(?-i:[Bb]asic)\s+(?=[\w+/]{8})(?-i:[\w+/]{4})*?(?-i:O[g-v]|[\w+/](?:[DTjz][o-r]|[\w+/][AEIMQUYcgkosw048]6))",
    # Not a commit, which has as many digits.
    "W&B key": r"(?i:\bwandb\b)[^\n]{0,60}?\b[0-9a-f]{40}\b|\bwandb_v\d_\w{20,}"
    r"|(?<![\w/@+.-])(?<!commit[ =])(?<!commit: )(?<!revision[ =])(?<!revision: )(?<!sha1[ =])(?<!sha1: )"
    r"(?=\d*[a-f])[0-9a-f]{40}(?![\w-])",
    "user and password": r"\w://[^\s/@:]*:[^\s/@]+@",
    "private key": r"-----(?:BEGIN|END) [A-Z ]*(?:PRIVATE KEY|CERTIFICATE)|\bPuTTY-User-Key-File|\bAGE-SECRET-KEY-"
    r"|\b(?:ssh-(?:rsa|dss|ed25519)|ecdsa-sha2-\w+) AAAA"
    # A line of base64 alone: of such a key, or of what else somebody packed.
    r"|(?m:^[ \t]*(?=[a-z\d+/]*[A-Z])(?=[A-Z\d+/]*[a-z])(?=[a-zA-Z+/]*\d)[a-zA-Z\d+/]{48,}={0,2}[ \t]*$)",
    "secret": rf"(?i)(?<![\w-])(?<!\ba )(?=[\w-]*?{_SAID_SECRET})[\w-]++(?: key)?['\"]?\s*[=:]\s*['\"]?(?!\$\{{\{{)"
    rf"[^\s'\",}}\]]+"
    rf"|(?<![\w-])--(?=[\w-]*?{_SAID_SECRET})[\w-]++\s+[^\s-]"
    rf"|(?<!\w)(?=\w*?{_KEYWORD})\w++(?:[\]'\"]{{0,2}}\s*+(?::=?|!?={{1,3}}>?)\s*+['\"`]\w"
    rf"|[^\s'\"`]{{0,50}}\s*+['\"`]\w[^'\"`]*+['\"`];)"
    rf"|['\"`]\s*+[!=]{{2,3}}\s*+(?=\w*?{_KEYWORD})",
    "pass": r"(?i)(?:^|['\"])(?:user|db|my|root|admin)?[_-]?pass['\"]?\s*[:=]\s*['\"]?[^\s'\",}\]]"
    r"|(?<![\w-])pass\s*=\s*['\"]\w",
    "environment variable": r"\b(?:[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+|HOME|HOST|HOSTNAME|LOGNAME|PWD|USER|USERNAME)"
    r"=(?!\.\.\.|\"?\$)\S",
    "path": _PATH,
    "cloud storage": r"(?i)\b(?:s3[an]?|gs|gcs|az|abfss?|wasbs?|hdfs|dbfs|nfs|smb|afp|ssh|sftp|scp|r2|oss|cosn?|minio"
    r"|swift|b2)://\w\S*",
    "cloud resource": r"\barn:[\w-]+:[\w-]*:\S+|(?i:/subscriptions/)[\w-]{8,}|\bocid1\.[a-z]+\.\S+"
    r"|(?<![\w-])(?:i|ami|vpc|subnet|sg|vol|eni|snap)-[0-9a-f]{17}(?![\w-])"
    r"|(?<!\w)projects/[\w-]+/(?:zones|regions|locations|instances|global|secrets)/\w",
    "IPv4": rf"(?<![\w.])(?<!==)(?!0\.0\.0\.0|127\.)(?:{_OCTET}\.){{3}}{_OCTET}(?!\w|\.\d)"
    # Of private networks also between underscores, where others are versions.
    rf"|(?<![^\W_])(?<!\.)(?:10\.{_OCTET}|192\.168|172\.(?:1[6-9]|2\d|3[01])|169\.254|100\.(?:6[4-9]|[7-9]\d|1[01]\d"
    rf"|12[0-7]))\.{_OCTET}\.{_OCTET}(?![^\W_]|\.\d)",
    "IPv6": rf"(?<![\w:.])(?:(?:{_HEX}{{1,4}}:){{7}}{_HEX}{{1,4}}"
    rf"|(?:fe[89ab]{_HEX}|f[cd]{_HEX}{{2}}|[23]{_HEX}{{3}})(?::{_HEX}{{1,4}}){{0,6}}::(?:{_HEX}{{1,4}}:){{0,6}}(?:{_HEX}{{1,4}})?"
    r"|::ffff:[\d.]{7,})(?![\w:])",
    "MAC": rf"(?<![\w:-])(?:{_HEX}{{2}}[:-]){{5,7}}{_HEX}{{2}}(?![\w:-])"
    rf"|(?i:(?<![^\W_])(?:mac|hwaddr|ether|ethernet|bssid)(?:[ _-]?addr(?:ess)?)?['\"]?[\W_]{{1,3}}){_HEX}{{12}}(?!\w)"
    rf"|(?<![\w.])(?=[\d.]*[a-fA-F])(?:{_HEX}{{4}}\.){{2}}{_HEX}{{4}}(?![\w.])",
    "GPU UUID": rf"(?i)(?:\b(?:GPU|MIG)-)?\b{_HEX}{{8}}-(?:{_HEX}{{4}}-){{3}}{_HEX}{{12}}\b"
    rf"|\b(?:GPU|MIG)-{_HEX}{{32}}\b",
    "PCI address": rf"(?<![\w:.])(?:{_HEX}{{4}}|{_HEX}{{8}}):{_HEX}{{2}}:{_HEX}{{2}}\.[0-7](?!\w)",
    "host": rf"(?i)(?<![\w.-])(?:ip[-_]\d+[-_]\d+[-_]\d+[-_]\d+|(?:[\w-]+\.)+(?:{_INTERNAL})(?![.-]*[\w(])"
    rf"|(?!(?:[\w-]+\.)*{_KNOWN_SITES}\.)[a-z0-9-]+(?:\.[a-z0-9-]+){{1,5}}\.(?:{_DOMAINS})(?![.-]*[\w(])"
    # Whatever it is called: an address with a port, what a program calls a host, Slurm's lists of nodes.
    r"|[a-z][\w-]*\[0\d++(?:[-,]\d++)+\])|\w://(?!localhost\b|127\.|0\.0\.0\.0)(?:[\w.-]++:\d|[\w-]++(?![\w.-]))"
    r"|(?<![^\W_])(?:host_?name|node_?name|node_?list|master_addr)(?:['\"]?\s*[=:]\s*['\"]?|\s+(?=[\w-]*\d))"
    r"(?!localhost\b)\w"
    # As PyTorch says where it cannot connect: [node]:29500, (node, 29500), node:29500.
    r"|\[(?!localhost\])[a-z][\w.-]*+\]:\d{4,5}\b|\bof \((?!localhost,)[a-z][\w.-]*+, \d{4,5}\)"
    r"|(?<![\w./:-])(?!\d)(?=[a-z_-]*\d)[\w-]++:\d{4,5}(?![\w.:-])",
    # Not the version or commit of an action.
    "user and host": r"\w[.-]*@(?!v\d+\b|[0-9a-f]{40}\b)[\w-]+|\b(?i:user_?name|log_?name)['\"]?\s*[=:]\s*['\"]?\w"
    r"|\b[ug]id=\d+\(\w",
}
"""Patterns of text that must not be in a recording, by kind. A line may have 60 kB without a space, so no pattern
starts a search at each letter of a word.

They do not find:

- a host by its name alone, without a domain, a port or a word such as "host" (the hashes of `hash_machine_names` find
  the names of the machines that measured)
- a host in a domain that is not public, not reserved for private use (RFC 6762, RFC 8375, ICANN's .internal), and not
  usual in clusters
- a MAC address without separators, unless a word calls it one
- a key of 40 hexadecimal digits after the word commit, and one of 32 or 64 digits, unless a word calls it a key
- a password inside a sentence
- a secret without a known form that no word calls one, or one cut into pieces
- text in other encodings than those of `list_readings`
- what a picture shows
"""

_PATTERNS = {kind: re.compile(pattern) for kind, pattern in PRIVATE.items()}


def find_private(text: str) -> dict[str, str]:
    """Find what looks private in `text`, in any of its readings: the first match by kind of PRIVATE."""
    return {
        kind: match.group()
        for reading in list_readings(text)
        for kind, pattern in _PATTERNS.items()
        if (match := pattern.search(reading))
    }


def list_readings(text: str) -> list[str]:
    """Return `text`, and what it says once one of its encodings is read, and once one of that is: an address holds
    paths in per cent, encoded once more."""
    readings = {text: None}
    fresh = [text]
    for _ in range(2):
        fresh = [reading for encoded in fresh for reading in _read_encodings(encoded) if reading not in readings]
        readings |= dict.fromkeys(fresh)
    return list(readings)


def _read_encodings(text: str) -> Iterator[str]:
    """Yield `text` without its encoding in per cent (the sign behind a share, as in 2.5%, encodes nothing); without
    the escapes of scripts and the colours of a terminal, whose last letter would begin a word; in usual letters,
    without characters that are not seen; without the character references of HTML; and what its words of base64 or of
    hexadecimal digits say."""
    if "%" in text:
        yield unquote(re.sub(r"(?<=\.\d)%", "%25", text))
    if "\\" in text or "\x1b" in text:
        yield _COLOUR.sub(" ", _ESCAPE.sub(_read_escape, text))
    if not text.isascii():
        yield unicodedata.normalize("NFKC", _UNSEEN.sub("", text))
    if "&" in text:
        yield html.unescape(text)
    yield from _unpack_words(text)


_PACKED = re.compile(r"(?<![\w+/-])[\w+/-]{16,}+={0,2}", re.ASCII)
_PRINTABLE = re.compile(r"[^\0-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f]{12,}").fullmatch


def _unpack_words(text: str) -> Iterator[str]:
    """Yield the texts that words of base64 (in either alphabet), or of hexadecimal digits, hold."""
    for word in _PACKED.findall(text):
        digits = word.rstrip("=").replace("-", "+").replace("_", "/")
        for unpack in (bytes.fromhex, lambda packed: base64.b64decode(packed + "=" * (-len(packed) % 4))):
            with suppress(ValueError):
                if _PRINTABLE(content := unpack(digits).decode()):
                    yield content


_UNSEEN = re.compile("[\u00ad\u034f\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufe00-\ufe0f\ufeff]")
"""Characters that a page does not show, within a word."""


_ESCAPE = re.compile(
    rf"\\(?:x({_HEX}{{2}})|u({_HEX}{{4}})|u\{{({_HEX}{{1,6}})\}}|U({_HEX}{{8}})|([0-3][0-7]{{2}})|[nrt](?=[A-Za-z0-9])|[\"'\\])"
)
"""A character as scripts and JSON may write it."""
_COLOUR = re.compile(r"\x1b\[[\d;:?]*[A-Za-z]|\x1b")
"""An escape that drives a terminal."""


def _read_escape(match: re.Match[str]) -> str:
    if match[5]:
        return chr(int(match[5], 8))
    if (digits := next(filter(None, match.groups()), "")) == "":
        return match[0][1] if match[0][1] in "\"'\\" else " "  # else a line break or a tab
    code = int(digits, 16)
    return chr(code) if code < 0x110000 else match[0]


SECRET_VARIABLE = re.compile(_SECRET, re.IGNORECASE)
"""Name of an environment variable whose value is a secret."""


def scrub_text(text: str) -> str:
    """Return the first 1000 characters of `text` without folders and user@host, which identify the machine, and
    without PyTorch's advice on environment variables after an out-of-memory error."""
    text = text.partition(" If reserved but unallocated memory is large")[0]
    text = re.sub(r"(?<![\w/.])(?:file:/*|(?:~[\w.-]*|[A-Za-z]:)?)[/\\](?:[\w.+@-]+[/\\])*(?=[\w.+@-])", "", text)
    # Each word is read once, with a user in it or not: to look for the @ from each of its letters takes their square.
    text = re.sub(r"[\w.-]+(@[\w-]+(?:\.[\w-]+)*)?", lambda word: "..." if word[1] else word[0], text)
    return text if len(text) <= 1000 else text[:997] + "..."


# ---------------------------------------------------------------------------------------------------------------- names

NAME_VARIABLES = ("USER", "LOGNAME", "SUDO_USER", "SLURM_JOB_USER", "HOSTNAME", "SLURMD_NODENAME", "NODE_NAME")
"""Environment variables that name the user or the host."""

_GENERIC = (
    "root admin administrator user users nobody daemon guest test tester dev build builder runner ci jenkins "
    "gitlab github ubuntu debian centos fedora rocky alma opc azureuser ec2-user ec2 docker container podman "
    "jovyan coder vscode slurm ray kube kubernetes localhost localdomain local host hostname server node worker "
    "master head login compute gpu cpu cuda nvidia dgx hgx box vm home tmp app job jobs work workspace profiler "
    "max min sum mean norm grad flash small medium large naive"
)
GENERIC_NAMES = frozenset(_GENERIC.split())
"""Names of users and hosts that tell nothing of anybody, or that are words of kernels and runs."""

_LONGEST_NAME = 12  # pieces: a name cannot have more and be found, which bounds the search in long texts


def collect_machine_names(environment: Mapping[str, str] = os.environ) -> set[str]:
    """Collect the names of this machine and its user, in lower case; without GENERIC_NAMES and names of less than three
    letters, also where a number follows them (node12, gpu-3, h200)."""
    host = socket.gethostname()
    names = {host, host.partition(".")[0], os.path.basename(os.path.expanduser("~"))}
    names |= {environment.get(variable, "") for variable in NAME_VARIABLES}
    with suppress(KeyError, OSError):  # a user of a container, whom no file names
        names.add(getpass.getuser())
    names = {name.lower() for name in names}
    stems = {name: re.sub(r"[-_.]?\d+$", "", name) for name in names}
    return {name for name, stem in stems.items() if len(stem) > 2 and stem not in GENERIC_NAMES}


def hash_names(names: Iterable[str], salt: str) -> list[str]:
    """The names as SALT:HASH, also with other signs between their parts, as programs spell them (node-a, node_a,
    nodea). Whoever guesses a name can confirm it, so they are never published."""
    spellings = {re.sub(r"[-_.]", sign, name) for name in names for sign in (r"\g<0>", "-", "_", ".", "")}
    return sorted(f"{salt}:{_hash(name, salt)}" for name in spellings)


def find_name(text: str, hashed: Iterable[str]) -> str:
    """The first name in `text` that is among those `hashed`; "" where none is. A name stands alone, or is joined to
    other words by dots, dashes and underscores."""
    known = set(hashed)
    salts = sorted({entry.partition(":")[0] for entry in known})
    return next((name for name in _iterate_names(text) for salt in salts if f"{salt}:{_hash(name, salt)}" in known), "")


@lru_cache(1 << 18)  # the words of a recording come again and again
def _hash(name: str, salt: str) -> str:
    return hmac.digest(salt.encode(), name.lower().encode(), "sha256").hex()


def _iterate_names(text: str) -> Iterator[str]:
    for word in dict.fromkeys(re.findall(r"\w[\w.-]*", text)):
        pieces = [(match.start(), match.end()) for match in re.finditer(r"[^\W_]+", word)]
        for i, (start, _) in enumerate(pieces):
            yield from (word[start:end] for _, end in pieces[i : i + _LONGEST_NAME])
