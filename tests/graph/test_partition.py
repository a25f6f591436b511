"""Partitions are convex, acyclic together, as few as possible, and never split what an
EP keeps together.
"""

# ruff: noqa: SLF001 - a state that only the inside has

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epctx_core.graph.partition import (
    CyclicGroupsError,
    Partitioner,
    compute_level_keys,
    shift_late,
)

pytestmark = pytest.mark.internal


@st.composite
def dags(draw, max_size=24):
    """Predecessors of each node of a DAG, nodes in topological order."""
    size = draw(st.integers(1, max_size))
    return [
        sorted(draw(st.sets(st.integers(0, i - 1), max_size=3))) if i else []
        for i in range(size)
    ]


@st.composite
def claims(draw, max_size=24):
    """A DAG and the nodes that an EP takes."""
    predecessors = draw(dags(max_size))
    return predecessors, sorted(
        draw(st.sets(st.sampled_from(range(len(predecessors)))))
    )


@st.composite
def owners(draw, count, max_size=24):
    """A DAG and, for each node, the number of the EP that takes it; `count` means
    nobody.
    """
    predecessors = draw(dags(max_size))
    size = len(predecessors)
    return predecessors, draw(
        st.lists(st.integers(0, count), min_size=size, max_size=size)
    )


def is_acyclic(predecessors, groups):
    """Return whether contracting the groups leaves a DAG."""
    unit = {node: ("group", i) for i, group in enumerate(groups) for node in group}
    edges = {
        (unit.get(p, p), unit.get(node, node))
        for node, needed in enumerate(predecessors)
        for p in needed
        if unit.get(p, p) != unit.get(node, node)
    }
    waiting = Counter(target for _, target in edges)
    units = {unit.get(node, node) for node in range(len(predecessors))}
    ready = [u for u in units if not waiting[u]]
    done = 0
    while ready:
        current = ready.pop()
        done += 1
        for source, target in edges:
            if source == current:
                waiting[target] -= 1
                if not waiting[target]:
                    ready.append(target)
    return done == len(units)


def reachable(predecessors):
    """For each node all nodes before it."""
    before = []
    for needed in predecessors:
        before.append(set(needed).union(*(before[p] for p in needed)))
    return before


def is_convex(predecessors, group):
    before = reachable(predecessors)
    inside = set(group)
    return not any(
        node not in inside
        and before[node] & inside
        and any(node in before[m] for m in inside)
        for node in range(len(predecessors))
    )


def set_partitions(items):
    """All ways to divide items into sets."""
    if not items:
        yield []
        return
    first, *rest = items
    for division in set_partitions(rest):
        yield [[first], *division]
        for i, group in enumerate(division):
            yield [*division[:i], [first, *group], *division[i + 1 :]]


@given(claims())
def test_every_claimed_node_is_in_exactly_one_group(harness):
    predecessors, claimed = harness

    groups = Partitioner(predecessors).group([[node] for node in claimed])

    assert sorted(itertools.chain(*groups)) == claimed
    assert all(group == sorted(group) for group in groups)
    assert groups == sorted(groups)


@given(claims())
def test_groups_are_convex_and_leave_a_graph_without_cycles(harness):
    predecessors, claimed = harness

    groups = Partitioner(predecessors).group([[node] for node in claimed])

    assert all(is_convex(predecessors, group) for group in groups)
    assert is_acyclic(predecessors, groups)


@given(claims())
def test_single_nodes_are_grouped_as_they_would_be_among_units(harness):
    predecessors, claimed = harness
    # One more node, taken already and connected to nothing, keeps the short way from
    # being gone.
    among_units = Partitioner([*predecessors, []])
    among_units.take([[len(predecessors)]])

    assert among_units.group([[n] for n in claimed]) == Partitioner(predecessors).group(
        [[n] for n in claimed]
    )


@given(claims(max_size=7))
def test_no_division_into_fewer_groups_exists(harness):
    predecessors, claimed = harness

    groups = Partitioner(predecessors).group([[node] for node in claimed])

    fewest = min(len(d) for d in set_partitions(claimed) if is_acyclic(predecessors, d))
    assert len(groups) == fewest


@given(claims(max_size=16))
def test_no_two_groups_could_be_merged(harness):
    predecessors, claimed = harness

    groups = Partitioner(predecessors).group([[node] for node in claimed])

    for one, other in itertools.combinations(groups, 2):
        rest = [g for g in groups if g is not one and g is not other]
        assert not is_acyclic(predecessors, [one + other, *rest])


def crossing(predecessors, claimed, keys):
    """Count the values of claimed nodes that leave their group."""
    leaving = set()
    for node, needed in enumerate(predecessors):
        leaving.update(p for p in needed if claimed[p] and keys[p] != keys[node])
    return len(leaving)


@given(claims())
def test_shifting_keeps_the_number_of_groups_and_lets_no_more_values_cross(harness):
    predecessors, nodes = harness
    claimed = [node in nodes for node in range(len(predecessors))]
    early = compute_level_keys(predecessors, claimed)
    late = list(early)

    shift_late(predecessors, late)

    assert {k for k, c in zip(late, claimed, strict=True) if c} == {
        k for k, c in zip(early, claimed, strict=True) if c
    }
    assert all((key % 2 == 0) == c for key, c in zip(late, claimed, strict=True))
    assert all(
        late[p] <= late[node]
        for node, needed in enumerate(predecessors)
        for p in needed
    )
    assert crossing(predecessors, claimed, late) <= crossing(
        predecessors, claimed, early
    )


def test_a_node_is_put_beside_its_only_reader():
    # 0 feeds 3; between 1 and 3 stands 2, which nobody claims: 0 belongs to 3, not to
    # 1.
    predecessors = [[], [], [1], [0, 2]]

    groups = Partitioner(predecessors).group([[0], [1], [3]])

    assert groups == [[0, 3], [1]]


def test_a_node_is_put_beside_its_only_reader_among_units_of_several_nodes_too():
    # The same; 1 and 4 are one unit.
    predecessors = [[], [], [1], [0, 2], [1]]

    groups = Partitioner(predecessors).group([[0], [1, 4], [3]])

    assert groups == [[0, 3], [1, 4]]


@given(owners(count=2))
def test_what_several_eps_take_one_after_another_leaves_no_cycle(harness):
    predecessors, owner = harness
    partitioner = Partitioner(predecessors)
    everything = []

    for ep in (0, 1, 2):
        groups = partitioner.group([[n] for n, o in enumerate(owner) if o == ep])
        partitioner.take(groups)
        everything += groups

    assert is_acyclic(predecessors, everything)
    order = partitioner.execution_order()
    assert sorted(map(sorted, order)) == sorted(everything)
    place = {node: i for i, group in enumerate(order) for node in group}
    assert all(
        place[p] <= place[node]
        for node, needed in enumerate(predecessors)
        for p in needed
    )


@given(owners(count=2, max_size=7))
def test_a_later_ep_gets_the_fewest_groups_that_the_earlier_one_leaves_possible(
    harness,
):
    predecessors, owner = harness
    partitioner = Partitioner(predecessors)
    partitioner.take(partitioner.group([[n] for n, o in enumerate(owner) if o == 0]))
    taken = [list(group) for group in partitioner._fixed]
    rest = [n for n, o in enumerate(owner) if o == 1]

    groups = partitioner.group([[n] for n in rest])

    assert len(groups) == min(
        len(d) for d in set_partitions(rest) if is_acyclic(predecessors, d + taken)
    )


@given(owners(count=2))
def test_a_unit_is_never_split(harness):
    predecessors, owner = harness
    # Units that can be taken together: the groups that a first grouping of the same
    # nodes gave.
    units = [
        *Partitioner(predecessors).group([[n] for n, o in enumerate(owner) if o == 0]),
        *([n] for n, o in enumerate(owner) if o == 1),
    ]
    try:
        groups = Partitioner(predecessors).group(units)
    except CyclicGroupsError:
        assert not is_acyclic(predecessors, units)
        return

    assert all(sum(set(unit) <= set(group) for group in groups) == 1 for unit in units)
    assert is_acyclic(predecessors, groups)


def test_a_unit_that_encloses_another_node_is_named():
    chain = [[], [0], [1], [2]]

    with pytest.raises(CyclicGroupsError) as caught:
        Partitioner(chain).group([[3], [0, 2]])

    assert caught.value.groups == [1]


def test_units_that_enclose_each_other_are_both_named():
    # 0 -> 1 and 2 -> 3, units {0, 3} and {1, 2}: each waits for the other.
    with pytest.raises(CyclicGroupsError) as caught:
        Partitioner([[], [0], [], [2]]).group([[0, 3], [1, 2]])

    assert sorted(caught.value.groups) == [0, 1]


def test_taken_groups_that_enclose_each_other_have_no_order():
    partitioner = Partitioner([[], [0], [], [2]])
    partitioner.take([[0, 3], [1, 2]])

    with pytest.raises(CyclicGroupsError, match="makes a cycle"):
        partitioner.execution_order()


def test_nothing_claimed_gives_no_group():
    assert Partitioner([[], [0]]).group([]) == []
    assert Partitioner([]).execution_order() == []


@given(dags())
def test_the_order_without_groups_is_the_models(predecessors):
    assert Partitioner(predecessors).execution_order() == [
        [n] for n in range(len(predecessors))
    ]


@given(dags(), st.data())
def test_groups_of_neighbours_stay_in_the_models_order(predecessors, data):
    size = len(predecessors)
    cuts = sorted({0, size, *data.draw(st.sets(st.integers(0, size)))})
    runs = [list(range(a, b)) for a, b in itertools.pairwise(cuts)]
    partitioner = Partitioner(predecessors)
    partitioner.take(runs)

    assert partitioner.execution_order() == runs


def test_only_what_a_group_needs_is_moved_in_front_of_it():
    # The group {0, 3} needs 2; 1 and 4 have nothing to do with it.
    partitioner = Partitioner([[], [], [], [2], []])
    partitioner.take([[0, 3]])

    assert partitioner.execution_order() == [[2], [0, 3], [1], [4]]


class CountedList(list):
    """Predecessors that count how often they are looked up."""

    def __init__(self, items):
        super().__init__(items)
        self.looked_up = 0

    def __getitem__(self, index):
        self.looked_up += 1
        return super().__getitem__(index)

    def __iter__(self):
        for item in super().__iter__():
            self.looked_up += 1
            yield item


def chain(length):
    return CountedList([[i - 1] if i else [] for i in range(length)])


@pytest.mark.parametrize(
    "claim", [range(20_000), range(0, 20_000, 2)], ids=["all", "every second"]
)
def test_grouping_a_long_chain_looks_at_each_node_a_fixed_number_of_times(claim):
    predecessors = chain(20_000)

    groups = Partitioner(predecessors).group([[node] for node in claim])

    assert len(groups) == (1 if len(claim) == 20_000 else 10_000)
    assert predecessors.looked_up <= 2 * 20_000


def test_ordering_a_long_chain_of_groups_looks_at_each_node_once_and_does_not_recurse():
    predecessors = chain(20_000)
    partitioner = Partitioner(predecessors)
    partitioner.take([[i, i + 1] for i in range(0, 20_000, 2)])

    order = partitioner.execution_order()

    assert [group[0] for group in order] == list(range(0, 20_000, 2))
    assert predecessors.looked_up <= 20_000


def test_a_chain_that_has_to_be_walked_backwards_does_not_recurse():
    # The first group needs the end of the chain, so everything else has to come before
    # it.
    predecessors = [[], *([i - 1] if i > 1 else [] for i in range(1, 20_000))]
    partitioner = Partitioner([*predecessors, [19_999]])
    partitioner.take([[0, 20_000]])

    order = partitioner.execution_order()

    assert order[-1] == [0, 20_000]
    assert order[0] == [1]


def first_nodes_in_order(predecessors, groups):
    """The groups and other nodes in the order of their first nodes, None if one needs a
    later one.
    """
    unit = {node: group[0] for group in groups for node in group}
    firsts = [node for node in range(len(predecessors)) if unit.get(node, node) == node]
    for node, needed in enumerate(predecessors):
        if any(unit.get(p, p) > unit.get(node, node) for p in needed):
            return None
    return firsts


@given(claims())
def test_groups_stand_where_their_first_nodes_stood_if_that_can_be_run(harness):
    predecessors, claimed = harness
    partitioner = Partitioner(predecessors)
    groups = partitioner.group([[node] for node in claimed])
    partitioner.take(groups)

    order = partitioner.execution_order()

    made = {node: place for place, unit in enumerate(order) for node in unit}
    assert sorted(made) == list(range(len(predecessors)))
    assert all(
        made[p] <= made[node]
        for node, needed in enumerate(predecessors)
        for p in needed
    )
    in_order = first_nodes_in_order(predecessors, groups)
    assert in_order is None or [unit[0] for unit in order] == in_order
