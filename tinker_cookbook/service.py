"""One way to a Tinker API: the server the user named, else an engine on this machine."""

import asyncio
import atexit
import os
import sys
import threading
from typing import TYPE_CHECKING

import tinker
from tinker.lib import internal_client_holder

if TYPE_CHECKING:
    from tinker_engine.embedded import Engine


def connect(base_url: str | None = None, user_metadata: dict[str, str] | None = None) -> tinker.ServiceClient:
    """A client of the named server, else of the one in the environment, else of an engine on this machine.

    The last is started at need, once for this process and all its children, and ends with this process.
    """
    if base_url is not None:
        _local.check_key_for(base_url)
    elif (engine := _local.engine_unless_configured()) is not None:
        return tinker.ServiceClient(user_metadata, base_url=engine.url, api_key=engine.key)
    return tinker.ServiceClient(user_metadata, base_url=base_url)


class _Local:
    """The engine of this process, and the variables by which its children find it."""

    def __init__(self):
        self._lock = threading.Lock()
        self._engine: Engine | None = None
        self._exported: dict[str, str] = {}

    def engine_unless_configured(self) -> "Engine | None":
        """None if the user chose a server (or a parent process did, by its variables)."""
        with self._lock:
            if any(self._configured(name) for name in ("TINKER_BASE_URL", "TINKER_API_KEY")):
                return None
            if self._engine is None or not self._engine.alive:
                self._start()
            return self._engine

    def check_key_for(self, base_url: str) -> None:
        """The key of the engine on this machine, which children inherit, is not for another server."""
        exported = self._exported.get("TINKER_API_KEY")
        if (
            exported
            and os.environ.get("TINKER_API_KEY") == exported
            and base_url != self._exported["TINKER_BASE_URL"]
        ):
            raise ValueError(
                f"TINKER_API_KEY holds the key of the engine on this machine; set it to your key for {base_url} before "
                "you connect there"
            )

    def _configured(self, name: str) -> bool:
        return os.environ.get(name, "") not in ("", self._exported.get(name))

    def _start(self) -> None:
        from tinker_engine import embedded

        for name, value in self._exported.items():  # of an engine that died; NO_PROXY stays right
            if name.upper() != "NO_PROXY" and os.environ.get(name) == value:
                del os.environ[name]
        self._engine = engine = embedded.start_or_join(on_progress=_say, on_death=_say)
        self._exported = embedded.client_environment(engine, os.environ)
        os.environ.update(self._exported)
        if "HF_ENDPOINT" in self._exported:
            _redirect_imported_hub(engine.url)
        how = "started" if engine.started_here else "joined"
        _say(f"{how} the engine at {engine.url} (data {engine.data}, log {engine.log})")


def _redirect_imported_hub(url: str) -> None:
    """`huggingface_hub` reads HF_ENDPOINT when it is imported, which may have been long ago."""
    constants = sys.modules.get("huggingface_hub.constants")
    if constants is not None:
        constants.ENDPOINT = url  # pyright: ignore[reportAttributeAccessIssue]
        template = url + "/{repo_id}/resolve/{revision}/{filename}"
        constants.HUGGINGFACE_CO_URL_TEMPLATE = template  # pyright: ignore[reportAttributeAccessIssue]
    api = sys.modules.get("huggingface_hub.hf_api")
    if api is not None:
        api.api.endpoint = url


def _say(message: str) -> None:
    print(f"tinker: {message}", file=sys.stderr, flush=True)


_local = _Local()


def _forget_after_fork() -> None:
    """A forked child has the variables, like any other child, but neither the watching thread nor the engine."""
    global _local
    _local = _Local()


os.register_at_fork(after_in_child=_forget_after_fork)


@atexit.register
def _end_thread_of_sdk() -> None:
    """It goes on while Python shuts down, and where that finds it inside of compiled code the process is aborted, after
    a script that did all its work."""
    holder = getattr(internal_client_holder, "_internal_client_holder_thread_singleton", None)
    thread: threading.Thread | None = getattr(holder, "_thread", None)
    if holder is not None and thread is not None and thread.is_alive():
        loop: asyncio.AbstractEventLoop = holder.get_loop()
        loop.call_soon_threadsafe(loop.stop)
        thread.join(timeout=1)
