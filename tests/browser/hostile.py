"""Names that a profile may hold and no page may obey."""

from profiler_job.analysis.comparison.judge import Comparison, compare
from profiler_job.analysis.comparison.noise import SHIPPED
from profiler_job.analysis.comparison.sides import make_tables_side
from tests import synthetic

NAMES = {
    synthetic.GEMM: "<script>window.owned = 1</script><img src=x onerror='window.owned = 1'> " + "gemm_" * 60,
    synthetic.SPLIT_K: '=HYPERLINK("http://example.invalid/","split_k")',
    synthetic.MUL: "pipe|pipe `tick` *star* [link](javascript:window.owned=1) {{ owned }} 🚀 ünïcode",
    synthetic.EXP: "line one\nline two\r\n# heading\n\n    code </td></table><h1>out</h1>",
    synthetic.MAX: "void k<" + "template_argument, " * 210 + "float>(T1 *)",
    synthetic.CAT: "@SUM(A1) &lt;b&gt; \"quoted\" 'single' \x1b[31m \x00 end",
}
MODULE = "emb<script>window.owned = 1</script>|`x` *y*"
MESSAGE = "out of memory</div><script>window.owned = 1</script> | `x` \n\n# heading 🚀"


def hostile_recording() -> synthetic.Recording:
    """A made-up recording of two models whose kernel names and messages are hostile."""
    recording = synthetic.recording(("small", "2.7B"), (128, 1024))
    for table in ("kernels", "ranges"):
        frame = getattr(recording, table)
        frame["run_id"] = frame["run_id"].astype("category")
    recording.kernels["kernel_name"] = recording.kernels["kernel_name"].replace(NAMES)
    recording.kernels["module"] = recording.kernels["module"].replace({"embedding": MODULE})
    runs = recording.runs
    runs.loc[runs["status"] != "ok", "status_message"] = MESSAGE
    runs["log"] = MESSAGE + "</pre><script>window.owned = 1</script>"
    return recording


def hostile_comparison(first: synthetic.Recording) -> Comparison:
    """The recording against another one, where all kernels have one name and other lengths; labels are hostile, too."""
    second = hostile_recording()
    kernels = second.kernels
    kernels["kernel_name"] = NAMES[synthetic.EXP]
    kernels["end_ns"] += (kernels["end_ns"] - kernels["start_ns"]) // 2
    second.runs["started_at"] = "2027-01-01T00:00:00+00:00"
    sides = []
    for rec, label in ((first, NAMES[synthetic.GEMM]), (second, MESSAGE)):
        side = make_tables_side(label, rec.runs, rec.steps, rec.kernels, rec.memops)
        side.recording = rec
        sides.append(side)
    return compare(*sides, SHIPPED)
