"""Options of an EP: converted, checked, suggested, and secrets kept."""

from __future__ import annotations

import pytest
from support.engine_eps import Alpha
from support.small_models import chain

from epctx_core import InferenceSession, Registry
from epctx_core.errors import InvalidArgument
from epctx_core.plugin import ProviderOption

EP = "TestExecutionProvider"
SCHEMA = (
    ProviderOption(
        "htp_arch",
        int,
        default=73,
        choices=(68, 73, 75),
        doc="The device's generation.",
    ),
    ProviderOption("scale", float, default=1.0, doc="A factor."),
    ProviderOption("fp16", bool, default=False, doc="Whether to round."),
    ProviderOption(
        "mode", str, default="fast", choices=("fast", "exact"), doc="Which way."
    ),
    ProviderOption("key", str, default="", doc="The licence.", secret=True),
    ProviderOption(
        "pin", int, default=0, choices=(0, 1234), doc="The number.", secret=True
    ),
)


def parsed(schema=SCHEMA, **given):
    """Return the options that an EP with this schema has in a session."""
    seen = []

    def keep(self, context):
        Alpha.__init__(self, context)
        seen.append(context.options)

    registry = Registry(entry_points=False)
    registry.register(
        type("Tested", (Alpha,), {"name": EP, "options": schema, "__init__": keep})
    )
    InferenceSession(
        chain(["Relu"]).SerializeToString(), providers=[(EP, given)], registry=registry
    ).close()
    return seen[0]


def test_what_is_not_given_has_its_default():
    assert dict(parsed()) == {
        "htp_arch": 73,
        "scale": 1.0,
        "fp16": False,
        "mode": "fast",
        "key": "",
        "pin": 0,
    }


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("htp_arch", "68", 68),
        ("htp_arch", 75, 75),
        ("htp_arch", " 68 ", 68),
        ("scale", "0.5", 0.5),
        ("scale", 2, 2.0),
        ("fp16", "1", True),
        ("fp16", "TRUE", True),
        ("fp16", True, True),
        ("fp16", 0, False),
        ("fp16", "False", False),
        ("mode", "exact", "exact"),
        ("key", 5, "5"),
    ],
)
def test_values_are_converted(name, given, expected):
    found = parsed(**{name: given})[name]

    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("htp_arch", "new", "needs a whole number, not 'new'"),
        ("htp_arch", 73.5, "needs a whole number, not 73.5"),
        ("htp_arch", "", "needs a whole number, not ''"),
        ("htp_arch", None, "needs a whole number, not None"),
        ("htp_arch", "69", "is '69'; allowed: 68, 73, 75"),
        ("scale", "much", "needs a number, not 'much'"),
        ("fp16", "yes", "needs 0 or 1, not 'yes'"),
        ("mode", "Fast", "is 'Fast'; allowed: fast, exact"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_options_doc(name, given, said):
    with pytest.raises(InvalidArgument, match=said) as caught:
        parsed(**{name: given})

    assert caught.value.ep == EP
    assert caught.value.message.startswith(f"{EP}: option '{name}'")
    assert caught.value.hint == next(o.doc for o in SCHEMA if o.name == name)


def test_an_unknown_option_brings_a_suggestion_and_the_list():
    with pytest.raises(
        InvalidArgument, match=r"has no option 'htp_arc'\. Did you mean 'htp_arch'\?"
    ) as caught:
        parsed(htp_arc="73")

    assert caught.value.hint == "Its options: fp16, htp_arch, key, mode, pin, scale."


def test_an_ep_without_options_says_so():
    with pytest.raises(InvalidArgument, match="has no option 'x'") as caught:
        parsed((), x="1")

    assert caught.value.hint == "Its options: none."


@pytest.mark.parametrize("given", ["s3cret", "4321"])
def test_a_secret_is_not_in_the_message(given):
    with pytest.raises(InvalidArgument, match="the given value") as caught:
        parsed(pin=given)

    assert given not in str(caught.value)
    assert caught.value.__context__ is None or caught.value.__suppress_context__


def test_parsed_options_cannot_be_changed():
    with pytest.raises(TypeError):
        parsed()["htp_arch"] = 68


ANY = ProviderOption("*", str, default=None, doc="Any other, for the vendor's code.")


def test_an_ep_may_take_options_that_only_its_vendors_code_knows():
    assert dict(parsed((SCHEMA[1], ANY), scale="2", level="high")) == {
        "scale": 2.0,
        "level": "high",
    }
