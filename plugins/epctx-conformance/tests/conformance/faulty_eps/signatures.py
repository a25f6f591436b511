"""EPs whose class says something wrong."""

from __future__ import annotations

import time

from conformance.faulty_eps.table import fault
from conformance.small_ep import SmallProvider

from epctx_core.plugin import (
    Availability,
    Compatibility,
    ProviderOption,
)


@fault("the_class_its_options_and_its_hooks_are_as_the_contract_has_them")
class ForgotTheMark(SmallProvider):
    def load_context(self, nodes, reader):
        return []


@fault("the_class_its_options_and_its_hooks_are_as_the_contract_has_them")
class FromTheFuture(SmallProvider):
    api_version = 99


@fault("the_class_its_options_and_its_hooks_are_as_the_contract_has_them")
class NameWithASpace(SmallProvider):
    name = "Small Execution Provider"


@fault("its_vendor_is_named")
class Nobodys(SmallProvider):
    vendor = " "


@fault("each_option_has_a_doc_and_a_default_and_choices_that_a_host_could_give")
class Undocumented(SmallProvider):
    options = (ProviderOption("threads", int, default=1, doc=""),)


@fault("each_option_has_a_doc_and_a_default_and_choices_that_a_host_could_give")
class DefaultIsNoChoice(SmallProvider):
    options = (ProviderOption("threads", int, default=3, choices=(1, 2), doc="How many threads."),)


@fault("each_option_has_a_doc_and_a_default_and_choices_that_a_host_could_give")
class ChoicesAreText(SmallProvider):
    options = (ProviderOption("threads", int, default=1, choices=(1, "2"), doc="How many threads."),)


@fault("each_choice_of_an_option_makes_an_instance_or_is_refused_with_a_reason")
class ChoiceBreaks(SmallProvider):
    options = (ProviderOption("mode", str, default="fast", choices=("fast", "small"), doc="How."),)

    def __init__(self, context):
        super().__init__(context)
        self.level = {"fast": 1}[context.options["mode"]]


@fault("it_accepts_its_own_ep_type_as_a_source")
class DeniesItself(SmallProvider):
    @classmethod
    def accepts_source(cls, source):
        return source == "small"


@fault("it_leaves_the_sources_of_other_eps_to_them")
class TakesEverySource(SmallProvider):
    @classmethod
    def accepts_source(cls, source):
        return source.endswith("ExecutionProvider")


@fault("it_says_for_each_purpose_whether_this_machine_will_do")
class SaysNoWithoutAReason(SmallProvider):
    @classmethod
    def availability(cls, purpose):
        return Availability(False)


@fault("it_is_available_here_for_what_it_is_checked_on")
class HasNoDevice(SmallProvider):
    @classmethod
    def availability(cls, purpose):
        return Availability(False, reason="no NPU was found")


@fault("it_supports_what_it_compiled_itself")
class StampsTheTime(SmallProvider):
    @classmethod
    def get_compatibility_info(cls, partitions, options):
        return f"compiled at {time.perf_counter_ns()}"


@fault("it_supports_what_it_compiled_itself")
class RejectsItsOwn(SmallProvider):
    @classmethod
    def get_compatibility_info(cls, partitions, options):
        return "small 1"


@fault("it_does_not_claim_to_support_what_it_cannot_read")
class SupportsEverything(SmallProvider):
    @classmethod
    def validate_compatibility(cls, info, options):
        return Compatibility.EP_SUPPORTED_OPTIMAL
