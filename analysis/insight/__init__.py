"""What a capture or a run means, computed once: limit, idle time, findings, advice, communication."""
