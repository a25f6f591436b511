"""Whatever an isolated EP does to its process, the host gets one typed error, and
nothing is left behind.
"""

from __future__ import annotations

import logging
import traceback

import numpy as np
import pytest
from support.faulty_eps import LOGGER, SECRET, Faulty
from support.isolation import compiled, nothing_left, options_for, registry_of, source
from support.made_eps import make_ep
from support.small_models import example

import epctx_core as epctx


def failing(tmp_path, fault, hook="compile", **entries):
    """Compile with a fault; return the error."""
    options = options_for(
        Faulty, provider_options={"fault": fault, "hook": hook}, **entries
    )
    with pytest.raises(epctx.EpctxError) as caught:
        compiled(tmp_path / "out", source(tmp_path), Faulty, options)
    assert list((tmp_path / "out").iterdir()) == []
    return caught.value


@pytest.mark.parametrize(
    ("fault", "hook", "how"),
    [
        ("segfault", "compile", "it was ended by SIGSEGV"),
        ("abort", "get_capability", "it was ended by SIGABRT"),
        ("exit", "get_ep_context_nodes", "it ended with exit code 7"),
        ("kill", "__init__", "it was ended by SIGKILL"),
        ("hang", "compile", "it took longer than the 2 seconds"),
        ("native-hang", "compile", "it took longer than the 2 seconds"),
        ("noise", "compile", "it sent an invalid message"),
        ("nonsense", "compile", "it sent an invalid message"),
    ],
)
def test_a_process_that_is_lost_is_a_plugin_error_that_says_how(
    tmp_path, temporary, fault, hook, how
):
    seconds = 2 if "hang" in fault else 60

    with nothing_left(temporary):
        error = failing(tmp_path, fault, hook, isolate_timeout_seconds=seconds)

    assert type(error) is epctx.PluginError
    assert how in error.message
    assert error.message.startswith(
        f"FaultyExecutionProvider (registered by the host) failed in {hook}: "
    )
    assert (error.ep, error.hook) == (Faulty.name, hook)
    assert "ep.isolate" in error.hint


def test_the_last_lines_that_a_lost_process_printed_are_in_the_error(tmp_path):
    error = failing(tmp_path, "segfault")

    assert "It printed: Fatal Python error: Segmentation fault" in error.message
    assert "faulty_eps.py" in str(error.__cause__)


def test_more_memory_than_allowed_is_a_plugin_error_that_names_the_option(
    tmp_path, temporary
):
    with nothing_left(temporary):
        error = failing(tmp_path, "memory", isolate_max_bytes=2 << 30)

    assert type(error) is epctx.PluginError
    assert "needed more memory in compile than the 2,147,483,648 bytes" in error.message
    assert "ep.isolate_max_bytes" in error.hint


def test_less_memory_than_the_process_needs_to_start_is_said_in_the_same_way(
    tmp_path, temporary
):
    with nothing_left(temporary):
        error = failing(tmp_path, "", isolate_max_bytes=1 << 20)

    assert type(error) is epctx.Fail
    assert "than the 1,048,576 bytes" in error.message


def test_an_answer_larger_than_allowed_is_not_read(tmp_path):
    error = failing(tmp_path, "too-much", "get_capability", isolate_max_bytes=2 << 30)

    assert type(error) is epctx.PluginError
    assert "it sent an invalid message" in error.message


@pytest.mark.parametrize("hook", ["__init__", "get_capability", "compile"])
def test_a_message_with_more_json_than_its_subject_needs_is_not_decoded(
    tmp_path, temporary, hook
):
    with nothing_left(temporary):
        error = failing(tmp_path, "large-head", hook)

    assert type(error) is epctx.PluginError
    assert "it sent an invalid message (a head of 62,914,588 bytes" in error.message
    assert error.hook == hook


def test_an_error_of_the_tree_arrives_as_it_was_raised(tmp_path):
    error = failing(tmp_path, "error")

    assert type(error) is epctx.InvalidGraph
    assert (error.message, error.node, error.hint) == (
        "the graph is not to its taste",
        "n1",
        "Try another.",
    )
    assert error.ep == Faulty.name
    assert "raise_error" in str(error.__cause__)


@pytest.mark.parametrize("hook", ["__init__", "get_capability", "compile"])
@pytest.mark.parametrize("fault", ["secret-error", "secret-value-error", "secret-exit"])
def test_a_secret_is_in_no_text_of_an_error_nor_in_its_causes(tmp_path, fault, hook):
    options = options_for(
        Faulty, provider_options={"fault": fault, "hook": hook, "key": SECRET}
    )

    with pytest.raises(epctx.EpctxError) as caught:
        compiled(tmp_path / "out", source(tmp_path), Faulty, options)

    error = caught.value
    assert "[secret]" in str(error)
    shown = [*traceback.format_exception(error), repr(vars(error))]
    assert SECRET not in "".join(shown)


def test_a_secret_of_the_argument_providers_is_not_in_what_was_printed(tmp_path):
    named = {"fault": "secret-exit", "key": SECRET}

    with pytest.raises(epctx.PluginError) as caught:
        epctx.InferenceSession(
            source(tmp_path),
            options_for(isolate="all"),
            providers=[(Faulty.name, named)],
            registry=registry_of(Faulty),
        )

    assert "It printed: [secret]" in caught.value.message
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_a_secret_that_a_shutdown_raises_is_not_logged(tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    options = options_for(
        Faulty,
        provider_options={"fault": "secret-error", "hook": "shutdown", "key": SECRET},
    )

    compiled(tmp_path / "out", source(tmp_path), Faulty, options)

    assert "shutdown of FaultyExecutionProvider" in caplog.text
    assert SECRET not in caplog.text


def test_texts_of_an_error_are_short_and_printable(tmp_path):
    error = failing(tmp_path, "long-error")

    assert type(error) is epctx.InvalidGraph
    assert error.message == r"m\x1b[2J\ud800\nn"
    assert error.hint.startswith("h\\x1b[2Jhhh")
    assert error.node.startswith("n\\x07nnn")
    assert max(len(error.hint), len(error.node)) <= 1 << 14
    trace = str(error.__cause__)
    assert len(trace) <= 1 << 16
    assert trace.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    ("hook", "kind"), [("compile", epctx.EPFail), ("get_capability", epctx.PluginError)]
)
def test_any_other_exception_is_blamed_as_without_isolation(tmp_path, hook, kind):
    error = failing(tmp_path, "value-error", hook)

    assert type(error) is kind
    assert "failed in " + hook + ": ValueError: disk on fire" in error.message
    assert "Traceback" in str(error.__cause__)


def test_a_class_that_its_process_cannot_import_is_named(tmp_path):
    class Local(Faulty):
        name = "LocalExecutionProvider"

    options = options_for(Local)

    with pytest.raises(
        epctx.PluginError, match="cannot be used in a process of its own"
    ) as caught:
        compiled(tmp_path / "out", source(tmp_path), Local, options)

    assert "module that can be imported" in caught.value.hint


@pytest.mark.parametrize("mode", ["compile", "all"])
def test_a_class_that_a_function_made_is_made_again_in_its_process(tmp_path, mode):
    made = make_ep("MadeExecutionProvider", ["Add"])
    written = compiled(
        tmp_path / "out", source(tmp_path), made, options_for(made, isolate=mode)
    )

    with epctx.InferenceSession(
        written / "m_ctx.onnx",
        options_for(made, isolate=mode),
        registry=registry_of(made),
    ) as session:
        assert len(session.run(None, {"x": example()})) == 1


def test_a_class_derived_from_a_made_one_is_not_taken_for_it(tmp_path):
    class Derived(make_ep("MadeExecutionProvider", ["Add"])):
        pass

    with pytest.raises(epctx.PluginError, match="cannot be used in a process of its"):
        compiled(tmp_path / "out", source(tmp_path), Derived, options_for(Derived))


def test_a_function_that_makes_another_ep_is_named(tmp_path):
    made = make_ep("MadeExecutionProvider", ["Add"])
    made.factory = (made.factory[0], {"name": "Other", "operators": ["Add"]})

    with pytest.raises(
        epctx.PluginError, match=r"made_eps:make_ep made 'Other'"
    ) as caught:
        compiled(tmp_path / "out", source(tmp_path), made, options_for(made))

    assert "factory" in caught.value.hint


def test_what_a_plugin_prints_disturbs_nothing(tmp_path, capfd):
    options = options_for(Faulty, provider_options={"fault": "print"})

    written = compiled(tmp_path / "out", source(tmp_path), Faulty, options)

    assert len(list(written.iterdir())) == 2
    assert "the plugin" not in "".join(capfd.readouterr())


def test_what_a_plugin_logs_reaches_the_hosts_logger_of_that_name(tmp_path, caplog):
    options = options_for(Faulty, provider_options={"fault": "log"})

    compiled(tmp_path / "out", source(tmp_path), Faulty, options)

    records = [r for r in caplog.records if r.name == LOGGER]
    assert [(r.levelname, r.getMessage()) for r in records] == [
        ("WARNING", "a record of the plugin")
    ]


def test_what_a_plugin_logs_there_shows_no_secret_whatever_the_logger(tmp_path, caplog):
    options = options_for(
        Faulty, provider_options={"fault": "log below", "key": "s3cret-v4lue"}
    )

    compiled(tmp_path / "out", source(tmp_path), Faulty, options)

    assert "epctx.ep.below: the key is [secret]" in caplog.messages


def test_records_are_printable_lines_of_the_eps_own_loggers(tmp_path, caplog):
    known = logging.getLogger(f"{LOGGER}.known").name
    loggers = len(logging.Logger.manager.loggerDict)
    options = options_for(Faulty, provider_options={"fault": "log as others"})

    compiled(tmp_path / "out", source(tmp_path), Faulty, options)

    forged = [r for r in caplog.records if r.levelno == logging.CRITICAL]
    assert [r.name for r in forged] == ["epctx", "epctx.registry", known]
    texts = [r.getMessage() for r in forged]
    assert all(text.isprintable() and len(text) <= 1 << 14 for text in texts)
    assert texts[0].startswith("epctx......")
    assert texts[1].startswith(r"a\nWARNING \x1b[2J\u202e\ud800...")
    assert len(logging.Logger.manager.loggerDict) < loggers + 100


def test_a_crash_while_a_model_runs_leaves_a_host_that_goes_on(tmp_path, temporary):
    model, x = source(tmp_path), example()
    registry = registry_of(Faulty)
    crashing = options_for(
        Faulty, isolate="all", provider_options={"fault": "segfault", "hook": "run"}
    )

    with (
        nothing_left(temporary),
        epctx.InferenceSession(model, crashing, registry=registry) as session,
    ):
        for _ in range(2):
            with pytest.raises(
                epctx.PluginError,
                match="failed in run: its process is gone; it was ended by SIGSEGV",
            ) as raised:
                session.run(None, {"x": x})
            assert raised.value.hint.startswith("Make a new session: ")
            assert "vendor" in raised.value.hint

    with epctx.InferenceSession(
        model, options_for(Faulty, isolate=""), registry=registry
    ) as session:
        assert np.isfinite(session.run(None, {"x": x})[0]).all()


def test_an_exception_while_a_model_runs_is_the_run_time_exception_that_it_is_without_isolation(
    tmp_path,
):
    options = options_for(
        Faulty, isolate="all", provider_options={"fault": "value-error", "hook": "run"}
    )

    with epctx.InferenceSession(
        source(tmp_path), options, registry=registry_of(Faulty)
    ) as session:
        with pytest.raises(epctx.RuntimeException, match="disk on fire") as caught:
            session.run(None, {"x": example()})

        with pytest.raises(epctx.RuntimeException, match="disk on fire"):
            session.run(None, {"x": example()})

    assert caught.value.ep == Faulty.name
