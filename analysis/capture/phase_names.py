"""Names of ranges that mark a phase or a training step: names of PyTorch, of libraries, and names that people choose.

`NAMES` is the one table of them. The page of outputs is made from it.
"""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from profiler_job.jobs.contract import ranges as vocabulary


class PhaseNames(NamedTuple):
    """Names that `source` gives to a phase: `pattern` matches them from end to end, in upper or lower case; `examples`
    are what the page of outputs shows."""

    phase: str
    source: str
    pattern: re.Pattern[str]
    examples: tuple[str, ...]


YOURS, PROFILE, PYTORCH, LIGHTNING, MEGATRON, DEEPSPEED, LLM_C = (
    "your own",
    "`profile`",
    "PyTorch",
    "Lightning",
    "Megatron-LM",
    "DeepSpeed",
    "llm.c",
)
_PREFIX = (
    r"(?:(?:\(?\d+(?: -|[._:)])|(?:rank|gpu|mb|micro[ _]?batch|epoch|step|iter)[ _]?\d+(?: ?[/:|-]|[ _])|"
    r"(?:phase|train(?:ing|er)?(?:[ _]step)?|step|iter|model|loop)[/:|]) ?)*"
)
"""What people put before the name of a phase."""
_NUMBER = r"(?:[ _#:.-]*(?:(?:micro(?:[ _]?batch)?|step|iter(?:ation)?|batch|block|layer)[ _]?)?\d+)?"
"""What people put after it."""
_LIGHTNING = r"\[pl\]\[profile\](\[[^]]*\])?([\w.]*[.])?"


def _make_names(phase: str, source: str, pattern: str, *examples: str) -> PhaseNames:
    if source == YOURS:  # people name ranges by calls, too: `loss.backward()`, `clip_grad_norm_`
        pattern = rf"{_PREFIX}(?:{pattern})_?(\(\))?{_NUMBER}"
    return PhaseNames(phase, source, re.compile(pattern, re.IGNORECASE), examples)


NAMES = (
    _make_names(
        vocabulary.DATA,
        YOURS,
        r"data|data[ _]?load(er|ing)?|(get|next|load|fetch)[ _]?(data|batch)|dataloader[ _.]next|"
        r"data[ _-](fetch(ing)?|staging|prep(aration)?|transfer|copy)|"
        r"((data|batch|inputs?)[ _-])?to[ _-](gpu|device|cuda)|(copy|move|transfer)([ _-]\w+)?[ _-]to[ _-]"
        r"(gpu|device|cuda)|(h2d|host[ _-](to|2)[ _-]device)([ _-](copy|transfer))?",
        *("data", "dataloader", "get_batch", "load batch", "data_fetch", "data_to_gpu", "copy_to_device", "H2D copy"),
    ),
    _make_names(
        vocabulary.FORWARD,
        YOURS,
        r"([\w.]+[.]|(?!feed|fast)[a-z]\w*[ _])?(forward|fwd)([ _-]?(pass|step|prop(agation)?))?|"
        r"inference|(prefill|decode)([ _-]step)?",
        *("forward", "fwd", "forward pass", "Model.forward", "item_forward", "forward_3", "forward_micro3"),
        *("## forward ##", "rank0/forward", "inference", "prefill", "decode_3"),
    ),
    _make_names(
        vocabulary.LOSS,
        YOURS,
        r"(compute|calc(ulate)?)?[ _]?(ce|lm|mse)?[ _]?loss"
        r"([/_ -](sync|reduce|fn|func(tion)?|comput(e|ation)|calculation))?|criterion|cross[ _-]?entropy([ _]loss)?",
        *("loss", "compute_loss", "loss_func", "Loss Calculation", "Calculate Loss/Sync", "criterion"),
    ),
    _make_names(
        vocabulary.EVALUATION,
        YOURS,
        r"eval(uat(e|ion))?([ _](step|loss|loop))?|val(id(ation)?)?([ _](step|loss|loop))?|estimate_loss|"
        r"(eval(uation)?|val(idation)?)[/:|].+",
        *("evaluation", "eval_step", "validation", "val_loss", "estimate_loss"),
    ),
    _make_names(vocabulary.PREFILL, PROFILE, r"generation: prefill", "generation: prefill"),
    _make_names(vocabulary.DECODE, PROFILE, r"generation: decode", "generation: decode"),
    _make_names(
        vocabulary.BACKWARD,
        YOURS,
        r"([\w.]+[.]|[a-z]\w*[ _])?(backward|bwd)([ _-]?(pass|step|prop(agation)?))?|back[ _-]?prop(agation)?",
        *("backward", "bwd", "backward pass", "backprop", "loss.backward()", "loss_backward", "backward_3"),
    ),
    _make_names(
        vocabulary.CLIP,
        YOURS,
        r"clip([ _-]norm)?|(clip[ _-])?grad(ient)?[ _-](clip(ping)?|norm)|clip[ _-]grad(ient)?s?",
        *("clip", "grad_clip", "clip_norm", "clip_grad_norm_", "gradient clipping"),
    ),
    _make_names(
        vocabulary.OPTIMIZER,
        YOURS,
        r"optimi[sz]er|optim|opt|((grad)?[ _]?scaler|optim|opt(imi[sz]er)?)[ _./-](step|update)|"
        r"(param(eter)?|weight)?s?[ _]?update([ _](param(eter)?|weight)s?)?|"
        r"(adamw?|sgd|muon|lion|lamb|adafactor|shampoo|soap)([ _.]step)?",
        *("optimizer", "optim", "opt", "opt_step", "optimizer.step", "scaler.step", "update", "adamw", "Muon.step"),
    ),
    _make_names(
        vocabulary.ZERO_GRAD,
        YOURS,
        r"((optimi[sz]er|optim|opt|model)[._ ])?zero(ing)?[ _-]grad(ient)?s?",
        *("zero_grad", "zero-grad", "zeroing gradients", "optimizer.zero_grad()"),
    ),
    _make_names(
        vocabulary.DATA,
        PYTORCH,
        r"enumerate\(DataLoader\)#.*",
        "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
    ),
    _make_names(
        vocabulary.FORWARD, PYTORCH, r"torch\.nn\.modules\.Module\.__call__", "torch.nn.modules.Module.__call__"
    ),
    _make_names(
        vocabulary.BACKWARD,
        PYTORCH,
        r"autograd::engine::evaluate_function: .*",
        "autograd::engine::evaluate_function: MmBackward0",
    ),
    _make_names(vocabulary.OPTIMIZER, PYTORCH, r"optimizer\.step#.*", "Optimizer.step#AdamW.step"),
    _make_names(vocabulary.ZERO_GRAD, PYTORCH, r"optimizer\.zero_grad#.*", "Optimizer.zero_grad#AdamW.zero_grad"),
    _make_names(
        vocabulary.DATA,
        LIGHTNING,
        rf"{_LIGHTNING}((train|val|test|predict)_dataloader_next|batch_to_device)",
        *(
            "[pl][profile][_TrainingEpochLoop].train_dataloader_next",
            "[pl][profile][Strategy]DDPStrategy.batch_to_device",
        ),
    ),
    _make_names(
        vocabulary.FORWARD,
        LIGHTNING,
        rf"{_LIGHTNING}(training|validation|test|predict)_step",
        "[pl][profile][Strategy]SingleDeviceStrategy.training_step",
    ),
    _make_names(
        vocabulary.BACKWARD, LIGHTNING, rf"{_LIGHTNING}backward", "[pl][profile][Strategy]DDPStrategy.backward"
    ),
    _make_names(
        vocabulary.CLIP,
        LIGHTNING,
        rf"{_LIGHTNING}(configure_gradient_clipping|clip_gradients)",
        "[pl][profile][LightningModule]Net.configure_gradient_clipping",
    ),
    _make_names(
        vocabulary.OPTIMIZER,
        LIGHTNING,
        rf"{_LIGHTNING}optimizer_step(_with_closure)?(_\d+)?",
        "[pl][profile][LightningModule]Net.optimizer_step",
    ),
    _make_names(
        vocabulary.ZERO_GRAD,
        LIGHTNING,
        rf"{_LIGHTNING}(optimizer_)?zero_grad",
        "[pl][profile][LightningModule]Net.optimizer_zero_grad",
    ),
    _make_names(vocabulary.DATA, MEGATRON, r"batch-generator", "batch-generator"),
    _make_names(
        vocabulary.FORWARD, MEGATRON, r"forward-(compute|recv|send)(-layer-\d+)?", "forward-compute", "forward-recv"
    ),
    _make_names(
        vocabulary.BACKWARD, MEGATRON, r"backward-(compute|recv|send)(-layer-\d+)?", "backward-compute", "backward-send"
    ),
    _make_names(
        vocabulary.CLIP,
        MEGATRON,
        r"optimizer-(clip-main-grad|unscale-and-check-inf)",
        *("optimizer-clip-main-grad", "optimizer-unscale-and-check-inf"),
    ),
    _make_names(
        vocabulary.OPTIMIZER,
        MEGATRON,
        r"optimizer-(inner-step|copy-.*|count-zeros)",
        *("optimizer-inner-step", "optimizer-copy-to-main-grad"),
    ),
    _make_names(vocabulary.FORWARD, DEEPSPEED, r"fwd_microstep|fwd_inner(_microstep)?", "fwd_microstep"),
    _make_names(
        vocabulary.BACKWARD,
        DEEPSPEED,
        r"bwd_(inner_|allreduce_)?microstep|DeepSpeed\w*\.(allreduce_gradients|backward_epilogue)",
        *("bwd_microstep", "DeepSpeedEngine.backward", "DeepSpeedEngine.allreduce_gradients"),
    ),
    _make_names(
        vocabulary.OPTIMIZER,
        DEEPSPEED,
        r"step_microstep|(DeepSpeed|FP16_|BF16_)\w*\.(step|_take_model_step)",
        *("step_microstep", "DeepSpeedEngine.step", "DeepSpeedZeroOptimizer_Stage3.step"),
    ),
    _make_names(vocabulary.BACKWARD, LLM_C, r"gpt2_backward_and_reduce", "gpt2_backward_and_reduce"),
    _make_names(vocabulary.CLIP, LLM_C, r"gpt2_calculate_grad_norm", "gpt2_calculate_grad_norm"),
    _make_names(vocabulary.OPTIMIZER, LLM_C, r"gpt2_update", "gpt2_update"),
)

_STEP = re.compile(
    rf"{_PREFIX}((train(ing)?|global|micro|timed|measured?|bench(mark)?|profiled?)[ _]?)?"
    r"(step|iter|iteration|ProfilerStep)[ _#:=.-]*(\d*((/| of )\d+)?|\[\d+, ?\d+[\])])|"
    r"(epoch[ _]?\d+[ _/:-]*)?(train(ing)?[ _])?(mini[ _-]?)?batch([ _]?(idx|id))?[ _#:=.-]*\d+|"
    rf"{_LIGHTNING}run_training_batch|train_batch",
    re.IGNORECASE,
)
_DECORATION = re.compile(r"^[\s#=*>~-]+|[\s#=*<~:-]+$")


def find_phase(name: str, chosen: Mapping[str, str] | None = None) -> str:
    """The phase that a range called `name` marks, one of ALL_PHASES, or "" when it marks none. chosen: the user's own
    names and their phases, which come first."""
    if chosen and name in chosen:
        return chosen[name]
    if name.startswith(vocabulary.FOLLOWED):
        phase = name.removeprefix(vocabulary.FOLLOWED).partition("/")[0]
        return phase if phase in vocabulary.ALL_PHASES else ""
    if holds_forward_and_backward(name):
        return ""
    plain = _DECORATION.sub("", name)
    return next((names.phase for names in NAMES if names.pattern.fullmatch(plain)), "")


_HINTS = {
    vocabulary.FORWARD: r"forward|fwd",
    vocabulary.BACKWARD: r"backward|bwd|backprop",
    vocabulary.OPTIMIZER: r"optim|adam|update",
    vocabulary.LOSS: r"loss",
}
"""What the name of a range says of its phase, though it has other words, too."""


def guess_phase(name: str) -> str:
    """Guess the phase that a user may mean by a range whose name matches none: the only one that the name speaks of;
    "" if it speaks of none, or of several."""
    phases = [phase for phase, pattern in _HINTS.items() if re.search(pattern, name, re.IGNORECASE)]
    return phases[0] if len(phases) == 1 else ""


_WARM_UP = re.compile(
    r"(\w+[ _/:-])?warm[ _-]?ups?([ _/:-]?(step|iter|iteration|run|batch|phase)s?)?[ _#:.-]*\d*|"
    r"warming[ _-]up|.*\(warm[ _-]?up\)",
    re.IGNORECASE,
)
_BOTH = re.compile(rf"{_PREFIX}(forward|fwd)[ _/&+-]*(and[ _-])?(backward|bwd)([ _-]?(pass|step))?", re.IGNORECASE)


def is_warm_up(name: str) -> bool:
    """Whether a range called `name` marks steps of warm-up, which no median should hold."""
    return _WARM_UP.fullmatch(_DECORATION.sub("", name)) is not None


def holds_forward_and_backward(name: str) -> bool:
    """Whether a range called `name` marks forward and backward together, and so neither phase."""
    return _BOTH.fullmatch(_DECORATION.sub("", name)) is not None


def parse_module(name: str) -> str | None:
    """The whole path of a module that a range of a followed step has in its name; None for other ranges."""
    phase, slash, path = name.removeprefix(vocabulary.FOLLOWED).partition("/")
    return path if slash and name.startswith(vocabulary.FOLLOWED) and phase in vocabulary.ALL_PHASES else None


def is_step(name: str) -> bool:
    """Whether a range called `name` marks one training step."""
    return _STEP.fullmatch(_DECORATION.sub("", name)) is not None


def parse_phases(options: Sequence[str]) -> dict[str, str]:
    """Range name -> phase, of options such as `optimizer=my_opt`. Raises ValueError, one line for the user."""
    chosen: dict[str, str] = {}
    for option in options:
        phase, equals, name = option.partition("=")
        if not equals or not name or phase not in vocabulary.ALL_PHASES:
            phases = ", ".join(vocabulary.ALL_PHASES)
            raise ValueError(f"--phase {option}: write PHASE=RANGE, such as optimizer=my_opt; the phases are {phases}")
        if chosen.get(name, phase) != phase:
            raise ValueError(f"--phase {option}: the range {name} is {chosen[name]} already; leave one out")
        chosen[name] = phase
    return chosen
