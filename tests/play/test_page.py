"""The page in a real browser: every part is used as a visitor would, by mouse and by keys alone."""

import re

import pytest
from playwright.sync_api import expect

from fastweights.report.style import MODELS
from fastweights.tasks import retrieval

expect.set_options(timeout=20_000)  # other tests run beside these
PARTS = ("ask", "capacity", "draw", "catch", "speed")


@pytest.fixture
def page(browser, address):
    """The page, loaded; at the end nothing may have gone wrong, and nothing else may have been asked for."""
    with browser.new_context(reduced_motion="reduce", viewport={"width": 1280, "height": 900}) as context:
        page, wrong, asked = context.new_page(), [], []
        page.set_default_timeout(20_000)
        page.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(address)
        page.wait_for_selector("html[data-ready]", state="attached")
        yield page
        assert wrong == []
        assert all(url.startswith(address) for url in asked)


def answers(page):
    """What the two nets answer, as it stands behind the string."""
    return page.locator("#ask .answer text:not(.sign)").all_text_contents()


def test_type_a_string_and_read_the_answer(page):
    page.get_by_label("The string that is read").fill("x4q7b2m9??b")
    assert answers(page)[0] == "2"
    assert page.locator("#ask .answer .sign").first.text_content() == "✓"
    expect(page.locator("#ask-message")).to_have_text("The digit behind b is 2.")


WRONG = {
    "": "Type pairs",
    "c9k": "“k” has no digit yet",
    "c9k8": "two question marks",
    "c9k8??": "the letter to ask for: c, k",
    "c9k8??z": "“z” has no digit in this string",
    "c9c8??c": "“c” has a digit already",
    "9c??c": "A letter belongs here, not “9”",
    "cc??c": "A digit belongs behind “c”, not “c”",
    "c9k8!?c": "“!” is not one of",
    "c9??cc": "One letter alone",
    "??c": "Begin with a letter",
    "a1b2c3d4e5f6g7h8i9j0k1??k": "At most ten pairs",
}


def test_what_is_wrong_is_said_while_typing(page):
    field = page.get_by_label("The string that is read")
    for string, wrong in WRONG.items():
        field.fill(string)
        expect(page.locator("#ask-message")).to_contain_text(wrong)
        assert field.get_attribute("aria-invalid") == "true"
        assert set(answers(page)) <= {""}
        field.fill("c9k8??k")
        assert field.get_attribute("aria-invalid") == "false"
        assert answers(page)[0] == "8"


def test_the_page_accepts_what_python_accepts(modules):
    strings = [
        "c9k8j3f1??c",
        "a1??a",
        "a1??b",
        "a1?a",
        "a1",
        "??a",
        "a1a2??a",
        "1a??a",
        "a1??aa",
        "A1??A",
        "a1 ??a",
        "",
    ]
    found = modules(
        """const { parse } = await import("./js/tasks/retrieval.js")
        return arguments.strings.map(string => parse(string).answer ?? null)""",
        strings=strings,
    )
    for string, answer in zip(strings, found, strict=True):
        try:
            expected = retrieval.parse(string).answer if "??" in string else None  # with which Python is less strict
        except ValueError:
            expected = None
        assert answer == expected, string


def test_scrubbing(page):
    place = page.get_by_label("Position in the string")
    place.fill("0")
    assert page.locator("#ask .tile.now").text_content() == "c"
    assert page.locator("#ask .tile.later").count() == 10
    expect(page.locator("#ask .caption")).to_contain_text("Reads c")
    page.locator("#ask .tile").nth(5).click()
    assert page.locator("#ask .tile.now").text_content() == "3"
    page.get_by_role("button", name="One step on").first.click()
    assert page.locator("#ask .tile.now").text_content() == "f"
    place.fill("31")  # the question is in; its inner step: A is asked
    assert page.locator("#ask .arcs path").count() > 1
    assert set(page.locator("#ask-equation .on").all_text_contents()) == {"A(t) hs", "f(LN[", "])"}


def test_playing_by_the_clock(page):
    page.get_by_label("Position in the string").fill("0")
    page.locator("#ask").get_by_role("button", name="slow").click()
    page.locator("#ask").get_by_role("button", name="Play").click()
    expect(page.locator("#ask .tile.now")).not_to_have_text("c")
    page.locator("#ask").get_by_role("button", name="Pause").click()
    assert page.locator("#ask").get_by_role("button", name="Play").is_visible()


def wrong_of_hundred(page):
    """How many questions fast weights get wrong, once all are counted."""
    count = page.locator("#ask .hundred .count").first
    expect(count).to_have_text(re.compile(r"\d+ of the last 100 wrong"))
    return int(count.inner_text().split()[0])


def test_each_slider_breaks_it_and_mends_it(page):
    assert wrong_of_hundred(page) <= 5
    for name, value in {"how much of A stays": "0.3", "how strongly it is written": "0", "inner steps": "0"}.items():
        page.get_by_role("slider", name=name, exact=True).fill(value)
        page.wait_for_timeout(50)
        assert wrong_of_hundred(page) >= 40
        page.get_by_role("button", name="As trained").click()
        page.wait_for_timeout(50)
        assert wrong_of_hundred(page) <= 5


def test_random_hard_and_larger(page):
    field = page.get_by_label("The string that is read")
    before = field.input_value()
    page.get_by_role("button", name="Random", exact=True).first.click()
    assert field.input_value() != before
    page.get_by_role("button", name="A hard one").click()
    assert "✗" in page.locator("#ask .answer .sign").all_text_contents()
    page.locator("#ask").get_by_role("button", name="50 units").click()
    expect(page.locator("#ask h3").first).to_have_text("Fast weights, 50 units")
    wrong = page.locator("#ask .hundred[data-model=lstm] rect.wrong")
    expect(wrong.first).to_be_visible()
    wrong.first.click()
    assert page.locator("#ask .answer .sign").all_text_contents()[1] == "✗"


def test_patterns_are_stored_and_got_back(page):
    part = page.locator("#capacity")
    expect(part.locator(".shelf button")).to_have_count(4)
    expect(part.locator(".caption")).to_contain_text("It is back.")
    part.get_by_role("button", name="Forget all").click()
    expect(part.locator(".shelf button")).to_have_count(0)
    box = part.locator(".easel").first.bounding_box()
    page.mouse.click(box["x"] + 5, box["y"] + 5)
    part.get_by_role("button", name="Store it").click()
    for _ in range(6):
        part.get_by_role("button", name="Store 5 random").click()
    expect(part.locator(".shelf button")).to_have_count(31)
    part.locator(".shelf button").first.click()
    expect(part.locator(".caption")).to_contain_text("It is lost.")  # 31 patterns in 49 units
    part.get_by_label("how much of A stays").fill("0.8")
    part.locator(".shelf button").last.click()
    expect(part.locator(".caption")).to_contain_text("It is back.")  # decay keeps the newest


def test_capacity_is_hopfields(modules):
    """Far below 0.15 N nearly all come back, far above it nearly none; with decay the newest still do."""
    all_back, few_back, newest = modules(
        """const { comeBack, generator } = await import("./js/tasks/patterns.js")
        return [[10, 1], [40, 1], [40, 0.9]].map(([count, decay]) => comeBack(144, count, decay, generator(0)))"""
    )
    assert all_back == 10
    assert few_back <= 3
    assert 5 <= newest <= 15


def draw_seven(page):
    canvas = page.locator("#draw .ink")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    points = [(0.28, 0.24), (0.5, 0.22), (0.7, 0.22), (0.62, 0.42), (0.54, 0.6), (0.46, 0.82)]
    places = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in points]
    page.mouse.move(*places[0])
    page.mouse.down()
    for place in places[1:]:
        page.mouse.move(*place, steps=8)
    page.mouse.up()


@pytest.mark.parametrize("units", [50, 200])
def test_a_drawn_seven_is_read(page, units):
    part = page.locator("#draw")
    part.get_by_role("button", name=f"{units} units").click()
    part.get_by_role("button", name="Clear").click()
    expect(part.locator(".verdict")).to_have_text("Nothing is drawn yet.")
    draw_seven(page)
    expect(part.locator(".verdict")).to_have_attribute("data-digit", "7")
    for quadrant in ("top left", "top right"):
        part.get_by_role("button", name=quadrant).click()
    expect(part.locator(".verdict")).to_have_attribute("data-digit", re.compile("[^7]"))


def test_the_examples_are_read(page):
    for units in (50, 200):
        page.locator("#draw").get_by_role("button", name=f"{units} units").click()
        for digit in range(10):
            page.locator("#draw .digits").get_by_role("button", name=str(digit)).click()
            expect(page.locator("#draw .verdict")).to_have_attribute("data-digit", str(digit))


def test_a_game_by_keys_to_its_end(page):
    part = page.locator("#catch")
    part.get_by_role("button", name="New game").click()
    for _ in range(15):
        part.locator(".screen").first.press("ArrowLeft")
    expect(part.locator(".tally").first).to_have_text(re.compile("[01] of 1 caught"))
    part.get_by_label("Frame of the agents").press("End")
    expect(part.locator(".tally").nth(1)).to_have_text("1 of 1 caught")
    part.locator(".screen").first.press("Enter")
    expect(part.locator(".caption")).to_contain_text("Frame 1 of 16")


def test_curves(page):
    part = page.locator("#speed")
    assert part.locator(".chart path.line").count() == 4
    chart = part.locator(".chart")
    chart.focus()
    chart.press("ArrowRight")
    expect(part.locator(".note")).to_contain_text("validation error")
    part.get_by_role("button", name="Catch 16, 3").click()
    assert part.locator(".chart path.line").count() == 3
    part.get_by_label("LSTM").uncheck()
    assert part.locator(".chart path.line").count() == 2
    part.get_by_label("Seed").select_option(index=1)
    assert part.locator(".chart path.thin").count() == 0
    part.get_by_role("button", name="x log").click()
    box = chart.bounding_box()
    chart.hover(position={"x": box["width"] * 0.9, "y": box["height"] * 0.1})
    expect(part.locator(".note")).to_contain_text("return")


def test_by_keys_alone(page):
    """By Tab, from the top: to the string and through every control, each of which shows its focus and has a name."""
    seen = set()
    for _ in range(120):
        page.keyboard.press("Tab")
        label, part = page.evaluate(
            """() => { const e = document.activeElement
            const name = e.getAttribute("aria-label") || e.labels?.[0]?.innerText || e.innerText
            const ring = getComputedStyle(e).outlineStyle !== "none"
            return [ring ? name : "", e.closest("section")?.id ?? ""] }"""
        )
        if label is None or page.evaluate("document.activeElement === document.body"):
            break
        assert label, part
        seen.add(part)
        if label == "The string that is read":
            page.keyboard.press("Control+A")
            page.keyboard.type("a1b2??b")
            assert answers(page)[0] == "2"
    assert seen >= set(PARTS)
    canvas = page.locator("#draw .ink")
    page.locator("#draw").get_by_role("button", name="Clear").focus()
    page.keyboard.press("Enter")
    canvas.focus()
    for key in [" ", *["ArrowDown"] * 9]:
        page.keyboard.press(key)
    expect(page.locator("#draw .verdict")).to_have_attribute("data-digit", "1")


@pytest.mark.parametrize("width", [360, 1280, 2560])
def test_nothing_is_wider_than_the_window(page, width):
    page.set_viewport_size({"width": width, "height": 900})
    page.wait_for_timeout(300)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    outside = page.evaluate(
        """() => [...document.querySelectorAll("main *")].filter(e => {
        const box = e.getBoundingClientRect()
        return box.width && getComputedStyle(e).position !== "absolute" && (box.right > innerWidth + 1 || box.left < -1)
        }).map(e => e.outerHTML.slice(0, 80))"""
    )
    assert outside == []


def test_the_colours_are_those_of_all_figures(page):
    for model in ("fast-weights", "lstm", "irnn", "a-lstm"):
        found = page.evaluate(f"getComputedStyle(document.documentElement).getPropertyValue('--{model}')")
        assert found.strip() == MODELS[model].colour


def test_it_moves_by_itself_unless_motion_is_unwanted(browser, address):
    for motion, moves in (("no-preference", True), ("reduce", False)):
        page = browser.new_page(reduced_motion=motion)
        page.goto(address)
        page.wait_for_selector("#ask .answer:not(.silent)", state="attached")
        if moves:
            expect(page.locator("#ask .tile.later").first).to_be_attached()
        else:
            page.wait_for_timeout(2500)
            expect(page.locator("#ask .tile.later")).to_have_count(0)
        page.close()


def test_light_and_dark(page):
    ground = "getComputedStyle(document.body).backgroundColor"
    before = page.evaluate(ground)
    page.get_by_role("button", name="Dark ground").click()
    assert page.evaluate(ground) != before
    expect(page.get_by_role("button", name="Light ground")).to_be_visible()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda body: body[: len(body) // 2], "cut off"),
        (lambda body: body[:-1] + bytes([body[-1] ^ 1]), "damaged: it is not what its checksum says"),
        (lambda body: b"<!doctype html>", "cut off, or no safetensors file"),
        (None, "the server says 404"),
    ],
)
def test_a_net_that_does_not_load_says_which_and_why(browser, address, change, why):
    page = browser.new_page()

    def answer(route):
        if change is None:
            return route.fulfill(status=404)
        return route.fulfill(body=change(route.fetch().body()))

    page.route("**/nets/glimpses-50.safetensors", answer)
    page.goto(address)
    page.wait_for_selector("html[data-ready]", state="attached")
    alert = page.locator("#draw [role=alert]")
    expect(alert).to_contain_text("nets/glimpses-50.safetensors")
    expect(alert).to_contain_text(why)
    assert page.locator("#catch .screen").count() == 4  # the other parts work
    page.close()
