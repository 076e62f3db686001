//! The types of [`crate::dto`] against `openapi.yaml`: every schema, every field, its type, and whether it is required.

use std::collections::{BTreeMap, BTreeSet};

use schemars::{schema_for, JsonSchema};
use serde_json::{json, Map, Value};

use crate::dto::*;

/// What a field is, as far as both sides can say it.
#[derive(Debug, PartialEq, Eq)]
struct Field {
    kind: String,
    required: bool,
}

type Fields = BTreeMap<String, Field>;

fn contract() -> Map<String, Value> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../openapi.yaml");
    let text = std::fs::read_to_string(path).expect("openapi.yaml lies beside the crate");
    let whole: Value = serde_norway::from_str(&text).expect("openapi.yaml is YAML");
    whole["components"]["schemas"].as_object().expect("schemas").clone()
}

/// The name that a schema has in the contract.
fn wire_name(name: &str) -> &str {
    match name {
        "RuntimeHealthStatus" => "RuntimeHealthResponseDtoStatusEnum",
        other => other,
    }
}

fn kind(schema: &Value, width: bool) -> String {
    if let Some(target) = reference(schema) {
        return match target.as_str() {
            "Timestamp" => "string date-time".to_owned(),
            "LockToken" | "Secret" => "string".to_owned(),
            "Structured" => "object or array".to_owned(),
            name => wire_name(name).to_owned(),
        };
    }
    let types = match schema.get("type") {
        Some(Value::String(one)) => vec![one.as_str()],
        Some(Value::Array(many)) => many.iter().filter_map(Value::as_str).filter(|one| *one != "null").collect(),
        _ => vec![],
    };
    match types.as_slice() {
        [] => "any".to_owned(),
        ["array"] => format!("array of {}", kind(&schema["items"], width)),
        ["object"] => format!("map of {}", kind(&schema["additionalProperties"], width)),
        ["string"] => match schema.get("format").and_then(Value::as_str) {
            Some(format) => format!("string {format}"),
            None => "string".to_owned(),
        },
        // A type that holds more than the contract's bound is wide enough.
        ["integer"] if width => format!("integer within {}", holds(schema)),
        [one] => (*one).to_owned(),
        many => many.join(" or "),
    }
}

/// How many bits an unsigned integer needs for all that may come.
fn holds(schema: &Value) -> u32 {
    if let Some(most) = schema.get("maximum").and_then(Value::as_f64) {
        return if most < 256.0 { 8 } else { 64 };
    }
    64
}

fn reference(schema: &Value) -> Option<String> {
    let end = |value: &Value| value.as_str()?.rsplit('/').next().map(str::to_owned);
    if let Some(target) = schema.get("$ref") {
        return end(target);
    }
    ["allOf", "anyOf", "oneOf"].iter().find_map(|key| schema.get(key)?.as_array()?.iter().find_map(|one| end(one.get("$ref")?)))
}

fn fields(schema: &Value) -> Fields {
    let required: BTreeSet<_> = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let properties = schema["properties"].as_object().expect("an object");
    properties
        .iter()
        .map(|(name, one)| (name.clone(), Field { kind: kind(one, true), required: required.contains(name.as_str()) }))
        .collect()
}

fn ours<T: JsonSchema>() -> (String, Value) {
    let schema = schema_for!(T).to_value();
    (wire_name(&T::schema_name()).to_owned(), schema)
}

macro_rules! all {
    ($($type:ty),+ $(,)?) => { BTreeMap::from([$(ours::<$type>()),+]) };
}

fn all_of_ours() -> BTreeMap<String, Value> {
    all![
        RuntimeApiKeyMode,
        RuntimeBatchHeartbeatDirective,
        RuntimeBatchHeartbeatJobDto,
        RuntimeBatchHeartbeatJobResponseDto,
        RuntimeBatchHeartbeatRequestDto,
        RuntimeBatchHeartbeatResponseDto,
        RuntimeErrorCode,
        RuntimeErrorDto,
        RuntimeHealthResponseDto,
        RuntimeHealthStatus,
        RuntimeHeartbeatDirective,
        RuntimeHeartbeatRequestDto,
        RuntimeHeartbeatResponseDto,
        RuntimeInvocationLogAckDto,
        RuntimeInvocationLogDto,
        RuntimeInvocationLogRejectionDto,
        RuntimeInvocationLogsRequestDto,
        RuntimeIssueDto,
        RuntimeJobOfferDto,
        RuntimeJobStatus,
        RuntimeLimitsDto,
        RuntimeLockJobRequestDto,
        RuntimeLockJobResponseDto,
        RuntimePollDirective,
        RuntimePollJobsRequestDto,
        RuntimePollJobsResponseDto,
        RuntimeReleaseJobRequestDto,
        RuntimeReleaseJobResponseDto,
        RuntimeResolveCredentialRequestDto,
        RuntimeResolveCredentialResponseDto,
        RuntimeResultStatus,
        RuntimeSnapshotResponseDto,
        RuntimeSubmitFailureRequestDto,
        RuntimeSubmitFailureResponseDto,
        RuntimeSubmitResultRequestDto,
        RuntimeSubmitResultResponseDto,
        RuntimeUsageDto,
    ]
}

/// Every difference, as a line.
fn differences(theirs: &Map<String, Value>, ours: &BTreeMap<String, Value>) -> Vec<String> {
    let mut found = vec![];
    for name in theirs.keys().filter(|name| !ours.contains_key(*name)) {
        found.push(format!("{name} is not in the crate"));
    }
    for (name, schema) in ours {
        let Some(contract) = theirs.get(name) else {
            found.push(format!("{name} is not in the contract"));
            continue;
        };
        if contract.get("enum") != schema.get("enum") {
            found.push(format!("{name}: {:?} is not {:?}", schema.get("enum"), contract.get("enum")));
        }
        if contract.get("properties").is_none() {
            continue;
        }
        let (contract, schema) = (fields(contract), fields(schema));
        for (field, is) in &schema {
            match contract.get(field) {
                None => found.push(format!("{name}.{field} is not in the contract")),
                Some(should) if should != is => found.push(format!("{name}.{field} is {is:?}, not {should:?}")),
                Some(_) => {}
            }
        }
        found.extend(contract.keys().filter(|field| !schema.contains_key(*field)).map(|field| format!("{name}.{field} is missing")));
    }
    found
}

#[test]
fn the_types_are_those_of_the_contract() {
    let found = differences(&contract(), &all_of_ours());
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[test]
fn a_missing_an_extra_and_a_changed_field_are_all_noticed() {
    let ours = all_of_ours();
    let mut theirs = contract();
    let lock = theirs["RuntimeLockJobResponseDto"].as_object_mut().expect("an object");
    let properties = lock["properties"].as_object_mut().expect("an object");
    properties.insert("added".to_owned(), json!({"type": "string"}));
    properties.remove("lockedBy");
    properties["leaseSeconds"] = json!({"type": "integer"});
    properties["snapshotId"] = json!({"type": "string"});
    properties.insert("priority".to_owned(), json!({"type": "integer", "maximum": 9}));
    lock["required"].as_array_mut().expect("an array").retain(|name| name != "serverTime");
    theirs.insert("RuntimeNewDto".to_owned(), json!({"type": "object", "properties": {}}));
    theirs.remove("RuntimeLimitsDto");
    theirs["RuntimeJobStatus"]["enum"].as_array_mut().expect("an array").push(json!("paused"));
    let found = differences(&theirs, &ours).join("\n");
    for part in [
        "RuntimeLockJobResponseDto.added is missing",
        "RuntimeLockJobResponseDto.lockedBy is not in the contract",
        "RuntimeLockJobResponseDto.leaseSeconds is",
        "RuntimeLockJobResponseDto.snapshotId is",
        "RuntimeLockJobResponseDto.serverTime is",
        "RuntimeLockJobResponseDto.priority is missing",
        "RuntimeNewDto is not in the crate",
        "RuntimeLimitsDto is not in the contract",
        "RuntimeJobStatus:",
    ] {
        assert!(found.contains(part), "{part} is not in\n{found}");
    }
    assert_eq!(found.lines().count(), 9, "{found}");
}

#[test]
fn the_codes_of_an_attempt_are_those_of_the_document() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../PROTOCOL.md");
    let document = std::fs::read_to_string(path).expect("PROTOCOL.md lies beside the crate");
    let (_, table) = document.split_once("<!-- table: attempt codes -->").expect("the table of attempt codes");
    let rows: BTreeMap<&str, bool> = table
        .split("<!-- end -->")
        .next()
        .into_iter()
        .flat_map(str::lines)
        .filter_map(|line| {
            let mut cells = line.trim_matches('|').split('|').map(str::trim);
            Some((cells.next()?.strip_prefix('`')?.strip_suffix('`')?, cells.next()? == "yes"))
        })
        .collect();
    let ours: BTreeMap<&str, bool> = AttemptErrorCode::KNOWN.iter().map(|code| (code.as_str(), code.is_retryable())).collect();
    assert_eq!(rows, ours);
}

#[test]
fn what_a_newer_server_adds_breaks_nothing() {
    let error: RuntimeErrorDto = serde_json::from_value(json!({
        "errorCode": "brand_new", "message": "?", "retryable": true, "requestId": "r", "since": "1.1"
    }))
    .expect("it is read");
    assert_eq!(error.error_code, RuntimeErrorCode::Unknown("brand_new".to_owned()));
    assert_eq!(error.error_code.to_string(), "brand_new");
}

#[test]
fn the_examples_of_the_contract_are_read_and_said_again() {
    fn check<T: serde::de::DeserializeOwned + serde::Serialize>(example: &Value) -> Value {
        serde_json::to_value(serde_json::from_value::<T>(example.clone()).expect("it is read")).expect("it is written")
    }
    let contract = contract();
    let example = |name: &str| contract[name]["examples"][0].clone();
    let result = example("RuntimeSubmitResultRequestDto");
    assert_eq!(check::<RuntimeSubmitResultRequestDto>(&result), result);
    let log = example("RuntimeInvocationLogDto");
    assert_eq!(check::<RuntimeInvocationLogDto>(&log), log);
    let heartbeat = example("RuntimeBatchHeartbeatRequestDto");
    assert_eq!(check::<RuntimeBatchHeartbeatRequestDto>(&heartbeat), heartbeat);
}
