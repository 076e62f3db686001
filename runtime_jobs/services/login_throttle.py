"""Guessing passwords is slow: so many tries per name and address, per name and per address, in all web processes together.

A try is counted, and committed, before the password is looked at, and a success takes it back. So a burst of parallel requests gets no
more tries than a patient guesser; whoever counts afterwards (as django-axes 8 does) lets the whole burst through.
"""

from collections.abc import Sequence

from django.db import connection
from django.utils.crypto import salted_hmac

WINDOW_SECONDS = 15 * 60
PER_NAME_AND_ADDRESS = 5
# One name from many addresses, and one address with many names (an office, or a guesser).
PER_NAME = 50
PER_ADDRESS = 100

# In the order of the keys, so that two log-ins do not wait for each other in a circle. A window ends when it was to end: whoever keeps
# on trying does not lock a person out for ever.
_COUNT = """
    INSERT INTO login_tries AS t (key, tries, until)
    SELECT key, 1, statement_timestamp() + make_interval(secs => %s) FROM unnest(%s::text[]) AS k(key) ORDER BY key
    ON CONFLICT (key) DO UPDATE SET
        tries = CASE WHEN t.until <= statement_timestamp() THEN 1 ELSE t.tries + 1 END,
        until = CASE WHEN t.until <= statement_timestamp() THEN excluded.until ELSE t.until END
    RETURNING key, tries, ceil(extract(epoch FROM until - statement_timestamp()))::int
"""
_TAKE_BACK = """
    UPDATE login_tries t SET tries = t.tries - 1
    FROM (SELECT key FROM login_tries WHERE key = ANY(%s) AND tries > 0 ORDER BY key FOR UPDATE) AS mine WHERE t.key = mine.key
"""
_FORGET = """
    DELETE FROM login_tries WHERE key IN
        (SELECT key FROM login_tries WHERE until < statement_timestamp() ORDER BY key LIMIT 100 FOR UPDATE SKIP LOCKED)
"""


def begin(name: str, address: str) -> int:
    """Count a try. Returns 0 when it may go on, else how many seconds there are to wait."""
    by_both, by_name, by_address = _keys(name, address)
    with connection.cursor() as cursor:
        cursor.execute(_FORGET)
    # First what is narrowest: who is refused there does not use up the tries that the name has from everywhere.
    return _count({by_both: PER_NAME_AND_ADDRESS}) or _count({by_name: PER_NAME, by_address: PER_ADDRESS})


def succeeded(name: str, address: str) -> None:
    """The try that was begun has found the right password: it was none, and neither were the person's own mistakes before it."""
    by_both, *others = _keys(name, address)
    with connection.cursor() as cursor:
        cursor.execute(_TAKE_BACK, [others])
        cursor.execute("DELETE FROM login_tries WHERE key = %s", [by_both])


def _count(limits: dict[str, int]) -> int:
    with connection.cursor() as cursor:
        cursor.execute(_COUNT, [WINDOW_SECONDS, sorted(limits)])
        counted: Sequence[tuple[str, int, int]] = cursor.fetchall()
    return max((max(seconds, 1) for key, tries, seconds in counted if tries > limits[key]), default=0)


def _keys(name: str, address: str) -> tuple[str, str, str]:
    folded = name.strip().casefold()
    return _key("both", f"{folded}\0{address}"), _key("name", folded), _key("address", address)


def _key(kind: str, text: str) -> str:
    return salted_hmac(f"login-throttle.{kind}", text, algorithm="sha256").hexdigest()
