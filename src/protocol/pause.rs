//! The pauses between looks at the store, each longer than the one before.

use std::time::Duration;

use tokio::time::Instant;

/// The pauses of one wait.
pub(crate) struct Pause(Duration);

impl Pause {
    const FIRST: Duration = Duration::from_millis(4);
    const LONGEST: Duration = Duration::from_millis(100);

    pub(crate) fn new() -> Self {
        Self(Self::FIRST)
    }

    /// Begins the next pause, and returns when it is over.
    pub(crate) fn end(&mut self) -> Instant {
        let pause = self.0;
        self.0 = (pause * 3 / 2).min(Self::LONGEST);
        Instant::now() + pause
    }
}
