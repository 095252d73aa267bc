//! The pure heart: who gets a key, and what everybody else is told.

use std::{sync::Arc, time::Duration};

use uuid::Uuid;

use crate::{
    error::{Error, ErrorCode},
    fingerprint::Fingerprint,
    key::{ClientId, IdempotencyKey},
    policy::OnCrash,
    record::{Owner, Record, Timestamp},
    state::State,
};

/// A request to take a key.
#[derive(Clone, Debug)]
pub struct ClaimRequest {
    /// Who asks.
    pub client: ClientId,
    /// The key.
    pub key: IdempotencyKey,
    /// The mutation's field name, with the names of its namespaces.
    pub mutation: Arc<str>,
    /// What is asked, without the key.
    pub fingerprint: Fingerprint,
    /// The canonical form of what is to be returned.
    pub selection: Arc<str>,
    /// The request id of a record made by this claim.
    pub request_id: Uuid,
    /// How long the claim holds without being renewed.
    pub lease: Duration,
    /// What to do with a key whose owner is gone.
    pub on_crash: OnCrash,
    /// The request to keep for a resumption without the client.
    pub request: Option<Vec<u8>>,
    /// Whether this is such a resumption: it takes a record over, and never makes one.
    pub resumes: bool,
}

impl ClaimRequest {
    /// The owner that an attempt at this key is.
    #[must_use]
    pub fn owner(&self, request_id: Uuid, attempt: i32) -> Owner {
        Owner { client: self.client.clone(), key: self.key.clone(), request_id, attempt }
    }
}

/// What a key's record means for a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nobody has the key: take it.
    Take,
    /// The key's last attempt is over and may be followed by another: take it as the next attempt.
    TakeOver,
    /// The same request, finished: give its stored response.
    Replay,
    /// The same request is running; its lease ends after this time unless it is renewed.
    InProgress(Duration),
    /// Anything else: say this.
    Refuse(Error),
}

/// The one decision function: what `record` means for `request` at `now`, by the store's clock.
///
/// The fingerprint is compared before the state is looked at, so that a reused key is told apart at once,
/// in flight or not.
#[must_use]
pub fn decide(record: Option<&Record>, request: &ClaimRequest, now: Timestamp) -> Verdict {
    let Some(record) = record else {
        return Verdict::Take;
    };
    let refuse = |code| Verdict::Refuse(Error::new(code).record(record));
    if record.fingerprint.version != request.fingerprint.version {
        return Verdict::Refuse(Error::new(ErrorCode::RecordCorrupt).record(record).message(
            "This key was claimed under rules that this server does not know. The request was not executed.",
        ));
    }
    if record.fingerprint != request.fingerprint {
        return refuse(ErrorCode::KeyReused);
    }
    let due = record.due_at <= now;
    match (record.state, due) {
        (State::Succeeded | State::Failed | State::Released, true) | (State::Tombstone, _) => {
            refuse(ErrorCode::KeyExpired)
        }
        (State::Succeeded | State::Failed, false) if record.response.is_none() => refuse(ErrorCode::ResponseNotStored),
        (State::Succeeded | State::Failed, false) => Verdict::Replay,
        (State::Released, false) => Verdict::TakeOver,
        (State::InProgress, false) => Verdict::InProgress(now.until(record.due_at)),
        (State::InProgress, true) | (State::NeedsRecovery, _) => match request.on_crash {
            OnCrash::Hold => refuse(ErrorCode::OutcomeUnknown),
            OnCrash::Resume | OnCrash::Release => Verdict::TakeOver,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp(1_000_000);

    fn request() -> ClaimRequest {
        ClaimRequest {
            client: ClientId::new("c").unwrap(),
            key: IdempotencyKey::new("k").unwrap(),
            mutation: "m".into(),
            fingerprint: Fingerprint { version: Fingerprint::VERSION, hash: [1; 32] },
            selection: "id".into(),
            request_id: Uuid::nil(),
            lease: Duration::from_secs(30),
            on_crash: OnCrash::Hold,
            request: None,
            resumes: false,
        }
    }

    fn record(state: State, due_in: i64) -> Record {
        let request = request();
        Record {
            client: request.client,
            key: request.key,
            mutation: "m".into(),
            fingerprint: request.fingerprint,
            selection: "id".into(),
            state,
            request_id: Uuid::nil(),
            attempt: 1,
            due_at: Timestamp(NOW.0 + due_in),
            response: Some(b"{}".to_vec()),
            request: None,
            reason: None,
            recoveries: 0,
            created_at: NOW,
            updated_at: NOW,
        }
    }

    fn code(verdict: Verdict) -> Option<ErrorCode> {
        match verdict {
            Verdict::Refuse(error) => Some(error.code),
            _ => None,
        }
    }

    #[test]
    fn a_free_key_is_taken() {
        assert_eq!(decide(None, &request(), NOW), Verdict::Take);
    }

    #[test]
    fn another_payload_is_reuse_in_every_state() {
        let mut other = request();
        other.fingerprint.hash = [2; 32];
        for state in State::ALL {
            for due_in in [-1, 1] {
                let verdict = decide(Some(&record(state, due_in)), &other, NOW);
                assert_eq!(code(verdict), Some(ErrorCode::KeyReused), "{state}");
            }
        }
    }

    #[test]
    fn an_unknown_fingerprint_version_is_neither_a_match_nor_reuse() {
        let mut newer = record(State::Succeeded, 1);
        newer.fingerprint.version += 1;
        assert_eq!(code(decide(Some(&newer), &request(), NOW)), Some(ErrorCode::RecordCorrupt));
    }

    #[test]
    fn expiry_is_exact_and_never_frees_the_key() {
        assert_eq!(decide(Some(&record(State::Succeeded, 1)), &request(), NOW), Verdict::Replay);
        for state in [State::Succeeded, State::Failed, State::Released, State::Tombstone] {
            assert_eq!(code(decide(Some(&record(state, 0)), &request(), NOW)), Some(ErrorCode::KeyExpired));
        }
    }

    #[test]
    fn a_lapsed_or_unknown_attempt_is_followed_only_where_the_policy_says_so() {
        for (state, due_in) in [(State::InProgress, 0), (State::NeedsRecovery, -1), (State::NeedsRecovery, 1)] {
            let record = record(state, due_in);
            let mut request = request();
            assert_eq!(code(decide(Some(&record), &request, NOW)), Some(ErrorCode::OutcomeUnknown));
            for on_crash in [OnCrash::Resume, OnCrash::Release] {
                request.on_crash = on_crash;
                assert_eq!(decide(Some(&record), &request, NOW), Verdict::TakeOver);
            }
        }
    }

    #[test]
    fn a_live_attempt_is_in_progress_for_the_rest_of_its_lease() {
        let verdict = decide(Some(&record(State::InProgress, 1_500)), &request(), NOW);
        assert_eq!(verdict, Verdict::InProgress(Duration::from_millis(1_500)));
    }

    #[test]
    fn a_finished_record_without_its_response_says_so() {
        let mut record = record(State::Succeeded, 1);
        record.response = None;
        assert_eq!(code(decide(Some(&record), &request(), NOW)), Some(ErrorCode::ResponseNotStored));
    }
}
