"""The GPU memory of a phase, by PyTorch's allocator."""

from typing import Any

import torch


class PhaseMemory:
    """Begins now, with the peak reset."""

    def __init__(self, phase: str):
        self.phase = phase
        self.is_known = torch.cuda.is_initialized()
        if self.is_known:
            torch.cuda.reset_peak_memory_stats()
            self.allocated_before = torch.cuda.memory_allocated()

    def list_facts(self) -> list[dict[str, Any]]:
        """Return one record of bytes at the end of the phase; none where there is no GPU."""
        if not self.is_known:
            return []
        return [
            {
                "phase": self.phase,
                "peak_allocated_bytes": torch.cuda.max_memory_allocated(),
                "peak_reserved_bytes": torch.cuda.max_memory_reserved(),
                "allocated_before_bytes": self.allocated_before,
                "allocated_after_bytes": torch.cuda.memory_allocated(),
            }
        ]
