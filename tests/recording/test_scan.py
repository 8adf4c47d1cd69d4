"""What looks private is found wherever a file can hold it, and nothing else is."""

import base64
import gzip
import json
import os
import resource
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from detect_secrets.plugins.keyword import KeywordDetector
from typer.testing import CliRunner

from profiler_job.__main__ import app
from profiler_job.analysis.recording import scan
from profiler_job.analysis.recording.scan import HASHED_NAMES, Scanner
from profiler_job.jobs.contract import privacy
from tests import reference_pages
from tests.doses import sampled
from tests.recording.planted import ALL, NAMES, PLANTED

WORDS = ("my_password", "passwd", "db_pass_2", "pwd", "API_KEY", "authkey", "private_key_file", "secret", "contraseña")
SECRET = "no route to 10.1.2.3"
HASHED = privacy.hash_names(NAMES, "salt")
SCANNER = Scanner(HASHED, environment={})


def test_there_are_enough_of_them():
    assert len(ALL) == len(set(ALL)) >= 60 and len(PLANTED) >= 25


@pytest.mark.parametrize("text", ALL)
def test_each_kind_is_found(text):
    assert SCANNER.search(text)
    assert SCANNER.search(f"RuntimeError: it said '{text}', then died")


@pytest.mark.parametrize(
    "text",
    [
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char *, 1>>(int)",
        "step/forward/block_34/attention/qkv_proj",
        'options = {"do_sample": False, "pad_token_id": 0}',
        "nvjet_sm90_tst_192x128_64x5_1x2_h_bz_coopB_TNT",
        "CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of 139.72 GiB",
        "2026-11-21T17:43:08+00:00",
        "2025.3.1.0",
        "see https://pytorch.org/docs/stable/notes/cuda.html",
        "http://127.0.0.1:8000",
        "https://www.runpod.io/pricing",
        "3d5196a9b761b1ee301559ff67a93d20b6e54c573dbf1491c20c8242dfdc4f2e",
        "10de93255e5e",
        "commit: 0123456789abcdef0123456789abcdef01234567",
        "https://github.com/pytorch/pytorch/commit/0123456789abcdef0123456789abcdef01234567",
        "Basic authentication is needed, see Basic optimizations",
        "(a + b)/c/d, a>/b/c and 2>/dev/null",
        "cudnn_9.10.2.21_cuda12, nccl_2.27.3.1",
        "http://localhost:8888/lab",
        "shape[16, 32], block[01], names[0-9]",
        "a tensor of 100%2 elements",
        "model.py:1234, step3:12, torch.randn(batch, 1024), x[i]:2, of (4, 1024)",
        "GPT2LMHeadModel/transformer/h.*/mlp/c_proj, layers.*/attn/c_attn",
        "https://www.speedscope.app/file-format-schema.json",
        "see ../data/recordings and ./home, [::1]:29500, env://",
        "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEESt5arrayIPcLm1EEEEviT0_T1_",
        "a run against a run, or a token against a token: compare with --per-token both",
        "fill: 0.6%step, softmax: 0.2%4034204845",
        "the bearer of Authorization, a cookie: it is sweet",
        "tokens = torch.randint(vocab_size, (4, 9)), num_tokens: 2048, tokenizer='gpt2'",
    ],
)
def test_what_recordings_are_full_of_is_not(text):
    assert SCANNER.search(text) == {}


def test_every_detector_that_is_named_exists():
    assert len(scan._load_detectors()) == len(scan.DETECTORS)


def write(table: pa.Table, file: Path) -> Path:
    pq.write_table(table, file)
    return file


COLUMNS = {
    "string": pa.array([SECRET]),
    "large_string": pa.array([SECRET], pa.large_string()),
    "string_view": pa.array([SECRET], pa.string_view()),
    "binary": pa.array([SECRET.encode()]),
    "large_binary": pa.array([SECRET.encode()], pa.large_binary()),
    "fixed_size_binary": pa.array([SECRET.encode()], pa.binary(len(SECRET))),
    "dictionary": pa.DictionaryArray.from_arrays(pa.array([0]), pa.array([SECRET])),
    "unused word of a dictionary": pa.DictionaryArray.from_arrays(pa.array([0]), pa.array(["x", SECRET])),
    "list": pa.array([["x", SECRET]]),
    "large_list": pa.array([[SECRET]], pa.large_list(pa.string())),
    "struct": pa.array([{"x": {"y": SECRET}}]),
    "map": pa.array([[(SECRET, 1)]], pa.map_(pa.string(), pa.int64())),
    "list of structs": pa.array([[{"x": SECRET.encode()}]]),
}


@pytest.mark.parametrize("kind", COLUMNS)
def test_every_type_of_a_column_is_read(tmp_path, kind):
    texts = dict(map(reversed, scan.read_texts(write(pa.table({"x": COLUMNS[kind]}), tmp_path / "t.parquet"))))
    assert texts[SECRET] == "column x"


def test_a_word_that_no_row_uses_is_read_without_types_of_pyarrow(tmp_path):
    words = pa.table({"x": COLUMNS["unused word of a dictionary"]})
    pq.write_table(words, tmp_path / "t.parquet", store_schema=False)
    assert ("column x", SECRET) in [*scan.read_texts(tmp_path / "t.parquet")]


@pytest.mark.parametrize("where", ["table", "column", "inner column", "name", "inner name", "pandas"])
def test_metadata_and_names_are_read(tmp_path, where):
    told = {"told": SECRET}
    inner = pa.field("inner", pa.int64(), metadata=told if where == "inner column" else None)
    inner = inner.with_name(SECRET) if where == "inner name" else inner
    field = pa.field("x", pa.struct([inner]), metadata=told if where == "column" else None)
    field = field.with_name(SECRET) if where == "name" else field
    table = pa.table([pa.array([None], field.type)], schema=pa.schema([field], told if where == "table" else None))
    if where == "pandas":
        table = pa.Table.from_pandas(table.to_pandas().rename_axis(SECRET))
    write(table, tmp_path / "t.parquet")
    assert {one.kind for one in SCANNER.scan(tmp_path)} == {"IPv4"}


FILES = {
    "a.json": json.dumps({"a": [{"b": f"first\n{SECRET}"}]}),
    "key.json": json.dumps({SECRET: 1}),
    "cut.json": f'{{"a": "{SECRET}',
    "a.csv": f'x,y\n1,"a, {SECRET}"\n',
    "a.html": "<p>no route to 10.<b>1</b>.2&#46;3</p>",
    "attribute.html": f'<p title="{SECRET}">x</p>',
    "comment.html": f"<!-- {SECRET} -->",
    "a.js": f"// {SECRET}",
    "a.json.gz": gzip.compress(json.dumps([SECRET]).encode()),
    "a.png": b"\x89PNG\0\0" + f"tEXtComment {SECRET}".encode(),
    "10.1.2.3.txt": "x",
}


@pytest.mark.parametrize("name", FILES)
def test_every_file_is_read(tmp_path, name):
    content = FILES[name]
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    [found] = [each for each in SCANNER.scan(tmp_path) if "not searched" not in each.kind]
    assert found.kind == "IPv4" and found.beginning == "10.1..."


@pytest.mark.parametrize("quote", ['"', "'", ""])
def test_an_attribute_that_is_a_path_is_found_and_a_link_is_not(tmp_path, quote):
    page = tmp_path / "a.html"
    page.write_text(f"<p title={quote}/home/alice/proj/train.py{quote}>t</p>")
    assert [one.where for one in SCANNER.scan(tmp_path)] == ["a.html, line 1"]
    page.write_text(f"<a href={quote}/guide/show/index.html{quote}>t</a>")
    assert SCANNER.scan(tmp_path) == []


@pytest.mark.parametrize("coding", ["utf-8-sig", "utf-16", "utf-32", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("name", ["a.txt", "a.json"])
def test_a_text_in_another_encoding_is_read(tmp_path, coding, name):
    (tmp_path / name).write_text(json.dumps({"a": SECRET, "b": "/home/alice/proj/train.py"}), coding)
    assert {one.kind for one in SCANNER.scan(tmp_path)} >= {"IPv4", "path"}


def test_a_text_is_told_once_with_its_first_place(tmp_path):
    (tmp_path / "b.txt").write_text(f"{SECRET}\n{SECRET}\n")
    (tmp_path / "a.txt").write_text(f"fine\n{SECRET}\n")
    assert [str(one) for one in SCANNER.scan(tmp_path)] == ["IPv4 in a.txt, line 2: 10.1..."]


def test_secrets_of_the_environment_are_found_and_not_repeated(tmp_path):
    (tmp_path / "a.txt").write_text("it printed s3cr3t-of-this-test and died")
    [found] = Scanner(environment={"WANDB_API_KEY": "s3cr3t-of-this-test"}).scan(tmp_path)
    assert found.kind == "value of WANDB_API_KEY" and found.beginning == "s3cr..."


@pytest.mark.parametrize("number", ["12345678901234567890", "-1,234.567", "+.5e-12", "0" * 40, "1e40", "98.3%", " 7 "])
def test_of_a_number_no_pattern_tells(number):
    assert privacy.find_private(number) == {}
    assert not [kind for kind, detect in scan._load_detectors().items() if [*detect(number)]]


def test_a_number_that_is_a_known_secret_or_name_is_found(tmp_path):
    (tmp_path / "a.html").write_text('<p title="8675309123"></p>')
    scanner = Scanner(privacy.hash_names(["8675309123"], "salt"), environment={"DB_PASSWORD": "8675309123"})
    assert {one.kind for one in scanner.scan(tmp_path)} == {"value of DB_PASSWORD", "name of a host or a user"}


def test_what_repeats_in_json_is_read_once_and_with_each_key(tmp_path):
    (tmp_path / "a.json").write_text(
        json.dumps([{"a": "x y", "b": ["x y", 1], "token": 1}, {"a": "x y", "token": True}])
    )
    assert [*scan.read_texts(tmp_path / "a.json")] == [
        *(("a key", "a"), ("a", "a: x y"), ("a key", "b"), ("b", "b: x y")),
        *(("a key", "token"), ("token", "token: 1"), ("token", "token: True")),
    ]


def test_names_are_hashed_without_those_that_tell_nothing(monkeypatch):
    monkeypatch.setattr(privacy.socket, "gethostname", lambda: "Box-Of-Ada.example.org")
    monkeypatch.setattr(privacy.getpass, "getuser", lambda: "root")
    monkeypatch.setattr(privacy.os.path, "expanduser", lambda path: "/home/ada.lovelace")
    generic = {"USER": "ubuntu", "SUDO_USER": "ab", "HOSTNAME": "node012", "SLURMD_NODENAME": "gpu-3"}
    assert privacy.collect_machine_names(generic) == {"box-of-ada.example.org", "box-of-ada", "ada.lovelace"}


def test_a_user_whom_no_file_names_is_no_error(monkeypatch):
    monkeypatch.setattr(privacy.getpass, "getuser", lambda: {}["uid 4711"])
    assert privacy.collect_machine_names({}) >= set()


def test_hashes_tell_no_name_and_differ_by_salt():
    assert not any(name in one for name in NAMES for one in HASHED)
    assert not set(HASHED) & set(privacy.hash_names(NAMES, "other"))
    assert privacy.find_name("on Box-of-Ada.", [*HASHED, *privacy.hash_names(["x"], "other")]) == "Box-of-Ada"
    assert privacy.find_name("boxes-of-ada lovelace", HASHED) == ""


def check(*folders):
    return CliRunner().invoke(app, ["check-public", *map(str, folders)])


def test_the_command_finds_what_is_private_and_links_that_lead_nowhere(tmp_path):
    (tmp_path / "index.html").write_text('<a href="there.html#x">a</a> <a href="lost.html">b</a> <a href="#y">c</a>')
    (tmp_path / "there.html").write_text('<p id="x">x</p>')
    done = check(tmp_path)
    assert done.exit_code == 1 and "2 found" in done.output
    assert "index.html: lost.html" in done.output and "index.html: #y" in done.output
    (tmp_path / "index.html").write_text(f'<a href="there.html#x">a</a> {SECRET}')
    done = check(tmp_path)
    assert done.exit_code == 1 and "IPv4 in index.html, line 1" in done.output and "10.1.2.3" not in done.output
    (tmp_path / "index.html").write_text('<a href="there.html#x">a</a>')
    assert check(tmp_path).exit_code == 0


def test_the_command_refuses_a_manifest_that_was_not_published(tmp_path):
    (tmp_path / "manifest.json").write_text(json.dumps({HASHED_NAMES: HASHED, "gpu": "of box-of-ada"}))
    done = check(tmp_path)
    assert done.exit_code == 1 and "which publish-data leaves out" in done.output
    assert "name of a host or a user in manifest.json, gpu" in done.output


@pytest.mark.parametrize("plant", [lambda path: path.symlink_to("/etc"), os.mkfifo], ids=["link", "pipe"])
@pytest.mark.parametrize("name", ["x", "manifest.json"])
def test_the_command_finds_what_it_cannot_search(tmp_path, plant, name):
    plant(tmp_path / name)
    done = check(tmp_path)
    assert done.exit_code == 1 and f"a link or a pipe, where only files belong in {name}" in done.output


def test_the_command_says_what_cannot_be_checked(tmp_path):
    assert check(tmp_path / "missing").exit_code == 2
    (tmp_path / "t.parquet").write_bytes(b"no table")
    assert check(tmp_path).exit_code == 2


def end_within(processor_s: int, work: Callable[[], object]) -> bool:
    """Whether work is done within so much processor time; it is killed then."""
    if not (pid := os.fork()):
        code = 1
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (processor_s, processor_s))
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1] == 0


UNITS = (
    *("x", "x.", "x-", "secret", "secret_", "secret ", "secret'", "1.", "%25", "<a", 'x="', "x='", "a='\"", "lan."),
    *("/%", "x://", "' =", "wandb ", "Basic dXN", "host[01-", "hostname ", "bearer ", "a@"),
    *("../", "\\/a", "cookie:", "-u a", "x1-", "'auth':'x", "A1b2", "/"),
)


@pytest.mark.parametrize("unit", sampled(UNITS, 6))
def test_the_work_of_a_long_text_grows_with_its_length(unit):
    """The tables of a recording may hold names of 60 kB: one word of them took minutes. What takes the square of the
    length takes more than the limit here, and what grows with it about a second."""
    text = (unit * 200_000)[:200_000]

    def search() -> None:
        privacy.find_private(text)
        scan._NUMBER(text + "x")
        list(scan._read_markup(text))

    assert end_within(10, search)


@pytest.mark.parametrize("unit", ["x", "secret", "secret_", "secret '", "' =", 'x="'])
def test_no_detector_takes_long_for_a_piece_of_a_text(unit):
    """They get pieces, because some take the square of the length; one took its cube: 0.2 s for a piece."""
    piece = (unit * scan._PIECE)[: scan._PIECE]
    assert end_within(1, lambda: [list(detect(piece)) for _ in range(20) for detect in scan._load_detectors().values()])


def test_what_the_keywords_of_detect_secrets_find_is_found():
    keywords = KeywordDetector()
    values = ("{} = 'x1'", '{}="x1"', "{}: 'x1'", "{} := `x1`", "{} => 'x1'", "'x1' == {}", '"x1" != {}', "{} 'x1';")
    texts = [value.format(word) for word in WORDS for value in values]
    missed = [text for text in texts if list(keywords.analyze_string(text)) and not privacy.find_private(text)]
    assert sum(bool(list(keywords.analyze_string(text))) for text in texts) > len(texts) / 2 and not missed


@pytest.mark.parametrize("end", ["</td>", ""])
def test_neighbouring_cells_are_no_address_and_no_secret(tmp_path, end):
    for cells in (("0.19", "0.0", "0.188"), ("xl", "128", "train", "step", "bf16", "fused", "4", "H200", "none" * 5)):
        (tmp_path / "a.html").write_text(f"<tr>{''.join(f'<td data-v>{cell}{end}' for cell in cells)}</tr>\n")
        assert SCANNER.scan(tmp_path) == []
    (tmp_path / "a.html").write_text("<tr><td>at <b>10.1</b>.2.3</td><td>1</td></tr>\n")
    assert {one.kind for one in SCANNER.scan(tmp_path)} == {"IPv4"}


def test_words_of_tags_without_an_end_are_read():
    texts = list(scan._read_markup(f"<p>a <b title='{SECRET}' href=/there>b</b> <i c"))
    assert texts == ["a b <i c", SECRET, "there"]


def test_a_commit_of_full_length_is_no_key(tmp_path):
    table = pa.table({"commit": ["0123456789abcdef0123456789abcdef01234567"]})
    write(table, tmp_path / "runs.parquet")
    (tmp_path / "manifest.json").write_text(json.dumps({"commit": table["commit"][0].as_py()}))
    assert SCANNER.scan(tmp_path) == []


def test_a_secret_is_found_wherever_it_is_in_a_long_text():
    assert all(SCANNER.search("x " * at + "k 0123456789abcdef0123456789abcdef-us12") for at in range(360, 620, 20))


def test_the_version_or_commit_of_an_action_is_no_host():
    commit = "de0fac2e4500dabe0009e67214ff5f5447ce83dd"
    assert not SCANNER.search("uses: actions/checkout@v4") and not SCANNER.search(f"uses: actions/checkout@{commit}")
    assert SCANNER.search("ssh somebody@decade") and SCANNER.search(f"ssh somebody@{commit}0")


def test_hand_written_pages_pass():
    """The site is searched before it is deployed; a page that would not pass is to fail sooner."""
    site = Path(__file__).parents[2] / "site"
    pages = [*site.glob("*.md"), *(site / "guide").glob("*.md"), *(site / "notebooks").glob("*.ipynb")]
    pages += filter(Path.is_file, (site / "examples").iterdir())
    texts = [(page.name, place, text) for page in pages for place, text in scan.read_texts(page)]
    texts += [(name, "", text) for name, text in reference_pages.render().items()]
    found = [(name, place, what) for name, place, text in texts if (what := Scanner(environment={}).search(text))]
    assert len(pages) > 7 and not found


def chunk(kind: bytes, content: bytes) -> bytes:
    return len(content).to_bytes(4, "big") + kind + content + zlib.crc32(kind + content).to_bytes(4, "big")


def png(*chunks: bytes, after: bytes = b"") -> bytes:
    """A picture of one point with further chunks."""
    header = chunk(b"IHDR", (1).to_bytes(4, "big") * 2 + bytes([8, 0, 0, 0, 0]))
    points = chunk(b"IDAT", zlib.compress(bytes(2)))
    return scan.PNG + header + b"".join(chunks) + points + chunk(b"IEND", b"") + after


TEXTS = {
    "tEXt": chunk(b"tEXt", b"Comment\0" + SECRET.encode()),
    "zTXt": chunk(b"zTXt", b"Comment\0\0" + zlib.compress(SECRET.encode())),
    "iTXt": chunk(b"iTXt", b"Comment\0\0\0\0\0" + SECRET.encode()),
    "packed iTXt": chunk(b"iTXt", b"Comment\0\x01\0de\0\0" + zlib.compress(SECRET.encode())),
}


@pytest.mark.parametrize("kind", TEXTS)
@pytest.mark.parametrize("place", ["file", "notebook", "address"])
def test_texts_of_pictures_are_read_wherever_the_picture_is(tmp_path, kind, place):
    packed = base64.b64encode(png(TEXTS[kind])).decode()
    cell = {"outputs": [{"data": {"image/png": packed}}]}
    content = {
        "file": ("a.png", png(TEXTS[kind])),
        "notebook": ("a.ipynb", json.dumps({"cells": [cell]}).encode()),
        "address": ("a.html", f'<img src="data:image/png;base64,{packed}">'.encode()),
    }
    name, data = content[place]
    (tmp_path / name).write_bytes(data)
    assert [each.kind for each in SCANNER.scan(tmp_path)] == ["IPv4"]


def test_a_picture_without_texts_is_no_finding(tmp_path):
    (tmp_path / "a.png").write_bytes(png())
    (tmp_path / "a.html").write_text(f'<img src="data:image/png;base64,{base64.b64encode(png()).decode()}">')
    assert SCANNER.scan(tmp_path) == []


def make_archive(folder: Path, kind: str) -> bytes:
    (folder / "inside").mkdir()
    (folder / "inside" / "a.txt").write_text(SECRET)
    file = Path(shutil.make_archive(str(folder / "made"), kind, folder / "inside"))
    content = file.read_bytes()
    file.unlink()
    shutil.rmtree(folder / "inside")
    return content


@pytest.mark.parametrize(
    "name, make",
    [
        ("a.zip", lambda folder: make_archive(folder, "zip")),
        ("zip.txt", lambda folder: make_archive(folder, "zip")),
        ("a.tar", lambda folder: make_archive(folder, "tar")),
        ("a.tar.gz", lambda folder: make_archive(folder, "gztar")),
        ("a.tar.xz", lambda folder: make_archive(folder, "xztar")),
        ("a.tar.bz2", lambda folder: make_archive(folder, "bztar")),
        ("a.json.gz", lambda folder: gzip.compress(gzip.compress(SECRET.encode()))),
        ("a.bin", lambda folder: gzip.compress(SECRET.encode())),
        ("a.jpg", lambda folder: b"\xff\xd8\xff\xe0" + bytes(20)),
        ("a.pdf", lambda folder: b"%PDF-1.7 "),
        ("chunk.png", lambda folder: png(chunk(b"eXIf", bytes(20)))),
        ("tail.png", lambda folder: png(after=b"more")),
        ("a.html", lambda folder: b'<a href="data:application/zip;base64,UEsDBAoAAAAA">x</a>'),
    ],
)
def test_what_is_not_opened_is_a_finding_by_name(tmp_path, name, make):
    content = make(tmp_path)
    (tmp_path / name).write_bytes(content)
    closed = [each for each in SCANNER.scan(tmp_path) if "which is not searched" in each.kind]
    assert [each.where for each in closed] == [name]


GPU_CLOUDS = [
    "rp|a_P8IX4EA4Q9OM4894ZJOJ7YAEKCTBR4Y1Z2IX",
    "a|k-AG1yKwILALo5vR67b2rMQS",
    "a|s-kS3u9I5KKgTPnO1KrsheE2",
    "a|s-HTlLPRMYNYEENjsGDHSHnr",
    "secr|et_laptop_f2b2d409dd311ca871902316d9ab1234.Ab0123456789cdefghij",
    "vast: a0da0c41aebb8f010b8e9a5b|5ab89c3049787a5da0da0c41aebb8f010b8e9a5b",
    "h|f_sHY2rDwOAsAKAc6AjmaE814NGBJ87TocVD",
    "wan|db_v1_hiJaTUyYfKlcxDMPYIyOZcN4BdxOFWS",
    "pi|t_a1a76b244b21c687aff1f951494eaa9d315b42db",
]


@pytest.mark.parametrize("key", [key.replace("|", "") for key in GPU_CLOUDS])
@pytest.mark.parametrize("form", ["{}", "export KEY={}", "{{'key': '{}'}}", "it used {} and failed"])
def test_keys_of_gpu_clouds_are_found(key, form):
    assert SCANNER.search(form.format(key))


SERVICES = [
    "lsv|2_pt_6750dcd8c2aa2c8daeb8ae55aa9afe8d_f6c83b61c5",
    "cs|k-x5kfnhhxswkaloxlu4ln6n0qsdvip5hoexy9ptrf",
    "sb|p_3cec6d1cdc0fbbd94fce08ab5aaed36f69534683",
    "fm|2_gUgO8FG7f1tU7dhYWWlZuHC1DuvWwCWTg78XkpoE",
    "pcs|k_4f3Rt_9sKd83hGd7sJd62hsk",
    "jin|a_0123456789abcdef0123456789abcdef",
]


@pytest.mark.parametrize("key", [key.replace("|", "") for key in (*GPU_CLOUDS, *SERVICES)])
@pytest.mark.parametrize("form", ["\x1b[31m{}\x1b[0m", r"\x1b[1;31m{}\x1b[0m", r"\033[31m{}", r"failed\n{}\n", r"\t{}"])
def test_no_colour_and_no_escaped_line_break_hides_a_key(key, form):
    assert SCANNER.search(form.format(key))


@pytest.mark.parametrize("content", [b"\x80\x04\x8c\x10" + SECRET.encode(), b"\xff\xfa\x01" + SECRET.encode()])
def test_a_binary_file_without_a_zero_is_a_finding_by_name(tmp_path, content):
    (tmp_path / "a.pkl").write_bytes(content)
    assert any("which is not searched" in each.kind for each in SCANNER.scan(tmp_path))


@pytest.mark.parametrize("content", ["caf\xe9 \x1b[1mbold\x1b[0m".encode("latin-1"), "naïve\x01".encode()])
def test_a_text_of_another_encoding_or_with_escapes_is_read(tmp_path, content):
    (tmp_path / "a.txt").write_bytes(content)
    assert not SCANNER.scan(tmp_path)


@pytest.mark.parametrize(
    "text",
    ['{"pass": "hunter22"}', "pass: hunter22", "db_pass = 'x1'", "'pass':'s3cr3t'", r'x = "{\"pass\": \"hunter22\"}"'],
)
def test_a_pass_is_a_password(tmp_path, text):
    assert SCANNER.search(text)
    (tmp_path / "a.json").write_text('{"pass": "hunter22"}')
    assert SCANNER.scan(tmp_path)


@pytest.mark.parametrize("text", ["Backward pass: 3 ms", "the forward pass = 12 launches", "bypass: on"])
def test_a_forward_pass_is_none(text):
    assert SCANNER.search(text) == {}


@pytest.mark.parametrize(
    "form", ["\\x{:02x}", "\\u{:04x}", "\\u{{{:x}}}", "\\U{:08x}", "\\{:03o}", "&#{};", "&#x{:x};"]
)
def test_escapes_of_scripts_are_read(tmp_path, form):
    (tmp_path / "a.js").write_text("x = '" + "".join(form.format(ord(char)) for char in SECRET) + "'")
    assert [each.kind for each in SCANNER.scan(tmp_path)] == ["IPv4"]


def test_tags_inside_the_search_index_hide_nothing(tmp_path):
    (tmp_path / "search_index.json").write_text(json.dumps({"docs": [{"text": "<p>10.<b>1</b>.2&#46;3</p>"}]}))
    assert [each.kind for each in SCANNER.scan(tmp_path)] == ["IPv4"]


@pytest.mark.parametrize("host", ["node.mycompany.xyz", "gpu1.acme.app", "login.lab.tech", "a.b.science"])
def test_hosts_of_newer_domains_are_found(host):
    assert SCANNER.search(f"cannot reach {host}") == {"host": host}


PACKINGS = {
    "base64": lambda content: base64.b64encode(content).decode(),
    "base64 of addresses": lambda content: base64.urlsafe_b64encode(content).decode().rstrip("="),
    "digits": bytes.hex,
    "large digits": lambda content: content.hex().upper(),
}


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("form", ["{}", "key = '{}'", '{{"value": "{}"}}', "it sent {} to me"])
def test_words_of_base64_and_of_digits_are_read(tmp_path, packing, form):
    key = "rp|a_abcdefghijKLMNOPQRST0123456789".replace("|", "")
    (tmp_path / "a.json").write_text(form.format(PACKINGS[packing](f"the key? {key}".encode())))
    assert "key of a GPU cloud" in {each.kind for each in SCANNER.scan(tmp_path)}


@pytest.mark.parametrize("text", ["0123456789abcdef" * 4, "cutlass_80_tensorop_s16816gemm_bf16_128x128", "abcd" * 20])
def test_a_word_that_holds_no_text_has_one_reading(text):
    assert privacy.list_readings(text) == [text]


@pytest.mark.parametrize("text", [r"/home/ada/model.py", "who=ada%40example.org", "h\u200bf_abcdefghijklmnopqrstuvwx"])
@pytest.mark.parametrize("packing", ["base64", "digits"])
def test_what_was_encoded_before_it_was_packed_is_read(packing, text):
    assert SCANNER.search(PACKINGS[packing](f"see {text}".encode()))


def test_backslashes_of_lines_of_json_are_read(tmp_path):
    (tmp_path / "a.jsonl").write_text(json.dumps({"file": "C:\\Users\\ada\\model.py"}) + "\n")
    assert [each.kind for each in SCANNER.scan(tmp_path)] == ["path"]
