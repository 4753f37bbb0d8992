"""Write down the public surface that users' scripts rely on: `tests/tinker_cookbook/surface/surface.json`.

    python -m scripts.surface SPEC_DIR

SPEC_DIR holds the two documents that describe it, `cookbook_core.md` and `renderers_and_recipes.md`. Signatures are
read from the first one's Appendix A, where each module has a block of lines such as

    @dataclass class TokensWithLogprobs()
        tokens: list[int]
        @property def logprobs() -> list[float]

The data file keeps what a test can check: names, parameters with kind and default, fields, bases, values. Annotations
are left out.
"""

import ast
import json
import re
import sys
from pathlib import Path
from typing import Any

PACKAGE = "tinker_cookbook"
TARGET = Path(__file__).parent.parent / "tests" / PACKAGE / "surface" / "surface.json"

Entry = str | dict[str, Any]

# What the second document says in prose, in the notation of the first. Parameters that it does not name are not here.
PROSE = {
    "renderers/__init__.py": """
def get_renderer(name, tokenizer, image_processor = None, model_name = None)
def register_renderer(name, factory)
def unregister_renderer(name)
def is_renderer_registered(name)
def get_registered_renderer_names()
""",
    "renderers/base.py": """
PARSE_FAILURE_DETAIL_MAX_CHARS = 16384
UNTERMINATED_TOOL_BLOCK_ERROR = 'unterminated tool block'
class TextPart(TypedDict)
    type: str
    text: str
class ImagePart(TypedDict)
    type: str
    image: str
class AudioPart(TypedDict)
    type: str
    audio: str
    format: str
    num_frames: int
    sample_rate: int
class ThinkingPart(TypedDict)
    type: str
    thinking: str
class Message(TypedDict)
    role: str
    content: str
    tool_calls: list
    unparsed_tool_calls: list
    trainable: bool
    tool_call_id: str
    name: str
class ToolCall(BaseModel)
    type: str = 'function'
    id: str = None
    function: FunctionBody
class UnparsedToolCall(BaseModel)
    raw_text: str
    error: str
class ToolSpec(TypedDict)
    name: str
    description: str
    parameters: dict
class ParseTermination(StrEnum)
    STOP_SEQUENCE = 'stop_sequence'
    EOS = 'eos'
    MALFORMED = 'malformed'
    @property def is_clean()
    @property def is_stop_sequence()
class TrainOnWhat(StrEnum)
    LAST_ASSISTANT_MESSAGE = 'last_assistant_message'
    LAST_ASSISTANT_TURN = 'last_assistant_turn'
    ALL_ASSISTANT_MESSAGES = 'all_assistant_messages'
    ALL_MESSAGES = 'all_messages'
    ALL_TOKENS = 'all_tokens'
    ALL_USER_AND_SYSTEM_MESSAGES = 'all_user_and_system_messages'
    CUSTOMIZED = 'customized'
@dataclass class RenderContext()
    idx: int
    is_last: bool
    prev_message: Message = None
    next_message: Message = None
    last_user_index: int = -1
    in_last_assistant_turn: bool = False
@dataclass(frozen=True) class RenderedMessage()
    output: list
    header: EncodedTextChunk
    stop_overlap: EncodedTextChunk
@dataclass class StreamingMessageHeader()
    role: str
    name: str = None
@dataclass class StreamingTextDelta()
    text: str
    content_index: int = 0
@dataclass class StreamingThinkingDelta()
    thinking: str
    content_index: int = 0
class Utf8TokenDecoder()
    def __init__(tokenizer)
    def decode(tokens)
    def flush()
    def reset()
    def has_pending()
class StreamingParser()
    def __init__(tokenizer, end_message_token, parse_final_response)
    def feed(token)
    def finish()
    def reset()
def classify_parse_failure(message, termination)
def ensure_text(content)
def has_thinking(content)
def format_content_as_string(content, separator = '\\n')
class Renderer(ABC)
    disables_thinking: bool = False
    supports_streaming: bool = False
    def __init__(tokenizer)
    @property def has_extension_property()
    @abstractmethod def get_stop_sequences()
    @abstractmethod def render_message(message, ctx)
    @abstractmethod def parse_response(response)
    def parse_response_streaming(response)
    def to_openai_message(message)
    def create_conversation_prefix_with_tools(tools, system_prompt = '')
    def build_generation_prompt(messages, role = 'assistant', prefill = None)
    def build_supervised_example(messages, train_on_what = TrainOnWhat.LAST_ASSISTANT_MESSAGE)
    def build_supervised_examples(messages, train_on_what = TrainOnWhat.LAST_ASSISTANT_TURN)
""",
    "tokenizer_utils.py": """
Tokenizer: TypeAlias = Any
def get_tokenizer(model_name)
def register_tokenizer(name, factory)
def unregister_tokenizer(name)
def is_tokenizer_registered(name)
def get_registered_tokenizer_names()
class TmlTokenizer(Protocol)
class SupportsTmlTokenizer(Protocol)
class TmlRenderersTokenizerAdapter()
def ensure_tml_renderers_importable()
""",
    "image_processing_utils.py": """
def get_image_processor(model_name)
def image_to_data_uri(image)
def resize_image(image, max_size)
""",
    "model_info.py": """
@dataclass class ModelAttributes()
    organization: str
    version_str: str
    size_str: str
    is_chat: bool
    recommended_renderers: tuple
    is_vl: bool = False
    is_audio_in: bool = False
def get_model_attributes(model_name)
def get_recommended_renderer_names(model_name)
def get_recommended_renderer_name(model_name)
def warn_if_renderer_not_recommended(model_name, renderer_name)
def get_llama_info()
def get_qwen_info()
def get_deepseek_info()
def get_gpt_oss_info()
def get_moonshot_info()
def get_nvidia_info()
""",
}


def main(spec: Path) -> None:
    core = (spec / "cookbook_core.md").read_text(encoding="utf-8")
    prose = (spec / "renderers_and_recipes.md").read_text(encoding="utf-8")
    modules = {module_name(path): parse_block(block) for path, block in blocks(core).items()}
    modules |= {module_name(path): parse_block(block) for path, block in PROSE.items()}
    exported = package_exports(core) | renderer_exports(prose)
    exported[PACKAGE] = ["__version__", *modules[f"{PACKAGE}.exceptions"]]
    TARGET.write_text(dump({"modules": modules, "exports": exported}), encoding="utf-8")
    names = sum(map(len, modules.values()))
    print(f"{TARGET.name}: {names} names in {len(modules)} modules, {len(exported)} packages with exports")


def dump(surface: dict[str, dict[str, Any]]) -> str:
    """JSON with one line for each name, so that a change of one is a change of one line."""
    lines: list[str] = []
    for section, parts in surface.items():
        lines.append(f"{',' if lines else '{'}{json.dumps(section)}: {{")
        for part, names in parts.items():
            rows = names.items() if isinstance(names, dict) else ((None, name) for name in names)
            body = ",\n".join(
                "  " + (f"{json.dumps(key)}: " if key else "") + json.dumps(row) for key, row in rows
            )
            opening, closing = "{}" if isinstance(names, dict) else "[]"
            comma = "" if part == list(parts)[-1] else ","
            lines.append(f" {json.dumps(part)}: {opening}\n{body}\n {closing}{comma}")
        lines.append("}")
    return "\n".join([*lines, "}"]) + "\n"


def module_name(path: str) -> str:
    return f"{PACKAGE}.{path}".removesuffix(".py").removesuffix("/__init__").replace("/", ".")


# --- the documents ----------------------------------------------------------------------------------------


def blocks(core: str) -> dict[str, str]:
    """By path of the module: its block of Appendix A."""
    appendix = core.split("## Appendix A.")[1].split("## Appendix B.")[0]
    return dict(re.findall(r"#### `([\w/]+\.py)`\n```text\n(.*?)```", appendix, re.S))


def package_exports(core: str) -> dict[str, list[str]]:
    """Lines such as: * `tinker_cookbook.rl.__all__`: Action, Env. (A remark.)"""
    lines = re.findall(r"^\* `([\w.]+)\.__all__`: ([\w, ]+)", core, re.M)
    return {package: names.strip().split(", ") for package, names in lines}


def renderer_exports(prose: str) -> dict[str, list[str]]:
    package = re.search(r"exported by `tinker_cookbook\.renderers`: `([^`]+)`", prose)
    base = re.search(r"Importable from `renderers\.base` only:\s+`([^`]+)`", prose)
    assert package, "the names that tinker_cookbook.renderers exports"
    assert base, "the names of renderers.base"
    return {
        f"{PACKAGE}.renderers": package[1].split(),
        f"{PACKAGE}.renderers.base": re.sub(r"\(.*?\)", "", base[1]).split(),
    }


# --- one block --------------------------------------------------------------------------------------------


def parse_block(block: str) -> dict[str, Entry]:
    entries: dict[str, Entry] = {}
    holder: dict[str, Any] = {}
    for line in block.splitlines():
        if not line.strip():
            continue
        name, entry = parse_line(line.strip())
        if not line.startswith(" "):
            entries[name] = entry
            holder = entry if isinstance(entry, dict) else {}
        elif isinstance(entry, str) and re.match(r"(\w+ )*def |property", entry):
            holder.setdefault("methods", {})[name] = entry
        else:
            holder.setdefault("members", {})[name] = entry_default(line.strip())
    return entries


def parse_line(line: str) -> tuple[str, Entry]:
    decorators = re.match(r"(@[\w.]+(\(.*?\))? )*", line)
    assert decorators
    marks, line = decorators[0], line[decorators.end() :]
    if line.startswith("class "):
        return parse_class(marks, line)
    if line.startswith(("def ", "async def ")):
        return parse_function(marks, line)
    return parse_value(line)


def parse_class(marks: str, line: str) -> tuple[str, Entry]:
    (definition,) = ast.parse(f"{line}: ...").body
    assert isinstance(definition, ast.ClassDef)
    style = "dataclass" if "@dataclass" in marks else "chz" if "@chz" in marks else "plain"
    bases = [ast.unparse(base).rpartition(".")[2] for base in definition.bases]
    return definition.name, {"class": style, "bases": bases}


def parse_function(marks: str, line: str) -> tuple[str, Entry]:
    (definition,) = ast.parse(f"{line}: ...").body
    assert isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef)
    if "@property" in marks:
        return definition.name, "property"
    arguments = definition.args
    for argument in ast.walk(arguments):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    words = [word for word in ("classmethod", "abstractmethod") if f"@{word}" in marks]
    if isinstance(definition, ast.AsyncFunctionDef) and "contextmanager" not in marks:
        words.append("async")
    return definition.name, " ".join([*words, f"def ({ast.unparse(arguments)})"])


def parse_value(line: str) -> tuple[str, Entry]:
    """A string or a number is kept; of anything else, only that it is there."""
    (statement,) = ast.parse(without_remark(line)).body
    assert isinstance(statement, ast.Assign | ast.AnnAssign)
    target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
    is_constant = isinstance(statement.value, ast.Constant) and statement.value.value is not ...
    return ast.unparse(target), f"= {ast.unparse(statement.value)}" if is_constant else "value"


def entry_default(line: str) -> str | None:
    """The default of a field or the value of a member of an enumeration; None if there is none."""
    (statement,) = ast.parse(without_remark(line)).body
    assert isinstance(statement, ast.Assign | ast.AnnAssign)
    return None if statement.value is None else ast.unparse(statement.value)


def without_remark(line: str) -> str:
    """Lines may end in `   [validator ...]` or `   [munged: ...]`."""
    return re.sub(r"\s{2,}\[(validator|munged).*$", "", line)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
