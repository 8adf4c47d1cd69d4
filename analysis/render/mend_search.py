"""A hook of MkDocs: the theme's search tells apart all words of its index.

lunr 2.3.9, which the theme searches with, takes two sets of letters for one where digits follow each other: an edge "2"
to node 13 reads like an edge "2" to node 1 and an edge "3" on. Words are lost then, and others made up, on which a
search ends with no result (olivernn/lunr.js#503). This report is full of numbers: "tokens" found nothing.
"""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError

NAMED = re.compile(r"(TokenSet\.prototype\.toString=function\(\)\{[^}]*?=(\w)\+\w\+\w\.id)(?=\}return \2\})")
"""Where a set of letters gets the name by which it is known again: the last term of its sum has no end."""


def on_post_build(config: MkDocsConfig) -> None:
    """Raises PluginError where the theme's search is another."""
    workers = sorted(Path(config.site_dir, "assets", "javascripts", "workers").glob("search.*.js"))
    if not workers:
        raise PluginError("the theme's search has no worker where it was: is what this mends still needed?")
    for path in workers:
        mended, number = NAMED.subn(r'\1+","', path.read_text(encoding="utf-8"))
        if number != 1:
            raise PluginError(f"{path.name}: lunr's TokenSet.toString is not as it was: is what it mends still needed?")
        path.write_text(mended, encoding="utf-8")
