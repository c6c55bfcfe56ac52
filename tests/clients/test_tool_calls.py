"""Tool calls in text: every format, values by the schema, and no exception for any text."""

import json
import time
from typing import Any, cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from ors_clients.errors import ConfigurationError
from ors_clients.tool_calls import (
    TOOL_CALL_FORMATS,
    FoundCall,
    MalformedCall,
    ToolCall,
    describe_tools,
    find_format,
    split_thinking,
)

from ors_server import ToolSpec

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "ratio": {"type": "number"},
        "flag": {"type": "boolean"},
        "items": {"type": "array", "items": {"type": "integer"}},
        "options": {"type": "object"},
        "nothing": {"type": "null"},
        "maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "maybe_text": {"type": ["string", "null"]},
        "nullable": {"type": "integer", "nullable": True},
        "either": {"oneOf": [{"type": "boolean"}, {"type": "number"}]},
        "text_or_number": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
        "level": {"enum": [1, 2, 3]},
        "referred": {"$ref": "#/$defs/Count"},
        "anything": {},
    },
    "$defs": {"Count": {"type": "integer"}, "Loop": {"$ref": "#/$defs/Loop"}},
}
TOOLS = [
    ToolSpec(name="work", description="Works.", input_schema=SCHEMA),
    ToolSpec(name="rest", description="Rests.", input_schema=None),
]


def parse(format: str, text: str, turn: int = 0) -> list[FoundCall]:
    return find_format(format).parse(text, TOOLS, turn=turn)


def inputs(found: list[FoundCall]) -> list[tuple[str, dict[str, Any]]]:
    assert all(isinstance(call, ToolCall) for call in found), found
    return [(call.name, call.input) for call in found if isinstance(call, ToolCall)]


def xml(**parameters: str) -> str:
    body = "".join(f"<parameter={name}>\n{value}\n</parameter>\n" for name, value in parameters.items())
    return f"<tool_call>\n<function=work>\n{body}</function>\n</tool_call>"


# --- Hermes --------------------------------------------------------------------------------------


def test_hermes_reads_every_call_of_a_turn_in_order() -> None:
    text = (
        'I will.\n<tool_call>\n{"name": "work", "arguments": {"count": 1}}\n</tool_call>\n'
        '<tool_call>{"name": "rest", "arguments": {}}</tool_call> done'
    )
    found = parse("hermes", text, turn=3)
    assert inputs(found) == [("work", {"count": 1}), ("rest", {})]
    assert [call.id for call in found if isinstance(call, ToolCall)] == ["call_3_0", "call_3_1"]
    assert found[0].raw == '<tool_call>\n{"name": "work", "arguments": {"count": 1}}\n</tool_call>'


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ('{"name": "work", "arguments": {"text": "a </tool_call> b"}}</tool_call>', {"text": "a </tool_call> b"}),
        ('{"name": "work", "arguments": {"text": "<think> <tool_call>"}}</tool_call>', {"text": "<think> <tool_call>"}),
        ('{"name": "work", "arguments": {"text": "two\nlines"}}</tool_call>', {"text": "two\nlines"}),
        ('{"name": "work", "arguments": {"count": 1}}', {"count": 1}),
        ('{"name": "work", "arguments": {"count": 1}}<|im_end|>', {"count": 1}),
        ('{"name": "work", "parameters": {"count": 1}}</tool_call>', {"count": 1}),
        ('{"name": "work", "arguments": "{\\"count\\": 1}"}</tool_call>', {"count": 1}),
        ('{"name": "work"}</tool_call>', {}),
        ('{"name": "work", "arguments": null}</tool_call>', {}),
        ('{"name": "work", "arguments": {"text": "\\ud800"}}</tool_call>', {"text": "�"}),
    ],
)
def test_hermes_reads_calls_as_models_write_them(body: str, expected: dict[str, Any]) -> None:
    assert inputs(parse("hermes", f"<tool_call>\n{body}")) == [("work", expected)]


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ('{"name": "work", "arguments": {"count": }}</tool_call>', "invalid JSON: Expecting value"),
        ("</tool_call>", "invalid JSON"),
        ("", "invalid JSON"),
        ("[1, 2]</tool_call>", 'a JSON object with the keys "name" and "arguments"'),
        ('{"arguments": {}}</tool_call>', '"name" is missing'),
        ('{"name": 3}</tool_call>', '"name" is missing'),
        ('{"name": "work", "arguments": [1]}</tool_call>', '"arguments" is not a JSON object'),
        ('{"name": "work", "arguments": "{} {}"}</tool_call>', '"arguments" is not a JSON object'),
        ('{"name": " ", "arguments": {}}</tool_call>', 'the key "name" is missing'),
        ('{"name": "work", "arguments": "one"}</tool_call>', "invalid JSON"),
        ('{"name": "work", "arguments": {"ratio": NaN}}</tool_call>', "NaN is not a JSON value"),
        ('{"name": "work", "arguments": {"ratio": 1e999}}</tool_call>', "out of range"),
        ('{"name": "work", "arguments": {"count": ' + "9" * 5000 + "}}</tool_call>", "number is too long"),
        ('{"name": "work", "arguments": {"items": ' + "[" * 5000 + "}}</tool_call>", "nested too deeply"),
        ('{"name": "work", "arguments": {"items": ' + "[" * 200 + "]" * 200 + "}}</tool_call>", "nested too deeply"),
        ('{"name": "work", "arguments": {}} }</tool_call>', "unexpected text between"),
    ],
)
def test_a_hermes_call_that_cannot_be_read_says_why_and_keeps_its_text(body: str, problem: str) -> None:
    text = f"<tool_call>\n{body}"
    (call,) = parse("hermes", f"first {text}")
    assert isinstance(call, MalformedCall)
    assert problem in call.problem
    assert call.raw == text


def test_a_malformed_call_does_not_hide_the_next() -> None:
    good = '<tool_call>{"name": "rest", "arguments": {}}</tool_call>'
    found = parse("hermes", f"<tool_call>{{bad</tool_call>{good}<tool_call>worse {good}")
    assert [type(call) for call in found] == [MalformedCall, ToolCall, MalformedCall, ToolCall]


# --- thinking ------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["hermes", "qwen_xml", "json", "auto"])
@pytest.mark.parametrize("before", ["<think>{}</think>", "{}</think>", "\n<think>a</think>\n<think>{}</think>"])
def test_thinking_is_not_searched_for_calls(format: str, before: str) -> None:
    call = {
        "hermes": '<tool_call>{"name": "rest", "arguments": {}}</tool_call>',
        "qwen_xml": "<tool_call><function=rest></function></tool_call>",
        "json": '{"name": "rest", "arguments": {}}',
        "auto": '<tool_call>{"name": "rest", "arguments": {}}</tool_call>',
    }[format]
    thought = before.replace("{}", call)
    assert parse(format, thought) == []
    assert inputs(parse(format, f"{thought}\n{call}")) == [("rest", {})]
    assert parse(format, f"<think>I never end {call}") == []


THOUGHTS = {"": "", "<think>\nhm\n</think>\n\n": "hm", "<think>a</think><think>b</think> ": "a\n\nb"}


@pytest.mark.parametrize("format", ["hermes", "qwen_xml", "json", "auto"])
@pytest.mark.parametrize("thought", THOUGHTS)
@pytest.mark.parametrize("said", ["The mark <think> begins a thought.", "Write <think>a</think>.", "<thinking> "])
def test_a_marker_of_thinking_in_an_answer_hides_nothing(format: str, thought: str, said: str) -> None:
    call = {
        "hermes": '<tool_call>{"name": "rest", "arguments": {}}</tool_call>',
        "qwen_xml": "<tool_call><function=rest></function></tool_call>",
        "json": '{"name": "rest", "arguments": {}}',
        "auto": '<tool_call>{"name": "rest", "arguments": {}}</tool_call>',
    }[format]
    text = f"{thought}{said} {call}"
    assert inputs(parse(format, text)) == [("rest", {})]
    thinking, answer = split_thinking(text)
    assert answer == f"{said} {call}"
    assert thinking == THOUGHTS[thought]


@pytest.mark.parametrize("format", ["hermes", "json", "auto"])
def test_a_mark_of_thinking_in_an_argument_is_the_argument_s(format: str) -> None:
    call = '{"name": "work", "arguments": {"text": "a </think> b"}}'
    text = call if format == "json" else f"<tool_call>{call}</tool_call>"
    assert inputs(parse(format, text)) == [("work", {"text": "a </think> b"})]
    assert inputs(parse(format, f'so I call <tool_call> {{"</think>{text}')) == [("work", {"text": "a </think> b"})]


@pytest.mark.parametrize("format", ["qwen_xml", "auto"])
def test_a_mark_of_thinking_in_an_xml_parameter_is_the_parameters(format: str) -> None:
    text = xml(text="a </think> b")
    assert inputs(parse(format, text)) == [("work", {"text": "a </think> b"})]
    assert inputs(parse(format, f"so I write <function=work>, or\n{text}")[1:]) == [("work", {"text": "a </think> b"})]
    assert inputs(parse(format, f"{xml(count='1')}{text}")) == [
        ("work", {"count": 1}),
        ("work", {"text": "a </think> b"}),
    ]
    draft = "I could <tool_call>\n<function=work>\n<parameter=text>\nrm -rf"
    for drafted in (draft, f"{draft}\n</parameter>\n</function>", "<function=work> maybe"):
        assert inputs(parse(format, f"{drafted}\n</think>\n\n{xml(count='1')}")) == [("work", {"count": 1})]


@pytest.mark.parametrize(
    ("format", "call"),
    [
        ("auto", '<tool_call>{"name": "work", "arguments": {"count": 1}}</tool_call>'),
        ("auto", '{"name": "work", "arguments": {"count": 1}}'),
        ("auto", xml(count="1")),
        ("qwen_xml", xml(count="1")),
        ("qwen_xml", "<function=work>\n<parameter=count>1</parameter>\n</function>"),
    ],
)
@pytest.mark.parametrize("said", ["Not a `<function=` element: ", "<function=\n", "<function=<name>: "])
def test_words_about_the_form_do_not_hide_a_call(format: str, call: str, said: str) -> None:
    assert inputs(parse(format, said + call)) == [("work", {"count": 1})]


@pytest.mark.parametrize("format", ["qwen_xml", "auto"])
def test_a_function_named_in_words_does_not_hide_a_call(format: str) -> None:
    malformed, call = parse(format, f"I take <function=work> and count.\n{xml(count='1')}")
    assert isinstance(malformed, MalformedCall)
    assert malformed.raw == "<function=work> and count.\n"
    assert inputs([call]) == [("work", {"count": 1})]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>\nso\n</think>\n\nyes", ("so", "yes")),
        ("so\n</think>\n\nyes", ("so", "yes")),
        ("<think>so", ("so", "")),
        ("yes", ("", "yes")),
        ("yes <think>", ("", "yes <think>")),
    ],
)
def test_thinking_is_split_from_the_answer(text: str, expected: tuple[str, str]) -> None:
    assert split_thinking(text) == expected


# --- Qwen's XML ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "written", "expected"),
    [
        ("text", "3", "3"),
        ("text", "null", "null"),
        ("text", " spaced\n\n", " spaced\n\n"),
        ("text", '{"a": 1}', '{"a": 1}'),
        ("count", "3", 3),
        ("count", " -3 ", -3),
        ("count", "3.0", 3),
        ("count", "3.5", "3.5"),
        ("count", "three", "three"),
        ("count", "true", "true"),
        ("ratio", "0.5", 0.5),
        ("ratio", "1e999", "1e999"),
        ("flag", "True", True),
        ("flag", "false", False),
        ("flag", "1", "1"),
        ("items", "[1, 2]", [1, 2]),
        ("items", "1, 2", "1, 2"),
        ("options", '{"a": [null]}', {"a": [None]}),
        ("nothing", "null", None),
        ("maybe", "null", None),
        ("maybe", "7", 7),
        ("maybe_text", "None", None),
        ("maybe_text", "7", "7"),
        ("nullable", "null", None),
        ("nullable", "4", 4),
        ("either", "true", True),
        ("either", "2.5", 2.5),
        ("text_or_number", "7", "7"),
        ("level", "2", 2),
        ("referred", "9", 9),
        ("anything", "9", "9"),
        ("unknown", "9", "9"),
    ],
)
def test_xml_values_are_what_the_schema_says(name: str, written: str, expected: Any) -> None:
    ((tool, input),) = inputs(parse("qwen_xml", xml(**{name: written})))
    assert (tool, input) == ("work", {name: expected})
    assert type(input[name]) is type(expected)


def test_xml_reads_every_call_and_all_parameters() -> None:
    text = f"Both:\n{xml(count='1', text='a')}\n{xml(flag='true')} <function=rest></function>"
    assert inputs(parse("qwen_xml", text)) == [
        ("work", {"count": 1, "text": "a"}),
        ("work", {"flag": True}),
        ("rest", {}),
    ]


def test_an_xml_value_may_hold_the_marks_of_the_form() -> None:
    code = 'if a:\n    print("</parameter>", "<parameter=other>")  # </function>\n<think>\n'
    assert inputs(parse("qwen_xml", xml(text=code, count="1"))) == [("work", {"text": code, "count": 1})]


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>\n<function=work>\n<parameter=text>\na\n</parameter>\n</function>",
        "<tool_call>\n<function=work>\n<parameter=text>\na\n</parameter>\n",
        "<function=work><parameter=text>a</function></tool_call>",
        "<function=work><parameter=text>a</function>",
        "<function=work><parameter=text>a</tool_call>",
        "<function=work>\n<parameter=text>a</parameter>\n</function>",
    ],
)
def test_missing_closing_marks_of_an_xml_call_are_accepted(text: str) -> None:
    assert inputs(parse("qwen_xml", text)) == [("work", {"text": "a"})]


@pytest.mark.parametrize("format", ["qwen_xml", "auto"])
@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>\n<function=work>\n<parameter=text>\nrm -rf /data/cache/old",
        "<tool_call>\n<function=work>\n<parameter=text>\nrm -rf /data/cache/old\n",
        "<tool_call>\n<function=work>\n<parameter=text>\nrm -rf /data/cache/old\n</param",
        "<tool_call>\n<function=work>\n<parameter=text>\nrm -rf /data/cache/old\n</parameter>\n</func",
        "<tool_call>\n<function=work>\n<parameter=text>\nrm -rf /data/cache/old\n</parameter>\n<param",
        "<tool_call>\n<function=work>\n<parameter=text>\nrm -rf /data/cache/old\n</parameter>\n<parameter=count>\n1",
        "<tool_call>\n<function=work>\n<parameter=text>\nrm -rf /data/cache/old\n</tool_ca",
        "<tool_call>\n<function=work>\n<parameter=text>",
        "<tool_call>\n<function=work>\n<parameter=te",
        "<tool_call>\n<function=wo",
    ],
)
def test_a_truncated_xml_call_is_not_run(format: str, text: str) -> None:
    """Half a command is another command."""
    (found,) = parse(format, text)
    assert isinstance(found, MalformedCall)
    assert found.raw == text


@pytest.mark.parametrize("format", ["hermes", "json", "auto"])
def test_a_truncated_json_call_is_not_run(format: str) -> None:
    whole = '{"name": "work", "arguments": {"text": "rm -rf /data/cache/old", "count": 12}}'
    for length in range(len('{"name"'), len(whole)):
        text = whole[:length] if format == "json" else f"<tool_call>\n{whole[:length]}"
        assert [type(found) for found in parse(format, text)] == [MalformedCall], text


def test_whether_a_text_says_where_its_call_ends() -> None:
    written = "<function=work>\n<parameter=text>\na\n</parameter>\n"
    for text, closed in [
        (written, False),
        ("<function=work>", False),
        (f"{written}</function>", True),
        (f"{written}</tool_call>", True),
    ]:
        call, *_ = parse("qwen_xml", text)
        assert isinstance(call, ToolCall)
        assert call.closed is closed, text


def test_a_forgotten_closing_mark_does_not_swallow_the_next_parameter() -> None:
    text = "<function=work>\n<parameter=text>\na\n<parameter=count>\n2\n</parameter>\n</function>"
    assert inputs(parse("qwen_xml", text)) == [("work", {"text": "a", "count": 2})]


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>{}</tool_call>",
        "<tool_call>work</tool_call>",
        "<tool_call><function=></function></tool_call>",
        "<tool_call><function=work</function></tool_call>",
        "<function=work>count=1</function>",
        "<function=work><parameter=>1</parameter></function>",
    ],
)
def test_an_xml_call_that_cannot_be_read_keeps_its_text(text: str) -> None:
    (call,) = parse("qwen_xml", f"so {text}")
    assert isinstance(call, MalformedCall)
    assert call.raw == text


def test_a_schema_that_refers_to_itself_ends() -> None:
    schema = {"properties": {"loop": {"$ref": "#/$defs/Loop"}, "away": {"$ref": "#/$defs/None"}}, **SCHEMA}
    tool = ToolSpec(name="work", description="", input_schema={**schema, "properties": schema["properties"]})
    (call,) = find_format("qwen_xml").parse(xml(loop="1"), [tool])
    assert isinstance(call, ToolCall)


# --- plain JSON and auto -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "work", "parameters": {"count": 1}}',
        'Sure:\n```json\n{"name": "work", "arguments": {"count": 1}}\n```',
        '[{"name": "work", "arguments": {"count": 1}}]',
        'First { this }, then {"name": "work", "arguments": {"count": 1}}',
        '{"note": 1} {"name": "work", "arguments": {"count": 1}}',
    ],
)
def test_plain_json_is_found_in_prose_fences_and_lists(text: str) -> None:
    assert inputs(parse("json", text)) == [("work", {"count": 1})]
    assert inputs(parse("auto", text)) == [("work", {"count": 1})]


@pytest.mark.parametrize(
    "text", ["no call", "{}", '{"answer": 5}', '{"name": "Ada", "age": 36}', "{ name: work }", "[1]"]
)
def test_an_answer_in_json_is_not_a_call(text: str) -> None:
    assert parse("json", text) == []


def test_plain_json_of_a_tool_needs_no_arguments() -> None:
    assert inputs(parse("json", '{"name": "rest"}')) == [("rest", {})]


@pytest.mark.parametrize("text", ['{"name": "work", "arguments": {', '{"name": "work", "arguments": 3}'])
def test_plain_json_that_cannot_be_read_keeps_its_text(text: str) -> None:
    (call,) = parse("json", text)
    assert isinstance(call, MalformedCall)
    assert call.raw == text


def test_auto_takes_the_form_the_text_is_in() -> None:
    hermes = '<tool_call>{"name": "work", "arguments": {"text": "<function=rest>"}}</tool_call>'
    assert inputs(parse("auto", hermes)) == [("work", {"text": "<function=rest>"})]
    assert inputs(parse("auto", xml(count="1"))) == [("work", {"count": 1})]
    assert parse("auto", "nothing") == []


# --- any text ------------------------------------------------------------------------------------

_PIECES = st.sampled_from(
    [
        "<tool_call>",
        "</tool_call>",
        "<think>",
        "</think>",
        "<function=",
        "<function=work>",
        "</function>",
        "<parameter=",
        "<parameter=count>",
        "</parameter>",
        '{"name": "work", "arguments": ',
        '{"name": ',
        '"work"',
        "{",
        "}",
        "[",
        ">",
        "\n",
        "\\",
        '"',
        "NaN",
        "\ud800",
        "🙂",
    ]
)
_TEXTS = st.lists(_PIECES | st.text(max_size=6), max_size=40).map("".join)


@given(text=_TEXTS, format=st.sampled_from(sorted(TOOL_CALL_FORMATS)))
@settings(max_examples=200, deadline=None)
@example(text='{"name"' * 3000, format="json")
@example(text="<function=work><parameter=" * 2000, format="qwen_xml")
@example(text="<tool_call>" * 2000, format="hermes")
@example(text='{"a":' * 3000, format="auto")
def test_any_text_is_calls_or_malformed_calls_and_never_an_exception(text: str, format: str) -> None:
    found = parse(format, text)
    ids = [call.id for call in found if isinstance(call, ToolCall)]
    assert len(set(ids)) == len(ids)
    for call in found:
        assert call.raw in text
        if isinstance(call, ToolCall):
            assert call.name
            # As a client sends it: strict JSON in valid UTF-8.
            json.dumps(call.input, allow_nan=False, ensure_ascii=False).encode()
        else:
            assert call.problem


_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(calls=st.lists(st.dictionaries(st.text(), _VALUES, max_size=3), min_size=1, max_size=3))
@example(calls=[{"</think>": None}])
@example(calls=[{"text": "<think>"}, {"text": "</tool_call>"}])
@settings(max_examples=150, deadline=None)
def test_hermes_reads_back_whatever_was_written(calls: list[dict[str, Any]]) -> None:
    written = "".join(
        f"<tool_call>\n{json.dumps({'name': 'work', 'arguments': input})}\n</tool_call>\n" for input in calls
    )
    read = [input for _, input in inputs(parse("hermes", written))]
    assert read == [_repaired(input) for input in json.loads(json.dumps(calls))]


def _repaired(value: Any) -> Any:
    """Return a value with U+FFFD for each lone surrogate."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_repaired(item) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {_repaired(key): _repaired(item) for key, item in cast("dict[str, Any]", value).items()}
    return value


def test_a_long_turn_of_open_braces_is_parsed_in_linear_time() -> None:
    begun = time.perf_counter()
    for format in TOOL_CALL_FORMATS:
        parse(format, '{"name":' * 20_000)
        parse(format, "<tool_call><function=work><parameter=count>\n" * 4_000)
    # It takes about 20 ms; quadratic time would be minutes.
    assert time.perf_counter() - begun < 20


# --- formats -------------------------------------------------------------------------------------


def test_an_unknown_format_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigurationError, match=r"hermes, qwen_xml, json, auto"):
        find_format("xml")


def test_each_format_reads_its_own_instructions() -> None:
    for format in TOOL_CALL_FORMATS.values():
        (call,) = format.parse(format.instructions.partition(":\n")[2], TOOLS)
        assert isinstance(call, ToolCall)
        assert call.name == "tool-name"


def test_tools_are_described_a_line_each() -> None:
    first, second = describe_tools(TOOLS).splitlines()
    assert json.loads(first) == {"name": "work", "arguments_schema": SCHEMA, "description": "Works."}
    assert json.loads(second)["arguments_schema"] is None
