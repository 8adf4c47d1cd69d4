"""Memory of a script's step: what is printed and recorded of it."""

from profiler_job.analysis.pages.script_memory import build_memory_charts, build_memory_tables
from profiler_job.jobs.cli.script_notes import describe_memory
from profiler_job.jobs.executor.script_memory import list_savings, list_scalars

MIB = 2**20
KIND = {"operation": "Exp", "module": "GPT/blocks.*/attn", "shape": [4, 16, 16], "dtype": "float32"}
MEMORY = {
    "peak_bytes": 1000 * MIB,
    "phase": "backward",
    "owners": {"parameters": 100 * MIB, "gradients": 50 * MIB, "optimizer state": 200 * MIB, "activations": 640 * MIB}
    | {"rounding": 10 * MIB},
    "modules": {"GPT/blocks.0/attn": 200 * MIB, "GPT/blocks.0/mlp": 100 * MIB, "GPT/blocks.1/attn": 240 * MIB}
    | {"(loss)": 100 * MIB},
    "saved": [KIND | {"bytes": 150 * MIB, "num": 2}],
    "saved_bytes": 700 * MIB,
    "problems": ["saved tensors: the script uses torch.func"],
}
NOTED = {"memory_owners": MEMORY, "parameter_dtypes": {"torch.float32": 148}, "world": 1}


def test_changes_free_what_they_are_about_and_the_largest_is_first():
    assert list_savings(NOTED) == {
        "FSDP on 8 GPUs": 350 * MIB * 7 // 8,
        "checkpoint each block": 240 * MIB,  # of the two blocks, the smaller has 240 of 540 MiB
        "fused loss": 100 * MIB,
        "optimizer state in BF16": 100 * MIB,
    }
    mixed = NOTED | {"parameter_dtypes": {"torch.bfloat16": 2, "torch.float32": 1}, "world": 2}
    assert list(list_savings(mixed)) == ["checkpoint each block", "fused loss"]


def test_a_script_without_a_gpu_shows_only_what_it_saves():
    noted = {"memory_owners": {"peak_bytes": 0, "saved": MEMORY["saved"], "saved_bytes": 700 * MIB, "problems": []}}
    assert list_savings(noted) == {} and len(list_scalars(noted)) == 1
    assert describe_memory(noted) == [
        "forward saves 700 MiB for backward, most of it 300 MiB by Exp in GPT/blocks.*/attn, 2 x float32 (4, 16, 16)"
    ]
    assert describe_memory({}) == [] and list_scalars({}) == {}


def test_the_terminal_has_owners_saved_tensors_what_frees_and_what_is_not_known():
    owners, saved, freed, problem = describe_memory(NOTED)
    assert owners == (
        "at its peak of 1,000 MiB, in backward, memory holds activations 64.0%, optimizer state 20.0%, "
        "parameters 10.0%, gradients 5.0%"
    )
    assert saved.startswith("forward saves 700 MiB for backward")
    assert freed.startswith("at the peak these would free at most: FSDP on 8 GPUs 306 MiB, checkpoint each block 240")
    assert problem == "not known of its memory: saved tensors: the script uses torch.func"


def test_the_timeline_keeps_its_order():
    noted = {"memory_owners": MEMORY | {"timeline": [["forward", 5], ["", 7], ["forward", 6]]}}
    scalars = {name: size for name, size in list_scalars(noted).items() if name.startswith("over_step_")}
    assert scalars == {"over_step_000_forward": 5, "over_step_001_": 7, "over_step_002_forward": 6}
    rows = build_memory_charts(scalars)[0].rows
    assert list(rows["series"]) == ["forward", "between phases", "forward"] and rows["line"].is_unique


def test_the_page_has_a_table_of_each_with_shares_of_the_peak():
    memory, kept, saved, freed = build_memory_tables(list_scalars(NOTED) | {"tokens_per_step": 5})
    assert memory.rows["share"].sum() == 1 and memory.rows["name"].iloc[0] == "activations"
    assert list(kept.rows["name"]) == ["GPT/blocks.*/attn", "GPT/blocks.*/mlp", "(loss)"]
    assert list(saved.rows["name"]) == ["Exp in GPT/blocks.*/attn, 2 x float32 (4, 16, 16)"]
    assert freed.rows["share"].iloc[1] == 0.24
    assert not any(len(table.rows) for table in build_memory_tables({}))
