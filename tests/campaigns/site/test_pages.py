"""The site has each page, in the navigation, and asks no other host for anything."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from support.folders import ROOT

import epctx_core
from epctx_core import plugin

DOCS = ROOT / "docs"
# What a browser requests without a click; links of <a> are followed by readers.
_REQUESTING = {
    "audio", "embed", "iframe", "img", "input", "link", "object", "script", "source",
    "track", "use", "video",
}  # fmt: skip


class Requests(HTMLParser):
    """Addresses that a page requests when it is shown."""

    def __init__(self, page):
        super().__init__()
        self.found = []
        self.feed(page.read_text("utf-8"))

    def handle_starttag(self, tag, attrs):
        if tag in _REQUESTING:
            names = {"src", "href", "srcset", "data", "poster"}
            self.found += [value for name, value in attrs if name in names and value]


def listed_in_navigation():
    text = (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:\n")[2]
    return re.findall(r": (\S+\.md)$", text, re.MULTILINE)


def test_each_page_notebook_and_readme_of_a_package_is_in_the_navigation_once():
    pages = [page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")]
    pages += [f"notebooks/{n.stem}.md" for n in DOCS.glob("notebooks/*.ipynb")]
    readmes = [
        f"reference/packages/{p.parent.name}.md"
        for p in ROOT.glob("plugins/*/README.md")
    ]
    others = ["CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "examples.md"]
    others += ["contributing/tests.md", "contributing/contract-tests.md"]

    assert sorted(listed_in_navigation()) == sorted([*pages, *readmes, *others])


def test_each_page_of_the_navigation_is_built(site):
    addresses = [page.removesuffix(".md") for page in listed_in_navigation()]

    assert [
        address
        for address in addresses
        if address != "index" and not (site / address / "index.html").is_file()
    ] == []
    assert (site / "index.html").is_file()


def test_an_address_that_a_page_had_before_leads_to_the_page(site):
    text = (ROOT / "mkdocs.yml").read_text("utf-8")
    moved = re.findall(r"^ {8}(\S+)\.md: (\S+)\.md$", text, re.MULTILINE)

    assert len(moved) > 100
    for old, new in moved:
        (address,) = re.findall(
            r'http-equiv="refresh" content="0; url=([^"]+)"',
            (site / old / "index.html").read_text("utf-8"),
        )
        assert (site / old / address).resolve() == site.resolve() / new


def test_the_page_of_a_notebook_has_its_texts_code_and_tables_and_the_notebook(site):
    page = site / "notebooks/compile-look-measure/index.html"
    text = page.read_text("utf-8")

    assert re.search(r'<h2 id="compile">Compile<', text)
    assert "compile_to_file" in text
    assert "QNN does not take float here" in text
    assert "<tr><th>name</th><th>ep</th><th>nodes</th></tr>" in text
    assert 'src="../../images/report.png"' in text
    (link,) = re.findall(r'href="([^"]+)">download it<', text)
    assert (page.parent / link).is_file()


def test_no_page_requests_anything_of_another_host(site):
    requests = {
        f"{page.relative_to(site)}: {address}"
        for page in site.rglob("*.html")
        for address in Requests(page).found
        if re.match(r"(?:https?:)?//", address)
    }

    assert requests == set()


def test_no_style_sheet_requests_anything_of_another_host(site):
    sheets = list(site.rglob("*.css"))

    assert len(sheets) >= 2
    assert [
        sheet.name
        for sheet in sheets
        if re.search(
            r"(?:url\(|@import )[\"']?(?:https?:)?//", sheet.read_text("utf-8")
        )
    ] == []


def test_no_page_has_what_the_theme_loads_from_another_host_when_it_is_seen(site):
    # Material fetches mermaid and MathJax when a page has an element of theirs.
    assert [
        page
        for page in site.rglob("*.html")
        if re.search(r'class="(?:mermaid|arithmatex)"', page.read_text("utf-8"))
    ] == []


def test_the_reference_has_each_public_name_of_the_host_and_of_the_contract():
    for page, module in (("api", epctx_core), ("plugin-api", plugin)):
        text = (DOCS / f"reference/{page}.md").read_text("utf-8")
        described = re.findall(r"^::: ([\w.]+)\.(\w+)$", text, re.MULTILINE)
        names = [name for home, name in described if home != "epctx_kernels"]

        assert sorted(names) == sorted(set(module.__all__) - {"__version__"})
