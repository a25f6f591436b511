"""Points worth a look in a cut: short stays on the CPU, values that cross between EPs,
and refusals that cost most.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from epctx_cli.command import byte_size, count_nodes, counted

from epctx_report.cut import CPU_EP, SESSION

if TYPE_CHECKING:
    from epctx_report.cut import Crossing, Cut, Value
    from epctx_report.refusals import RefusalGroup

_LARGEST_ISLAND: Final = 3
_MOST_OF_A_KIND: Final = 5
_SUFFIX: Final = "ExecutionProvider"


@dataclass(frozen=True, kw_only=True)
class Advice:
    """Point that is worth a look.

    Attributes:
        title: the point in one line.
        text: sentences about why, and what to do.
        nodes, boxes: numbers of those concerned.
    """

    title: str
    text: str
    nodes: Sequence[int] = ()
    boxes: Sequence[int] = ()


def list_advice(
    cut: Cut, refusals: Sequence[RefusalGroup], node_seconds: Mapping[int, float]
) -> list[Advice]:
    """Return what is worth a look, the most costly first of each kind.

    Args:
        cut: the cut.
        refusals: of all EPs.
        node_seconds: time of a run by node, as far as it was measured.
    """
    return [
        *_find_islands(cut),
        *_find_copies(cut),
        *_find_costly_refusals(cut, refusals, node_seconds),
    ]


def _find_islands(cut: Cut) -> Iterator[Advice]:
    """Yield the operators of few CPU nodes between boxes of EPs."""
    is_of_ep = [box.is_of_ep for box in cut.boxes]
    fed = {each.target for each in cut.crossings if is_of_ep[each.source]}
    feeding = {each.source for each in cut.crossings if is_of_ep[each.target]}

    islands: dict[tuple[str, ...], list[int]] = {}
    for number in sorted(fed & feeding):
        box = cut.boxes[number]
        if (
            box.ep == CPU_EP
            and len(box.nodes) <= _LARGEST_ISLAND
            and not is_of_ep[number]
        ):
            operators = tuple(cut.nodes[node].operator for node in box.nodes)
            islands.setdefault(tuple(sorted({*operators})), []).append(number)

    shown = sorted(islands.items(), key=lambda item: -len(item[1]))[:_MOST_OF_A_KIND]
    for names, boxes in shown:
        own = {*boxes}
        size = _describe_sizes(
            each for each in cut.crossings if each.source in own or each.target in own
        )
        label = " and ".join(names)
        nodes = [node for box in boxes for node in cut.boxes[box].nodes]
        yield Advice(
            title=f"{label} on the CPU between partitions, {_count_times(len(boxes))}",
            text=(
                f"{'It' if len(boxes) == 1 else 'Each'} ends one partition and begins "
                f"another. A run takes {size} to the CPU or back. If the EP "
                "took what is there, or the model did without, the neighbours could be "
                "one partition."
            ),
            nodes=nodes,
        )


def _count_times(number: int) -> str:
    return "once" if number == 1 else f"{number:,} times"


def _list_values(crossings: Iterable[Crossing]) -> list[Value]:
    """Return the values that cross, each once however many boxes read it."""
    values = {(each.value.producer, each.value.name): each.value for each in crossings}
    return list(values.values())


def _sum_bytes(crossings: Iterable[Crossing]) -> int:
    """Return the bytes of values that cross, as far as their sizes are known."""
    return sum(value.type.bytes or 0 for value in _list_values(crossings))


def _count_open(crossings: Iterable[Crossing]) -> int:
    """Return the number of values that cross and have an open size."""
    return sum(value.type.bytes is None for value in _list_values(crossings))


def _describe_sizes(crossings: Iterable[Crossing]) -> str:
    """Return the bytes of values that cross, and the number of those of open size."""
    across = list(crossings)
    size, open_ = byte_size(_sum_bytes(across)), _count_open(across)
    if not open_:
        return f"in all {size}"
    values = f"{counted(open_, 'value')} of open size"
    if open_ == len(_list_values(across)):
        return values
    return f"at least {size}, and {values},"


def _find_copies(cut: Cut) -> Iterator[Advice]:
    """Yield the pairs of EPs between which values cross, with the bytes of a run."""
    pairs: dict[tuple[str, str], list[Crossing]] = {}
    for crossing in cut.crossings:
        pair = (cut.boxes[crossing.source].ep, cut.boxes[crossing.target].ep)
        if pair[0] != pair[1] and SESSION not in pair:
            pairs.setdefault(pair, []).append(crossing)

    sizes = {pair: _sum_bytes(across) for pair, across in pairs.items()}
    for pair in sorted(pairs, key=lambda pair: -sizes[pair])[:_MOST_OF_A_KIND]:
        values = _list_values(pairs[pair])
        open_ = _count_open(pairs[pair])
        source, target = (ep.removesuffix(_SUFFIX) for ep in pair)
        size = f"{byte_size(sizes[pair])} a run"
        example = "The largest"
        if open_ == len(values):
            size, example = "of open sizes", "One"
        elif open_:
            size = f"at least {size}"
            example = "The largest of known size"
        largest = max(values, key=lambda value: value.type.bytes or 0)
        yield Advice(
            title=f"From {source} to {target}: {counted(len(values), 'value')}, {size}",
            text=(
                "Values that cross between EPs may have to be copied. "
                f"{example} is {largest.name!r}, {largest.type.text}."
            ),
            boxes=sorted({box for each in pairs[pair] for box in each[:2]}),
        )


def _find_costly_refusals(
    cut: Cut, refusals: Sequence[RefusalGroup], node_seconds: Mapping[int, float]
) -> Iterator[Advice]:
    """Yield the reasons that leave most nodes, or most of a run's time, to the CPU."""
    costs = []
    for refusal in refusals:
        left = [node for node in refusal.nodes if cut.nodes[node].ep == CPU_EP]
        seconds = sum(node_seconds.get(node, 0.0) for node in left)
        known = (cut.nodes[node].explanation for node in left)
        inside = sum(each.inside for each in known if each is not None)
        if left:
            costs.append((seconds, len(left) + inside, inside, refusal, left))

    costs.sort(key=lambda cost: (-cost[0], -cost[1]))
    for seconds, count, inside, refusal, left in costs[:_MOST_OF_A_KIND]:
        ep = refusal.ep.removesuffix(_SUFFIX)
        reason = refusal.reason.rstrip(".")
        time = f", {seconds * 1e3:.3g} ms of a run" if seconds else ""
        leaves = f"{ep} leaves {count_nodes(count, inside)}{',' if inside else ''}"
        yield Advice(
            title=f"{leaves} to the CPU{time}: {reason}",
            text=(
                "If the model had another operator there, or the EP took it, these "
                "nodes could run with their neighbours."
            ),
            nodes=left,
        )
