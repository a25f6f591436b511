"""`build_folder`: a folder for GenAI whose stages are context models."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from epctx_files import seal_folder

from epctx_core import (
    SessionOptions,
    ShareGroup,
    compile_cached,
    default_registry,
    inspect_model,
)
from epctx_core.errors import InvalidArgument, InvalidGraph, convert_errors
from epctx_genai.configuration import (
    CONFIG,
    GenaiFolder,
    Json,
    PathInput,
    Stage,
    open_file,
    read_folder,
    refuse_dlc,
)
from epctx_genai.inspection import StageInfo, inspect_folder, list_files
from epctx_genai.libraries import (
    list_secrets,
    load_native,
    name_for_genai,
    name_in_epctx,
)
from epctx_genai.replacement import DIGEST, PURPOSE, replace_folder

Progress: TypeAlias = "Callable[[str, int, int], None]"
"""Called with the name of a stage, the finished ones, and all."""

STAGES = "epctx"
"""Folder in the result with a folder of each compiled stage."""
_DECODER = ("model", "decoder")
"""Keys of the part whose session options others have that name none."""
_SMALLEST = 1 << 10
"""Bytes of a weight by which stages are found to have equal ones."""
_OF_SOURCE = (DIGEST, "model.sig")
"""Files that describe the source, not the result."""


@dataclass(frozen=True, kw_only=True)
class BuildSettings:
    """Settings of `build_folder`.

    Attributes:
        stages: names of those to compile; empty for all.
        share: whether stages with equal weights get one binary, for which they are
            compiled again. Qualcomm's simulator does not load it.
        local: whether `genai_config.json` gets the options that an EP of onnxruntime
            adds on this machine, such as the path of its back end. GenAI needs them
            where the EP's library finds none, as without an NPU.
    """

    stages: Sequence[str] = ()
    share: bool = False
    local: bool = False


@dataclass(frozen=True, kw_only=True)
class BuildReport:
    """Result of `build_folder`.

    Attributes:
        folder: the folder that was written.
        stages: its stages, in the order of the configuration.
    """

    folder: Path
    stages: tuple[StageInfo, ...]


@convert_errors("building the folder")
def build_folder(
    folder: PathInput,
    output: PathInput,
    sess_options: SessionOptions,
    *,
    settings: BuildSettings | None = None,
    progress: Progress | None = None,
) -> BuildReport:
    """Compile the stages of a folder for GenAI, and write a folder that GenAI loads.

    Each stage is compiled in a process of its own, into the compile cache; a stage of
    which the EPs take nothing stays as it is. Everything else of the folder is copied,
    but the sources of compiled stages. `genai_config.json` names the context models,
    and the EPs with their options. The result has the digest of a folder, and takes the
    place of an earlier one in one step.

    Args:
        folder: the folder with the source.
        output: the folder to write.
        sess_options: EPs and session options, as for `ModelCompiler`. Options of an EP
            in the configuration count, too; these have precedence.
        settings: which stages are compiled, and how; None for the defaults.
        progress: called with the name of a stage, the finished ones, and all.

    Raises:
        NoSuchFile, InvalidGraph: there is no such folder, or its configuration or a
            model is wrong.
        InvalidArgument: there is no EP, no such stage, or no stage of which an EP takes
            anything; or the output lies in the source, or has files of others.
        Fail: the output cannot be written.

    Examples:
        >>> options = SessionOptions()
        >>> options.add_provider("QNN", {"soc_model": "60"})
        >>> build_folder("phi", "phi-qnn", options).stages[1].file
        'epctx/prefill/model_ctx.onnx'
    """
    settings = settings or BuildSettings()
    source = read_folder(folder)
    target = Path(output)
    _check_arguments(source, target, sess_options, settings.stages)
    with replace_folder(target) as staging:
        build = _Build(source, sess_options, staging)
        build.compile_stages(settings.stages, progress)
        if settings.share:
            build.share()
        build.copy_rest()
        build.write_config(local=settings.local)
        seal_folder(staging, purpose=f"{PURPOSE}{_name_eps(sess_options)}")
        built = inspect_folder(staging).stages
    return BuildReport(folder=target, stages=built)


def _check_arguments(
    source: GenaiFolder, target: Path, options: SessionOptions, stages: Sequence[str]
) -> None:
    if not options.has_providers():
        raise InvalidArgument(
            "there is no EP to compile the stages for.",
            hint="Add one to the options, `--ep` on the command line.",
        )
    folders = (target.resolve(), source.path.resolve())
    if folders[0].is_relative_to(folders[1]) or folders[1].is_relative_to(folders[0]):
        raise InvalidArgument(
            f"the output {str(target)!r} is the source, in it or around it.",
            path=target,
            hint="Give another folder.",
        )
    names = {stage.name for stage in source.stages}
    for name in stages:
        if name not in names:
            raise InvalidArgument(
                f"there is no stage {name!r}; the folder has {', '.join(names)}.",
                path=source.path,
            )


def _name_eps(options: SessionOptions) -> str:
    return ", ".join(
        default_registry.resolve(name).name for name, _ in options.providers
    )


class _Build:
    """Build of one folder.

    Args:
        source: the source.
        options: EPs and session options of the host.
        staging: the folder to write.
    """

    def __init__(
        self, source: GenaiFolder, options: SessionOptions, staging: Path
    ) -> None:
        self._source = source
        self._options = options
        self._staging = staging
        # Names of the context models, by their stages.
        self._files: dict[Stage, str] = {}

    def compile_stages(self, names: Sequence[str], progress: Progress | None) -> None:
        """Compile the stages of these names, or all.

        Raises:
            InvalidArgument: no EP takes a part of any.
        """
        stages = self._source.stages
        chosen = [stage for stage in stages if not names or stage.name in names]
        for index, stage in enumerate(chosen):
            if progress is not None:
                progress(stage.name, index, len(chosen))
            self._compile(stage)
        if progress is not None:
            progress("", len(chosen), len(chosen))
        if not self._files:
            raise InvalidArgument(
                f"no EP takes a node of {', '.join(stage.name for stage in chosen)}; "
                "nothing is written.",
                path=self._source.path,
                hint="`epctx explain MODEL --ep EP` shows the reasons.",
            )

    def _compile(self, stage: Stage) -> None:
        """Compile a stage, and copy its context model; one that is compiled already, or
        of which no EP takes a part, stays.

        Raises:
            InvalidGraph: its payload is one that GenAI itself cannot load.
        """
        file = self._source.path / stage.file
        info = inspect_model(file)
        refuse_dlc(stage, info)
        if info.ep_contexts:
            return
        path = compile_cached(file, self._make_options(stage))
        compiled = inspect_model(path)
        if not compiled.ep_contexts:
            return

        # At once: the next stage may need the room in the cache.
        folder = f"{STAGES}/{stage.name}"
        for name in (path.name, *compiled.required_files):
            with (path.parent / name).open("rb") as content:
                self._copy(content, f"{folder}/{name}")
        self._files[stage] = f"{folder}/{path.name}"

    def _make_options(self, stage: Stage) -> SessionOptions:
        """Return the options of a stage: those of its EPs in the configuration, under
        those that the host gives.
        """
        made = self._options.copy()
        listed = {
            name_in_epctx(name): options
            for name, options in self._source.list_eps(stage).items()
        }
        made.providers = [
            (name, {**listed.get(default_registry.resolve(name).name, {}), **given})
            for name, given in self._options.providers
        ]
        if not any("ep.isolate" in key for key in made.config_entries):
            made.add_session_config_entry("ep.isolate", "compile")
        return made

    def share(self) -> None:
        """Compile stages with equal weights again, each group of them into one
        binary.
        """
        for stages in _group_by_weights(self._source, list(self._files)):
            folder = f"{STAGES}/{'+'.join(stage.name for stage in stages)}"
            with ShareGroup(output_dir=self._staging / folder) as group:
                for stage in stages:
                    group.compile(
                        self._source.path / stage.file,
                        self._make_options(stage),
                        name=stage.name,
                    )
            for stage in stages:
                shutil.rmtree(self._staging / STAGES / stage.name)
                self._files[stage] = f"{folder}/{stage.name}_ctx.onnx"

    def copy_rest(self) -> None:
        """Copy all files but those that only compiled stages need."""
        needed: set[str] = set()
        dropped: set[str] = set(_OF_SOURCE)
        for stage in self._source.stages:
            model = inspect_model(self._source.path / stage.file)
            files = list_files(stage.file, model)
            (dropped if stage in self._files else needed).update(files)
        for name in needed.union(list_names(self._source.path)) - (dropped - needed):
            with open_file(self._source.path, name) as file:
                self._copy(file, name)

    def _copy(self, file: BinaryIO, name: str) -> None:
        target = self._staging / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as copy:
            shutil.copyfileobj(file, copy)

    def write_config(self, *, local: bool) -> None:
        """Write the configuration: compiled stages have other models and EPs, the
        others the same options as before.
        """
        changes: dict[Stage, Json] = {}
        for stage in self._source.stages:
            session = dict(self._source.get_session_options(stage))
            if stage in self._files:
                session["provider_options"] = self._list_providers(stage, local=local)
                changes[stage] = {
                    "filename": self._files[stage],
                    "session_options": session,
                }
            elif any(compiled.keys == _DECODER for compiled in self._files):
                # It has those of the decoder, which change.
                session.setdefault("provider_options", [])
                changes[stage] = {"session_options": session}
        config = self._source.change(changes)
        _drop_secrets(config)
        text = json.dumps(config, indent=2, ensure_ascii=False)  # GenAI reads no \u
        (self._staging / CONFIG).write_text(text, encoding="utf-8")

    def _list_providers(self, stage: Stage, *, local: bool) -> list[Json]:
        """Return the EPs of a compiled stage as GenAI calls them, with options."""
        providers = []
        for name, given in self._make_options(stage).providers:
            native: Any = load_native(name) if local else None
            values = given if native is None else native.vendor_options(given)
            providers.append({name_for_genai(name): values})
        return providers


def _drop_secrets(value: Any) -> None:
    """Remove the secret options of installed EPs from a configuration."""
    if isinstance(value, dict):
        for listed in value.get("provider_options") or ():
            for name, options in listed.items():
                for secret in list_secrets(name_in_epctx(name)):
                    options.pop(secret, None)
    for inner in value.values() if isinstance(value, dict) else value:
        if isinstance(inner, dict | list):
            _drop_secrets(inner)


def list_names(folder: Path) -> Iterator[str]:
    """Yield the names of all files of a folder but hidden ones.

    Raises:
        InvalidGraph: a folder in it is a link.
    """
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in folders:
            path = Path(parent, name)
            if path.is_symlink():
                raise InvalidGraph(
                    f"the folder {str(path)!r} is a link.",
                    path=path,
                    hint="Put a copy of it in its place.",
                )
        for name in names:
            if not name.startswith("."):
                yield os.path.relpath(f"{parent}/{name}", folder)


def _group_by_weights(
    source: GenaiFolder, stages: Sequence[Stage]
) -> Iterator[list[Stage]]:
    """Yield the stages that have equal weights, in groups of two at least."""
    digests = {stage: _digest_weights(source.path / stage.file) for stage in stages}
    groups: list[list[Stage]] = []
    for stage in stages:
        equal = [
            group
            for group in groups
            if any(digests[stage] & digests[other] for other in group)
        ]
        merged = [other for group in equal for other in group]
        groups = [*(group for group in groups if group not in equal), [*merged, stage]]
    for group in groups:
        if len(group) > 1:
            yield group


def _digest_weights(path: Path) -> set[bytes]:
    """Return the digests of a model's larger weights."""
    import numpy as np
    import onnx
    from onnx import numpy_helper

    found = set()
    for tensor in onnx.load(path, load_external_data=False).graph.initializer:
        array = numpy_helper.to_array(tensor, str(path.parent))
        if array.nbytes >= _SMALLEST:
            # Types of ml_dtypes have no buffer of their own.
            content = np.ascontiguousarray(array).view(np.uint8)
            found.add(hashlib.sha256(content.data).digest())
    return found
