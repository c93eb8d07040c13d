"""Writing a report: one page that holds everything, and figures beside it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from fetchsgd.report import ReportError, write_report
from fetchsgd.report import write as writing

ENDINGS = ("png", "pdf")


class Outline(HTMLParser):
    """The tags of a page, and the text of its scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        if self.tags and self.tags[-1][0] == "script" and data.strip():
            self.scripts.append(data)


@pytest.fixture(scope="module")
def page(report) -> str:
    return report.page.read_text(encoding="utf-8")


def embedded(page: str) -> dict:
    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    text = re.search(r'id="data">(.*?)</script>', page, re.DOTALL).group(1)
    return json.loads(text, parse_constant=refuse)


def test_the_summary_counts_every_run(report):
    assert (report.finished, report.diverged, report.unfinished) == (60, 2, 1)
    assert len(report.runs) == 63
    assert report.tasks == ("cifar10", "personachat")
    counts = "63 runs (60 finished, 2 diverged, 1 unfinished)"
    assert str(report) == f"{counts}: {report.page}, and 30 figures beside it"


def test_each_task_has_its_figures(report):
    names = {path.name for path in report.figures}
    kinds = ("upload", "download", "overall")
    figures = (*kinds, *(f"{kind}-paper" for kind in kinds), "curves")
    # Low-bit runs, to be compared with the others, are in one of the tasks only.
    stems = [f"report-{task}-{figure}" for task in ("cifar10", "personachat") for figure in figures]
    assert names == {
        f"{stem}.{ending}" for stem in (*stems, "report-cifar10-frontiers") for ending in ENDINGS
    }
    for path in report.figures:
        start = b"\x89PNG" if path.suffix == ".png" else b"%PDF"
        assert path.parent == report.page.parent
        assert path.read_bytes().startswith(start)


def test_the_page_loads_nothing(page):
    tags = Outline(page).tags
    assert not {tag for tag, _ in tags} & {"link", "img", "iframe", "object", "embed", "base"}
    assert not [attrs for _, attrs in tags if "src" in attrs or "srcset" in attrs]
    assert all(
        re.fullmatch(r"report-[a-z0-9]+-[a-z]+(-paper)?\.(png|pdf)", attrs["href"])
        for _, attrs in tags
        if "href" in attrs
    )
    # The one address is the name of SVG's namespace, which nobody loads.
    assert set(re.findall(r"https?://[^\s\"'<]+", page)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"@import|url\(\s*['\"]?[a-z]+:|fetch\(|XMLHttpRequest|import\(", page)


def test_names_cannot_become_tags(page):
    outline = Outline(page)
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert" in page
    assert [tag for tag, _ in outline.tags].count("script") == 2
    names = [run["name"] for task in embedded(page)["tasks"] for run in task["runs"]]
    assert "<script>alert('name')</script>" in names


def test_the_page_has_every_run_in_data_and_table(page):
    tasks = embedded(page)["tasks"]
    assert [len(task["runs"]) for task in tasks] == [61, 2]
    rows = page.count("<tr class=")
    assert rows == 63
    assert "still-going (unfinished after 1,140 rounds)" in page
    assert "exploded (diverged after 2,400 rounds)" in page
    assert [task["higherIsBetter"] for task in tasks] == [True, False]


def test_settings_that_all_runs_share_are_listed_once(page):
    shared = re.search(r"Settings that do not differ</summary><dl>(.*?)</dl>", page).group(1)
    assert shared.startswith("<dt>All runs</dt><dd>task.clients=1000, train.clients_per_round=10")
    assert "<dt>FetchSGD</dt><dd>hash=fresh, rows=5</dd>" in shared
    assert not re.search(r"\bk=|\bcols=", shared)


def test_the_header_says_where_the_runs_come_from(page):
    for words in ("<b>60</b> finished", "NVIDIA H100", "0123abc", "torch 2.13.0"):
        assert words in page
    assert "relative to uncompressed SGD at the baseline’s number of rounds" in page


def test_the_same_runs_give_the_same_files(make_run, tmp_path):
    make_run("one")
    first = write_report([tmp_path / "runs"], tmp_path / "a" / "report.html")
    second = write_report([tmp_path / "runs"], tmp_path / "b" / "report.html")
    for one, other in zip(
        [first.page, *first.figures], [second.page, *second.figures], strict=True
    ):
        assert one.read_bytes() == other.read_bytes()


def test_a_report_without_any_finished_run(make_run, tmp_path):
    make_run("bad", status="diverged", value=None, compression=None)
    (make_run("new", status="unfinished") / "metrics.jsonl").write_text("")
    summary = write_report([tmp_path / "runs"], tmp_path / "report.html")
    assert (summary.finished, summary.diverged, summary.unfinished) == (0, 1, 1)
    assert len(summary.figures) == 14


def test_every_link_leads_to_a_figure_that_was_written(report, page):
    links = [attrs["href"] for _, attrs in Outline(page).tags if "href" in attrs]
    assert sorted(links) == sorted(path.name for path in report.figures)


def test_runs_of_an_older_version_are_shown_as_the_paper_counts(make_run, tmp_path):
    make_run("old", wire=None)
    summary = write_report([tmp_path / "runs"], tmp_path / "report.html")
    page = summary.page.read_text(encoding="utf-8")
    (task,) = embedded(page)["tasks"]
    assert len(summary.figures) == 8
    assert (task["count"], list(task["counted"])) == ("paper", ["paper"])
    assert "On the wire" not in page
    assert "How bytes are counted" not in page


def test_runs_of_both_versions_stand_on_one_page(make_run, tmp_path):
    make_run("old", options={"k": 5}, wire=None)
    make_run("new")
    summary = write_report([tmp_path / "runs"], tmp_path / "report.html", figures=False)
    page = summary.page.read_text(encoding="utf-8")
    (task,) = embedded(page)["tasks"]
    points = {group["name"]: group["points"] for group in task["groups"]}
    assert points["old"]["wire"] == {}
    assert set(points["old"]["paper"]) == set(points["new"]["wire"])
    assert task["count"] == "paper"
    assert "not counted on the wire, and can be seen only as the paper counts: old" in page


def test_unknown_methods_and_awkward_task_names(make_run, tmp_path):
    for index, method in enumerate(("new$a$", "<b>", "other")):
        make_run(f"r{index}", method=method, task="a/b: $x$")
    make_run("r3", task="a/b; $x$")
    summary = write_report([tmp_path / "runs"], tmp_path / "report.html")
    assert {path.name for path in summary.figures if path.name.endswith("curves.png")} == {
        "report-a-b-x-curves.png",
        "report-a-b-x-2-curves.png",
    }


def test_out_that_cannot_be_written(make_run, tmp_path):
    make_run()
    with pytest.raises(ReportError, match=rf"{re.escape(str(tmp_path))} cannot be written"):
        write_report([tmp_path / "runs"], tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(ReportError, match=r"report\.html cannot be written"):
        write_report([tmp_path / "runs"], tmp_path / "file" / "report.html")


def test_without_matplotlib_there_is_a_sentence_or_a_page(make_run, tmp_path, monkeypatch):
    make_run()
    out = tmp_path / "report.html"
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ReportError, match="matplotlib is not installed"):
        write_report([tmp_path / "runs"], out)
    assert not out.exists()
    assert write_report([tmp_path / "runs"], out, figures=False).figures == ()
    assert ".png" not in out.read_text(encoding="utf-8")


def test_importing_loads_no_matplotlib():
    code = "import fetchsgd.report, sys; sys.exit('matplotlib' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_asset_is_used():
    from fetchsgd.report import page

    folder = Path(writing.__file__).parent / "assets"
    used = {*page._SCRIPTS, "page.html", "page.css", "section.html"}
    assert {path.name for path in folder.iterdir()} == used
