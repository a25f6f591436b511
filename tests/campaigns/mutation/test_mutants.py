"""A mutant is one small change, and is found again in another file and at another
line.
"""

from __future__ import annotations

import json

import pytest
from mutation.__main__ import BASELINE
from mutation.mutants import mutants_of

SOURCE = b'''
LIMIT = 4


class Box:
    """Holds things."""

    def add(self, thing: "Thing" = None, *, most: int = 9) -> bool:
        """Put a thing in."""
        if thing and self.open or not self.full:
            self.things.append(thing)
        \xc3\xa4 = "\xc3\xa4" == thing; size: "int" = 2
        for each in [t for t in self.things if t.old]:
            if len(self.things) > size is not None:
                raise ValueError(f"more than {most - 1}")
            continue
        return True
'''


def changes(source):
    return [mutant.name for mutant in mutants_of(source)]


def test_every_kind_of_change_is_made_and_no_text_annotation_or_default_is_changed():
    assert sorted(changes(SOURCE)) == sorted(
        f"Box.add: {change}"
        for change in (
            (
                "thing and self.open or not self.full -> (thing and self.open) and "
                "(not self.full)"
            ),
            (
                "thing and self.open or not self.full -> (not (thing and self.open or "
                "not self.full))"
            ),
            "thing and self.open -> thing or self.open",
            "not self.full -> (self.full)",
            "self.things.append(thing) -> removed",
            "\"ä\" == thing -> 'ä' != thing",
            "\"ä\" -> 'ä?'",
            "2 -> 3",
            "t.old -> (not (t.old))",
            (
                "len(self.things) > size is not None -> len(self.things) >= size is "
                "not None"
            ),
            'raise ValueError(f"more than {most - 1}") -> removed',
            "continue -> removed",
            "True -> False",
        )
    )


@pytest.mark.parametrize("mutant", mutants_of(SOURCE), ids=lambda mutant: mutant.name)
def test_a_change_leaves_a_module_and_all_else_as_it_was(mutant):
    changed = mutant.applied(SOURCE)

    compile(changed, "changed.py", "exec")
    assert changed != SOURCE
    rest = len(SOURCE) - mutant.end
    assert (changed[: mutant.start], changed[-rest:]) == (
        SOURCE[: mutant.start],
        SOURCE[-rest:],
    )


def test_names_are_the_same_wherever_the_function_stands_and_equal_texts_are_counted():
    assert changes(b"import os\n\n\n" + SOURCE.replace(b"LIMIT = 4\n", b"")) == changes(
        SOURCE
    )
    assert changes(b"def f():\n    a(1)\n    a(1)\n") == [
        "f: a(1) -> removed",
        "f: 1 -> 2",
        "f: a(1) -> removed (1)",
        "f: 1 -> 2 (1)",
    ]


def test_every_mutant_of_the_baseline_that_may_survive_has_a_reason():
    mutants = json.loads(BASELINE.read_text("utf-8"))["mutants"]

    assert [
        each["mutant"]
        for each in mutants
        if each["outcome"] == "survived" and not each.get("why")
    ] == []
