def pytest_configure(config):
    config.addinivalue_line("markers", "slurm: runs jobs on Slurm daemons of its own; skipped where Slurm is absent")
