"""The page: valid, self-contained, escaped, complete, and only what was given."""

import dataclasses
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from sample_report import sample_report

from metaharness.errors import RunError
from metaharness.runlog import report as report_page
from metaharness.runlog.report_data import (
    Candidate,
    Curve,
    Note,
    Prompt,
    Report,
    Series,
    SlotReport,
)
from metaharness.runlog.rundir import RunDirectory

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
    "part", ["scores", "trust", "curves", "slots", "prompts", "budget"]
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


def test_the_same_report_gives_the_same_page(sample, html):
    assert report_page.render(sample) == html


def test_a_run_keeps_the_page_and_its_numbers(tmp_path, sample, html):
    run = RunDirectory.create(tmp_path / "run", config={}, provenance={})
    assert report_page.write(sample, run) == run.report_file
    assert run.report_file.read_text() == html
    assert report_page.render(report_page.load(run.path)) == html
    with pytest.raises(RunError, match=r"report.json: expected a file of a run"):
        report_page.load(tmp_path)
