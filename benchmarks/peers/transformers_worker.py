"""`generate` of transformers, with the logprobs of what was sampled."""

import torch
from channel import Channel, Message, Sampled, serve_sampling, versions
from transformers import AutoModelForCausalLM


def main() -> None:
    channel = Channel()
    setup = channel.receive()
    assert setup is not None
    torch.set_num_threads(setup["threads"])
    model = AutoModelForCausalLM.from_pretrained(setup["folder"], dtype=torch.float32)
    model.generation_config.eos_token_id = None  # nothing stops a sample before its length
    serve_sampling(channel, lambda job: sample(model, job), versions("transformers", "torch"))


@torch.inference_mode()
def sample(model, job: Message) -> list[Sampled]:
    """One batch, padded on the left, that runs until its longest sample is done."""
    requests = job["requests"]
    counts = {each["num_samples"] for each in requests}
    assert len(counts) == 1, "generate takes one number of samples for all prompts"
    longest = max(len(each["prompt"]) for each in requests)
    ids = torch.zeros(len(requests), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, each in enumerate(requests):
        ids[row, longest - len(each["prompt"]) :] = torch.tensor(each["prompt"])
        mask[row, longest - len(each["prompt"]) :] = 1
    sampling = {"do_sample": True, "temperature": job["temperature"], "top_k": 0, "top_p": 1.0}
    output = model.generate(
        ids,
        attention_mask=mask,
        max_new_tokens=max(each["max_tokens"] for each in requests),
        num_return_sequences=counts.pop(),
        pad_token_id=0,
        return_dict_in_generate=True,
        output_scores=True,
        **(sampling if job["temperature"] else {"do_sample": False, "temperature": None, "top_p": None}),
    )
    logprobs = model.compute_transition_scores(output.sequences, output.scores, normalize_logits=True)
    lengths = [each["max_tokens"] for each in requests for _ in range(each["num_samples"])]
    rows = zip(output.sequences[:, longest:].tolist(), logprobs.tolist(), lengths, strict=True)
    return [(tokens[:length], some[:length]) for tokens, some, length in rows]


if __name__ == "__main__":
    main()
