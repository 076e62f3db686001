"""Take a runtime's token back."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from runtime_jobs.errors import ServiceError
from runtime_jobs.services import service_tokens


class Command(BaseCommand):
    help = "Revoke a service token: from the next request on its runtimes are refused. Jobs that they hold lapse and go on elsewhere."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("key_id", help="the part between the underscores of rt_<keyId>_<secret>")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            revoked = service_tokens.revoke(options["key_id"])
        except ServiceError as error:
            raise CommandError(error.message, returncode=2) from None
        self.stdout.write("revoked" if revoked else "it was revoked already")
