"""Everything that runs on the GPU machine: plan a sweep, run it, collect what was measured."""

if __name__ != "profiler_job.jobs":
    raise ImportError(
        "import profiler_job.jobs: the folder jobs/ of the checkout is not a package by itself, "
        "so that it never hides a folder of this name in somebody's repository"
    )
