"""Tools declared as a TypeScript namespace, as Harmony does it."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tinker_cookbook.renderers.messages import ToolSpec

PLAIN = {"string": "string", "number": "number", "integer": "number", "boolean": "boolean"}
LONGEST_ITEM = 50  # characters of the type of an array's items; beyond it is `any`


def tool_namespace(name: str, tools: Sequence[ToolSpec]) -> str:
    declarations = "".join(f"// {tool['description']}\n{_declaration(tool)}" for tool in tools)
    return f"## {name}\n\nnamespace {name} {{\n\n{declarations}}} // namespace {name}"


def _declaration(tool: ToolSpec) -> str:
    properties: Mapping[str, Any] = tool["parameters"].get("properties") or {}
    if not properties:
        return f"type {tool['name']} = () => any;\n\n"
    required = tool["parameters"].get("required") or []
    lines = "".join(_parameter(name, schema, name in required) for name, schema in properties.items())
    return f"type {tool['name']} = (_: {{\n{lines}}}) => any;\n\n"


def _parameter(name: str, schema: Mapping[str, Any], required: bool) -> str:
    comment = f"// {schema['description']}\n" if schema.get("description") else ""
    return f"{comment}{name}{'' if required else '?'}: {typescript_type(schema)}{_default(schema)},\n"


def _default(schema: Mapping[str, Any]) -> str:
    if "default" not in schema:
        return ""
    value = schema["default"]
    written = value if schema.get("enum") else json.dumps(value, ensure_ascii=False)
    return f", // default: {written}"


def typescript_type(schema: Mapping[str, Any]) -> str:
    kind = schema.get("type")
    null = " | null" if schema.get("nullable") else ""
    if kind == "array":
        return _array(schema.get("items")) + null
    if isinstance(kind, list) and kind:
        return " | ".join(kind)
    if variants := schema.get("oneOf"):
        return _union(variants)
    if kind == "string" and schema.get("enum"):
        return " | ".join(f'"{value}"' for value in schema["enum"])
    if kind == "string":
        return "string" + null
    if kind == "object":
        return _object(schema)
    return PLAIN.get(str(kind), "any")


def _array(items: Mapping[str, Any] | None) -> str:
    if not items:
        return "any[]"
    if items.get("type") in PLAIN:
        return f"{PLAIN[items['type']]}[]"
    inner = typescript_type(items)
    return "any[]" if inner == "object | object" or len(inner) > LONGEST_ITEM else f"{inner}[]"


def _union(variants: Sequence[Mapping[str, Any]]) -> str:
    if len(variants) > 1 and any(variant.get("type") == "object" for variant in variants):
        return "any"
    return " | ".join(typescript_type(variant) for variant in variants)


def _object(schema: Mapping[str, Any]) -> str:
    properties: Mapping[str, Any] = schema.get("properties") or {}
    if not properties:
        return "object"
    required = schema.get("required") or []
    fields = (
        f"{name}{'' if name in required else '?'}: {typescript_type(inner)}"
        for name, inner in properties.items()
    )
    return "{\n" + ", ".join(fields) + "}"
