"""The vocabulary of NVTX range names: what the workload annotates and what the analysis may look for.

Ranges nest like this (a step of mode `forward` has only the forward phase, `forward_backward` has no optimizer phase):

    step
      forward
        embedding
        block_0 ... block_{L-1}
          norm
          attention
            qkv_proj  rope
            attention_scores  softmax  attention_output      (attention = naive)
            fused_attention                                  (any other attention)
            o_proj
          norm
          ffn
        norm
        lm_head
      loss
      backward
      optimizer

After the measured steps comes one in which modules are followed through backward and the optimizer, too (see
`jobs.follow.module_ranges`). It is there to tell which module launches which kernel; it is slower, so its outermost
ranges have other names, and no time is taken from it:

    modules:step
      modules:forward
        ...                             (as above)
      modules:loss
      modules:backward
        modules:backward/block_0/ffn    (the module whose forward made the node)
      modules:optimizer
        modules:optimizer/block_0/ffn   (the module that uses the parameter)

The last followed step ends with the graphs that torch.compile made, forward and backward: what each launches, in
order, as `kernel|module=percent|...`, of the bytes of results (see `jobs.follow.compiled_graphs`).

    modules:graph 0 forward GPT (static)
      triton_poi_fused_gelu_7|blocks.0/mlp/act=100
      extern_kernels.addmm|blocks.0/mlp/out=100

After them is an empty range for each line at which graphs break: numbers of the graphs that end there, the line, the
function and the reason.

    modules:break 0,3|train.py:8|forward|Tensor.item(): ...

In followed steps each call of such a graph has a range with its number, which is not a module. It says, too, whether
the graph ends at a graph break (see `jobs.follow.graph_calls`):

    modules:forward
      GPT (compiled)
        modules:call 0 broken
        modules:call 1

And each call that makes the CPU wait for the GPU is followed by an empty range with the number of its line, on the
thread that called (see `jobs.follow.host_waits`):

    modules:sync 0

A call that copies between the memory of the CPU and the memory of a GPU is inside a range with the number of its line,
which is not a module (see `jobs.follow.host_copies`):

    modules:copy 0

It ends, too, with the CUDA graphs that the script captured itself: the ranges that were open while a graph was
captured, with a range for each of its nodes that does something, in order (see `jobs.follow.script_graphs`).

    modules:captured 0
      modules:forward
        blocks.0/mlp
          modules:node kernel 12x1x1 void gelu<float>(...)
          modules:node memset

Each of several processes says which it is before its first step, and of how many: some may be on other machines.

    modules:rank 1
    modules:rank 1 of 4
"""

STEP = "step"

FORWARD = "forward"
LOSS = "loss"
BACKWARD = "backward"
OPTIMIZER = "optimizer"
PASSES = (FORWARD, BACKWARD)
PHASES = (FORWARD, LOSS, BACKWARD, OPTIMIZER)
"""The phases of a sweep's steps."""

SETUP, DATA, CLIP, ZERO_GRAD = "setup", "data", "clip", "zero_grad"
PREFILL, DECODE, EVALUATION = "prefill", "decode", "evaluation"
ALL_PHASES = (SETUP, DATA, FORWARD, PREFILL, DECODE, LOSS, BACKWARD, CLIP, OPTIMIZER, ZERO_GRAD, EVALUATION)
"""The phases of any script: also what comes before its first step (`setup`), waiting for the next batch (`data`),
clipping gradients, and setting them to zero. A model that generates text reads the prompt (`prefill`), then makes one
token after the other (`decode`). `evaluation` is a call of the trained model without gradients, in a training step."""

FOLLOWED = "modules:"
"""Prefix of the outermost ranges of a step in which modules are followed."""
FOLLOWED_STEP = f"{FOLLOWED}{STEP}"
GRAPH = f"{FOLLOWED}graph "
STATIC = " (static)"
"""Suffix of the range of a graph no size of which changes between its calls."""
BREAK = f"{FOLLOWED}break "
CALL, BROKEN = f"{FOLLOWED}call ", " broken"
CAPTURED = f"{FOLLOWED}captured "
NODE = f"{FOLLOWED}node "
RANK = f"{FOLLOWED}rank "
"""Prefix of the range that marks the rank of a process."""
GARBAGE_RANGE = f"{FOLLOWED}garbage collection"
"""Beginning of the range in which Python collects garbage."""
SLEEP_RANGE = f"{FOLLOWED}sleep"
"""Range in which a script is in `time.sleep`, in steps with samples."""
SYNC = f"{FOLLOWED}sync "
"""Prefix of the empty range after a call that waits for the GPU: the number of its line."""
COPY = f"{FOLLOWED}copy "
"""Prefix of the range around a call that copies between CPU and GPU: the number of its line."""
SAID_RANK = rf"^{RANK}(?P<rank>\d{{1,9}})(?: of (?P<world>\d{{1,9}}))?$"
"""Matches that name: the rank, and the number of all of them where it is said."""

LOSS_MODULE = "(loss)"
ACCUMULATION = "(gradient accumulation)"
RECOMPUTED = "(recomputed)"
ALL_PARAMETERS = "(all parameters)"
FSDP = "(FSDP)"
COMPILED = " (compiled)"
COMPILED_AUTOGRAD = "(compiled autograd)"
GRAPH_INPUTS = "(inputs of a CUDA graph)"
FUSED = "(fused: {})"
"""Names in place of a module when no module launched a kernel: the loss in backward; sums of gradients where branches
join; parts of forward that backward computes again (before their path); updates of many parameters at once; and work of
FSDP in backward (after the path of the module that has the parameters): gathers, copies and reductions. At the end of a
module's path: torch.compile runs it as a whole. Then: a whole backward pass, if compiled autograd makes a graph of it
and it is not known what the graph is made from; copies to where a CUDA graph of a compiled module reads its inputs
(after the module's path). And a kernel computes parts of several modules inside a path."""

EMBEDDING = "embedding"
NORM = "norm"
ATTENTION = "attention"
QKV_PROJ = "qkv_proj"
ROPE = "rope"
ATTENTION_SCORES = "attention_scores"
SOFTMAX = "softmax"
ATTENTION_OUTPUT = "attention_output"
FUSED_ATTENTION = "fused_attention"
O_PROJ = "o_proj"
FFN = "ffn"
LM_HEAD = "lm_head"
MODULES = (
    EMBEDDING,
    NORM,
    ATTENTION,
    QKV_PROJ,
    ROPE,
    ATTENTION_SCORES,
    SOFTMAX,
    ATTENTION_OUTPUT,
    FUSED_ATTENTION,
    O_PROJ,
    FFN,
    LM_HEAD,
)

BLOCK_PREFIX = "block_"


def name_block(index: int) -> str:
    """Name of the range around Transformer block `index` (from 0)."""
    return f"{BLOCK_PREFIX}{index}"
