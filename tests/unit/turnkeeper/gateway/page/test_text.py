"""What people and agents wrote is shown, and never obeyed."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnkeeper.gateway.page.shell import environment, own
from turnkeeper.gateway.page.text import LONGEST, Times, markdown, pretty, zone_of

NOW = datetime(2026, 11, 22, 20, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    "hostile",
    [
        "<script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        "[x](javascript:alert(1))",
        "[x](JaVaScRiPt:alert(1))",
        "[x](data:text/html,<script>alert(1)</script>)",
        "[x](vbscript:a)",
        "[x](file:///etc/passwd)",
        "![x](https://evil.example/pixel.png)",
        "<javascript:alert(1)>",
        '[a](https://a.example "onmouseover=alert(1)")',
        "```html\n<script>alert(1)</script>\n```",
        "a\u202etxt.exe",
    ],
)
def test_markdown_runs_nothing_loads_nothing_and_leads_only_to_the_web(hostile: str) -> None:
    html = str(markdown(hostile))
    assert "<script" not in html
    assert "<img" not in html
    assert "\u202e" not in html
    assert not any(f'href="{scheme}' in html.lower() for scheme in ("javascript", "data", "vbscript", "file"))


@pytest.mark.parametrize(
    "hidden", ["\u200b", "\u202e", "&#8203;", "&#x202e;", "&zwnj;", "&shy;", "&#xE0041;", "\u3164", "\U000e0041"]
)
def test_what_is_not_seen_is_written_out_also_where_markdown_spells_it_as_an_entity(hidden: str) -> None:
    for shown in (markdown(f"send {hidden} x"), markdown(f"`{hidden}` [{hidden}](http://a)", said=True)):
        assert shown.isascii()
        assert "\\u" in shown
    card = environment().from_string("<pre>{{ args }}</pre><textarea>{{ args }}</textarea>").render(args=hidden)
    assert card.isascii()


def test_a_conversation_keeps_what_joins_emoji_and_scripts() -> None:
    text = "\u2764\ufe0f\u200d\U0001f525 \u0645\u06cc\u200c\u062e"
    assert text in markdown(text, said=True)
    assert text not in markdown(text)


def test_a_link_says_nothing_of_where_it_was_followed_and_headings_stay_below_the_pages_own() -> None:
    assert 'rel="noreferrer noopener"' in markdown("[a](https://a.example)")
    assert markdown("# a") == "<h4>a</h4>\n"
    assert "more characters" in markdown("a" * (LONGEST + 1))


@given(st.text())
def test_no_text_becomes_a_tag_in_a_template(text: str) -> None:
    shown = environment().from_string("<b>{{ text }}</b>").render(text=text)
    assert shown.count("<") == 2
    assert not set(shown) & set("\x00\x1b\u202e\u2066")


@given(st.text())
def test_no_markdown_becomes_a_script_or_an_image(text: str) -> None:
    html = str(markdown(text)).lower()
    assert not any(tag in html for tag in ("<script", "<img", "<iframe", "<style", "<form"))


def test_a_time_is_shown_in_its_zone_and_in_utc_for_whoever_hovers() -> None:
    times = Times(NOW)
    shown = times.at(NOW + timedelta(hours=12), "Europe/Berlin")
    assert shown == '<time datetime="2026-11-23T08:00:00Z" title="2026-11-23 08:00:00 UTC">Mon 23 Nov 09:00 CET</time>'
    assert ">21:00 CET<" in times.at(NOW, "Europe/Berlin"), "today without its day"
    assert ">Sun 22 Nov 2020 21:00:05 CET<" in times.at(datetime(2020, 11, 22, 20, 0, 5, tzinfo=UTC), "Europe/Berlin")
    assert ">Sun 22 Nov 21:00 CET<" in times.at(NOW, "Europe/Berlin", dated=True)
    assert times.at(None) == "&ndash;"
    assert ">5m ago<" in times.ago(NOW - timedelta(minutes=5))
    assert ">in 1h 1s<" in times.left(NOW + timedelta(seconds=3601))
    assert ">now<" in times.left(NOW)


def test_the_ends_of_a_pause_are_named_by_day_and_zone() -> None:
    assert Times(NOW).pauses("Europe/Riga") == [
        ("1h", "until Sunday 22 Nov, 23:00 EET"),
        ("2026-11-23T00:00:00", "until Monday 23 Nov, 00:00 EET"),
    ], "on a Sunday, tomorrow is Monday"
    assert len(Times(NOW + timedelta(days=1)).pauses("Europe/Riga")) == 3
    assert Times(NOW).until(NOW + timedelta(days=60), "UTC") == "until Thursday 21 Jan 2027, 20:00 UTC"
    assert zone_of("No/Where") is None


def test_a_sentence_of_the_daemons_has_its_times_in_the_zone_and_its_commands_as_code() -> None:
    said = Times(NOW).said("At 2026-11-22T19:00:00.5Z: <b>; run `turnkeeper up`", "Europe/Berlin")
    assert said.startswith('At <time datetime="2026-11-22T19:00:00.500000Z"')
    assert ">20:00 CET</time>: &lt;b&gt;; run <code>turnkeeper up</code>" in said


def test_json_is_laid_out_and_anything_else_stays_as_it_is() -> None:
    assert pretty('{"a":"ü"}') == '{\n  "a": "ü"\n}'
    assert pretty("no json") == "no json"


@pytest.mark.parametrize(
    "path", ["https://evil.example/", "//evil.example", "/lg/ok", "", "/ui\\..\\", "/ui/\x00", "javascript:1"]
)
def test_a_form_leads_to_no_other_place(path: str) -> None:
    assert own(path, "/ui/") == "/ui/"


def test_a_cron_expression_is_a_sentence_with_the_expression_on_hover_and_anything_else_stands_alone():
    shown = str(Times(NOW).schedule("0 2 * * *", "UTC"))
    assert shown == '<span title="0 2 * * *">Each day at 02:00</span>'
    assert str(Times(NOW).schedule("0 2 1 * 1", "UTC")) == "0 2 1 * 1"
