"""Pages that answer several questions, a short answer each, and lead to the page of each: the
navigation has these."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Topic:
    """A page on several questions. letters: of the questions, in order. has_figures: the page shows the first figure of
    each. searched: what a reader may search for."""

    slug: str
    title: str
    description: str
    letters: tuple[str, ...]
    has_figures: bool = True
    searched: tuple[str, ...] = ()

    @property
    def page(self) -> str:
        """Path of its page below the site's folder."""
        return f"report/{self.slug}.md"

    @property
    def blocks(self) -> tuple[str, ...]:
        """Blocks of the template of a question that the page has."""
        return ("verdict", "lead") if self.has_figures else ("verdict", "modules")


ANATOMY = Topic(
    slug="anatomy",
    title="Where does the time of a step go?",
    description="A training step in FP32, BF16 and compiled: its phases, modules and kernels, and six answers.",
    letters=("a", "b", "c", "d", "e", "t"),
    has_figures=False,
    searched=("anatomy of a step", "breakdown", "phases of a step"),
)
METHODS = Topic(
    slug="methods",
    title="How we measured",
    description="How a step is timed and profiled: clocks, warm-up, a second recording, telemetry, machine, checks.",
    letters=("k", "m"),
    searched=("methods", "attribution", "classification"),
)
"""Its page has sections of other pages, too: `site.methods_page`."""
TOPICS = (
    ANATOMY,
    METHODS,
    Topic(
        slug="attention",
        title="What do attention and softmax cost?",
        description="Softmax against its arithmetic and against the memory, and what fused attention saves.",
        letters=("f", "e", "s"),
        searched=("attention cost", "self-attention"),
    ),
    Topic(
        slug="optimizer",
        title="What do the optimizer and gradient accumulation cost?",
        description="AdamW in loops, foreach and fused, and what splitting a batch costs and saves.",
        letters=("l", "v"),
        searched=("optimizer and accumulation",),
    ),
)
