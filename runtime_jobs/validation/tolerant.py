"""The tolerant stage: reads one JSON-like value with a closed list of repairs, and refuses whatever could be read in two ways.

A repair is on the list when a real model makes that slip and only one value can be meant. Nothing is ever closed, completed or dropped:
an end of text inside a value is truncation. Linear time: no position is looked at more than a fixed number of times.
"""

import re
from enum import StrEnum
from typing import Any, NoReturn

from runtime_jobs.validation import strict
from runtime_jobs.validation.strict import Reason, Unreadable


class Repair(StrEnum):
    """What was done to read a text. Stored with the attempt."""

    UNWRAPPED = "unwrapped"
    REPEATED = "repeated"
    DOUBLE_ENCODED = "double_encoded"
    TRAILING_COMMA = "trailing_comma"
    MISSING_COMMA = "missing_comma"
    SINGLE_QUOTES = "single_quotes"
    TYPOGRAPHIC_QUOTES = "typographic_quotes"
    UNQUOTED_KEY = "unquoted_key"
    UNESCAPED_QUOTE = "unescaped_quote"
    CONTROL_CHARACTER = "control_character"
    ESCAPE = "escape"
    PYTHON_LITERAL = "python_literal"
    UNDEFINED = "undefined"
    NUMBER_FORM = "number_form"
    COMMENT = "comment"
    WHITESPACE = "whitespace"
    FULL_WIDTH_PUNCTUATION = "full_width_punctuation"


# In a comment or a value these say that something was left out. A comment too many is refused rather than a loss accepted.
ELISION = re.compile(
    r"\.\.\.|…|\b(?:omit\w*|truncat\w*|elided|abbreviated|brevity|remain\w*|rest of|contin\w*|so on|etc|"
    r"(?:more|other|additional) \w+|repeat\w*|same as|similar)\b",
    re.IGNORECASE,
)

_LITERALS: dict[str, tuple[Any, Repair | None]] = {
    "true": (True, None),
    "false": (False, None),
    "null": (None, None),
    "True": (True, Repair.PYTHON_LITERAL),
    "False": (False, Repair.PYTHON_LITERAL),
    "None": (None, Repair.PYTHON_LITERAL),
    "undefined": (None, Repair.UNDEFINED),
}
_ESCAPES = {'"': '"', "'": "'", "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_CLOSERS = {'"': '"', "'": "'", "“": "”"}

_SPACE = re.compile(rf"[{strict.WHITESPACE}]*+")
_FOREIGN_SPACE = re.compile(r"[\u00a0\u2000-\u200d\u202f\u205f\u2060\u3000\ufeff]++")
# A comment sign of one character needs a space behind it: `#fff` is a colour that lost its quotes.
_LINE_COMMENT = re.compile(r"(?://|#[ \t])[^\n]*+")
_WORD = re.compile(r"[A-Za-z_$][\w$]*+")
_NUMBER = re.compile(r"[+-]?(?:0[xX](?P<hex>[0-9a-fA-F]{1,16})|(?:\d++(?:\.\d*+)?|\.\d++)(?:[eE][+-]?\d++)?)(?![\w.$])")
_STRICT_NUMBER = re.compile(r"-?(?:0|[1-9]\d*+)(?P<fraction>\.\d++)?(?P<exponent>[eE][+-]?\d++)?\Z")
_LEADING_ZERO = re.compile(r"[+-]?0\d")
_NON_ASCII_DIGIT = re.compile(r"[^\x00-\x7f]")
_PLAIN = {
    '"': re.compile(r'[^"\\\x00-\x1f]++'),
    "'": re.compile(r"[^'\\\x00-\x1f]++"),
    # A straight quote or another opening one inside is a pair gone wrong.
    "“": re.compile(r'[^“”"\\\x00-\x1f]++'),
}
_FOUR_HEX = re.compile(r"[0-9a-fA-F]{4}")
_KEY_AHEAD = re.compile(r'"(?:[^"\\\n]++|\\.)*+"[ \t]*+:')
_LINE_OF_QUOTES = re.compile(r'[^"\\\n]++|\\[^\n]|"')

# Backslash and letter as LaTeX, regular expressions and Windows paths have them, kept as written. Not those that Python or JavaScript
# would read as a character of its own (x41, U0001F600), nor the Markdown escapes (\_), of which nobody can tell what was meant.
_LITERAL_ESCAPE = re.compile(r"x(?![0-9a-fA-F]{2})|U(?![0-9a-fA-F]{8})|u(?![0-9a-fA-F])|N(?!\{)|[ac-eg-mo-qsvwyzA-MO-TV-Z()\[\]{},;!|]")


def parse_at(text: str, start: int) -> tuple[Any, int, tuple[Repair, ...]]:
    """The object or array that begins at `start`, the position behind it and the repairs it needed. Raises Unreadable."""
    parser = _Parser(text, start)
    value = parser.value(depth=0)
    return value, parser.at, tuple(parser.repairs)


class _Parser:
    def __init__(self, text: str, start: int) -> None:
        self.text = text
        self.at = start
        self.repairs: dict[Repair, None] = {}  # a set that keeps its order

    # -- the grammar

    def value(self, depth: int) -> Any:
        char = self._peek()
        if char in ("{", "["):
            if depth >= strict.MAX_DEPTH:
                self._refuse(Reason.TOO_DEEP)
            return self._object(depth + 1) if char == "{" else self._array(depth + 1)
        if char in _CLOSERS:
            return self._string(inner_quotes=True)
        if char.isdigit() or char in ("-", "+", "."):
            return self._number()
        return self._word()

    def _object(self, depth: int) -> dict[str, Any]:
        self.at += 1
        pairs: list[tuple[str, Any]] = []
        self._space()
        while not self._closes("}"):
            key = self._key()
            self._space()
            if not self._punctuation(":", "："):
                self._refuse_here()
            self._space()
            pairs.append((key, self.value(depth)))
            line_ended = self._space()
            if self._separated("}"):
                continue
            if not (line_ended and _KEY_AHEAD.match(self.text, self.at)):
                self._refuse_here()
            self._repaired(Repair.MISSING_COMMA)
        return strict.unique_keys(pairs)

    def _array(self, depth: int) -> list[Any]:
        self.at += 1
        items: list[Any] = []
        self._space()
        while not self._closes("]"):
            items.append(self.value(depth))
            line_ended = self._space()
            if self._separated("]"):
                continue
            # Two strings on two lines may be one, so only containers of one kind can miss their comma.
            kind = "{" if isinstance(items[-1], dict) else "[" if isinstance(items[-1], list) else ""
            if not (line_ended and kind and self._peek() == kind):
                self._refuse_here()
            self._repaired(Repair.MISSING_COMMA)
        return items

    def _separated(self, closer: str) -> bool:
        """Whether the member ended properly: a comma was passed, or the closer is next."""
        if self._peek() == closer:
            return True
        if not self._punctuation(",", "，"):
            return False
        self._space()
        if self._peek() == closer:
            self._repaired(Repair.TRAILING_COMMA)
        return True

    def _closes(self, closer: str) -> bool:
        if self._peek() != closer:
            return False
        self.at += 1
        return True

    def _punctuation(self, char: str, full_width: str) -> bool:
        found = self._peek()
        if found == full_width:
            self._repaired(Repair.FULL_WIDTH_PUNCTUATION)
        elif found != char:
            return False
        self.at += 1
        return True

    # -- tokens

    def _key(self) -> str:
        if self._peek() in _CLOSERS:
            return self._string(inner_quotes=False)
        match = _WORD.match(self.text, self.at)
        if not match:
            self._refuse_here()
        self.at = match.end()
        self._repaired(Repair.UNQUOTED_KEY)
        return match[0]

    def _word(self) -> Any:
        match = _WORD.match(self.text, self.at)
        word = match[0] if match else ""
        if match is None or word not in _LITERALS:
            if word in ("NaN", "Infinity"):
                self._refuse(Reason.NOT_A_NUMBER)
            if match and match.end() == len(self.text):
                self._refuse(Reason.TRUNCATED)
            self._refuse_here()
        value, repair = _LITERALS[word]
        if repair:
            self._repaired(repair)
        self.at = match.end()
        return value

    def _number(self) -> int | float:
        match = _NUMBER.match(self.text, self.at)
        if self.text.startswith(("-Infinity", "+Infinity"), self.at):
            self._refuse(Reason.NOT_A_NUMBER)
        # int() and float() also take the digits of other scripts, and "010" is eight in one language and ten in the next.
        if match is None or _LEADING_ZERO.match(match[0]) or _NON_ASCII_DIGIT.search(match[0]):
            self._refuse_here()
        self.at = match.end()
        standard = _STRICT_NUMBER.match(match[0])
        if not standard:
            self._repaired(Repair.NUMBER_FORM)
        if match["hex"]:
            return int(match[0], 16)
        if any(sign in match[0] for sign in ".eE"):
            return strict.finite(match[0])
        return strict.integer(match[0])

    def _string(self, *, inner_quotes: bool) -> str:
        """`inner_quotes`: a double-quoted string whose end does not fit may hold unescaped quotes; see _quoted_line."""
        opened_at, quote = self.at, self._peek()
        content = _StringContent()
        self.at += 1
        while self._peek() != _CLOSERS[quote]:
            self._string_part(quote, content)
        self.at += 1
        if inner_quotes and quote == '"' and not self._string_may_end_here():
            return self._quoted_line(opened_at)
        if quote != '"':
            self._repaired(Repair.SINGLE_QUOTES if quote == "'" else Repair.TYPOGRAPHIC_QUOTES)
        text = "".join(content.parts)
        if content.kept_backslash and content.escaped_letter:
            # "\alpha + \beta": the second is also a legal escape. Nobody can tell a line break from a command here.
            self._refuse(Reason.MANGLED_BACKSLASH)
        return self._storable(text)

    def _string_part(self, quote: str, content: "_StringContent") -> None:
        if plain := _PLAIN[quote].match(self.text, self.at):
            content.parts.append(plain[0])
            self.at = plain.end()
            return
        char = self._peek()
        if char == "\\":
            self._escape(quote, content)
        elif char and char < " ":
            self._repaired(Repair.CONTROL_CHARACTER)
            content.parts.append(char)
            self.at += 1
        else:
            self._refuse_here()

    def _escape(self, quote: str, content: "_StringContent") -> None:
        letter = self.text[self.at + 1 : self.at + 2]
        if letter == "u" and (code := _FOUR_HEX.match(self.text, self.at + 2)):
            content.parts.append(chr(int(code[0], 16)))
            self.at = code.end()
        elif letter in _ESCAPES and letter:
            content.parts.append(_ESCAPES[letter])
            self.at += 2
            if letter == "'":
                self._repaired(Repair.ESCAPE)
            if letter.isalpha() and self._peek().isalpha():
                content.escaped_letter = True
        elif quote == '"' and _LITERAL_ESCAPE.match(self.text, self.at + 1):
            content.parts.append("\\" + letter)
            content.kept_backslash = True
            self.at += 2
            self._repaired(Repair.ESCAPE)
        elif not letter:
            self._refuse(Reason.TRUNCATED)
        else:
            self._refuse(Reason.MANGLED_BACKSLASH)

    def _string_may_end_here(self) -> bool:
        """Whether a comma, a closer, a comment or the end of the line follows: anything else belongs to the string, or is an error."""
        here = self._after_spaces()
        following = self.text[here : here + 1]
        return not following or following in ",，]}#/\n\r"

    def _quoted_line(self, opened_at: int) -> str:
        """A string with unescaped quotes inside, on one line.

        It ends at the first quote before a comma or closer. The quotes inside must be pairs that open before a word and close behind
        one, or a single inch mark behind a digit; otherwise one of them may be the end and the string is refused.
        """
        parts: list[str] = []
        inner: list[int] = []
        self.at = opened_at + 1
        while match := _LINE_OF_QUOTES.match(self.text, self.at):
            self.at = match.end()
            if match[0] != '"':
                parts.append(match[0])
                continue
            here = self._after_spaces()
            if self.text[here : here + 1] in (",", "]", "}"):
                break
            if self.text[here : here + 1] in (":", ""):
                self._refuse_here()
            inner.append(match.start())
            parts.append('\\"')
        else:
            self._refuse_here()
        if not self._quotes_pair_up(opened_at + 1, inner, self.at - 1):
            self._refuse(Reason.AMBIGUOUS)
        self._repaired(Repair.UNESCAPED_QUOTE)
        try:
            value, _end = strict.decode_at('"' + "".join(parts) + '"', 0)
        except Unreadable as error:
            raise Unreadable(error.reason, opened_at) from None
        return str(value)

    def _quotes_pair_up(self, start: int, inner: list[int], end: int) -> bool:
        if len(inner) == 1:
            before, after = self._around(inner[0])
            return inner[0] > start and before.isdigit() and after == " "
        if len(inner) % 2:
            return False
        for opening, closing in zip(inner[::2], inner[1::2], strict=True):
            before, first = self._around(opening)
            last, after = self._around(closing)
            if not (opening == start or before in " (") or first in ' "' or last in ' "' or after not in ' .!?;)"':
                return False
        return self._words_between(start, inner, end)

    def _words_between(self, start: int, inner: list[int], end: int) -> bool:
        # `"a" "b"` within one string may as well be a list that lost its commas, and `""a""` quotes doubled by mistake.
        outside = [self.text[start : inner[0]], self.text[inner[-1] + 1 : end]]
        between = [self.text[left + 1 : right] for left, right in zip(inner[1:-1:2], inner[2::2], strict=True)]
        return all(map(_LETTER.search, between)) and any(map(_LETTER.search, outside + between))

    def _around(self, position: int) -> tuple[str, str]:
        return self.text[position - 1], self.text[position + 1]

    # -- between tokens

    def _space(self) -> bool:
        """Pass white space and comments. True when a line ended there."""
        start = self.at
        while True:
            self.at = self._after_spaces(strict_only=True)
            if match := _FOREIGN_SPACE.match(self.text, self.at):
                self._repaired(Repair.WHITESPACE)
                self.at = match.end()
            elif match := _LINE_COMMENT.match(self.text, self.at):
                self._comment(match.end())
            elif self.text.startswith("/*", self.at):
                end = self.text.find("*/", self.at + 2)
                if end < 0:
                    self._refuse(Reason.TRUNCATED)
                self._comment(end + 2)
            else:
                return "\n" in self.text[start : self.at]

    def _comment(self, end: int) -> None:
        if ELISION.search(self.text, self.at, end):
            self._refuse(Reason.ELIDED)
        self._repaired(Repair.COMMENT)
        self.at = end

    def _after_spaces(self, *, strict_only: bool = False) -> int:
        pattern = _SPACE if strict_only else _BLANKS
        match = pattern.match(self.text, self.at)
        return match.end() if match else self.at

    def _peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def _storable(self, text: str) -> str:
        # A pair of \u escapes is two lone surrogates up to here.
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass") if _SURROGATE.search(text) else text
        if not strict.is_storable(text):
            self._refuse(Reason.UNSTORABLE_TEXT)
        return text

    def _repaired(self, repair: Repair) -> None:
        self.repairs[repair] = None

    def _refuse_here(self) -> NoReturn:
        """Refuse for what stands at the current position."""
        rest = self._peek()
        if not rest:
            self._refuse(Reason.TRUNCATED)
        if self.text.startswith("...", self.at) or rest == "…":
            self._refuse(Reason.ELIDED)
        self._refuse(Reason.MISMATCHED_BRACKET if rest in "]}" else Reason.SYNTAX)

    def _refuse(self, reason: Reason) -> NoReturn:
        raise Unreadable(reason, self.at)


class _StringContent:
    __slots__ = ("escaped_letter", "kept_backslash", "parts")

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.kept_backslash = False
        # An escape like \n or \t with a letter behind it: what a command or a path would look like.
        self.escaped_letter = False


_LETTER = re.compile(r"\w")
_BLANKS = re.compile(r"[ \t\u00a0\u3000]*+")
_SURROGATE = re.compile("[\ud800-\udfff]")
