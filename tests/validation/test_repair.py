"""Reading a model's JSON: every answer is read right or refused, never read wrong, and no text takes long."""

import json
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime_jobs.validation.repair import MAX_OUTPUT_BYTES, MAX_REPAIR_CHARACTERS, Reading, Reason, Repair, Unreadable, read_json

CASES = Path(__file__).parent.parent / "cases"


def load(name: str) -> list[Any]:
    rows = [json.loads(line) for line in (CASES / name).read_text(encoding="utf-8").splitlines()]
    return [pytest.param(row, id=row["name"]) for row in rows]


def same(left: Any, right: Any) -> bool:
    """Equal with types: for Python 1, 1.0 and True are one."""
    return json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True)


def refusal(text: str) -> Unreadable:
    with pytest.raises(Unreadable) as refused:
        read_json(text)
    return refused.value


# Valid JSON of which nobody can tell whether the escapes are meant, and a thousands separator: a refusal is the right answer.
UNDECIDABLE = {"windows_path", "thousands"}


@pytest.mark.parametrize("row", load("model_output_json.jsonl"))
def test_a_case_is_read_right_or_refused(row: dict[str, Any]):
    """provider_calls 30."""
    if row.get("schema_only"):
        assert read_json(row["raw"]).value == json.loads(row["raw"])
    elif row.get("expect_error") or row["name"] in UNDECIDABLE:
        assert row["name"] not in UNDECIDABLE or row["refusal_ok"]
        refusal(row["raw"])
    else:
        reading = read_json(row["raw"])
        assert same(reading.value, row["expected"])
        assert all(repair in set(Repair) for repair in reading.repairs)
        assert (reading.repairs == ()) == _is_json(row["raw"], row["expected"])


def _is_json(text: str, expected: Any) -> bool:
    try:
        return same(json.loads(text), expected)
    except ValueError:
        return False


# -- what it costs

_MEASURE = """
import resource, sys, time, tracemalloc
from runtime_jobs.validation.repair import Unreadable, read_json
text = eval(sys.stdin.read())
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
started = time.thread_time()  # its own work: others may be using the machine
try:
    read_json(text)
except Unreadable:
    pass
print(time.thread_time() - started, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize("row", load("model_output_heavy.jsonl"))
def test_a_heavy_case_ends_within_a_second_and_little_memory(row: dict[str, Any]):
    """provider_calls 31. In a process of its own, so that its peak of memory is its own."""
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE],
        input=row["python_expr"],
        capture_output=True,
        text=True,
        check=True,
        cwd=CASES.parent.parent,
        timeout=60,
    )
    seconds, kilobytes = done.stdout.split()
    assert float(seconds) < 1
    assert int(kilobytes) < 50_000


HOSTILE = {
    "empty arrays": "[]" * 500_000,
    "remarks": "[a]" * 300_000,
    "citations": "x [1]" * 200_000,
    "reasoning": "<think></think>" * 60_000,
    "open reasoning": "<think>" * 140_000,
    "orphaned ends": "\n</think" * 120_000,
    "backslashes": '{"a":"' + "\\" * 1_000_000,
    "escaped quotes": '{"a":"' + '\\"' * 500_000,
    "escaped quotes, tolerant": '{"a":"' + '\\"' * 95_000,
    "encoded": '"{a}' * 200_000,
    "line breaks": "\n" * 1_000_000 + "x",
    "spaces behind": '{"a":1}' + " " * 1_000_000 + "x",
    "commas": "[" + "," * 190_000,
    "comments": "[" + "/**/" * 45_000,
    "open comments": "[1/*" + "/*" * 90_000,
    "keys": "{" + "a:1," * 45_000,
    "empty objects": "[" + "{}," * 330_000 + "{}]",
    "unescaped quotes": '["' + 'a "b" ' * 30_000 + '"]',
    "half a path": '"C:\\n' * 200_000,
    "digits": "[" + "9" * 1_000_000,
    "digits, tolerant": "{'a':" + "9" * 190_000,
    "event stream": "data:" * 200_000,
    "left out": '{"a":1}' + "\n# x" * 200_000,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_text_ends_within_a_second(text: str):
    """provider_calls 31."""
    started = time.thread_time()  # its own work: others may be using the machine
    with suppress(Unreadable):
        read_json(text)
    assert time.thread_time() - started < 1


def test_long_json_is_read_strictly_but_not_repaired():
    document = {"a": "x" * (MAX_REPAIR_CHARACTERS + 1)}
    text = json.dumps(document)
    assert read_json(f"Here:\n```json\n{text}\n```").value == document
    assert refusal(text[:-1] + ",}").reason is Reason.TOO_LARGE_TO_REPAIR
    assert refusal(" " * MAX_OUTPUT_BYTES + "{}").reason is Reason.TOO_LARGE


# -- what models do, beside the cases

READ: list[tuple[str, Any, tuple[str, ...]]] = [
    # wrappers
    ("\ufeff{}", {}, ("unwrapped",)),
    ("**Result:**\n{}\n", {}, ("unwrapped",)),
    ("const data = {a: 1};", {"a": 1}, ("unwrapped", "unquoted_key")),
    ("The answer is [5].", [5], ("unwrapped",)),
    ('As shown in [1] and [2], and [see above]:\n{"a":1}', {"a": 1}, ("unwrapped",)),
    ('Fill in {name}: {"a":1}', {"a": 1}, ("unwrapped",)),
    ('```json\n{"a":1}\n```\nAgain:\n{"a": 1}', {"a": 1}, ("unwrapped", "repeated")),
    ('{"a":1}\n{"a":1}', {"a": 1}, ("repeated",)),
    ('"{"a":1}"', {"a": 1}, ("unwrapped",)),
    # reasoning, as the chat templates of several models mark it
    ('<think>\n{"a": broken\n</think>\n\n{"a":1}', {"a": 1}, ("unwrapped",)),
    ('I could say {"a":0} or {"b"…\n</think>\n\n{"a":1}', {"a": 1}, ("unwrapped",)),
    ('[THINK]{"a":0}[/THINK]{"a":1}', {"a": 1}, ("unwrapped",)),
    ('<|channel|>analysis<|message|>{"a":0}<|end|><|start|>assistant<|channel|>final<|message|>{"a":1}', {"a": 1}, ("unwrapped",)),
    ('Sure! {"t":"use <think>tags</think> here"}', {"t": "use <think>tags</think> here"}, ("unwrapped",)),
    # quotes
    ("{“a”: “x”}", {"a": "x"}, ("typographic_quotes",)),
    ("{'a': \"it's\", 'b': 'it\\'s'}", {"a": "it's", "b": "it's"}, ("single_quotes",)),
    ('{"a":"the "big" one and the "small" one"}', {"a": 'the "big" one and the "small" one'}, ("unescaped_quote",)),
    ('{"a":"he said "hello.""}', {"a": 'he said "hello."'}, ("unescaped_quote",)),
    # escapes
    (r'{"a":"\(x^2\) and \sum", "b":"\d+"}', {"a": r"\(x^2\) and \sum", "b": r"\d+"}, ("escape",)),
    ("{'a': '\\ud83d\\ude00'}", {"a": "😀"}, ("single_quotes",)),
    # numbers stay what they are
    ('{"a":123456789012345678901234567890}', {"a": 123456789012345678901234567890}, ()),
    ("{'a': 123456789012345678901234567890}", {"a": 123456789012345678901234567890}, ("single_quotes",)),
    ("{'a': -1.5e3, 'b': .5, 'c': -0x10}", {"a": -1500.0, "b": 0.5, "c": -16}, ("single_quotes", "number_form")),
    # punctuation
    ('{"a"：1，"b"：2}', {"a": 1, "b": 2}, ("full_width_punctuation",)),
    ("{} // done", {}, ("unwrapped",)),
    ('{"a":1 // the number of pages\n}', {"a": 1}, ("comment",)),
]


@pytest.mark.parametrize(("text", "value", "repairs"), READ, ids=[text for text, _, _ in READ])
def test_a_slip_with_one_meaning_is_read(text: str, value: Any, repairs: tuple[str, ...]):
    reading = read_json(text)
    assert same(reading.value, value)
    assert reading.repairs == repairs


REFUSED: list[tuple[str, Reason]] = [
    # a document that closed too early, or lost its beginning: the fragment is not the answer
    ('{"a":{"b":1}},"c":2}', Reason.MISMATCHED_BRACKET),
    ('{"a":{"b":1}},"c":2', Reason.MISMATCHED_BRACKET),
    ('{"a":1}}', Reason.MISMATCHED_BRACKET),
    ('"a": {"b":1}, "c": {"b":1}', Reason.MISMATCHED_BRACKET),
    ("1,[2,3]]", Reason.MISMATCHED_BRACKET),
    ('{{"a":1}}', Reason.SYNTAX),
    ('{"a": x, "b": {"c":1}}', Reason.SYNTAX),
    ('{"a", {"b":1}}', Reason.SYNTAX),
    # cut off
    ('{"a":1', Reason.TRUNCATED),
    ('Sure:\n{"a":"x', Reason.TRUNCATED),
    ('<think>it is {"a":1}', Reason.TRUNCATED),
    ('[{"a":1},{"a":2}', Reason.TRUNCATED),
    # left out
    ('{"a":[1,2 /* and 40 more items */]}', Reason.ELIDED),
    ('{"a":[1,2], // rest of the list omitted\n}', Reason.ELIDED),
    ('[{"a":1}]\n// ... remaining entries', Reason.ELIDED),
    ('[{"a":1}]\n...', Reason.ELIDED),
    ('{"a":…}', Reason.ELIDED),
    # two meanings
    ('{"a":1} or {"a":1.0}', Reason.AMBIGUOUS),
    ('{"a":1} or {"a":true}', Reason.AMBIGUOUS),
    ('["say "a", "b" now"]', Reason.AMBIGUOUS),
    ('["a" "b", "c"]', Reason.AMBIGUOUS),
    ('{"a":"x "y", "b":1}', Reason.AMBIGUOUS),
    ('{"a":""x""}', Reason.AMBIGUOUS),
    ('["a"\n"b"]', Reason.SYNTAX),
    ("{'a': 'it's, ok', 'b': 1}", Reason.SYNTAX),
    ('{“a”: “x", "b”: 1}', Reason.SYNTAX),
    # a string that lost a quote: not a comment, and not a string of two lines
    ('["a",\n# b",\n"c"]', Reason.AMBIGUOUS),
    ('{"a": ""// b"\n}', Reason.AMBIGUOUS),
    ('["a,\n"# b"\n]', Reason.AMBIGUOUS),
    ('["a", "\n2,\n", "b"]', Reason.AMBIGUOUS),
    # escapes that are a command, a path or a pattern with too few backslashes, or that each language reads in its own way
    (r'{"a":"\frac{1}{2}"}', Reason.MANGLED_BACKSLASH),
    (r'{"a":"3 \times 4"}', Reason.MANGLED_BACKSLASH),
    (r'{"a":"\alpha + \beta"}', Reason.MANGLED_BACKSLASH),
    (r'{"a":"\bword\b"}', Reason.MANGLED_BACKSLASH),
    (r'{"a":"user\_id"}', Reason.MANGLED_BACKSLASH),
    (r"{'a':'caf\xe9'}", Reason.MANGLED_BACKSLASH),
    # numbers
    ("{'a': 007}", Reason.SYNTAX),
    ("{'a': 1_000}", Reason.SYNTAX),
    ("{'a': 12%}", Reason.SYNTAX),
    ("{'a': 2026-11-29}", Reason.SYNTAX),
    ("{'a': ٣}", Reason.SYNTAX),
    ("{'a': 1e999}", Reason.NUMBER_OUT_OF_RANGE),
    ("{'a': -Infinity}", Reason.NOT_A_NUMBER),
    ('{"a": ' + "9" * 5000 + "}", Reason.NUMBER_OUT_OF_RANGE),
    # what a database or the next reader would not take
    ('{"a":1,"a":2}', Reason.DUPLICATE_KEY),
    ("{'a':1,'a':1}", Reason.DUPLICATE_KEY),
    ('{"a":"\\u0000"}', Reason.UNSTORABLE_TEXT),
    ('{"\\u0000":1}', Reason.UNSTORABLE_TEXT),
    ("{'a':'\x00'}", Reason.UNSTORABLE_TEXT),
    ("{'a':'\\ud83d'}", Reason.UNSTORABLE_TEXT),
    ('{"a":"\ud83d"}', Reason.UNSTORABLE_TEXT),
    ("[" * 65 + "]" * 65, Reason.TOO_DEEP),
    ("['a'," * 65 + "1" + "]" * 65, Reason.TOO_DEEP),
    # code, not data
    ("{'a': (1, 2)}", Reason.SYNTAX),
    ("{'a': datetime(2026, 1, 1)}", Reason.SYNTAX),
    ('{"a": `x`}', Reason.SYNTAX),
    ("[#fff, #eee]", Reason.SYNTAX),
    ("function f() { return {a: 1} }", Reason.SYNTAX),
    ("data: {}\n\ndata: [DONE]", Reason.FOREIGN_FORMAT),
    ('"\\"{}\\""', Reason.NOT_A_CONTAINER),
]


@pytest.mark.parametrize(("text", "reason"), REFUSED, ids=[ascii(text)[:60] for text, _ in REFUSED])
def test_what_may_mean_two_things_is_refused(text: str, reason: Reason):
    assert refusal(text).reason is reason


def test_a_doubled_backslash_is_a_backslash():
    value = {"a": "\\frac{1}{2} C:\\new\\test", "b": "C:\\new\\test"}
    assert read_json(json.dumps(value)) == Reading(value)


def test_a_refusal_tells_the_place_and_no_text():
    error = refusal('{"CANARY": 1, "b": CANARY}')
    assert (error.reason, error.position) == (Reason.SYNTAX, 19)
    assert "CANARY" not in str(error)
    assert error.__cause__ is None


# -- any value, any damage

# Without the two characters that no text has and that stand for lost backslashes, see MANGLED_BACKSLASH.
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00\x08\x0c\r\t"), max_size=12)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4), max_leaves=12)
containers = st.lists(values, max_size=4) | st.dictionaries(texts, values, max_size=4)
written = st.builds(json.dumps, containers, ensure_ascii=st.booleans(), indent=st.sampled_from([None, 2]))
WRAPPERS = ["{}", "```json\n{}\n```", "Here you are:\n{}\nAnything else?", "<think>Hm, [x] or {{}}</think>\n{}", "<answer>{}</answer>"]


def wrap(wrapper: str, document: str) -> str:
    before, _, after = wrapper.rpartition("{}")
    return before + document + after


@settings(max_examples=300, deadline=None)
@given(written, st.sampled_from(WRAPPERS))
def test_any_document_reads_back_whatever_stands_around_it(document: str, wrapper: str):
    reading = read_json(wrap(wrapper, document))
    assert same(reading.value, json.loads(document))
    assert set(reading.repairs) <= {Repair.UNWRAPPED}


@settings(max_examples=300, deadline=None)
@given(containers)
def test_what_python_prints_is_read_right_or_refused(value: Any):
    try:
        reading = read_json(repr(value))
    except Unreadable:
        return
    assert same(reading.value, value)


@settings(max_examples=300, deadline=None)
@given(written, st.sampled_from(WRAPPERS), st.data())
def test_a_truncated_document_is_never_read_as_another(document: str, wrapper: str, data: st.DataObject):
    text = wrap(wrapper, document)
    cut = text[: data.draw(st.integers(0, len(text)))]
    try:
        reading = read_json(cut)
    except Unreadable:
        return
    assert same(reading.value, json.loads(document))


@settings(max_examples=300, deadline=None)
@given(written, st.data())
def test_a_document_without_its_beginning_is_never_read_as_a_fragment(document: str, data: st.DataObject):
    cut = document[data.draw(st.integers(1, len(document))) :]
    refusal(cut)


@settings(max_examples=300, deadline=None)
@given(written, st.data())
def test_damage_is_read_or_refused_but_never_crashes(document: str, data: st.DataObject):
    characters = list(document)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(characters)))
        characters[at : at + data.draw(st.integers(0, 2))] = data.draw(st.text("{}[]\"'\\,:/*#.…“” \n\tu0x-+eNTtf`<>", max_size=3))
    with suppress(Unreadable):
        json.dumps(read_json("".join(characters)).value, allow_nan=False).encode()


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=60) | st.text("{}[]\"'\\,:/*#.…“”‘ \n\tu0x-+eNTtf`<>ab1", max_size=60))
def test_any_text_is_read_or_refused_but_never_crashes(text: str):
    with suppress(Unreadable):
        assert isinstance(read_json(text).value, (dict, list))
