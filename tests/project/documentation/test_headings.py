"""Whoever meets a hook, a state, an error or an option finds it by its name in the
documents.
"""

from __future__ import annotations

import ast
import inspect
import re
from importlib.metadata import entry_points

import pytest
from documentation import command_line
from documentation.blocks import sections
from documentation.tables import with_tables
from epctx_conformance.class_rules import find_mistakes
from support.pages import DOCS, read_page

from epctx_core import PluginState, errors, plugin
from epctx_core.plugin import ExecutionProvider
from epctx_core.plugin.hookspecs import CLASS_METHODS, HOOKS
from epctx_core.registry.guard import find_problem
from epctx_core.testing import GROUPS

pytestmark = pytest.mark.internal

PAGES_OF_HOOKS = ("hooks.md", "context-hooks.md")
PAGES_OF_CLASSES = ("ep-class-methods.md",)
PAGES_OF_OBJECTS = ("graph-objects.md", "context-objects.md")
REFERENCE = {
    heading: text
    for page in (*PAGES_OF_HOOKS, *PAGES_OF_CLASSES, *PAGES_OF_OBJECTS)
    for heading, text in sections(page).items()
}
HELPERS = {"supported_partitions", "number_nodes", "read_inputs", "write_blobs"}
OBJECTS = [
    "CompiledPartition", "ComputeCapability", "ContextNode", "ContextReader",
    "ContextWriter", "EPContextNode", "Extent", "GraphView", "NodeView", "Partition",
    "Payload", "PayloadView", "ProviderContext", "Refusal", "TensorType", "TensorView",
    "ValueInfo", "Workspace", "Cancellation", "ModelIdentity", "Engine",
    "PreparedModel", "OptimizedModel", "ProviderOption", "Availability", "BuildInfo",
    "Finding",
]  # fmt: skip
ERRORS = sections("errors.md")
ATTRIBUTES = sorted(name for name in ExecutionProvider.__annotations__)
CLASSES = sorted(
    name
    for name, value in vars(errors).items()
    if inspect.isclass(value) and issubclass(value, errors.EpctxError)
)
SHIPPED = sorted(
    (point.dist.name, option.name)
    for point in entry_points(group="epctx.execution_providers")
    if point.dist.name.startswith("epctx-sim-")
    for option in point.load().options
)


def test_the_reference_has_a_heading_for_each_name_of_the_contract_and_no_other():
    headings = [
        heading
        for page in (*PAGES_OF_HOOKS, *PAGES_OF_CLASSES, *PAGES_OF_OBJECTS)
        for heading in sections(page)
    ]

    assert sorted(headings) == sorted(
        [*HOOKS, *CLASS_METHODS, *ATTRIBUTES, *OBJECTS, *HELPERS]
    )


def test_the_overviews_are_the_tables_of_the_contract():
    hooks, methods = (
        re.findall(r"^\| `\w+` \|.*$", introduction(page), re.MULTILINE)
        for page in ("hooks.md", "ep-class-methods.md")
    )

    assert hooks == [overview_row(hook) for hook in HOOKS.values()]
    assert methods == [
        f"| `{method.name}` | {answer_in_words(method)} |"
        for method in CLASS_METHODS.values()
    ]


def introduction(page):
    """Return the text before the first heading below the title."""
    return read_page(page).partition("\n## ")[0]


def answer_in_words(hook):
    words = f"a list, each {hook.expected}" if hook.returns_list else hook.expected
    return f"{words}; or None" if hook.may_return_none else words


def overview_row(hook):
    needed = hook.needed_for
    cells = [
        f"`{hook.name}`",
        answer_in_words(hook),
        needed,
        "session" if hook.in_runs else "compile, load",
    ]
    return "|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|"


def lacking(texts, *parts):
    """Return what is missing: by heading, the parts that its text has not."""
    return {
        name: gone
        for name, text in texts.items()
        if (gone := [part for part in parts if part not in text])
    }


def test_each_hook_is_described_in_full():
    texts = {name: REFERENCE[name] for name in HOOKS}

    unsigned = [
        h for h in HOOKS if f"`{h}({', '.join(HOOKS[h].arguments)})`" not in texts[h]
    ]
    assert unsigned == []
    assert lacking(texts, "**When.**", "**Rules.**", "**Errors.**", "```python") == {}


def test_each_class_method_is_described_with_its_signature():
    texts = {name: REFERENCE[name] for name in CLASS_METHODS}

    unsigned = [
        m
        for m in CLASS_METHODS
        if f"`{m}({', '.join(CLASS_METHODS[m].arguments)})`" not in texts[m]
    ]
    assert unsigned == []
    assert lacking(texts, "**When.**", "**Rules.**", "```python") == {}


@pytest.mark.parametrize("name", sorted({*HOOKS, *CLASS_METHODS}))
def test_an_example_of_the_reference_keeps_the_contract(name):
    (example,) = re.findall(r"```python\n(.*?)```", REFERENCE[name], re.DOTALL)
    names = vars(plugin).copy()

    exec(  # noqa: S102 - the page's own code
        f"class Example(ExecutionProvider):\n    name = 'Example'\n{indented(example)}",
        names,
    )

    # Required hooks are looked for last.
    fault, _ = find_problem(names["Example"]) or ("", "")
    assert name in vars(names["Example"])
    assert not fault or re.fullmatch(r"the required hook \w+ is missing", fault)
    assert list(find_mistakes(names["Example"])) == []


def test_each_member_of_what_hooks_are_given_and_give_is_described():
    described = {
        name: sorted(
            re.findall(
                r"^\| `(\w+)(?:\(.*\))?` \| .+ \|$", REFERENCE[name], re.MULTILINE
            )
        )
        for name in OBJECTS
    }

    assert described == {name: members(getattr(plugin, name)) for name in OBJECTS}


def members(cls):
    """Return the public names that a class has of its own."""
    inherited = (
        {*dir(tuple), "count", "index"} - {*cls.__annotations__}
        if issubclass(cls, tuple)
        else set()
    )
    return sorted(
        n
        for n in {*cls.__annotations__, *vars(cls)} - inherited
        if not n.startswith("_")
    )


def test_each_error_has_its_heading_with_what_to_do():
    texts = {name: ERRORS[name] for name in CLASSES if name != "EpctxError"}

    assert lacking(texts, "**When.**", "**What to do.**") == {}
    assert [
        name
        for name, text in texts.items()
        if not re.search(r"^> .+", text, re.MULTILINE)
    ] == []


def test_no_error_is_described_that_is_not_there():
    assert set(ERRORS) == set(CLASSES)


def test_the_exit_codes_of_errors_are_the_command_lines():
    from epctx_cli.exit_codes import exit_code

    said = {
        name: int(re.search(r"Exit code (\d)", ERRORS[name])[1])
        for name in CLASSES
        if name != "EpctxError"
    }

    assert said == {name: exit_code(getattr(errors, name)("m")) for name in said}


def test_each_state_of_a_plugin_has_its_heading():
    assert {state.value for state in PluginState} - set(
        sections("plugins.md", level=3)
    ) == set()


def test_the_table_of_session_options_is_the_one_that_the_code_gives():
    page = read_page("options.md")

    assert with_tables(page) == page, "run: make tables"


def test_each_option_of_a_shipped_ep_is_named_in_its_readme():
    folder = DOCS.parent / "plugins"

    assert len(SHIPPED) > 20
    assert [
        (ep, name)
        for ep, name in SHIPPED
        if f"`{name}`" not in (folder / ep / "README.md").read_text("utf-8")
    ] == []


def test_each_group_of_checks_is_described():
    text = read_page("conformance.md")

    assert [group for group in GROUPS if f"`{group}`" not in text] == []


def test_the_page_of_the_command_line_has_each_command():
    page = command_line.PAGE.read_text("utf-8")

    assert command_line.fill_page(page) == page, "run: make tables"


def test_links_between_documents_lead_somewhere():
    pages = [
        *DOCS.rglob("*.md"),
        DOCS.parent / "README.md",
        *DOCS.parent.glob("plugins/*/README.md"),
    ]

    broken = {
        f"{page.name}: {target}"
        for page in pages
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text("utf-8"))
        if not (page.parent / target).exists()
    }

    assert broken == set()


def test_python_in_the_documents_is_python():
    pages = [*DOCS.rglob("*.md"), DOCS.parent / "README.md"]

    for page in pages:
        for text in re.findall(
            r"^```python\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL
        ):
            ast.parse(text if not text.startswith("    ") else f"class Body:\n{text}")


def indented(text):
    return "".join(
        f"    {line}" if line.strip() else line
        for line in text.splitlines(keepends=True)
    )


def test_a_page_has_at_most_2500_words_unless_it_is_a_table_made_from_the_code():
    made = {"options.md"}
    lengths = {
        page.name: len(page.read_text("utf-8").split()) for page in DOCS.rglob("*.md")
    }

    assert len(lengths) > 40
    assert {name for name, length in lengths.items() if length > 2500} == made
