//! The first heart: who gets a key, and what everybody else gets instead. Pure.

use std::{sync::Arc, time::Duration};

use uuid::Uuid;

use crate::{
    error::{Error, ErrorCode},
    fingerprint::Fingerprint,
    key::{ClientId, IdempotencyKey},
    policy::{Effects, OnCrash, Policy},
    record::{Owner, Record, RecoveryPoint, Timestamp},
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
    /// How long the response is replayed, once there is one.
    pub retention: Duration,
    /// What to do with a key whose owner is gone.
    pub on_crash: OnCrash,
    /// The request to keep for a resumption without the client.
    pub request: Option<Vec<u8>>,
    /// Whether this is such a resumption, which takes over a record and never makes one.
    pub resumes: bool,
}

impl ClaimRequest {
    /// The first attempt as the owner of the key.
    #[must_use]
    pub fn first_owner(&self) -> Owner {
        Owner { client: self.client.clone(), key: self.key.clone(), request_id: self.request_id, attempt: 1 }
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
    /// Anything else: this error is the answer.
    Refuse(Error),
}

/// The one decision function: what `record` means for `request` at `now`, by the store's clock.
///
/// The fingerprint is compared before the state is looked at, so that a reused key is recognised at once,
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
    match record.state {
        State::Tombstone(_) => Verdict::Refuse(Error::expired(record)),
        State::Succeeded | State::Failed | State::Released if due => Verdict::Refuse(Error::expired(record)),
        // The retention of a settling record begins when its lease lapses.
        State::Settling(_) if record.due_at.after(request.retention) <= now => Verdict::Refuse(Error::expired(record)),
        // At most one lease: `now` may be the time of a statement that began before the lease was written.
        State::InProgress | State::Settling(_) if !due => {
            Verdict::InProgress(now.until(record.due_at).min(request.lease))
        }
        State::Succeeded | State::Failed | State::Settling(_) => match record.response {
            Some(_) => Verdict::Replay,
            None => refuse(ErrorCode::ResponseNotStored),
        },
        State::Released => Verdict::TakeOver,
        State::InProgress | State::NeedsRecovery => match request.on_crash {
            OnCrash::Hold => Verdict::Refuse(Error::held(record, now)),
            OnCrash::Resume | OnCrash::Release => Verdict::TakeOver,
        },
    }
}

/// Whether an attempt may go on after the steps that earlier attempts stored.
///
/// # Errors
/// Why not, in words for an operator. Going on could repeat what those steps did.
pub fn may_follow(policy: &Policy, steps: &[RecoveryPoint]) -> Result<(), String> {
    let is_foreign = |step: &&RecoveryPoint| match (policy.effects, &policy.steps) {
        (Effects::Transactional, _) => true,
        (Effects::Leased, named) => named.as_ref().is_some_and(|named| !named.contains(&step.name)),
    };
    match steps.iter().find(is_foreign) {
        None => Ok(()),
        Some(step) => Err(format!(
            "an earlier attempt left the step {}, which the policy does not know: a transactional one has no steps, and \
             Policy::steps names all of a leased one",
            step.name
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        record::StepKind,
        state::{Ended, Outcome},
    };

    const NOW: Timestamp = Timestamp(1_000_000);
    const RETENTION: i64 = 60_000;

    fn request() -> ClaimRequest {
        ClaimRequest {
            client: ClientId::new("c").unwrap(),
            key: IdempotencyKey::new("k").unwrap(),
            mutation: "m".into(),
            fingerprint: Fingerprint { version: Fingerprint::VERSION, hash: [1; 32] },
            selection: "id".into(),
            request_id: Uuid::nil(),
            lease: Duration::from_secs(30),
            retention: Duration::from_mins(1),
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
            ended_at: None,
        }
    }

    fn code(verdict: Verdict) -> Option<ErrorCode> {
        match verdict {
            Verdict::Refuse(error) => Some(error.code),
            _ => None,
        }
    }

    #[test]
    fn a_free_key_is_taken_by_its_first_owner() {
        assert_eq!(decide(None, &request(), NOW), Verdict::Take);
        let owner = request().first_owner();
        assert_eq!((owner.attempt, owner.request_id, owner.key.as_str()), (1, Uuid::nil(), "k"));
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
        for (version, hash) in [(2, [1; 32]), (2, [2; 32]), (0, [1; 32])] {
            let mut newer = record(State::Succeeded, 1);
            newer.fingerprint = Fingerprint { version, hash };
            let Verdict::Refuse(error) = decide(Some(&newer), &request(), NOW) else { panic!("not refused") };
            assert_eq!(error.code, ErrorCode::RecordCorrupt);
            assert!(error.message.contains("rules that this server does not know"));
        }
    }

    /// Every state before its time, at it and after it, by the policy of the request.
    #[test]
    fn the_verdict_is_that_of_the_table() {
        use ErrorCode::{KeyExpired, OutcomeUnknown};
        let expired = Err(Some(KeyExpired));
        for on_crash in [OnCrash::Hold, OnCrash::Resume, OnCrash::Release] {
            let request = ClaimRequest { on_crash, ..request() };
            let lost = if on_crash == OnCrash::Hold { Err(Some(OutcomeUnknown)) } else { Ok(Verdict::TakeOver) };
            let running = Ok(Verdict::InProgress(Duration::from_millis(1)));
            for (state, before, at, after, long_after) in [
                (State::InProgress, &running, &lost, &lost, &lost),
                (State::NeedsRecovery, &lost, &lost, &lost, &lost),
                (State::Settling(Outcome::Succeeded), &running, &Ok(Verdict::Replay), &Ok(Verdict::Replay), &expired),
                (State::Settling(Outcome::Failed), &running, &Ok(Verdict::Replay), &Ok(Verdict::Replay), &expired),
                (State::Succeeded, &Ok(Verdict::Replay), &expired, &expired, &expired),
                (State::Failed, &Ok(Verdict::Replay), &expired, &expired, &expired),
                (State::Released, &Ok(Verdict::TakeOver), &expired, &expired, &expired),
                (State::Tombstone(Ended::Succeeded), &expired, &expired, &expired, &expired),
                (State::Tombstone(Ended::Failed), &expired, &expired, &expired, &expired),
                (State::Tombstone(Ended::Released), &expired, &expired, &expired, &expired),
            ] {
                for (due_in, expected) in [(1, before), (0, at), (1 - RETENTION, after), (-RETENTION, long_after)] {
                    let verdict = decide(Some(&record(state, due_in)), &request, NOW);
                    let verdict = match code(verdict.clone()) {
                        None => Ok(verdict),
                        code => Err(code),
                    };
                    assert_eq!(verdict, *expected, "{state} due in {due_in}, {on_crash:?}");
                }
            }
        }
    }

    #[test]
    fn a_lease_never_looks_longer_than_it_is() {
        let verdict = |due_in| decide(Some(&record(State::InProgress, due_in)), &request(), NOW);
        assert_eq!(verdict(1_500), Verdict::InProgress(Duration::from_millis(1_500)));
        assert_eq!(verdict(30_007), Verdict::InProgress(Duration::from_secs(30)));
    }

    #[test]
    fn a_finished_record_without_its_response_says_so() {
        for (state, due_in) in [
            (State::Succeeded, 1),
            (State::Failed, 1),
            (State::Settling(Outcome::Succeeded), 0),
            (State::Settling(Outcome::Failed), 0),
        ] {
            let mut record = record(state, due_in);
            record.response = None;
            assert_eq!(code(decide(Some(&record), &request(), NOW)), Some(ErrorCode::ResponseNotStored));
        }
    }

    #[test]
    fn a_tombstone_tells_how_its_key_ended() {
        for (state, word) in [
            (State::Tombstone(Ended::Succeeded), "succeeded"),
            (State::Tombstone(Ended::Failed), "failed"),
            (State::Tombstone(Ended::Released), "was given back"),
            (State::Succeeded, "succeeded"),
            (State::Failed, "failed"),
            (State::Released, "was given back"),
        ] {
            let Verdict::Refuse(error) = decide(Some(&record(state, 0)), &request(), NOW) else { panic!("{state}") };
            assert!(error.message.contains(word), "{state}: {}", error.message);
        }
    }

    #[test]
    fn an_attempt_follows_only_steps_that_its_policy_knows() {
        let step = |name: &str| RecoveryPoint {
            name: name.to_owned(),
            kind: StepKind::Local,
            attempt: 1,
            result: Some("1".to_owned()),
        };
        let steps = [step("a"), step("b")];
        let named = Policy::leased().steps(["a", "b", "c"]);
        assert_eq!(may_follow(&named, &steps), Ok(()));
        assert_eq!(may_follow(&Policy::leased(), &steps), Ok(()));
        assert_eq!(may_follow(&Policy::transactional(), &[]), Ok(()));
        let refused = may_follow(&named, &[step("a"), step("old")]).unwrap_err();
        assert!(refused.contains("left the step old"), "{refused}");
        let refused = may_follow(&Policy::transactional(), &steps).unwrap_err();
        assert!(refused.contains("left the step a"), "{refused}");
    }
}
