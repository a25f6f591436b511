"""The EPs of one session: made in order, called one owner at a time, and blamed for
what they raise.
"""

from __future__ import annotations

import pytest
from registry.providers import ep, raising

from epctx_core.errors import (
    EPFail,
    InvalidArgument,
    ModelLoadCanceled,
    NotImplementedByProvider,
    PluginError,
)
from epctx_core.plugin import Refusal, hookimpl


def test_eps_are_kept_in_the_order_of_the_host(session, context):
    made = []
    names = ["Z", "A"]

    instances = session(
        *(
            ep(name, __init__=lambda self, given: made.append((self.name, given)))
            for name in names
        )
    )

    assert instances.names == ("Z", "A")
    assert made == [("Z", context), ("A", context)]
    assert instances.record("Z").name == "Z"


def test_only_the_owner_is_called_and_its_one_result_returned(session):
    instances = session(ep("A"), ep("B"))

    assert instances.call("A", "compile", partitions=[1, 2]) == [("A", 1), ("A", 2)]
    assert instances.call("B", "get_capability", graph="g") == [Refusal("B", ["g"])]


def test_an_ep_added_later_is_not_called_for_those_before_it(
    session, record_of, context
):
    instances = session(ep("A"))
    before = instances.call("A", "compile", partitions=[1])
    late = ep("B")

    instances.add(record_of(late), late, context)

    assert instances.call("A", "compile", partitions=[1]) == before == [("A", 1)]


def test_a_hook_gets_only_the_arguments_it_names_in_any_order(session):
    seen = []
    instances = session(
        ep(
            "A",
            on_run_start=lambda self, tag, ep: seen.append((ep, tag)),
            on_run_end=lambda self: seen.append("end"),
        )
    )

    instances.call("A", "on_run_start", tag="t")
    instances.call("A", "on_run_end", tag="t")

    assert seen == [("A", "t"), "end"]


@pytest.mark.parametrize(
    "method",
    [
        staticmethod(hookimpl(lambda partitions: [partitions])),
        hookimpl(staticmethod(lambda partitions: [partitions])),
        classmethod(hookimpl(lambda cls, partitions: [partitions])),
        hookimpl(lambda this, partitions: [partitions]),
    ],
    ids=["static", "static marked outside", "class method", "other name for self"],
)
def test_every_form_of_a_method_is_called_as_python_would(session, method):
    cls = ep("A")
    cls.compile = method

    assert session(cls).call("A", "compile", partitions=3) == [3]


def test_an_unimplemented_hook_is_not_implemented_by_this_provider(session):
    instances = session(ep("A"))

    assert not instances.implements("A", "load_context")
    with pytest.raises(
        NotImplementedByProvider, match=r"A \(epctx-test 1\.2\).*load_context"
    ) as caught:
        instances.call("A", "load_context", nodes=[], reader=None)
    assert caught.value.ep == "A"


def test_none_is_a_result_where_the_hook_allows_it(session):
    instances = session(ep("A", optimize_model=lambda self: None))

    assert instances.implements("A", "optimize_model")
    arguments = {"model": None, "weights": {}, "level": 0}
    assert instances.call("A", "optimize_model", **arguments) is None


@pytest.mark.parametrize("result", [None, {}, "text", 3, iter(())])
@pytest.mark.parametrize(
    "hook", ["get_capability", "compile", "get_ep_context_nodes", "load_context"]
)
def test_a_result_that_is_no_list_is_a_fault_of_the_plugin(session, hook, result):
    arguments = {
        "get_capability": {"graph": None},
        "compile": {"partitions": []},
        "get_ep_context_nodes": {"writer": None},
        "load_context": {"nodes": [], "reader": None},
    }
    instances = session(ep("A", **{hook: lambda self: result}))

    with pytest.raises(
        PluginError, match=f"in {hook}: it gave a .* instead of a list"
    ) as caught:
        instances.call("A", hook, **arguments[hook])

    assert caught.value.hook == hook


@pytest.mark.parametrize(
    ("hook", "arguments", "answer", "expected"),
    [
        (
            "get_capability",
            {"graph": None},
            [5],
            "a ComputeCapability or a Refusal",
        ),
        ("get_ep_context_nodes", {"writer": None}, [5], "an EPContextNode"),
        (
            "optimize_model",
            {"model": None, "weights": {}, "level": 0},
            5,
            "an onnx.ModelProto or None",
        ),
    ],
)
def test_an_answer_has_the_type_that_the_specification_of_the_hook_says(
    session, hook, arguments, answer, expected
):
    instances = session(ep("A", **{hook: lambda self: answer}))

    with pytest.raises(
        PluginError, match=f"in {hook}: it gave a int instead of {expected}"
    ) as caught:
        instances.call("A", hook, **arguments)

    assert (caught.value.ep, caught.value.hook) == ("A", hook)


# -- errors
# ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [KeyError("k"), SystemExit(3), StopIteration(), RecursionError(), AssertionError()],
)
def test_what_an_ep_raises_is_attributed_to_it(session, error):
    instances = session(ep("A", allocate=raising(error)))

    with pytest.raises(
        PluginError, match=r"A \(epctx-test 1\.2\) failed in allocate"
    ) as caught:
        instances.call("A", "allocate", shape=(), dtype=None)

    raised = caught.value
    assert (raised.ep, raised.hook, raised.distribution, raised.version) == (
        "A",
        "allocate",
        "epctx-test",
        "1.2",
    )
    assert raised.__cause__ is error
    assert type(error).__name__ in raised.message


def test_what_an_ep_raises_while_it_compiles_is_an_ep_fail(session):
    error = RuntimeError("out of tiles")
    instances = session(ep("A", compile=raising(error)))

    with pytest.raises(
        EPFail,
        match=r"A \(epctx-test 1\.2\) failed in compile: RuntimeError: out of tiles",
    ) as caught:
        instances.call("A", "compile", partitions=[])

    assert caught.value.ep == "A"
    assert caught.value.__cause__ is error


def test_our_own_errors_pass_with_the_ep_filled_in(session):
    cancelled, foreign = (
        ModelLoadCanceled("cancelled"),
        InvalidArgument("no", ep="Other"),
    )
    instances = session(
        ep("A", compile=raising(cancelled), set_dynamic_options=raising(foreign))
    )

    with pytest.raises(ModelLoadCanceled) as first:
        instances.call("A", "compile", partitions=[])
    with pytest.raises(InvalidArgument) as second:
        instances.call("A", "set_dynamic_options", options={})

    assert first.value is cancelled
    assert cancelled.ep == "A"
    assert second.value.ep == "Other"


def test_a_plugin_error_of_the_ep_is_completed(session):
    instances = session(ep("A", compile=raising(PluginError("licence expired"))))

    with pytest.raises(PluginError, match="licence expired") as caught:
        instances.call("A", "compile", partitions=[])

    assert (caught.value.hook, caught.value.distribution, caught.value.version) == (
        "compile",
        "epctx-test",
        "1.2",
    )


def test_an_interrupt_of_the_user_passes(session):
    instances = session(ep("A", compile=raising(KeyboardInterrupt())))

    with pytest.raises(KeyboardInterrupt):
        instances.call("A", "compile", partitions=[])


@pytest.mark.parametrize("error", [ValueError("no device"), SystemExit(1)])
def test_an_ep_that_can_not_be_made_is_not_registered(
    session, record_of, context, error
):
    def init(self, context):
        raise error

    shut = []
    cls = ep("A", __init__=init, shutdown=lambda self: shut.append("A"))
    instances = session(ep("B"))

    with pytest.raises(PluginError, match="failed in __init__") as caught:
        instances.add(record_of(cls), cls, context)

    assert caught.value.hook == "__init__"
    assert caught.value.__cause__ is error
    assert instances.names == ("B",)
    instances.shutdown()
    assert shut == []


def test_an_ep_that_refuses_its_options_says_so_in_its_own_words(session):
    def init(self, context):
        raise InvalidArgument("htp_arch 68 has no fp16")

    with pytest.raises(InvalidArgument, match="no fp16") as caught:
        session(ep("A", __init__=init))

    assert caught.value.ep == "A"


def test_an_ep_can_be_added_after_its_first_attempt_failed(session, record_of, context):
    attempts = []

    def init(self, context):
        attempts.append(1)
        if len(attempts) == 1:
            raise OSError("device busy")

    cls = ep("A", __init__=init)
    instances = session()
    with pytest.raises(PluginError):
        instances.add(record_of(cls), cls, context)

    instances.add(record_of(cls), cls, context)

    assert instances.call("A", "compile", partitions=[1]) == [("A", 1)]


# -- what a call does not do to an instance
# ----------------------------------------------------------


def test_no_property_of_an_instance_is_evaluated(session):
    def explode(self):
        raise AssertionError("evaluated")

    cls = ep("A")
    cls.device = property(explode)

    assert session(cls, ep("B")).call("A", "compile", partitions=[1]) == [("A", 1)]


def test_an_ep_that_compares_and_hashes_strangely_does_no_harm(session):
    def explode(self, *_):
        raise AssertionError("compared")

    instances = session(
        ep("A", __eq__=explode, __hash__=None), ep("B", __eq__=explode, __hash__=None)
    )

    assert instances.call("A", "compile", partitions=[1]) == [("A", 1)]
    assert instances.call("B", "compile", partitions=[1]) == [("B", 1)]


def test_two_equal_eps_are_two_eps(session):
    same = {"__eq__": lambda self, other: True, "__hash__": lambda self: 1}
    instances = session(ep("A", **same), ep("B", **same))

    assert instances.call("A", "compile", partitions=[1]) == [("A", 1)]
    assert instances.call("B", "compile", partitions=[1]) == [("B", 1)]


def test_an_instance_attribute_does_not_replace_a_hook(session):
    def init(self, context):
        self.compile = "a setting"

    assert session(ep("A", __init__=init)).call("A", "compile", partitions=[1]) == [
        ("A", 1)
    ]
