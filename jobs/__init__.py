"""Everything that runs on the GPU machine: plan a sweep, run it, collect what was measured."""
