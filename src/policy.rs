//! Policy: what a mutation's effects are, and the numbers that go with it. Every default has its reason.

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
    pub(crate) max_attempt: Duration,
    pub(crate) steps: Option<BTreeSet<String>>,
    pub(crate) late: bool,
    pub(crate) max_response: usize,
    pub(crate) keep_response: bool,
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
            // Long enough for a pause of the process (swapping, a noisy neighbour), short enough for a person who
            // waits.
            lease,
            // Two renewals may be lost before the lease is.
            renew_every: lease / 3,
            // Below the 10 s after which common HTTP clients give up.
            wait: Duration::from_secs(5),
            // As Stripe's: a day of retries.
            retention: Duration::from_hours(24),
            max_client_retry: Duration::from_hours(24),
            on_crash: OnCrash::Hold,
            // Longer than any request lives, shorter than a working day: a hung attempt is noticed on the same day.
            max_attempt: Duration::from_hours(1),
            steps: None,
            late: false,
            max_response: 1 << 20,
            keep_response: true,
            ignored_arguments: BTreeSet::new(),
            rejections: REJECTIONS.into_iter().map(str::to_owned).collect(),
        }
    }

    /// How long an attempt owns its claim without renewing it. Also sets the renewal to a third of it.
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

    /// How long a duplicate waits for the attempt in flight before it gets
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

    /// How long an attempt may run. After that its lease is not renewed and its resolver is dropped: the key of a
    /// leased mutation is held, that of a transactional one is free. Default 1 h.
    #[must_use]
    pub fn max_attempt(mut self, time: Duration) -> Self {
        self.max_attempt = time;
        self
    }

    /// Names every step of the mutation, as the code has them now.
    ///
    /// Steps that overlap, or whose order varies, need it: after a crash the next attempt may come to a new step before
    /// it has reached all stored ones. Without the list, that could be a stored step which the code has renamed, and
    /// running it would repeat its effect; so the key is held instead. A step outside the list is refused, and so is a
    /// stored step of an earlier attempt that the list no longer has.
    #[must_use]
    pub fn steps<N: Into<String>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.steps = Some(names.into_iter().map(Into::into).collect());
        self
    }

    /// Claims late: the field's own validators and guards run first; the guard `Claim` or `ctx.claim()` takes the key.
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
        let times = [
            ("lease", self.lease),
            ("renew_every", self.renew_every),
            ("wait", self.wait),
            ("retention", self.retention),
            ("max_client_retry", self.max_client_retry),
            ("max_attempt", self.max_attempt),
        ];
        if let Some((name, _)) = times.into_iter().find(|(_, time)| *time > LONGEST) {
            return Err(PolicyError::TooLong(name));
        }
        if self.lease.is_zero() {
            return Err(PolicyError::ZeroLease);
        }
        if self.max_attempt.is_zero() {
            return Err(PolicyError::ZeroAttempt);
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
        if self.effects == Effects::Transactional && self.steps.is_some() {
            return Err(PolicyError::NoSteps);
        }
        Ok(())
    }
}

/// The longest time that can be set: ten years, so that no sum of times overflows anywhere.
pub const LONGEST: Duration = Duration::from_hours(24 * 3653);

/// A policy whose numbers don't make sense together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// A time beyond [`LONGEST`].
    #[error("{0} is longer than ten years")]
    TooLong(&'static str),
    /// A lease of nothing.
    #[error("the lease is zero")]
    ZeroLease,
    /// An attempt that may not run at all.
    #[error("max_attempt is zero")]
    ZeroAttempt,
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
    /// A transaction is one step.
    #[error("a transactional mutation has no steps")]
    NoSteps,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_numbers_are_refused_and_the_limits_are_not() {
        let (tick, second) = (Duration::from_millis(1), Duration::from_secs(1));
        let policy = Policy::leased;
        let too_long = [LONGEST + tick, Duration::MAX];
        for (policy, error) in [
            (policy().lease(Duration::ZERO), PolicyError::ZeroLease),
            (policy().max_attempt(Duration::ZERO), PolicyError::ZeroAttempt),
            (policy().renew_every(Duration::from_secs(30)), PolicyError::RenewalNotWithinLease),
            (policy().renew_every(Duration::ZERO), PolicyError::RenewalNotWithinLease),
            (policy().retention(second).max_client_retry(second), PolicyError::RetentionBelowLease),
            (policy().retention(Duration::from_mins(1)), PolicyError::RetentionBelowRetry),
            (Policy::transactional().on_crash(OnCrash::Resume), PolicyError::NothingToRecover),
            (Policy::transactional().on_crash(OnCrash::Release), PolicyError::NothingToRecover),
            (Policy::transactional().steps(["a"]), PolicyError::NoSteps),
        ] {
            assert_eq!(policy.check(), Err(error));
        }
        assert_eq!(LONGEST, second * 3_653 * 86_400);
        for time in too_long {
            assert_eq!(policy().lease(time).check(), Err(PolicyError::TooLong("lease")));
            assert_eq!(policy().renew_every(time).check(), Err(PolicyError::TooLong("renew_every")));
            assert_eq!(policy().wait(time).check(), Err(PolicyError::TooLong("wait")));
            assert_eq!(policy().retention(time).check(), Err(PolicyError::TooLong("retention")));
            assert_eq!(policy().max_client_retry(time).check(), Err(PolicyError::TooLong("max_client_retry")));
            assert_eq!(policy().max_attempt(time).check(), Err(PolicyError::TooLong("max_attempt")));
        }
        for policy in [
            policy(),
            Policy::transactional(),
            policy().lease(tick * 3),
            policy().renew_every(Duration::from_millis(29_999)),
            policy().retention(Duration::from_secs(30)).max_client_retry(Duration::from_secs(30)),
            policy().retention(LONGEST).max_client_retry(LONGEST).wait(LONGEST).max_attempt(LONGEST),
            policy().retention(LONGEST).lease(LONGEST),
        ] {
            assert_eq!(policy.check(), Ok(()), "{policy:?}");
        }
    }

    #[test]
    fn what_is_set_is_what_counts() {
        let second = Duration::from_secs(1);
        let policy = Policy::leased()
            .lease(second * 9)
            .wait(second * 2)
            .retention(second * 3)
            .max_client_retry(second * 4)
            .max_attempt(second * 5)
            .on_crash(OnCrash::Release)
            .steps(["a"])
            .late()
            .max_response(6)
            .discard_response()
            .ignore_argument("x.y")
            .rejection("SOLD_OUT");
        assert_eq!((policy.lease, policy.renew_every, policy.wait), (second * 9, second * 3, second * 2));
        assert_eq!((policy.retention, policy.max_client_retry), (second * 3, second * 4));
        assert_eq!((policy.max_attempt, policy.on_crash), (second * 5, OnCrash::Release));
        assert_eq!((policy.effects, policy.max_response), (Effects::Leased, 6));
        assert!(policy.late && !policy.keep_response && policy.ignored_arguments.contains("x.y"));
        assert!(policy.rejections.contains("SOLD_OUT") && policy.rejections.contains("FORBIDDEN"));
        assert_eq!(policy.steps, Some(BTreeSet::from(["a".to_owned()])));
        assert_eq!(policy.renew_every(second).renew_every, second);
        let fresh = Policy::transactional();
        assert_eq!((fresh.effects, fresh.lease, fresh.renew_every), (Effects::Transactional, second * 30, second * 10));
        assert_eq!((fresh.wait, fresh.retention, fresh.max_attempt), (second * 5, second * 86_400, second * 3_600));
        assert_eq!((fresh.max_response, fresh.keep_response, fresh.late), (1 << 20, true, false));
    }
}
