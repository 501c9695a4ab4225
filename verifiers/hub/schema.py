"""What goes over the wire between a hub and its clients, as pydantic models. The server and the client share it.

Unknown fields are kept out of nothing: a newer hub may say more than an older client knows.
"""

from __future__ import annotations

import datetime as dt
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, Field, StringConstraints

Line = Annotated[str, StringConstraints(strip_whitespace=True, pattern=r"^[^\x00-\x1f\x7f]*$")]
"""Text for people, without control characters."""

Scope = Literal["read", "publish", "publish:new", "yank", "results", "admin"]
Role = Literal["reader", "publisher", "admin"]
OwnerKind = Literal["user", "organisation"]
Visibility = Literal["public", "private"]
Status = Literal["active", "archived", "deprecated", "quarantined"]
YankClass = Literal["broken-reward", "leak", "unsafe", "dataset-gone", "other"]


class Problem(BaseModel):
    """Every error body of the API."""

    code: str
    message: str
    hint: str | None = None
    docs: str | None = None


class Whoami(BaseModel):
    """Who a token acts as, and what it allows."""

    owner: str
    token_id: str
    token_name: str
    scopes: list[str]
    patterns: list[str] = []
    expires_at: dt.datetime | None = None
    site_admin: bool = False  # whether it may do what concerns the hub as a whole


class TokenInfo(BaseModel):
    """A token, without its text. `parent_id` is the token that made it; patterns are `owner/name` with `*`."""

    id: str
    owner: str
    name: str
    scopes: list[str]
    patterns: list[str] = []
    parent_id: str | None = None
    created_at: dt.datetime
    expires_at: dt.datetime | None = None
    last_used_at: dt.datetime | None = None
    revoked_at: dt.datetime | None = None


class TokenList(BaseModel):
    """The tokens of an owner, newest first."""

    tokens: list[TokenInfo]


class NewToken(BaseModel):
    """What a token is to be. `owner` is the caller by default. It ends after `days`: 90 by default, or with the token
    that makes it where that is sooner."""

    name: Line = Field(min_length=1, max_length=100)
    scopes: list[Scope] = Field(min_length=1, max_length=6)
    patterns: list[str] = Field([], max_length=20)
    days: int | None = Field(None, ge=1, le=3650)
    forever: bool = False
    owner: str | None = None


class CreatedToken(TokenInfo):
    """A new token with its text, which the hub shows this once and does not keep."""

    token: str


class LeakedTokens(BaseModel):
    """Texts found where no token belongs."""

    tokens: list[str] = Field(min_length=1, max_length=100)


class Received(BaseModel):
    """How many texts were looked at: the same answer whether the hub knows them or not."""

    received: int


class OwnerInfo(BaseModel):
    """A user or an organisation, and the caller's role with it."""

    owner: str
    kind: OwnerKind
    role: Role
    created_at: dt.datetime


class OwnerList(BaseModel):
    """The owners that the caller has a role with, by name."""

    owners: list[OwnerInfo]


class NewOwner(BaseModel):
    """What an owner is to be. `admin` is the first admin of an organisation: the caller by default."""

    owner: str = Field(max_length=100)
    kind: OwnerKind = "user"
    admin: str | None = None


class CreatedOwner(OwnerInfo):
    """A new owner; of a user, the text of its first token, shown this once."""

    token: str | None = None


class NewRole(BaseModel):
    """What a member may do, each including those before it: see private projects; publish and yank; the rest."""

    role: Role


class Member(BaseModel):
    """A member of an organisation."""

    user: str
    role: Role
    since: dt.datetime


class MemberList(BaseModel):
    """The members of an organisation, by name."""

    owner: str
    members: list[Member]


class AuditEvent(BaseModel):
    """One line of the journal: who did what to which project."""

    serial: int
    at: dt.datetime
    action: str
    actor: str | None = None
    token_id: str | None = None
    owner: str | None = None
    project: str | None = None
    version: str | None = None
    filename: str | None = None
    data: dict[str, Any] = {}


class AuditPage(BaseModel):
    """Events in the order of their serials. `next` is the `after` of the next page, if there is one."""

    events: list[AuditEvent]
    next: int | None = None


class RateOverride(BaseModel):
    """A rate of its own for an account: one each `interval` seconds in the long run, `burst` at once."""

    interval: float = Field(gt=0, le=86400)
    burst: int = Field(ge=1, le=1_000_000)
    days: int = Field(30, ge=1, le=365)


class FileInfo(BaseModel):
    """One file of a release. `url` is absolute and stable; `size` is in bytes."""

    filename: str
    kind: Literal["wheel", "sdist"]
    url: str
    size: int
    sha256: str
    uploaded_at: dt.datetime
    requires_python: str | None = None


class Yank(BaseModel):
    """Why a release was withdrawn. Installers pass it over unless it is pinned."""

    reason: Line = Field(min_length=1, max_length=2000)
    cause: YankClass = "other"
    at: dt.datetime | None = None


class ReleaseChange(BaseModel):
    """What has become of a release, with the files that this concerns. `changed`: whether it was otherwise before."""

    id: str  # owner/name@version
    changed: bool
    serial: int
    yanked: Yank | None = None
    files: list[str] = []


class ProjectSettings(BaseModel):
    """What is to change of a project; what is null stays. A project that is set aside says why."""

    visibility: Visibility | None = None
    status: Status | None = None
    status_reason: Line | None = Field(None, max_length=2000)


class ProjectChange(BaseModel):
    """What a project is now. `plain_name`: whether its name means this project in the whole-hub index."""

    id: str  # owner/name
    changed: bool
    serial: int
    visibility: Visibility
    status: Status
    status_reason: str | None = None
    plain_name: bool


class NameTransfer(BaseModel):
    """To which owner's project of the same name the plain name goes."""

    to: str = Field(max_length=100)


class ReleaseInfo(BaseModel):
    """One version of a project. `digest` is the sha256 of its wheel."""

    id: str  # owner/name@version
    version: str
    created_at: dt.datetime
    serial: int
    summary: str | None = None
    requires_python: str | None = None
    digest: str | None = None
    yanked: Yank | None = None
    index_url: str | None = None
    status: Status = "active"  # of the project
    status_reason: str | None = None
    files: list[FileInfo] = []
    facts: dict[str, Any] = {}
    warnings: list[str] = []
    readme: str | None = None
    readme_type: str | None = None
    check_report: dict[str, Any] | None = None  # the author's, about the wheel whose sha256 it names


class ProjectInfo(BaseModel):
    """A project and its versions, newest first (PEP 440). `latest` is the one that an unpinned id means.

    Its releases are without files, facts and README, which each release's own record has.
    """

    owner: str
    name: str
    visibility: Visibility
    status: Status = "active"
    status_reason: str | None = None
    latest: str | None = None
    serial: int = 0
    index_url: str | None = None
    releases: list[ReleaseInfo] = []


class WheelMember(BaseModel):
    """A file inside a wheel. `size` is in bytes, unpacked."""

    path: str
    size: int


class WheelContents(BaseModel):
    """What a release's wheel holds."""

    id: str  # owner/name@version
    filename: str
    sha256: str
    members: list[WheelMember]


class FileChange(BaseModel):
    """A file that two wheels do not have alike. `diff` is a unified diff, for text that is not too long."""

    path: str
    change: Literal["added", "removed", "changed"]
    before: int | None = None  # bytes
    after: int | None = None
    diff: str | None = None
    note: str | None = None  # why there is no diff


class ListChange(BaseModel):
    """Entries that one release lists and the other does not."""

    added: list[str] = []
    removed: list[str] = []


class FieldChange(BaseModel):
    """A statement of the metadata that two releases do not make alike."""

    field: str
    before: Any = None
    after: Any = None


class Difference(BaseModel):
    """What changed from one release to another: files, dependencies, and what else the metadata say."""

    before: str  # owner/name@version, or the file name of a wheel
    after: str
    files: list[FileChange]
    dependencies: ListChange
    hub_dependencies: ListChange
    fields: list[FieldChange]


class SearchHit(BaseModel):
    """A project that a search has found. `summary` is that of its latest release."""

    id: str  # owner/name
    owner: str
    name: str
    visibility: Visibility
    status: Status = "active"
    latest: str | None = None
    summary: str | None = None


class SearchAnswer(BaseModel):
    """One page of hits. `next` goes into `after` for the page that follows; None on the last."""

    hits: list[SearchHit]
    next: str | None = None


class OwnerProjects(BaseModel):
    """The projects of an owner that the caller may see, by name."""

    owner: str
    kind: OwnerKind
    created_at: dt.datetime
    projects: list[SearchHit] = []


class NewFile(BaseModel):
    """A file that an upload session is to get."""

    name: str
    size: int = Field(ge=1)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class NewSession(BaseModel):
    """What opens an upload session."""

    version: str
    files: list[NewFile] = Field(min_length=1, max_length=100)
    visibility: Visibility | None = None  # of a project that is made by this; None is public


class SessionFileInfo(NewFile):
    """A file of a session: where its bytes go, and how many are there."""

    url: str
    received: int = 0
    stored: bool = False


class SessionInfo(BaseModel):
    """An upload session."""

    id: str
    owner: str
    name: str
    version: str
    visibility: Visibility
    state: Literal["open", "published", "aborted"]
    expires_at: dt.datetime
    files: list[SessionFileInfo]


class CheckResult(BaseModel):
    """How one check ended: `detail` is what was found, `hint` what to do about it."""

    id: str
    status: Literal["ok", "failed", "skipped"]
    seconds: float = 0.0
    detail: str = ""
    hint: str | None = None


class CheckReport(BaseModel):
    """What an author's `hub check` found of the wheel with this sha256, and where. Unsigned: it is the author's word.

    lock_sha256: of the versions and hashes of all packages that it was installed with.
    """

    schema_version: Literal[1] = 1
    wheel: str
    wheel_sha256: str
    sdist: str | None = None
    sdist_sha256: str | None = None
    name: str | None = None
    version: str | None = None
    made_at: dt.datetime
    sdk_version: str
    python: str
    platform: str
    lock_sha256: str | None = None
    checks: list[CheckResult]

    @property
    def passed(self) -> bool:
        """Whether no check failed. One that could not be made says so."""
        return all(check.status != "failed" for check in self.checks)


class PublishSession(BaseModel):
    """What closes an upload session: the author's check report may travel along."""

    report: CheckReport | None = None


class Published(BaseModel):
    """A release that is visible. `created` is False if all of it was there before. `digest` is the wheel's sha256."""

    id: str  # owner/name@version
    visibility: Visibility
    created: bool
    index_url: str
    digest: str | None = None
    warnings: list[str] = []


class ResolveRequest(BaseModel):
    """Ids with constraints (`owner/name`, `owner/name@1.2`, `owner/name>=1.2,<2`), as of a serial or a moment."""

    requirements: list[Annotated[str, Field(max_length=300)]] = Field(min_length=1, max_length=200)
    serial: int | None = Field(None, ge=0)
    before: AwareDatetime | None = None
    prereleases: bool = False
    python: str | None = None  # a version such as 3.11: releases that need another are passed over


class ResolvedRelease(BaseModel):
    """One pinned release of an answer."""

    id: str
    owner: str
    name: str
    version: str
    index_url: str
    requires_python: str | None = None
    yanked: Yank | None = None
    files: list[FileInfo]
    requires_dist: list[str] = []
    direct_urls: list[str] = []
    required_by: list[str] = []  # ids whose hub dependency this is; empty for what was asked for


class ResolveAnswer(BaseModel):
    """Every hub release that the ids need, pinned. Byte-identical for the same request and serial."""

    schema_version: Literal[1] = 1
    serial: int
    releases: list[ResolvedRelease]
