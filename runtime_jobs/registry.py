"""Job definitions: what a type of job is, and the registry that finds them in every installed app's `ai_jobs.py`."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, TypeVar
from uuid import UUID

from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import autodiscover_modules

from runtime_jobs.abort import AbortSignal
from runtime_jobs.errors import InvalidPayload, Issue, UnknownJobType
from runtime_jobs.model_call import BoundGateway, ModelAnswer, ModelRequest
from runtime_jobs.redaction import MASK, redact_json
from runtime_jobs.schemas import CompiledSchema
from runtime_jobs.states import Lane


@dataclass(frozen=True)
class JobInput:
    """The immutable input of a job, as every function of a definition gets it."""

    job_id: UUID
    user_id: int
    job_type: str
    target_type: str
    target_id: str
    input_schema_version: str
    output_schema_version: str
    payload: Mapping[str, Any]


@dataclass(frozen=True)
class Execution:
    """What an executor may use."""

    job: JobInput
    gateway: BoundGateway
    signal: AbortSignal


@dataclass(frozen=True)
class Limits:
    """How many jobs of the type may run at once; None is no limit. Live offers count as running."""

    running: int | None = None
    running_per_model: int | None = None


class JobDefinition:
    """A type of job. Subclass it in an app's `ai_jobs.py`, decorate it with `@register`, and override what differs.

    The class attributes are the contract; schemas are JSON Schema 2020-12 by version. The newest version (the last entry) is what new
    jobs get; older ones stay listed as long as jobs with them may still run.
    """

    job_type: ClassVar[str]
    lane: ClassVar[Lane]
    input_schemas: ClassVar[Mapping[str, Mapping[str, Any]]]
    output_schemas: ClassVar[Mapping[str, Mapping[str, Any]]]
    prompt_version: ClassVar[str] = "1"
    timeout_seconds: ClassVar[int] = 120
    max_retry_count: ClassVar[int] = 3
    limits: ClassVar[Limits] = Limits()
    # A lapsed attempt may have been billed. "retry" runs the job again, "fail" leaves that to a person.
    on_lapse: ClassVar[Literal["retry", "fail"]] = "retry"
    # Which model answers; None takes DEFAULT_MODEL_PROVIDER and DEFAULT_MODEL_NAME.
    model_provider: ClassVar[str | None] = None
    model_name: ClassVar[str | None] = None

    def payload_from_text(self, text: str) -> dict[str, Any]:
        """The payload for `manage.py create_job --file`. By default the text is the payload, as JSON. Raises InvalidPayload."""
        try:
            payload = json.loads(text)
        except ValueError as error:
            raise InvalidPayload(f"The file is not JSON ({error}); {self.job_type} takes its payload as JSON.") from None
        if not isinstance(payload, dict):
            raise InvalidPayload(f"The file holds no JSON object; {self.job_type} takes its payload as one.")
        return payload

    def build_request(self, job: JobInput) -> ModelRequest:
        """The request for the model. Needed unless `execute` is overridden."""
        raise ImproperlyConfigured(f"{type(self).__name__} must define build_request or execute.")

    def execute(self, execution: Execution) -> ModelAnswer:
        """Call the model: once, by default. Whatever else it does must stop when `execution.signal` is pulled."""
        return execution.gateway.complete(self.build_request(execution.job))

    def validate_business(self, output: Any, job: JobInput) -> Sequence[Issue]:
        """What is wrong with an output that has the right form; empty is fine."""
        return ()

    def validate_references(self, output: Any, job: JobInput) -> Sequence[Issue]:
        """Which references of the output point nowhere; empty is fine."""
        return ()

    def project(self, output: Any, job: JobInput) -> None:
        """Write the output into the business's own tables. Runs in the transaction that makes the job succeed: no network here."""

    def redact(self, payload: Any) -> Any:
        """The input or output as staff may see it without the permission to see sensitive text."""
        return redact_json(payload)

    @property
    def projects(self) -> bool:
        """Whether it writes anything of its own."""
        return type(self).project is not JobDefinition.project

    @property
    def input_schema_version(self) -> str:
        return list(self.input_schemas)[-1]

    @property
    def output_schema_version(self) -> str:
        return list(self.output_schemas)[-1]

    def compile_schemas(self) -> None:
        """Raises ValueError, naming the version, where a schema is broken."""
        self.compiled_input, self.compiled_output  # noqa: B018 - cached properties

    @cached_property
    def compiled_input(self) -> Mapping[str, CompiledSchema]:
        return {version: CompiledSchema(schema) for version, schema in self.input_schemas.items()}

    @cached_property
    def compiled_output(self) -> Mapping[str, CompiledSchema]:
        return {version: CompiledSchema(schema) for version, schema in self.output_schemas.items()}


_definitions: dict[str, JobDefinition] = {}

D = TypeVar("D", bound=type[JobDefinition])


def register(definition: D) -> D:
    """Class decorator: make the definition known. A broken schema or a job type that is taken stops the start, not a job."""
    made = definition()
    for name in ("job_type", "lane", "input_schemas", "output_schemas"):
        if not getattr(made, name, None):
            raise ImproperlyConfigured(f"{definition.__name__} must set {name}.")
    if made.job_type in _definitions and type(_definitions[made.job_type]) is not definition:
        raise ImproperlyConfigured(f"Job type {made.job_type} is registered twice: by {definition.__name__} and another.")
    try:
        made.compile_schemas()
    except ValueError as error:
        raise ImproperlyConfigured(f"{definition.__name__}: {error}") from None
    _definitions[made.job_type] = made
    return definition


def discover() -> None:
    """Import `ai_jobs.py` of every installed app. Called when the app is ready."""
    autodiscover_modules("ai_jobs")


def find(job_type: str) -> JobDefinition | None:
    return _definitions.get(job_type)


def get(job_type: str) -> JobDefinition:
    """Raises UnknownJobType, naming those that are known."""
    definition = find(job_type)
    if definition is None:
        raise UnknownJobType(f"Unknown job type {job_type!r}. Known: {', '.join(sorted(_definitions)) or 'none'}.")
    return definition


def job_types(lane: Lane | None = None) -> list[str]:
    return sorted(name for name, definition in _definitions.items() if lane is None or definition.lane == lane)


def visible(job_type: str, value: Any, *, clear: bool) -> Any:
    """An input or output as it is shown: `clear` to who may see sensitive text, else as its definition redacts it; members with a secret's
    name never."""
    if not clear:
        definition = find(job_type)
        try:
            value = definition.redact(value) if definition else MASK
        except Exception:  # foreign code, which may get what its schema refused
            value = MASK
    return redact_json(value)
