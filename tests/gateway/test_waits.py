import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from runtime_jobs.gateway.waits import MAX_WAIT_SECONDS, duration, wait_seconds


def retry_info(delay):
    return [{"error": {"details": [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay}]}}]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("6m0s", 360), ("120ms", 0.12), ("14s", 14), ("1h2m3.5s", 3723.5), ("7.66s", 7.66), ("", None), ("s", None), ("6", None),
     ("1.2.3s", None), ("-5s", None), ("5 s", None)],
)  # fmt: skip
def test_durations_are_read_as_openai_and_google_write_them(text, seconds):
    assert duration(text) == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize(
    ("headers", "document", "seconds"),
    [
        ({"retry-after-ms": "1500", "retry-after": "9"}, retry_info("14s"), 1.5),
        ({"retry-after": "2.5"}, retry_info("14s"), 2.5),
        ({"retry-after": "0"}, None, 0),
        ({}, retry_info("14s"), 14),
        ({"retry-after": "soon", "x-ratelimit-reset-requests": "2s"}, None, 2),
        ({"retry-after": "nan"}, None, None),
        ({"retry-after": "1e999"}, None, None),
        ({"retry-after": "-5"}, None, None),
        ({"retry-after": "99999999"}, None, MAX_WAIT_SECONDS),
        ({"retry-after-ms": "3437553550000"}, None, MAX_WAIT_SECONDS),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:00 GMT"}, None, 0),
        ({"retry-after": "Fri, 01 Jan 99999 00:00:00 GMT"}, None, None),
        # Which limit was hit: the one with nothing left. If nobody says, the later one.
        (
            {"x-ratelimit-reset-requests": "6m0s", "x-ratelimit-remaining-requests": "10", "x-ratelimit-reset-tokens": "3s",
             "x-ratelimit-remaining-tokens": "0"}, None, 3,
        ),
        ({"x-ratelimit-reset-requests": "1s", "x-ratelimit-reset-tokens": "3s"}, None, 3),
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-limit-requests": "60"}, None, None),
        ({"x-ratelimit-reset": "30"}, None, 30),
    ],
)  # fmt: skip
def test_the_wait_is_read_from_the_first_place_that_names_one(headers, document, seconds):
    wait = wait_seconds(429, headers, document)
    assert wait == (None if seconds is None else pytest.approx(seconds))


def test_an_http_date_is_counted_from_now():
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=40), usegmt=True)
    wait = wait_seconds(503, {"retry-after": soon}, None)
    assert wait is not None
    assert 37 < wait <= 40


def test_the_reset_of_openrouter_is_an_epoch_in_milliseconds():
    wait = wait_seconds(429, {"x-ratelimit-reset": str(int((time.time() + 60) * 1000))}, None)
    assert wait is not None
    assert 58 < wait <= 60


def test_the_resets_of_anthropic_are_moments():
    later = (datetime.now(UTC) + timedelta(seconds=50)).strftime("%Y-%m-%dT%H:%M:%SZ")
    wait = wait_seconds(429, {"anthropic-ratelimit-input-tokens-reset": later, "anthropic-ratelimit-input-tokens-remaining": "0"}, None)
    assert wait is not None
    assert 47 < wait <= 50


def test_reset_headers_mean_nothing_where_no_rate_limit_was_hit():
    assert wait_seconds(503, {"x-ratelimit-reset-requests": "6m0s"}, None) is None
