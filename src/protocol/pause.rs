//! Ever longer pauses between two looks at the store.

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

    /// When the next pause, which begins now, is over.
    pub(crate) fn end(&mut self) -> Instant {
        let pause = self.0;
        self.0 = (pause * 3 / 2).min(Self::LONGEST);
        Instant::now() + pause
    }
}
