"""A line of the script that the GPU waits for, if no other change does what its advice says."""

from profiler_job.analysis.changes.evidence import LEAST, CaptureEvidence, ChangeEvidence

CODE = "change the line that the GPU waits for"
PLAIN = CODE
ACTION = "Change a line of the script"
LINE = "see the lines that the GPU waits for"


def find_evidence(seen: CaptureEvidence) -> ChangeEvidence | None:
    line = next((line for line in seen.lines if not line.changes), None)
    if line is None or line.wait_ns < LEAST * seen.whole_ns:
        return None
    sure = "medium: what the line does is still to be done, elsewhere or less often"
    return ChangeEvidence(line.wait_ns, line.ceiling_ns, line.evidence, sure, line)
