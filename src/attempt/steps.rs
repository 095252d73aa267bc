//! The ledger of an attempt's steps: those that earlier attempts stored, those that this one has reached, and what
//! follows from them about its outcome. Pure.

use std::collections::{BTreeSet, HashSet};

use crate::{
    attempt::AttemptError,
    ending::{Known, Mark},
    error::ErrorCode,
    policy::Policy,
    record::{RecoveryPoint, StepKind},
};

/// What an attempt knows of its own outcome.
#[derive(Debug, Default)]
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own, and they combine freely")]
pub(crate) struct Steps {
    /// The steps of earlier attempts, in order.
    stored: Vec<RecoveryPoint>,
    /// Every step of the mutation, where the policy names them.
    named: Option<BTreeSet<String>>,
    is_first: bool,
    follows_lost: bool,
    /// The names that this attempt has used.
    used: HashSet<String>,
    /// The stored steps that this attempt has reached: it has got their result, or has begun them again.
    come_by: HashSet<String>,
    /// The remote steps that this attempt has begun and not finished, in order.
    open: Vec<String>,
    /// The steps whose results were given to the store, which has not answered yet.
    on_their_way: BTreeSet<String>,
    done: bool,
    /// Why nobody can tell how it ended.
    broken: Option<String>,
    /// The crate's own failure that came last.
    failure: Option<Failure>,
    /// What the resolver says of its own ending.
    mark: Option<Mark>,
    /// Whether the request id may have left the process.
    request_id_given: bool,
}

/// A failure of the crate's own, noted for a resolver's error that no longer shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) code: ErrorCode,
    pub(crate) says: Says,
}

/// What a failure of the crate's own says about the outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Says {
    Mark(Mark),
    Misuse,
}

/// What a step is to this attempt.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Visit {
    /// Nobody has begun it.
    New,
    /// An earlier attempt began it and did not finish.
    Unfinished,
    /// It has this result.
    Finished(String),
}

impl Steps {
    /// The ledger of an attempt that follows earlier ones, if any. `follows_lost`: the outcome of the last is unknown.
    pub(crate) fn new(policy: &Policy, attempt: i32, stored: Vec<RecoveryPoint>, follows_lost: bool) -> Self {
        Self {
            done: stored.iter().any(|point| point.result.is_some()),
            stored,
            named: policy.steps.clone(),
            is_first: attempt == 1,
            follows_lost,
            ..Self::default()
        }
    }

    /// The resolver has reached a step. A finished one counts as reached from now on, any other once it has begun.
    pub(crate) fn visit(&mut self, name: &str, kind: StepKind) -> Result<Visit, AttemptError> {
        if !self.used.insert(name.to_owned()) {
            return Err(AttemptError::StepRepeated(name.to_owned()));
        }
        if self.named.as_ref().is_some_and(|named| !named.contains(name)) {
            return Err(AttemptError::StepNotNamed(name.to_owned()));
        }
        let changed = match self.stored.iter().find(|point| point.name == name) {
            Some(RecoveryPoint { kind: stored, .. }) if *stored != kind => name,
            Some(RecoveryPoint { result: None, .. }) => return Ok(Visit::Unfinished),
            Some(RecoveryPoint { result: Some(result), .. }) => {
                self.come_by.insert(name.to_owned());
                return Ok(Visit::Finished(result.clone()));
            }
            // It may be a stored step that was renamed.
            None => match self.passed_over() {
                Some(stored) if self.named.is_none() => stored,
                _ => return Ok(Visit::New),
            },
        };
        let error = AttemptError::StepsChanged(changed.to_owned());
        self.broken(error.to_string());
        Err(error)
    }

    /// A remote step was begun: its intent is stored.
    pub(crate) fn begun(&mut self, name: &str) {
        self.come_by.insert(name.to_owned());
        self.open.push(name.to_owned());
    }

    /// A step's result is given to the store. Until the store has answered, nobody can tell how the attempt ended: the
    /// resolver may be dropped meanwhile, and the store goes on.
    pub(crate) fn is_being_stored(&mut self, name: &str) {
        self.on_their_way.insert(name.to_owned());
    }

    /// It is certain what became of a step's result: the store has answered.
    pub(crate) fn is_certain(&mut self, name: &str) {
        self.on_their_way.remove(name);
    }

    /// A step has finished: its result is stored.
    pub(crate) fn finished(&mut self, name: &str) {
        self.done = true;
        self.open.retain(|open| open != name);
    }

    /// From now on nobody can tell how the attempt ended.
    pub(crate) fn broken(&mut self, why: String) {
        self.broken.get_or_insert(why);
    }

    /// Notes a failure of the crate's own.
    pub(crate) fn failed(&mut self, failure: Failure) {
        self.failure = Some(failure);
    }

    pub(crate) fn failure(&self) -> Option<Failure> {
        self.failure
    }

    pub(crate) fn mark(&mut self, mark: Mark) {
        self.mark = Some(mark);
    }

    pub(crate) fn marked(&self) -> Option<Mark> {
        self.mark
    }

    pub(crate) fn request_id_given(&mut self) {
        self.request_id_given = true;
    }

    pub(crate) fn known(&self) -> Known {
        Known {
            open: self.open.len(),
            done: self.done,
            follows_lost: self.follows_lost,
            unsure: self.follows_lost && self.passed_over().is_some(),
            broken: self.broken.is_some() || !self.on_their_way.is_empty(),
            traced: !self.is_first || !self.used.is_empty() || self.request_id_given,
        }
    }

    /// What is known, in words for an operator; none where the steps say nothing.
    pub(crate) fn reason(&self) -> Option<String> {
        if self.broken.is_some() {
            return self.broken.clone();
        }
        if let Some(name) = self.on_their_way.first() {
            return Some(format!("nobody knows whether the step {name} was stored"));
        }
        if !self.open.is_empty() {
            return Some(format!("the remote step {} was begun and has not finished", self.open.join(", ")));
        }
        let passed_over = self.passed_over().filter(|_| self.follows_lost)?;
        Some(AttemptError::StepsChanged(passed_over.to_owned()).to_string())
    }

    /// The first stored step that this attempt has not reached.
    fn passed_over(&self) -> Option<&str> {
        self.stored.iter().map(|point| point.name.as_str()).find(|name| !self.come_by.contains(*name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::OnCrash;

    fn point(name: &str, kind: StepKind, result: Option<&str>) -> RecoveryPoint {
        RecoveryPoint { name: name.to_owned(), kind, attempt: 1, result: result.map(str::to_owned) }
    }

    fn stored() -> Vec<RecoveryPoint> {
        vec![point("order", StepKind::Local, Some("7")), point("charge", StepKind::Remote, None)]
    }

    fn resume() -> Policy {
        Policy::leased().on_crash(OnCrash::Resume)
    }

    #[test]
    fn a_first_attempt_runs_its_steps_and_leaves_a_trace_from_the_first_on() {
        let mut steps = Steps::new(&resume(), 1, Vec::new(), false);
        assert_eq!((steps.known(), steps.reason()), (Known::default(), None));
        assert_eq!(steps.visit("order", StepKind::Local).unwrap(), Visit::New);
        assert!(steps.known().traced && !steps.known().done);
        steps.finished("order");
        assert!(steps.known().done);
        assert_eq!(steps.visit("charge", StepKind::Remote).unwrap(), Visit::New);
        steps.begun("charge");
        assert_eq!(steps.known().open, 1);
        assert!(steps.reason().unwrap().contains("the remote step charge was begun"));
        steps.finished("charge");
        assert_eq!((steps.known().open, steps.reason()), (0, None));
    }

    #[test]
    fn a_request_id_that_was_given_away_and_a_later_attempt_are_traces() {
        let mut steps = Steps::new(&resume(), 1, Vec::new(), false);
        assert!(!steps.known().traced);
        steps.request_id_given();
        assert!(steps.known().traced);
        assert!(Steps::new(&resume(), 2, Vec::new(), false).known().traced);
    }

    #[test]
    fn a_name_is_used_once_and_only_if_the_policy_knows_it() {
        let mut steps = Steps::new(&resume(), 1, Vec::new(), false);
        steps.visit("a", StepKind::Local).unwrap();
        assert!(matches!(steps.visit("a", StepKind::Remote), Err(AttemptError::StepRepeated(name)) if name == "a"));
        let mut steps = Steps::new(&resume().steps(["a"]), 1, Vec::new(), false);
        assert!(matches!(steps.visit("b", StepKind::Local), Err(AttemptError::StepNotNamed(name)) if name == "b"));
        assert_eq!(steps.visit("a", StepKind::Local).unwrap(), Visit::New);
    }

    #[test]
    fn a_later_attempt_is_unsure_until_it_has_come_by_every_stored_step() {
        let mut steps = Steps::new(&resume(), 2, stored(), true);
        let known = steps.known();
        assert!(known.unsure && known.follows_lost && known.done && known.open == 0);
        assert!(steps.reason().unwrap().contains("left the step order, which the code no longer has"));
        assert_eq!(steps.visit("order", StepKind::Local).unwrap(), Visit::Finished("7".to_owned()));
        assert!(steps.known().unsure);
        // An unfinished step counts as reached when it is begun again, not when it is looked up.
        assert_eq!(steps.visit("charge", StepKind::Remote).unwrap(), Visit::Unfinished);
        assert!(steps.known().unsure);
        assert!(steps.reason().unwrap().contains("left the step charge"));
        steps.begun("charge");
        assert_eq!((steps.known().unsure, steps.known().open), (false, 1));
        steps.finished("charge");
        assert_eq!((steps.known().unsure, steps.known().open), (false, 0));
        assert_eq!(steps.visit("mail", StepKind::Remote).unwrap(), Visit::New);
    }

    #[test]
    fn what_was_given_back_makes_nobody_unsure() {
        let steps = Steps::new(&resume(), 2, stored(), false);
        assert!(!steps.known().unsure && steps.known().done);
        assert_eq!(steps.reason(), None);
    }

    #[test]
    fn an_unknown_step_behind_stored_ones_runs_only_where_the_policy_names_it() {
        for follows_lost in [true, false] {
            let mut steps = Steps::new(&resume(), 2, stored(), follows_lost);
            let changed = steps.visit("charge_card", StepKind::Remote);
            assert!(matches!(changed, Err(AttemptError::StepsChanged(name)) if name == "order"));
            assert!(steps.known().broken && steps.reason().unwrap().contains("Policy::steps"));
            let named = resume().steps(["order", "charge", "charge_card"]);
            let mut steps = Steps::new(&named, 2, stored(), follows_lost);
            assert_eq!(steps.visit("charge_card", StepKind::Remote).unwrap(), Visit::New);
        }
    }

    #[test]
    fn a_step_that_has_become_another_kind_has_changed() {
        let mut steps = Steps::new(&resume(), 2, stored(), true);
        assert!(
            matches!(steps.visit("order", StepKind::Remote), Err(AttemptError::StepsChanged(name)) if name == "order")
        );
        assert!(
            matches!(steps.visit("charge", StepKind::Local), Err(AttemptError::StepsChanged(name)) if name == "charge")
        );
        assert!(steps.known().unsure && steps.known().broken);
    }

    #[test]
    fn a_result_on_its_way_to_the_store_leaves_the_outcome_in_doubt() {
        let mut steps = Steps::new(&resume(), 1, Vec::new(), false);
        steps.is_being_stored("a");
        assert!(steps.known().broken && steps.reason().unwrap().contains("whether the step a was stored"));
        steps.is_certain("a");
        assert_eq!((steps.known().broken, steps.reason()), (false, None));
    }

    #[test]
    fn overlapping_steps_are_open_together() {
        let mut steps = Steps::new(&resume(), 1, Vec::new(), false);
        steps.begun("a");
        steps.begun("b");
        assert_eq!(steps.known().open, 2);
        assert!(steps.reason().unwrap().contains("a, b"));
        steps.finished("a");
        assert_eq!(steps.known().open, 1);
    }

    #[test]
    fn the_first_break_the_last_failure_and_the_last_mark_count() {
        let mut steps = Steps::new(&resume(), 1, Vec::new(), false);
        assert!(!steps.known().broken);
        steps.broken("one".to_owned());
        steps.broken("two".to_owned());
        steps.begun("a");
        assert!(steps.known().broken);
        assert_eq!(steps.reason(), Some("one".to_owned()));
        let failure = |mark| Failure { code: ErrorCode::StoreUnavailable, says: Says::Mark(mark) };
        assert_eq!(steps.failure(), None);
        steps.failed(failure(Mark::Release));
        steps.failed(failure(Mark::Unknown));
        assert_eq!(steps.failure(), Some(failure(Mark::Unknown)));
        assert_eq!(steps.marked(), None);
        steps.mark(Mark::Final);
        steps.mark(Mark::Release);
        assert_eq!(steps.marked(), Some(Mark::Release));
    }
}
