"""Routes of data folders, under ``/v1/files``, as ``orwd upload``, ``orwd files`` and ``orwd delete-file`` use them.

An upload is in two steps, as on the platform: the client asks for addresses, and puts each file to its own, without a
key. Here they are addresses of this server, signed with the client's key.
"""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import anyio.to_thread
from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field

from ors_server.keys.authentication import FILES, key_of
from ors_server.keys.keys import Keys
from ors_server.sandbox_service.data_folders import DataFolder, FindFolder

__all__ = ["files_router"]

#: Files of one request for addresses, as on the platform.
_BATCH = 50
#: Seconds that an address can be used.
_VALID = 3600


class _File(BaseModel):
    file_name: Annotated[str, Field(alias="fileName", min_length=1, max_length=4096)]


class _Upload(BaseModel):
    environment_id: Annotated[str, Field(alias="environmentId")]
    files: Annotated[list[_File], Field(max_length=_BATCH)]


_REFUSALS: dict[int | str, dict[str, Any]] = {
    400: {"description": "The name of an environment or a file is not one"},
    404: {"description": "There is no such environment, file or folder"},
    507: {"description": "The disk takes no more"},
}


def files_router(find: FindFolder, keys: Keys) -> APIRouter:
    """Make the router over the data folders of environments."""
    router = APIRouter(prefix=FILES.rstrip("/"), tags=["platform"], responses=_REFUSALS)

    def folder_of(environment: str, request: Request) -> DataFolder:
        return DataFolder(find(environment, key_of(request.scope)))

    @router.post("/upload-urls")
    def upload_urls(upload: _Upload, request: Request) -> dict[str, Any]:
        """Return an address for each file."""
        folder = folder_of(upload.environment_id, request)
        key = key_of(request.scope)
        names = [file.file_name for file in upload.files]
        for name in names:
            folder.find(name)

        def url(name: str) -> str:
            query = keys.upload_query(key, f"{FILES}{upload.environment_id}/{name}", _VALID) if key.name else ""
            return f"{base}{quote(name)}{query and '?'}{query}"

        base = f"{request.base_url}{FILES[1:]}{quote(upload.environment_id, safe='')}/"
        return {"urls": [{"fileName": name, "uploadUrl": url(name)} for name in names]}

    @router.get("/{environment}")
    def files(
        environment: str,
        request: Request,
        prefix: str = "",
        limit: Annotated[int, Query(ge=1, le=1000)] = 200,
        after: Annotated[str, Query(alias="pageToken")] = "",
    ) -> dict[str, Any]:
        """List the files of an environment's data folder."""
        listing = folder_of(environment, request).list(prefix, limit, after)
        return {
            "files": [{"path": path, "size": size} for path, size in listing.files],
            "folders": listing.folders,
            "nextPageToken": listing.next,
        }

    @router.put("/{environment}/{name:path}")
    async def put(environment: str, name: str, request: Request) -> dict[str, Any]:
        """Write one file, whatever its size."""
        folder = await anyio.to_thread.run_sync(folder_of, environment, request)
        return {"path": name, "size": await folder.write(name, request.stream())}

    @router.delete("/{environment}/folder/{name:path}")
    def delete_folder(environment: str, name: str, request: Request) -> dict[str, int]:
        """Delete a folder with its files."""
        return {"deletedCount": folder_of(environment, request).delete_folder(name)}

    @router.delete("/{environment}/{name:path}")
    def delete(environment: str, name: str, request: Request) -> dict[str, str]:
        """Delete one file."""
        folder_of(environment, request).delete(name)
        return {"path": name}

    return router
