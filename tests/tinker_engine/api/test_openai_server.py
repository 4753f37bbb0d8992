"""The OpenAI routes of a real server, for a base model and for weights that were trained on it."""

import openai
import pytest
import tinker
from tinker import types

from tests.server import Server, running_server
from tinker_engine.model import tiny
from tinker_engine.model.tokenizer import Tokenizer

MODEL = "tinker-engine/tiny-chat"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory):
    with running_server(tmp_path_factory.mktemp("openai")) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=server.key, max_retries=0)


@pytest.fixture(scope="module")
def trained(server: Server) -> str:
    """Weights that answer anything with the same three tokens."""
    service = tinker.ServiceClient(base_url=server.url, api_key=server.key)
    training = service.create_lora_training_client(MODEL, rank=8, seed=0)
    tokenizer = Tokenizer.from_folder(tiny.FOLDER)
    prompt = tokenizer.encode("<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n")
    tokens = prompt + tokenizer.encode("yes yes<|im_end|>")
    weights = [0.0] * (len(prompt) - 1) + [1.0] * (len(tokens) - len(prompt))
    datum = types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={
            "target_tokens": types.TensorData(data=tokens[1:], dtype="int64"),
            "weights": types.TensorData(data=weights, dtype="float32"),
        },
    )
    for _ in range(12):
        training.forward_backward([datum], "cross_entropy")
        training.optim_step(types.AdamParams(learning_rate=1e-2)).result()
    return training.save_weights_for_sampler("talks").result().path


def test_what_was_trained_is_listed_and_talks(client: openai.OpenAI, trained: str):
    assert {MODEL, trained} <= {model.id for model in client.models.list()}
    answer = client.chat.completions.create(
        model=trained, messages=[{"role": "user", "content": "Hello"}], temperature=0, max_tokens=20
    )
    assert answer.choices[0].message.content == "yes yes"
    assert answer.choices[0].finish_reason == "stop"


def test_a_stream_says_the_same(client: openai.OpenAI, trained: str):
    chunks = client.chat.completions.create(
        model=trained,
        messages=[{"role": "user", "content": "Hello"}],
        temperature=0,
        max_tokens=20,
        stream=True,
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "yes yes"


def test_the_base_model_is_not_touched(client: openai.OpenAI, trained: str):
    answer = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "Hello"}], temperature=0, max_tokens=20, n=2
    )
    assert len(answer.choices) == 2
    assert answer.choices[0].message.content not in ("", "yes yes")


def test_stops_of_the_user_and_of_the_model_both_end_it(client: openai.OpenAI, trained: str):
    answer = client.chat.completions.create(
        model=trained,
        messages=[{"role": "user", "content": "Hello"}],
        temperature=0,
        max_tokens=20,
        stop=["no such text"],
        logprobs=True,
        top_logprobs=2,
    )
    assert answer.choices[0].message.content == "yes yes"
    assert answer.choices[0].logprobs is not None


def test_completions_of_several_prompts(client: openai.OpenAI):
    answer = client.completions.create(model=MODEL, prompt=["1 + 1 =", "2 + 2 ="], max_tokens=3, seed=1)
    again = client.completions.create(model=MODEL, prompt=["1 + 1 =", "2 + 2 ="], max_tokens=3, seed=1)
    assert [choice.text for choice in answer.choices] == [choice.text for choice in again.choices]
    assert answer.usage is not None
    assert answer.usage.completion_tokens <= 6


def test_wrong_key_and_unknown_model(server: Server, client: openai.OpenAI):
    stranger = openai.OpenAI(base_url=f"{server.url}/v1", api_key="tml-somebody-else", max_retries=0)
    with pytest.raises(openai.AuthenticationError, match="not known here"):
        stranger.models.list()
    with pytest.raises(openai.NotFoundError, match="not served here"):
        client.completions.create(model="nobody/nothing", prompt="a")
    with pytest.raises(openai.BadRequestError, match="max_tokens"):
        client.completions.create(model=MODEL, prompt="a", max_tokens=-1)
