"""What the holder of a lease may see: the input, and the key for the model call."""

from runtime_protocol.dto.choices import KEY_MODES
from runtime_protocol.dto.examples import CREDENTIAL, HASH, HOLDER, JOB, NOW, SNAPSHOT
from runtime_protocol.dto.holder import HolderDto
from runtime_protocol.wire.fields import Choice, Id, Json, Moment, Number, Text, sometimes
from runtime_protocol.wire.forms import Dto

HASH_FORM = "[0-9a-f]{64}"


class RuntimeSnapshotResponseDto(Dto):
    example = {
        "jobId": JOB, "snapshotId": SNAPSHOT, "inputSchemaVersion": "1",
        "payload": {"paragraphs": [{"id": "p1", "text": "A river is long."}]}, "contentHash": HASH, "createdAt": NOW,
    }  # fmt: skip
    job_id = Id()
    snapshot_id = Id()
    input_schema_version = Text(most=50)
    payload = Json(help_text="The input: a JSON object of the definition's input schema.")
    content_hash = Text(most=64, pattern=HASH_FORM, help_text="Equal for equal inputs; also the ETag.")
    created_at = Moment()


class RuntimeResolveCredentialRequestDto(HolderDto):
    example = {"jobId": JOB, **HOLDER}
    job_id = Id()


class RuntimeResolveCredentialResponseDto(Dto):
    example = {
        "jobId": JOB, "credentialId": CREDENTIAL, "apiKeyMode": "platform", "modelProvider": "openai", "modelName": "gpt-5-mini",
        "baseUrl": "https://api.openai.com/v1", "apiKey": "the key in clear", "expiresInSeconds": 119.2,
    }  # fmt: skip
    job_id = Id()
    credential_id = Id()
    api_key_mode = Choice(choices=KEY_MODES)
    model_provider = Text(most=50)
    model_name = Text(most=200)
    base_url = sometimes(Text, most=500)
    api_key = Text(most=10_000, help_text="Keep it in memory only, for this call only.")
    expires_in_seconds = Number(help_text="Until the attempt's deadline: then drop the key.")
