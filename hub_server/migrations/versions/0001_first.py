"""The first schema."""

import sqlalchemy as sa
from alembic import op

from hub_server.database import UtcDateTime
from hub_server.journal import APPEND_ONLY

SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "hub_state",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("serial", SERIAL, nullable=False),
        sa.CheckConstraint("id = 1", name=op.f("ck_hub_state_one_row")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_hub_state")),
    )
    op.create_table(
        "journal",
        sa.Column("serial", SERIAL, autoincrement=False, nullable=False),
        sa.Column("at", UtcDateTime(), nullable=False),
        sa.Column("action", sa.String(), nullable=False),
        sa.Column("actor", sa.String(), nullable=True),
        sa.Column("token_id", sa.String(), nullable=True),
        sa.Column("owner", sa.String(), nullable=True),
        sa.Column("project", sa.String(), nullable=True),
        sa.Column("project_id", sa.Integer(), nullable=True),
        sa.Column("version", sa.String(), nullable=True),
        sa.Column("filename", sa.String(), nullable=True),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("serial", name=op.f("pk_journal")),
    )
    with op.batch_alter_table("journal", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_journal_at"), ["at"], unique=False)
        batch_op.create_index(batch_op.f("ix_journal_action"), ["action"], unique=False)
        batch_op.create_index(batch_op.f("ix_journal_owner"), ["owner"], unique=False)
        batch_op.create_index(batch_op.f("ix_journal_project_id"), ["project_id"], unique=False)

    op.create_table(
        "owners",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("slug", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("site_admin", sa.Boolean(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.CheckConstraint("kind IN ('user', 'organisation')", name=op.f("ck_owners_kind")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_owners")),
        sa.UniqueConstraint("slug", name=op.f("uq_owners_slug")),
    )
    op.create_table(
        "rate_buckets",
        sa.Column("action", sa.String(), nullable=False),
        sa.Column("subject", sa.String(), nullable=False),
        sa.Column("full_at", sa.Double(), nullable=False),
        sa.Column("own_interval", sa.Double(), nullable=True),
        sa.Column("own_burst", sa.Integer(), nullable=True),
        sa.Column("own_until", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("action", "subject", name=op.f("pk_rate_buckets")),
    )
    op.create_table(
        "memberships",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("organisation_id", sa.Integer(), nullable=False),
        sa.Column("user_id", sa.Integer(), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.CheckConstraint("role IN ('reader', 'publisher', 'admin')", name=op.f("ck_memberships_role")),
        sa.ForeignKeyConstraint(
            ["organisation_id"], ["owners.id"], name=op.f("fk_memberships_organisation_id_owners")
        ),
        sa.ForeignKeyConstraint(["user_id"], ["owners.id"], name=op.f("fk_memberships_user_id_owners")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_memberships")),
        sa.UniqueConstraint(
            "organisation_id", "user_id", name=op.f("uq_memberships_organisation_id_user_id")
        ),
    )
    with op.batch_alter_table("memberships", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_memberships_user_id"), ["user_id"], unique=False)

    op.create_table(
        "projects",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("owner_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("display_name", sa.String(), nullable=False),
        sa.Column("plain_name", sa.String(), nullable=True),
        sa.Column("visibility", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("status_reason", sa.String(), nullable=True),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("serial", SERIAL, nullable=False),
        sa.CheckConstraint(
            "status IN ('active', 'archived', 'deprecated', 'quarantined')", name=op.f("ck_projects_status")
        ),
        sa.CheckConstraint("visibility IN ('public', 'private')", name=op.f("ck_projects_visibility")),
        sa.ForeignKeyConstraint(["owner_id"], ["owners.id"], name=op.f("fk_projects_owner_id_owners")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_projects")),
        sa.UniqueConstraint("owner_id", "name", name=op.f("uq_projects_owner_id_name")),
        sa.UniqueConstraint("plain_name", name=op.f("uq_projects_plain_name")),
    )
    with op.batch_alter_table("projects", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_projects_name"), ["name"], unique=False)

    op.create_table(
        "tokens",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("owner_id", sa.Integer(), nullable=False),
        sa.Column("parent_id", sa.String(), nullable=True),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("sha256", sa.String(), nullable=False),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("patterns", sa.JSON(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("expires_at", UtcDateTime(), nullable=True),
        sa.Column("last_used_at", UtcDateTime(), nullable=True),
        sa.Column("revoked_at", UtcDateTime(), nullable=True),
        sa.ForeignKeyConstraint(["owner_id"], ["owners.id"], name=op.f("fk_tokens_owner_id_owners")),
        sa.ForeignKeyConstraint(["parent_id"], ["tokens.id"], name=op.f("fk_tokens_parent_id_tokens")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tokens")),
        sa.UniqueConstraint("sha256", name=op.f("uq_tokens_sha256")),
    )
    with op.batch_alter_table("tokens", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_tokens_owner_id"), ["owner_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_tokens_parent_id"), ["parent_id"], unique=False)

    op.create_table(
        "upload_sessions",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("owner_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("version", sa.String(), nullable=False),
        sa.Column("visibility", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("open_key", sa.String(), nullable=True),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("expires_at", UtcDateTime(), nullable=False),
        sa.Column("created_by", sa.String(), nullable=True),
        sa.CheckConstraint(
            "state IN ('open', 'published', 'aborted')", name=op.f("ck_upload_sessions_state")
        ),
        sa.ForeignKeyConstraint(["owner_id"], ["owners.id"], name=op.f("fk_upload_sessions_owner_id_owners")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_upload_sessions")),
        sa.UniqueConstraint("open_key", name=op.f("uq_upload_sessions_open_key")),
    )
    op.create_table(
        "releases",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("project_id", sa.Integer(), nullable=False),
        sa.Column("version", sa.String(), nullable=False),
        sa.Column("given_version", sa.String(), nullable=False),
        sa.Column("summary", sa.String(), nullable=True),
        sa.Column("readme", sa.String(), nullable=True),
        sa.Column("readme_type", sa.String(), nullable=True),
        sa.Column("requires_python", sa.String(), nullable=True),
        sa.Column("facts", sa.JSON(), nullable=False),
        sa.Column("warnings", sa.JSON(), nullable=False),
        sa.Column("check_report", sa.JSON(), nullable=True),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("serial", SERIAL, nullable=False),
        sa.Column("yanked_at", UtcDateTime(), nullable=True),
        sa.Column("yank_reason", sa.String(), nullable=True),
        sa.Column("yank_class", sa.String(), nullable=True),
        sa.Column("deleted_at", UtcDateTime(), nullable=True),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name=op.f("fk_releases_project_id_projects")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_releases")),
        sa.UniqueConstraint("project_id", "version", name=op.f("uq_releases_project_id_version")),
    )
    op.create_table(
        "session_files",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("session_id", sa.String(), nullable=False),
        sa.Column("filename", sa.String(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(), nullable=False),
        sa.Column("stored", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(
            ["session_id"], ["upload_sessions.id"], name=op.f("fk_session_files_session_id_upload_sessions")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_session_files")),
        sa.UniqueConstraint("session_id", "filename", name=op.f("uq_session_files_session_id_filename")),
    )
    op.create_table(
        "files",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("project_id", sa.Integer(), nullable=False),
        sa.Column("release_id", sa.Integer(), nullable=False),
        sa.Column("filename", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(), nullable=False),
        sa.Column("blake2b_256", sa.String(), nullable=False),
        sa.Column("requires_python", sa.String(), nullable=True),
        sa.Column("metadata_sha256", sa.String(), nullable=True),
        sa.Column("uploaded_at", UtcDateTime(), nullable=False),
        sa.Column("uploaded_by", sa.String(), nullable=True),
        sa.Column("downloaded_at", UtcDateTime(), nullable=True),
        sa.Column("serial", SERIAL, nullable=False),
        sa.Column("deleted_at", UtcDateTime(), nullable=True),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_files_project_id_projects")),
        sa.ForeignKeyConstraint(["release_id"], ["releases.id"], name=op.f("fk_files_release_id_releases")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_files")),
        sa.UniqueConstraint("project_id", "filename", name=op.f("uq_files_project_id_filename")),
    )
    with op.batch_alter_table("files", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_files_release_id"), ["release_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_files_sha256"), ["sha256"], unique=False)
    op.create_table(
        "search_terms",
        sa.Column("project_id", sa.Integer(), nullable=False),
        sa.Column("place", sa.SmallInteger(), nullable=False),
        sa.Column("term", sa.String().with_variant(sa.String(collation="C"), "postgresql"), nullable=False),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name=op.f("fk_search_terms_project_id_projects")
        ),
        sa.PrimaryKeyConstraint("project_id", "place", "term", name=op.f("pk_search_terms")),
    )
    with op.batch_alter_table("search_terms", schema=None) as batch_op:
        batch_op.create_index(
            batch_op.f("ix_search_terms_place_term_project_id"), ["place", "term", "project_id"], unique=False
        )
    for statement in APPEND_ONLY[op.get_bind().dialect.name]:
        op.execute(sa.text(statement))
    op.execute(sa.text("INSERT INTO hub_state (id, serial) VALUES (1, 0)"))


def downgrade() -> None:
    """Undo."""
    with op.batch_alter_table("search_terms", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_search_terms_place_term_project_id"))

    op.drop_table("search_terms")
    with op.batch_alter_table("files", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_files_sha256"))
        batch_op.drop_index(batch_op.f("ix_files_release_id"))

    op.drop_table("files")
    op.drop_table("session_files")
    op.drop_table("releases")
    op.drop_table("upload_sessions")
    with op.batch_alter_table("tokens", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_tokens_parent_id"))
        batch_op.drop_index(batch_op.f("ix_tokens_owner_id"))

    op.drop_table("tokens")
    with op.batch_alter_table("projects", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_projects_name"))

    op.drop_table("projects")
    with op.batch_alter_table("memberships", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_memberships_user_id"))

    op.drop_table("memberships")
    op.drop_table("rate_buckets")
    op.drop_table("owners")
    with op.batch_alter_table("journal", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_journal_project_id"))
        batch_op.drop_index(batch_op.f("ix_journal_owner"))
        batch_op.drop_index(batch_op.f("ix_journal_action"))
        batch_op.drop_index(batch_op.f("ix_journal_at"))

    op.drop_table("journal")
    op.drop_table("hub_state")
    if op.get_bind().dialect.name == "postgresql":
        op.execute(sa.text("DROP FUNCTION journal_append_only()"))
