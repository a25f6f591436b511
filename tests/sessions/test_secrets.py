"""The value of a secret option is in no text: of a plugin's errors, refusals, log and
progress, and of our own messages.
"""

from __future__ import annotations

import gc
import logging

import pytest
from support.engine_eps import Alpha
from support.small_models import chain

import epctx_core as epctx
from epctx_core.plugin import ProviderOption, Refusal, hookimpl

SECRET = "hunter2\\of\nacme"  # noqa: S105 - it opens nothing
MODEL = chain(["Relu", "Add"]).SerializeToString()


class Telling(Alpha):
    """An EP that tells its secret wherever it can."""

    name = "TellingExecutionProvider"
    options = (
        ProviderOption(
            "token",
            str,
            default="",
            doc="What the vendor's service asks for.",
            secret=True,
        ),
        ProviderOption("fail", bool, default=False, doc="Whether to fail."),
    )

    @hookimpl
    def get_capability(self, graph):
        token = self.context.options["token"]
        self.context.logger.warning("the token is %s", token)
        self.context.logger.getChild("service").getChild("login").warning(
            "logged in with %s", token
        )
        self.context.logger.warning("%d attempts", "no")
        self.context.logger.error("it failed", exc_info=LookupError(token))
        self.context.progress(f"with {token}", 0, 1)
        return [Refusal(f"not with {token}", [node.index for node in graph.nodes])]

    @hookimpl
    def compile(self, partitions):
        return []


class Failing(Telling):
    """One that fails with it."""

    @hookimpl
    def get_capability(self, graph):
        raise LookupError(
            f"the service refuses {self.context.options['token']}, in full "
            f"{self.context.options!r}"
        )


def compiled(ep, stages=None):
    registry = epctx.Registry(entry_points=False)
    registry.register(ep)
    options = epctx.SessionOptions()
    options.add_provider(ep.name, {"token": SECRET})
    progress = None if stages is None else lambda stage, *_: stages.append(stage)
    compiler = epctx.ModelCompiler(
        options, MODEL, True, registry=registry, progress=progress
    )
    compiler.compile_to_bytes()
    return compiler.report


def test_a_plugins_refusals_log_and_progress_hide_it(caplog):
    stages = []
    caplog.set_level(logging.DEBUG, logger="epctx")

    report = compiled(Telling, stages)

    assert [refusal.reason for refusal in report.refusals][:1] == ["not with [secret]"]
    assert "with [secret]" in stages
    assert "the token is [secret]" in caplog.text
    assert "logged in with [secret]" in caplog.text
    assert "a message that cannot be formatted: TypeError" in caplog.text
    assert SECRET not in caplog.text + str(report.as_dict()) + "".join(stages)


def test_a_plugins_errors_hide_it():
    with pytest.raises(
        epctx.PluginError, match=r"the service refuses \[secret\]"
    ) as caught:
        compiled(Failing)

    assert "hunter2" not in str(caught.value)


def test_a_secret_is_forgotten_with_the_session_that_had_it():
    with pytest.raises(epctx.PluginError) as caught:
        compiled(Failing)
    del caught
    gc.collect()  # sessions of other tests had the same secret

    # As one line, which a message is.
    shown = SECRET.replace("\n", r"\n")
    assert str(epctx.Fail(f"about {SECRET}")) == f"about {shown}"


@pytest.mark.parametrize(
    "give",
    [
        lambda options, _registry: options.add_provider(Telling.name, SECRET),
        lambda options, registry: epctx.InferenceSession(
            MODEL, options, providers=[(Telling.name, SECRET)], registry=registry
        ),
        lambda options, registry: epctx.InferenceSession(
            MODEL, options, providers=[(Telling.name, {SECRET: "1"})], registry=registry
        ),
        lambda options, registry: epctx.InferenceSession(
            MODEL,
            options,
            providers=[Telling.name],
            provider_options=[SECRET],
            registry=registry,
        ),
    ],
    ids=["add_provider", "in place of a mapping", "as a key", "provider_options"],
)
def test_our_own_messages_hide_a_value_in_the_wrong_place(give):
    registry = epctx.Registry(entry_points=False)
    registry.register(Telling)

    with pytest.raises(epctx.InvalidArgument) as caught:
        give(epctx.SessionOptions(), registry)

    assert SECRET not in str(caught.value)


def test_a_secret_in_a_message_that_is_older_than_its_first_use_is_concealed():
    older = epctx.Fail(f"about {SECRET}")

    class Raising(Telling):
        @hookimpl
        def get_capability(self):
            raise older

    with pytest.raises(epctx.Fail) as caught:
        compiled(Raising)

    assert caught.value.message == "about [secret]"
