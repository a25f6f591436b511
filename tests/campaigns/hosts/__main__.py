"""`make hosts`: programs from the package index, by onnxruntime and by epctx.

Each gets an environment of its own. The table goes into
programs-of-others.md.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.extend(map(str, Path(__file__).parents[1:3]))

from conformance.documented_numbers import write_block
from hosts.environments import (
    FOLDER,
    environment_of,
    find_networks,
    python_of,
    version_of,
)
from hosts.running import DROP_IN, ONNXRUNTIME, Outcome, compare
from hosts.scripts import Host, list_hosts

HEAD = (
    "program",
    "what it does",
    "networks",
    "sessions",
    "answers",
    "epctx in its place",
    "through context models",
)


def main() -> int:
    """Compare those that are named, or all, and then write the table; return 1 if one
    has a problem.
    """
    hosts = list_hosts()
    names = sys.argv[1:] or list(hosts)
    if unknown := [name for name in names if name not in hosts]:
        sys.exit(f"there is no program {unknown[0]}; there are {', '.join(hosts)}.")
    rows, wrong = [HEAD, ("---",) * len(HEAD)], []
    for host in (hosts[name] for name in names):
        sys.stdout.write(f"{host.name}\n")
        sys.stdout.flush()
        environment = environment_of(host)
        python = python_of(environment)
        networks = find_networks(environment, host.networks)
        outcome = compare(host, python, networks, FOLDER / "answers" / host.name)
        rows.append(
            _describe(host, version_of(host.package, python), networks, outcome)
        )
        wrong += [
            f"{host.name}, {way}: {problem}"
            for way, problems in outcome.problems.items()
            for problem in problems
        ]
    table = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    if names == list(hosts):
        write_block("hosts", f"\n{table}")
    sys.stdout.write("\n".join([table, *wrong, ""]))
    return bool(wrong)


def _describe(
    host: Host, version: str, networks: list[Path], outcome: Outcome
) -> tuple[str, ...]:
    through = ""
    if host.compiler:
        compiled = sum(bool(count) for count in outcome.context_nodes.values())
        through = (
            f"{host.compiler.removesuffix('ExecutionProvider')}, simulated: {compiled} "
            f"of {len(networks)} compiled, sessions with it: {outcome.loaded}; "
            f"{_judge(outcome, host.compiler)}"
        )
    elif host.writes:
        through = f"its own, by {host.writes}; {_judge(outcome, DROP_IN)}"
    return (
        f"{host.package} {version}",
        host.does,
        str(len(networks)) if networks else "made by the script",
        str(outcome.sessions),
        f"{outcome.values:,}",
        _judge(outcome, DROP_IN),
        through,
    )


def _judge(outcome: Outcome, way: str) -> str:
    if ONNXRUNTIME in outcome.problems:
        return "onnxruntime fails"
    problems = outcome.problems.get(way, [])
    if not problems:
        return "equal"
    failed = problems[0].startswith("ended with")
    return "fails" if failed else f"{len(problems)} differ"


if __name__ == "__main__":
    sys.exit(main())
