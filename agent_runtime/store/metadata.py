"""The SQLAlchemy metadata of `agent.db`: every table of the runtime and of its world registers here."""

from sqlalchemy import MetaData

metadata = MetaData()
