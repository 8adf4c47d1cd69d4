"""The elements that a page of `show` may have, whatever the profile contains."""

from html.parser import HTMLParser

TAGS = {
    *("html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "a", "ul", "li", "b", "span", "div", "footer"),
    *("table", "thead", "tbody", "tr", "th", "td", "code", "details", "summary", "svg", "path"),
}
ATTRIBUTES = {
    *("lang", "charset", "http-equiv", "content", "name", "class", "style", "title", "role", "aria-label", "scope"),
    *("viewbox", "preserveaspectratio", "d", "href"),
}


class Page(HTMLParser):
    """Tags, attributes, links and the text of a page."""

    def __init__(self, source: str):
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: list[str] = []
        self._inside: list[str] = []
        self.feed(source)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        self._inside.append(tag)

    def handle_endtag(self, tag):
        if tag in self._inside:
            while self._inside.pop() != tag:
                pass

    def handle_data(self, data):
        if "style" not in self._inside:
            self.texts.append(data)

    @property
    def text(self) -> str:
        return "".join(self.texts)


def check_inert(source: str) -> Page:
    """Nothing on the page runs, loads, or drives what shows it."""
    page = Page(source)
    assert set(page.tags) <= TAGS
    assert {name for name, _ in page.attributes} <= ATTRIBUTES
    links = [value for name, value in page.attributes if name == "href"]
    assert all(value.endswith(".html") and ":" not in value and "/" not in value for value in links)
    styles = [value for name, value in page.attributes if name == "style"]
    assert not [value for value in styles if "url" in value or "(" in value.replace("var(--", "")]
    assert all(c.isprintable() or c == "\n" for c in source)
    assert page.tags.count("style") == 1 and "url(" not in source.split("</style>")[0]
    return page
