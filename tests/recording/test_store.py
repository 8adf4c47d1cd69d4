"""A recording keeps what was written, checks it, and explains each of its columns."""

import inspect
import json
import shutil

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from profiler_job.analysis.recording import store, table_schema
from profiler_job.analysis.recording.store import RecordingError
from profiler_job.analysis.reference import kernel_families
from tests import synthetic

RUNS = ("small-ctx128-fp32-naive-train_step", "small-ctx256-fp32-naive-forward")
_VALUES = {"category": "x", "string": "x", "int32": 1, "int64": 1, "float64": 1.0, "bool": False}


def _tables(**changes) -> dict[str, pd.DataFrame]:
    tables = {}
    for name, columns in table_schema.TABLES.items():
        rows = [
            {c.name: _VALUES[c.dtype] for c in columns} | {"run_id": run, "status": "ok", "mode": run.split("-")[-1]}
            for run in reversed(RUNS)
        ]
        frame = pd.DataFrame(rows)[[c.name for c in columns]]
        tables[name] = frame
    tables["runs"] = tables["runs"].iloc[::-1].reset_index(drop=True)
    for change, value in changes.items():
        table, column = change.split("__")
        tables[table][column] = value
    return tables


def _written(folder, **changes):
    store.write(folder, _tables(**changes), {"name": "test"})
    return store.load(folder)


def test_what_is_written_is_loaded(tmp_path):
    found = _written(tmp_path)
    for name, columns in table_schema.TABLES.items():
        frame = getattr(found, name)
        expected = [column.name for column in columns]
        if name == "kernels":
            expected.insert(expected.index("kernel_name") + 1, "family")
        assert list(frame.columns) == expected
        assert len(frame) == 2
    assert found.manifest["tables"]["kernels"]["rows"] == 2
    assert found.manifest["tables"]["kernels"]["bytes"] == (tmp_path / "kernels.parquet").stat().st_size


def test_types_are_those_of_the_dictionary(tmp_path):
    found = _written(tmp_path)
    for name, columns in table_schema.TABLES.items():
        for column in columns:
            kind = getattr(found, name)[column.name].dtype
            if column.dtype == "category":
                assert isinstance(kind, pd.CategoricalDtype), (name, column.name)
            elif column.dtype != "string":
                assert kind == column.dtype, (name, column.name)


def test_rows_come_in_the_order_of_the_runs(tmp_path):
    found = _written(tmp_path)
    for name in table_schema.TABLES:
        assert list(getattr(found, name)["run_id"].astype(str)) == list(RUNS), name
        assert list(getattr(found, name)["run_id"].cat.categories) == list(RUNS), name


def test_kernels_are_sorted_by_launch(tmp_path):
    tables = _tables()
    tables["kernels"] = pd.concat([tables["kernels"].assign(launch_ns=launch) for launch in (640, 384, 1152)])
    store.write(tmp_path, tables, {})
    assert list(store.load(tmp_path).kernels["launch_ns"]) == [384, 640, 1152] * 2


def _written_by_an_older_version(folder):
    """Its manifest tells no SHA-256 of its tables."""
    store.write_manifest(folder, {"name": "older"})


def test_family_is_told_when_loading_and_never_stored(tmp_path):
    name = "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x64x8_stage3_execute_kernel__5x_cublas"
    found = _written(tmp_path, kernels__kernel_name=name)
    assert set(found.kernels["family"]) == {kernel_families.find_family(name)}
    assert "family" not in pd.read_parquet(tmp_path / "kernels.parquet")


def test_api_names_of_older_recordings_are_those_of_newer_ones(tmp_path):
    tables = _tables(api__name="cudaGraphLaunch")
    older = tables["api"].assign(name="cudaGraphLaunch_v10000", calls=3)
    store.write(tmp_path, tables | {"api": pd.concat([tables["api"], older])}, {"name": "test"})
    api = store.load(tmp_path).api
    assert list(api["name"].cat.categories) == ["cudaGraphLaunch"]
    assert api["calls"].tolist() == [1 + 3, 1 + 3]
    assert api["run_id"].tolist() == list(RUNS)
    assert list(api.columns) == [column.name for column in table_schema.TABLES["api"]]
    assert api.dtypes["calls"] == api.dtypes["total_ns"] == "int64"
    assert api.dtypes["step"] == "int32"


def test_an_older_recording_lacks_an_optional_column_and_no_other(tmp_path):
    tables = _tables()
    store.write(tmp_path, tables | {"runs": tables["runs"].drop(columns="log")}, {})
    assert store.load(tmp_path).runs["log"].isna().all()
    with pytest.raises(RecordingError, match="lacks column wall_s"):
        store.write(tmp_path, tables | {"runs": tables["runs"].drop(columns="wall_s")}, {})


def test_an_older_recording_has_what_every_run_had_before_a_column_or_table_came(tmp_path):
    tables = _tables()
    store.write(tmp_path, tables, {})
    _written_by_an_older_version(tmp_path)
    for name in table_schema.OPTIONAL_TABLES:
        (tmp_path / f"{name}.parquet").unlink()
    runs = pd.read_parquet(tmp_path / "runs.parquet")
    later = [column.name for column in table_schema.TABLES["runs"] if column.before is not None]
    runs.drop(columns=later, errors="ignore").to_parquet(tmp_path / "runs.parquet")
    ranked = [name for name, columns in table_schema.TABLES.items() if "rank" in {column.name for column in columns}]
    for file in (tmp_path / f"{name}.parquet" for name in ranked if name not in table_schema.OPTIONAL_TABLES):
        pd.read_parquet(file).drop(columns="rank").to_parquet(file)
    found = store.load(tmp_path)
    for name in ranked:
        assert set(getattr(found, name)["rank"]) <= {0} and getattr(found, name)["rank"].dtype == "int32", name
    assert set(found.runs["compile"]) == {"off"}
    assert set(found.runs["optimizer"]) == {"own"}
    assert set(found.runs["memory_limit_gib"]) == {0.0}
    assert len(found.module_memory) == len(found.figures) == 0


def test_a_new_field_of_run_is_a_new_column_without_a_second_list(tmp_path):
    found = _written(tmp_path, runs__sliding_window=[128, 256])
    assert list(found.runs["sliding_window"]) == [128, 256]


def test_absent_values_of_runs_stay_absent(tmp_path):
    found = _written(tmp_path, runs__peak_memory_bytes=[None, 5], runs__status_phase=[None, "backward"])
    assert found.runs["peak_memory_bytes"].isna().tolist() == [True, False]
    assert found.runs["status_phase"].isna().tolist() == [True, False]


def test_a_table_without_rows_has_no_file_and_one_that_is_lost_is_missed(tmp_path):
    tables = _tables() | {"memops": store.empty("memops")}
    store.write(tmp_path, tables, {})
    assert not (tmp_path / "memops.parquet").exists() and "memops" not in store.read_manifest(tmp_path)["tables"]
    found = store.load(tmp_path)
    assert found.memops.empty and list(found.memops) == [column.name for column in table_schema.TABLES["memops"]]
    (tmp_path / "steps.parquet").unlink()
    with pytest.raises(RecordingError, match=r"steps\.parquet is missing"):
        store.load(tmp_path)


def test_columns_of_a_table_without_a_file_have_the_types_of_those_of_an_empty_file(tmp_path):
    store.write(tmp_path / "now", _tables() | {"kernels": store.empty("kernels")}, {})
    shutil.copytree(tmp_path / "now", tmp_path / "former")
    nothing = pa.schema(store.arrow_types("kernels").items()).empty_table()
    store.write_table("kernels", nothing, tmp_path / "former" / "kernels.parquet")
    pd.testing.assert_frame_equal(store.load(tmp_path / "former").kernels, store.load(tmp_path / "now").kernels)


@pytest.mark.parametrize("few", [0, 10_000], ids=["with types of pyarrow", "without"])
def test_what_is_written_small_is_read_as_it_was(tmp_path, monkeypatch, few):
    rec = _written(tmp_path / "made")
    monkeypatch.setattr(store, "_FEW_ROWS", few)
    for name, table in store.load_tables(tmp_path / "made", table_schema.TABLES)[1].items():
        file = tmp_path / "made" / f"{name}.parquet"
        store.write_table(name, store.read_table(name, file), small := tmp_path / f"{name}.parquet", is_small=True)
        found = store.make_frame(name, store.read_table(name, small), small)
        store.set_runs(found, list(rec.runs["run_id"].astype(str)), small)
        pd.testing.assert_frame_equal(found, table)
        assert (b"ARROW:schema" in (pq.read_metadata(small).metadata or {})) == (few == 0)


def test_what_an_older_pyarrow_cannot_limit_is_written_small_all_the_same(tmp_path, monkeypatch):
    _written(tmp_path / "made")
    known = inspect.signature(pq.write_table)
    given: dict[str, object] = {}

    def write(*args, **options):
        given.update(options)
        if "max_rows_per_page" in options:
            raise TypeError("__cinit__() got an unexpected keyword argument 'max_rows_per_page'")
        written(*args, **options)

    written = pq.write_table
    older = [each for each in known.parameters.values() if each.name != "max_rows_per_page"]
    write.__signature__ = known.replace(parameters=older)
    monkeypatch.setattr(pq, "write_table", write)
    table = store.read_table("steps", tmp_path / "made" / "steps.parquet")
    store.write_table("steps", table, small := tmp_path / "steps.parquet", is_small=True)
    assert store.read_table("steps", small).equals(table)
    assert given["compression"] == "brotli" and {"data_page_size", "store_schema", "column_encoding"} <= given.keys()


def test_an_empty_table_is_a_table(tmp_path):
    tables = _tables() | {name: store.empty(name) for name in table_schema.TABLES if name != "runs"}
    store.write(tmp_path, tables, {})
    found = store.load(tmp_path)
    assert found.kernels.empty
    assert "family" in found.kernels


@pytest.mark.parametrize(
    ("change", "value", "said"),
    [
        ("runs__status", "fine", "unknown status fine"),
        ("runs__run_id", RUNS[0], "is there twice"),
        ("kernels__run_id", "another", "which table runs does not have"),
        ("kernels__end_ns", 0, "ends before it starts"),
        ("steps__wall_ns", None, "without wall_ns"),
    ],
)
def test_tables_that_break_the_promise_are_refused(tmp_path, change, value, said):
    with pytest.raises(RecordingError, match=said):
        store.write(tmp_path, _tables(**{change: value}), {})


def test_a_missing_column_is_named(tmp_path):
    tables = _tables()
    tables["kernels"] = tables["kernels"].drop(columns="stream")
    with pytest.raises(RecordingError, match="kernels lacks column stream"):
        store.write(tmp_path, tables, {})


def test_a_folder_that_is_no_recording_says_so(tmp_path):
    with pytest.raises(RecordingError, match=r"has no manifest\.json"):
        store.load(tmp_path)
    _written(tmp_path)
    _written_by_an_older_version(tmp_path)
    (tmp_path / "api.parquet").write_bytes(b"broken")
    with pytest.raises(RecordingError, match=r"api\.parquet cannot be read"):
        store.load(tmp_path)
    (tmp_path / "api.parquet").unlink()
    with pytest.raises(RecordingError, match=r"api\.parquet is missing"):
        store.load(tmp_path)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(RecordingError, match=r"manifest\.json is not a manifest"):
        store.load(tmp_path)


def test_a_column_of_an_older_recording_is_named(tmp_path):
    _written(tmp_path)
    _written_by_an_older_version(tmp_path)
    frame = pd.read_parquet(tmp_path / "kernels.parquet").drop(columns="graph_node")
    frame.to_parquet(tmp_path / "kernels.parquet")
    with pytest.raises(RecordingError, match="lacks column graph_node"):
        store.load(tmp_path)


def test_the_dictionary_explains_every_column():
    dictionary = store.dictionary()
    assert dictionary["meaning"].str.len().min() > 3
    assert set(dictionary["table"]) == set(table_schema.TABLES)
    assert ("kernels", "family") in set(zip(dictionary["table"], dictionary["column"]))
    assert not dictionary.duplicated(["table", "column"]).any()
    times = dictionary[dictionary["column"].str.endswith("_ns")]
    assert set(times["unit"]) == {"ns"}


def test_the_manifest_is_kept(tmp_path):
    store.write(tmp_path, _tables(), {"name": "größe", "gpu": "H200"})
    assert json.loads((tmp_path / "manifest.json").read_text(encoding="utf-8"))["name"] == "größe"


def test_two_recordings_of_the_same_runs_stand_side_by_side_by_label():
    made = synthetic.recording(("small",), (128,))
    tables = {name: getattr(made, name) for name in table_schema.TABLES}
    first, second = (store.Recording(manifest={"name": name}, **tables) for name in ("before", "after"))
    tables = store.side_by_side([first, second])
    assert len(tables["kernels"]) == 2 * len(first.kernels)
    assert not tables["runs"].duplicated(["label", "run_id"]).any()
    assert tables["runs"]["run_id"].duplicated().any()
    second.manifest["name"] = "before"
    with pytest.raises(store.RecordingError, match="two recordings are called before"):
        store.side_by_side([first, second])


@pytest.mark.parametrize("name", ["value", "low", "high", "repeats", "gpu_name", "figure"])
@pytest.mark.parametrize("wrong", ["NaN", "12", float("nan"), float("inf"), None, [1.0]])
def test_a_rate_of_another_type_is_refused_before_a_page_is_written(tmp_path, name, wrong):
    if name in ("gpu_name", "figure") and isinstance(wrong, str):
        return
    rate = {"figure": "gemm_fp32", "unit": "FLOP/s", "value": 1e13, "low": 1e13, "high": 1e13, "repeats": 3}
    store.write_manifest(tmp_path, {"calibration": [rate]})
    assert store.read_manifest(tmp_path)["calibration"] == [rate]
    store.write_manifest(tmp_path, {"calibration": [rate | {name: wrong}]})
    with pytest.raises(store.RecordingError, match=rf"calibration\.0\.{name}"):
        store.read_manifest(tmp_path)
