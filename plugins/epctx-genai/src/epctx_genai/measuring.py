"""`bench_folders`: first token and tokens a second, of folders in turns."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, TypeAlias

from epctx_core import inspect_model
from epctx_core.errors import Fail, InvalidArgument, convert_errors
from epctx_genai.configuration import GenaiFolder, PathInput, read_folder
from epctx_genai.inspection import describe_stage, list_files
from epctx_genai.libraries import import_genai

_COMMAND = (sys.executable, "-P", "-m", "epctx_genai.child")
_LONGEST_REASON = 1000

Progress: TypeAlias = "Callable[[str, int, int], None]"
"""Called with a folder's name, the finished measurements, and all."""


@dataclass(frozen=True, kw_only=True)
class FolderTimes:
    """Times of a folder: one sample for each turn, in seconds.

    Attributes:
        folder: the folder.
        load: from the call that loads it to the model.
        first_token: from the prompt to the first token.
        each_token: mean time of each token after that.
        stage_bytes: size of each stage with its files; a binary that stages share
            counts in each.
        bytes: size of all of these files together.
        simulated: its EPs that are simulated here.
    """

    folder: str
    load: tuple[float, ...]
    first_token: tuple[float, ...]
    each_token: tuple[float, ...]
    stage_bytes: dict[str, int]
    bytes: int
    simulated: tuple[str, ...]

    @property
    def tokens_per_second(self) -> float:
        """Tokens a second, by the median of the turns."""
        return 1 / statistics.median(self.each_token)


@convert_errors("measuring the folders")
def bench_folders(
    folders: Sequence[PathInput],
    *,
    prompt: int = 32,
    tokens: int = 32,
    turns: int = 3,
    time_limit: float = 600.0,
    progress: Progress | None = None,
) -> list[FolderTimes]:
    """Measure how fast GenAI generates with folders, each in fresh processes, in turns.

    The tokens of the prompt are random, from a seed, and chosen greedily after that.

    Args:
        folders: the folders, such as a source and what was built of it.
        prompt: length of the prompt in tokens.
        tokens: number of tokens to generate after the first.
        turns: number of processes for each folder.
        time_limit: seconds after which a process is ended.
        progress: called with a folder's name, the finished measurements, and all.

    Raises:
        NoSuchFile, InvalidGraph: there is no such folder, or its configuration or a
            model is wrong.
        InvalidArgument: a number is below 1.
        PackageMissing: onnxruntime-genai is not installed.
        Fail: GenAI does not load a folder, or ends with an error.
    """
    if min(prompt, tokens, turns) < 1:
        raise InvalidArgument("prompt, tokens and turns are 1 or more.")
    import_genai()
    found = [read_folder(folder) for folder in folders]
    samples: list[list[dict[str, float]]] = [[] for _ in found]
    total = turns * len(found)
    for turn in range(total):
        # In turns: what slows the machine down for a while is in all.
        index = turn % len(found)
        if progress is not None:
            progress(found[index].path.name, turn, total)
        samples[index].append(
            _ask_child(found[index].path, [prompt, tokens], time_limit)
        )
    return [
        _make_times(folder, taken) for folder, taken in zip(found, samples, strict=True)
    ]


def _make_times(
    folder: GenaiFolder, samples: Sequence[dict[str, float]]
) -> FolderTimes:
    stages = [describe_stage(folder, stage) for stage in folder.stages]
    models = {s.file: inspect_model(folder.path / s.file) for s in folder.stages}
    names = {name for file in models for name in list_files(file, models[file])}
    return FolderTimes(
        folder=str(folder.path),
        load=tuple(each["load"] for each in samples),
        first_token=tuple(each["first_token"] for each in samples),
        each_token=tuple(each["each_token"] for each in samples),
        stage_bytes={stage.name: stage.bytes for stage in stages},
        bytes=sum((folder.path / name).stat().st_size for name in names),
        simulated=tuple({ep: 0 for stage in stages for ep in stage.simulated}),
    )


def _ask_child(folder: Path, numbers: Sequence[int], seconds: float) -> dict[str, Any]:
    """Return what a fresh process measures.

    Raises:
        Fail: it ended with an error, or took too long.
    """
    with TemporaryFile("w+", errors="replace") as said:
        try:
            done = subprocess.run(  # noqa: S603 - this package's own module
                (*_COMMAND, str(folder), *map(str, numbers)),
                stdout=subprocess.PIPE,
                stderr=said,
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise Fail(
                f"{str(folder)!r} generated nothing within {seconds:g} seconds.",
                path=folder,
                hint="Measure fewer tokens, or give it more time.",
            ) from error
        if done.returncode == 0:
            answer: dict[str, Any] = json.loads(done.stdout)
            return answer
        said.seek(0)
        words = " ".join(said.read().split())[-_LONGEST_REASON:]
    raise Fail(
        f"generating with {str(folder)!r} ended with {done.returncode}: {words}",
        path=folder,
    )
