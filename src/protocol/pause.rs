//! The pauses between looks at the store, each longer than the one before.

use std::time::Duration;

use tokio::time::Instant;

/// The pauses of one wait.
pub(crate) struct Pause {
    next: Duration,
    longest: Duration,
}

impl Pause {
    const FIRST: Duration = Duration::from_millis(4);

    /// Of someone whose client waits.
    pub(crate) fn brief() -> Self {
        Self { next: Self::FIRST, longest: Duration::from_millis(100) }
    }

    /// Of work that nobody waits for: a database that fails for long is not asked too often.
    pub(crate) fn patient() -> Self {
        Self { next: Self::FIRST, longest: Duration::from_secs(1) }
    }

    /// Begins the next pause, and returns when it is over.
    pub(crate) fn end(&mut self) -> Instant {
        let pause = self.next;
        self.next = (pause * 3 / 2).min(self.longest);
        Instant::now() + pause
    }
}
