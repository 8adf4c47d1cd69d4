"""The questions, in the order of the report. Each is a module with a SLUG, a TITLE, and `answer(<tables>)`, and a
template of the same name.

The parameters of `answer` name the tables that it reads (`runs`, `steps`, `kernels` ...); its docstring is its
specification. A question of STUDIES may have a STUDY: its tables are then those of the recordings of that study, made
by the sweeps in jobs/sweeps that name it. It may also ask for `main`, the recording that QUESTIONS answer from, and for
`calibration`, the peak rates measured on the machine (columns figure, unit, value, low, high, repeats, gpu_name;
empty where no recording has them), and every question for `bands`, the noise bands of times, fitted to runs that were
recorded twice (None where none were).
"""

from analysis.pages.questions import (
    attention_cost,
    beyond_gemm,
    bounds,
    forward_time,
    fused_attention,
    host,
    memory_use,
    optimizer_cost,
    precision,
    second_recording,
    softmax_detail,
    top_kernel,
    training_mix,
    warm_up,
)

QUESTIONS = {
    "a": forward_time,
    "b": top_kernel,
    "c": beyond_gemm,
    "d": training_mix,
    "e": attention_cost,
}

STUDIES = {
    "f": fused_attention,
    "g": memory_use,
    "h": bounds,
    "i": host,
    "j": precision,
    "k": warm_up,
    "l": optimizer_cost,
    "m": second_recording,
    "s": softmax_detail,
}
