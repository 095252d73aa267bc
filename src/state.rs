//! The states of a record and the transitions between them.

use std::fmt;

/// Where a record stands. "We do not know" ([`State::NeedsRecovery`]) is a state of its own, never the
/// absence of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// An attempt holds the key, for as long as its lease runs. Never purged.
    InProgress,
    /// An attempt ended without anyone knowing how. Never purged: someone has to settle it.
    NeedsRecovery,
    /// Finished; the response is replayed until retention ends.
    Succeeded,
    /// Finished with a final error; the error is replayed until retention ends.
    Failed,
    /// Given back, with something that the next retry needs: it goes on behind the finished steps, and with the
    /// same request id.
    Released,
    /// What is left after retention: enough to refuse a very late retry.
    Tombstone,
}

impl State {
    /// Every state.
    pub const ALL: [Self; 6] =
        [Self::InProgress, Self::NeedsRecovery, Self::Succeeded, Self::Failed, Self::Released, Self::Tombstone];

    /// The word in the `state` column.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InProgress => "in_progress",
            Self::NeedsRecovery => "needs_recovery",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Released => "released",
            Self::Tombstone => "tombstone",
        }
    }

    /// The state that a word in the `state` column stands for.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == word)
    }

    /// Whether an attempt has the key, or nobody knows how it ended.
    #[must_use]
    pub fn is_open(self) -> bool {
        matches!(self, Self::InProgress | Self::NeedsRecovery)
    }

    /// Whether the outcome is known and kept.
    #[must_use]
    pub fn is_finished(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }

    /// The legal transitions. A finished record only ever becomes a tombstone.
    #[must_use]
    pub fn can_become(self, next: Self) -> bool {
        match self {
            // In progress again: taken over after its lease lapsed, as the next attempt.
            Self::InProgress => {
                matches!(next, Self::InProgress | Self::NeedsRecovery | Self::Succeeded | Self::Failed | Self::Released)
            }
            Self::NeedsRecovery => {
                matches!(next, Self::InProgress | Self::Succeeded | Self::Failed | Self::Released)
            }
            Self::Released => matches!(next, Self::InProgress | Self::Tombstone),
            Self::Succeeded | Self::Failed => matches!(next, Self::Tombstone),
            Self::Tombstone => false,
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
            assert_eq!(State::parse(state.as_str()), Some(state));
        }
        assert_eq!(State::parse("done"), None);
    }

    #[test]
    fn a_finished_record_only_becomes_a_tombstone() {
        for from in [State::Succeeded, State::Failed] {
            for to in State::ALL {
                assert_eq!(from.can_become(to), to == State::Tombstone, "{from} to {to}");
            }
        }
    }
}
