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


@fault("the_class_its_options_and_its_hooks_follow_the_contract")
class ForgotTheMark(SmallProvider):
    def load_context(self, nodes, reader):
        return []


@fault("the_class_its_options_and_its_hooks_follow_the_contract")
class FromTheFuture(SmallProvider):
    api_version = 99


@fault("the_class_its_options_and_its_hooks_follow_the_contract")
class NameWithASpace(SmallProvider):
    name = "Small Execution Provider"


@fault("it_names_its_vendor")
class Nobodys(SmallProvider):
    vendor = " "


@fault("each_option_has_a_doc_a_valid_default_and_valid_choices")
class Undocumented(SmallProvider):
    options = (ProviderOption("threads", int, default=1, doc=""),)


@fault("each_option_has_a_doc_a_valid_default_and_valid_choices")
class WithoutDoc(SmallProvider):
    options = (ProviderOption("threads", int, default=1, doc=None),)


@fault("each_option_has_a_doc_a_valid_default_and_valid_choices")
class SecretByText(SmallProvider):
    options = (ProviderOption("token", str, default="", doc="A token.", secret="no"),)  # noqa: S106 - no password


@fault("each_option_has_a_doc_a_valid_default_and_valid_choices")
class AllSecret(SmallProvider):
    options = (ProviderOption("*", str, default=None, doc="Any.", secret=True),)


@fault("each_option_has_a_doc_a_valid_default_and_valid_choices")
class DefaultIsNoChoice(SmallProvider):
    options = (
        ProviderOption(
            "threads", int, default=3, choices=(1, 2), doc="How many threads."
        ),
    )


@fault("each_option_has_a_doc_a_valid_default_and_valid_choices")
class ChoicesAreText(SmallProvider):
    options = (
        ProviderOption(
            "threads", int, default=1, choices=(1, "2"), doc="How many threads."
        ),
    )


@fault("it_accepts_each_choice_of_an_option_or_refuses_it_with_a_reason")
class ChoiceBreaks(SmallProvider):
    options = (
        ProviderOption(
            "mode", str, default="fast", choices=("fast", "small"), doc="How."
        ),
    )

    def __init__(self, context):
        super().__init__(context)
        self.level = {"fast": 1}[context.options["mode"]]


@fault("it_accepts_its_own_name_as_a_source")
class DeniesItself(SmallProvider):
    @classmethod
    def accepts_source(cls, source):
        return source == "small"


@fault("it_does_not_accept_the_sources_of_other_eps")
class TakesEverySource(SmallProvider):
    @classmethod
    def accepts_source(cls, source):
        return source.endswith("ExecutionProvider")


@fault("it_declares_its_availability_for_each_purpose")
class SaysNoWithoutAReason(SmallProvider):
    @classmethod
    def availability(cls, purpose):
        return Availability(False)


@fault("it_is_available_on_this_machine")
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


@fault("it_has_a_verdict_on_its_own_text_with_any_other_numbers")
class ReadsNumbersOfAnyLength(SmallProvider):
    @classmethod
    def get_compatibility_info(cls, partitions, options):
        return "small 1"

    @classmethod
    def validate_compatibility(cls, info, options):
        name, _, version = info.partition(" ")
        if name != "small" or not version.isdecimal():
            return Compatibility.EP_NOT_APPLICABLE
        if int(version) == 1:
            return Compatibility.EP_SUPPORTED_OPTIMAL
        return Compatibility.EP_UNSUPPORTED
