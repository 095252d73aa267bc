//! Policy: what a mutation's effects are, and what that means for its key. Every default has its reason.

use std::{collections::BTreeSet, time::Duration};

/// What kind of effects a mutation has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effects {
    /// Rows in the team's own database: claim, effects and response are one transaction.
    Transactional,
    /// Calls to other systems, or effects that the crate knows nothing of: the claim is a lease.
    Leased,
}

/// What happens to a key whose attempt ended without a known outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnCrash {
    /// Retries get `IDEMPOTENCY_OUTCOME_UNKNOWN` until the outcome is settled. The default: it never
    /// repeats an effect.
    #[default]
    Hold,
    /// The next retry, or the sweeper, runs the resolver again over its recovery points. For resolvers whose
    /// every effect is a step.
    Resume,
    /// The key is free again. Only for mutations that are harmless to repeat: whatever the lost attempt did
    /// outside its finished steps is done a second time.
    Release,
}

/// How the crate treats one mutation. Start from [`Policy::leased`] or [`Policy::transactional`].
#[derive(Clone, Debug)]
pub struct Policy {
    pub(crate) effects: Effects,
    pub(crate) lease: Duration,
    pub(crate) renew_every: Duration,
    pub(crate) wait: Duration,
    pub(crate) retention: Duration,
    pub(crate) max_client_retry: Duration,
    pub(crate) on_crash: OnCrash,
    pub(crate) late: bool,
    pub(crate) max_response: usize,
    pub(crate) keep_response: bool,
    pub(crate) replayed_headers: BTreeSet<String>,
    pub(crate) ignored_arguments: BTreeSet<String>,
    pub(crate) rejections: BTreeSet<String>,
}

/// `extensions.code`s that say "refused before anything happened" in common use.
const REJECTIONS: [&str; 6] =
    ["UNAUTHENTICATED", "FORBIDDEN", "BAD_USER_INPUT", "GRAPHQL_VALIDATION_FAILED", "BAD_REQUEST", "RATE_LIMITED"];

impl Policy {
    /// For mutations with effects outside the team's own database, and for resolvers that know nothing of
    /// the crate. The default.
    ///
    /// The claim is committed before the resolver runs and its lease is renewed while the attempt lives; no
    /// connection is held meanwhile. After a crash the outcome is unknown, see [`OnCrash`].
    #[must_use]
    pub fn leased() -> Self {
        Self::new(Effects::Leased)
    }

    /// For mutations whose only effects are rows in the database that the store lives in, written through
    /// the attempt's own transaction.
    ///
    /// Claim, effects and response are committed together: there is no crash window.
    #[must_use]
    pub fn transactional() -> Self {
        Self::new(Effects::Transactional)
    }

    fn new(effects: Effects) -> Self {
        let lease = Duration::from_secs(30);
        Self {
            effects,
            // Long enough for a pause of the process (a page fault storm, a slow collection of a neighbour),
            // short enough for a person who waits.
            lease,
            // Two renewals may be lost before the lease is.
            renew_every: lease / 3,
            // Below the 10 s after which common HTTP clients give up.
            wait: Duration::from_secs(5),
            // Stripe's: a day of retries.
            retention: Duration::from_hours(24),
            max_client_retry: Duration::from_hours(24),
            on_crash: OnCrash::Hold,
            late: false,
            max_response: 1 << 20,
            keep_response: true,
            replayed_headers: BTreeSet::new(),
            ignored_arguments: BTreeSet::new(),
            rejections: REJECTIONS.into_iter().map(str::to_owned).collect(),
        }
    }

    /// How long an attempt owns its claim without renewing it; the renewal follows at a third of it.
    /// Default 30 s.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self.renew_every = lease / 3;
        self
    }

    /// How often a live attempt renews its lease. Default: a third of the lease.
    #[must_use]
    pub fn renew_every(mut self, interval: Duration) -> Self {
        self.renew_every = interval;
        self
    }

    /// How long a duplicate waits for the attempt in flight before it is told
    /// `IDEMPOTENCY_IN_PROGRESS`. Default 5 s.
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// How long a response is replayed, from completion; replays don't extend it. Default 24 h.
    #[must_use]
    pub fn retention(mut self, retention: Duration) -> Self {
        self.retention = retention;
        self
    }

    /// How long clients may go on retrying: the retention must not be shorter. Default 24 h.
    #[must_use]
    pub fn max_client_retry(mut self, retry: Duration) -> Self {
        self.max_client_retry = retry;
        self
    }

    /// What happens after a crash. Default [`OnCrash::Hold`].
    #[must_use]
    pub fn on_crash(mut self, on_crash: OnCrash) -> Self {
        self.on_crash = on_crash;
        self
    }

    /// The field's own validators and guards run first; the guard `Claim` or `ctx.claim()` takes the key.
    ///
    /// A rejected caller then neither consumes a key nor sees a replay.
    #[must_use]
    pub fn late(mut self) -> Self {
        self.late = true;
        self
    }

    /// Largest response that is kept, in bytes of its JSON. A larger one is given in full to the first
    /// call; retries get `IDEMPOTENCY_RESPONSE_NOT_STORED`. Default 1 MiB.
    #[must_use]
    pub fn max_response(mut self, bytes: usize) -> Self {
        self.max_response = bytes;
        self
    }

    /// Keeps the fact and not the response, for responses that hold a secret. Retries get
    /// `IDEMPOTENCY_RESPONSE_NOT_STORED`.
    #[must_use]
    pub fn discard_response(mut self) -> Self {
        self.keep_response = false;
        self
    }

    /// Replays this HTTP header, set by a resolver, with the response. `Set-Cookie` is never replayed.
    #[must_use]
    pub fn replay_header(mut self, name: impl AsRef<str>) -> Self {
        self.replayed_headers.insert(name.as_ref().to_ascii_lowercase());
        self
    }

    /// Leaves an argument (or a field of an input object argument: `input.clientMutationId`) out of the
    /// fingerprint.
    #[must_use]
    pub fn ignore_argument(mut self, path: impl Into<String>) -> Self {
        self.ignored_arguments.insert(path.into());
        self
    }

    /// Counts this `extensions.code` of a resolver's error as a rejection: nothing happened, the key is
    /// released. `UNAUTHENTICATED`, `FORBIDDEN`, `BAD_USER_INPUT`, `GRAPHQL_VALIDATION_FAILED`,
    /// `BAD_REQUEST` and `RATE_LIMITED` always count.
    #[must_use]
    pub fn rejection(mut self, code: impl Into<String>) -> Self {
        self.rejections.insert(code.into());
        self
    }

    /// Whether the numbers make sense together.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn check(&self) -> Result<(), PolicyError> {
        if self.lease.is_zero() {
            return Err(PolicyError::ZeroLease);
        }
        if self.renew_every.is_zero() || self.renew_every >= self.lease {
            return Err(PolicyError::RenewalNotWithinLease);
        }
        if self.retention < self.lease {
            return Err(PolicyError::RetentionBelowLease);
        }
        if self.retention < self.max_client_retry {
            return Err(PolicyError::RetentionBelowRetry);
        }
        if self.effects == Effects::Transactional && self.on_crash != OnCrash::Hold {
            return Err(PolicyError::NothingToRecover);
        }
        if self.replayed_headers.contains("set-cookie") {
            return Err(PolicyError::SetCookie);
        }
        Ok(())
    }

    /// What an attempt's ending does to the key: the one rule.
    ///
    /// A mark on the error comes before an unfinished remote step, that before a rejection code, that
    /// before the default.
    #[must_use]
    pub fn disposition(&self, ending: &Ending<'_>) -> Disposition {
        use Effects::{Leased, Transactional};
        match (ending, self.effects) {
            (Ending::Returned, _) => Disposition::Succeed,
            (Ending::Error { mark: Some(Mark::Final), .. }, _) => Disposition::Fail,
            (Ending::Error { mark: Some(Mark::Release), .. }, _)
            | (Ending::Error { .. } | Ending::Panicked | Ending::Dropped, Transactional) => Disposition::Release,
            (
                Ending::Error { mark: Some(Mark::Unknown), .. }
                | Ending::Error { unfinished: true, .. }
                | Ending::Panicked
                | Ending::Dropped,
                Leased,
            ) => Disposition::Hold,
            (Ending::Error { code: Some(code), .. }, Leased) if self.rejections.contains(*code) => Disposition::Release,
            (Ending::Error { .. }, Leased) => Disposition::Fail,
        }
    }
}

/// How an attempt ended, as far as the key is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending<'a> {
    /// The resolver returned a value.
    Returned,
    /// The resolver returned an error.
    Error {
        /// The mark that the resolver put on the error.
        mark: Option<Mark>,
        /// Whether a remote step was begun and has not finished.
        unfinished: bool,
        /// The error's `extensions.code`.
        code: Option<&'a str>,
    },
    /// The resolver panicked.
    Panicked,
    /// The resolver's future was dropped before it had finished.
    Dropped,
}

/// What a resolver knows about its error, see `Error::idempotency` in the adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// Nothing happened: try again with the same key.
    Release,
    /// The error is the mutation's final answer.
    Final,
    /// It may or may not have happened.
    Unknown,
}

impl Mark {
    /// The word that stands for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Release => "release",
            Self::Final => "final",
            Self::Unknown => "unknown",
        }
    }

    /// The mark that a word stands for.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        [Self::Release, Self::Final, Self::Unknown].into_iter().find(|mark| mark.as_str() == word)
    }
}

/// What becomes of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// Stored as succeeded.
    Succeed,
    /// Stored as failed.
    Fail,
    /// Given back.
    Release,
    /// Held: the outcome is unknown.
    Hold,
}

/// A policy whose numbers don't make sense together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// A lease of nothing.
    #[error("the lease is zero")]
    ZeroLease,
    /// A lease that lapses before it is renewed.
    #[error("the renewal interval is not above zero and below the lease")]
    RenewalNotWithinLease,
    /// A record that would expire while it runs.
    #[error("the retention is shorter than the lease")]
    RetentionBelowLease,
    /// A record that would be gone while clients still retry.
    #[error("the retention is shorter than max_client_retry, the time for which clients may go on retrying")]
    RetentionBelowRetry,
    /// A transaction leaves nothing behind that could be resumed or released.
    #[error("a transactional mutation has no state after a crash, so it takes no on_crash")]
    NothingToRecover,
    /// A cookie is for whoever got the first response.
    #[error("Set-Cookie is never replayed")]
    SetCookie,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_numbers_are_refused() {
        let short = Duration::from_secs(1);
        let policy = Policy::leased;
        for (policy, error) in [
            (policy().lease(Duration::ZERO), PolicyError::ZeroLease),
            (policy().renew_every(Duration::from_secs(30)), PolicyError::RenewalNotWithinLease),
            (policy().retention(short).max_client_retry(short), PolicyError::RetentionBelowLease),
            (policy().retention(Duration::from_mins(1)), PolicyError::RetentionBelowRetry),
            (Policy::transactional().on_crash(OnCrash::Resume), PolicyError::NothingToRecover),
            (policy().replay_header("Set-Cookie"), PolicyError::SetCookie),
        ] {
            assert_eq!(policy.check(), Err(error));
        }
        assert_eq!(policy().check(), Ok(()));
    }

    #[test]
    fn an_error_does_to_the_key_what_the_table_says() {
        let plain = Ending::Error { mark: None, unfinished: false, code: None };
        let marked = |mark| Ending::Error { mark: Some(mark), unfinished: true, code: Some("FORBIDDEN") };
        let begun = Ending::Error { mark: None, unfinished: true, code: Some("FORBIDDEN") };
        let rejected = Ending::Error { mark: None, unfinished: false, code: Some("FORBIDDEN") };
        for (ending, transactional, leased) in [
            (Ending::Returned, Disposition::Succeed, Disposition::Succeed),
            (plain, Disposition::Release, Disposition::Fail),
            (marked(Mark::Release), Disposition::Release, Disposition::Release),
            (marked(Mark::Final), Disposition::Fail, Disposition::Fail),
            (marked(Mark::Unknown), Disposition::Release, Disposition::Hold),
            (begun, Disposition::Release, Disposition::Hold),
            (rejected, Disposition::Release, Disposition::Release),
            (Ending::Panicked, Disposition::Release, Disposition::Hold),
            (Ending::Dropped, Disposition::Release, Disposition::Hold),
        ] {
            assert_eq!(Policy::transactional().disposition(&ending), transactional, "{ending:?}");
            assert_eq!(Policy::leased().disposition(&ending), leased, "{ending:?}");
        }
    }
}
