"""Prints the tests of what changed since `main` of the origin, for `make test-quick`.

A room of the core has its tests in a folder of `tests/`, a package beside its sources,
a page in `tests/project/documentation`. The rules for all files come with any change.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parent.parent
ALWAYS = ("tests/project/test_structure.py", "tests/project/test_public_names.py")
PAGES = "tests/project/documentation"
ROOMS = {
    "features": "tests/sessions",
    "options": "tests/sessions",
    "plugin": "tests/contract",
    "publish": "tests/compiling/publication",
}
"""Folder of the tests of a room, where it has another name."""


def list_changed() -> list[str]:
    """Return the files that differ from the branch's origin, or from the last commit
    where there is none.
    """

    def git(*arguments: str) -> str:
        command = ["git", *arguments]
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=False
        )
        return done.stdout

    base = git("merge-base", "HEAD", "origin/main").strip() or "HEAD"
    changed = git("diff", "--name-only", "--no-renames", base)
    new = git("ls-files", "--others", "--exclude-standard")
    return [*changed.splitlines(), *new.splitlines()]


def find_tests(file: str) -> Iterator[str]:
    """Yield the tests of a file, as arguments of pytest."""
    path = PurePosixPath(file)
    match path.parts:
        case ("epctx_core", room, *_, _):
            yield ROOMS.get(room, f"tests/{room}")
        case ("epctx_core", _):
            yield "tests/contract"
        case ("plugins", package, "src" | "native", *_):
            yield f"plugins/{package}/tests"
        case ("plugins" | "tests", *_, name) if name.startswith("test_"):
            yield file
        case ("docs", *_) | ("README.md" | "mkdocs.yml",):
            yield PAGES


def main() -> int:
    """Print the folders and files, each once."""
    found = {test for file in list_changed() for test in find_tests(file)}
    there = sorted(test for test in {*found, *ALWAYS} if (ROOT / test).exists())

    # Pytest collects a file that is named beside its folder twice.
    folders = {test for test in there if not test.endswith(".py")}
    print(
        *(
            test
            for test in there
            if not any(str(above) in folders for above in PurePosixPath(test).parents)
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
