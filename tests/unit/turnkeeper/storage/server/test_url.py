"""The URL of a database server, for its drivers and for people."""

import pytest

from turnkeeper.config.settings import StoreSettings
from turnkeeper.storage.server.url import in_schema, parsed, shown
from turnkeeper.storage.statements import unconnected

WRITTEN = [
    "postgresql://u@db.example.org/turnkeeper",
    "postgresql:///turnkeeper?host=%2Fvar%2Frun",
    "postgresql://u@/turnkeeper?host=%2Fone%2C%2Ftwo",
    "postgresql://u@one:5432,two:6432/turnkeeper",
    "postgresql://one:5432,two:5432/turnkeeper?target_session_attrs=read-write",
    "postgresql://u@[::1]:5432,two:5432/turnkeeper",
]


@pytest.mark.parametrize("url", WRITTEN)
def test_a_url_is_shown_as_its_user_wrote_it(url: str) -> None:
    assert StoreSettings(url=url).url == url
    assert shown(in_schema(url, "runner")) == url


def test_the_drivers_get_each_host_with_its_port() -> None:
    said = parsed("postgresql://u@[::1]:6432,two/turnkeeper").query
    assert (said["host"], said["port"]) == ("::1,two", "6432,5432")


@pytest.mark.parametrize("hosts", ["h:x", "one:1,two:x", "[::1", "::1", "h:999999", "h:1:2"])
def test_a_host_or_port_that_cannot_be_read_is_refused(hosts: str) -> None:
    with pytest.raises(ValueError, match="neither sqlite nor a URL"):
        StoreSettings(url=f"postgresql://u@{hosts}/turnkeeper")


def test_of_several_servers_each_says_why_it_refuses() -> None:
    said = (
        "connection failed: port 2 failed: Connection refused\n\tIs the server running?\n"
        "Multiple connection attempts failed. All failures were:\n"
        "- host: 'one', port: '1', hostaddr: '10.0.0.1': connection failed: timeout expired\n"
        "- host: 'two', port: '2', hostaddr: None: connection failed: Connection refused\n\tIs the server running?"
    )
    assert (
        unconnected(said)[0]
        == "one:1: connection failed: timeout expired; two:2: connection failed: Connection refused"
    )


def test_a_refusal_has_a_hint() -> None:
    said = 'FATAL: no pg_hba.conf entry for host "10.0.0.2"'
    assert unconnected(f"{said}\nmore") == (said, "allow this machine in the server's pg_hba.conf")
    assert unconnected("Connection refused")[1].startswith("start it")
