"""The terminal's table: same rows as the page, within a terminal's width."""

import dataclasses
import io

from rich.console import Console
from sample_report import sample_report

from metaharness.runlog import formats
from metaharness.runlog.report_data import ScoreRow
from metaharness.runlog.table import attribution_table, score_table, wide_console
from metaharness.stats import Interval


def text(rows, width=108):
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(score_table(rows))
    return console.file.getvalue()


def test_every_row_is_there_with_its_interval():
    rows = sample_report().scores
    shown = text(rows)
    for row in rows:
        assert f"{row.loss.mean:.2f}" in shown
    assert "Best random of 14" in shown
    assert shown.index("all tasks (144 items)") < shown.index("gsm8k (48 items)")
    line = next(line for line in shown.splitlines() if "Learned " in line)
    assert line.count("−") == 3  # a mean and two bounds, not wrapped
    assert line.count("%") == 2  # a share and its interval
    assert max(map(len, shown.splitlines())) <= 108


def test_columns_that_nothing_fills_are_left_out():
    row = ScoreRow(method="mine", task="t", num_items=1, loss=Interval(2.5, 2, 3))
    shown = text([row])
    assert "mine" in shown and "2.50" in shown
    assert "match" not in shown and "random" not in shown


def test_no_rows_make_an_empty_table():
    assert text([]).strip() == ""


def test_markup_in_names_is_shown_as_text():
    row = ScoreRow(method="[red]", task="[b]", num_items=1, loss=Interval(2.5, 2, 3))
    assert "[red]" in text([row]) and "[b]" in text([row])


def test_without_a_terminal_the_table_is_not_squeezed(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    wide_console().print(score_table(sample_report().scores))
    shown = capsys.readouterr().out
    assert "Learned, sampled, mean of 8 " in shown


def gain_text(rows, width=108):
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(attribution_table(rows))
    return console.file.getvalue()


def test_the_gain_has_its_losses_and_its_effects_in_rows_and_columns():
    rows = sample_report().attribution
    shown = gain_text(rows)
    assert shown.index("all tasks (144 items)") < shown.index("gsm8k (48 items)")
    for row in rows:
        for part in (*row.cells, *row.effects):
            if getattr(part, "name", "") != "harness_against_weights":
                assert formats.number(part.loss.mean) in shown
    lines = shown.splitlines()
    at = lines.index(next(line for line in lines if "number_sequence" in line))
    base, adapted, brings, both, beyond, shots, template, kl = lines[at + 1 : at + 9]
    row = rows[1]
    for line, names in (
        (base, ("harness_at_base",)),
        (adapted, ("harness_at_adapted",)),
        (brings, ("weights_at_seed", "weights_at_learned")),
        (both, ("total",)),
        (beyond, ("interaction",)),
    ):
        means = [formats.number(row.effect(n).loss.mean, sign=True) for n in names]
        places = [line.rindex(f"{mean} (") for mean in means]
        assert places == sorted(places)
        assert line.count(" to ") == len(names)
    assert "6% exact" in base
    assert "exemplars" in shots and "same choice" in template
    assert "0.0412 (0.0305 to 0.0531)" in kl
    assert max(map(len, lines)) <= 108


def test_a_harness_alone_has_one_row_of_losses():
    row = sample_report().attribution[0]
    alone = dataclasses.replace(
        row, cells=row.cells[:2], effects=row.effects[:1], slots=(), divergence=None
    )
    shown = gain_text([alone])
    assert "base weights" in shown and "adapted" not in shown and "both" not in shown
    assert formats.number(alone.effects[0].loss.mean) in shown
