"""When a delivery goes out, and to whom."""

from datetime import UTC, datetime

import pytest

from turnkeeper.constellation.delivery.targets import Target, secret_bytes
from turnkeeper.errors import InvalidInput


def at(text: str) -> datetime:
    return datetime.fromisoformat(f"2026-11-{text}:00+00:00")


def due(target: Target, now: str, kind: str = "success") -> tuple[str, bool]:
    when, gathers = target.due(kind, at(now))
    return f"{when.astimezone(UTC):%dT%H:%M}", gathers


@pytest.mark.parametrize(
    ("quiet", "now", "goes_out"),
    [
        ("22:00-07:00", "20T21:59", "20T21:59"),
        ("22:00-07:00", "20T22:00", "21T07:00"),
        ("22:00-07:00", "21T06:59", "21T07:00"),
        ("22:00-07:00", "21T07:00", "21T07:00"),
        ("12:00-13:00", "20T12:30", "20T13:00"),
        ("12:00-13:00", "20T13:00", "20T13:00"),
    ],
)
def test_nothing_goes_out_in_quiet_hours(quiet: str, now: str, goes_out: str) -> None:
    assert due(Target(command="true", quiet=quiet), now) == (goes_out, False)


def test_quiet_hours_are_of_the_targets_zone_also_on_a_day_on_which_clocks_change() -> None:
    target = Target(command="true", quiet="22:00-07:00", timezone="Europe/Berlin")
    assert due(target, "20T21:30") == ("21T06:00", False)
    (when, _) = target.due("success", datetime(2026, 10, 25, 1, 30, tzinfo=UTC))  # clocks went back half an hour ago
    assert when == datetime(2026, 10, 25, 6, 0, tzinfo=UTC)


def test_results_wait_for_the_digest_and_questions_do_not() -> None:
    target = Target(command="true", digest="08:00")
    assert due(target, "20T07:59") == ("20T08:00", True)
    assert due(target, "20T08:00") == ("21T08:00", True)
    assert due(target, "20T07:59", "waits") == ("20T07:59", False)
    assert due(Target(command="true", digest="06:00", quiet="22:00-07:00"), "20T08:00") == ("21T07:00", True)


@pytest.mark.parametrize(
    ("digest", "fires", "is_early"),
    [
        ("08:00", "20T07:00", True),
        ("08:05", "20T07:00", True),
        ("08:15", "20T07:00", False),
        ("07:59", "20T07:00", False),
        ("00:00", "20T22:55", True),
        ("", "20T07:00", False),
    ],
)
def test_a_digest_within_some_minutes_after_a_fire_is_too_early_for_its_answer(
    digest: str, fires: str, *, is_early: bool
) -> None:
    target = Target(command="true", digest=digest, timezone="Europe/Berlin")
    assert target.is_early_for(at(fires)) is is_early


def test_a_target_wants_what_it_names_and_all_if_it_names_nothing() -> None:
    chosen = Target(command="true", on=("failure",), tasks=("backup",), channels=("ops",))
    assert chosen.wants("failure", "backup", "ops")
    assert not chosen.wants("success", "backup", "ops")
    assert not chosen.wants("failure", "news", "ops")
    assert not chosen.wants("failure", "backup", "general")
    assert Target(command="true").wants("waits", "any", "where")


def test_what_is_shown_of_a_target_holds_no_secret() -> None:
    hook = Target(webhook="https://ada:secret@example.org/secret?key=secret", secret="secret")
    assert hook.way == "webhook example.org"
    assert Target(service="tgram://secret/1").way == "service tgram"


@pytest.mark.parametrize("secret", ["whsec_", "whsec_c2hvcnQ=", "whsec_?", "whsec_" + "QUFB" * 30])
def test_a_key_that_is_too_short_or_no_base64_is_refused(secret: str) -> None:
    with pytest.raises(InvalidInput):
        secret_bytes(secret)
