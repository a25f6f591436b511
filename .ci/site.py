"""Builds the documentation site strictly: `python .ci/site.py FOLDER`.

MkDocs reads one folder, but pages link to READMEs of packages and to other files of the
repository, by paths that a code host follows. The pages and these files are copied to
`build/pages` with their links adapted; mkdocs.yml names that folder. A notebook is
converted to a page, so that MkDocs needs no plugin for it, and copied for downloads.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "build/pages"
ADDRESSES = {
    "README.md": "index.md",
    "examples/README.md": "examples.md",
    "tests/README.md": "contributing/tests.md",
    "tests/contract/README.md": "contributing/contract-tests.md",
}
"""Addresses of pages that lie beside what they are about."""
# Guides answer what a search asks for; notebooks repeat their words, and pages about
# work on epctx itself are for few.
LOWERED = "---\nsearch:\n  boost: 0.3\n---\n\n"
SOURCES = (
    "docs/**/*",
    "plugins/*/README.md",
    "examples/*.py",
    "examples/*.yml",
    "examples/README.md",
    "tests/README.md",
    "tests/contract/README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
)
_LINK = re.compile(r"(?<=\]\()[^)#:\s]+")


def get_address(source: Path) -> Path:
    """Return the path of a file of the repository below the site's pages."""
    path = source.relative_to(ROOT)
    if address := ADDRESSES.get(path.as_posix()):
        return Path(address)
    if path.parts[0] == "plugins":
        return Path("reference/packages", f"{path.parts[1]}.md")
    if path.suffix == ".ipynb":
        path = path.with_suffix(".md")
    return path.relative_to("docs") if path.parts[0] == "docs" else path


def convert_notebook(notebook: Path) -> str:
    """Return a notebook as a page: its texts, its code, and what its cells show."""
    cells = json.loads(notebook.read_text("utf-8"))["cells"]
    return "\n\n".join(block for cell in cells for block in convert_cell(cell))


def convert_cell(cell: dict[str, Any]) -> Iterator[str]:
    """Yield the blocks of a cell: its source, and each output as readers see it."""
    source = "".join(cell["source"])
    if cell["cell_type"] != "code":
        yield source
        return
    yield f"```python\n{source}\n```"
    for output in cell["outputs"]:
        data = output.get("data", {})
        if "text/html" in data:
            yield "".join(data["text/html"])
        else:
            text = "".join(output.get("text") or data["text/plain"])
            yield f"```\n{text.rstrip()}\n```"


def adapt_links(page: Path, text: str) -> str:
    """Return a page's text with links to files as they lie below the site's pages."""
    folder = get_address(page).parent

    def adapt(link: re.Match[str]) -> str:
        target = (page.parent / link[0]).resolve()
        # What is no file of the repository is code, or an error that MkDocs reports.
        if not target.is_file():
            return link[0]
        return Path(os.path.relpath(get_address(target), folder)).as_posix()

    return _LINK.sub(adapt, text)


def make_page(source: Path) -> str:
    """Return a page or a notebook as MkDocs reads it."""
    if source.suffix == ".md":
        is_about_tests = source.is_relative_to(ROOT / "tests")
        return LOWERED * is_about_tests + adapt_links(source, source.read_text("utf-8"))

    title, _, text = adapt_links(source, convert_notebook(source)).partition("\n")
    # A link in the notebook's own text would lead to its page.
    download = f"This page is a notebook: [download it]({source.name})."
    return f"{LOWERED}{title}\n\n{download}\n{text}\n"


def copy_pages() -> None:
    """Copy everything that the site shows."""
    shutil.rmtree(PAGES, ignore_errors=True)

    files = [path for pattern in SOURCES for path in ROOT.glob(pattern)]
    for path in filter(Path.is_file, files):
        copy = PAGES / get_address(path)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix in {".md", ".ipynb"}:
            copy.write_text(make_page(path), "utf-8")
        if path.suffix != ".md":
            shutil.copyfile(path, copy.with_name(path.name))


def main(arguments: list[str]) -> int:
    """Build the site, and return MkDocs' exit code."""
    if len(arguments) != 1:
        raise SystemExit("usage: site.py FOLDER")
    copy_pages()

    target = Path(arguments[0]).resolve()
    command = ["-m", "mkdocs", "build", "--strict", "--site-dir", target]
    # Material and the plugin for redirects warn of a successor of MkDocs in colours,
    # whatever is built.
    quiet = {"NO_MKDOCS_2_WARNING": "1", "DISABLE_MKDOCS_2_WARNING": "true"}
    environment = {**os.environ, **quiet}
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environment, check=False
    )
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
