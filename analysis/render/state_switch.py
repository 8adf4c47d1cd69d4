"""The switch of a figure that is drawn in several states: radio buttons, which need no script."""

from collections.abc import Mapping

from markupsafe import Markup

NAMES = "state-"
"""What the names of the groups of buttons begin with."""


def draw_switch(name: str, figures: Mapping[str, Markup], shown: str) -> Markup:
    """Return the buttons and the HTML of the figures, by state. name: of the group on its page; shown: the state that
    is chosen first, or else the first one is. On lines that begin with no figure, which would be set apart."""
    chosen = shown if shown in figures else next(iter(figures))
    buttons = Markup("").join(
        Markup('<label><input type="radio" name="{}" value="{}"{}><span>{}</span></label>').format(
            f"{NAMES}{name}", state, Markup(" checked") if state == chosen else "", state
        )
        for state in figures
    )
    parts = Markup("\n").join(Markup('<div class="state">{}</div>').format(figure) for figure in figures.values())
    return Markup('<fieldset class="states"><legend>State</legend>{}</fieldset>\n{}').format(buttons, parts)
