"""What Alembic runs: with the connection that `upgrade` hands over."""

from alembic import context

from hub_server.migrations.models import METADATA

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=METADATA,
    render_as_batch=connection.dialect.name == "sqlite",
    transaction_per_migration=False,
    user_module_prefix="",
)
with context.begin_transaction():
    context.run_migrations()
