//! The second heart: what an ending does to a key. Pure, total, and the only place that decides it.
//!
//! Of the rules for an attempt that ran, the first one that fits decides:
//!
//! | the attempt | transactional | leased |
//! |---|---|---|
//! | is broken, or has two steps open | rolled back | held |
//! | is unsure | rolled back | held, whatever its error or mark says |
//! | is marked `Unknown`; or has a step open, and returned a value or has no mark | rolled back | held |
//! | is marked `Release`, on its error or beside its value | rolled back, released | released |
//! | is marked `Final`, or returned a value | stored | stored |
//! | failed with a rejection code | rolled back, released | released |
//! | misused the crate | rolled back, released | released if every effect is a step and none is done, else held |
//! | failed | rolled back, released | no step is done: stored as failed; one is done: held |
//! | panicked, or was dropped | rolled back, released | held |
//!
//! *Open* is a remote step that this attempt began and that has not finished. *Done* is a finished step of any attempt.
//! *Unsure* is an attempt that took its key over from a lost one and has not reached every stored step yet. *Broken* is
//! one with a step that may or may not have been stored, or whose stored result can't be read back.
//!
//! *Released* deletes the record only where no trace of the attempt can be anywhere: see [`Known::traced`].

use crate::{
    policy::{Effects, OnCrash, Policy},
    state::Outcome,
};

/// What a resolver says about its ending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// Nothing happened: try again with the same key.
    Release,
    /// This is the mutation's final answer.
    Final,
    /// It may or may not have happened.
    Unknown,
}

impl Mark {
    const ALL: [Self; 3] = [Self::Release, Self::Final, Self::Unknown];

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
        Self::ALL.into_iter().find(|mark| mark.as_str() == word)
    }
}

/// How an attempt ended, or what is said of one that was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending<'a> {
    /// The resolver returned a value, whatever is wrong below it or beside it.
    Value {
        /// What the resolver says about it.
        mark: Option<Mark>,
    },
    /// The resolver returned an error of its own.
    Error {
        /// What the resolver says about it.
        mark: Option<Mark>,
        /// The error's `extensions.code`.
        code: Option<&'a str>,
    },
    /// The resolver used the crate in a way that can't work, and passed that error on.
    Misuse,
    /// The resolver panicked.
    Panicked,
    /// The resolver's future was dropped before it had finished, or ran for too long.
    Dropped,
    /// The key was taken, and nothing ran.
    Unused,
    /// The attempt was lost, and a reconciler or an operator says what became of it.
    Told(Told),
    /// The attempt was lost, and nothing more is known.
    Lost,
}

/// What became of a lost attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// It succeeded.
    Succeeded,
    /// It failed for good.
    Failed,
    /// It never happened.
    NotStarted,
}

impl Told {
    /// What it does to the key, whatever the policy.
    #[must_use]
    pub fn fate(self) -> Fate {
        match self {
            Self::Succeeded => Fate::Complete(Outcome::Succeeded),
            Self::Failed => Fate::Complete(Outcome::Failed),
            Self::NotStarted => Fate::Release { stays: true },
        }
    }
}

/// What is known of an attempt, from its record, its recovery points and its own doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own, and they combine freely")]
pub struct Known {
    /// How many remote steps it began that have not finished.
    pub open: usize,
    /// Whether a step has finished, of whichever attempt.
    pub done: bool,
    /// Whether it took its key over from an attempt whose outcome is unknown.
    pub follows_lost: bool,
    /// Whether, in that case, it has not reached every stored step yet.
    pub unsure: bool,
    /// Whether one of its steps may or may not have been stored, or the result of a stored one can't be read back.
    pub broken: bool,
    /// Whether the attempt may have left a trace elsewhere: it is not the first one, began a step, or gave its request
    /// id away. Then the record stays, so that no request id that may have left the process is ever replaced.
    pub traced: bool,
}

/// What becomes of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The outcome is stored.
    Complete(Outcome),
    /// It is given back. A transaction is rolled back, and a record that was there before stays as it was.
    Release {
        /// Whether a leased attempt's record stays, in the state released, instead of being deleted.
        stays: bool,
    },
    /// It is held: the outcome is unknown.
    Hold,
    /// The next attempt may run.
    Resume,
}

impl Fate {
    /// Whether the client may get what the resolver returned: an error always, a value only where the fate confirms it.
    #[must_use]
    pub fn lets_pass(self, ending: &Ending<'_>) -> bool {
        match ending {
            Ending::Error { .. } | Ending::Misuse => true,
            Ending::Value { mark } => match self {
                Self::Complete(_) => true,
                Self::Release { .. } => *mark == Some(Mark::Release),
                Self::Hold | Self::Resume => false,
            },
            Ending::Panicked | Ending::Dropped | Ending::Unused | Ending::Told(_) | Ending::Lost => false,
        }
    }
}

/// What an ending does to the key.
#[must_use]
#[allow(clippy::match_same_arms, reason = "an arm is a row of the table, and their order is the rule")]
pub fn fate(policy: &Policy, ending: &Ending<'_>, known: &Known) -> Fate {
    use Ending::{Dropped, Error, Lost, Misuse, Panicked, Unused, Value};
    let released = Fate::Release { stays: known.traced };
    // A transaction undoes everything, so nothing about it is ever unknown.
    let in_doubt = match policy.effects {
        Effects::Transactional => released,
        Effects::Leased => Fate::Hold,
    };
    match ending {
        Ending::Told(told) => told.fate(),
        Lost => match policy.on_crash {
            OnCrash::Hold => Fate::Hold,
            OnCrash::Resume => Fate::Resume,
            OnCrash::Release => Fate::Release { stays: true },
        },
        _ if known.broken || known.open > 1 => in_doubt,
        // Nothing ran, so the outcome of the lost attempt is as unknown as before.
        Unused if known.follows_lost => in_doubt,
        Unused => released,
        _ if known.unsure => in_doubt,
        Value { mark: Some(Mark::Unknown) } | Error { mark: Some(Mark::Unknown), .. } => in_doubt,
        Value { .. } | Error { mark: None, .. } | Misuse if known.open > 0 => in_doubt,
        Value { mark: Some(Mark::Release) } | Error { mark: Some(Mark::Release), .. } => released,
        Value { mark: Some(Mark::Final) | None } => Fate::Complete(Outcome::Succeeded),
        Error { mark: Some(Mark::Final), .. } => Fate::Complete(Outcome::Failed),
        Error { code: Some(code), .. } if policy.rejections.contains(*code) => released,
        Misuse if policy.on_crash == OnCrash::Resume && !known.done => released,
        Misuse => in_doubt,
        Error { mark: None, .. } => match policy.effects {
            Effects::Leased if !known.done => Fate::Complete(Outcome::Failed),
            Effects::Leased | Effects::Transactional => in_doubt,
        },
        Panicked | Dropped => in_doubt,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of the design, as it is written: the first row that fits decides.
    const TABLE: &str = "
        broken, or two steps open                 | rolled back           | held
        nothing ran, behind a lost attempt        | rolled back           | held
        nothing ran                               | rolled back, released | released
        unsure                                    | rolled back           | held
        marked unknown                            | rolled back           | held
        one step open, and a value or no mark     | rolled back           | held
        marked release                            | rolled back, released | released
        marked final, or an unmarked value        | stored                | stored
        a rejection code                          | rolled back, released | released
        misuse, every effect a step and none done | rolled back, released | released
        misuse                                    | rolled back, released | held
        an error with no step done                | rolled back, released | stored as failed
        an error with a step done                 | rolled back, released | held
        panic, or dropped                         | rolled back, released | held";

    fn applies(row: &str, policy: &Policy, ending: &Ending<'_>, known: &Known) -> bool {
        let mark = match ending {
            Ending::Value { mark } | Ending::Error { mark, .. } => *mark,
            _ => None,
        };
        let (is_value, is_error) = (matches!(ending, Ending::Value { .. }), matches!(ending, Ending::Error { .. }));
        match row {
            "broken, or two steps open" => known.broken || known.open >= 2,
            "nothing ran, behind a lost attempt" => *ending == Ending::Unused && known.follows_lost,
            "nothing ran" => *ending == Ending::Unused,
            "unsure" => known.unsure,
            "marked unknown" => mark == Some(Mark::Unknown),
            "one step open, and a value or no mark" => known.open == 1 && (is_value || mark.is_none()),
            "marked release" => mark == Some(Mark::Release),
            "marked final, or an unmarked value" => mark == Some(Mark::Final) || is_value,
            "a rejection code" => is_error && matches!(ending, Ending::Error { code: Some("FORBIDDEN"), .. }),
            "misuse, every effect a step and none done" => {
                *ending == Ending::Misuse && policy.on_crash == OnCrash::Resume && !known.done
            }
            "misuse" => *ending == Ending::Misuse,
            "an error with no step done" => is_error && !known.done,
            "an error with a step done" => is_error && known.done,
            "panic, or dropped" => matches!(ending, Ending::Panicked | Ending::Dropped),
            other => panic!("no such row: {other}"),
        }
    }

    fn expected(policy: &Policy, ending: &Ending<'_>, known: &Known) -> Fate {
        let rows = TABLE.trim().lines().map(|row| row.split('|').map(str::trim).collect::<Vec<_>>());
        let row = rows.into_iter().find(|row| applies(row[0], policy, ending, known)).unwrap();
        let cell = if policy.effects == Effects::Transactional { row[1] } else { row[2] };
        match cell {
            "rolled back" | "rolled back, released" | "released" => Fate::Release { stays: known.traced },
            "held" => Fate::Hold,
            "stored" if matches!(ending, Ending::Value { .. }) => Fate::Complete(Outcome::Succeeded),
            "stored" | "stored as failed" => Fate::Complete(Outcome::Failed),
            other => panic!("no such fate: {other}"),
        }
    }

    fn policies() -> [Policy; 4] {
        let leased = Policy::leased;
        [Policy::transactional(), leased(), leased().on_crash(OnCrash::Resume), leased().on_crash(OnCrash::Release)]
    }

    fn endings() -> Vec<Ending<'static>> {
        let marks = [None, Some(Mark::Release), Some(Mark::Final), Some(Mark::Unknown)];
        let codes = [None, Some("FORBIDDEN"), Some("DECLINED")];
        let values = marks.map(|mark| Ending::Value { mark });
        let errors = marks.iter().flat_map(|mark| codes.map(|code| Ending::Error { mark: *mark, code }));
        let others = [Ending::Misuse, Ending::Panicked, Ending::Dropped, Ending::Unused];
        values.into_iter().chain(errors).chain(others).collect()
    }

    fn knowns() -> impl Iterator<Item = Known> {
        (0..96_usize).map(|bits| {
            let bit = |n: usize| bits >> n & 1 == 1;
            Known {
                open: bits / 32,
                done: bit(0),
                follows_lost: bit(1),
                unsure: bit(2),
                broken: bit(3),
                traced: bit(4),
            }
        })
    }

    #[test]
    fn every_combination_has_the_fate_that_the_table_gives_it() {
        let mut combinations = 0;
        for policy in policies() {
            for ending in endings() {
                for known in knowns() {
                    combinations += 1;
                    let case = format!("{:?} {:?}, {ending:?}, {known:?}", policy.effects, policy.on_crash);
                    assert_eq!(fate(&policy, &ending, &known), expected(&policy, &ending, &known), "{case}");
                }
            }
        }
        assert_eq!(combinations, 4 * 20 * 96);
    }

    #[test]
    fn what_others_say_of_a_lost_attempt_decides_whatever_is_known_of_it() {
        for policy in policies() {
            let lost = match policy.on_crash {
                OnCrash::Hold => Fate::Hold,
                OnCrash::Resume => Fate::Resume,
                OnCrash::Release => Fate::Release { stays: true },
            };
            for known in knowns() {
                for (ending, expected) in [
                    (Ending::Told(Told::Succeeded), Fate::Complete(Outcome::Succeeded)),
                    (Ending::Told(Told::Failed), Fate::Complete(Outcome::Failed)),
                    (Ending::Told(Told::NotStarted), Fate::Release { stays: true }),
                    (Ending::Lost, lost),
                ] {
                    assert_eq!(fate(&policy, &ending, &known), expected, "{ending:?}, {known:?}");
                }
            }
        }
    }

    #[test]
    fn a_doubt_is_never_told_as_success_and_a_deleted_record_leaves_no_trace() {
        for policy in policies() {
            for ending in endings() {
                for known in knowns() {
                    let fate = fate(&policy, &ending, &known);
                    let case = format!("{:?}, {ending:?}, {known:?}: {fate:?}", policy.effects);
                    if known.broken || known.unsure || known.open > 1 {
                        assert!(!matches!(fate, Fate::Complete(_)), "{case}");
                    }
                    if known.traced {
                        assert_ne!(fate, Fate::Release { stays: false }, "{case}");
                    }
                    let passes = fate.lets_pass(&ending);
                    match (ending, fate) {
                        (Ending::Error { .. } | Ending::Misuse, _) | (Ending::Value { .. }, Fate::Complete(_)) => {
                            assert!(passes, "{case}");
                        }
                        (Ending::Value { mark }, Fate::Release { .. }) => {
                            assert_eq!(passes, mark == Some(Mark::Release), "{case}");
                        }
                        _ => assert!(!passes, "{case}"),
                    }
                }
            }
        }
    }

    #[test]
    fn every_mark_parses_back() {
        for mark in Mark::ALL {
            assert_eq!(Mark::parse(mark.as_str()), Some(mark));
        }
        assert_eq!(Mark::parse("done"), None);
        assert!(!Fate::Hold.lets_pass(&Ending::Lost) && !Fate::Resume.lets_pass(&Ending::Told(Told::Succeeded)));
    }
}
