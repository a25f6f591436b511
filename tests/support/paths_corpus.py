"""Names of files that strangers and mistakes come up with: one table for all that reads
or writes by a name.

Knows nothing of epctx. `ESCAPES` must be refused wherever a name has to stay in a
folder; `AWKWARD` may be refused or mean a file inside, as the system has it; `LINKS`
lie in a folder that `lay_out` has prepared.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

ESCAPES: Final = {
    "empty": "",
    "this folder": ".",
    "this folder with a slash": "./",
    "the folder above": "..",
    "above": "../outside.bin",
    "above by a folder": "sub/../../outside.bin",
    "above by a missing folder": "missing/../../outside.bin",
    "above and back in": "../folder/../outside.bin",
    "above with backslashes": "..\\outside.bin",
    "above with mixed slashes": "sub\\../..\\outside.bin",
    "absolute": "/etc/hostname",
    "absolute with two slashes": "//srv/share/x.bin",
    "share": "\\\\srv\\share\\x.bin",
    "share of a device": "\\\\?\\C:\\x.bin",
    "device of Windows": "\\\\.\\COM1",
    "rooted": "\\x.bin",
    "drive": "C:\\x.bin",
    "drive with a slash": "c:/x.bin",
    "folder": "sub/",
    "folder with a backslash": "sub\\",
    "folder by dots": "sub/..",
    "zero byte": "a\0.bin",
    "zero byte before a way out": "a\0/../../outside.bin",
    "long part": "n" * 300,
    "long path": "/".join(["n" * 100] * 60),
    "very long": "n" * 70_000,
}
"""Refused on every side."""

AWKWARD: Final = {
    "drive without a slash": "C:x.bin",
    "alternate stream": "a.bin:stream",
    "alternate stream of data": "a.bin::$DATA",
    "device CON": "CON",
    "device NUL": "NUL",
    "device with an extension": "COM1.txt",
    "device in small letters": "aux",
    "device in a folder": "sub/PRN.bin",
    "trailing dot": "a.bin.",
    "trailing space": "a.bin ",
    "leading space": " a.bin",
    "dots only": "...",
    "hidden": ".a.bin",
    "dash": "-rf.bin",
    "backslash": "a\\b.bin",
    "new line": "a\nb.bin",
    "escape sequence": "a\x1b[2Jb.bin",
    "delete": "a\x7fb.bin",
    "tab": "a\tb.bin",
    "composed": "\u00e9.bin",
    "decomposed": "e\u0301.bin",
    "right to left": "a\u202enib.exe",
    "wide": "\uff0e\uff0e\uff0foutside.bin",
    "percent": "%2e%2e%2foutside.bin",
    "variable": "$HOME.bin",
    "tilde": "~/x.bin",
    "glob": "*.bin",
    "quote": "a'\"b.bin",
    "other case": "A.BIN",
    "staging": ".epctx-0123456789abcdef",
    "in staging": ".epctx-0123456789abcdef/new/a.bin",
    "dots inside": "sub/../a.bin",
    "this folder before": "./a.bin",
    "slashes": "sub//b.bin",
    "longest part": "n" * 240,
}
"""Refused, or a file inside the folder."""

NOT_UTF8: Final = {
    "invalid byte": b"\xff.bin",
    "surrogate": b"\xed\xa0\x80.bin",
    "cut": b"a\xc3",
}
"""Names that are bytes in a protobuf and no text."""

LINKS: Final = {
    "link out": "link_out.bin",
    "link out by a chain": "link_chain.bin",
    "link to itself": "link_loop.bin",
    "file below a link out": "folder_out/outside.bin",
    "file below a link to itself": "folder_loop/x.bin",
    "dangling link": "link_nowhere.bin",
    "link to a device": "link_device.bin",
    "pipe": "pipe.bin",
    "folder in its place": "sub",
}
"""Refused: what lies there is no file of the folder."""


def lay_out(folder: Path) -> None:
    """Make what `LINKS` names in a folder, beside which lies `outside.bin`."""
    (folder / "sub").mkdir(exist_ok=True)
    targets = {
        "link_out.bin": "../outside.bin",
        "link_chain.bin": "link_out.bin",
        "link_loop.bin": "link_loop.bin",
        "folder_out": "..",
        "folder_loop": "folder_loop",
        "link_nowhere.bin": "../nowhere.bin",
        "link_device.bin": "/dev/zero",
    }
    for name, target in targets.items():
        (folder / name).symlink_to(target)
    os.mkfifo(folder / "pipe.bin")
