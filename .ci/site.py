"""Builds the documentation site strictly: `python .ci/site.py FOLDER`.

MkDocs reads one folder, but pages link to READMEs of packages and to other files of the
repository, by paths that a code host follows. The pages and these files are copied to
`build/pages` with their links adapted; mkdocs.yml names that folder.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "build/pages"
SOURCES = (
    "docs/**/*",
    "plugins/*/README.md",
    "examples/*.py",
    "examples/README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
)
_LINK = re.compile(r"(?<=\]\()[^)#:\s]+")


def get_address(source: Path) -> Path:
    """Return the path of a file of the repository below the site's pages."""
    path = source.relative_to(ROOT)
    if path == Path("README.md"):
        return Path("index.md")
    if path == Path("examples/README.md"):
        return Path("examples.md")
    if path.parts[0] == "plugins":
        return Path("packages", f"{path.parts[1]}.md")
    return path.relative_to("docs") if path.parts[0] == "docs" else path


def adapt_links(page: Path) -> str:
    """Return a page's text with links to files as they lie below the site's pages."""
    folder = get_address(page).parent

    def adapt(link: re.Match[str]) -> str:
        target = (page.parent / link[0]).resolve()
        # What is no file of the repository is code, or an error that MkDocs reports.
        if not target.is_file():
            return link[0]
        return Path(os.path.relpath(get_address(target), folder)).as_posix()

    return _LINK.sub(adapt, page.read_text("utf-8"))


def copy_pages() -> None:
    """Copy everything that the site shows."""
    shutil.rmtree(PAGES, ignore_errors=True)

    files = [path for pattern in SOURCES for path in ROOT.glob(pattern)]
    for path in filter(Path.is_file, files):
        copy = PAGES / get_address(path)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            copy.write_text(adapt_links(path), "utf-8")
        else:
            shutil.copyfile(path, copy)


def main(arguments: list[str]) -> int:
    """Build the site, and return MkDocs' exit code."""
    if len(arguments) != 1:
        raise SystemExit("usage: site.py FOLDER")
    copy_pages()

    target = Path(arguments[0]).resolve()
    command = ["-m", "mkdocs", "build", "--strict", "--site-dir", target]
    # Material warns of a successor of MkDocs in colours, whatever is built.
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environment, check=False
    )
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
