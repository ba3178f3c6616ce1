"""Links: those within the tree lead somewhere, and addresses are written so that everybody can open them. CI opens them (docs.yml)."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import urlsplit

from .blocks import PAGES, ROOT, prose_of, text_of

# What pages are made of, too; pictures and workflows are no pages.
SOURCES = sorted(
    {
        *PAGES,
        *(path.relative_to(ROOT).as_posix() for end in ("md", "html") for path in (ROOT / "scripts").glob(f"*.{end}")),
        *(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("*.html")),
        *(
            path.relative_to(ROOT).as_posix()
            for path in (ROOT / "examples").rglob("*")
            if path.suffix in (".py", ".ipynb")
        ),
        "CITATION.cff",
    }
)
_ADDRESS = re.compile(r"\b(?:https?|ftp|file)://[^\s<>\"'`|\\)\]}]*")
_LINK = re.compile(r"(?<!\\)\]\(([^)\s]+)\)")
# Where packages come from: what is there today is another file tomorrow, and the name of a package says it.
REGISTRIES = (
    "pypi.org", "pypi.python.org", "pythonhosted.org", "anaconda.org", "conda-forge.org", "download.pytorch.org", "npmjs.org", "npmjs.com",
)  # fmt: skip
_OF_A_MACHINE = re.compile(
    r"(?<![\w.])(?:/(?:home|root|Users|mnt|work|tmp)/\w|[A-Z]:\\\\?\w)|\b(?:localhost|127\.0\.0\.1)\b"
)


class Address(NamedTuple):
    where: str
    url: str


def addresses(page: str, text: str) -> Iterator[Address]:
    for found in _ADDRESS.finditer(text):
        yield Address(f"{page}:{text.count(chr(10), 0, found.start()) + 1}", found[0].rstrip(".,;:"))


def fault(url: str) -> str:
    """What is wrong with its form, or nothing."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme != "https":
        return "must begin with https"
    if "." not in host or host.replace(".", "").isdigit() or host.endswith((".local", ".internal", ".lan")):
        return "must name a host that everybody reaches"
    if parts.port or parts.username or parts.query:
        return "must have no port, user or query"
    if any(host == one or host.endswith(f".{one}") for one in REGISTRIES):
        return "must name no registry of packages"
    thread = re.fullmatch(r"/[\w.-]+/[\w.-]+/(?:pull|issues)/(\w+)", parts.path)
    if host == "github.com" and thread and not thread[1].isdigit():
        return "must have the number of a thread"
    return ""


def same(url: str) -> str:
    """What two ways to write one address have in common; a thread of GitHub has two paths."""
    parts = urlsplit(url.lower())
    host, path = (parts.hostname or "").removeprefix("www."), parts.path.rstrip("/")
    return f"{host}{re.sub(r'/(pull|issues)/(?=[0-9]+$)', '/thread/', path)}#{parts.fragment}"


FOUND = [one for page in SOURCES for one in addresses(page, text_of(page))]


def test_every_address_is_one_that_everybody_can_open() -> None:
    wrong = [f"{where}: {url} {why}" for where, url in FOUND if "www.w3.org" not in url and (why := fault(url))]
    assert wrong == []
    assert len({url for _, url in FOUND}) >= 5


def test_an_address_is_written_one_way() -> None:
    ways: defaultdict[str, set[str]] = defaultdict(set)
    for _, url in FOUND:
        ways[same(url)].add(url)
    assert [written for written in ways.values() if len(written) > 1] == []


def test_a_link_to_a_thread_has_its_number_as_text() -> None:
    pattern = re.compile(r"\[([^\]]+)\]\(https://github\.com/[^/]+/([^/]+)/(?:pull|issues)/(\d+)\)")
    found = [(page, *one) for page in PAGES for one in pattern.findall(text_of(page))]
    assert found
    assert [(page, text) for page, text, name, number in found if text != f"{name}#{number}"] == []


def test_no_page_names_a_path_of_one_machine() -> None:
    assert [(page, match[0]) for page in SOURCES for match in _OF_A_MACHINE.finditer(text_of(page))] == []


def test_links_within_the_tree_lead_somewhere() -> None:
    markdown = [page for page in PAGES if page.endswith(".md")]
    assert [(page, link) for page in markdown for link in _dead_links(page)] == []


def _dead_links(page: str) -> Iterator[str]:
    for link in _LINK.findall(re.sub(r"`[^`\n]*`", "", prose_of(page))):
        name, _, anchor = link.partition("#")
        if ":" in name:
            continue
        file = (ROOT / page).parent / name if name else ROOT / page
        if not file.exists() or (
            anchor and file.suffix == ".md" and anchor not in anchors(file.read_text(encoding="utf-8"))
        ):
            yield link


def anchors(text: str) -> set[str]:
    """Of the headings, as GitHub and MyST make them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_faults_are_told() -> None:
    for url in (
        "http://github.com/a/b", "https://localhost/x", "https://10.0.0.1/x", "https://host.internal/x", "https://github.com:8443/a",
        "https://pypi.org/project/torch", "https://files.pythonhosted.org/x.whl", "https://me@github.com/a", "file:///x",
        "https://github.com/pytorch/pytorch/issues/NNN", "https://github.com/search?q=x",
    ):  # fmt: skip
        assert fault(url), url
    assert fault("https://github.com/pytorch/pytorch/pull/191142") == ""
    assert same("https://github.com/a/b/issues/7/") == same("https://www.github.com/a/b/pull/7")
    assert same("https://github.com/a/b/issues/7") != same("https://github.com/a/b/issues/8")
    for text in ("in /home/me/x", "see /Users/x", r"C:\Users", "http://localhost:8000"):
        assert _OF_A_MACHINE.search(text), text
    assert not _OF_A_MACHINE.search("src/home/x and homework/tmp/x")
    assert anchors("# What is no rule\n```python\n# a comment\n```\n## `clamp`: 1.0?\n") == {
        "what-is-no-rule",
        "clamp-10",
    }
