"""`inspect_folder`: the stages of a folder, and what flows between them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from epctx_core import inspect_model
from epctx_core.errors import convert_errors
from epctx_genai.configuration import GenaiFolder, PathInput, Stage, read_folder

if TYPE_CHECKING:
    from epctx_core import ModelInfo

_GENAI = "onnxruntime-genai"
"""Source of what no stage gives, such as tokens and caches."""


@dataclass(frozen=True, kw_only=True)
class StageInfo:
    """Stage of a folder.

    Attributes:
        name: its name.
        file: its model.
        runs_for: `prompt`, `tokens` or `both`.
        eps: EPs that run a part of it; none for a plain model.
        providers: EPs that its session has, as the configuration names them.
        partitions: number of its EPContext nodes.
        other_nodes: number of nodes that are left to the CPU EP, those in subgraphs and
            functions included.
        bytes: size of its model and of the files that this needs.
        simulated: those of `eps` that are simulated here.
    """

    name: str
    file: str
    runs_for: str
    eps: tuple[str, ...]
    providers: tuple[str, ...]
    partitions: int
    other_nodes: int
    bytes: int
    simulated: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Flow:
    """Value that one stage gives others.

    Attributes:
        value: its name.
        type: its type and shape, as its receiver declares them.
        source: the stage that gives it, or `onnxruntime-genai`.
        target: the stage that gets it.
    """

    value: str
    type: str
    source: str
    target: str


@dataclass(frozen=True, kw_only=True)
class FolderInfo:
    """Description of a folder.

    Attributes:
        type: the model's type, in GenAI's words.
        stages: its stages, in the order of the configuration.
        flows: what flows between the stages of a pipeline.
    """

    type: str
    stages: tuple[StageInfo, ...]
    flows: tuple[Flow, ...]


@convert_errors("inspecting the folder")
def inspect_folder(folder: PathInput) -> FolderInfo:
    """Describe a folder for GenAI, without loading anything of it.

    Args:
        folder: the folder.

    Raises:
        NoSuchFile, InvalidGraph: there is no such folder, or its configuration or a
            model is wrong.
    """
    found = read_folder(folder)
    return FolderInfo(
        type=str(found.config["model"].get("type", "")),
        stages=tuple(describe_stage(found, stage) for stage in found.stages),
        flows=tuple(_list_flows(found)),
    )


def list_files(file: str, info: ModelInfo) -> list[str]:
    """Return the names of a model and of the files that it needs, in the folder."""
    parent = Path(file).parent
    beside = (os.path.normpath(parent / name) for name in info.required_files)
    return [os.path.normpath(file), *beside]


def describe_stage(folder: GenaiFolder, stage: Stage) -> StageInfo:
    """Return what is known of a stage by its model and the configuration."""
    info = inspect_model(folder.path / stage.file)
    files = list_files(stage.file, info)
    runs = {"prompt": stage.on_prompt, "tokens": stage.on_tokens}
    return StageInfo(
        name=stage.name,
        file=stage.file,
        runs_for="both" if all(runs.values()) else "".join(r for r in runs if runs[r]),
        eps=tuple(dict.fromkeys(node.source for node in info.ep_contexts)),
        providers=tuple(folder.list_eps(stage)),
        partitions=len(info.ep_contexts),
        other_nodes=info.other_nodes,
        bytes=sum((folder.path / name).stat().st_size for name in files),
        simulated=tuple(
            dict.fromkeys(
                node.source
                for node in info.ep_contexts
                if node.plugin and node.plugin["simulated"]
            )
        ),
    )


def _list_flows(folder: GenaiFolder) -> list[Flow]:
    """Return what the stages of pipelines give each other."""
    flows = []
    givers: dict[str, list[Stage]] = {}
    for stage in folder.stages:
        types = inspect_model(folder.path / stage.file).inputs if stage.inputs else {}
        for name in stage.inputs:
            # Of prefill and decode, one gives it at a time.
            sources = [
                giver.name
                for giver in givers.get(name, ())
                if (giver.on_prompt and stage.on_prompt)
                or (giver.on_tokens and stage.on_tokens)
            ]
            flows += [
                Flow(
                    value=name,
                    type=types.get(name, ""),
                    source=source,
                    target=stage.name,
                )
                for source in sources or [_GENAI]
            ]
        for name in stage.outputs:
            givers.setdefault(name, []).append(stage)
    return flows
