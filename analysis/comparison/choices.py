"""What a user may choose of a comparison or a history, by name. Imports nothing, so that commands start at once."""

from typing import Literal

Metric = Literal["step", "throughput", "kernel", "busy", "idle", "memory", "energy"]
By = Literal["date", "commit"]
CompareFormat = Literal["text", "json", "md"]
HistoryFormat = Literal["text", "json", "csv", "md"]
