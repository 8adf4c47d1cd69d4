"""Find out where the GPU time of a Transformer goes: measure under Nsight Systems, read any capture, publish."""
