"""What Alembic runs: with the connection that `upgrade` hands over."""

from alembic import context

import hub_server.accounts.models
import hub_server.packages.models
import hub_server.publishing.models
import hub_server.security.rates  # noqa: F401 - a model is known once its module is loaded
from hub_server.database import Base

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=Base.metadata,
    render_as_batch=connection.dialect.name == "sqlite",
    transaction_per_migration=False,
    user_module_prefix="",
)
with context.begin_transaction():
    context.run_migrations()
