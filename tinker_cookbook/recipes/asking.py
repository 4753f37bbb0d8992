"""Many questions to a model at once."""

import asyncio
from collections.abc import Sequence

import tinker

from tinker_cookbook.renderers import Message, Renderer, get_text_content


async def ask(
    sampling_client: tinker.SamplingClient,
    renderer: Renderer,
    conversations: Sequence[list[Message]],
    *,
    max_tokens: int,
    temperature: float = 0.0,
    seed: int = 0,
) -> list[str]:
    """The model's next turn in each conversation, as text. The same seed gives the same answers."""

    async def answer(index: int) -> str:
        response = await sampling_client.sample_async(
            prompt=renderer.build_generation_prompt(conversations[index]),
            num_samples=1,
            sampling_params=tinker.SamplingParams(
                max_tokens=max_tokens,
                temperature=temperature,
                seed=seed + index,
                stop=renderer.get_stop_sequences(),
            ),
        )
        message, _ = renderer.parse_response(response.sequences[0].tokens)
        return get_text_content(message).strip()

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(answer(index)) for index in range(len(conversations))]
    return [task.result() for task in tasks]
