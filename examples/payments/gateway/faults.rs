//! How the gateway misbehaves on request. Faults belong to the process: a restart clears them.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The faults in force.
#[derive(Debug, Clone, Copy, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Faults {
    /// How long an answer is held back once its charge is durable.
    pub(crate) latency_ms: u64,
    /// So many more answers are lost after their charge was made.
    pub(crate) drop_responses: u32,
    /// So many more charges are declined.
    pub(crate) decline: u32,
    /// Nothing is charged; a charge, or a question about one, is answered with 503.
    pub(crate) outage: bool,
}

/// The body of `POST /faults`: what is left out stays as it is.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct FaultsChange {
    latency_ms: Option<u64>,
    drop_responses: Option<u32>,
    decline: Option<u32>,
    outage: Option<bool>,
}

impl Faults {
    /// Puts the named faults in force.
    pub(crate) fn apply(&mut self, change: &FaultsChange) {
        self.latency_ms = change.latency_ms.unwrap_or(self.latency_ms);
        self.drop_responses = change.drop_responses.unwrap_or(self.drop_responses);
        self.decline = change.decline.unwrap_or(self.decline);
        self.outage = change.outage.unwrap_or(self.outage);
    }

    /// How long to hold an answer back.
    pub(crate) fn latency(&self) -> Duration {
        Duration::from_millis(self.latency_ms)
    }

    /// Uses up one declined charge, if one is due.
    pub(crate) fn take_decline(&mut self) -> bool {
        take(&mut self.decline)
    }

    /// Uses up one dropped response, if one is due.
    pub(crate) fn take_drop(&mut self) -> bool {
        take(&mut self.drop_responses)
    }
}

fn take(left: &mut u32) -> bool {
    let due = *left > 0;
    *left -= u32::from(due);
    due
}
