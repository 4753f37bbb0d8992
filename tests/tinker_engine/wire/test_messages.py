"""Our message descriptions against the SDK's: names are free, numbers and types are not."""

from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto
from tinker.proto import tinker_public_pb2

from tinker_engine.wire import messages_pb2 as pb

# We have one message for both of the SDK's spans, and no use for those it never sends.
RENAMED = {"PromptProvenanceSpan": "Span", "SampledProvenanceSpan": "Span"}
NEVER_SENT = {"SamplingParams", "StopStrings", "StopTokens"}


def described(module: object) -> FileDescriptorProto:
    file = FileDescriptorProto()
    module.DESCRIPTOR.CopyToProto(file)  # pyright: ignore[reportAttributeAccessIssue]
    return file


def layout(message: DescriptorProto) -> dict[int, tuple[int, int, str]]:
    """Field number → type, repeated or not, and the message or enum it holds."""
    return {field.number: (field.type, field.label, kind(field.type_name)) for field in message.field} | {
        -i: (0, 0, str(layout(nested))) for i, nested in enumerate(message.nested_type, 1)
    }


def kind(type_name: str) -> str:
    name = type_name.rsplit(".", 1)[-1]
    return RENAMED.get(name, name)


def test_every_message_has_the_sdk_s_numbers_and_types():
    ours = {message.name: layout(message) for message in described(pb).message_type}
    theirs = {message.name: layout(message) for message in described(tinker_public_pb2).message_type}
    header = ours.pop("ForwardBackwardHeader")  # the beginning of a request
    assert header.items() <= theirs["ForwardBackwardRequest"].items()
    assert {RENAMED.get(name, name) for name in theirs} - NEVER_SENT == set(ours)
    for name in theirs.keys() - NEVER_SENT:
        assert ours[RENAMED.get(name, name)] == theirs[name], name


def test_every_enum_has_the_sdk_s_values():
    ours, theirs = (
        {
            enum.name: {value.name: value.number for value in enum.value}
            for enum in described(module).enum_type
        }
        for module in (pb, tinker_public_pb2)
    )
    assert ours == theirs
