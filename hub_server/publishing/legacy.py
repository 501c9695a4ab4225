"""The upload route that uv publish and twine speak (the index's "legacy" API), for the token's owner or a named one.

Refusals are one line of plain text, `what. what to do. [code]`: uv prints the body as it is, and stops its check of a
raced upload at `application/problem+json`. Neither client follows a redirect, so both spellings of an address are
routes. An upload may be repeated at any point: twine sends the whole file again after a 5xx.
"""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from hub_server.accounts.auth import optional_principal
from hub_server.accounts.service import Principal
from hub_server.answers import text_errors
from hub_server.context import Context, get_context
from hub_server.fault_points import reach
from hub_server.operations.middleware import note
from hub_server.problems import NotLoggedIn, Problem
from hub_server.publishing import service
from hub_server.publishing.errors import BadForm, TooLarge
from hub_server.publishing.pipeline import Publication, publish
from hub_server.publishing.receive import FORM_BYTES, Form, FormReceiver, Upload
from verifiers.hub.package.refusal import RefusedError

router = APIRouter(tags=["publishing"], responses=text_errors())

BATCH = 1 << 20
"""Bytes of the body that are handed to a thread at a time: parsing, hashing and writing are no work of the loop's."""

REQUIRED = ("name", "version", "metadata_version", "filetype", "pyversion")
KINDS = {"bdist_wheel": ".whl", "sdist": ".tar.gz"}


class Incoming:
    """One upload, from its first bytes to the answer. Its methods run in threads, one at a time."""

    def __init__(self, request: Request, owner: str | None) -> None:
        self.request = request
        self.context: Context = get_context(request)
        self.owner = owner
        self.principal: Principal | None = None
        limit = self.context.settings.max_file_size
        self.body_limit = limit + FORM_BYTES
        content_type = request.headers.get("content-type", "")
        self.receiver = FormReceiver(content_type, self.context.storage.incoming, limit)

    def feed(self, data: bytes) -> None:
        """Take bytes of the body, from somebody who may publish."""
        if self.principal is None:
            principal = self._log_in()
            with self.context.database.read() as session:
                service.find_owner_for(session, principal, self.owner or principal.slug)
        self.receiver.feed(data)

    def finish(self, data: bytes) -> str:
        """Take the last bytes, and publish. Returns the answer's text."""
        principal = self.principal or self._log_in()
        owner = self.owner or principal.slug
        self.receiver.feed(data)
        form = self.receiver.finish()
        upload = check_form(form)
        reach("after-temp-file")
        done = publish(
            Publication(
                self.context, principal, owner, [upload],
                told_name=form.first("name"), told_version=form.first("version"),
            )
        )  # fmt: skip
        state = "published" if done.created else "already published, same bytes"
        return f"{owner}/{done.name}@{done.version}: {upload.filename} {state}\n"

    def _log_in(self) -> Principal:
        self.principal = optional_principal(self.request, self.context)
        if self.principal is None:
            raise NotLoggedIn()
        return self.principal


def check_form(form: Form) -> Upload:
    """The file, of a form that is an upload (docs/decisions/0022-publishing.md has the fields)."""
    if form.first(":action") != "file_upload":
        raise BadForm("the form's :action is not file_upload")
    if form.first("protocol_version") != "1":
        raise BadForm("the form's protocol_version is not 1")
    if missing := [name for name in REQUIRED if not form.first(name)]:
        raise BadForm(f"the form lacks {', '.join(missing)}")
    upload = form.upload
    if upload is None:
        raise BadForm("the form has no file: the field content is missing")
    kind = form.first("filetype")
    if kind not in KINDS:
        raise BadForm(f"the filetype is {kind[:40]!r}, and only bdist_wheel and sdist are taken")
    if not upload.filename.endswith(KINDS[kind]):
        raise BadForm(f"{upload.filename[:200]!r} is no {kind}: its name does not end in {KINDS[kind]}")
    if (kind == "sdist") != (form.first("pyversion") == "source"):
        raise BadForm("pyversion is `source` for a source archive, and only for one")
    return upload


_TEXT = {"type": "string"}
_FORM = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": [":action", "protocol_version", *REQUIRED, "content"],
                    "properties": {
                        ":action": {"const": "file_upload"},
                        "protocol_version": {"const": "1"},
                        **dict.fromkeys(REQUIRED, _TEXT),
                        "filetype": {"enum": sorted(KINDS)},
                        **dict.fromkeys(("sha256_digest", "blake2_256_digest", "md5_digest"), _TEXT),
                        "content": {"type": "string", "contentMediaType": "application/octet-stream"},
                    },
                }
            }
        },
    }
}


@router.post("/legacy/", response_class=PlainTextResponse, openapi_extra=_FORM)
@router.post("/legacy", response_class=PlainTextResponse, include_in_schema=False)
async def upload_to_own(request: Request) -> PlainTextResponse:
    """Publish a file for the token's own owner, as uv publish and twine do."""
    return await receive(request, None)


@router.post("/{owner}/legacy/", response_class=PlainTextResponse, openapi_extra=_FORM)
@router.post("/{owner}/legacy", response_class=PlainTextResponse, include_in_schema=False)
async def upload_to(request: Request, owner: str) -> PlainTextResponse:
    """Publish a file for this owner, as uv publish and twine do."""
    return await receive(request, owner)


@router.get("/legacy/", include_in_schema=False)
@router.get("/legacy", include_in_schema=False)
@router.get("/{owner}/legacy/", include_in_schema=False)
@router.get("/{owner}/legacy", include_in_schema=False)
def not_an_index(owner: str = "") -> PlainTextResponse:
    """Somebody took the upload address for an index."""
    index = f"/{owner}/simple/" if owner else "/simple/"
    text = f"This is where packages are uploaded to. The index is {index}. [upload-address]\n"
    return PlainTextResponse(text, 405, {"Allow": "POST"})


async def receive(request: Request, owner: str | None) -> PlainTextResponse:
    """Read the body to its end, in batches, and answer. Whatever happens, no temporary file is left."""
    try:
        incoming = Incoming(request, owner)
    except Problem as problem:
        await drain(request, 0)
        return answer(request, problem)
    seen, batch = 0, bytearray()
    try:
        async for chunk in request.stream():
            seen += len(chunk)
            if seen > incoming.body_limit:
                raise TooLarge(f"the upload has more than {incoming.body_limit:,} bytes")
            batch += chunk
            if len(batch) >= BATCH:
                await run_in_threadpool(incoming.feed, bytes(batch))
                batch.clear()
        return PlainTextResponse(await run_in_threadpool(incoming.finish, bytes(batch)))
    except (Problem, RefusedError) as refused:
        await drain(request, seen)
        return answer(request, refused)
    except ClientDisconnect:
        return PlainTextResponse("", 400)  # nobody reads it
    finally:
        incoming.receiver.discard()


async def drain(request: Request, seen: int) -> None:
    """Read on to the body's end, so that the sender comes to read the answer; not beyond twice what is allowed."""
    limit = 2 * (get_context(request).settings.max_file_size + FORM_BYTES)
    try:
        async for chunk in request.stream():
            seen += len(chunk)
            if seen > limit:
                return
    except (RuntimeError, ClientDisconnect):  # read to its end before, or the sender went away
        return


def answer(request: Request, refused: Problem | RefusedError) -> PlainTextResponse:
    """A refusal in one line."""
    note(request.scope, code=refused.code)
    status, headers = (refused.status, refused.headers) if isinstance(refused, Problem) else (400, {})
    text = " ".join(f"{refused.message.rstrip('.')}. {refused.hint} [{refused.code}]".split())
    return PlainTextResponse(text + "\n", status, headers)
