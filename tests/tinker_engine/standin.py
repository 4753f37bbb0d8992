"""Honours the engine's contract with whoever starts it, and enough of the Tinker API for a client to connect.

`python standin.py serve --data DIR --host H --port P --parent PID`. What goes wrong is chosen by STANDIN:
`refuse` fails at start, `hang` never answers.
"""

import argparse
import fcntl
import json
import os
import select
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

KEY = "tml-standin"
MODEL = "tinker-engine/tiny-chat"
FILES = Path(__file__).parents[2] / "tinker_engine" / "model" / "tiny"
COMMIT = "0" * 40

polling = threading.Event()  # a client waits for a result


class Server(ThreadingHTTPServer):
    daemon_threads = True


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, body: object, status: int = 200) -> None:
        self.send(json.dumps(body).encode(), status, {"content-type": "application/json"})

    def send(self, body: bytes, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "content-length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_GET(self) -> None:
        match self.path.removeprefix("/api/v1/").split("?")[0].strip("/").split("/"):
            case ["healthz"]:
                self.answer({"status": "ok"})
            case ["standin", "polling"]:
                self.answer(polling.wait(30))
            case ["get_server_capabilities"]:
                self.answer({"supported_models": [{"model_name": MODEL}]})
            case ["samplers", name]:
                self.answer({"sampler_id": name, "base_model": MODEL})
            case [*org_and_name, "resolve", _, name] if "/".join(org_and_name) == MODEL:
                self.hub_file(name)
            case _:
                self.answer({"error": "no such thing"}, 404)

    do_HEAD = do_GET

    def hub_file(self, name: str) -> None:
        headers = {"x-repo-commit": COMMIT, "etag": f'"{name}"'}
        if (FILES / name).is_file():
            self.send((FILES / name).read_bytes(), 200, headers)
        else:
            self.send(b"", 404, {**headers, "x-error-code": "EntryNotFound"})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        match self.path.removeprefix("/api/v1/").strip("/"):
            case "engine/parents":
                if self.headers["x-api-key"] != KEY:
                    return self.answer({"error": "wrong key"}, 401)
                watch(json.loads(body)["pid"])
                return self.answer({})
            case "create_session":
                return self.answer({"session_id": "s"})
            case "create_sampling_session":
                return self.answer({"sampling_session_id": "s:sample:0"})
            case "telemetry":
                return self.answer({"status": "accepted"})
            case "create_model":
                return self.answer({"request_id": "r"})
            case "asample":
                return self.answer({"request_id": "r", "sample_sequence_ids": ["a"]})
            case "retrieve_future":
                polling.set()
                threading.Event().wait(30)
                return self.answer({"type": "try_again", "queue_state": "active"}, 408)
        return self.answer({})

    def log_message(self, format: str, *args: object) -> None:
        pass


alive: set[int] = set()


def watch(pid: int) -> None:
    if pid in alive:
        return
    alive.add(pid)
    threading.Thread(target=end_with, args=(pid, os.pidfd_open(pid)), daemon=True).start()


def end_with(pid: int, pidfd: int) -> None:
    select.select([pidfd], [], [])
    alive.discard(pid)
    if not alive:
        os.kill(os.getpid(), signal.SIGTERM)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=["serve"])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--model", action="append", default=[])
    arguments = parser.parse_args()
    with (arguments.data / "lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"another process has {arguments.data}", file=sys.stderr)
            return 3
        return serve(arguments)


def serve(arguments: argparse.Namespace) -> int:
    fault = os.environ.get("STANDIN")
    if fault == "refuse":
        print("the disk is full", file=sys.stderr)
        return 5
    with (arguments.data / "starts").open("a") as starts:
        starts.write(f"{os.getpid()} {' '.join(arguments.model)}\n")
    if fault == "hang":
        threading.Event().wait()
    server = Server((arguments.host, arguments.port), Handler)
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
    watch(arguments.parent)
    log = arguments.data / "engine.log"
    log.open("a").write("ready to train\n")
    record = {
        "pid": os.getpid(),
        "url": f"http://127.0.0.1:{server.server_port}",
        "key": KEY,
        "log": str(log),
    }
    (arguments.data / "engine.json.new").write_text(json.dumps({**record, "version": "0"}))
    (arguments.data / "engine.json.new").replace(arguments.data / "engine.json")
    server.serve_forever(poll_interval=0.02)
    (arguments.data / "engine.json").unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
