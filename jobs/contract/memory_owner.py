"""What memory belongs to, in predictions."""

from enum import StrEnum


class Owner(StrEnum):
    """What a piece of memory belongs to. `ACTIVATIONS` are kept by forward for backward; `CASTS` are copies of weights
    by autocast; `TEMPORARIES` are all other results, such as gradients of activations; `ROUNDING` is what blocks have
    more than their tensors."""

    PARAMETERS = "parameters"
    GRADIENTS = "gradients"
    OPTIMIZER_STATE = "optimizer state"
    ACTIVATIONS = "activations"
    CASTS = "copies of weights"
    LOGITS = "logits and loss"
    TEMPORARIES = "temporaries"
    BUFFERS = "buffers and data"
    WORKSPACE = "workspace"
    ROUNDING = "rounding"
