//! The two closed sets of error codes: what the server answers, and what a runtime reports of an attempt.

wire_enum! {
    /// Why the server refused a call. What to do about each stands in PROTOCOL.md; [`crate::CallError`] knows it.
    RuntimeErrorCode {
        /// The request breaks a rule; `details.issues` name each place.
        ValidationFailed = "validation_failed",
        /// The body is no JSON as it is taken.
        MalformedJson = "malformed_json",
        /// The body's jobId is not the path's.
        JobIdMismatch = "job_id_mismatch",
        /// No bearer token was sent.
        TokenMissing = "token_missing",
        /// The token is not known, or its secret is wrong.
        TokenInvalid = "token_invalid",
        /// The token's time is over.
        TokenExpired = "token_expired",
        /// The token was taken back.
        TokenRevoked = "token_revoked",
        /// The token lacks the scope, or may not touch that job type.
        ScopeDenied = "scope_denied",
        /// The token does not speak for this instance.
        InstanceNotAllowed = "instance_not_allowed",
        /// There is no such job for this token.
        JobNotFound = "job_not_found",
        /// There is nothing at this path.
        NotFound = "not_found",
        /// The path does not take this method.
        MethodNotAllowed = "method_not_allowed",
        /// The answer cannot be given in that form.
        NotAcceptable = "not_acceptable",
        /// The body must be application/json, not compressed.
        UnsupportedMediaType = "unsupported_media_type",
        /// The job is leased by, or reserved for, somebody else.
        JobLockConflict = "job_lock_conflict",
        /// The job was taken over, or its lease has run out (see [`crate::Refusal::lease_expired`]).
        JobLockLost = "job_lock_lost",
        /// The job may not run now: not due, paused or at its limit.
        JobNotLockable = "job_not_lockable",
        /// The job was cancelled, or a cancel was requested.
        JobCancelled = "job_cancelled",
        /// The job has ended.
        JobAlreadyFinished = "job_already_finished",
        /// This attempt delivered another result, or the key is another's.
        ResultConflict = "result_conflict",
        /// The body or rawOutput is larger than `details.maxBytes`.
        PayloadTooLarge = "payload_too_large",
        /// outputHash is not that of rawOutput.
        OutputHashMismatch = "output_hash_mismatch",
        /// The output is empty. The attempt is over.
        InvalidModelOutput = "invalid_model_output",
        /// The output breaks its schema. The attempt is over.
        SchemaValidationFailed = "schema_validation_failed",
        /// The output breaks a rule. The attempt is over.
        BusinessValidationFailed = "business_validation_failed",
        /// The output refers to what is not there. The attempt is over.
        ReferenceValidationFailed = "reference_validation_failed",
        /// The key is missing, revoked or unreadable.
        CredentialUnavailable = "credential_unavailable",
        /// The protocol version is not spoken here.
        UpgradeRequired = "upgrade_required",
        /// Too many requests under this token.
        RateLimited = "rate_limited",
        /// Something went wrong in the server.
        InternalError = "internal_error",
        /// The server or its database cannot answer now.
        Unavailable = "unavailable",
    }
}

wire_enum! {
    /// Why an attempt failed, for `fail` and `usage[]`. The server stores a code that it does not know as `internal_error`.
    AttemptErrorCode {
        /// The provider did not answer in time.
        ProviderTimeout = "provider_timeout",
        /// The provider asked to slow down.
        ProviderRateLimited = "provider_rate_limited",
        /// The provider could not be reached or answered with an error.
        ProviderUnavailable = "provider_unavailable",
        /// The account at the provider has no quota left.
        ProviderQuotaExhausted = "provider_quota_exhausted",
        /// The provider refused the key.
        ProviderAuthFailed = "provider_auth_failed",
        /// The provider rejected the request.
        ProviderRejectedRequest = "provider_rejected_request",
        /// The input is too long for the model.
        ContextTooLong = "context_too_long",
        /// The provider's content filter stopped the request or the answer.
        ContentFiltered = "content_filtered",
        /// The answer was cut off before its end.
        OutputTruncated = "output_truncated",
        /// The answer is larger than allowed.
        OutputTooLarge = "output_too_large",
        /// The model gave no usable answer.
        InvalidModelOutput = "invalid_model_output",
        /// The answer does not have the required form.
        SchemaValidationFailed = "schema_validation_failed",
        /// The answer breaks a business rule.
        BusinessValidationFailed = "business_validation_failed",
        /// The answer refers to something that is not in the input.
        ReferenceValidationFailed = "reference_validation_failed",
        /// The job was cancelled.
        Cancelled = "cancelled",
        /// No worker knows this type of job.
        UnknownJobType = "unknown_job_type",
        /// The input has a version that is no longer supported.
        UnsupportedInputSchema = "unsupported_input_schema",
        /// The key is missing, revoked or unreadable.
        CredentialUnavailable = "credential_unavailable",
        /// The worker stopped responding.
        LeaseExpired = "lease_expired",
        /// Anything else.
        InternalError = "internal_error",
    }
}

impl AttemptErrorCode {
    /// Whether another attempt may succeed when the cause is that of the code (PROTOCOL.md, "Error codes of an attempt").
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(
            self,
            Self::ProviderTimeout | Self::ProviderRateLimited | Self::ProviderUnavailable | Self::InvalidModelOutput | Self::InternalError
        )
    }
}
