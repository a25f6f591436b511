"""An EP instance as plain values, which JSON can hold, and the same instance made of these in another process."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from types import MappingProxyType
from typing import Any

from epctx_core.context.scratch import PrivateWorkspace, scratch_folder
from epctx_core.engines.cpu_engine import CpuEngine
from epctx_core.options import SessionOptions, WeightlessMode
from epctx_core.plugin import CompiledPartition, EnginePolicy, ModelIdentity, ProviderContext, Purpose
from epctx_core.registry import PluginRecord, PluginState, Registry
from epctx_core.registry.guard import plugin_error
from epctx_core.registry.loading import import_provider
from epctx_core.sessions.providers import Progress, ProviderSession


def describe_instance(record: PluginRecord, context: ProviderContext, purpose: Purpose) -> dict[str, Any]:
    """Return what `DescribedInstance` makes an instance of an EP of.

    Args:
        record: the EP's.
        context: what an instance in this process would get.
        purpose: what the other one is made for.
    """
    # A session says more of its engine while it is made.
    engine = context.engine
    names = ("name", "sources", "distribution", "version", "entry_point")
    return {
        "record": {name: getattr(record, name) for name in names},
        "options": dict(context.options),
        "session_config": dict(context.session_config),
        "purpose": purpose.value,
        "target": context.target,
        "model": {**vars(context.model), "opset_imports": dict(context.model.opset_imports)},
        "weightless": int(context.weightless),
        "threads": context.intra_op_num_threads,
        "logger": context.logger.name.removeprefix("epctx."),
        "engine": asdict(engine.policy if isinstance(engine, CpuEngine) else EnginePolicy()),
    }


class DescribedInstance:
    """An EP instance in another process than its session; its hooks are called and checked as in a session.

    Attributes:
        record: what is known about the EP.

    Args:
        said: what `describe_instance` gave.
        session: its cancellation flag is what the EP polls.
        progress: called with (stage, done, total).

    Raises:
        PluginError: its class cannot be found in this process, or its `__init__` raised.
        EpctxError: its `__init__` raised this one.
    """

    def __init__(self, said: Mapping[str, Any], session: SessionOptions, progress: Progress) -> None:
        self.record = PluginRecord(**said["record"], state=PluginState.DISCOVERED)
        self._engine = CpuEngine(EnginePolicy())
        self.set_engine(said["engine"])
        self._session = ProviderSession(session, Registry(entry_points=False))
        outcome = import_provider(self.record)
        if outcome.cls is None:
            raise plugin_error(
                f"{self.record.label} cannot be used in a process of its own: {outcome.record.reason}.",
                self.record,
                hint="There its class has to be found by its module's name: a class of a script or of a function is not.",
            ) from outcome.error
        context = ProviderContext(
            options=MappingProxyType(said["options"]),
            session_config=MappingProxyType(said["session_config"]),
            purpose=Purpose(said["purpose"]),
            target=said["target"],
            model=ModelIdentity(**said["model"]),
            logger=logging.getLogger(f"epctx.{said['logger']}"),
            cancel=session.cancellation,
            progress=progress,
            scratch=scratch_folder,
            engine=self._engine,
            workspace=PrivateWorkspace(),
            weightless=WeightlessMode(said["weightless"]),
            intra_op_num_threads=said["threads"],
        )
        self._session.instances.add(self.record, outcome.cls, context)

    def set_engine(self, said: Mapping[str, Any]) -> None:
        """Set its engine up as `describe_instance` says."""
        for name, value in said.items():
            setattr(self._engine.policy, name, value)

    def call(self, hook: str, arguments: Mapping[str, Any]) -> Any:
        """Call a hook; see `ProviderInstances.call`."""
        return self._session.instances.call(self.record.name, hook, **arguments)

    def keep(self, runnables: Iterable[CompiledPartition]) -> None:
        """Take over what a hook gave: it is closed before the EP is shut down."""
        self._session.keep(runnables)

    def close(self) -> None:
        """Close what it made, and shut it down; what goes wrong there is logged."""
        self._session.close()
