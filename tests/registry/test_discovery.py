"""Discovery: what is found by entry points, in what order, and what wrong metadata
does.
"""

from __future__ import annotations

import sys

import pytest

from epctx_core import PluginState, Registry
from epctx_core.errors import PluginError
from epctx_core.plugin import Purpose


def by_name(records):
    return {record.name: record for record in records}


TWO_EPS = """
from epctx_core.plugin import ExecutionProvider, hookimpl

class A(ExecutionProvider):
    name = "A"

    @hookimpl
    def get_capability(self, graph):
        return []

    @hookimpl
    def compile(self, partitions):
        return []

class B(A):
    name = "B"
"""


def test_a_distribution_is_found_with_its_name_sources_version_and_class(packages):
    packages.install(
        "epctx-a", "AExecutionProvider", sources=["A", "a.old"], version="2.1"
    )

    (record,) = Registry().records()

    assert record.as_dict() == {
        "name": "AExecutionProvider",
        "sources": ["AExecutionProvider", "A", "a.old"],
        "distribution": "epctx-a",
        "version": "2.1",
        "vendor": None,
        "simulated": None,
        "finder": None,
        "state": "discovered",
        "reason": "",
        "availability": {},
    }
    assert record.entry_point == "epctx_a:Provider"


def test_discovery_imports_no_plugin(packages):
    module = packages.install("epctx-a", "AExecutionProvider", sources=["A"])
    registry = Registry()

    registry.records()
    registry.available()
    registry.resolve("A")
    registry.explain_missing("Nobody")
    routed = registry.route("A")

    assert routed is not None
    assert module not in sys.modules


def test_nothing_is_read_before_the_first_question(packages):
    registry = Registry()
    packages.install("epctx-late", "LateExecutionProvider")

    names = registry.available()

    assert names == ["LateExecutionProvider", "CPUExecutionProvider"]


def test_a_registry_without_entry_points_finds_nothing(packages):
    packages.install("epctx-a", "AExecutionProvider")

    registry = Registry(entry_points=False)

    assert registry.records() == []
    assert registry.available() == ["CPUExecutionProvider"]


def test_the_order_is_by_ep_type_then_distribution_whatever_the_file_system_gives(
    packages,
):
    for distribution, name in [
        ("z-one", "B"),
        ("epctx-m", "C"),
        ("a-two", "B"),
        ("k", "A"),
    ]:
        packages.install(distribution, name)

    order = [(record.name, record.distribution) for record in Registry().records()]

    assert order == [("A", "k"), ("B", "a-two"), ("B", "z-one"), ("C", "epctx-m")]


def test_of_one_distribution_found_twice_the_first_on_the_path_wins(packages):
    packages.install("epctx-a", "AExecutionProvider", version="1.0")
    first = packages.earlier_on_path()
    first.install("Epctx_A", "AExecutionProvider", version="2.0")

    (record,) = Registry().records()

    assert (record.version, record.state) == ("2.0", PluginState.DISCOVERED)


def test_a_version_hidden_by_one_without_entry_points_is_not_found(packages):
    packages.install("epctx-a", "AExecutionProvider", version="1.0")
    first = packages.earlier_on_path()
    first.write_metadata("epctx-a", "[console_scripts]\na = a:main\n", version="2.0")

    assert Registry().records() == []


@pytest.mark.parametrize("leftover", ["epctx_a-0.9.dist-info", "epctx_a.egg-info"])
def test_a_folder_without_metadata_that_an_upgrade_left_hides_no_plugin(
    packages, leftover
):
    packages.install("epctx-a", "AExecutionProvider", version="1.0")
    (packages.earlier_on_path().folder / leftover).mkdir()
    (packages.folder / "epctx_a-0.1.dist-info").mkdir()

    (record,) = Registry().records()

    assert (record.version, record.state) == ("1.0", PluginState.DISCOVERED)


def test_what_pip_left_of_a_version_that_it_removed_is_not_a_second_plugin(packages):
    packages.install("epctx-a", "AExecutionProvider", version="1.0")
    removed = packages.folder / "epctx_a-1.0.dist-info"
    removed.rename(removed.with_name("~pctx_a-1.0.dist-info"))
    packages.install("epctx-a", "AExecutionProvider", version="2.0")

    (record,) = Registry().records()

    assert (record.version, record.state) == ("2.0", PluginState.DISCOVERED)


def test_an_entry_of_the_path_that_is_not_a_path_disturbs_no_plugin(packages):
    packages.install("epctx-a", "AExecutionProvider")
    sys.path.insert(0, "\0")

    (record,) = Registry().records()

    assert record.state is PluginState.DISCOVERED


@pytest.mark.parametrize(
    ("entry_points", "why"),
    [
        (
            "[epctx.execution_providers]\nBadExecutionProvider\n",
            "not of the form module:Class",
        ),
        (
            b"[epctx.execution_providers]\nBad\xff = bad:Provider\n",
            "may only have letters",
        ),
        (
            "[epctx.execution_providers]\nBad = not a class\n",
            "not of the form module:Class",
        ),
        (
            "[epctx.execution_providers]\nBad = module_only\n",
            "not of the form module:Class",
        ),
        (
            "[epctx.execution_providers]\nBad/../Name = bad:Provider\n",
            "may only have letters",
        ),
        (
            "[epctx.execution_providers]\nCPUExecutionProvider = bad:Provider\n",
            "is built in",
        ),
        ("[epctx.ep_sources]\nBad = bad:Provider\n", "does not have"),
    ],
)
def test_wrong_metadata_is_a_broken_record_and_disturbs_no_other_distribution(
    packages, entry_points, why
):
    packages.write_metadata("epctx-bad", entry_points)
    packages.install("epctx-good", "GoodExecutionProvider", sources=["Good"])

    broken, good = sorted(Registry().records(), key=lambda record: record.distribution)

    assert (broken.distribution, broken.state) == ("epctx-bad", PluginState.BROKEN)
    assert why in broken.reason
    assert good.state is PluginState.DISCOVERED
    assert Registry().available() == ["GoodExecutionProvider", "CPUExecutionProvider"]


@pytest.mark.parametrize(
    "metadata", [b"", b"Metadata-Version: 2.1\nVersion: 1.0\n", b"\xff\xfe\x00Name"]
)
def test_a_distribution_whose_metadata_have_no_name_is_called_as_its_folder(
    packages, metadata
):
    packages.install("epctx-a", "A")
    packages.install("epctx-b", "B")
    (packages.folder / "epctx_a-1.0.dist-info" / "METADATA").write_bytes(metadata)

    found = {(r.name, r.distribution, r.state) for r in Registry().records()}

    assert found == {
        ("A", "epctx-a", PluginState.DISCOVERED),
        ("B", "epctx-b", PluginState.DISCOVERED),
    }


@pytest.mark.parametrize(
    "metadata",
    [b"Metadata-Version: 2.1\nName: epctx-a\n", b"Name: epctx-a\nVersion: \n"],
)
def test_a_distribution_without_a_version_is_found_without_one(packages, metadata):
    packages.install("epctx-a", "A")
    (packages.folder / "epctx_a-1.0.dist-info" / "METADATA").write_bytes(metadata)

    (record,) = Registry().records()

    assert (record.version, record.state, record.origin) == (
        None,
        PluginState.DISCOVERED,
        "epctx-a",
    )


def test_undecodable_entry_points_of_a_package_that_has_no_ep_are_none_of_our_business(
    packages,
):
    packages.write_metadata("other", b"[console_scripts]\n\xff = other:main\n")

    assert Registry().records() == []


def test_a_complaint_about_a_source_key_does_not_hide_the_ep_of_that_name(packages):
    packages.write_metadata("epctx-bad", "[epctx.ep_sources]\nGood = bad:Provider\n")
    packages.install("epctx-good", "GoodExecutionProvider")
    registry = Registry()

    assert registry.resolve("Good").distribution == "epctx-good"


def test_a_complaint_does_not_make_an_ep_of_the_same_name_a_duplicate(packages):
    packages.write_metadata("epctx-bad", "[epctx.ep_sources]\nGood = bad:Provider\n")
    packages.install("epctx-good", "Good")

    good = next(
        record for record in Registry().records() if record.distribution == "epctx-good"
    )

    assert good.state is PluginState.DISCOVERED


def test_spaces_in_an_entry_point_do_not_matter(packages):
    packages.write_metadata(
        "epctx-a",
        (
            "[epctx.execution_providers]\nA = epctx_a : "
            "Provider\n[epctx.ep_sources]\nOld = epctx_a:Provider\n"
        ),
    )

    (record,) = Registry().records()

    assert record.entry_point == "epctx_a:Provider"
    assert record.sources == ("A", "Old")


def test_a_source_key_names_its_ep_by_class_or_by_name(packages):
    packages.write_metadata(
        "epctx-a",
        "[epctx.execution_providers]\nA = epctx_a:A [npu]\nB = epctx_a:B\n"
        "[epctx.ep_sources]\nOld = A\nOlder = epctx_a:A\nOther = B\n",
        metadata="Metadata-Version: 2.1\nName: epctx-a\nVersion: 1.0\n"
        "Provides-Extra: npu\n",
    )
    packages.write_metadata("npu", "")

    first, second = Registry().records()

    assert first.sources == ("A", "Old", "Older")
    assert second.sources == ("B", "Other")


def test_a_source_key_of_nobody_says_what_the_package_lacks(packages):
    packages.write_metadata(
        "epctx-a",
        "[epctx.execution_providers]\nA = epctx_a:A\n[epctx.ep_sources]\nOld = B\n",
    )

    _, broken = Registry().records()

    assert broken.state is PluginState.BROKEN
    assert broken.reason == (
        "its group epctx.ep_sources gives the source 'Old' to 'B', and its group "
        "epctx.execution_providers does not have an EP of that name or class"
    )


def test_refresh_finds_what_was_installed_since_and_marks_what_is_gone_as_removed(
    packages,
):
    packages.install("epctx-a", "A")
    registry = Registry()
    registry.records()
    packages.install("epctx-b", "B")
    packages.uninstall("epctx-a")
    before = [record.name for record in registry.records()]

    registry.refresh()

    assert before == ["A"]
    a, b = registry.records()
    assert (a.state, a.reason) == (
        PluginState.REMOVED,
        "epctx-a 1.0 is not installed any more",
    )
    assert b.state is PluginState.DISCOVERED
    assert registry.available() == ["B", "CPUExecutionProvider"]


def test_a_plugin_that_was_imported_and_then_uninstalled_is_removed(packages):
    packages.install("epctx-a", "A")
    registry = Registry()
    registry.load(registry.resolve("A"))
    packages.uninstall("epctx-a")

    registry.refresh()

    (record,) = registry.records()
    assert record.state is PluginState.REMOVED
    assert "not installed any more" in record.reason
    assert registry.available() == ["CPUExecutionProvider"]


def test_a_plugin_that_is_installed_again_is_as_good_as_before(packages):
    packages.install("epctx-a", "A")
    registry = Registry()
    cls = registry.load(registry.resolve("A"))
    packages.uninstall("epctx-a")
    registry.refresh()
    with pytest.raises(
        PluginError, match=r"removed.*epctx-a 1\.0 is not installed any more"
    ) as caught:
        registry.resolve("A")
    packages.install("epctx-a", "A")

    registry.refresh()

    assert registry.load(registry.resolve("A")) is cls
    assert "Install epctx-a again" in caught.value.hint


def test_a_removed_plugin_is_what_an_error_about_its_source_tells_of(packages):
    packages.install("epctx-a", "A")
    registry = Registry()
    registry.records()
    packages.uninstall("epctx-a")

    registry.refresh()

    assert registry.route("A") is None
    why, _ = registry.explain_missing("A")
    assert why.startswith("No EP accepts the source 'A': A (epctx-a 1.0) can't be used")


def test_a_plugin_that_was_imported_and_then_upgraded_needs_a_restart_and_goes_on_as_it_is(
    packages,
):
    packages.install("epctx-a", "A", version="1.0", sources=["Old"])
    registry = Registry()
    cls = registry.load(registry.resolve("A"))
    packages.install("epctx-a", "A", version="1.1", sources=["New"])

    registry.refresh()

    (record,) = registry.records()
    assert (record.state, record.version) == (PluginState.RESTART_NEEDED, "1.0")
    assert (
        record.reason
        == "epctx-a 1.1 is installed, but this process has imported epctx-a 1.0"
    )
    assert registry.load(registry.resolve("A")) is cls
    assert registry.route("Old").name == "A"
    assert registry.availability(record, Purpose.RUN).available
    assert registry.resolve("A").state is PluginState.RESTART_NEEDED


def test_an_imported_plugin_whose_upgrade_has_wrong_metadata_goes_on(packages):
    packages.install("epctx-a", "A", version="1.0")
    registry = Registry()
    cls = registry.load(registry.resolve("A"))
    packages.install("epctx-a", "A", version="1.1", value="epctx_a")

    registry.refresh()

    record = registry.resolve("A")
    assert (record.state, record.version) == (PluginState.RESTART_NEEDED, "1.0")
    assert (
        "epctx-a 1.1 is installed, but this process has imported epctx-a 1.0"
        in record.reason
    )
    assert registry.load(record) is cls


@pytest.mark.parametrize("imported", [True, False])
def test_an_ep_that_an_upgrade_does_not_bring_any_more_says_so(packages, imported):
    packages.install("epctx-a", "A", version="1.0")
    registry = Registry()
    record = registry.resolve("A")
    if imported:
        registry.load(record)
    packages.install("epctx-a", "B", version="1.1", value="epctx_a_next:Provider")

    registry.refresh()

    with pytest.raises(
        PluginError, match=r"epctx-a 1\.1, which is installed now, does not provide it"
    ) as caught:
        registry.resolve("A")
    assert "not installed any more" not in caught.value.message
    assert registry.resolve("B").state is PluginState.DISCOVERED


def test_an_ep_that_an_upgrade_adds_to_a_module_in_memory_says_that_it_needs_a_restart(
    packages,
):
    packages.install("epctx-a", "A", version="1.0")
    registry = Registry()
    registry.load(registry.resolve("A"))
    packages.install("epctx-a", "B", version="1.1", value="epctx_a:Added")

    registry.refresh()

    with pytest.raises(
        PluginError,
        match=(
            r"epctx-a 1\.1 is installed, but this process has imported epctx-a 1\.0: "
            r"restart it"
        ),
    ):
        registry.resolve("B")


def test_an_ep_beside_the_imported_one_needs_a_restart_after_an_upgrade_and_no_mix_of_versions_is_used(
    packages,
):
    both = "[epctx.execution_providers]\nA = epctx_a:A\nB = epctx_a:B"
    packages.install("epctx-a", "A", code=TWO_EPS)
    packages.write_metadata("epctx-a", both, version="1.0")
    registry = Registry()
    cls = registry.load(registry.resolve("A"))
    packages.write_metadata("epctx-a", both, version="1.1")

    for _ in range(2):
        registry.refresh()

        with pytest.raises(
            PluginError, match=r"this process has imported epctx-a 1\.0: restart it"
        ):
            registry.resolve("B")
        assert registry.load(registry.resolve("A")) is cls
    packages.write_metadata("epctx-a", both, version="1.0")
    registry.refresh()

    assert registry.load(registry.resolve("B")).name == "B"


def test_a_plugin_that_was_found_but_not_imported_before_its_upgrade_needs_no_restart(
    packages,
):
    packages.install("epctx-a", "A", version="1.0")
    registry = Registry()
    registry.records()
    packages.install("epctx-a", "A", version="1.1")

    registry.refresh()

    assert [(r.version, r.state) for r in registry.records()] == [
        ("1.1", PluginState.DISCOVERED)
    ]


def test_a_broken_plugin_whose_module_stayed_in_memory_says_that_its_upgrade_needs_a_restart(
    packages,
):
    packages.install("epctx-a", "A", version="1.0", code="Provider = 7")
    registry = Registry()
    with pytest.raises(PluginError, match="not a subclass"):
        registry.load(registry.resolve("A"))
    packages.install("epctx-a", "A", version="1.1")

    registry.refresh()

    (record,) = registry.records()
    assert record.state is PluginState.BROKEN
    assert (
        "epctx-a 1.1 is installed, but this process has imported epctx-a 1.0: "
        "restart it"
    ) in record.reason


def test_a_plugin_that_was_imported_stays_loaded_over_a_refresh(packages):
    packages.install("epctx-a", "A")
    registry = Registry()
    cls = registry.load(registry.resolve("A"))

    registry.refresh()

    record = registry.resolve("A")
    assert record.state is PluginState.LOADED
    assert registry.load(record) is cls


def test_a_plugin_that_failed_to_import_is_tried_again_after_a_refresh(packages):
    module = packages.install("epctx-a", "A", code="import library_that_is_missing")
    registry = Registry()
    with pytest.raises(Exception, match="library_that_is_missing"):
        registry.load(registry.resolve("A"))
    packages.install("epctx-a", "A")
    (packages.folder / f"{module}.py").touch()

    registry.refresh()

    assert registry.load(registry.resolve("A")).name == "A"
