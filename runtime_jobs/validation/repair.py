"""Reading JSON from a model's answer: strict first, then unwrapped, then repaired; refused whenever two values could be meant.

A wrong value that looks right is worse than a refusal, so every step fails closed. In order: size · strict JSON (strict.py) · what
stands around it (fences, prose, reasoning) · the tolerant stage (tolerant.py). Several documents in one answer must be equal. Linear time.
"""

import json
import re
from dataclasses import dataclass
from typing import Any

from runtime_jobs.validation import strict, tolerant
from runtime_jobs.validation.cursor import ELISION, Repair
from runtime_jobs.validation.strict import Reason, Unreadable

__all__ = ["MAX_OUTPUT_BYTES", "Reading", "Reason", "Repair", "Unreadable", "read_json"]

MAX_OUTPUT_BYTES = 1_048_576
# The tolerant stage is Python, not C: about 0.1 s for this many characters.
MAX_REPAIR_CHARACTERS = 200_000
# An answer with more documents or bracketed remarks than this is no answer; the caps also keep hostile text linear.
MAX_DOCUMENTS = 8
MAX_REMARKS = 1_000


@dataclass(frozen=True)
class Reading:
    """An object or array as the model meant it, and what was needed to read it (names of `Repair`, in order of appearance)."""

    value: Any
    repairs: tuple[str, ...] = ()


def read_json(text: str) -> Reading:
    """The one object or array in a model's answer. Raises Unreadable, which holds a reason and a position but no text of the answer."""
    if len(text) > MAX_OUTPUT_BYTES or len(text.encode(errors="surrogatepass")) > MAX_OUTPUT_BYTES:
        raise Unreadable(Reason.TOO_LARGE)
    if not _INK.search(text):
        raise Unreadable(Reason.EMPTY)
    try:
        value = strict.loads(text)
    except Unreadable as error:
        if error.reason is not Reason.SYNTAX:
            raise
        return _unwrap(text)
    _refuse_mangled(text, 0, len(text))
    if isinstance(value, str):
        return Reading(_decode_again(value), (Repair.DOUBLE_ENCODED,))
    if not isinstance(value, (dict, list)):
        raise Unreadable(Reason.NOT_A_CONTAINER)
    return Reading(value)


@dataclass(frozen=True)
class _Document:
    value: Any
    end: int
    repairs: tuple[Repair, ...] = ()


_INK = re.compile(r"[^\s\ufeff\u200b-\u200d\u2060]")
_AROUND = re.compile(f"[^{strict.WHITESPACE}]")

# What a server sends in place of an answer: an event stream that nobody asked for, an error page.
_FOREIGN = re.compile(r"\A\s*+(?:<!doctype\b|<html\b|<\?xml\b)|^data:[ \t]*+[\[{]", re.IGNORECASE | re.MULTILINE)

_REASONING = r"<(?P<tag>think|thinking|thought|thoughts|reasoning|analysis|reflection|scratchpad)>"
_REASONING_CLOSED_BY = {
    "[think]": re.compile(r"\[/THINK\]", re.IGNORECASE),
    "◁think▷": re.compile("◁/think▷"),
    "<|channel|>analysis<|message|>": re.compile(r"<\|end\|>"),
}
# Some chat templates open the reasoning in the prompt, so that only its end is in the answer, on a line of its own.
_ORPHANED_END = re.compile(r"(?:\A|\n)[ \t]*+</think(?:ing)?>", re.IGNORECASE)

# What the scanner stops at outside a document. The bracket itself comes last, so that the longer marks win.
_MARK = re.compile(
    rf'{_REASONING}|\[THINK\]|◁think▷|<\|channel\|>analysis<\|message\|>|(?P<encoded>"(?=[\[{{]))|(?P<open>[\[{{])|(?P<close>[\]}}])',
    re.IGNORECASE,
)
# Brackets of prose, like {name}, [see above] or {3}: short, on one line, nothing inside that JSON would be made of.
_REMARK = re.compile(
    r"\{\s?[\w$][^{}\[\]\":\n]{0,200}\}|\[(?!(?:true|false|null|None|undefined|NaN|Infinity)\b)[^\W\d_][^{}\[\]\"\n]{0,200}\]",
    re.IGNORECASE,
)
_CITATION = re.compile(r"\[(?:0|[1-9]\d{0,2})\]")
_KEY_BEFORE = re.compile(r"[\"'”]\s*:\s*\Z")
# Behind a document these mean that it closed too early and goes on.
_GOES_ON = re.compile(r"\s*+(?::|[,，]\s*+[\"'“\[{\d-])")
_LEFT_OUT = re.compile(r"^[ \t]*+(?:\.\.\.|…|(?://|#|/\*)(?P<comment>[^\n]*+))", re.MULTILINE)

# Legal escapes that are LaTeX, a regular expression or a Windows path with too few backslashes: nobody writes a form feed before a letter,
# and no text reads "C:", line break, "new", tab, "test". Strict JSON, but the value would be wrong.
_BEFORE_BACKSLASH = r"(?<!\\)(?:\\\\)*+\\"
_MANGLED = re.compile(
    rf"{_BEFORE_BACKSLASH}(?:[bf][A-Za-z]|r[a-z]|t(?:imes|heta|frac|ext\{{)|nabla)"
    r'|"[A-Za-z]:(?:\\[bfnrt][\w.-]++){2,}"'
)


def _unwrap(text: str) -> Reading:
    """The document in a text that is not one document of strict JSON."""
    if foreign := _FOREIGN.search(text):
        raise Unreadable(Reason.FOREIGN_FORMAT, foreign.start())
    documents, covered = _documents(text)
    if not documents:
        raise Unreadable(Reason.NO_JSON)
    first = documents[0]
    if any(_canonical(other.value) != _canonical(first.value) for other in documents[1:]):
        raise Unreadable(Reason.AMBIGUOUS)
    _refuse_left_out(text, covered)
    wrapped = len(covered) > len(documents) or any(_AROUND.search(text, start, end) for start, end in _gaps(text, covered))
    around = (Repair.UNWRAPPED,) if wrapped else ()
    again = (Repair.REPEATED,) if len(documents) > 1 else ()
    return Reading(first.value, (*around, *again, *first.repairs))


def _documents(text: str) -> tuple[list[_Document], list[tuple[int, int]]]:
    """All top-level documents outside reasoning, and the stretches of text that they and the reasoning take."""
    documents: list[_Document] = []
    citations: list[int] = []
    covered: list[tuple[int, int]] = []
    remarks = 0
    at = _behind_orphaned_reasoning(text)
    if at:
        covered.append((0, at))
    while mark := _MARK.search(text, at):
        start = mark.start()
        if mark["close"]:
            raise Unreadable(Reason.MISMATCHED_BRACKET, start)
        if mark["open"] is None and mark["encoded"] is None:
            at = _end_of_reasoning(text, mark)
            covered.append((start, at))
        elif mark["open"] and (remark := _REMARK.match(text, start)):
            at, remarks = remark.end(), remarks + 1
        elif mark["open"] and _is_citation(text, start):
            citations.append(start)
            at, remarks = text.index("]", start) + 1, remarks + 1
        elif document := _document(text, start) if mark["open"] else _encoded_document(text, start):
            documents.append(document)
            at = document.end
            covered.append((start, at))
        else:
            at = mark.end()
        if len(documents) > MAX_DOCUMENTS or remarks > MAX_REMARKS:
            raise Unreadable(Reason.AMBIGUOUS, start)
    return documents or [_document(text, start) for start in citations[: MAX_DOCUMENTS + 1]], covered


def _document(text: str, start: int) -> _Document:
    """The document at a bracket. One that cannot be read is final: an inner fragment of it is never taken instead."""
    if _KEY_BEFORE.search(text, max(0, start - 20), start):
        raise Unreadable(Reason.MISMATCHED_BRACKET, start)
    document = _strict_document(text, start) or _Document(*tolerant.parse_at(text, start))
    if _GOES_ON.match(text, document.end):
        raise Unreadable(Reason.MISMATCHED_BRACKET, document.end)
    _refuse_mangled(text, start, document.end)
    return document


def _strict_document(text: str, start: int) -> _Document | None:
    """The document at a bracket if it is strict JSON; None if the tolerant stage may look at it."""
    try:
        return _Document(*strict.decode_at(text, start))
    except Unreadable as error:
        if error.reason is not Reason.SYNTAX:
            raise
        if len(text) - start > MAX_REPAIR_CHARACTERS:
            raise Unreadable(Reason.TOO_LARGE_TO_REPAIR, error.position) from None
        return None


def _encoded_document(text: str, start: int) -> _Document | None:
    """The document inside a JSON string at a quote; None when there is none, so that the bracket behind the quote is looked at."""
    try:
        value, end = strict.decode_at(text, start)
        return _Document(_decode_again(value), end, (Repair.DOUBLE_ENCODED,))
    except Unreadable:
        return None


def _decode_again(text: str) -> Any:
    try:
        value = strict.loads(text)
    except Unreadable as error:
        # A position in the inner text would mislead: the caller knows the outer one.
        raise Unreadable(Reason.NOT_A_CONTAINER if error.reason is Reason.SYNTAX else error.reason) from None
    if not isinstance(value, (dict, list)):
        raise Unreadable(Reason.NOT_A_CONTAINER)
    _refuse_mangled(text, 0, len(text))
    return value


def _behind_orphaned_reasoning(text: str) -> int:
    end = _ORPHANED_END.search(text)
    if end is None or re.search(_REASONING, text[: end.start()], re.IGNORECASE):
        return 0
    return end.end()


def _end_of_reasoning(text: str, opening: re.Match[str]) -> int:
    tag = opening["tag"]
    closing = re.compile(rf"</{tag}>", re.IGNORECASE) if tag else _REASONING_CLOSED_BY[opening[0].lower()]
    end = closing.search(text, opening.end())
    if end is None:
        raise Unreadable(Reason.TRUNCATED, opening.start())
    return end.end()


def _is_citation(text: str, start: int) -> bool:
    """Whether the bracket is a [1] within a line of prose: a document only when there is no other."""
    line = text[max(0, start - 2) : start].rstrip(" ")
    return bool(line) and line[-1] not in "\n:=`" and _CITATION.match(text, start) is not None


def _refuse_mangled(text: str, start: int, end: int) -> None:
    if mangled := _MANGLED.search(text, start, end):
        raise Unreadable(Reason.MANGLED_BACKSLASH, mangled.start())


def _refuse_left_out(text: str, covered: list[tuple[int, int]]) -> None:
    """Refuse when a line around the documents says that something was left out of them."""
    for start, end in _gaps(text, covered):
        for line in _LEFT_OUT.finditer(text, start, end):
            if line["comment"] is None or ELISION.search(line["comment"]):
                raise Unreadable(Reason.ELIDED, line.start())


def _gaps(text: str, covered: list[tuple[int, int]]) -> list[tuple[int, int]]:
    edges = [0, *(edge for stretch in covered for edge in stretch), len(text)]
    return list(zip(edges[::2], edges[1::2], strict=True))


def _canonical(value: Any) -> str:
    # Not `==`, for which 1, 1.0 and True are one.
    return json.dumps(value, sort_keys=True)
