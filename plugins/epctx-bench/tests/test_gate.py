import json
import math
from copy import deepcopy

import numpy as np
import pytest
from epctx_bench.gate import Verdict, correct_pvalues, judge, parse_threshold
from simulated_reports import column, judge_simulated, report, simulate

from epctx_core.errors import InvalidArgument

pytestmark = pytest.mark.internal

BUSY = {"busy": True, "reason": "The machine is too busy.", "share": 0.4}


def judge_many(tries, turns, noise, **kinds):
    """Return the verdicts on simulated reports, which a seed determines."""
    random = np.random.default_rng([tries, turns, round(noise * 100)])
    return [judge_simulated(random, turns, noise, **kinds) for _ in range(tries)]


def one_row(saved, now, **arguments):
    """Return the verdict on the only row of two reports."""
    [row] = judge(saved, now, **arguments).rows
    return row


@pytest.mark.parametrize(
    ("turns", "noise", "least"),
    [(15, 0.02, 99), (15, 0.03, 95), (30, 0.03, 99), (15, 0.05, 65), (30, 0.05, 93)],
)
def test_a_slowdown_of_ten_percent_is_found(turns, noise, least):
    verdicts = judge_many(100, turns, noise, slowdown=1.1)

    assert verdicts.count(Verdict.SLOWER) >= least
    # What is not found is not called well.
    assert verdicts.count(Verdict.NOT_SLOWER) <= 3
    assert Verdict.FASTER not in verdicts


def test_a_speed_up_is_called_faster():
    verdicts = judge_many(20, 30, 0.03, slowdown=1 / 1.15)

    assert set(verdicts) == {Verdict.FASTER}


def test_no_change_raises_no_alarm_in_20_tries():
    assert Verdict.SLOWER not in judge_many(20, 15, 0.03)


def test_no_change_raises_an_alarm_in_less_than_one_of_100_tries():
    verdicts = judge_many(1000, 15, 0.05)

    # 1 % of 1,000 and three standard deviations of a binomial.
    assert verdicts.count(Verdict.SLOWER) <= 19
    assert verdicts.count(Verdict.NOT_SLOWER) >= 700


def test_a_small_change_that_is_certain_does_not_fail():
    verdicts = judge_many(50, 100, 0.02, slowdown=1.02)

    assert set(verdicts) == {Verdict.NOT_SLOWER}


def test_drift_that_both_columns_share_raises_no_alarm():
    verdicts = judge_many(100, 30, 0.02, drift=0.2)

    assert set(verdicts) == {Verdict.NOT_SLOWER}


def test_drift_does_not_hide_a_slowdown():
    verdicts = judge_many(50, 30, 0.02, drift=0.2, slowdown=1.1)

    assert set(verdicts) == {Verdict.SLOWER}


def test_outliers_neither_raise_an_alarm_nor_hide_a_slowdown():
    alarms = judge_many(100, 30, 0.02, outliers=0.05)
    found = judge_many(100, 30, 0.02, outliers=0.05, slowdown=1.1)

    assert Verdict.SLOWER not in alarms
    assert found.count(Verdict.SLOWER) >= 97


def test_few_turns_with_much_noise_are_too_noisy():
    row = one_row(
        report([1, 2, 1.5, 3, 1], [2] * 5), report([2, 1, 3, 1.5, 1], [2] * 5)
    )

    assert row.verdict is Verdict.TOO_NOISY
    assert "A slowdown of 10% cannot be excluded: measure more turns." in str(row)


def test_a_single_turn_is_too_noisy():
    judgement = judge(report([1], [2]), report([3], [2]))
    [row] = judgement.rows

    assert (row.verdict, row.high) == (Verdict.TOO_NOISY, math.inf)
    assert row.change == pytest.approx(3)
    assert judgement.as_dict()["rows"][0]["high"] is None
    assert judgement.undecided
    assert not judgement.failed
    assert "one sample, so no interval" in judgement.lines()[0]


def test_times_below_the_resolution_of_a_clock_are_compared():
    same = report([0.5] * 10, [1.0] * 10)
    slower = report([0.6] * 10, [1.0] * 10)

    assert one_row(same, same).verdict is Verdict.NOT_SLOWER
    assert one_row(same, slower).verdict is Verdict.SLOWER
    assert one_row(slower, same).verdict is Verdict.FASTER


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        ([0.3] * 9 + [0.6], [0.3] * 9 + [0.6], Verdict.NOT_SLOWER),
        ([0.3] * 9 + [0.6], [0.36] * 9 + [0.7], Verdict.SLOWER),
        ([0.3] * 10, [0.35, 0.36] * 5, Verdict.SLOWER),
        ([0.35, 0.36] * 5, [0.3] * 10, Verdict.FASTER),
    ],
)
def test_many_equal_samples_are_compared_without_a_warning(before, after, verdict):
    row = one_row(report(before, [0.7] * 10), report(after, [0.7] * 10))

    assert row.verdict is verdict
    assert row.low <= row.change <= row.high


@pytest.mark.parametrize("side", ["saved", "new"])
@pytest.mark.parametrize("slowdown", [0.5, 1.0, 1.6])
def test_a_busy_machine_is_too_noisy_for_what_waiting_may_explain(side, slowdown):
    random = np.random.default_rng(1)
    saved = simulate(random, 30, 0.02)
    now = simulate(random, 30, 0.02, slowdown=slowdown)
    assert judge(saved, now).failed == (slowdown > 1)

    (saved if side == "saved" else now)["noise"] = BUSY
    judgement = judge(saved, now)

    assert judgement.rows[0].verdict is Verdict.TOO_NOISY
    assert not judgement.failed
    assert (
        f"While the {side} report was measured: The machine is too busy."
        in judgement.lines()[0]
    )


def simulate_busy(shares, slowdown):
    """Return a saved and a new report whose columns waited for these shares."""
    random = np.random.default_rng(31)
    saved = simulate(random, 30, 0.02)
    now = simulate(random, 30, 0.02, slowdown=slowdown)
    for each, share in zip((saved, now), shares, strict=True):
        each["noise"] = {**BUSY, "share": share}
    return saved, now


@pytest.mark.parametrize(
    ("shares", "explained"), [((0.4, 0.0), 5 / 3), ((0.4, 0.5), 10 / 3)]
)
def test_a_slowdown_beyond_what_waiting_explains_is_found_on_a_busy_machine(
    shares, explained
):
    within = simulate_busy(shares, explained)
    beyond = simulate_busy(shares, explained * 1.2)

    assert one_row(*within).verdict is Verdict.TOO_NOISY
    row = one_row(*beyond)
    assert (row.verdict, row.reason) == (Verdict.SLOWER, "")


@pytest.mark.parametrize("share", [None, "0.4", True, 1, 1.5, -3.0, math.nan])
def test_a_busy_machine_whose_share_is_no_part_of_one_gets_no_verdict(share):
    row = one_row(*simulate_busy((share, 0.0), slowdown=100.0))

    assert row.verdict is Verdict.TOO_NOISY


def test_a_machine_that_has_become_slower_is_not_a_slower_program():
    random = np.random.default_rng(2)
    saved, now = (simulate(random, 30, 0.02) for _ in range(2))
    for each in now["columns"]:
        row = each["rows"]["load_warm"]
        row["samples"] = [3 * sample for sample in row["samples"]]

    assert one_row(saved, now).verdict is Verdict.NOT_SLOWER


def test_a_compile_is_compared_with_the_creation_of_onnxruntimes_session():
    random = np.random.default_rng(21)

    def measured(speed):
        sides = [
            seconds * speed * np.exp(random.normal(0, 0.02, 15))
            for seconds in (2.0, 0.3)
        ]
        made = report(sides[0], sides[1])
        made["columns"][0]["rows"] = {
            "compile": made["columns"][0]["rows"]["load_warm"]
        }
        return made

    judgement = judge(measured(1.0), measured(2.5))

    (row,) = judgement.rows
    assert (row.row, row.peer, row.verdict) == ("compile", "onnxruntime", "not slower")


@pytest.mark.parametrize("lacking", ["saved", "new", "both"])
def test_a_column_without_a_peer_in_both_reports_is_not_judged(lacking):
    alone = {"schema": 1, "columns": [column("QNN", [1.0] * 9)]}
    compared = report([2.0] * 9, [2.0] * 9)
    saved = compared if lacking == "new" else alone
    now = compared if lacking == "saved" else alone

    judgement = judge(saved, now)

    assert not judgement.rows
    assert not judgement.failed
    assert "QNN was not judged: it has no peer in both reports." in judgement.notes
    assert judgement.undecided
    assert judgement.lines()[-1] == (
        "UNDECIDED: nothing could be compared with the saved report."
    )


def test_a_peer_that_failed_is_no_peer():
    saved = report([1.0] * 9, [2.0] * 9)
    now = deepcopy(saved)
    now["columns"][1] |= {"error": "unknown operator", "rows": {}}
    judgement = judge(saved, now)

    assert not judgement.rows
    assert judgement.notes == (
        "QNN was not judged: it has no peer in both reports.",
        "onnxruntime was not judged: in the new report it failed (unknown operator).",
    )


def test_peers_of_two_names_are_not_compared():
    saved = report([1.0] * 9, [2.0] * 9)
    now = deepcopy(saved)
    now["columns"][0]["peer"] = now["columns"][1]["name"] = "another"

    assert not judge(saved, now).rows


def test_a_row_that_the_peer_lacks_is_not_judged():
    saved = report([1.0] * 9, [2.0] * 9)
    saved["columns"][0]["rows"]["run"] = {"unit": "s", "samples": [1.0] * 9}

    judgement = judge(saved, deepcopy(saved))

    assert [row.row for row in judgement.rows] == ["load_warm"]
    assert judgement.notes == (
        "QNN, run: its peer has no such row in both reports; it was not judged.",
    )


def test_what_only_one_report_has_is_named_and_does_not_fail():
    saved = report([1.0] * 9, [2.0] * 9)
    now = deepcopy(saved)
    saved["columns"].append(column("OpenVINO", [1.0], peer="onnxruntime"))
    now["columns"].append(column("VitisAI", [1.0], peer="onnxruntime"))
    now["columns"][0]["rows"]["run"] = {"unit": "s", "samples": [1.0]}
    judgement = judge(saved, now)

    assert not judgement.failed
    assert [row.row for row in judgement.rows if row.column == "QNN"] == ["load_warm"]
    assert set(judgement.notes) == {
        "OpenVINO is in the saved report only; it was not judged.",
        "VitisAI is in the new report only; it was not judged.",
        "QNN, run: it is in the new report only; it was not judged.",
    }


def test_many_rows_do_not_raise_more_alarms():
    random = np.random.default_rng(4)
    alarms = 0
    for _ in range(40):
        saved, now = (
            {
                "schema": 1,
                "columns": [
                    column("peer", np.exp(random.normal(0, 0.05, 15))),
                    *(
                        column(str(k), np.exp(random.normal(0, 0.05, 15)), peer="peer")
                        for k in range(10)
                    ),
                ],
            }
            for _ in range(2)
        )
        alarms += judge(saved, now).failed

    # Without a correction one in 10 would fail.
    assert alarms <= 1


def test_corrected_pvalues_are_those_of_holm():
    # Holm's example: smallest times 4, next times 3, never falling.
    corrected = correct_pvalues([0.01, 0.04, 0.03, 0.005])

    assert corrected == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert correct_pvalues([0.9, 0.8]) == [1.0, 1.0]
    assert correct_pvalues([]) == []


def test_a_judgement_is_sentences_and_json():
    random = np.random.default_rng(5)
    saved, now = simulate(random, 30, 0.02), simulate(random, 30, 0.02, slowdown=1.2)
    now["columns"][0]["rows"]["run"] = {"unit": "s", "samples": [1.0]}
    judgement = judge(saved, now)
    lines = judgement.lines()

    assert lines[0].startswith("QNN, load_warm: slower, +")
    assert lines[0].endswith(", relative to onnxruntime.")
    assert lines[-1] == (
        "1 row compared: 1 slower. A row fails if it is slower by more than 5% and that "
        "is significant at 0.01."
    )
    values = json.loads(json.dumps(judgement.as_dict(), allow_nan=False))
    assert values["failed"]
    assert values["rows"][0]["verdict"] == "slower"
    assert values["rows"][0]["low"] < values["rows"][0]["change"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"fail_above": -0.1}, "fail_above is -0.1"),
        ({"fail_above": math.nan}, "fail_above is nan"),
        ({"fail_above": 0.0}, "fail_above is 0.0"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments, named):
    same = report([1.0], [1.0])

    with pytest.raises(InvalidArgument, match=named):
        judge(same, same, **arguments)


def test_samples_that_are_not_pairs_are_refused_by_name():
    with pytest.raises(
        InvalidArgument, match="QNN, load_warm of the new report: 2 samples"
    ):
        judge(report([1.0], [1.0]), report([1.0, 2.0], [1.0]))


@pytest.mark.parametrize(
    ("text", "threshold"),
    [("5%", 0.05), ("0.05", 0.05), (" 12.5 %", 0.125)],
)
def test_a_threshold_is_a_percentage_or_a_part(text, threshold):
    assert parse_threshold(text) == pytest.approx(threshold)


@pytest.mark.parametrize(
    "text", ["", "%", "much", "0", "-5%", "nan", "inf%", "5", "150%"]
)
def test_a_threshold_that_is_not_a_slowdown_is_refused(text):
    with pytest.raises(InvalidArgument, match="the threshold"):
        parse_threshold(text)


def measured_with(*, options=None, threads=1, unit="s", **settings):
    """Return a report whose column was measured with these settings."""
    random = np.random.default_rng(4)
    made = simulate(random, 15, 0.02)
    made["settings"] = settings
    ours = made["columns"][0]
    ours["options"] = {"QNN": options or {}}
    ours["rows"]["load_warm"] |= {"threads": threads, "unit": unit}
    return made


@pytest.mark.parametrize(
    ("now", "reason"),
    [
        ({"options": {"mode": "balanced"}}, "QNN was not judged: its options of QNN"),
        ({"config": {"ep.x": "1"}}, "QNN was not judged: the session options differ"),
        (
            {"free_dimensions": {"batch": 4}},
            "QNN was not judged: the lengths of open dimensions differ",
        ),
        ({"threads": 4}, "QNN, load_warm: its threads was 1 and is 4"),
    ],
)
def test_what_was_measured_otherwise_is_not_judged(now, reason):
    judgement = judge(measured_with(), measured_with(**now))

    assert not judgement.rows
    assert any(note.startswith(reason) for note in judgement.notes)


def test_memory_is_no_time_and_is_not_judged():
    judgement = judge(measured_with(unit="bytes"), measured_with(unit="bytes"))

    assert not judgement.rows
    assert "QNN, load_warm: it is not a time; it was not judged." in judgement.notes
