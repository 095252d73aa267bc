//! The states of a record and the transitions between them.

use std::fmt;

/// Where a record stands. "We do not know" ([`State::NeedsRecovery`]) is a state of its own, never the
/// absence of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// An attempt holds the key, for as long as its lease runs. Never purged.
    InProgress,
    /// The mutation has ended with this outcome, and its document still runs. Other requests wait for the end of the
    /// document; once the lease has lapsed, the stored outcome stands. Never purged.
    Settling(Outcome),
    /// An attempt ended without anyone knowing how. Never purged: someone has to settle it.
    NeedsRecovery,
    /// Finished; the response is replayed until retention ends.
    Succeeded,
    /// Finished with a final error; the error is replayed until retention ends.
    Failed,
    /// Given back, but the record stays, because the next retry needs it: it skips the finished steps and uses the
    /// same request id.
    Released,
    /// What is left after retention: enough to refuse a very late retry, and to tell how the key ended.
    Tombstone(Ended),
}

/// How a mutation finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// With a response.
    Succeeded,
    /// With an error that is final.
    Failed,
}

/// How a key ended, as its tombstone keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ended {
    /// Its mutation succeeded.
    Succeeded,
    /// Its mutation failed for good.
    Failed,
    /// It was given back, and no retry took it.
    Released,
}

impl State {
    /// Every state.
    pub const ALL: [Self; 10] = [
        Self::InProgress,
        Self::Settling(Outcome::Succeeded),
        Self::Settling(Outcome::Failed),
        Self::NeedsRecovery,
        Self::Succeeded,
        Self::Failed,
        Self::Released,
        Self::Tombstone(Ended::Succeeded),
        Self::Tombstone(Ended::Failed),
        Self::Tombstone(Ended::Released),
    ];

    /// The word in the `state` column.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InProgress => "in_progress",
            Self::Settling(Outcome::Succeeded) => "settling_succeeded",
            Self::Settling(Outcome::Failed) => "settling_failed",
            Self::NeedsRecovery => "needs_recovery",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Released => "released",
            Self::Tombstone(Ended::Succeeded) => "tombstone_succeeded",
            Self::Tombstone(Ended::Failed) => "tombstone_failed",
            Self::Tombstone(Ended::Released) => "tombstone_released",
        }
    }

    /// The state that a word in the `state` column stands for.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == word)
    }

    /// Whether an attempt has the key, or its outcome is unknown. In these states the owner may still write.
    #[must_use]
    pub fn is_open(self) -> bool {
        matches!(self, Self::InProgress | Self::Settling(_) | Self::NeedsRecovery)
    }

    /// Whether the outcome is known and kept.
    #[must_use]
    pub fn is_finished(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }

    /// Whether only the tombstone is left.
    #[must_use]
    pub fn is_tombstone(self) -> bool {
        matches!(self, Self::Tombstone(_))
    }

    /// The legal transitions. A finished record only ever becomes a tombstone.
    #[must_use]
    pub fn can_become(self, next: Self) -> bool {
        match self {
            // In progress again: taken over after its lease lapsed, or renewed by the owner that was believed lost.
            Self::InProgress | Self::NeedsRecovery => !next.is_tombstone(),
            Self::Settling(outcome) => next == self || next == outcome.state(),
            Self::Released => {
                matches!(next, Self::InProgress | Self::Settling(_) | Self::Tombstone(Ended::Released))
                    || next.is_finished()
            }
            Self::Succeeded => next == Self::Tombstone(Ended::Succeeded),
            Self::Failed => next == Self::Tombstone(Ended::Failed),
            Self::Tombstone(_) => false,
        }
    }
}

impl Outcome {
    /// The state of a record with this outcome.
    #[must_use]
    pub fn state(self) -> State {
        match self {
            Self::Succeeded => State::Succeeded,
            Self::Failed => State::Failed,
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_parses_back() {
        for state in State::ALL {
            assert_eq!(State::parse(&state.to_string()), Some(state));
        }
        assert_eq!(State::parse("done"), None);
    }

    /// Each state, whether it is open, finished or a tombstone, and what it may become.
    #[test]
    fn the_transitions_are_those_of_the_diagram() {
        use State::{Failed, InProgress, NeedsRecovery, Released, Settling, Succeeded, Tombstone};
        let settling = [Settling(Outcome::Succeeded), Settling(Outcome::Failed)];
        let from_open = [InProgress, settling[0], settling[1], NeedsRecovery, Succeeded, Failed, Released];
        let from_released = [InProgress, settling[0], settling[1], Succeeded, Failed, Tombstone(Ended::Released)];
        let diagram: [(State, &str, &[State]); 10] = [
            (InProgress, "open", &from_open),
            (settling[0], "open", &[settling[0], Succeeded]),
            (settling[1], "open", &[settling[1], Failed]),
            (NeedsRecovery, "open", &from_open),
            (Succeeded, "finished", &[Tombstone(Ended::Succeeded)]),
            (Failed, "finished", &[Tombstone(Ended::Failed)]),
            (Released, "", &from_released),
            (Tombstone(Ended::Succeeded), "tombstone", &[]),
            (Tombstone(Ended::Failed), "tombstone", &[]),
            (Tombstone(Ended::Released), "tombstone", &[]),
        ];
        assert_eq!(diagram.map(|(state, ..)| state), State::ALL);
        for (from, kind, next) in diagram {
            assert_eq!(from.is_open(), kind == "open", "{from}");
            assert_eq!(from.is_finished(), kind == "finished", "{from}");
            assert_eq!(from.is_tombstone(), kind == "tombstone", "{from}");
            for to in State::ALL {
                assert_eq!(from.can_become(to), next.contains(&to), "{from} to {to}");
            }
        }
    }
}
