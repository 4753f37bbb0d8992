"""Our sampler in one process, without the server: what HTTP, journal and SDK cost is the distance to `sdk_worker`."""

from benchmarks.peers.channel import Channel, Message, Sampled, serve_sampling, versions
from tinker_engine.model.decoder import Decoder
from tinker_engine.model.load import load_model
from tinker_engine.sampling.sampler import Sampler
from tinker_engine.sampling.types import SampleRequest, SamplingParams


def main() -> None:
    channel = Channel()
    setup = channel.receive()
    assert setup is not None
    model = load_model(setup["model"])
    sampler = Sampler(Decoder(model.spec, model.weights), model.tokenizer, model.eos_token_ids)
    serve_sampling(channel, lambda job: sample(sampler, job), versions("torch"))


def sample(sampler: Sampler, job: Message) -> list[Sampled]:
    requests = [
        SampleRequest(
            each["prompt"],
            SamplingParams(each["max_tokens"], seed=i, stop=[], temperature=job["temperature"]),
            num_samples=each["num_samples"],
        )
        for i, each in enumerate(job["requests"])
    ]
    return [(one.tokens, one.logprobs) for result in sampler.sample(requests) for one in result.sequences]


if __name__ == "__main__":
    main()
