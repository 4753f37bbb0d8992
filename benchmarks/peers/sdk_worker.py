"""Ours as users have it: the tinker SDK and HTTP, against an engine of its own that `connect` starts.

The first message says which task is to be done, sampling or training.
"""

import os
import tempfile
import time
from pathlib import Path

import tinker
import torch
from tinker import types

from benchmarks.peers.channel import Channel, Message, Sampled, serve_sampling, versions
from tinker_cookbook.service import connect
from tinker_cookbook.supervised.common import datum_from_model_input_weights
from tinker_engine import config


def main() -> None:
    channel = Channel()
    setup = channel.receive()
    assert setup is not None
    with tempfile.TemporaryDirectory() as home:
        service = own_engine(home)
        if setup["task"] == "sampling":
            client = service.create_sampling_client(base_model=setup["model"])
            serve_sampling(channel, lambda job: sample(client, job), about())
        else:
            serve_training(channel, service, setup)


def own_engine(home: str) -> tinker.ServiceClient:
    """Not the user's: its journal would come along, and a server named in the environment would be asked."""
    for name in ("TINKER_BASE_URL", "TINKER_API_KEY"):
        os.environ.pop(name, None)
    (Path(home) / "models").symlink_to(config.models_dir())
    os.environ["TINKER_ENGINE_HOME"] = home
    return connect()


def about() -> Message:
    return versions("torch", "tinker")


def sample(client: tinker.SamplingClient, job: Message) -> list[Sampled]:
    futures = [
        client.sample(
            types.ModelInput.from_ints(each["prompt"]),
            each["num_samples"],
            types.SamplingParams(
                max_tokens=each["max_tokens"], seed=i, stop=[], temperature=job["temperature"]
            ),
        )
        for i, each in enumerate(job["requests"])
    ]
    sequences = [sequence for future in futures for sequence in future.result().sequences]
    return [(list(one.tokens), list(one.logprobs or [])) for one in sequences]


def serve_training(channel: Channel, service: tinker.ServiceClient, setup: Message) -> None:
    """A step a message, on the next batch. The head has no adapter: peft's "all-linear" leaves it out, too."""
    client = service.create_lora_training_client(setup["model"], rank=setup["rank"], train_unembed=False)
    batches = [[datum(tokens) for tokens in batch] for batch in setup["batches"]]
    channel.send(about())
    for _, batch in zip(channel.messages(), batches, strict=False):
        started = time.perf_counter()
        gradient = client.forward_backward(batch, "cross_entropy")
        client.optim_step(types.AdamParams(learning_rate=setup["learning_rate"])).result()
        output = gradient.result()
        seconds = time.perf_counter() - started
        logprobs = [value for one in output.loss_fn_outputs for value in one["logprobs"].tolist()]
        channel.send({"seconds": seconds, "loss": -sum(logprobs) / len(logprobs)})


def datum(tokens: list[int]) -> tinker.Datum:
    return datum_from_model_input_weights(types.ModelInput.from_ints(tokens), torch.ones(len(tokens)))


if __name__ == "__main__":
    main()
