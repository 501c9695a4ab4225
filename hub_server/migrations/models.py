"""Every model of the hub: a table is known once the module of its model is loaded."""

import hub_server.accounts.models
import hub_server.packages.models
import hub_server.publishing.models
import hub_server.security.rates  # noqa: F401 - for its tables, as the others
from hub_server.database import Base

METADATA = Base.metadata
"""All tables."""
