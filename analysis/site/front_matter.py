"""The front matter of pages: what a link to a page shows, in words and as a picture.

A picture (card) is drawn only of a site whose address is known (SITE_URL), since links to pictures are absolute.
"""

import html
import json
import os
import re
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from profiler_job.analysis.render import card

FENCE = "---\n"
LONGEST = 200
"""Characters of a description: what search engines and chats show."""
SHORT = 60
"""Characters: a shorter verdict means little without the question above it."""
HEADING = re.compile("^# (.*)\n", re.MULTILINE)


def split(page: str) -> tuple[dict[str, Any], str]:
    """Return the front matter of a page and the Markdown below it. YAML makes two halves of what JSON writes as a pair
    of surrogates: pairs are joined, and a lone half, which no file can hold, is replaced."""
    if not page.startswith(FENCE):
        return {}, page
    front, _, body = page.removeprefix(FENCE).partition(f"\n{FENCE}")
    loaded = json.dumps(yaml.safe_load(front), ensure_ascii=False, default=str)
    return json.loads(loaded.encode("utf-16", "surrogatepass").decode("utf-16", "replace")), body


def join(front: Mapping[str, Any], body: str) -> str:
    """Return the page of a front matter, which has no lines where it is empty, and the Markdown below it."""
    lines = "".join(f"{key}: {json.dumps(value, ensure_ascii=False)}\n" for key, value in front.items())
    return f"{FENCE}{lines}{FENCE}{body}" if lines else body


def complete(front: Mapping[str, Any], heading: str, verdict: str, recording: Mapping[str, str]) -> dict[str, Any]:
    """Return the front matter with the recording that the page is about and a description, or else the verdict.

    heading, verdict: plain text. The description is HTML, since the theme writes it into an attribute as it is.
    """
    described = str(front.get("description") or verdict)
    if described == verdict and len(verdict) < SHORT:
        described = f"{heading}{'' if heading.endswith('?') else ':'} {verdict or front.get('title', heading)}"
    description = html.escape(textwrap.shorten(described, LONGEST, placeholder=" …"))
    return dict(front) | {"description": description} | ({"recording": dict(recording)} if recording else {})


def has_cards() -> bool:
    """Whether pages have cards."""
    return bool(os.environ.get("SITE_URL"))


def path_of_card(page: str) -> str:
    """Return the path of the card of a page; both are below the folder of the docs. The theme knows it, too."""
    return f"report/cards/{page.removeprefix('report/').rpartition('.')[0]}.png"


def draw_card(front: Mapping[str, Any], heading: str) -> bytes:
    """Return the PNG of a page: its title, its figure in large letters (`figure`), and the words on it
    (`said`), or its description."""
    title = html.unescape(str(front.get("title", heading)))
    said = front.get("said") or html.unescape(str(front.get("description", ""))).removeprefix(title).lstrip(" :")
    below = " · ".join(filter(None, ("profiler-job", *front.get("recording", {}).values())))
    return card.draw(card.Card(title, str(front.get("figure", "")), str(said), below))


def draw_cards_of_hand_written(docs: Path) -> dict[str, bytes]:
    """Return the cards of the hand-written pages and notebooks below `docs`, by their paths."""
    cards = {}
    for path in sorted([*docs.glob("*.md"), *docs.glob("guide/*.md"), *docs.glob("notebooks/*.ipynb")]):
        page = path.relative_to(docs).as_posix()
        if page == "index.md":
            continue
        source = path.read_text(encoding="utf-8")
        if path.suffix == ".ipynb":
            source = "".join(json.loads(source)["cells"][0]["source"]) + "\n"
        front, body = split(source)
        heading = HEADING.search(body)
        cards[path_of_card(page)] = draw_card(front, heading[1] if heading else path.stem)
    return cards
