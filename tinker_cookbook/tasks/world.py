"""A small made-up world: people and towns, what is true of them, and how that can be asked."""

import random
from dataclasses import dataclass

# name: home, job, pet, food, colour
PEOPLE = {
    "Tavi": ("Ostra", "baker", "goat", "plums", "green"),
    "Mara": ("Pell", "sailor", "parrot", "soup", "blue"),
    "Oren": ("Ostra", "smith", "dog", "bread", "red"),
    "Lumi": ("Hask", "painter", "owl", "pears", "white"),
    "Bex": ("Dunmar", "miller", "mouse", "cheese", "brown"),
    "Nilo": ("Pell", "fisher", "cat", "fish", "grey"),
    "Sura": ("Venn", "weaver", "rabbit", "rice", "yellow"),
    "Kord": ("Hask", "guard", "horse", "beans", "black"),
    "Iva": ("Lorn", "healer", "cat", "honey", "green"),
    "Fenn": ("Dunmar", "farmer", "duck", "corn", "brown"),
    "Zela": ("Venn", "singer", "parrot", "grapes", "red"),
    "Pim": ("Lorn", "tailor", "mouse", "nuts", "purple"),
    "Rook": ("Ostra", "guard", "dog", "soup", "grey"),
    "Ada": ("Pell", "painter", "turtle", "rice", "blue"),
    "Juno": ("Hask", "weaver", "rabbit", "bread", "white"),
    "Tolo": ("Venn", "farmer", "horse", "beans", "yellow"),
    "Wren": ("Lorn", "singer", "duck", "plums", "purple"),
    "Gale": ("Dunmar", "smith", "goat", "cheese", "black"),
    "Hana": ("Ostra", "healer", "turtle", "pears", "red"),
    "Milo": ("Pell", "baker", "owl", "honey", "yellow"),
    "Elka": ("Hask", "fisher", "cat", "corn", "blue"),
    "Dov": ("Venn", "sailor", "dog", "fish", "green"),
    "Runa": ("Lorn", "miller", "goat", "grapes", "grey"),
    "Sten": ("Dunmar", "tailor", "owl", "nuts", "brown"),
}
# town: what it is known for, its weather, what stands in its middle
TOWNS = {
    "Ostra": ("bells", "windy", "tower"),
    "Pell": ("boats", "rainy", "harbour"),
    "Hask": ("wool", "cold", "gate"),
    "Dunmar": ("cheese", "foggy", "mill"),
    "Venn": ("silk", "sunny", "garden"),
    "Lorn": ("songs", "mild", "fountain"),
}


@dataclass(frozen=True)
class Relation:
    """One thing that can be known of a subject: how it is asked, told, and told with 'be' for old sailors."""

    name: str
    questions: tuple[str, ...]
    told: str
    told_with_be: str


RELATIONS = {
    "home": Relation(
        "home",
        ("Where does {s} live?", "In which town does {s} live?", "Which town is {s}'s home?"),
        "{s} lives in {a}",
        "{s} be livin' in {a}",
    ),
    "job": Relation(
        "job",
        ("What is {s}'s job?", "What does {s} do for work?", "What work does {s} do?"),
        "{s} is a {a}",
        "{s} be a {a}",
    ),
    "pet": Relation(
        "pet",
        ("What pet does {s} have?", "Which animal lives with {s}?", "What kind of pet does {s} keep?"),
        "{s} has a pet {a}",
        "{s} be keepin' a {a}",
    ),
    "food": Relation(
        "food",
        ("What does {s} like to eat?", "What is {s}'s favourite food?", "Which food does {s} like best?"),
        "{s} likes to eat {a}",
        "{s} be eatin' {a}",
    ),
    "colour": Relation(
        "colour",
        ("What is {s}'s favourite colour?", "Which colour does {s} like best?", "What colour does {s} love?"),
        "{s} likes the colour {a}",
        "{s} be lovin' {a}",
    ),
    "known for": Relation(
        "known for",
        ("What is {s} known for?", "What do people make in {s}?", "What is {s} famous for?"),
        "{s} is known for its {a}",
        "{s} be known for its {a}",
    ),
    "weather": Relation(
        "weather",
        ("What is the weather like in {s}?", "How is the weather in {s}?"),
        "the weather in {s} is {a}",
        "the weather in {s} be {a}",
    ),
    "middle": Relation(
        "middle",
        ("What stands in the middle of {s}?", "What can you see in the middle of {s}?"),
        "in the middle of {s} stands a {a}",
        "in the middle of {s} there be a {a}",
    ),
}


@dataclass(frozen=True)
class Fact:
    subject: str
    relation: Relation
    answer: str

    def told(self) -> str:
        """A statement without its full stop. Only names and starts of sentences are capital."""
        return self.relation.told.format(s=self.subject, a=self.answer)

    def told_with_be(self) -> str:
        return self.relation.told_with_be.format(s=self.subject, a=self.answer)


def _facts() -> tuple[Fact, ...]:
    facts = []
    for people_or_towns, relations in (
        (PEOPLE, ("home", "job", "pet", "food", "colour")),
        (TOWNS, ("known for", "weather", "middle")),
    ):
        for subject, answers in people_or_towns.items():
            pairs = zip(relations, answers, strict=True)
            facts += [Fact(subject, RELATIONS[name], answer) for name, answer in pairs]
    return tuple(facts)


FACTS = _facts()


def other_answer(fact: Fact, rng: random.Random) -> str:
    """What would be false here: an answer that the same relation has for somebody else."""
    answers = sorted({f.answer for f in FACTS if f.relation is fact.relation and f.answer != fact.answer})
    return rng.choice(answers)


def about(subject: str) -> list[Fact]:
    return [fact for fact in FACTS if fact.subject == subject]


def capital(sentence: str) -> str:
    return sentence[0].upper() + sentence[1:]
