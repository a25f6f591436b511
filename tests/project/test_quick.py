"""`make test-quick` runs the tests of what changed."""

from __future__ import annotations

import runpy

import pytest
from support.folders import ROOT

QUICK = runpy.run_path(str(ROOT / ".ci/quick.py"))


@pytest.mark.parametrize(
    ("file", "tests"),
    [
        ("epctx_core/verify/subject.py", ["tests/verify"]),
        ("epctx_core/publish/files.py", ["tests/compiling/publication"]),
        ("epctx_core/errors.py", ["tests/contract"]),
        ("plugins/epctx-files/src/epctx_files/seal.py", ["plugins/epctx-files/tests"]),
        ("tests/graph/test_if.py", ["tests/graph/test_if.py"]),
        ("tests/support/routes.py", []),
        ("docs/how-to/models/files.md", ["tests/project/documentation"]),
        ("Makefile", []),
    ],
)
def test_a_changed_file_has_its_tests(file, tests):
    assert list(QUICK["find_tests"](file)) == tests


def test_each_room_of_the_core_has_a_folder_of_tests():
    rooms = [path.parent.name for path in ROOT.glob("epctx_core/*/__init__.py")]
    folders = {
        folder
        for room in rooms
        for folder in QUICK["find_tests"](f"epctx_core/{room}/m.py")
    }

    assert len(rooms) > 8
    assert [folder for folder in folders if not (ROOT / folder).is_dir()] == []
