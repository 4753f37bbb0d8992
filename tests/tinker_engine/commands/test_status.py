from collections.abc import Iterator

import pytest
import tinker
from tinker import types

from tests.server import Server, running_server
from tinker_engine.cli import main
from tinker_engine.commands.status import describe

MODEL = "tinker-engine/tiny-chat"
LOOKS = 500  # at the engine, until its compute process has reported


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("status")) as server:
        yield server


@pytest.fixture(scope="module")
def work(server: Server) -> tuple[str, int]:
    """A run that has trained a step, and how many tokens were sampled from it."""
    service = tinker.ServiceClient(base_url=server.url, api_key=server.key)
    client = service.create_lora_training_client(MODEL, rank=4, seed=0)
    tokens = list(range(5, 45))
    datum = types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={
            "target_tokens": types.TensorData(data=tokens[1:], dtype="int64", shape=[39]),
            "weights": types.TensorData(data=[1.0] * 39, dtype="float32", shape=[39]),
        },
    )
    client.forward_backward([datum], "cross_entropy").result()
    client.optim_step(types.AdamParams(learning_rate=1e-3)).result()
    sampler = client.save_weights_and_get_sampling_client()
    prompt = types.ModelInput.from_ints([5, 6, 7])
    answer = sampler.sample(
        prompt, num_samples=2, sampling_params=types.SamplingParams(max_tokens=6)
    ).result()
    return client.model_id, sum(len(sequence.tokens) for sequence in answer.sequences)


def test_what_the_engine_did_is_shown(server, work, capsys):
    run_id, sampled = work
    shown = ""
    for _ in range(LOOKS):
        assert main(["status", "--data", str(server.data)]) == 0
        shown = capsys.readouterr().out
        if f"39 tokens trained, {sampled} sampled" in shown:  # it reports while it works, too
            break
    lines = {line.partition("  ")[0]: line.partition("  ")[2] for line in shown.splitlines()}
    assert server.url in lines["engine"]
    assert "MB" in lines["compute process"] or "GB" in lines["compute process"]
    assert lines["restarts"].strip() == "none"
    assert lines["since its start"].strip() == f"39 tokens trained, {sampled} sampled"
    assert "tokens/s, 0 requests waiting" in lines["training"]
    row = next(line.split() for line in shown.splitlines() if line.startswith(run_id))
    assert row[:4] == [run_id, MODEL, "4", "0"]
    assert row[-1] == "ago"


def test_an_engine_elsewhere_is_asked_by_its_address(server, monkeypatch, capsys):
    assert main(["status", "--url", server.url, "--key", server.key]) == 0
    assert server.url in capsys.readouterr().out
    monkeypatch.setenv("TINKER_API_KEY", server.key)
    assert main(["status", "--url", server.url + "/"]) == 0


def test_watching_ends_with_ctrl_c(server, monkeypatch, capsys):
    naps = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("tinker_engine.commands.status.time.sleep", nap)
    assert main(["status", "--data", str(server.data), "--watch"]) == 0
    assert capsys.readouterr().out.count("compute process") == 2
    assert naps == [1.0, 1.0]


def test_a_wrong_key_is_told(server, capsys):
    assert main(["status", "--url", server.url, "--key", "tml-wrong"]) == 1
    assert "not known" in capsys.readouterr().err


def test_a_key_is_needed_elsewhere(monkeypatch, capsys):
    monkeypatch.delenv("TINKER_API_KEY", raising=False)
    assert main(["status", "--url", "http://127.0.0.1:1"]) == 2
    assert "TINKER_API_KEY" in capsys.readouterr().err


@pytest.mark.parametrize("url", ["127.0.0.1:8899", "ftp://host", "http://"])
def test_an_address_that_is_none_is_told(url, capsys):
    assert main(["status", "--url", url, "--key", "tml-x"]) == 2
    assert "http://HOST:PORT" in capsys.readouterr().err


def test_without_an_engine_it_says_what_to_type(tmp_path, capsys):
    assert main(["status", "--data", str(tmp_path)]) == 1
    assert f"tinker-engine serve --data {tmp_path}" in capsys.readouterr().err


def test_an_engine_that_was_killed_is_no_engine(tmp_path, capsys):
    with running_server(tmp_path) as server:
        server.kill()
        assert (server.data / "engine.json").exists()
        assert main(["status", "--data", str(server.data)]) == 1
    assert "no engine answers" in capsys.readouterr().err


def test_an_engine_that_has_reported_nothing_yet_is_shown_too():
    report = {
        "stats": {},
        "rates": {"trained_tokens": 0.0, "sampled_tokens": 0.0, "prompt_tokens": 0.0, "batch": 0.0},
        "queued": {"training": 3, "sampling": 0},
        "compute": {"pid": 7, "memory_bytes": None},
        "restarts": 2,
        "models": [MODEL],
        "runs": [
            {"id": "r", "base_model": MODEL, "rank": 8, "used": 100.0, "queued": 3, "corrupted": "bad save"}
        ],
    }
    shown = "\n".join(describe("http://127.0.0.1:1", report, now=100.0 + 2 * 3600))
    assert "being started" in shown
    assert "2 (see the engine's log)" in shown
    assert "2 h ago; corrupted: bad save" in shown
