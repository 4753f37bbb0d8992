import json

from scripts import surface

BLOCK = """
LIMIT = 16
Pair: TypeAlias = tuple[int, int]
@dataclass(frozen=True) class Limits(Base, other.Parent)
    turns: int | None = None   [validator _positive]
    notes: list[str] = list()
    name: str
    @property def total() -> int
    @classmethod async def make(a: int, *parts, b: str = 'x', **rest) -> Limits
class Kind(StrEnum)
    ONE = 'one'
@contextlib.asynccontextmanager async def scope(name: str)
async def run(a: int, *, b: float = 1e-08) -> None
"""


def test_a_block_of_the_notation():
    assert surface.parse_block(BLOCK) == {
        "LIMIT": "= 16",
        "Pair": "value",
        "Limits": {
            "class": "dataclass",
            "bases": ["Base", "Parent"],
            "members": {"turns": "None", "notes": "list()", "name": None},
            "methods": {"total": "property", "make": "classmethod async def (a, *parts, b='x', **rest)"},
        },
        "Kind": {"class": "plain", "bases": ["StrEnum"], "members": {"ONE": "'one'"}},
        "scope": "def (name)",
        "run": "async def (a, *, b=1e-08)",
    }


def test_the_documents_are_split():
    core = (
        "* `tinker_cookbook.rl.__all__`: Env, Logs. (More elsewhere.)\n"
        "## Appendix A. Signatures\n#### `rl/types.py`\n```text\nA = 1\n```\n## Appendix B. Tables\n"
    )
    assert surface.package_exports(core) == {"tinker_cookbook.rl": ["Env", "Logs"]}
    assert surface.blocks(core) == {"rl/types.py": "A = 1\n"}


def test_names_of_modules():
    assert surface.module_name("rl/types.py") == "tinker_cookbook.rl.types"
    assert surface.module_name("sandbox/__init__.py") == "tinker_cookbook.sandbox"


def test_the_data_file_is_json_with_a_line_for_each_name():
    data = {
        "modules": {"m": {"a": "value", "b": {"class": "plain"}}, "n": {"c": "= 1"}},
        "exports": {"m": ["a", "b"]},
    }
    text = surface.dump(data)
    assert json.loads(text) == data
    assert len([line for line in text.splitlines() if line.startswith("  ")]) == 5


def test_what_is_written_by_hand_can_be_read():
    for block in surface.PROSE.values():
        assert surface.parse_block(block)
