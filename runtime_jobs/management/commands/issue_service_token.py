"""Make a token for a runtime, and show it once."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from runtime_jobs.errors import ServiceError
from runtime_jobs.services import service_tokens


class Command(BaseCommand):
    help = (
        "Make a service token for runtimes. The token alone goes to standard output, once; what it may do to standard error. "
        "To rotate: issue a second one, give it to the runtimes, then revoke the first."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", help="for people, such as the runtime group's")
        parser.add_argument("--days", type=int, default=90, help=f"until it expires, at most {service_tokens.MAX_DAYS}; default 90")
        parser.add_argument(
            "--scopes", default=",".join(service_tokens.SCOPES), help="comma-separated, of jobs, credentials, logs; default all three"
        )
        parser.add_argument("--job-types", default="", help="comma-separated; default: all of lane runtime")
        parser.add_argument("--instances", default=".*", help="regular expression for the runtimeInstanceIds it may speak for; default all")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            token, secret = service_tokens.issue(
                name=options["name"],
                days=options["days"],
                scopes=_words(options["scopes"]),
                job_types=_words(options["job_types"]),
                instance_pattern=options["instances"],
            )
        except ServiceError as error:
            raise CommandError(error.message, returncode=2) from None
        self.stderr.write(
            f"token {token.key_id} ({token.name}): scopes {', '.join(token.scopes)}; "
            f"job types {', '.join(token.job_types) or 'all'}; instances {token.instance_pattern}; "
            f"until {token.expires_at:%Y-%m-%d %H:%M} UTC"
        )
        self.stdout.write(secret.reveal())


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]
