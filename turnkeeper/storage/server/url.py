"""The URL of a database server: how sessions are opened by it, and how it is shown."""

import re
from urllib.parse import unquote

from sqlalchemy import URL, make_url

SEARCHES = "-csearch_path="  # begins the options of a URL that names a schema
_LIMITS = "-cidle_in_transaction_session_timeout=10000 -cidle_session_timeout=0 -cstatement_timeout=0 -clock_timeout=0"
_ASKED = {"connect_timeout": "5", "tcp_user_timeout": "10000"}
_ASKED |= {"keepalives_idle": "5", "keepalives_interval": "2", "keepalives_count": "3"}


def in_schema(url: str, schema: str) -> str:
    """Return the URL of a server's database under which names are those of one schema, which is made if it lacks.

    A process that is stopped, or cut off, holds up the others by its locks for ten seconds at most. Limits that are set
    for other clients do not hold for its sessions.
    """
    options = f"{SEARCHES}{schema} {parsed(url).query.get('options', '')} {_LIMITS}".replace("  ", " ")
    return noticing(url, options=options)


def noticing(url: str, **asked: str) -> str:
    """Return the URL by which connections to a server are made: one that is gone without a word is noticed in time."""
    said = parsed(url).update_query_dict(_ASKED | asked).render_as_string(hide_password=False)
    return said.replace("+-c", "%20-c")  # libpq takes a plus for a plus


def shown(url: str) -> str:
    """Return a URL as its user wrote it, but for a password."""
    return parsed(url).difference_update_query([*_ASKED, "options"]).render_as_string()


def parsed(url: str) -> URL:
    """Return the parts of a URL. Several hosts with ports, which libpq takes, become what SQLAlchemy takes as well."""
    found = re.match(r"([^:]+://(?:[^/?@]*@)?)([^/?]*,[^/?]*)(.*)", url, re.DOTALL)
    if found is None:
        return make_url(url)
    hosts, _, ports = zip(*(host.partition(":") for host in found[2].split(",")), strict=True)
    several = {"host": ",".join(map(unquote, hosts)), "port": ",".join(port or "5432" for port in ports)}
    return make_url(found[1] + found[3]).update_query_dict(several)
