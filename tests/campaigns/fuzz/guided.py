"""Fuzzing that follows coverage, by atheris: `python guided.py CORPUS SECONDS
[TARGET]`, in the environment that `make fuzz` makes.

Without a target, what loads and verifies models; `targets.py` has the others.

CORPUS grows: what reaches new code is kept there and is where the next run begins. A
case is the files of a folder, packed; mutations are those of the suite. What must not
be lies minimised in CORPUS.finds, one folder each, ready for `corpus/`. The process
with the cases may die of them: this one starts it again, and ends with 1 if anything
was found.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random

import atheris

PACKAGES = (
    "epctx_core",
    "epctx_sim_sdk",
    "epctx_sim_qnn",
    "epctx_sim_openvino",
    "epctx_sim_vitisai",
    "epctx_files",
    "epctx_cache",
    "epctx_native_formats",
)
sys.path.extend(map(str, Path(__file__).parents[1:3]))
with atheris.instrument_imports(include=list(PACKAGES)):
    from fuzz import worker
    from fuzz.cases import Case, Seed, changed, packed, read_seeds, unpacked
    from fuzz.isolated import Worker
    from fuzz.seeds import write_seeds
    from fuzz.targets import TARGETS
    from support.mutations import smaller

SECONDS_OF_A_CASE = 20
MINIMISING = 60.0
"""Seconds for one find."""


def main(corpus: Path, seconds: float, target: str = worker.MODELS) -> int:
    """Fuzz, minimise, and print the numbers."""
    finds = corpus.with_name(f"{corpus.name}.finds")
    for folder in (corpus, finds):
        folder.mkdir(parents=True, exist_ok=True)
    before, executed, starts = len(list(corpus.iterdir())), 0, 0
    with tempfile.TemporaryDirectory() as scratch:
        seeds = Path(scratch) / "seeds"
        seeds.mkdir()
        _write_seeds(seeds, target)
        for seed in read_seeds(seeds):
            (corpus / f"seed-{seed.name}").write_bytes(packed(seed.files, seed.model))
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > SECONDS_OF_A_CASE:
            starts += 1
            executed += _fuzzed(corpus, finds, seeds, Path(scratch), int(left), target)
        found = _minimised(finds, seeds, Path(scratch) / "case", target)
    grown = len(list(corpus.iterdir())) - before
    sys.stdout.write(
        f"{executed} executions in {starts} processes, {grown} cases more in the "
        f"corpus, {len(found)} finds\n"
    )
    for folder, fault in found.items():
        sys.stdout.write(f"\n{folder}\n{fault}\n")
    return bool(found)


def _write_seeds(folder: Path, target: str) -> None:
    (write_seeds if target == worker.MODELS else TARGETS[target].write_seeds)(folder)


def _fuzzed(
    corpus: Path,
    finds: Path,
    seeds: Path,
    scratch: Path,
    seconds: int,
    target: str,
) -> int:
    """Run the process with the cases until it ends; return how many it had."""
    log = scratch / "log"
    with log.open("w") as out:
        subprocess.run(
            [
                sys.executable,
                __file__,
                "--cases",
                seeds,
                scratch / "guided",
                finds,
                target,
                corpus,
                f"-max_total_time={seconds}",
                f"-timeout={SECONDS_OF_A_CASE}",
                "-rss_limit_mb=6000",
                # A run may ask for what its model says; the worker's limit has it
                # refused.
                f"-malloc_limit_mb={1 << 30}",
                "-max_len=400000",
                "-print_final_stats=1",
                "-detect_leaks=0",
                f"-artifact_prefix={finds}/died-",
            ],
            stdout=out,
            stderr=subprocess.STDOUT,
            check=False,
        )
    text = log.read_text(errors="replace")
    (finds.with_name("log.txt")).write_text(text)
    counts = re.findall(r"^#(\d+)\s", text, re.MULTILINE) + re.findall(
        r"executed_units:\s*(\d+)", text
    )
    return max(map(int, counts), default=0)


def cases(
    seeds: Path, folder: Path, finds: Path, target: str, arguments: list[str]
) -> None:
    """Give cases to epctx until the time is over; atheris ends the process."""
    with atheris.instrument_imports(include=list(PACKAGES)):
        known = read_seeds(seeds)
        # Imports all that is imported late.
        worker.prepare(known, folder, target)
    change = changed if target == worker.MODELS else TARGETS[target].change
    told: set[str] = set()

    def one(data: bytes) -> None:
        case = unpacked(data)
        answer = worker.attempt(
            worker.put(
                Case(number=-1, seed=case.name, model=case.model, files=case.files),
                folder,
            ),
            folder,
            target,
        )
        for fault in answer["faults"]:
            if (kind := kind_of(fault)) not in told:
                told.add(kind)
                name = hashlib.sha256(kind.encode()).hexdigest()[:16]
                (finds / f"fault-{name}").write_bytes(data)

    def mutate(data: bytes, most: int, number: int) -> bytes:
        random = Random(number)  # noqa: S311 - atheris draws the number
        seed = random.choice(known) if not data else unpacked(data)
        files = change(random, seed, [*known, seed])
        made = packed(files, seed.model)
        return made if len(made) <= most else data[:most]

    def cross(first: bytes, second: bytes, most: int, number: int) -> bytes:
        random = Random(number)  # noqa: S311 - the same
        seed = unpacked(first)
        made = packed(change(random, seed, [unpacked(second)]), seed.model)
        return made if len(made) <= most else first[:most]

    atheris.Setup(
        [sys.argv[0], *arguments], one, custom_mutator=mutate, custom_crossover=cross
    )
    atheris.Fuzz()


def kind_of(fault: str) -> str:
    """Return what tells a fault from others: the action, the exception, and the last
    place of ours.
    """
    places = re.findall(r'File "[^"]*?/([^/"]+\.py)", line \d+, in (\S+)', fault)
    error = re.findall(r"^([A-Za-z_][\w.]*)(?::|$)", fault.rstrip().splitlines()[-1])
    return f"{fault.partition(':')[0]} {places[-1:]} {error}"


def _minimised(finds: Path, seeds: Path, folder: Path, target: str) -> dict[Path, str]:
    """Shrink each find as long as it stays one; return folders and faults."""
    found: dict[Path, str] = {}
    with Worker(seeds, folder, target) as running:
        for file in sorted(path for path in finds.iterdir() if path.is_file()):
            find = finds / f"{file.name}.files"

            def fault_of(seed: Seed, find: Path = find) -> str | None:
                find.mkdir(exist_ok=True)
                for path in find.iterdir():
                    path.unlink()
                for name, content in seed.files.items():
                    (find / name).write_bytes(content)
                faults = running.run([find]).faults
                return faults[0] if faults else None

            best = unpacked(file.read_bytes(), file.name)
            fault = fault_of(best)
            if fault is None:  # not in a process of its own, or fixed since
                continue
            end = time.monotonic() + MINIMISING
            random = Random(0)  # noqa: S311 - the same every time
            while time.monotonic() < end:
                tried = Seed(
                    name=best.name, model=best.model, files=smaller(random, best.files)
                )
                again = fault_of(tried)
                if again is not None and kind_of(again) == kind_of(fault):
                    best = tried
            found[find] = fault_of(best) or fault
    return found


if __name__ == "__main__":
    if sys.argv[1] == "--cases":
        cases(*map(Path, sys.argv[2:5]), sys.argv[5], arguments=sys.argv[6:])
    sys.exit(main(Path(sys.argv[1]), float(sys.argv[2]), *sys.argv[3:]))
