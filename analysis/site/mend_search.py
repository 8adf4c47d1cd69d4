"""A hook of MkDocs: the theme's search tells apart all words of its index, and loads it when a reader opens it.

lunr 2.3.9, which the theme searches with, takes two sets of letters for one where digits follow each other: an edge "2"
to node 13 reads like an edge "2" to node 1 and an edge "3" on. Words are lost then, and others made up, on which a
search ends with no result (olivernn/lunr.js#503). This report is full of numbers: "tokens" found nothing.

The theme loads its index with every page, except from a file: there it waits until the search is opened. The index is
three times as large as all else that the first page loads, so here it always waits, except where a result leads: what
was searched for is marked there, which takes the index.
"""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError

NAMED = re.compile(r"(TokenSet\.prototype\.toString=function\(\)\{[^}]*?=(\w)\+\w\+\w\.id)(?=\}return \2\})")
"""Where a set of letters gets the name by which it is known again: the last term of its sum has no end."""
AT_ONCE = re.compile(r'(?<=\()location\.protocol!=="file:"(?=\),\w+\("search"\)\))')
"""Whether the index is loaded before the search is opened."""
MARKED = re.compile(r'(\w\("search\.highlight"\))(?=\?\w+\(\w,\{index\$:)')
"""Whether a page marks what was searched for: in the address of a result it is `h`."""


def on_post_build(config: MkDocsConfig) -> None:
    """Raises PluginError where the theme's search is another."""
    scripts = Path(config.site_dir, "assets", "javascripts")
    workers, bundles = sorted(scripts.glob("workers/search.*.js")), sorted(scripts.glob("bundle.*.js"))
    if not workers or not bundles:
        raise PluginError("the theme's search has no worker where it was: is what this mends still needed?")
    for path in workers:
        _mend(path, NAMED, r'\1+","', "lunr's TokenSet.toString")
    for path in bundles:
        _mend(path, AT_ONCE, "!1", "when the search loads its index")
        only_where_h = r'\1&&new URLSearchParams(location.search).has("h")'
        _mend(path, MARKED, only_where_h, "what marks words that were searched for")


def _mend(path: Path, pattern: re.Pattern[str], by: str, what: str) -> None:
    mended, number = pattern.subn(by, path.read_text(encoding="utf-8"))
    if number != 1:
        raise PluginError(f"{path.name}: {what} is not as it was: is what it mends still needed?")
    path.write_text(mended, encoding="utf-8")
