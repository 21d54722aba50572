"""The page: valid, self-contained, escaped, complete, and only what was given."""

import dataclasses
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from sample_report import sample_report

from metaharness.errors import RunError
from metaharness.runlog import formats
from metaharness.runlog import report as report_page
from metaharness.runlog.attribution_words import gain_sentences
from metaharness.runlog.report_data import (
    Candidate,
    Curve,
    Effect,
    Note,
    Prompt,
    Report,
    Series,
    SlotReport,
)
from metaharness.runlog.rundir import RunDirectory
from metaharness.stats import Interval

VOID = {"meta", "br"}
NASTY = '<script>alert("$x$")</script> & \' <b>'


class Page(HTMLParser):
    """Checks nesting and collects ids, links, text and section ids."""

    def __init__(self, html):
        super().__init__()
        self.stack, self.ids, self.links, self.tags, self.text = [], [], [], [], []
        self.feed(html)
        assert self.stack == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value)
            if name in ("href", "xlink:href", "src"):
                self.links.append(value)
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.stack.pop()

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag

    def handle_data(self, data):
        if "style" not in self.stack:
            self.text.append(data)


@pytest.fixture(scope="module")
def sample():
    return sample_report()


@pytest.fixture(scope="module")
def html(sample):
    return report_page.render(sample)


@pytest.fixture(scope="module")
def page(html):
    return Page(html)


def test_the_page_needs_nothing_but_itself(html, page):
    # every link stays on the page, and its target is there
    assert all(link.startswith("#") for link in page.links)
    assert {link[1:] for link in page.links} <= set(page.ids)
    assert not {"script", "img", "link", "iframe"} & set(page.tags)
    assert "@import" not in html
    outside = re.findall(r"https?://[^\"'\s<]*", html)
    assert set(outside) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }
    assert re.findall(r"url\((?!#)", html) == []


def test_ids_are_unique_and_clip_paths_found(html, page):
    assert len(set(page.ids)) == len(page.ids)
    assert {name for name in re.findall(r"url\(#([^)]*)\)", html)} <= set(page.ids)


def test_charts_are_well_formed_named_and_in_the_pages_colours(html):
    svgs = re.findall(r"<svg.*?</svg>", html, re.DOTALL)
    assert len(svgs) == 4 + 2 + 3  # score charts, curves, slots
    for svg in svgs:
        root = ElementTree.fromstring(svg)
        assert root.get("role") == "img" and len(root.get("aria-label")) > 20
        assert not re.findall(r"#[0-9a-f]{6}\b", svg)  # no colour but the variables
        assert "<style" not in svg and "font-family" not in svg
    style = re.search(r"<style>(.*?)</style>", html, re.DOTALL)[1]
    used = set(re.findall(r"var\(--(\w+)\)", "".join(svgs)))
    light, dark = style.split("@media (prefers-color-scheme: dark)")[:2]
    for variable in used:
        assert f"--{variable}:" in light and f"--{variable}:" in dark


def test_every_number_and_text_of_the_report_is_on_the_page(sample, page):
    text = " ".join(" ".join(page.text).split())
    for row in sample.scores:
        assert f"{row.loss.mean:,.2f}" in text
    for row in sample.attribution:
        for part in (*row.cells, *row.effects):
            assert formats.number(part.loss.mean) in text
            assert formats.bounds(part.loss) in text.replace("+", "")
        assert gain_sentences(row)[0] in text
    for row in sample.trust:
        assert f"{row.spearman:.2f}" in text
    for slot in sample.slots:
        for candidate in slot.candidates:
            assert candidate.name in text
            assert " ".join(candidate.text.split()) in text
    for prompt in sample.prompts:
        assert " ".join(prompt.text.split()) in text
    assert sample.notes[0].text in text
    assert "120,772" in text  # forward tokens of the whole run
    assert "schedule.stages[0].updates" in text and "packages.jax" in text


def test_nothing_in_the_report_can_become_markup():
    slot = SlotReport(
        task=NASTY,
        slot=NASTY,
        k=1,
        candidates=(Candidate(NASTY, NASTY, NASTY * 5), Candidate("b")),
        steps=(0,),
        probabilities=((0.7, 0.3),),
        chosen=(0,),
    )
    report = Report(
        title=NASTY,
        model=NASTY,
        command=NASTY,
        notes=(Note(NASTY),),
        curves=(Curve(NASTY, NASTY, (Series(NASTY, (0,), (1.0,)),), x_label=NASTY),),
        slots=(slot,),
        prompts=(Prompt(NASTY, NASTY, answer=NASTY),),
        config={NASTY: NASTY},
        provenance={"created": NASTY},
    )
    page = Page(report_page.render(report))
    assert "script" not in page.tags and "b" not in page.tags
    assert " ".join(page.text).count(NASTY) >= 10


def test_dollars_in_a_chart_are_dollars_and_not_formulas():
    curve = Curve("c", "y", (Series("s", (0, 1), (0.0, 1.0)),), x_label="$2 of $3_x")
    html = report_page.render(Report(title="x", curves=(curve,)))
    svg = ElementTree.fromstring(re.search(r"<svg.*?</svg>", html, re.DOTALL)[0])
    assert "$2 of $3_x" in [element.text for element in svg.iter()]


def test_sections_that_are_not_given_are_not_there():
    page = Page(report_page.render(Report(title="bare")))
    assert page.ids == [] and "table" not in page.tags and "svg" not in page.tags
    assert "No scores were written down" in " ".join(page.text)


@pytest.mark.parametrize(
    "part",
    ["scores", "attribution", "trust", "curves", "slots", "prompts", "budget"],
)
def test_each_section_stands_alone(sample, part):
    alone = dataclasses.replace(Report(title="x"), **{part: getattr(sample, part)})
    page = Page(report_page.render(alone))
    sections = {link[1:] for link in page.links if "-" not in link}
    assert len(sections) == 1


def test_a_slot_with_an_unlikely_choice_shows_it_outside_the_fold():
    size = 30
    slot = SlotReport(
        task="t",
        slot="exemplars",
        k=1,
        candidates=tuple(Candidate(f"c{i:02d}") for i in range(size)),
        steps=(0,),
        probabilities=(tuple((size - i) / 500 for i in range(size)),),
        chosen=(size - 1,),
    )
    html = report_page.render(Report(title="x", slots=(slot,)))
    before_fold = html[html.index('id="choice"') : html.index("more candidates")]
    assert f">c{size - 1}<" in before_fold
    assert ">c20<" not in before_fold
    assert "21 more candidates" in html


def test_scores_without_random_harnesses_have_a_table_and_no_chart(sample):
    rows = tuple(row for row in sample.scores if row.method in ("mode", "zero_shot"))
    page = Page(report_page.render(Report(title="x", scores=rows)))
    assert "svg" not in page.tags and "table" in page.tags


def section(html, name):
    return re.search(rf'<section id="{name}">.*?</section>', html, re.DOTALL)[0]


def test_the_gain_is_coloured_only_where_it_is_shown(sample):
    row = sample.attribution[-1]
    sure, open_ = Interval(-1.0, -1.5, -0.5), Interval(-1.0, -2.5, 0.5)
    for change, classes in ((sure, {"better-number"}), (open_, set())):
        one = dataclasses.replace(
            row,
            effects=tuple(dataclasses.replace(e, loss=change) for e in row.effects),
            slots=tuple(dataclasses.replace(s, loss=change) for s in row.slots),
        )
        html = report_page.render(Report(title="x", attribution=(one,)))
        shown = section(html, "attribution")
        assert set(re.findall(r"\w+-number", shown)) == classes
        # which of two parts is the larger is no gain, nor whether they overlap
        for label in ("Harness alone minus weights", "Both, beyond the sum"):
            compared = shown[shown.index(label) :]
            assert "-number" not in compared[: compared.index("</tr>")]
        assert shown.count("deployed") == 1


def test_all_tasks_together_come_first_and_are_open(html):
    shown = section(html, "attribution")
    parts = re.findall(r"<h3>(.*?) <span.*?<details( open)?", shown, re.DOTALL)
    assert parts[:2] == [("All tasks", " open"), ("gsm8k", "")]
    assert len(parts) == 4


def test_the_gain_of_a_harness_alone_has_one_row_and_no_weights(sample):
    row = sample.attribution[0]
    alone = dataclasses.replace(
        row,
        cells=tuple(
            dataclasses.replace(cell, exact_match=None)
            for cell in row.cells
            if cell.weights == "base"
        ),
        effects=(Effect("harness_at_base", row.effects[0].loss),),
        slots=(row.slots[1],),
        divergence=None,
    )
    html = report_page.render(Report(title="x", attribution=(alone,)))
    Page(html)
    shown = section(html, "attribution")
    assert "Base weights" in shown and "Adapted weights" not in shown
    assert "Exact match" not in shown and "exact<" not in shown
    assert "same choice" in shown and "KL" not in shown
    assert "no weights were trained" in shown
    assert shown.count("deployed") == 1


def test_the_same_report_gives_the_same_page(sample, html):
    assert report_page.render(sample) == html


def test_a_run_keeps_the_page_and_its_numbers(tmp_path, sample, html):
    run = RunDirectory.create(tmp_path / "run", config={}, provenance={})
    assert report_page.write(sample, run) == run.report_file
    assert run.report_file.read_text() == html
    assert report_page.render(report_page.load(run.path)) == html
    with pytest.raises(RunError, match=r"report.json: expected a file of a run"):
        report_page.load(tmp_path)
