"""One server, one browser and one plain page for all tests of the page."""

import pytest
from browser import CHROMIUM, REASON, chromium, served


@pytest.fixture(scope="session")
def address():
    with served() as found:
        yield found


@pytest.fixture(scope="session")
def browser():
    if CHROMIUM is None:
        pytest.skip(REASON)
    with chromium() as found:
        yield found


@pytest.fixture(scope="session")
def modules(browser, address):
    """A page that has nothing in it but may import the modules: calls a function with arguments, gives its result."""
    page = browser.new_page()
    page.goto(f"{address}icon.svg")

    def call(body, **arguments):
        return page.evaluate(f"async (arguments) => {{ {body} }}", arguments)

    return call
