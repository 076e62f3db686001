"""The tolerant stage: reads one JSON-like value with a closed list of repairs, and refuses whatever could be read in two ways.

A repair is on the list when a real model makes that slip and only one value can be meant. Nothing is ever closed, completed or dropped:
an end of text inside a value is truncation. Linear time: no position is looked at more than a fixed number of times.
"""

import re
from typing import Any

from runtime_jobs.validation import strict
from runtime_jobs.validation.cursor import Repair
from runtime_jobs.validation.strict import Reason
from runtime_jobs.validation.strings import QUOTES, StringCursor

_LITERALS: dict[str, tuple[Any, Repair | None]] = {
    "true": (True, None),
    "false": (False, None),
    "null": (None, None),
    "True": (True, Repair.PYTHON_LITERAL),
    "False": (False, Repair.PYTHON_LITERAL),
    "None": (None, Repair.PYTHON_LITERAL),
    "undefined": (None, Repair.UNDEFINED),
}
_KEY_AHEAD = re.compile(r'"(?:[^"\\\n]++|\\.)*+"[ \t]*+:')
_WORD = re.compile(r"[A-Za-z_$][\w$]*+")
_NUMBER = re.compile(r"[+-]?(?:0[xX](?P<hex>[0-9a-fA-F]{1,16})|(?:\d++(?:\.\d*+)?|\.\d++)(?:[eE][+-]?\d++)?)(?![\w.$])")
_STRICT_NUMBER = re.compile(r"-?(?:0|[1-9]\d*+)(?:\.\d++)?(?:[eE][+-]?\d++)?\Z")
_LEADING_ZERO = re.compile(r"[+-]?0\d")
_NON_ASCII_DIGIT = re.compile(r"[^\x00-\x7f]")


def parse_at(text: str, start: int) -> tuple[Any, int, tuple[Repair, ...]]:
    """The object or array that begins at `start`, the position behind it and the repairs it needed. Raises Unreadable."""
    parser = _Parser(text, start)
    value = parser.value(depth=0)
    return value, parser.at, tuple(parser.repairs)


class _Parser(StringCursor):
    def value(self, depth: int) -> Any:
        char = self.peek()
        if char in ("{", "["):
            if depth >= strict.MAX_DEPTH:
                self.refuse(Reason.TOO_DEEP)
            return self._object(depth + 1) if char == "{" else self._array(depth + 1)
        if char in QUOTES:
            return self.string(inner_quotes=True)
        if char.isdigit() or char in ("-", "+", "."):
            return self._number()
        return self._word()

    def _object(self, depth: int) -> dict[str, Any]:
        self.at += 1
        pairs: list[tuple[str, Any]] = []
        self.space()
        while not self._closes("}"):
            key = self._key()
            self.space()
            if not self._punctuation(":", "："):
                self.refuse_here()
            self.space()
            pairs.append((key, self.value(depth)))
            line_ended = self.space()
            if self._separated("}"):
                continue
            if not (line_ended and _KEY_AHEAD.match(self.text, self.at)):
                self.refuse_here()
            self.repaired(Repair.MISSING_COMMA)
        return strict.unique_keys(pairs)

    def _array(self, depth: int) -> list[Any]:
        self.at += 1
        items: list[Any] = []
        self.space()
        while not self._closes("]"):
            items.append(self.value(depth))
            line_ended = self.space()
            if self._separated("]"):
                continue
            # Two strings on two lines may be one, so only containers of one kind can miss their comma.
            kind = "{" if isinstance(items[-1], dict) else "[" if isinstance(items[-1], list) else ""
            if not (line_ended and kind and self.peek() == kind):
                self.refuse_here()
            self.repaired(Repair.MISSING_COMMA)
        return items

    def _separated(self, closer: str) -> bool:
        """Whether the member ended properly: a comma was passed, or the closer is next."""
        if self.peek() == closer:
            return True
        if not self._punctuation(",", "，"):
            return False
        self.space()
        if self.peek() == closer:
            self.repaired(Repair.TRAILING_COMMA)
        return True

    def _closes(self, closer: str) -> bool:
        if self.peek() != closer:
            return False
        self.at += 1
        return True

    def _punctuation(self, char: str, full_width: str) -> bool:
        found = self.peek()
        if found == full_width:
            self.repaired(Repair.FULL_WIDTH_PUNCTUATION)
        elif found != char:
            return False
        self.at += 1
        return True

    def _key(self) -> str:
        if self.peek() in QUOTES:
            return self.string(inner_quotes=False)
        match = _WORD.match(self.text, self.at)
        if not match:
            self.refuse_here()
        self.at = match.end()
        self.repaired(Repair.UNQUOTED_KEY)
        return match[0]

    def _word(self) -> Any:
        match = _WORD.match(self.text, self.at)
        word = match[0] if match else ""
        if match is None or word not in _LITERALS:
            if word in ("NaN", "Infinity"):
                self.refuse(Reason.NOT_A_NUMBER)
            if match and match.end() == len(self.text):
                self.refuse(Reason.TRUNCATED)
            self.refuse_here()
        value, repair = _LITERALS[word]
        if repair:
            self.repaired(repair)
        self.at = match.end()
        return value

    def _number(self) -> int | float:
        match = _NUMBER.match(self.text, self.at)
        if self.text.startswith(("-Infinity", "+Infinity"), self.at):
            self.refuse(Reason.NOT_A_NUMBER)
        # int() and float() also take the digits of other scripts, and "010" is eight in one language and ten in the next.
        if match is None or _LEADING_ZERO.match(match[0]) or _NON_ASCII_DIGIT.search(match[0]):
            self.refuse_here()
        self.at = match.end()
        if not _STRICT_NUMBER.match(match[0]):
            self.repaired(Repair.NUMBER_FORM)
        if match["hex"]:
            return int(match[0], 16)
        if any(sign in match[0] for sign in ".eE"):
            return strict.finite(match[0])
        return strict.integer(match[0])
