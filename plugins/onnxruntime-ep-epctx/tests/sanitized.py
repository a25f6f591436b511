"""Runs the tests of this folder with a library that AddressSanitizer and
UndefinedBehaviorSanitizer watch (`make bridge`).

The package is copied, and the copy is what the tests import: the library of the
environment stays as it is. Arguments go to pytest.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
PACKAGE = HERE.parent / "src" / "onnxruntime_ep_epctx"
SOURCE = HERE.parent / "native" / "bridge.c"
COMPILER = shlex.split(os.environ.get("CC", "cc"))
FLAGS = (
    *("-std=c11", "-g", "-O1", "-fPIC", "-fvisibility=hidden", "-shared"),
    *("-fno-omit-frame-pointer", "-fsanitize=address,undefined"),
    "-fno-sanitize-recover=undefined",
)
# It counts the memory of the allocator that a sanitizer replaces.
LEFT_OUT = f"{HERE.relative_to(ROOT)}/test_lifetimes.py::test_sessions_and_runs_leave_no_memory_behind"


def find_runtimes() -> str:
    """Return the sanitizers' libraries, which a process that is not built for them
    loads first.
    """
    paths = [
        subprocess.run(
            [*COMPILER, f"-print-file-name={name}"],
            capture_output=True,
            check=True,
            text=True,
        ).stdout.strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    if missing := [path for path in paths if not Path(path).is_file()]:
        sys.exit(
            f"{COMPILER[0]} has no {', '.join(missing)}: set CC to a gcc that has."
        )
    return ":".join(paths)


def main(arguments: list[str]) -> int:
    """Run the tests; return 1 if one failed or a sanitizer found anything."""
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder, "packages", PACKAGE.name)
        shutil.copytree(
            PACKAGE, package, ignore=shutil.ignore_patterns("*.so", "__*__")
        )
        library = package / "libonnxruntime_ep_epctx.so"
        subprocess.run(
            [*COMPILER, *FLAGS, str(SOURCE), "-o", str(library), "-ldl"], check=True
        )

        # A report goes to a file: tests read the output of the processes they start,
        # and expect some of them to fail.
        reports = Path(folder, "reports")
        reports.mkdir()
        env = {
            **os.environ,
            "PYTHONPATH": f"{package.parent}:{os.environ.get('PYTHONPATH', '')}",
            "LD_PRELOAD": find_runtimes(),
            # Python and onnxruntime keep much until the process ends.
            "ASAN_OPTIONS": f"detect_leaks=0:log_path={reports}/address",
            "UBSAN_OPTIONS": f"print_stacktrace=1:log_path={reports}/undefined",
        }
        command = ["-m", "pytest", str(HERE), f"--deselect={LEFT_OUT}", *arguments]
        code = subprocess.run(
            [sys.executable, *command], check=False, cwd=ROOT, env=env
        ).returncode

        found = sorted(reports.iterdir())
        for report in found:
            print(f"\n{report.name}\n{report.read_text(errors='replace')}")
        print(f"The sanitizers reported {len(found)} faults.")
    return 1 if code or found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
