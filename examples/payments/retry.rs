//! Statements that several processes send at the same moment when they start.

use std::time::Duration;

const ATTEMPTS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(50);

/// Repeats a statement that the database refuses because another process is at it too: `IF NOT EXISTS` isn't
/// enough where several make a table at once, Postgres lets them collide in its catalogue; and SQLite waits for
/// nobody while it is put in WAL mode. By the next attempt the winner is done.
pub(crate) async fn while_contended<T, F>(statement: impl Fn() -> F) -> Result<T, sqlx::Error>
where
    F: Future<Output = Result<T, sqlx::Error>>,
{
    for _ in 1..ATTEMPTS {
        match statement().await {
            Err(sqlx::Error::Database(_)) => tokio::time::sleep(PAUSE).await,
            done => return done,
        }
    }
    statement().await
}
