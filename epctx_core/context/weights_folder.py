"""Where a model's external weights are looked for: beside the model, or in the folder that the host named."""

from __future__ import annotations

from pathlib import Path

from epctx_core.context.paths import ModelFolder, OpenedFile
from epctx_core.errors import InvalidArgument, NoSuchFile

FOLDER_OPTION = "session.model_external_initializers_file_folder_path"


class WeightsFolder:
    """Opens the files of weights that one model names.

    Args:
        model: its path, None for a model from bytes.
        option: the folder that the host named, which replaces the model's.

    Attributes:
        opened: the real path of each file, with the name that the model has for it.

    Raises:
        NoSuchFile: the option names no folder.
    """

    def __init__(self, model: Path | None, option: str | None) -> None:
        self.opened: dict[str, str] = {}
        self._folder: ModelFolder | None = None
        if option is not None:
            if not Path(option).is_dir():
                raise NoSuchFile(f"{FOLDER_OPTION} names {option!r}, which is no folder.", path=option)
            self._folder = ModelFolder(Path(option))
        elif model is not None:
            self._folder = ModelFolder(model.parent, model)

    def open(self, location: str, tensor: str) -> OpenedFile:
        """Open a file of weights; see `epctx_core.graph.weights.OpenExternal`."""
        if self._folder is None:
            raise InvalidArgument(
                f"the model given as bytes keeps the weight {tensor!r} in the file {location!r}, "
                "and bytes have no folder.",
                hint=f"Set the session option {FOLDER_OPTION!r}.",
            )
        file = self._folder.open(location, what="the weights file", node=tensor)
        self.opened.setdefault(file.path, location)
        return file
