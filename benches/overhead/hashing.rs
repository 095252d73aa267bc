//! Fingerprints of arguments of some sizes, and the decision about a record.

use std::{sync::Arc, time::Duration};

use async_graphql_idempotency::{
    ClientId, IdempotencyKey, OnCrash, Record, State,
    claim::ClaimRequest,
    fingerprint::{Canonical, Fingerprint},
    record::Timestamp,
};
use uuid::Uuid;

/// One string of so many bytes.
pub(crate) fn one_string(bytes: usize) -> String {
    "The quick brown fox jumps over the lazy dog. ".chars().cycle().take(bytes).collect()
}

/// The fingerprint of arguments that are one string.
pub(crate) fn of_string(text: &str) -> Fingerprint {
    let mut canonical = Canonical::new();
    canonical.object(|canonical| {
        canonical.member("text");
        canonical.string(text);
    });
    canonical.fingerprint()
}

/// The fields of a nested object of many small ones, in order: as many as make up so many bytes.
pub(crate) fn many_fields(bytes: usize) -> Vec<(String, String)> {
    // With its quotes, colon and comma a member takes 24.
    (0..bytes.div_ceil(24)).map(|at| (format!("field{at:05}"), format!("{at:08}"))).collect()
}

/// Writes the canonical form of a nested object.
pub(crate) fn write_fields(canonical: &mut Canonical, fields: &[(String, String)]) {
    canonical.object(|canonical| {
        for chunk in fields.chunks(16) {
            canonical.member(&chunk[0].0);
            canonical.object(|canonical| {
                for (name, value) in chunk {
                    canonical.member(name);
                    canonical.string(value);
                }
            });
        }
    });
}

/// The fingerprint of arguments that are a nested object.
pub(crate) fn of_fields(fields: &[(String, String)]) -> Fingerprint {
    let mut canonical = Canonical::new();
    write_fields(&mut canonical, fields);
    canonical.fingerprint()
}

/// A finished record and the request for its replay.
pub(crate) fn finished() -> (Record, ClaimRequest) {
    let request = ClaimRequest {
        client: ClientId::new("client").unwrap(),
        key: IdempotencyKey::new("key").unwrap(),
        mutation: Arc::from("pay"),
        fingerprint: Fingerprint { version: Fingerprint::VERSION, hash: [1; 32] },
        selection: Arc::from("id"),
        request_id: Uuid::nil(),
        lease: Duration::from_secs(30),
        retention: Duration::from_hours(24),
        on_crash: OnCrash::Hold,
        request: None,
        resumes: false,
    };
    let record = Record {
        client: request.client.clone(),
        key: request.key.clone(),
        mutation: "pay".into(),
        fingerprint: request.fingerprint,
        selection: "id".into(),
        state: State::Succeeded,
        request_id: Uuid::nil(),
        attempt: 1,
        due_at: Timestamp(1_000),
        response: Some(b"{}".to_vec()),
        request: None,
        reason: None,
        recoveries: 0,
        created_at: Timestamp(0),
        ended_at: None,
    };
    (record, request)
}
