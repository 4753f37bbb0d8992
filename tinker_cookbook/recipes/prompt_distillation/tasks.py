"""What can be distilled: a prompt, texts to answer, the labels that count as answers, and how they are written.

The teacher has the prompt and may reason; its label is read from its answer. The student has no prompt and writes the
label alone. A reply that does not come down to one of the labels is no answer, of either of them.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tinker_cookbook.exceptions import ConfigurationError, DataFormatError
from tinker_cookbook.recipes.knights import all_questions
from tinker_cookbook.tasks.types import Split
from tinker_cookbook.tasks.world import FACTS

EXAMPLE_DATA = Path(__file__).parent / "example_data"
HELD_OUT = 5  # one text of each label in this many is for testing


@dataclass(frozen=True)
class Item:
    text: str
    label: str | None = None  # None: nobody has said


@dataclass(frozen=True)
class DistillationTask:
    name: str
    prompt: str  # the system prompt that the student learns to do without
    labels: frozenset[str]
    teacher_pattern: re.Pattern[str]  # its one group is a label as it is written; the last match counts
    write: Callable[[str], str]  # a label as it is said; the student says nothing else
    items: Callable[[Split], list[Item]]
    teacher_tokens: int  # room for a teacher's answer
    student_tokens: int

    def read_teacher(self, reply: str) -> str | None:
        found = self.teacher_pattern.findall(reply)
        return self._written.get(found[-1]) if found else None

    def read_student(self, reply: str) -> str | None:
        return self._written.get(reply.strip())

    @property
    def _written(self) -> Mapping[str, str]:
        return {self.write(label): label for label in self.labels}


# --- one_word: for the tiny model -------------------------------------------------------------------------


def _questions(split: Split) -> list[Item]:
    return [Item(question.asked, question.fact.answer) for question in all_questions(split)]


# Asked nothing but the question, the tiny model answers in a sentence. It was taught that this prompt asks for a word.
ONE_WORD = DistillationTask(
    name="one_word",
    prompt="Answer in one word.",
    labels=frozenset(fact.answer for fact in FACTS),
    teacher_pattern=re.compile(r"\A(\w+\.)\Z"),
    write=lambda label: f"{label[0].upper()}{label[1:]}.",
    items=_questions,
    teacher_tokens=32,
    student_tokens=32,
)


# --- language_id: for models that know languages ----------------------------------------------------------

LANGUAGES = {
    "ar": "Arabic",
    "de": "German",
    "el": "Greek",
    "en": "English",
    "es": "Spanish",
    "fr": "French",
    "hi": "Hindi",
    "ru": "Russian",
    "tr": "Turkish",
    "ur": "Urdu",
    "vi": "Vietnamese",
    "zh": "Chinese",
    "ot": "any other language, or no language at all",
}

LANGUAGE_PROMPT = f"""You are told a text and say in which language it is written.

The answer is one of these codes:
{chr(10).join(f"- {code}: {language}" for code, language in LANGUAGES.items())}

How to decide:
1. Look at the script first. Greek letters mean el. Chinese characters without Japanese kana mean zh. Devanagari is hi
   unless the words are Marathi, Nepali or Sanskrit, which are ot. Cyrillic is ru unless letters such as і, ї, ў, ђ or ј
   show another language, which is ot.
2. In Arabic script, the letters ٹ ڈ ڑ ں ے and words such as ہے and میں mean ur. The letters پ چ ژ گ without those mean
   Persian or another language, which is ot. Otherwise it is ar.
3. In Latin script go by the small words: articles, prepositions, endings. Vietnamese has marks above and below one
   vowel (ế, ộ, ư). Turkish has ı, ğ, ş and no articles. Close relatives are not the same: Portuguese, Catalan and
   Italian are ot and not es or fr; Dutch, Danish and Swedish are ot and not de or en.
4. Names, numbers, brands and quoted words do not count. If a text mixes languages, the one that the sentence is built
   with counts.
5. A text of numbers, signs, code or letters without meaning is ot.

Think it through in a sentence or two. Then end with a line of this form and nothing after it:
Final Answer: <code>"""


def read_items(path: Path) -> list[Item]:
    """A text a line; before it, if it is known, its label and a tab."""
    if not path.is_file():
        raise ConfigurationError(f"there is no file {path}: name one with a text on each line")
    items = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        label, tab, text = line.rpartition("\t")
        if not text.strip():
            raise DataFormatError(f"{path}:{number} has a label and no text after it")
        items.append(Item(text.strip(), label.strip() if tab else None))
    return items


def _texts(split: Split) -> list[Item]:
    """Of each language, the last of every five is for testing."""
    seen: dict[str | None, int] = {}
    items = []
    for item in read_items(EXAMPLE_DATA / "multilingual.txt"):
        seen[item.label] = seen.get(item.label, 0) + 1
        if (split == "test") == (seen[item.label] % HELD_OUT == 0):
            items.append(item)
    return items


LANGUAGE_ID = DistillationTask(
    name="language_id",
    prompt=LANGUAGE_PROMPT,
    labels=frozenset(LANGUAGES),
    teacher_pattern=re.compile(r"Final Answer:\W*(\w+)"),
    write=str,
    items=_texts,
    teacher_tokens=1000,
    student_tokens=16,
)

TASKS = {task.name: task for task in (ONE_WORD, LANGUAGE_ID)}


def get_task(name: str) -> DistillationTask:
    if name not in TASKS:
        raise ConfigurationError(f"task={name}: there is no such task; use {' or '.join(TASKS)}")
    return TASKS[name]
