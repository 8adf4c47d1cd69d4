"""`jobs/sweeps/ladder.sh` chooses each run of the ladder once."""

from tests.jobs.ladder_runs import list_chosen, run_script

NUM_RUNS = {
    "ladder_llama": 9,
    "ladder_gpt2": 14,
    "ladder_losses": 34,
    "ladder_losses_loop": 4,
    "ladder_losses_llama": 1,
    "ladder_losses_gpt2": 13,
    "compile": 21,
    "compile_larger": 9,
    "attention_alone": 1,
}


def test_each_run_is_measured_once(tmp_path):
    chosen = list_chosen(tmp_path)
    assert {block: len(ids) for block, ids in chosen.items()} == NUM_RUNS
    assert all(len(set(ids)) == len(ids) for ids in chosen.values())


def test_options_go_to_each_command(tmp_path):
    code, commands = run_script(tmp_path, "--allow-mix")
    assert code == 0 and {option for *_, option in commands} == {"--allow-mix"}


def test_a_failed_run_does_not_end_it_and_a_machine_that_cannot_measure_does(tmp_path):
    _, all_commands = run_script(tmp_path)
    (tmp_path / "commands").unlink()
    assert run_script(tmp_path, code=1) == (1, all_commands)
    (tmp_path / "commands").unlink()
    assert run_script(tmp_path, code=69) == (69, all_commands[:1])
