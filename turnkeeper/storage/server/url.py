"""The URL of a database server: the session settings in it, and its form for people."""

import re
from urllib.parse import unquote

from sqlalchemy import URL, make_url

SEARCHES = "-csearch_path="  # prefix of the options in a URL that names a schema
_LIMITS = "-cidle_in_transaction_session_timeout=10000 -cidle_session_timeout=0 -cstatement_timeout=0 -clock_timeout=0"
_ASKED = {"connect_timeout": "5", "tcp_user_timeout": "10000"}
_ASKED |= {"keepalives_idle": "5", "keepalives_interval": "2", "keepalives_count": "3"}


def in_schema(url: str, schema: str) -> str:
    """Return the URL of a database on a server whose sessions use one schema. Create the schema if it is missing.

    A process that is suspended or disconnected blocks others by its locks for at most ten seconds. Limits that a role
    or database sets for its other clients do not apply to these sessions.
    """
    options = f"{SEARCHES}{schema} {parsed(url).query.get('options', '')} {_LIMITS}".replace("  ", " ")
    return noticing(url, options=options)


def noticing(url: str, **asked: str) -> str:
    """Return the URL for connections to a server, with settings that detect a lost connection early."""
    said = parsed(url).update_query_dict(_ASKED | asked).render_as_string(hide_password=False)
    return said.replace("+-c", "%20-c")  # libpq does not decode a plus sign


def shown(url: str) -> str:
    """Return a URL as its user wrote it, without the password."""
    said = parsed(url).difference_update_query([*_ASKED, "options"])
    names, ports = (str(said.query.get(key, "")).split(",") for key in ("host", "port"))
    if len(names) == 1 or len(names) != len(ports):
        return said.render_as_string()
    hosts = (f"[{name}]:{port}" if ":" in name else f"{name}:{port}" for name, port in zip(names, ports, strict=True))
    text = said.difference_update_query(["host", "port"]).render_as_string()
    return re.sub(r"(?<=://)([^/]*)", lambda user: user[1] + ",".join(hosts), text, count=1)


def parsed(url: str) -> URL:
    """Return the parts of a URL. Convert a list of hosts with ports, which libpq accepts, to SQLAlchemy's form."""
    found = re.match(r"([^:]+://(?:[^/?@]*@)?)([^/?]*,[^/?]*)(.*)", url, re.DOTALL)
    if found is None:
        return make_url(url)
    hosts, ports = zip(*re.findall(r"(?:^|,)\[?([^,]*?)\]?(?::(\d+))?(?=,|$)", found[2]), strict=True)
    several = {"host": ",".join(map(unquote, hosts)), "port": ",".join(port or "5432" for port in ports)}
    return make_url(found[1] + found[3]).update_query_dict(several)
