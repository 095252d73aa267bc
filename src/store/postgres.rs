//! [`PostgresStore`]: SQL and transactions, nothing else.
//!
//! Plain tables and static statements; no session state, no `LISTEN`, no session-level locks. The primary key ensures
//! that no key is settled twice. A transaction marks the key that it holds by an advisory lock (`by_lock`) or, on
//! request, by its record (`by_row`), so that nobody waits inside the database for it.

use std::{sync::Arc, time::Duration};

use sqlx::{
    AssertSqlSafe, PgConnection, PgPool, Postgres, Row,
    postgres::{PgArguments, PgPoolOptions, PgRow},
    query::Query,
};
use tokio::sync::{OnceCell, Semaphore};

use crate::{
    claim::{ClaimRequest, Verdict, decide},
    key::{ClientId, IdempotencyKey},
    record::{Owner, Reading, RecoveryPoint, Settlement},
    store::{
        CLAIM_TRIES, Claimed, From, Store, StoreError, Taken,
        row::{bind_claim, bind_fence, bind_key, bind_point, bind_take_over, milliseconds, read_point, read_record},
    },
};

mod by_lock;
mod by_row;
mod failure;
mod ground;
mod migrations;
mod session;
mod settling;
#[rustfmt::skip]
mod sql;
mod time;
mod upkeep;

pub use session::Transaction;

use failure::{During, failed, is_serialization_failure};
use ground::Ground;
use session::{Session, lent};

/// Records in Postgres, for production.
#[derive(Clone, Debug)]
pub struct PostgresStore {
    pool: PgPool,
    namespace: Arc<str>,
    schema: Option<Arc<str>>,
    transaction_pooling: bool,
    advisory_locks: bool,
    kept: Arc<[String]>,
    /// The connections that transactional attempts may hold at once.
    lent: Arc<Semaphore>,
    ground: Arc<OnceCell<Ground>>,
}

/// Runs statements as one atomic unit, and runs them again where the isolation level made them fail.
///
/// A macro, because the compiler can't yet prove the future of a generic function over an async closure `Send`.
macro_rules! atomically {
    ($store:expr, |$connection:ident| $statements:block) => {{
        let mut tries = 0;
        loop {
            tries += 1;
            let mut session = $store.session().await?;
            let result = async {
                let $connection: &mut sqlx::PgConnection = &mut session;
                $statements
            }
            .await;
            match session.finish(result).await {
                Err(error) if tries < SERIALIZATION_TRIES && is_serialization_failure(&error) => {}
                result => break result.map_err(|error| failed(error, During::Statement)),
            }
        }
    }};
}

use atomically;

/// How often statements are run that fail because of the isolation level or a deadlock.
const SERIALIZATION_TRIES: usize = 8;

impl PostgresStore {
    /// A store on an application's own pool: a transactional mutation works in the application's database.
    #[must_use]
    pub fn new(pool: PgPool) -> Self {
        let connections = pool.options().get_max_connections();
        Self {
            namespace: "".into(),
            schema: None,
            transaction_pooling: false,
            advisory_locks: true,
            kept: Arc::default(),
            lent: lent(connections, connections / 4),
            ground: Arc::default(),
            pool,
        }
    }

    /// A store on a pool of its own, with sqlx's defaults.
    ///
    /// # Errors
    /// [`StoreError::Undone`] when the database can't be reached.
    pub async fn connect(url: &str) -> Result<Self, StoreError> {
        let pool = PgPoolOptions::new().connect(url).await;
        Ok(Self::new(pool.map_err(|error| failed(error, During::Transaction))?))
    }

    /// Keeps the records of this service, or environment, apart from others in the same tables. A short word of up to
    /// 63 bytes; empty by default.
    #[must_use]
    pub fn namespace(mut self, name: &str) -> Self {
        self.namespace = name.into();
        self
    }

    /// The schema of the tables. By default the connection's search path decides, when the store is first used.
    #[must_use]
    pub fn schema(mut self, name: &str) -> Self {
        self.schema = Some(ground::quoted(name).into());
        self.ground = Arc::default();
        self
    }

    /// For a pool behind `PgBouncer` (or another pooler) in transaction mode: no prepared statement outlives its
    /// transaction, at the price of more round trips.
    #[must_use]
    pub fn transaction_pooling(mut self) -> Self {
        self.transaction_pooling = true;
        self
    }

    /// For an engine that speaks `PostgreSQL`'s protocol and has no transaction-level advisory locks: a transactional
    /// mutation takes its key by a row that is committed with its effects.
    ///
    /// It is slower, by two statements and two more round trips. A duplicate in another process holds its connection
    /// for up to 20 ms at each look, and a key that is reused while it is held is refused only after the transaction
    /// has ended. All processes that share the tables must agree on it.
    #[must_use]
    pub fn without_advisory_locks(mut self) -> Self {
        self.advisory_locks = false;
        self
    }

    /// Settings that resolvers change for their transaction, and that the store needs as they were before: `role`, or
    /// one that a policy of row-level security on the records looks at. They are put back before the record is
    /// written, for one more round trip at the beginning and one at the end.
    #[must_use]
    pub fn keep_settings<N: Into<String>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.kept = names.into_iter().map(Into::into).collect();
        self
    }

    /// How many of the pool's connections transactional attempts never hold, so that resolvers below them, which read
    /// through the pool, get one. By default a quarter; a pool of less than four leaves none.
    #[must_use]
    pub fn leave_free(mut self, connections: u32) -> Self {
        self.lent = lent(self.pool.options().get_max_connections(), connections);
        self
    }

    /// The pool.
    #[must_use]
    pub fn pool(&self) -> &PgPool {
        &self.pool
    }

    fn query(&self, statement: &Arc<str>) -> Query<'static, Postgres, PgArguments> {
        sqlx::query(AssertSqlSafe(Arc::clone(statement))).persistent(!self.transaction_pooling)
    }

    fn static_query(&self, statement: &'static str) -> Query<'static, Postgres, PgArguments> {
        sqlx::query(statement).persistent(!self.transaction_pooling)
    }

    async fn session(&self) -> Result<Session, StoreError> {
        self.open_session().await.map_err(|error| failed(error, During::Transaction))
    }

    async fn open_session(&self) -> Result<Session, sqlx::Error> {
        let connection = self.pool.acquire().await?;
        Ok(if self.transaction_pooling {
            Session::Transaction(Transaction::begin(connection).await?)
        } else {
            Session::Connection(connection)
        })
    }

    async fn open_transaction(&self) -> Result<Transaction, StoreError> {
        let begun = async { Transaction::begin(self.pool.acquire().await?).await };
        begun.await.map_err(|error| failed(error, During::Transaction))
    }

    /// The steps of a record.
    async fn steps_in(
        &self,
        ground: &Ground,
        connection: &mut PgConnection,
        of: &Owner,
    ) -> Result<Vec<RecoveryPoint>, sqlx::Error> {
        let rows = bind_key!(self.query(&ground.steps), self.namespace, of).fetch_all(connection).await?;
        rows.iter().map(|row| read_point!(row)).collect()
    }

    /// The result of a claim that has met a record: the record, or its take-over. None when the record was deleted or
    /// changed meanwhile.
    async fn meet(
        &self,
        ground: &Ground,
        connection: &mut PgConnection,
        request: &ClaimRequest,
    ) -> Result<Option<Claimed<()>>, sqlx::Error> {
        let find = bind_key!(self.query(&ground.find), self.namespace, request);
        let Some(row) = find.fetch_optional(&mut *connection).await? else { return Ok(None) };
        let reading = read_reading(&row, &request.client, &request.key)?;
        let record = &*reading.record;
        if decide(Some(record), request, reading.now) != Verdict::TakeOver {
            return Ok(Some(Claimed::Found(reading)));
        }
        let take_over = bind_take_over!(self.query(&ground.take_over), self.namespace, request, record);
        if take_over.execute(&mut *connection).await?.rows_affected() == 0 {
            return Ok(None);
        }
        let (owner, from, created_at) = (record.next_owner(), Some(record.state), record.created_at);
        let steps = self.steps_in(ground, connection, &owner).await?;
        Ok(Some(Claimed::Taken(Taken { owner, created_at, from, steps, transaction: () })))
    }
}

impl Store for PostgresStore {
    type Transaction = Transaction;
    type Connection = PgConnection;

    async fn claim(&self, request: &ClaimRequest) -> Result<Claimed<()>, StoreError> {
        let ground = self.ground().await?;
        for _ in 0..CLAIM_TRIES {
            let claimed = atomically!(self, |connection| {
                if !request.resumes {
                    let claim = bind_claim!(self.query(&ground.claim), self.namespace, request);
                    if let Some(row) = claim.fetch_optional(&mut *connection).await? {
                        let (owner, created_at) = (request.first_owner(), row.try_get("created_at")?);
                        let taken = Taken { owner, created_at, from: None, steps: Vec::new(), transaction: () };
                        return Ok(Some(Claimed::Taken(taken)));
                    }
                }
                self.meet(ground, connection, request).await
            })?;
            if let Some(claimed) = claimed {
                return Ok(claimed);
            }
        }
        Ok(Claimed::Busy { reused: false })
    }

    async fn begin(&self, request: &ClaimRequest) -> Result<Claimed<Transaction>, StoreError> {
        let ground = self.ground().await?;
        let permit = Arc::clone(&self.lent).acquire_owned().await;
        let permit = permit.map_err(|closed| StoreError::Undone(closed.into()))?;
        let mut claimed = if self.advisory_locks {
            self.begin_by_lock(ground, request).await?
        } else {
            self.begin_by_row(ground, request).await?
        };
        if let Claimed::Taken(Taken { transaction, .. }) = &mut claimed {
            transaction.permit = Some(permit);
            self.keep(transaction).await.map_err(|error| failed(error, During::Transaction))?;
        }
        Ok(claimed)
    }

    async fn renew(&self, owner: &Owner, lease: Duration) -> Result<bool, StoreError> {
        let ground = self.ground().await?;
        atomically!(self, |connection| {
            let renew = bind_fence!(self.query(&ground.renew), self.namespace, owner).bind(milliseconds(lease));
            Ok(renew.execute(connection).await?.rows_affected() == 1)
        })
    }

    async fn transaction(&self, owner: &Owner) -> Result<Transaction, StoreError> {
        let ground = self.ground().await?;
        let mut tries = 0;
        loop {
            tries += 1;
            let mut transaction = self.open_transaction().await?;
            if ground.is_one_snapshot() {
                let hold_still = bind_fence!(self.query(&ground.hold_still), self.namespace, owner);
                match hold_still.execute(&mut *transaction).await {
                    Err(error) if tries < SERIALIZATION_TRIES && is_serialization_failure(&error) => continue,
                    held => held.map_err(|error| failed(error, During::Transaction))?,
                };
            }
            self.keep(&mut transaction).await.map_err(|error| failed(error, During::Transaction))?;
            return Ok(transaction);
        }
    }

    async fn checkpoint(
        &self,
        owner: &Owner,
        point: &RecoveryPoint,
        lease: Duration,
        transaction: Option<Transaction>,
    ) -> Result<bool, StoreError> {
        let ground = self.ground().await?;
        let write = || {
            let fenced = bind_fence!(self.query(&ground.checkpoint), self.namespace, owner).bind(milliseconds(lease));
            bind_point!(fenced, point)
        };
        let Some(mut transaction) = transaction else {
            return atomically!(self, |connection| { Ok(write().execute(connection).await?.rows_affected() > 0) });
        };
        let written = async {
            self.put_back(&mut transaction).await?;
            Ok(write().execute(&mut *transaction).await?.rows_affected() > 0)
        };
        if written.await.map_err(|error| failed(error, During::Transaction))? {
            transaction.commit().await.map(|()| true).map_err(|error| failed(error, During::Commit))
        } else {
            self.refuse(transaction, owner, |record| record.is_some_and(|record| record.is_open_to(owner))).await
        }
    }

    async fn settle(
        &self,
        owner: &Owner,
        from: From<'_, Transaction>,
        settlement: &Settlement,
    ) -> Result<bool, StoreError> {
        self.settle_from(owner, from, settlement).await
    }

    async fn find(&self, client: &ClientId, key: &IdempotencyKey) -> Result<Option<Reading>, StoreError> {
        let ground = self.ground().await?;
        atomically!(self, |connection| {
            let find = self.query(&ground.find).bind(&*self.namespace).bind(client.as_str()).bind(key.as_str());
            let row = find.fetch_optional(connection).await?;
            row.map(|row| read_reading(&row, client, key)).transpose()
        })
    }
}

fn read_reading(row: &PgRow, client: &ClientId, key: &IdempotencyKey) -> Result<Reading, sqlx::Error> {
    let record = Arc::new(read_record!(row, client.clone(), key.clone())?);
    Ok(Reading { record, now: row.try_get("now")? })
}
