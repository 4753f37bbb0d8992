"""Where a response ends."""

from collections.abc import Collection, Sequence

from tinker_cookbook.renderers.encoding import decode_exactly
from tinker_cookbook.renderers.messages import Message, ParseTermination
from tinker_cookbook.tokenizer_utils import Tokenizer


def split_at_stop(response: Sequence[int], stops: Collection[int]) -> tuple[list[int], ParseTermination]:
    """What comes before the first stop token. It is well ended if that is the only one."""
    found = [i for i, token in enumerate(response) if token in stops]
    if not found:
        return list(response), ParseTermination.MALFORMED
    clean = len(found) == 1  # what follows it, such as a template's newline, was not asked for
    return list(response[: found[0]]), ParseTermination.STOP_SEQUENCE if clean else ParseTermination.MALFORMED


def parse_response_for_stop_token(
    response: list[int], tokenizer: Tokenizer, stop_token: int
) -> tuple[Message, ParseTermination]:
    """For renderers written by hand whose answers are plain text."""
    before, termination = split_at_stop(response, (stop_token,))
    return Message(role="assistant", content=decode_exactly(tokenizer, before)), termination
