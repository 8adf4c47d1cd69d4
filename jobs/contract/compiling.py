"""What torch.compile did in a script that was measured: a file of the run, which `ingest` reads."""

from pydantic import BaseModel, ConfigDict


class _Part(BaseModel):
    """A part of the file. Unknown keys are ignored: a newer version may write more."""

    model_config = ConfigDict(extra="ignore")


class GraphBreak(_Part):
    """A line at which a graph ends, so that Python runs before the next. where: its file, below the script's folder,
    and line; "" if it is not known. graphs: numbers of the graphs that end there, as ranges of their calls have them;
    none if Dynamo leaves a whole function to Python there."""

    reason: str
    where: str = ""
    function: str = ""
    graphs: list[int] = []


class Recompilation(_Part):
    """A function that was compiled again in a measured step, since a guard failed. where: its file, below the script's
    folder, and line. reason: the guard. gave_up: it was compiled too often, so that Python runs it where no guard
    holds, in whichever step that was."""

    reason: str
    where: str = ""
    function: str = ""
    gave_up: bool = False


class Compiling(_Part):
    """What torch.compile did in a process.

    graphs: those that Inductor compiled; None if nothing was compiled. late_graphs: those of them in measured steps,
    which are slower by it. cached_graphs: those that a cache had. seconds: how long all compiling took; None if it is
    not known. errors: why launches of graphs have no modules. compiled_autograd: why those of compiled autograd have
    none; "" if they have, or if there are none.
    """

    rank: int = 0
    graphs: int | None = None
    late_graphs: int = 0
    cached_graphs: int = 0
    seconds: float | None = None
    breaks: list[GraphBreak] = []
    recompilations: list[Recompilation] = []
    errors: list[str] = []
    compiled_autograd: str = ""


class CompilingRecord(_Part):
    """The file: one entry of each rank."""

    ranks: list[Compiling]
