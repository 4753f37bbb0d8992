"""How a model reads and writes text, from the files in its folder."""

from functools import cached_property, lru_cache
from pathlib import Path

from tinker_engine.api.chat_template import ChatTemplate
from tinker_engine.model.tokenizer import Tokenizer, eos_token_ids

MOST_MODELS = 32  # kept in memory; a large vocabulary takes about 100 MB


class Vocabulary:
    def __init__(self, folder: Path):
        self._folder = folder
        self.tokenizer = Tokenizer.from_folder(folder)
        self.tokenizer.token_bytes(0)  # makes its table now, not while an answer waits for it
        self.end_tokens = eos_token_ids(folder, self.tokenizer)

    @cached_property
    def template(self) -> ChatTemplate:
        """Read when it is wanted: base models have none and complete texts all the same."""
        return ChatTemplate.from_folder(self._folder)


@lru_cache(maxsize=MOST_MODELS)
def vocabulary(folder: Path) -> Vocabulary:
    """Takes up to a second the first time: call it in a thread."""
    return Vocabulary(folder)
