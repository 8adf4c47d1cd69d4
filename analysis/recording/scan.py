"""Search what is to become public for anything private: by the rules of `jobs.contract.privacy` and of detect-secrets,
for secrets in the environment, and for names of the machines that measured and of this one."""

import base64
import codecs
import csv
import gzip
import html
import json
import os
import re
import secrets
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from profiler_job.analysis.capture.capture_cache import FOLDER
from profiler_job.jobs.contract.integrity import load_json
from profiler_job.jobs.contract.layout import MANIFEST
from profiler_job.jobs.contract.privacy import (
    SECRET_VARIABLE,
    collect_machine_names,
    find_name,
    find_private,
    hash_names,
    list_readings,
)

HASHED_NAMES = "hashed_names"
"""Key of a manifest, which is never published: names of the machines that measured, and of their users."""

DETECTORS = {
    "artifactory": "ArtifactoryDetector",
    "aws": "AWSKeyDetector",
    "azure_storage_key": "AzureStorageKeyDetector",
    "basic_auth": "BasicAuthDetector",
    "cloudant": "CloudantDetector",
    "discord": "DiscordBotTokenDetector",
    "github_token": "GitHubTokenDetector",
    "gitlab_token": "GitLabTokenDetector",
    "ibm_cloud_iam": "IbmCloudIamDetector",
    "ibm_cos_hmac": "IbmCosHmacDetector",
    "jwt": "JwtTokenDetector",
    "mailchimp": "MailchimpDetector",
    "npm": "NpmDetector",
    "openai": "OpenAIDetector",
    "private_key": "PrivateKeyDetector",
    "pypi_token": "PypiTokenDetector",
    "sendgrid": "SendGridDetector",
    "slack": "SlackDetector",
    "softlayer": "SoftlayerDetector",
    "square_oauth": "SquareOAuthDetector",
    "stripe": "StripeDetector",
    "telegram_token": "TelegramBotTokenDetector",
    "twilio": "TwilioKeyDetector",
}
"""Detectors of detect-secrets. Not its entropy: run ids and digests have as much of it as passwords. Not its public
addresses: ours finds private ones, too. Not its keywords, whose patterns take the cube of a text's length: `PRIVATE`
has them."""

KNOWN = re.compile(
    r"/opt/conda/bin|ALLOW_MIX=1|--per-token|(?:/[\w.-]+)?/assets/javascripts/[\w./-]+|www\.runpod\.io/pricing"
)
"""What the guide, the theme and the prices of GPUs say themselves."""

OF_OTHERS = tuple(f"assets/{name}/" for name in ("javascripts", "stylesheets", "images", "iframe-worker", "speedscope"))
"""Folders of a built site with code of the theme and of a viewer: no recording comes into them."""


@dataclass(frozen=True, kw_only=True)
class PrivateText:
    """A text that looks private: its kind, its first place, and its beginning."""

    kind: str
    where: str
    beginning: str

    def __str__(self) -> str:
        return f"{self.kind} in {self.where}" + (f": {self.beginning}" if self.beginning else "")


class Scanner:
    """The private texts known here: names that records keep hashed, names of this machine, and the secrets in its
    environment."""

    def __init__(self, hashed_names: Iterable[str] = (), environment: Mapping[str, str] = os.environ):
        self.hashed_names = {*hashed_names, *hash_names(collect_machine_names(environment), secrets.token_hex(8))}
        self.values = {
            f"value of {name}": value
            for name, value in environment.items()
            if SECRET_VARIABLE.search(name) and len(value) >= 8
        }

    def search(self, text: str) -> dict[str, str]:
        """Find what looks private in `text`, in any of its readings: the first match of each kind. No pattern finds a
        number, but it may be a known value or name."""
        text = KNOWN.sub("", text)
        is_number = bool(_NUMBER(text))
        matches = {} if is_number else find_private(text)
        detectors = {} if is_number else _load_detectors()
        for reading in list_readings(text):
            matches |= {kind: value for kind, value in self.values.items() if value in reading}
            matches |= {kind: match for kind, detect in detectors.items() for match in _detect(detect, reading)}
            if name := find_name(reading, self.hashed_names):
                matches["name of a host or a user"] = name
        return matches

    def scan(self, folder: Path) -> list[PrivateText]:
        """Find what looks private in the files below a folder, their names included; each distinct text once."""
        first: dict[str, str] = {}
        closed: list[PrivateText] = []
        for file in sorted(file for file in folder.rglob("*") if file.is_file()):
            name = file.relative_to(folder).as_posix()
            if name.startswith(OF_OTHERS):
                continue
            first.setdefault(name, "a file's name")
            for place, text in read_texts(file):
                if isinstance(text, NotOpened):
                    closed.append(PrivateText(kind=f"{text}, which is not searched", where=name, beginning=""))
                else:
                    first.setdefault(text, f"{name}, {place}")
        return closed + [
            PrivateText(
                kind=kind, where=where, beginning=match[: min(4, len(match) // 2)] + "..."
            )  # not the secret itself
            for text, where in first.items()
            for kind, match in self.search(text).items()
        ]


def scan_public(folder: Path) -> list[PrivateText]:
    """Find what looks private in a folder that is to become public. Manifests contain the names of the machines, which
    must not become public through them. Raises OSError, and ValueError for a file that cannot be read."""
    if not folder.is_dir():
        raise FileNotFoundError("no such folder")
    findings: list[PrivateText] = []
    hashed: set[str] = set()
    for path in sorted(folder.rglob("*")):
        if path.name == FOLDER:
            where = path.relative_to(folder).as_posix()
            findings.append(PrivateText(kind="what show keeps of captures", where=where, beginning=""))
        if path.is_symlink() or not (path.is_file() or path.is_dir()):  # a web server may follow what is not searched
            where = path.relative_to(folder).as_posix()
            findings.append(PrivateText(kind="a link or a pipe, where only files belong", where=where, beginning=""))
    if findings:
        return findings
    for file in sorted(folder.rglob(MANIFEST)):
        manifest = load_json(file)
        if isinstance(manifest, dict) and (names := manifest.get(HASHED_NAMES)):
            hashed.update(names if isinstance(names, list) and all(isinstance(name, str) for name in names) else ())
            where = file.relative_to(folder).as_posix()
            findings.append(PrivateText(kind="hashed names, which publish-data leaves out", where=where, beginning=""))
    return findings + Scanner(hashed).scan(folder)


_PIECE, _OVERLAP = 1024, 256


def _detect(detect: Callable[[str], Iterable[str]], text: str) -> list[str]:
    """Return the first match of a detector, if there is one. The time of some grows with the square of a text's length,
    so a long text comes in pieces that overlap."""
    pieces = (text[i : i + _PIECE] for i in range(0, max(len(text) - _OVERLAP, 1), _PIECE - _OVERLAP))
    return next((matches[:1] for piece in pieces if (matches := list(detect(piece)))), [])


@cache
def _load_detectors() -> dict[str, Callable[[str], Iterable[str]]]:
    """Load the detectors by kind of secret. They are imported only when something is published: nothing else needs
    them."""
    plugins = [getattr(import_module(f"detect_secrets.plugins.{module}"), name)() for module, name in DETECTORS.items()]
    return {plugin.secret_type: plugin.analyze_string for plugin in plugins}


# ---------------------------------------------------------------------------------------------------------------- texts

_NUMBER = re.compile(r"\s*[+-]?[\d,]*+(?:\.\d*)?(?:e[+-]?\d+)?\s*%?\s*").fullmatch
"""Numbers are most of what there is."""


class NotOpened(str):
    """In place of a text: what it is that is not opened, so that nothing in it is found."""


ARCHIVES = {
    b"PK\x03\x04": "a ZIP archive",
    b"PK\x05\x06": "a ZIP archive",
    b"\x1f\x8b": "a gzip file inside another, or without .gz",
    b"BZh": "a bzip2 file",
    b"\xfd7zXZ": "an xz file",
    b"7z\xbc\xaf": "a 7z archive",
    b"Rar!": "a RAR archive",
    b"\x28\xb5\x2f\xfd": "a zstd file",
    b"%PDF": "a PDF",
    b"GIF8": "a GIF",
    b"\xff\xd8\xff": "a JPEG",
    b"RIFF": "a RIFF file, such as WebP",
}
"""First bytes of files that are not opened."""
PNG = b"\x89PNG\r\n\x1a\n"
PNG_CHUNKS = {
    *(b"IHDR", b"PLTE", b"IDAT", b"IEND", b"tRNS", b"gAMA", b"cHRM", b"sRGB", b"bKGD", b"pHYs", b"sBIT", b"tIME"),
    *(b"hIST", b"acTL", b"fcTL", b"fdAT"),
}
"""Parts of a PNG that hold no text."""
MOST_TEXT = 2**24
"""Bytes of a compressed text in a PNG that are read."""


_MARKS = {  # 32 bits first: they begin like 16 bits
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
    codecs.BOM_UTF8: "utf-8-sig",
}
"""Byte order marks, and the encoding of a text that begins with one."""


def read_texts(file: Path) -> Iterator[tuple[str, str]]:
    """Yield every text in a file, with its place there: of a table whatever its types and metadata hold, of JSON its
    keys and values, of HTML what is read and the values of attributes, of a PNG its texts, also where it is packed into
    another file, of anything else its lines. Yield a NotOpened for what is none of these."""
    for place, text in _read_plain_texts(file):
        if isinstance(text, NotOpened) or not _EMBEDDED.search(text):
            yield place, text
            continue
        yield place, _EMBEDDED.sub("", text)
        for match in _EMBEDDED.finditer(text):
            kind, packed = match[1] or "image/png", match[2] or match[0]
            yield from ((f"{place}, a picture", inner) for inner in _read_embedded(kind, packed))


_EMBEDDED = re.compile(r"data:([\w./+-]+)(?:;[\w=-]+)*;base64,([\w+/=]*)|iVBORw0KGgo[\w+/]+={0,2}")
"""A file inside a text: an address that holds it, or a PNG in base64, as notebooks have it."""


def _read_embedded(kind: str, packed: str) -> Iterator[str]:
    """Yield the texts of a file that is packed in base64."""
    try:
        content = base64.b64decode(packed + "=" * (-len(packed) % 4))
    except ValueError:
        yield NotOpened(f"{kind} in base64")
        return
    if content.startswith(PNG):
        yield from _read_png(content)
    elif b"\0" in content or content.startswith((*ARCHIVES,)):
        yield NotOpened(f"{kind} in base64")
    else:
        yield from content.decode(errors="replace").splitlines()


def _read_png(content: bytes) -> Iterator[str]:
    """Yield the texts in the chunks of a PNG, and a NotOpened for what is unknown or does not fit."""
    at = len(PNG)
    while at + 12 <= len(content):
        size, kind = int.from_bytes(content[at : at + 4], "big"), content[at + 4 : at + 8]
        chunk = content[at + 8 : at + 8 + size]
        at += 12 + size
        if kind in (b"tEXt", b"zTXt", b"iTXt"):
            try:
                yield from _read_png_text(kind, chunk).splitlines()
            except (ValueError, zlib.error):
                yield NotOpened("a damaged text of a PNG")
        elif kind not in PNG_CHUNKS:
            yield NotOpened(f"a part {kind.decode('latin-1')} of a PNG")
        if kind == b"IEND":
            break
    if at != len(content):
        yield NotOpened("what follows the end of a PNG")


def _read_png_text(kind: bytes, chunk: bytes) -> str:
    """Return keyword and text of a text chunk. Raises ValueError and zlib.error."""
    keyword, rest = chunk.split(b"\0", 1)
    is_packed = kind == b"zTXt"
    if kind == b"iTXt":
        is_packed, rest = rest[:1] == b"\x01", rest[2:].split(b"\0", 2)[2]
    elif is_packed:
        rest = rest[1:]
    if is_packed:
        unpacking = zlib.decompressobj()
        rest = unpacking.decompress(rest, MOST_TEXT)
        if not unpacking.eof:
            raise ValueError("too long")
    return f"{keyword.decode('latin-1')}: {rest.decode(errors='replace')}"


def _read_plain_texts(file: Path) -> Iterator[tuple[str, str]]:
    if file.suffix == ".parquet":
        yield from _read_table(file)
        return
    content = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    kind = Path(file.stem).suffix if file.suffix == ".gz" else file.suffix
    if content.startswith(PNG):
        yield from (("a text of the picture", text) for text in _read_png(content))
        return
    if closed := next((what for first, what in ARCHIVES.items() if content.startswith(first)), ""):
        yield "the file", NotOpened(closed)
        return
    coding = next((coding for mark, coding in _MARKS.items() if content.startswith(mark)), "utf-8")
    if coding == "utf-8" and _is_binary(content[:8192]):
        yield "the file", NotOpened("a binary file")
        printable = re.findall(rb"[\t -~]{16,}", content)  # shorter ones are noise
        wide = re.findall(rb"(?:[\t -~]\0){15,}[\t -~]?", content)  # of 16 bits a character
        yield from (("its bytes", text.replace(b"\0", b"").decode()) for text in (*printable, *wide))
        return
    text = content.decode(coding, "replace")
    if kind in (".json", ".ipynb", ".map"):
        try:
            yield from _read_json(json.loads(text), "", set())
            return
        except (ValueError, RecursionError):  # no JSON, or nested deeper than Python reads: by its lines
            pass
    if kind == ".csv":
        yield from (("a cell", cell) for row in csv.reader(text.splitlines()) for cell in row if not _NUMBER(cell))
        return
    for number, line in enumerate(text.splitlines(), 1):
        if kind in (".html", ".svg", ".xml"):
            yield from ((f"line {number}", words) for words in _read_markup(line))
        elif line.strip():
            yield f"line {number}", line


_CONTROLS = bytes({*range(32), 127} - set(b"\t\n\v\f\r\b\x1b"))
"""Bytes that no text has, in any encoding of 8 bits."""


def _is_binary(start: bytes) -> bool:
    """Whether a file that begins so holds no text: a zero, or controls among bytes that are not UTF-8."""
    if b"\0" in start:
        return True
    try:
        codecs.getincrementaldecoder("utf-8")().decode(start)
    except UnicodeDecodeError:
        return start.translate(None, _CONTROLS) != start
    return False


_LINKS = ("href", "xlink:href", "src", "action")
"""Attributes whose / is the root of a site, and not of a machine."""


_CELL = re.compile(r"(?=</?t[dh]\b)")
"""The start or the end of a table's cell; an end may be left out."""


def _read_markup(line: str) -> Iterator[str]:
    # Not the points of a drawing; of a link no root.
    attributes = re.finditer(r"(?<![\w:-])(?!d=)([\w:-]+)=(?:\"([^\"]*+)\"|'([^']*+)'|(?![\"'])([^\s<>]++))", line)
    values = (match[match.lastindex or 0].removeprefix("/" * (match[1] in _LINKS)) for match in attributes)
    # A tag that has no end is taken at once, and stays: looked for from each <, its end takes the square of the length.
    # Two cells of a table are not one word: 0.19 next to 0.0 and 0.188 is not an address.
    cells = _CELL.sub(" ", line)
    words = re.sub(r"</?\w[^>]*+>?", lambda tag: "" if tag[0].endswith(">") else tag[0], cells)
    for text in (words, *values):
        if text.strip():
            yield html.unescape(text).strip()


def _read_json(value: Any, place: str, seen: set[tuple[str, ...]]) -> Iterator[tuple[str, str]]:
    """Keys, and texts with their keys, that are not `seen` yet: a timeline has the same in each of a million events."""
    key = place.rpartition(".")[2]
    if isinstance(value, dict):
        for name, inner in value.items():
            if (name,) not in seen:
                seen.add((name,))
                yield place or "a key", name
            if isinstance(inner, dict | list) or _is_new(name, inner, seen):
                yield from _read_json(inner, f"{place}.{name}".lstrip("."), seen)
    elif isinstance(value, list):
        for inner in value:
            if isinstance(inner, dict | list) or _is_new(place, inner, seen):
                yield from _read_json(inner, place, seen)
    elif isinstance(value, str):
        for line in value.splitlines():
            if not _NUMBER(line):
                yield place, f"{key}: {line}" if key else line
            if "<" in line and (words := html.unescape(re.sub(r"</?\w[^>]*+>", "", line))) != line:
                yield place, words  # as a search shows it
    elif _is_secret(key):
        yield place, f"{key}: {value}"


def _is_new(key: str, value: Any, seen: set[tuple[str, ...]]) -> bool:
    """Whether a text was not `seen` with this key, or the key of a number calls it a secret. Then it is seen."""
    if not isinstance(value, str):
        return _is_secret(key)
    if (key, value) in seen:
        return False
    seen.add((key, value))
    return True


@cache
def _is_secret(key: str) -> bool:
    return bool(SECRET_VARIABLE.search(key))


def _read_table(file: Path) -> Iterator[tuple[str, str]]:
    with pq.ParquetFile(file) as opened:
        texts = [field.name for field in opened.schema_arrow if is_text(field.type)]
    with pq.ParquetFile(file, read_dictionary=texts) as opened:  # words that no row uses are stored, too
        footer, table = opened.metadata, opened.read()
    yield "its writer", footer.created_by or ""
    for key, value in (footer.metadata or {}).items():
        if key != b"ARROW:schema":  # the schema itself, in base64
            yield "metadata", f"{_decode(key)}: {_decode(value)}"
    for key, value in (table.schema.metadata or {}).items():
        yield "metadata", f"{_decode(key)}: {_decode(value)}"
    for field, column in zip(table.schema, table.columns):
        yield from _read_field(field)
        for chunk in column.chunks:
            called = "commit: " if field.name == "commit" else ""  # which has as many digits as some keys
            yield from ((f"column {field.name}", called + text) for text in _read_values(chunk))


def _read_field(field: pa.Field) -> Iterator[tuple[str, str]]:
    yield "a column's name", field.name
    for key, value in (field.metadata or {}).items():
        yield f"metadata of column {field.name}", f"{_decode(key)}: {_decode(value)}"
    for i in range(field.type.num_fields):
        yield from _read_field(field.type.field(i))


def _read_values(values: pa.Array) -> Iterator[str]:
    kind = values.type
    if isinstance(values, pa.ExtensionArray):
        yield from _read_values(values.storage)
    elif pa.types.is_dictionary(kind):
        yield from _read_values(values.dictionary)  # what is stored, also where no row uses it
    elif is_text(kind) or is_bytes(kind):
        for value in values.unique().to_pylist():
            yield from (_decode(value) if isinstance(value, bytes) else value or "").splitlines()
    elif kind.num_fields:  # lists, structs, maps: not flattened, so that nothing of a null is left out
        for text in {str(leaf) for row in values.to_pylist() for leaf in _iterate_leaves(row)}:
            yield from text.splitlines()


def _iterate_leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _iterate_leaves(key)
            yield from _iterate_leaves(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _iterate_leaves(inner)
    elif isinstance(value, bytes):
        yield _decode(value)
    elif isinstance(value, str):
        yield value


def is_text(kind: pa.DataType) -> bool:
    return any(test(kind) for test in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view))


def is_bytes(kind: pa.DataType) -> bool:
    tests = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary)
    return any(test(kind) for test in tests)


def _decode(value: bytes) -> str:
    return value.decode(errors="replace")
