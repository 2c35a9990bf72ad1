"""Who may come in."""

import pytest

from godwit.runtime.doors import is_from_web_page, shows_key


@pytest.mark.parametrize(
    ("authorization", "is_right"),
    [
        ("Bearer first", True),
        ("bearer  second ", True),
        ("Bearer third", False),
        ("first", False),
        ("Basic first", False),
        ("Bearer", False),
        ("", False),
        ("Bearer \udcff", False),
    ],
)
def test_keys(authorization: str, is_right: bool) -> None:
    assert shows_key({"Authorization": authorization}, ("first", "second")) is is_right


def test_no_header_shows_no_key() -> None:
    assert not shows_key({}, ("first",))
    assert not shows_key({}, ())


def test_browsers_say_so() -> None:
    assert is_from_web_page({"Origin": "https://example.org"})
    assert not is_from_web_page({"Authorization": "Bearer x"})
