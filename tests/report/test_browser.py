"""The page in a real browser: it draws, answers to mouse and keyboard, and says no error."""

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
    yield driver
    driver.quit()
    service.stop()


@pytest.fixture
def page(browser, report):
    """The page, freshly loaded; afterwards, that it said no error."""
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
    assert len(find(page, "[data-task='0'] [data-chart='upload'] .run")) == 50
    assert len(find(page, "[data-task='0'] [data-chart='curves'] .run")) == 52
    assert len(find(page, "[data-task='1'] [data-chart='overall'] .run")) == 2
    assert page.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert "NaN" not in page.execute_script("return document.querySelector('main').innerHTML")


def test_hovering_a_point_shows_its_settings(page):
    from selenium.webdriver.common.action_chains import ActionChains

    (tip,) = find(page, "#tip")
    assert not tip.is_displayed()
    first = find(page, f"{UPLOAD} .run.strong")[0]
    page.execute_script("arguments[0].scrollIntoView({block: 'center'})", first)
    ActionChains(page).move_to_element(first).perform()
    assert tip.is_displayed()
    for words in (
        "fetchsgd-0-24",
        "FetchSGD, finished",
        "92.00 %",
        "5.93×",
        "cols",
        "2000",
        "seed",
    ):
        assert words in tip.text


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
    head = find(page, "[data-task='0'] th")[4]
    button = head.find_element("css selector", "button")
    page.execute_script("arguments[0].click()", button)
    assert head.get_attribute("aria-sort") == "ascending"
    *values, unknown = column(page, 5)
    numbers = [float(value.removesuffix(" %")) for value in values]
    assert numbers == sorted(numbers)
    assert unknown == "–"
    page.execute_script("arguments[0].click()", button)
    assert head.get_attribute("aria-sort") == "descending"
    assert column(page, 5) == [*reversed(values), "–"]


def test_the_legend_hides_and_shows_a_method(page):
    drawn = "[data-task='0'] .chart [data-method='fedavg']"
    (button,) = find(page, "[data-task='0'] .legend [data-method='fedavg']")
    assert shown(page, drawn)
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert not shown(page, drawn)
    assert shown(page, "[data-task='0'] .chart .run[data-method='fetchsgd']")
    button.click()
    assert shown(page, drawn)


def test_the_switches(page):
    task = "[data-task='0']"
    find(page, f"{task} [data-value='frontier']")[0].click()
    assert not find(page, f"{task} .run.faint")
    assert find(page, f"{UPLOAD} .run.strong")
    for value, title in (("bytes", "Bytes sent, both ways"), ("epoch", "Epochs")):
        page.execute_script(
            "arguments[0].click()", find(page, f"{task} .switch [data-value='{value}']")[0]
        )
        titles = [text.text for text in find(page, f"{task} [data-chart='curves'] text")]
        assert title in titles


def test_a_phone_needs_no_sideways_scrolling(page, report):
    size = {"width": 400, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        page.get(report.page.as_uri())
        assert page.execute_script("return document.documentElement.scrollWidth") <= 400
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_a_study_without_points_is_still_a_page(page, make_run, tmp_path):
    from fetchsgd.report import write_report

    make_run(status="diverged", value=None, compression=None)
    (make_run("new", status="unfinished") / "metrics.jsonl").write_text("")
    write_report([tmp_path / "runs"], tmp_path / "report.html", figures=False)
    page.get((tmp_path / "report.html").as_uri())
    assert len(find(page, "tbody tr")) == 2
