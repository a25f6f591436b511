"""EPs that raise in a hook, one each; that do not fit the contract; that need a device
where none may be.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import ClassVar

from conformance.lying_plugins.table import lie
from support.honest_ep import HonestProvider

from epctx_core.plugin import PLUGIN_API, Availability, Purpose, hookimpl

HOOKS = {
    "get_capability": "it_returns_claims_and_refusals_of_nodes_of_the_graph",
    "optimize_model": "four_partitions_of_one_model_give_the_right_results",
    "compile": "a_context_model_in_a_file_loads_and_runs",
    "get_ep_context_nodes": "a_context_model_in_a_file_loads_and_runs",
    "load_context": "a_context_model_in_a_file_loads_and_runs",
    "allocate": "it_allocates_memory_as_requested",
    "set_dynamic_options": "it_refuses_unknown_dynamic_options",
    "on_run_start": "its_run_hooks_are_called_around_each_run_and_raise_nothing",
    "on_run_end": "its_run_hooks_are_called_around_each_run_and_raise_nothing",
    "shutdown": "shutdown_ends_a_session",
}
"""Each hook, and the check that notices when it raises."""
QUESTIONS = {
    "accepts_source": "it_accepts_its_own_name_as_a_source",
    "availability": "it_declares_its_availability_for_each_purpose",
    "get_compatibility_info": "a_context_model_in_a_file_loads_and_runs",
    "validate_compatibility": "a_context_model_in_a_file_loads_and_runs",
    "verify_payloads": "verification_finds_no_error_in_its_context_model",
}
"""The same for what is asked of the class."""


class BrokenError(Exception):
    """Error of these EPs."""


def _raising(name):
    def method(self):
        raise BrokenError(f"this is how {name} ends")

    method.__name__ = name
    return method


def _raising_for_any(name):
    def method(cls, *given):
        raise BrokenError(f"this is how {name} ends")

    return classmethod(method)


def _raises_in(name, check, method):
    title = "".join(part.capitalize() for part in name.strip("_").split("_"))
    cls = type(
        f"RaisesIn{title}", (HonestProvider,), {name: method, "__module__": __name__}
    )
    globals()[cls.__name__] = lie(check)(cls)


for _name, _check in HOOKS.items():
    _raises_in(_name, _check, hookimpl(_raising(_name)))
for _name, _check in QUESTIONS.items():
    _raises_in(_name, _check, _raising_for_any(_name))


@lie("it_supports_what_it_compiled_itself")
class RaisesWhenMade(HonestProvider):
    """Raises when an instance is made."""

    def __init__(self, context):
        raise BrokenError("this is how __init__ ends")


@lie("float_what_it_claims_gives_the_right_results")
class RaisesInRun(HonestProvider):
    """Compiles partitions whose run raises."""

    def run_of(self, prepared, graph):
        def run(inputs, outputs=None):
            raise BrokenError("this is how run ends")

        return run


@lie("float_what_it_claims_gives_the_right_results")
class ExitsInRun(HonestProvider):
    """Compiles partitions whose run ends the program."""

    def run_of(self, prepared, graph):
        def run(inputs, outputs=None):
            raise SystemExit(3)

        return run


@lie("the_class_its_options_and_its_hooks_follow_the_contract")
class AsksForMore(HonestProvider):
    """A hook has an argument that the contract does not know."""

    @hookimpl
    def compile(self, partitions, device):
        return super().compile(partitions)


@lie("the_class_its_options_and_its_hooks_follow_the_contract")
class HasDefaults(HonestProvider):
    """A hook's argument has a default, so that it is never given."""

    @hookimpl
    def compile(self, partitions=()):
        return super().compile(partitions)


@lie("the_class_its_options_and_its_hooks_follow_the_contract")
class IsTooNew(HonestProvider):
    """Was written for a later contract."""

    api_version = PLUGIN_API + 1


@lie("the_class_its_options_and_its_hooks_follow_the_contract")
class MisspellsAHook(HonestProvider):
    """Marks a method as a hook that does not exist."""

    @hookimpl
    def get_capabilities(self, graph):
        return []


@lie("it_compiles_ahead_of_time_without_a_device")
class NeedsItsDeviceToExport(HonestProvider):
    """Says that it can export here, and then wants the device that is not there."""

    @classmethod
    def availability(cls, purpose):
        return Availability(purpose is Purpose.EXPORT, reason="no device found")

    def runnable(self, graph):
        if self.context.purpose is Purpose.EXPORT:
            raise OSError("cannot open the device")
        return super().runnable(graph)


@lie("it_reads_its_context_model_back_without_a_device")
class NeedsItsDeviceToReadBack(HonestProvider):
    """Says that it loads without its device, and then wants it."""

    @hookimpl
    def load_context(self, nodes, reader):
        if self.context.purpose is Purpose.EXPORT:
            raise OSError("cannot open the device")
        return super().load_context(nodes, reader)


@lie("it_reads_its_context_model_back_without_a_device")
class WritesHalfOfEachGraph(HonestProvider):
    """Does not load what it wrote itself."""

    def packed(self, graphs):
        return super().packed(graphs)[:-1]


@lie("an_export_opens_no_device")
class OpensItsDeviceToExport(HonestProvider):
    """Looks at its device when it exports, though it needs none."""

    def runnable(self, graph):
        if self.context.purpose is Purpose.EXPORT:
            with contextlib.suppress(OSError), Path("/dev/accel/accel0").open("rb"):
                pass
        return super().runnable(graph)


@lie("it_compiles_out_of_process")
class LeavesItsDriverInTheClass(HonestProvider):
    """An instance that loads takes what one that compiled left, perhaps in another
    process.
    """

    driver: ClassVar[object] = None

    @hookimpl
    def compile(self, partitions):
        LeavesItsDriverInTheClass.driver = contextlib
        return super().compile(partitions)

    @hookimpl
    def load_context(self, nodes, reader):
        if self.driver is None:
            raise LookupError("there is no driver")
        return super().load_context(nodes, reader)


@lie("it_sets_simulated_if_its_vendor_says_so")
class IsSimulatedInItsVendorAlone(HonestProvider):
    """Programs take it for the real one."""

    vendor = "epctx tests (simulated)"
    simulated = False


@lie("the_class_its_options_and_its_hooks_follow_the_contract")
class IsSimulatedInWords(HonestProvider):
    """Says with a text whether it is simulated."""

    simulated = "no"
