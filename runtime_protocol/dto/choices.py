"""The closed sets of the wire, as choices of a field; settings give them their names in the contract."""

from runtime_jobs.states import ApiKeyMode, JobStatus
from runtime_protocol.errors import CODES

JOB_STATUSES = [(str(status), str(status)) for status in JobStatus]
KEY_MODES = [(str(mode), str(mode)) for mode in ApiKeyMode]
RESULT_STATUSES = [("succeeded", "succeeded"), ("rejected", "rejected")]
DIRECTIVES = [("continue", "continue"), ("cancel", "cancel"), ("drain", "drain")]
POLL_DIRECTIVES = [("continue", "continue"), ("drain", "drain")]
BATCH_DIRECTIVES = [*DIRECTIVES, ("stop", "stop")]
ERROR_CODES = [(code, code) for code in CODES]
