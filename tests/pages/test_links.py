"""Links: those within the tree lead somewhere, and addresses are written so that everybody can open them. CI opens them (docs.yml)."""

import re
from collections import defaultdict
from collections.abc import Iterator
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
# No address of one machine, and no registry: the file that is there today is another tomorrow, and the name of a package is enough.
_REGISTRIES = (
    r"(pypi\.(python\.)?org|pythonhosted\.org|anaconda\.org|conda-forge\.org|download\.pytorch\.org|npmjs\.(org|com))"
)
_HOST = re.compile(rf"(?!(.*\.)?{_REGISTRIES}$)[a-z0-9-]+(\.[a-z0-9-]+)*\.(?!local$|internal$|lan$)[a-z]+", re.I)
_OF_A_MACHINE = re.compile(
    r"(?<![\w.])(?:/(?:home|root|Users|mnt|work|tmp)/\w|[A-Z]:\\\\?\w)|\b(?:localhost|127\.0\.0\.1)\b"
)


def test_every_address_is_one_that_everybody_can_open_and_is_written_one_way() -> None:
    ways: defaultdict[str, set[str]] = defaultdict(set)
    for page in SOURCES:
        for url in _ADDRESS.findall(text_of(page)):
            url = url.rstrip(".,;:")
            parts = urlsplit(url)
            assert _HOST.fullmatch(parts.netloc), f"{page}: {url}"
            assert parts.scheme == "https" or "www.w3.org" in url, f"{page}: {url}"
            assert not parts.query, f"{page}: {url}"
            thread = re.sub(r"/(pull|issues)/(?=[0-9]+$)", "/thread/", parts.path.rstrip("/"))
            ways[f"{parts.netloc.removeprefix('www.')}{thread}#{parts.fragment}".lower()].add(url)
    assert len(ways) >= 3
    assert [urls for urls in ways.values() if len(urls) > 1] == []


def test_a_link_to_a_thread_has_its_number_as_text() -> None:
    pattern = re.compile(r"\[([^\]]+)\]\(https://github\.com/[^/]+/([^/]+)/(?:pull|issues)/(\d+)\)")
    threads = [(page, *groups) for page in PAGES for groups in pattern.findall(text_of(page))]
    assert threads
    assert [(page, text) for page, text, name, number in threads if text != f"{name}#{number}"] == []


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
