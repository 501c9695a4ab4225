"""What a name means in an index, who may see it, and its page: each from a cache that the journal keeps true.

For private projects the order is: find, ask whether the caller may, then read. Both first steps are the same work for
a project that is hidden and for one that is not there, so neither the answer nor its time tells them apart.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Hashable
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlsplit

import anyio.to_thread
from sqlalchemy.orm import Session

from hub_server.accounts.service import Principal
from hub_server.accounts.tokens import USE_IS_NOTED
from hub_server.context import Context
from hub_server.database import now
from hub_server.packages.manage import GRACE, note_download
from hub_server.simple_index import service
from hub_server.simple_index.addresses import FileAddress, IndexAddress
from hub_server.simple_index.cache import Cache
from hub_server.simple_index.callers import identify
from hub_server.simple_index.downloads import BlobMissing
from hub_server.simple_index.negotiation import Form, negotiate
from hub_server.simple_index.plain_names import PlainNames
from hub_server.simple_index.render import listing_html, listing_json, project_html, project_json
from hub_server.simple_index.responses import (
    LOG_IN,
    NO_FILE,
    NOT_ACCEPTABLE,
    NOT_FOUND,
    Answer,
    Asked,
    Page,
    Redirect,
)
from hub_server.simple_index.service import FileRef, ProjectRef
from hub_server.simple_index.watch import ACCOUNTS, JournalWatch

T = TypeVar("T")

PAGE_BYTES = 32 * 1024 * 1024
FACTS = 20_000
"""What a process keeps: bytes of pages, and facts such as what a name means."""


class Indexes:
    """The indexes of a hub, as one process serves them."""

    def __init__(self, context: Context) -> None:
        self._database = context.database
        self._storage = context.storage
        self._prefix = urlsplit(context.settings.public_url or "").path.rstrip("/")
        upstream = context.settings.upstream_index
        self._upstream = None if upstream is None else upstream.rstrip("/")
        self.watch = JournalWatch(context.database)
        self._pages: Cache[Page] = Cache(self.watch, PAGE_BYTES)
        self._plain_names = PlainNames(self.watch)
        self._whole: dict[Form, tuple[int, Page]] = {}
        self._facts: Cache[Any] = Cache(self.watch, FACTS)
        self._downloaded: set[int] = set()
        self._making: dict[Hashable, asyncio.Task[Any]] = {}

    # --- pages ----------------------------------------------------------------------------------------------------

    async def page(self, address: IndexAddress, asked: Asked) -> Answer:
        """The answer to a request for a page of an index."""
        if not address.is_normal:
            path = address.normal_path()
            return NOT_FOUND if path is None else Redirect(self._prefix + path)
        form = negotiate(asked.header(b"accept"), asked.scope["query_string"])
        if form is None:
            return NOT_ACCEPTABLE
        await self.watch.catch_up()
        if address.full and self._upstream is None:
            return NOT_FOUND
        if address.name is None:
            return await self._listing(address, form, asked)
        if address.owner is None:
            ref = await self._plain(address.name)
        elif address.project is None:
            ref = await self._visible(address.owner, address.name, asked)
        elif address.name == address.project:
            ref = await self._visible(address.owner, address.name, asked)
            if ref is None and await self._caller(asked) is None:
                return LOG_IN
        elif address.full and await self._is_elsewhere(address.owner, address.project, address.name, asked):
            return Redirect(f"{self._upstream}/{address.name}/", 302)
        else:
            ref = await self._scoped(address.owner, address.project, address.name, asked)
        return NOT_FOUND if ref is None else await self._project_page(ref, form)

    async def _scoped(self, owner: str, project: str, name: str, asked: Asked) -> ProjectRef | None:
        """What a name other than its own means in a package's index."""
        if name == service.SDK_NAME:
            return await self._visible(service.SDK_OWNER, name, asked)
        package = await self._visible(owner, project, asked)
        where = None if package is None else (await self._scope(package)).get(name)
        return None if where is None else await self._visible(*where, asked)

    async def _is_elsewhere(self, owner: str, project: str, name: str, asked: Asked) -> bool:
        """Whether a name is another index's: never one that the package's index is for, be it hidden or not there."""
        package = await self._visible(owner, project, asked)
        return package is not None and name not in await self._scope(package)

    async def _project_page(self, ref: ProjectRef, form: Form) -> Answer:
        def make(session: Session) -> Page:
            project, rows = service.project_page(session, ref)
            body = (project_json if form is Form.JSON else project_html)(project, rows, self._prefix)
            serial = (b"x-pypi-last-serial", str(project.serial).encode())
            return Page(body, form, public=ref.public, extra=[serial])

        return await self._page(("page", ref.id, ref.public, form), (ref.name,), make)

    async def _listing(self, address: IndexAddress, form: Form, asked: Asked) -> Answer:
        """The names of an index."""
        owner, project = address.owner, address.project
        if owner is None:
            return await self._whole_listing(form)
        caller = await self._caller(asked)
        if project is None:
            return await self._owner_listing(owner, caller, form)
        package = await self._visible(owner, project, asked)
        if package is None:
            return LOG_IN if caller is None else NOT_FOUND
        scope = await self._scope(package)
        visible = [name for name, where in scope.items() if await self._visible(*where, asked)]
        return _listing_page(visible, form, public=caller is None)

    async def _whole_listing(self, form: Form) -> Answer:
        await self._plain_names.refresh(self._listed)
        names, version = self._plain_names.names, self._plain_names.version
        kept = self._whole.get(form)
        if kept is None or kept[0] != version:
            page = await self._once(("all", form, version), lambda: _listing_page(names, form, public=True))
            self._whole[form] = kept = (version, page)
        return kept[1]

    async def _listed(self, among: Collection[str] | None) -> set[str]:
        key = None if among is None else frozenset(among)
        return await self._once(
            ("listed", key), partial(self._read, lambda session: service.plain_names(session, key))
        )

    async def _owner_listing(self, owner: str, caller: Principal | None, form: Form) -> Answer:
        viewer = None if caller is None else caller.token_id
        tags = (f"/{owner}", ACCOUNTS)
        names = await self._fact(
            ("owner", owner, viewer), lambda _names: tags,
            lambda session: service.owned_names(session, owner, caller),
        )  # fmt: skip
        if names is None:
            return NOT_FOUND
        return await self._page(
            ("owner", owner, viewer, form), tags, lambda _session: _listing_page(names, form, public=caller is None)
        )

    # --- files ----------------------------------------------------------------------------------------------------

    async def file(self, address: FileAddress, asked: Asked) -> FileRef | Answer:
        """The file behind an address, or what to answer instead."""
        await self.watch.catch_up()
        ref = await self._visible(address.owner, address.name, asked)
        if ref is None:
            return NO_FILE if await self._caller(asked) is not None else LOG_IN
        found = await self._fact(
            ("file", ref, address.sha256, address.filename), lambda _file: (address.name,),
            lambda session: service.find_file(session, ref, address.sha256, address.filename),
        )  # fmt: skip
        return NO_FILE if found is None else found

    async def note_download(self, file: FileRef) -> bool:
        """Note that somebody has a file that its owner might still delete. False if that was done meanwhile."""
        if now() - file.uploaded_at > GRACE or file.id in self._downloaded:
            return True
        if len(self._downloaded) > FACTS:
            self._downloaded.clear()  # to note one again is harmless
        is_there = await anyio.to_thread.run_sync(note_download, self._database, file.id)
        if is_there:
            self._downloaded.add(file.id)
        return is_there

    async def size_of(self, digest: str) -> int:
        """The bytes of a blob whose size the database does not know. BlobMissing if the storage does not have it."""
        return await self._kept(("size", digest), lambda _size: (), lambda: self._size(digest))

    def _size(self, digest: str) -> int:
        size = self._storage.size(digest)
        if size is None:
            raise BlobMissing(digest)
        return size

    # --- what a name means, and who asks --------------------------------------------------------------------------

    async def _plain(self, name: str) -> ProjectRef | None:
        return await self._fact(
            ("plain", name), lambda _ref: (name,), lambda session: service.find_plain(session, name)
        )

    async def _visible(self, owner: str, name: str, asked: Asked) -> ProjectRef | None:
        """The project, if the caller may know of it."""
        ref = await self._fact(
            ("owned", owner, name), lambda _ref: (name,), lambda session: service.find_owned(session, owner, name)
        )
        if ref is not None and ref.public:
            return ref
        caller = await self._caller(asked)
        if caller is None:
            return None
        allowed = await self._fact(
            ("read", caller.token_id, owner, name), lambda _allowed: (ACCOUNTS,),
            lambda session: service.may_read(session, caller, owner, name),
        )  # fmt: skip
        return ref if allowed else None

    async def _scope(self, package: ProjectRef) -> dict[str, tuple[str, str]]:
        return await self._fact(
            ("scope", package.owner, package.name), tuple, lambda session: service.scope_of(session, package)
        )

    async def _caller(self, asked: Asked) -> Principal | None:
        authorization = asked.header(b"authorization")
        if authorization is None:
            return None
        period = int(time.time() // USE_IS_NOTED.total_seconds())  # in the next one its use is noted again
        caller = await self._kept(
            ("caller", authorization, period), lambda _caller: (ACCOUNTS,),
            lambda: identify(self._database, authorization),
        )  # fmt: skip
        if caller is None or (caller.expires_at is not None and caller.expires_at <= now()):
            return None  # what is kept of a token may be older than its end
        asked.scope.setdefault("state", {})["principal"] = caller  # for the log
        return caller

    # --- reading through the caches -------------------------------------------------------------------------------

    async def _page(self, key: Hashable, tags: tuple[str, ...], make: Callable[[Session], Page]) -> Page:
        if (entry := self._pages.find(key)) is not None:
            return entry.value
        as_of = self.watch.serial
        page = await self._once(key, partial(self._read, make))
        self._pages.keep(key, page, tags, as_of, page.weight)
        return page

    async def _fact(self, key: Hashable, tags: Callable[[T], tuple[str, ...]], find: Callable[[Session], T]) -> T:
        return await self._kept(key, tags, partial(self._read, find))

    async def _kept(self, key: Hashable, tags: Callable[[T], tuple[str, ...]], find: Callable[[], T]) -> T:
        if (entry := self._facts.find(key)) is not None:
            found: T = entry.value
            return found
        as_of = self.watch.serial
        found = await self._once(key, find)
        self._facts.keep(key, found, tags(found), as_of)
        return found

    async def _once(self, key: Hashable, work: Callable[[], T]) -> T:
        """Work in a thread; whoever asks the same at the same serial meanwhile waits for that answer."""
        asked = (key, self.watch.serial)
        task: asyncio.Task[T] | None = self._making.get(asked)
        if task is None:
            self._making[asked] = task = asyncio.create_task(anyio.to_thread.run_sync(work))
            task.add_done_callback(lambda _task: self._making.pop(asked, None))
        return await asyncio.shield(task)

    def _read(self, find: Callable[[Session], T]) -> T:
        with self._database.read() as session:
            return find(session)


def _listing_page(names: Collection[str], form: Form, *, public: bool) -> Page:
    render = listing_json if form is Form.JSON else listing_html
    return Page(render(sorted(names)), form, public=public)
