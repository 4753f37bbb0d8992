"""A real server process for tests: started, killed and restarted as a user's machine would do it.

with running_server(tmp_path) as server:
    service = tinker.ServiceClient(base_url=server.url, api_key=server.key)
    ...
    server.kill()
    server.restart()
"""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parent.parent
START_SECONDS = 120.0
STOP_SECONDS = 20.0
GLANCE_SECONDS = 0.02  # one wait on the process between two looks at engine.json
LOG_LINES = 60


class ServerError(Exception):
    """The server did not start, did not answer or did not end. Carries the end of its log."""


class Server:
    """One data directory and, most of the time, one process that serves it.

    The process leads its own group, so that `kill` also ends what it started. The address stays the
    same over a restart: a client that keeps asking must find the server again.
    """

    program: Sequence[str] = ("-m", "tinker_engine")  # what Python runs; a test may change the engine by it

    def __init__(self, folder: Path, *arguments: str, environment: Mapping[str, str] | None = None):
        """`environment`: variables for the server besides ours."""
        folder.mkdir(parents=True, exist_ok=True)
        self.data = folder / "data"
        self.output = folder / "server.log"
        self.arguments = arguments
        self.environment = {**_environment(), **(environment or {})}
        self.url = ""
        self.key = ""
        self.version = ""
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or 0

    def start(self, *arguments: str) -> None:
        """Returns when the server answers. `arguments` come after those of the constructor."""
        command = [sys.executable, *self.program, "serve", "--data", str(self.data)]
        command += ["--host", "127.0.0.1", "--port", str(self.port), *self.arguments, *arguments]
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                cwd=self.output.parent,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        engine = self._wait_for_engine_file()
        self.url, self.key, self.version = engine["url"], engine["key"], engine["version"]
        if self.health()["status"] != "ok":
            raise ServerError(f"{self.url} is up but says {self.health()}\n{self.log_tail()}")

    def health(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.url}/healthz", timeout=START_SECONDS) as answer:
            return json.load(answer)

    def kill(self) -> None:
        """SIGKILL to the server and everything it started, as when the machine loses power."""
        process = self._running()
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(STOP_SECONDS)
        self._process = None

    def kill_compute(self) -> int:
        """SIGKILL to the process that computes, and to nothing else; returns the pid it had."""
        pid = int(self.health()["compute_pid"])
        os.kill(pid, signal.SIGKILL)
        return pid

    def stop(self) -> int:
        """Ask the server to end, as Ctrl-C does, and return its exit code."""
        process = self._running()
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ServerError(
                f"the server did not end {STOP_SECONDS:.0f} s after SIGTERM\n{self.log_tail()}"
            ) from None
        with suppress(ProcessLookupError):  # it should have taken its children along
            os.killpg(process.pid, signal.SIGKILL)
        self._process = None
        return code

    def restart(self, *arguments: str) -> None:
        """Serve the same data at the same address again; stops a server that still runs."""
        if self._process is not None:
            self.stop()
        self.start(*arguments)

    def close(self) -> None:
        """End whatever is left. A server that was killed or stopped by the test is fine."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self.stop()
        else:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process = None

    def log_tail(self) -> str:
        """The end of all that the server's processes wrote, over all restarts."""
        lines = self.output.read_text(errors="replace").splitlines() if self.output.exists() else []
        return "\n".join(["--- end of the server's log", *lines[-LOG_LINES:]])

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise ServerError("no server is running; call start() or restart() first")
        return self._process

    def _wait_for_engine_file(self) -> dict[str, Any]:
        """Waits on the process and not on the clock: a server that dies is reported at once."""
        process, path = self._running(), self.data / "engine.json"
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            try:
                code = process.wait(GLANCE_SECONDS)
            except subprocess.TimeoutExpired:
                engine = json.loads(path.read_text()) if path.exists() else {}
                if engine.get("pid") == process.pid:  # and not what a killed server left behind
                    return engine
            else:
                self._process = None
                raise ServerError(f"the server ended with exit code {code}\n{self.log_tail()}")
        self.kill()
        raise ServerError(f"no {path} of this server after {START_SECONDS:.0f} s\n{self.log_tail()}")


@contextmanager
def running_server(
    folder: Path, *arguments: str, environment: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """A server over `folder`/data until the block ends; its log is printed if the block fails."""
    server = Server(folder, *arguments, environment=environment)
    try:
        server.start()
        yield server
    except BaseException:
        print(server.log_tail(), file=sys.stderr)
        raise
    finally:
        server.close()


def _environment() -> dict[str, str]:
    """Ours, with this source tree first and one thread: tests share the machine."""
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), environment.get("PYTHONPATH")]))
    environment.setdefault("OMP_NUM_THREADS", "1")
    return environment
