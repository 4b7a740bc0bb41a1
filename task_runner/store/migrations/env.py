"""Runs the store's migrations on the connection that the database hands over."""

from alembic import context

from task_runner.store.schema import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
