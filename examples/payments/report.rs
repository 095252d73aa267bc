//! How the command tells that it failed: the error and everything that caused it, on one line.

use std::{error::Error, fmt};

/// An error on its way out of `main`, which prints it by its `Debug`.
pub(crate) struct Report(Box<dyn Error + Send + Sync>);

impl Report {
    /// A failure in words.
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self(message.into().into())
    }
}

impl<E: Error + Send + Sync + 'static> From<E> for Report {
    fn from(error: E) -> Self {
        Self(Box::new(error))
    }
}

impl fmt::Debug for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = self.0.to_string();
        let mut cause = self.0.source();
        while let Some(error) = cause {
            let words = error.to_string();
            // Some errors tell their cause themselves.
            if !line.ends_with(&words) {
                line = format!("{line}: {words}");
            }
            cause = error.source();
        }
        f.write_str(&line)
    }
}
