"""Training runs and checkpoints as things one can list, publish, copy, download and delete."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from starlette.requests import Request
from starlette.responses import FileResponse, Response

from tinker_engine.api.auth import TOKEN_SECONDS, Access
from tinker_engine.api.http import Call, Handler, answer, respond_to
from tinker_engine.core.checkpoints import KINDS
from tinker_engine.core.engine import Engine
from tinker_engine.core.records import Checkpoint, Run
from tinker_engine.errors import EngineError, NotFoundError, UnsupportedError
from tinker_engine.store.folders import verify

TYPES = {"weights": "training", "sampler_weights": "sampler", "external_weights": "external"}


async def list_runs(call: Call) -> Response:
    offset, limit = call.page(20)
    mine = [run for run in call.engine.training.runs.values() if run.owner == call.owner]
    mine.sort(key=lambda run: -run.used)
    rows = [_run(call, run) for run in mine[offset : offset + limit]]
    return answer({"training_runs": rows, "cursor": _cursor(offset, limit, len(mine))})


async def get_run(call: Call) -> Response:
    return answer(_run(call, _readable(call, call.path["run"])))


async def list_run_checkpoints(call: Call) -> Response:
    run = call.engine.training.find(call.path["run"], call.owner)
    found = call.engine.checkpoints.named(call.owner, run.id)
    return answer(
        {"checkpoints": [_checkpoint(c) for c in found], "cursor": _cursor(0, len(found), len(found))}
    )


async def list_checkpoints(call: Call) -> Response:
    offset, limit = call.page(100)
    mine = call.engine.checkpoints.named(call.owner)
    return answer(
        {
            "checkpoints": [_checkpoint(c) for c in mine[offset : offset + limit]],
            "cursor": _cursor(offset, limit, len(mine)),
        }
    )


async def delete_checkpoint(call: Call) -> Response:
    await call.engine.checkpoints.remove([_mine(call)])
    return answer({})


async def set_ttl(call: Call) -> Response:
    ttl = call.json().optional_integer("ttl_seconds")
    await call.engine.checkpoints.set_expiry(_mine(call), ttl)
    return answer({})


async def publish(call: Call) -> Response:
    await call.engine.checkpoints.set_public(_mine(call), True)
    return answer({})


async def unpublish(call: Call) -> Response:
    await call.engine.checkpoints.set_public(_mine(call), False)
    return answer({})


async def copy_weights(call: Call) -> Response:
    fields = call.json()
    copied = await call.engine.copy_weights(
        call.owner, fields.text("source_path"), fields.optional_integer("ttl_seconds")
    )
    return answer({"tinker_path": copied.tinker_path})


def external_urls(access: Access) -> Handler:
    """Links to each file, good for some hours, which need no key: whoever downloads may be another program."""

    async def handle(call: Call) -> Response:
        checkpoint = call.engine.checkpoints.find(
            f"tinker://{call.path['run']}/external_weights/{call.path['name']}", call.owner
        )
        files = await asyncio.to_thread(verify, call.engine.checkpoints.folder(checkpoint.id))
        base = str(call.request.base_url).rstrip("/")
        token = access.link(checkpoint.id)
        urls = {name: f"{base}/files/{checkpoint.id}/{name}?token={token}" for name in files}
        expires = datetime.now(UTC) + timedelta(seconds=TOKEN_SECONDS)
        return answer({"urls": urls, "expires": expires.isoformat()})

    return handle


def download(engine: Engine, access: Access) -> Callable[[Request], Awaitable[Response]]:
    async def handle(request: Request) -> Response:
        checkpoint, name = request.path_params["checkpoint"], request.path_params["file"]
        try:
            access.check_link(request.query_params.get("token", ""), checkpoint)
            folder = engine.checkpoints.folder(engine.checkpoints.get(checkpoint).id)
            if name not in await asyncio.to_thread(verify, folder):
                raise NotFoundError(f"the checkpoint has no file {name[:200]!r}")
        except EngineError as error:
            return respond_to(error)
        return FileResponse(folder / name)

    return handle


async def archive(call: Call) -> Response:
    raise UnsupportedError(
        "archives are not made here; save with save_weights_external and fetch its files (tinker 0.36 or newer does "
        "so for `tinker checkpoint download`)",
    )


def refused(what: str) -> Handler:
    """For what only the hosted service has: an answer at once, not a silence."""

    async def handle(call: Call) -> Response:
        raise UnsupportedError(
            f"{what} exists only on the hosted service; this engine runs on your own machine"
        )

    return handle


def _mine(call: Call) -> Checkpoint:
    return call.engine.checkpoints.owned(call.path["run"], call.path["kind"], call.path["name"], call.owner)


def _readable(call: Call, run_id: str) -> Run:
    """Mine, or one with a published checkpoint when asked for what is accessible."""
    run = call.engine.training.runs.get(run_id)
    everyone = call.request.query_params.get("access_scope") == "accessible"
    if run is not None and everyone and any(c.run_id == run_id for c in call.engine.checkpoints.public()):
        return run
    return call.engine.training.find(run_id, call.owner)


def _run(call: Call, run: Run) -> dict[str, Any]:
    mine = run.owner == call.owner
    saved = [c for c in call.engine.checkpoints.named(run.owner, run.id) if mine or c.public]
    last = {kind: next((c for c in saved if c.kind == kind), None) for kind in KINDS}
    return {
        "training_run_id": run.id,
        "base_model": run.base_model,
        "model_owner": run.owner,
        "is_lora": True,
        "corrupted": run.corrupted is not None,
        "lora_rank": run.lora["rank"],
        "last_request_time": _time(run.used),
        "last_checkpoint": _checkpoint(last["weights"]) if last["weights"] else None,
        "last_sampler_checkpoint": _checkpoint(last["sampler_weights"]) if last["sampler_weights"] else None,
        "user_metadata": run.user_metadata if mine else None,
    }


def _checkpoint(checkpoint: Checkpoint) -> dict[str, Any]:
    return {
        "checkpoint_id": f"{checkpoint.kind}/{checkpoint.name}",
        "checkpoint_type": TYPES[checkpoint.kind],
        "time": _time(checkpoint.created),
        "tinker_path": checkpoint.tinker_path,
        "size_bytes": checkpoint.size,
        "public": checkpoint.public,
        "user_metadata": checkpoint.user_metadata,
        "expires_at": _time(checkpoint.expires) if checkpoint.expires is not None else None,
    }


def _cursor(offset: int, limit: int, total: int) -> dict[str, int]:
    return {"offset": offset, "limit": limit, "total_count": total}


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()
