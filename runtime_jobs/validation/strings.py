"""Strings as models write them: other quotes, quotes inside, control characters, backslashes that stand for themselves."""

import re

from runtime_jobs.validation import strict
from runtime_jobs.validation.cursor import Cursor, Repair
from runtime_jobs.validation.strict import Reason, Unreadable

_ESCAPES = {'"': '"', "'": "'", "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
QUOTES = {'"': '"', "'": "'", "“": "”"}

_PLAIN = {
    '"': re.compile(r'[^"\\\x00-\x1f]++'),
    "'": re.compile(r"[^'\\\x00-\x1f]++"),
    # A straight quote or another opening one inside is a pair gone wrong.
    "“": re.compile(r'[^“”"\\\x00-\x1f]++'),
}
_FOUR_HEX = re.compile(r"[0-9a-fA-F]{4}")
_LINE_OF_QUOTES = re.compile(r'[^"\\\n]++|\\[^\n]|"')

# Backslash and letter as LaTeX, regular expressions and Windows paths have them, kept as written. Not those that Python or JavaScript
# would read as a character of its own (x41, U0001F600), nor the Markdown escapes (\_), of which nobody can tell what was meant.
_LITERAL_ESCAPE = re.compile(r"x(?![0-9a-fA-F]{2})|U(?![0-9a-fA-F]{8})|u(?![0-9a-fA-F])|N(?!\{)|[ac-eg-mo-qsvwyzA-MO-TV-Z()\[\]{},;!|]")
# A string with such an end has lost its last quote and taken that of the next string on the next line.
_SWALLOWED = re.compile(r"[,:\[{][ \t\r]*+\n\s*+\Z")
_LETTER = re.compile(r"\w")
_SURROGATE = re.compile("[\ud800-\udfff]")


class StringCursor(Cursor):
    """A cursor that reads strings."""

    def string(self, *, inner_quotes: bool) -> str:
        """`inner_quotes`: a double-quoted string whose end does not fit may hold unescaped quotes; see _quoted_line."""
        opened_at, quote = self.at, self.peek()
        content = _StringContent()
        self.at += 1
        while self.peek() != QUOTES[quote]:
            self._string_part(quote, content)
        self.at += 1
        if inner_quotes and quote == '"' and not self._string_may_end_here():
            return self._quoted_line(opened_at)
        if quote != '"':
            self.repaired(Repair.SINGLE_QUOTES if quote == "'" else Repair.TYPOGRAPHIC_QUOTES)
        text = "".join(content.parts)
        if content.kept_backslash and content.escaped_letter:
            # "\alpha + \beta": the second is also a legal escape. Nobody can tell a line break from a command here.
            self.refuse(Reason.MANGLED_BACKSLASH)
        if content.raw_line and _SWALLOWED.search(text):
            self.refuse(Reason.AMBIGUOUS)
        return self._storable(text)

    def _string_part(self, quote: str, content: "_StringContent") -> None:
        if plain := _PLAIN[quote].match(self.text, self.at):
            content.parts.append(plain[0])
            self.at = plain.end()
            return
        char = self.peek()
        if char == "\\":
            self._escape(quote, content)
        elif char and char < " ":
            self.repaired(Repair.CONTROL_CHARACTER)
            content.parts.append(char)
            content.raw_line = content.raw_line or char == "\n"
            self.at += 1
        else:
            self.refuse_here()

    def _escape(self, quote: str, content: "_StringContent") -> None:
        letter = self.text[self.at + 1 : self.at + 2]
        if letter == "u" and (code := _FOUR_HEX.match(self.text, self.at + 2)):
            content.parts.append(chr(int(code[0], 16)))
            self.at = code.end()
        elif letter in _ESCAPES and letter:
            content.parts.append(_ESCAPES[letter])
            self.at += 2
            if letter == "'" and quote == '"':
                self.repaired(Repair.ESCAPE)
            if letter.isalpha() and self.peek().isalpha():
                content.escaped_letter = True
        elif quote == '"' and _LITERAL_ESCAPE.match(self.text, self.at + 1):
            content.parts.append("\\" + letter)
            content.kept_backslash = True
            self.at += 2
            self.repaired(Repair.ESCAPE)
        elif not letter:
            self.refuse(Reason.TRUNCATED)
        else:
            self.refuse(Reason.MANGLED_BACKSLASH)

    def _string_may_end_here(self) -> bool:
        """Whether a comma, a closer, a comment or the end of the line follows: anything else belongs to the string, or is an error."""
        here = self.after_spaces()
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
            here = self.after_spaces()
            if self.text[here : here + 1] in (",", "]", "}"):
                break
            if self.text[here : here + 1] in (":", ""):
                self.refuse_here()
            inner.append(match.start())
            parts.append('\\"')
        else:
            self.refuse_here()
        if not self._quotes_pair_up(opened_at + 1, inner, self.at - 1):
            self.refuse(Reason.AMBIGUOUS)
        self.repaired(Repair.UNESCAPED_QUOTE)
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

    def _storable(self, text: str) -> str:
        # A pair of \u escapes is two lone surrogates up to here.
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass") if _SURROGATE.search(text) else text
        if not strict.is_storable(text):
            self.refuse(Reason.UNSTORABLE_TEXT)
        return text


class _StringContent:
    __slots__ = ("escaped_letter", "kept_backslash", "parts", "raw_line")

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.kept_backslash = False
        # An escape like \n or \t with a letter behind it: what a command or a path would look like.
        self.escaped_letter = False
        self.raw_line = False
