"""Facts and a summary from numbered paragraphs, picked by plain counting: the answer depends on the input and on nothing else."""

import math
import re
from collections import Counter
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from tests.support.provider_simulator.behaviours import between_directives

MAX_FACTS = 10
MAX_FACTS_PER_PARAGRAPH = 2
MAX_FACT_CHARACTERS = 500
MAX_SUMMARY_CHARACTERS = 600
# A heading or a "Yes." says little; such sentences are taken only when there are no others.
MIN_FACT_CHARACTERS = 20

_MARKER = re.compile(r"^\[(p\d+)\](?:[ \t]+|$)", re.MULTILINE)
_BLANK_LINE = re.compile(r"\n[ \t\r]*\n")
# A run of characters without white space, or up to a full stop of East Asian writing, which no space follows.
_TOKEN = re.compile(r"[^\s。！？]*[。！？]+|\S+")
_CLOSERS = "\"'”’»)]"
_ABBREVIATIONS = "dr. mr. mrs. ms. prof. st. no. nr. vs. etc. approx. e.g. i.e. z.b. d.h. bzw. ca. inc. ltd. co. fig."
_WORD = re.compile(r"\w{3,}")
_STOP_WORDS = (
    "the and for that with this from are was were has have had not but its their they which will would can been into than then "
    "there these those when where who whom what also only more most such each all any our your his her she him one two may must "
    "der die das und den dem des ein eine einer einem einen ist sind war mit von für auf als auch nicht sich aus bei nach wird"
)
_IGNORED = frozenset(_STOP_WORDS.split())
_NO_SENTENCE_END = frozenset(_ABBREVIATIONS.split())


@dataclass(frozen=True)
class Sentence:
    text: str
    paragraph: str


def paragraphs(text: str) -> list[tuple[str, str]]:
    """The numbered paragraphs as (number, text): from a line that starts with `[p1] ` to a blank line or the next marker."""
    markers = list(_MARKER.finditer(text))
    found = []
    for marker, following in zip_longest(markers, markers[1:]):
        body = text[marker.end() : following.start() if following else len(text)]
        blank = _BLANK_LINE.search(body)
        found.append((marker[1], body[: blank.start()] if blank else body))
    return found


def sentences(text: str) -> list[str]:
    """The sentences as they stand in the text. Linear in its length, whatever it holds."""
    found = []
    for piece in between_directives(text):
        start: int | None = None
        end = 0
        for token in _TOKEN.finditer(piece):
            start = token.start() if start is None else start
            end = token.end()
            if _ends_sentence(token.group()):
                found.append(piece[start:end])
                start = None
        if start is not None:
            found.append(piece[start:end])
    return found


def _ends_sentence(token: str) -> bool:
    bare = token.rstrip(_CLOSERS)
    if not bare.endswith((".", "!", "?", "…", "。", "！", "？")):
        return False
    initial = len(bare) == 2 and bare[0].isupper() and bare[1] == "."
    return not initial and bare.lower().lstrip("(\"'“„«[") not in _NO_SENTENCE_END


def extract(text: str) -> dict[str, Any] | None:
    """The document that `synthetic.extract_facts` asks for; None when the text has no numbered paragraphs."""
    numbered = paragraphs(text)
    if not numbered:
        return None
    every = [Sentence(sentence, number) for number, body in numbered for sentence in sentences(body)]
    scores = _scores(every)
    chosen = _choose(every, scores)
    best = sorted(chosen, key=lambda index: (-scores[index], index))[:2]
    summary = " ".join(" ".join(every[index].text for index in sorted(best)).split())
    if len(summary) > MAX_SUMMARY_CHARACTERS:
        summary = " ".join(every[best[0]].text.split())
    facts = [{"text": _cut(every[index].text), "paragraph": every[index].paragraph} for index in chosen]
    return {"summary": _cut(summary, MAX_SUMMARY_CHARACTERS), "facts": facts}


def _scores(every: list[Sentence]) -> list[float]:
    """How much each sentence speaks of what the whole text speaks of; a figure in it counts a little extra."""
    words = [[word for word in _WORD.findall(sentence.text.lower()) if word not in _IGNORED] for sentence in every]
    frequency = Counter(word for found in words for word in set(found))
    scores = []
    for sentence, found in zip(every, words, strict=True):
        score = sum(math.log(1 + frequency[word]) for word in set(found)) / (6 + len(found))
        if any(character.isdigit() for character in sentence.text):
            score *= 1.15
        if not 40 <= len(sentence.text) <= 300:
            score *= 0.6
        scores.append(score)
    return scores


def _choose(every: list[Sentence], scores: list[float]) -> list[int]:
    """Indexes of the sentences to give as facts, in document order."""
    usable = [index for index, sentence in enumerate(every) if any(map(str.isalnum, sentence.text))]
    sized = [index for index in usable if MIN_FACT_CHARACTERS <= len(every[index].text) <= MAX_FACT_CHARACTERS]
    fallback = [index for index in usable if len(every[index].text) <= MAX_FACT_CHARACTERS]
    taken: list[int] = []
    per_paragraph: Counter[str] = Counter()
    seen: set[str] = set()
    for index in sorted(sized or fallback or usable, key=lambda index: (-scores[index], index)):
        sentence = every[index]
        if len(taken) == MAX_FACTS:
            break
        if per_paragraph[sentence.paragraph] == MAX_FACTS_PER_PARAGRAPH or sentence.text in seen:
            continue
        per_paragraph[sentence.paragraph] += 1
        seen.add(sentence.text)
        taken.append(index)
    return sorted(taken)


def _cut(text: str, limit: int = MAX_FACT_CHARACTERS) -> str:
    """At most `limit` characters, ending with a whole word where there is one: still verbatim."""
    if len(text) <= limit:
        return text
    head = text[: limit + 1]
    end = max(head.rfind(" "), head.rfind("\n"))
    return head[: end if end > 0 else limit].rstrip()
