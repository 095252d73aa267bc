//! What a store finds out at its first use: the schema of its tables, whose name it puts into the statements, and
//! whether transactions read from one snapshot.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use super::sql;

macro_rules! statements {
    ($($name:ident: $template:ident),* $(,)?) => {
        /// The statements, each with the schema's name in it.
        #[derive(Debug)]
        pub(super) struct Ground {
            $(pub(super) $name: Arc<str>,)*
            /// Whether transactions read from one snapshot here, as far as was seen: see [`sql::LOCK`].
            one_snapshot: AtomicBool,
        }

        impl Ground {
            /// `schema` is quoted.
            pub(super) fn new(schema: &str, one_snapshot: bool) -> Self {
                let prefix = format!("{schema}.");
                Self {
                    $($name: sql::$template.replace("{}", &prefix).into(),)*
                    one_snapshot: AtomicBool::new(one_snapshot),
                }
            }
        }
    };
}

statements! {
    claim: CLAIM, take_over: TAKE_OVER, lock: LOCK, insert_settled: INSERT_SETTLED, settle_taken: SETTLE_TAKEN,
    renew: RENEW, settle: SETTLE, hold: HOLD, delete: DELETE, hold_still: HOLD_STILL, checkpoint: CHECKPOINT,
    steps: STEPS, find: FIND, list: LIST, count: COUNT, marks: MARKS, pass: PASS, age: AGE,
}

impl Ground {
    pub(super) fn is_one_snapshot(&self) -> bool {
        self.one_snapshot.load(Ordering::Relaxed)
    }

    pub(super) fn saw_one_snapshot(&self) {
        self.one_snapshot.store(true, Ordering::Relaxed);
    }
}

/// A name as SQL quotes it.
pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}
