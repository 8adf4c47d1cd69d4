"""Whether the links of a built site lead somewhere."""

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

LOADING = {
    ("script", "src"),
    ("img", "src"),
    ("img", "srcset"),
    ("source", "src"),
    ("source", "srcset"),
    ("iframe", "src"),
    ("object", "data"),
    ("embed", "src"),
    ("video", "src"),
    ("audio", "src"),
    ("use", "href"),
    ("image", "href"),
    ("link", "href"),
}
"""What a page loads: element and attribute."""

POINTING = {"canonical", "prev", "next", "alternate"}
"""Relations of a <link> that name a page and load nothing."""


class Page(HTMLParser):
    """Ids of a page, its links, and what it loads."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if "id" in values:
            self.ids.append(values["id"])
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag == "a" and "name" in values:
            self.ids.append(values["name"])
        for name, value in values.items():
            if (tag, name.removeprefix("xlink:")) in LOADING and values.get("rel") not in POINTING:
                self.loads.append(value)


def broken_links(site: Path, pages: dict[Path, Page], base_path: str = "/") -> list[str]:
    """`page: link` for each link, image and anchor of the pages (by file) that leads nowhere in the folder of the site.
    `base_path` is where the site is published. What lies on other servers is not asked."""
    broken = []
    for path, page in pages.items():
        for link in page.links + page.loads:
            target, anchor = urldefrag(link)
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            base = base_path if target.startswith(base_path) else "/"
            inside = unquote(parts.path)
            file = site / inside.removeprefix(base) if inside.startswith("/") else path.parent / inside
            file = (file if inside else path).resolve()
            file = file / "index.html" if file.is_dir() else file
            lost = anchor and file in pages and unquote(anchor) not in pages[file].ids
            if not file.is_file() or not file.is_relative_to(site) or lost:
                broken.append(f"{path.relative_to(site)}: {link}")
    return broken


def check_links(site: Path, base_path: str = "/") -> list[str]:
    """`broken_links` of every page below a folder, without the programs among its assets."""
    site = site.resolve()
    paths = [path for path in sorted(site.rglob("*.html")) if path.relative_to(site).parts[0] != "assets"]
    return broken_links(site, {path: Page(path) for path in paths}, base_path)
