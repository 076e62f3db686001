"""Times as people say them, with the exact time on hover."""

import re
from datetime import datetime, timedelta

from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _

NOTHING = "–"


def duration(span: timedelta) -> str:
    """In at most two units: 340 ms, 2.3 s, 12 min, 2 h 5 min, 3 d 4 h."""
    seconds = max(span.total_seconds(), 0.0)
    if seconds < 1:
        return _("%(number)d ms") % {"number": round(seconds * 1000)}
    if seconds < 60:
        return _("%(number)s s") % {"number": f"{seconds:.1f}" if seconds < 10 else int(seconds)}
    minutes, hours, days = int(seconds // 60), int(seconds // 3600), int(seconds // 86_400)
    if minutes < 10:
        return _("%(minutes)d min %(seconds)d s") % {"minutes": minutes, "seconds": int(seconds % 60)}
    if hours < 1:
        return _("%(minutes)d min") % {"minutes": minutes}
    if days < 1:
        return _("%(hours)d h %(minutes)d min") % {"hours": hours, "minutes": minutes % 60}
    if days < 10:
        return _("%(days)d d %(hours)d h") % {"days": days, "hours": hours % 24}
    return _("%(days)d d") % {"days": days}


def breakable(name: str) -> SafeString:
    """A dotted or snake_case name that may break into lines after its dots and underscores."""
    return format_html_join(mark_safe("<wbr>"), "{}", ((part,) for part in re.findall(r"[^._]*[._]?", name) if part))


def exact(moment: datetime) -> str:
    """To the millisecond, in the time zone of the site, with its offset."""
    return timezone.localtime(moment).isoformat(sep=" ", timespec="milliseconds")


def when(moment: datetime | None) -> str | SafeString:
    """The time of day and date, with the exact one on hover."""
    if moment is None:
        return NOTHING
    local = timezone.localtime(moment)
    return format_html('<time datetime="{}" title="{}">{}</time>', moment.isoformat(), exact(moment), f"{local:%Y-%m-%d %H:%M:%S}")


def since(moment: datetime | None) -> str | SafeString:
    """How long ago."""
    return between(moment, None)


def between(start: datetime | None, end: datetime | None) -> str | SafeString:
    """How long it took, or has taken until now."""
    if start is None:
        return NOTHING
    said = duration((end or timezone.now()) - start)
    hover = exact(start) if end is None else f"{exact(start)} … {exact(end)}"
    return format_html('<time datetime="{}" title="{}">{}</time>', start.isoformat(), hover, said)
