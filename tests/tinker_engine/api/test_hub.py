import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from tests.tinker_engine.api.support import serving
from tinker_engine.api.hub import FILES, hub_routes
from tinker_engine.model import tiny
from tinker_engine.model.tokenizer import Tokenizer

UPSTREAM = "https://hub.example"
RESOLVE = f"/{tiny.NAME}/resolve/main"


@pytest.fixture
def client() -> TestClient:
    return client_for({tiny.NAME: tiny.FOLDER})


def client_for(models: dict[str, Path]) -> TestClient:
    return TestClient(Starlette(routes=hub_routes(lambda: models, UPSTREAM)), follow_redirects=False)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving(Starlette(routes=hub_routes(lambda: {tiny.NAME: tiny.FOLDER}, UPSTREAM))) as address:
        yield address


def run_client(script: str, address: str, home: Path) -> str:
    """In a process of its own, which has never seen the model."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "TRANSFORMERS_"))}
    environment |= {"HF_ENDPOINT": address, "HF_HOME": str(home), "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_transformers_loads_the_tokenizer_by_name(address: str, tmp_path: Path):
    script = f"""
import json
from transformers import AutoTokenizer
for _ in range(2):  # the second time from its cache, after asking whether that is current
    tokenizer = AutoTokenizer.from_pretrained({tiny.NAME!r})
messages = [{{"role": "user", "content": "Grüße"}}]
text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
print(json.dumps([tokenizer.encode("What is 2 + 2?"), tokenizer.eos_token, text]))
"""
    ids, eos, text = json.loads(run_client(script, address, tmp_path))
    assert ids == Tokenizer.from_folder(tiny.FOLDER).encode("What is 2 + 2?")
    assert eos == "<|im_end|>"
    assert text == "<|im_start|>user\nGrüße<|im_end|>\n<|im_start|>assistant\n"


def test_the_hub_package_lists_and_describes_the_model(address: str, tmp_path: Path):
    script = f"""
import json
from huggingface_hub import HfApi, file_exists, snapshot_download
api = HfApi()
info = api.model_info({tiny.NAME!r}, revision="main")
tree = [entry.path for entry in api.list_repo_tree({tiny.NAME!r})]
print(json.dumps([info.id, info.sha, tree, file_exists({tiny.NAME!r}, "model.safetensors"),
                  snapshot_download({tiny.NAME!r})]))
"""
    name, sha, tree, has_weights, folder = json.loads(run_client(script, address, tmp_path))
    assert name == tiny.NAME
    assert sorted(tree) == sorted(path.name for path in tiny.FOLDER.iterdir() if path.name in FILES)
    assert has_weights is False
    assert Path(folder).name == sha
    assert {path.name: path.read_bytes() for path in Path(folder).iterdir()} == {
        file: (tiny.FOLDER / file).read_bytes() for file in tree
    }


def test_a_file_comes_with_what_clients_cache_it_by(client: TestClient):
    content = (tiny.FOLDER / "config.json").read_bytes()
    for method in ("GET", "HEAD"):
        answer = client.request(method, f"{RESOLVE}/config.json")
        assert answer.status_code == 200
        assert answer.content == (content if method == "GET" else b"")
        assert answer.headers["content-length"] == str(len(content))
        assert len(answer.headers["x-repo-commit"]) == 40
        etag = answer.headers["etag"]
        for same in (etag, f"W/{etag}", f'"other", {etag}', "*"):
            again = client.request(method, f"{RESOLVE}/config.json", headers={"If-None-Match": same})
            assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag)
        changed = client.request(method, f"{RESOLVE}/config.json", headers={"If-None-Match": '"other"'})
        assert changed.status_code == 200


def test_another_content_is_another_commit(tmp_path: Path):
    shutil.copytree(tiny.FOLDER, tmp_path / "model", ignore=shutil.ignore_patterns("*.safetensors"))
    client = client_for({"org/model": tmp_path / "model"})
    before = client.head("/org/model/resolve/main/tokenizer.json").headers
    assert client.head("/org/model/resolve/main/tokenizer.json").headers == before
    (tmp_path / "model" / "config.json").write_text("{}")
    after = client.head("/org/model/resolve/main/tokenizer.json").headers
    assert after["etag"] == before["etag"]
    assert after["x-repo-commit"] != before["x-repo-commit"]


@pytest.mark.parametrize(
    "file",
    [
        "model.safetensors",
        "__init__.py",
        "README.md",
        "added_tokens.json",
        "../tiny/config.json",
        "%2e%2e/tiny/config.json",
        "..%2Fspec.py",
        "%2Fetc%2Fpasswd",
        "config.json/",
        "./config.json",
        "",
    ],
)
def test_nothing_else_is_served(address: str, file: str):
    connection = HTTPConnection(address.removeprefix("http://"), timeout=30)  # sends a path as it is given
    connection.request("GET", f"{RESOLVE}/{file}")
    answer = connection.getresponse()
    assert answer.status == 404
    assert answer.headers["x-error-code"] == "EntryNotFound"
    connection.close()


def test_a_folder_inside_the_repository_is_not_there(client: TestClient):
    for path in ("tree/main/additional_chat_templates", "paths-info/main", "tree/main/.."):
        answer = client.get(f"/api/models/{tiny.NAME}/{path}")
        assert (answer.status_code, answer.headers["x-error-code"]) == (404, "EntryNotFound")


@pytest.mark.parametrize(
    "path",
    [
        "/org/other/resolve/main/config.json",
        "/gpt2/resolve/main/config.json",
        "/datasets/org/data/resolve/refs%2Fconvert%2Fparquet/a%20b.parquet?download=true",
        "/api/models/org/other",
        "/api/models/gpt2",
        "/api/models/org/other/revision/refs%2Fpr%2F1",
        "/api/models/org/other/tree/main?recursive=true&expand=false",
        "/api/models/org/other/tree/main/folder",
        "/api/datasets/org/data/revision/main",
        "/api/datasets/org/data/paths-info/main",
    ],
)
def test_what_is_not_ours_is_the_hubs(client: TestClient, path: str):
    answer = client.get(path)
    assert (answer.status_code, answer.headers["location"]) == (307, f"{UPSTREAM}{path}")


def test_a_redirected_post_stays_a_post(client: TestClient):
    answer = client.post("/api/datasets/org/data/paths-info/main", json={"paths": ["a"]})
    assert answer.status_code == 307


def test_models_are_looked_up_at_each_request(tmp_path: Path):
    models: dict[str, Path] = {}
    client = client_for(models)
    assert client.get("/api/models/org/new").status_code == 307
    models["org/new"] = tiny.FOLDER
    assert client.get("/api/models/org/new").json()["id"] == "org/new"
