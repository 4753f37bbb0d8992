"""Answers: long polls that end the moment there is one."""

from starlette.responses import Response

from tinker_engine.api.http import PROTOBUF, Call, answer
from tinker_engine.core.records import Op
from tinker_engine.errors import NotFoundError

METADATA_BYTES = 1 << 20  # from here on a client may want to make room before it fetches the answer


async def retrieve_future(call: Call) -> Response:
    fields = call.json()
    op = await _find(call, fields.text("request_id"))
    futures = call.engine.futures
    if not op.done and not await futures.wait(op, call.engine.settings.limits.poll_seconds):
        # 408 is the SDK's quiet "ask again".
        return answer({"type": "try_again", "request_id": op.request_id, "queue_state": "active"}, 408)
    result = op.result or b""
    if op.status == "failed":
        return answer(
            {"error": result.decode(), "category": op.category or "unknown", "request_id": op.request_id}
        )
    if (
        op.media_type == PROTOBUF
        and fields.flag("allow_metadata_only", False)
        and len(result) > METADATA_BYTES
    ):
        return answer({"status": "complete_metadata", "response_payload_size": len(result)})
    return Response(result, media_type=op.media_type)


async def cancel_future(call: Call) -> Response:
    fields = call.json()
    ids = (
        [fields.text("request_id")]
        if fields.has("request_id")
        else [str(i) for i in fields.items("request_ids")]
    )
    for request_id in ids:
        op = await call.engine.futures.find(request_id)
        if op is not None and op.owner == call.owner and op.kind == "sample":
            call.engine.sampling.cancel(op)
    return answer({})


async def _find(call: Call, request_id: str) -> Op:
    op = await call.engine.futures.find(request_id)
    if op is None or op.owner != call.owner:
        raise NotFoundError(f"there is no request {request_id[:200]!r}, or its answer has expired")
    return op
