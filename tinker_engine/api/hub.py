"""Tokenizer files the way a model hub serves them, so that `HF_ENDPOINT=<this server>` is all a client needs.

`AutoTokenizer.from_pretrained(name)`, and with it the SDK's `get_tokenizer()`, then works for every model this
server has, with no network. Only the files in `FILES` are served, never weights. What this server does not
have is the upstream hub's: it is redirected there, so that the same script can load its data sets.

Two differences from a hub: a folder has one state, which is served under every revision's name, and links in a
folder are followed (a hub cache is made of them).
"""

import hashlib
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

FILES = (
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "config.json",
    "generation_config.json",
    "merges.txt",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
)
_READ = ["GET", "HEAD"]
_ANY = ["GET", "HEAD", "POST"]


def hub_routes(
    models: Callable[[], Mapping[str, Path]], upstream: str = "https://huggingface.co"
) -> list[Route]:
    """`models` gives the folder of each "org/name". Mount these last: the first pattern begins with a wildcard."""
    hub = _Hub(models, upstream.rstrip("/"))
    ours = "/api/models/{org}/{name}"
    return [
        Route("/{org}/{name}/resolve/{revision}/{file:path}", hub.file, methods=_READ),
        Route(ours, hub.info, methods=_READ),
        Route(f"{ours}/revision/{{revision:path}}", hub.info, methods=_READ),
        Route(f"{ours}/tree/{{revision}}", hub.tree, methods=_READ),
        Route(f"{ours}/{{rest:path}}", hub.elsewhere, methods=_ANY),
        Route("/api/models/{rest:path}", hub.redirect, methods=_ANY),
        Route("/api/datasets/{rest:path}", hub.redirect, methods=_ANY),
        Route("/datasets/{rest:path}", hub.redirect, methods=_ANY),
        Route("/{name}/resolve/{revision}/{file:path}", hub.redirect, methods=_READ),
    ]


class _Hub:
    """The handlers are not coroutines: they read files, so they run in the server's threads."""

    def __init__(self, models: Callable[[], Mapping[str, Path]], upstream: str):
        self._models = models
        self._upstream = upstream

    def file(self, request: Request) -> Response:
        folder = self._folder(request)
        if folder is None:
            return self.redirect(request)
        files = _files(folder)
        name, commit = request.path_params["file"], _commit(files)
        if name not in files:
            return _not_found(name, commit)
        etag = f'"{files[name]}"'
        headers = {"ETag": etag, "X-Repo-Commit": commit}
        if _matches(request.headers.get("if-none-match"), etag):
            return Response(status_code=304, headers=headers)
        return FileResponse(folder / name, headers=headers)

    def info(self, request: Request) -> Response:
        folder = self._folder(request)
        if folder is None:
            return self.redirect(request)
        files, name = _files(folder), _name(request)
        return JSONResponse(
            {
                "id": name,
                "modelId": name,
                "sha": _commit(files),
                "private": False,
                "tags": [],
                "siblings": [{"rfilename": file} for file in files],
            }
        )

    def tree(self, request: Request) -> Response:
        folder = self._folder(request)
        if folder is None:
            return self.redirect(request)
        return JSONResponse(
            [
                {"type": "file", "path": file, "oid": digest, "size": (folder / file).stat().st_size}
                for file, digest in _files(folder).items()
            ]
        )

    def elsewhere(self, request: Request) -> Response:
        """A folder inside a repository, or a question that we do not answer about one that is ours."""
        folder = self._folder(request)
        if folder is None:
            return self.redirect(request)
        return _not_found(request.path_params["rest"], _commit(_files(folder)))

    def redirect(self, request: Request) -> Response:
        # As it was sent: decoding would lose the escaped slashes of revisions such as refs%2Fpr%2F1.
        raw: bytes | None = request.scope.get("raw_path")
        path = raw.decode("ascii") if raw else quote(request.scope["path"])
        query = f"?{request.url.query}" if request.url.query else ""
        return RedirectResponse(f"{self._upstream}{path}{query}", status_code=307)

    def _folder(self, request: Request) -> Path | None:
        return self._models().get(_name(request))


def _name(request: Request) -> str:
    return f"{request.path_params['org']}/{request.path_params['name']}"


def _files(folder: Path) -> dict[str, str]:
    """The files to be had, each with the digest of its content."""
    paths = {name: folder / name for name in FILES}
    return {name: _digest(path, *_version(path)) for name, path in paths.items() if path.is_file()}


def _version(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_mtime_ns, status.st_size


@lru_cache(maxsize=1024)
def _digest(path: Path, mtime_ns: int, size: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _commit(files: Mapping[str, str]) -> str:
    """Clients take 40 hexadecimal digits for a commit and cache under it: another content, another commit."""
    return hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()[:40]


def _matches(if_none_match: str | None, etag: str) -> bool:
    wanted = [part.strip().removeprefix("W/") for part in (if_none_match or "").split(",")]
    return etag in wanted or "*" in wanted


def _not_found(what: str, commit: str) -> Response:
    headers = {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit}
    return JSONResponse(
        {"error": f"{what} is not there; this server has only the tokenizer and config files of its models"},
        status_code=404,
        headers=headers,
    )
