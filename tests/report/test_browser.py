"""The page in a real browser: it draws, reacts to mouse and keyboard, and logs no error."""

from __future__ import annotations

import importlib.util
import shutil

import pytest

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
MISSING = [
    name
    for name, present in (
        ("chromium", CHROMIUM),
        ("chromedriver", DRIVER),
        ("selenium", importlib.util.find_spec("selenium")),
    )
    if not present
]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")

FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-quic --window-size=1300,1000"
)
UPLOAD = "[data-task='0'] [data-chart='upload']"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS.split(), f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(executable_path=DRIVER)
    driver = webdriver.Chrome(options=options, service=service)
    # Without a screen it depends on the machine whether a window ever has the focus.
    driver.execute_cdp_cmd("Emulation.setFocusEmulationEnabled", {"enabled": True})
    yield driver
    driver.quit()
    service.stop()


@pytest.fixture
def page(browser, report):
    """The page, freshly loaded; it must have logged no error in the end."""
    browser.get(report.page.as_uri())
    yield browser
    assert browser.get_log("browser") == []


def find(page, selector):
    return page.find_elements("css selector", selector)


def shown(page, selector):
    return [element for element in find(page, selector) if element.is_displayed()]


def column(page, index):
    return [cell.text for cell in find(page, f"[data-task='0'] tbody td:nth-child({index})")]


def test_every_run_is_drawn_and_nothing_is_loaded(page):
    # Seeds share a point and have a curve each.
    assert len(find(page, "[data-task='0'] [data-chart='upload'] .run")) == 52
    assert len(find(page, "[data-task='0'] [data-chart='curves'] .run")) == 61
    assert len(find(page, "[data-task='1'] [data-chart='overall'] .run")) == 2
    assert page.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert "NaN" not in page.execute_script("return document.querySelector('main').innerHTML")


def hover(page, selector):
    from selenium.webdriver.common.action_chains import ActionChains

    (mark,) = find(page, selector)
    page.execute_script("arguments[0].scrollIntoView({block: 'center'})", mark)
    ActionChains(page).move_to_element(mark).perform()


def test_hovering_a_point_shows_its_settings(page):
    (tip,) = find(page, "#tip")
    assert not tip.is_displayed()
    hover(page, f"{UPLOAD} [aria-label*=' fedavg-1-24,'] .mark")
    assert tip.is_displayed()
    for words in ("fedavg-1-24", "FedAvg, finished", "87.80 %", "local_epochs", "seed"):
        assert words in tip.text
    for name in ("upload.bits", "download.grid"):
        assert name in tip.text


def test_hovering_seeds_shows_mean_range_and_what_diverged(page):
    hover(page, f"{UPLOAD} [aria-label*=' bits2-seed0 and 2 more seeds'] .mark")
    (tip,) = find(page, "#tip")
    for words in (
        "FetchSGD, low-bit, mean of 2 seeds",
        "89.10 %",
        "89.00 % to 89.20 %",
        "0, 1 (n = 2)",
        "diverged, not in the mean",
        "96× (paper 6×)",
        "download.step",
    ):
        assert words in tip.text
    assert len(find(page, f"{UPLOAD} .run .range")) == 4


def test_the_arrow_keys_lead_from_run_to_run(page):
    from selenium.webdriver.common.keys import Keys

    (stop,) = find(page, f"{UPLOAD} .run[tabindex='0']")
    page.execute_script("scrollTo(0, document.body.scrollHeight)")
    page.execute_script("arguments[0].focus()", stop)
    (tip,) = find(page, "#tip")
    before = tip.text
    assert tip.is_displayed()
    page.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    assert len(find(page, f"{UPLOAD} .run[tabindex='0']")) == 1
    assert tip.text not in ("", before)
    page.switch_to.active_element.send_keys(Keys.ESCAPE)
    assert not tip.is_displayed()


def test_clicking_a_header_sorts_the_table(page):
    head = find(page, "[data-task='0'] th[aria-sort]")[5]
    button = head.find_element("css selector", "button")
    page.execute_script("arguments[0].click()", button)
    assert head.get_attribute("aria-sort") == "ascending"
    *values, unknown, other = column(page, 6)
    numbers = [float(value.removesuffix(" %")) for value in values]
    assert numbers == sorted(numbers)
    assert unknown == other == "–"
    page.execute_script("arguments[0].click()", button)
    assert head.get_attribute("aria-sort") == "descending"
    assert column(page, 6) == [*reversed(values), "–", "–"]


def test_the_legend_hides_and_shows_a_series(page):
    drawn = "[data-task='0'] .chart [data-series='fedavg']"
    (button,) = find(page, "[data-task='0'] .legend [data-series='fedavg']")
    assert shown(page, drawn)
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert not shown(page, drawn)
    assert shown(page, "[data-task='0'] .chart .run[data-series='fetchsgd']")
    button.click()
    assert shown(page, drawn)


def test_the_switches(page):
    task = "[data-task='0']"
    find(page, f"{task} [data-value='frontier']")[0].click()
    assert not find(page, f"{task} .run.faint")
    assert find(page, f"{UPLOAD} .run.strong")
    for value, title in (("bytes", "Bytes sent both ways, on the wire"), ("epoch", "Epochs")):
        page.execute_script(
            "arguments[0].click()", find(page, f"{task} .switch [data-value='{value}']")[0]
        )
        titles = [text.text for text in find(page, f"{task} [data-chart='curves'] text")]
        assert title in titles


def test_low_bit_runs_can_be_hidden_on_their_own(page):
    (button,) = find(page, "[data-task='0'] .legend [data-series='fetchsgd-low-bit']")
    assert button.text == "FetchSGD, low-bit"
    button.click()
    assert not shown(page, f"{UPLOAD} [data-series='fetchsgd-low-bit']")
    assert shown(page, f"{UPLOAD} .run[data-series='fetchsgd']")


def test_the_switch_between_the_counts(page):
    task = "[data-task='0']"
    wire, paper = find(page, f"{task} [data-switch='count'] button")
    page.execute_script("arguments[0].click()", find(page, f"{task} [data-value='bytes']")[0])

    def titles(chart):
        return [text.text for text in find(page, f"{task} [data-chart='{chart}'] text")]

    def place():
        mark = find(page, f"{UPLOAD} [aria-label*=' bits4-seed0 and'] .mark")[0]
        return mark.get_attribute("transform")

    before = place()
    for button, other, words in (
        (paper, wire, "as the paper counts"),
        (wire, paper, "on the wire"),
    ):
        page.execute_script("arguments[0].click()", button)
        pressed = [one.get_attribute("aria-pressed") for one in (button, other)]
        assert pressed == ["true", "false"]
        assert f"Upload compression, {words}" in titles("upload")
        assert f"Bytes sent both ways, {words}" in titles("curves")
        assert (place() == before) == (button is wire)
        (link,) = shown(page, f"{task} figcaption a[href*='-upload'][href$='.png']")
        assert ("-paper" in link.get_attribute("href")) == (button is paper)


def test_old_runs_are_absent_on_the_wire_and_there_as_the_paper_counts(page, make_run, tmp_path):
    from fetchsgd.report import write_report

    make_run("old", options={"k": 5}, wire=None)
    make_run("new")
    write_report([tmp_path / "runs"], tmp_path / "report.html", figures=False)
    page.get((tmp_path / "report.html").as_uri())
    assert len(find(page, f"{UPLOAD} .run")) == 2
    find(page, "[data-switch='count'] [data-value='wire']")[0].click()
    find(page, "[data-switch='x'] [data-value='bytes']")[0].click()
    for chart in ("upload", "curves"):
        (run,) = find(page, f"[data-chart='{chart}'] .run")
        assert ", new, " in run.get_attribute("aria-label")


def test_each_diagnostic_has_a_figure_with_the_runs_that_have_it(page, diagnosed_runs, tmp_path):
    from fetchsgd.report import write_report
    from fetchsgd.report.diagnostics import QUANTITIES

    write_report([diagnosed_runs], tmp_path / "report.html", figures=False)
    page.get((tmp_path / "report.html").as_uri())
    charts = ("curves", "heaviest_share", "contraction")
    assert [len(find(page, f"[data-chart='{chart}'] .run")) for chart in charts] == [3, 2, 1]
    find(page, "[data-switch='x'] [data-value='epoch']")[0].click()
    titles = [text.text for text in find(page, "[data-chart='heaviest_share'] text")]
    assert {"Share of |q|²", "Epochs"} <= {*titles}
    clips = page.execute_script(
        "return [...document.querySelectorAll('clipPath')].map((clip) => clip.id)"
    )
    assert len(clips) == len(set(clips)) == 1 + len(QUANTITIES)
    assert "NaN" not in page.execute_script("return document.querySelector('main').innerHTML")


def test_the_table_fits_a_screen_of_1200_pixels(page, report):
    size = {"width": 1200, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        page.get(report.page.as_uri())
        for table in find(page, ".scroll"):
            assert table.get_property("scrollWidth") <= table.get_property("clientWidth")
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_a_phone_needs_no_sideways_scrolling(page, report):
    size = {"width": 400, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        page.get(report.page.as_uri())
        assert page.execute_script("return document.documentElement.scrollWidth") <= 400
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_labels_of_small_numbers_keep_their_digits(page):
    shown = page.execute_script("return [0, 1e-7, 0.0002485, 0.5, 1234567].map(plain)")
    assert shown == ["0", "1e-7", "0.0002485", "0.5", "1,234,570"]


def test_a_study_without_points_is_still_a_page(page, make_run, tmp_path):
    from fetchsgd.report import write_report

    make_run(status="diverged", value=None, compression=None)
    (make_run("new", status="unfinished") / "metrics.jsonl").write_text("")
    write_report([tmp_path / "runs"], tmp_path / "report.html", figures=False)
    page.get((tmp_path / "report.html").as_uri())
    assert len(find(page, "tbody tr")) == 2
