"""A place in a text that is being repaired: white space, comments, refusals, and the repairs so far."""

import re
from enum import StrEnum
from typing import NoReturn

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

_SPACE = re.compile(rf"[{strict.WHITESPACE}]*+")
_FOREIGN_SPACE = re.compile(r"[\u00a0\u2000-\u200d\u202f\u205f\u2060\u3000\ufeff]++")
# A comment sign of one character needs a space behind it: `#fff` is a colour that lost its quotes.
_LINE_COMMENT = re.compile(r"(?://|#[ \t])[^\n]*+")
_BLANKS = re.compile(r"[ \t\u00a0\u3000]*+")


class Cursor:
    """What the readers of strings and of values share."""

    def __init__(self, text: str, start: int) -> None:
        self.text = text
        self.at = start
        self.repairs: dict[Repair, None] = {}  # a set that keeps its order

    def space(self) -> bool:
        """Pass white space and comments. True when a line ended there."""
        start = self.at
        while True:
            self.at = self.after_spaces(strict_only=True)
            if match := _FOREIGN_SPACE.match(self.text, self.at):
                self.repaired(Repair.WHITESPACE)
                self.at = match.end()
            elif match := _LINE_COMMENT.match(self.text, self.at):
                self._comment(match.end())
            elif self.text.startswith("/*", self.at):
                end = self.text.find("*/", self.at + 2)
                if end < 0:
                    self.refuse(Reason.TRUNCATED)
                self._comment(end + 2)
            else:
                return "\n" in self.text[start : self.at]

    def _comment(self, end: int) -> None:
        if ELISION.search(self.text, self.at, end):
            self.refuse(Reason.ELIDED)
        if self.text.count('"', self.at, end) % 2:
            # `# note",` is a string that lost its first quote, not a comment.
            self.refuse(Reason.AMBIGUOUS)
        self.repaired(Repair.COMMENT)
        self.at = end

    def after_spaces(self, *, strict_only: bool = False) -> int:
        pattern = _SPACE if strict_only else _BLANKS
        match = pattern.match(self.text, self.at)
        return match.end() if match else self.at

    def peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def repaired(self, repair: Repair) -> None:
        self.repairs[repair] = None

    def refuse_here(self) -> NoReturn:
        """Refuse for what stands at the current position."""
        rest = self.peek()
        if not rest:
            self.refuse(Reason.TRUNCATED)
        if self.text.startswith("...", self.at) or rest == "…":
            self.refuse(Reason.ELIDED)
        self.refuse(Reason.MISMATCHED_BRACKET if rest in "]}" else Reason.SYNTAX)

    def refuse(self, reason: Reason) -> NoReturn:
        raise Unreadable(reason, self.at)
