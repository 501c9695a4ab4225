"""Routes of upload sessions: what `hub push` speaks.

Bytes are sent by PUT. `Upload-Offset: N` says that the body begins at byte N (0 without it); HEAD tells in the same
header how many bytes are here, so an upload that broke off goes on there. A PUT may be repeated.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from hub_server.accounts.auth import HubContext, RequiredPrincipal
from hub_server.context import Context
from hub_server.packages.urls import base_url, index_url
from hub_server.publishing import sessions
from hub_server.publishing.models import UploadSession
from verifiers.hub.schema import NewSession, Published, PublishSession, SessionFileInfo, SessionInfo

router = APIRouter(prefix="/api/v1/{owner}/{name}/releases", tags=["publishing"])

BATCH = 1 << 20


def _info(request: Request, context: Context, owner: str, upload: UploadSession) -> SessionInfo:
    place = f"{base_url(request, context.settings)}/api/v1/{owner}/{upload.name}/releases/{upload.id}"
    files = [
        SessionFileInfo(
            name=file.filename, size=file.size, sha256=file.sha256, url=f"{place}/{file.filename}",
            received=sessions.received(context, file), stored=file.stored,
        )
        for file in upload.files
    ]  # fmt: skip
    return SessionInfo.model_validate(
        {
            "id": upload.id, "owner": owner, "name": upload.name, "version": upload.version, "files": files,
            "visibility": upload.visibility, "state": upload.state, "expires_at": upload.expires_at,
        }
    )  # fmt: skip


@router.post("", status_code=201)
def create(
    owner: str, name: str, new: NewSession, request: Request, response: Response, principal: RequiredPrincipal,
    context: HubContext,
) -> SessionInfo:  # fmt: skip
    """Open an upload session for a version. 409 with Location if one is open."""
    upload = sessions.create(context, principal, owner, name, new)
    info = _info(request, context, owner, upload)
    response.headers["Location"] = f"/api/v1/{owner}/{info.name}/releases/{info.id}"
    return info


@router.get("/{session}")
def show(
    owner: str, name: str, session: str, request: Request, principal: RequiredPrincipal, context: HubContext
) -> SessionInfo:
    """What the session was promised, and what of it is here."""
    with context.database.read() as reading:
        upload = sessions.find(reading, principal, owner, name, session)
    return _info(request, context, owner, upload)


@router.delete("/{session}", status_code=204)
def abort(owner: str, name: str, session: str, principal: RequiredPrincipal, context: HubContext) -> None:
    """End the session; its bytes are removed."""
    sessions.abort(context, principal, owner, name, session)


@router.head("/{session}/{filename}", status_code=204)
def offset(
    owner: str, name: str, session: str, filename: str, principal: RequiredPrincipal, context: HubContext
) -> Response:
    """How many bytes of a file are here, as `Upload-Offset`; how many it will have, as `Upload-Length`."""
    with context.database.read() as reading:
        file = sessions.file_of(sessions.find(reading, principal, owner, name, session), filename)
    here = sessions.received(context, file)
    return Response(None, 204, {"Upload-Offset": str(here), "Upload-Length": str(file.size)})


_BYTES = {"requestBody": {"required": True, "content": {"application/octet-stream": {"schema": {"type": "string"}}}}}


@router.put("/{session}/{filename}", status_code=204, openapi_extra=_BYTES)
async def send(
    owner: str, name: str, session: str, filename: str, request: Request, principal: RequiredPrincipal,
    context: HubContext, upload_offset: Annotated[int, Header(ge=0)] = 0,
) -> Response:  # fmt: skip
    """The bytes of a file from `Upload-Offset` on. The answer's `Upload-Offset` tells how many are here then."""
    writer = await run_in_threadpool(
        sessions.begin, context, principal, owner, name, session, filename, upload_offset
    )
    batch = bytearray()
    try:
        async for chunk in request.stream():
            batch += chunk
            if len(batch) >= BATCH:
                await run_in_threadpool(writer.feed, bytes(batch))
                batch.clear()
        await run_in_threadpool(writer.feed, bytes(batch))
        here = await run_in_threadpool(writer.finish)
    except ClientDisconnect:  # what came is kept, and the next PUT goes on there
        await run_in_threadpool(writer.feed, bytes(batch))
        return Response(None, 400)
    finally:
        await run_in_threadpool(writer.close)
    return Response(None, 204, {"Upload-Offset": str(here)})


@router.post("/{session}/publish", status_code=201, responses={200: {"model": Published}})
def publish(
    owner: str, name: str, session: str, request: Request, response: Response, principal: RequiredPrincipal,
    context: HubContext, body: PublishSession | None = None,
) -> Published:  # fmt: skip
    """Check all files and make the release visible, in one transaction. Repeating it is a 200."""
    report = body.report.model_dump(mode="json") if body is not None and body.report is not None else None
    upload, created = sessions.publish_session(context, principal, owner, name, session, report)
    response.status_code = 201 if created else 200
    wheels = [file.sha256 for file in upload.files if file.filename.endswith(".whl")]
    return Published(
        id=f"{owner}/{upload.name}@{upload.version}", created=created, digest=wheels[0] if wheels else None,
        visibility="private" if upload.visibility == "private" else "public",
        index_url=index_url(base_url(request, context.settings), owner, upload.name),
        warnings=sessions.warnings_of(context, upload),
    )  # fmt: skip
