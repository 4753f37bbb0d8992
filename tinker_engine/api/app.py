"""All routes of the server."""

import time
from collections.abc import Callable

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tinker_engine.api import futures, runs, sampling, sessions, training
from tinker_engine.api.auth import Access
from tinker_engine.api.http import Call, Handler, answer, credential, endpoint, error_response
from tinker_engine.api.hub import hub_routes
from tinker_engine.api.openai import openai_routes
from tinker_engine.api.openai_engine import EngineBackend
from tinker_engine.core.engine import Engine

_RUN = "/training_runs/{run}"
_CHECKPOINT = _RUN + "/checkpoints/{kind}/{name}"


def create_app(engine: Engine, access: Access, watch: Callable[[int], None]) -> Starlette:
    """`watch`: the engine lives as long as the process with this id, among others."""
    handlers: list[tuple[str, str, Handler]] = [
        # Routes are tried in order: these four come with every step of every client.
        ("POST", "/retrieve_future", futures.retrieve_future),
        ("POST", "/asample", sampling.sample),
        ("POST", "/forward_backward", training.forward_backward),
        ("POST", "/optim_step", training.optim_step),
        ("POST", "/client/config", sessions.client_config),
        ("POST", "/client/dynamic_config", sessions.dynamic_config),
        ("POST", "/auth/token", sessions.token(access)),
        ("GET", "/auth/apikey/me", sessions.key_details),
        ("DELETE", "/auth/apikey/me", sessions.forget_key),
        ("GET", "/get_server_capabilities", sessions.capabilities),
        ("POST", "/create_session", sessions.create_session),
        ("POST", "/session_heartbeat", sessions.heartbeat),
        ("POST", "/sessions/{session}/finish", sessions.finish_session),
        ("GET", "/sessions", sessions.list_sessions),
        ("GET", "/sessions/{session}", sessions.get_session),
        ("POST", "/telemetry", sessions.telemetry),
        ("POST", "/create_model", training.create_model),
        ("POST", "/get_info", training.get_info),
        ("POST", "/unload_model", training.unload_model),
        ("POST", "/save_weights", training.save_weights),
        ("POST", "/load_weights", training.load_weights),
        ("POST", "/save_weights_for_sampler", training.save_weights_for_sampler),
        ("POST", "/save_weights_external", training.save_weights_external),
        ("POST", "/create_custom_loss", training.create_custom_loss),
        ("POST", "/weights_info", training.weights_info),
        ("POST", "/create_sampling_session", sampling.create_sampling_session),
        ("POST", "/join_sampling_session", sampling.join_sampling_session),
        ("GET", "/samplers/{sampler}", sampling.get_sampler),
        ("POST", "/cancel_future", futures.cancel_future),
        ("GET", "/training_runs", runs.list_runs),
        ("GET", _RUN, runs.get_run),
        ("GET", _RUN + "/checkpoints", runs.list_run_checkpoints),
        ("GET", "/checkpoints", runs.list_checkpoints),
        ("DELETE", _CHECKPOINT, runs.delete_checkpoint),
        ("PUT", _CHECKPOINT + "/ttl", runs.set_ttl),
        ("POST", _CHECKPOINT + "/publish", runs.publish),
        ("DELETE", _CHECKPOINT + "/publish", runs.unpublish),
        (
            "GET",
            _RUN + "/checkpoints/external_weights/{name}/external_weights_urls",
            runs.external_urls(access),
        ),
        ("GET", _CHECKPOINT + "/archive", runs.archive),
        ("POST", "/copy_weights", runs.copy_weights),
        ("POST", "/sessions/search", runs.refused("searching sessions")),
        ("PUT", "/sessions/{session}/project", runs.refused("assigning projects")),
        ("GET", "/sessions/{session}/trace_export", runs.refused("exporting traces")),
        ("GET", "/audit", runs.refused("the audit log")),
        ("GET", "/billing/usage/events", runs.refused("billing")),
        ("GET", "/billing/usage/checkpoints/current", runs.refused("billing")),
    ]
    routes = [
        endpoint(method, f"/api/v1{path}", handler, engine, access) for method, path, handler in handlers
    ]
    routes += [
        Route("/files/{checkpoint}/{file:path}", runs.download(engine, access)),
        endpoint("POST", "/engine/parents", _parents(watch), engine, access),
        endpoint("GET", "/engine/status", _status, engine, access),
        Route("/healthz", _health(engine)),
        Route("/api/v1/healthz", _health(engine)),
        Route("/metrics", _metrics(engine)),
        *openai_routes(EngineBackend(engine), lambda request: access.owner(credential(request))),
        *hub_routes(lambda: engine.settings.models, engine.settings.hub),
    ]
    app = Starlette(routes=routes, exception_handlers={404: _unknown, 405: _unknown})
    app.router.redirect_slashes = False  # to an address made from a header that anybody can write
    return app


def _health(engine: Engine) -> Callable[[Request], Response]:
    def handle(_: Request) -> Response:
        return answer({"status": "ok", "compute_pid": engine.compute.pid, "restarts": engine.restarts})

    return handle


def _metrics(engine: Engine) -> Callable[[Request], Response]:
    def handle(_: Request) -> Response:
        return Response(engine.metrics.text(), media_type="text/plain; version=0.0.4")

    return handle


def _parents(watch: Callable[[int], None]) -> Handler:
    async def handle(call: Call) -> Response:
        watch(call.json().integer("pid", least=1))
        return answer({})

    return handle


async def _status(call: Call) -> Response:
    engine = call.engine
    mine = [run for run in engine.training.runs.values() if run.owner == call.owner]
    return answer(
        {
            "stats": engine.stats,
            "rates": engine.rates.at(time.monotonic()),
            "compute": {"pid": engine.compute.pid, "memory_bytes": engine.compute.memory_bytes},
            "queued": {"training": engine.training.depth, "sampling": engine.sampling.depth},
            "restarts": engine.restarts,
            "models": list(engine.settings.models),
            "runs": [
                {
                    "id": run.id,
                    "base_model": run.base_model,
                    "rank": run.lora["rank"],
                    "used": run.used,
                    "queued": engine.training.queued(run.id),
                    "corrupted": run.corrupted,
                }
                for run in sorted(mine, key=lambda run: -run.used)[:50]
            ],
        }
    )


async def _unknown(request: Request, error: Exception) -> Response:
    return error_response(404, f"there is no {request.method} {request.url.path} on this server", "user")
