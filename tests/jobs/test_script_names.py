"""Facts inferred from the command of a script: the name of its results, and the number of this machine."""

import pytest

from profiler_job.jobs.cli.measure_script import find_hiding_option
from profiler_job.jobs.cli.script_name import choose_default_name, find_source
from profiler_job.jobs.executor.nodes import find_node

SLURM = {"SLURM_NODEID": "3", "SLURM_NNODES": "4"}


@pytest.mark.parametrize(
    "command, environment, node",
    [
        ("torchrun --nnodes 2 --node-rank 1 train.py", {}, 1),
        ("torchrun --nnodes=1:4 --node_rank=0 train.py", {}, 0),
        ("accelerate launch --num_machines 2 --machine_rank 1 train.py", {}, 1),
        ("torchrun --nnodes 4 --rdzv-backend c10d train.py", SLURM, 3),
        ("torchrun --nnodes 2 train.py", {"SKYPILOT_NODE_RANK": "1"}, 1),
        ("torchrun train.py", SLURM, None),
        ("torchrun train.py", {"PET_NODE_RANK": "1", "PET_NNODES": "2"}, 1),
        ("torchrun --nnodes 1 train.py", SLURM, None),
        ("torchrun --nnodes 2 train.py", {}, None),
        ("torchrun train.py", {"PET_NNODES": "1", "PET_NODE_RANK": "0"}, None),
        ("torchrun --node-rank here --nnodes 2 train.py", {}, None),
        ("python train.py", {}, None),
    ],
)
def test_which_of_several_machines_this_is_comes_from_the_launcher_or_the_engine(command, environment, node):
    assert find_node(command.split(), environment) == node


@pytest.mark.parametrize(
    "command, name",
    [
        (["python", "train.py", "--name", "x"], "train"),
        (["python", "-u", "src/run_clm.py"], "run_clm"),
        (["python", "-m", "nanochat.train"], "nanochat.train"),
        (["torchrun", "--nproc-per-node=1", "train.py"], "train"),
        (["torchrun", "--nproc-per-node", "2", "train.py", "--lr", "1"], "train"),
        (["torchrun", "--nproc-per-node", "2", "-m", "my.train"], "my.train"),
        (["python", "-m", "torch.distributed.run", "--nproc-per-node", "2", "train.py"], "train"),
        (["accelerate", "launch", "--num_processes", "2", "train.py", "evaluate.py"], "train"),
        (["./train.sh"], "train"),
        (["python", "my train.py"], "my-train"),
        (["python", "_train.py"], "train"),
        (["python", "x" * 80 + ".py"], "x" * 64),
        (["python", "site.py"], "site-script"),
        (["python", "-c", "import train; train.main()"], "script"),
        (["python", "-"], "python"),
    ],
)
def test_results_are_named_after_the_script(command, name):
    assert choose_default_name(command) == name


@pytest.mark.parametrize(
    "command, option",
    [
        ("python -I train.py", "-I"),
        ("/opt/venv/bin/python3.12 -u -E -m my.train", "-E"),
        ("python -W error -uE train.py", "-uE"),
        ("python -X importtime -I train.py", "-I"),
        ("python3 -Em my.train", "-Em"),
        ("python -WIgnore -u train.py -I", None),
        ("python -m my.train -E", None),
        ("python -cE=1", None),
        ("python -", None),
        ("python", None),
        ("torchrun -I train.py", None),
    ],
)
def test_an_option_of_python_that_hides_the_profiler_is_found(command, option):
    assert find_hiding_option(command.split()) == option


@pytest.mark.parametrize(
    ("command", "source"),
    [
        ("python train.py --config other.py", "train.py"),
        ("torchrun --nproc-per-node 2 sub/train.py", "sub/train.py"),
        ("python -m package.train --config other.py", "package/train.py"),
        ("python -m package", "package/__main__.py"),
        ("python -m torch.distributed.run train.py", "train.py"),
        ("python -m timm.train", ""),
        ("python -c 1", ""),
    ],
)
def test_the_file_of_a_script_is_found_for_its_patch(command, source, tmp_path, monkeypatch):
    (tmp_path / "package").mkdir()
    for name in ("train", "__main__"):
        (tmp_path / "package" / f"{name}.py").touch()
    monkeypatch.chdir(tmp_path)
    assert find_source(command.split()) == source
