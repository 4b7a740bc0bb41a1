"""The signature of a webhook, and what people read."""

from datetime import UTC, datetime

from turnkeeper.constellation.delivery.send import LONGEST_TEXT, signature, text_of, title

# The example of the specification of Standard Webhooks.
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
KEY, AT = "msg_p5jXN8AQM9LWM0D4loKWxJek", datetime.fromtimestamp(1614265330, UTC)


def test_a_signature_is_the_one_of_the_specification() -> None:
    assert signature(SECRET, KEY, AT, b'{"test": 2432232314}') == {
        "webhook-id": KEY,
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


def test_people_read_the_reason_then_the_text_and_see_every_character() -> None:
    data = {"task": "news\u202e", "reason": "late", "text": "Quiet day."}
    assert text_of(data) == "late\n\nQuiet day."
    assert "\u202e" not in title(data, "success")
    assert title({"channel": "general"}, "waits") == "general waits for you"


def test_the_subject_names_the_time_of_the_fire_in_the_zone_of_the_machine() -> None:
    at = datetime(2026, 11, 28, 17, 10, 16, tzinfo=UTC).astimezone()
    subject = title({"task": "news", "fire_id": "task-f95cd5b0@20261128T171016Z~mb0fb"}, "success")
    assert subject == f"news succeeded, {at:%Y-%m-%d %H:%M}"
    assert title({"task": "news", "fire_id": ""}, "failure") == "news failed"


def test_a_question_names_its_tool_with_the_arguments_and_says_what_the_link_does() -> None:
    data = {"question": "category night does not grant it", "tool": "write_report", "arguments": '{"text": "a"}'}
    said = text_of(data | {"decide": "https://home.example/x"}).split("\n\n")
    assert said[1:] == ['write_report: {"text": "a"}', "Decide it here, once, within a day: https://home.example/x"]
    assert "Decide" not in text_of(data)


def test_a_question_without_a_link_names_the_command_that_decides_it() -> None:
    said = text_of({"question": "category night does not grant it", "tool": "put", "interrupt_id": "3f2a9c01de5b6a"})
    assert said.endswith(
        "\n\nDecide it: turnkeeper triage, or turnkeeper approvals resolve 3f2a9c01de --approve or --reject"
    )


def test_long_arguments_do_not_cut_the_link_off() -> None:
    said = text_of({"tool": "write_report", "arguments": "a" * LONGEST_TEXT, "decide": "https://home.example/x"})
    assert said.startswith("write_report: aaa")
    assert said.endswith(" more characters\n\nDecide it here, once, within a day: https://home.example/x")
    assert len(said) <= LONGEST_TEXT + 200
