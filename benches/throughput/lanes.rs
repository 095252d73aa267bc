//! The mutations and the query that are compared, on one backend. Letters are those of benches/README.md.

/// Rows of the table that the query reads, and finished keys that are replayed.
pub(crate) const ROWS: usize = 2_000;

/// About 200 bytes of response, as JSON.
pub(crate) const NOTE: &str = "Thank you. The amount is taken from the card ending in 4242 and will be on your \
                               statement as EXAMPLE PAYMENTS within two days.";

pub(crate) const EFFECT: &str = "INSERT INTO effects (label, amount) VALUES ($1, $2)";
pub(crate) const HAND_CLAIM: &str = "INSERT INTO by_hand (client, key, fingerprint) VALUES ($1, $2, $3)
     ON CONFLICT (client, key) DO NOTHING";
pub(crate) const HAND_LOOK_UP: &str = "SELECT fingerprint, response FROM by_hand WHERE client = $1 AND key = $2";
pub(crate) const HAND_FINISH: &str = "UPDATE by_hand SET response = $3 WHERE client = $1 AND key = $2";

macro_rules! lanes {
    ($pool:ty, $store:ty, $begin:literal, $tables:literal) => {
        use std::sync::{
            Arc, LazyLock,
            atomic::{AtomicUsize, Ordering},
        };

        use async_graphql::{
            Context, EmptyMutation, EmptySubscription, ID, Object, Request, Result, Schema, SimpleObject,
            Variables,
        };
        use async_graphql_idempotency::{ClientId, Idempotency, IdempotencyContext, IdempotencyKey, Policy};
        use serde::{Deserialize, Serialize};
        use sha2::{Digest, Sha256};
        use sqlx::{Executor, Row};
        use uuid::Uuid;

        use super::{EFFECT, HAND_CLAIM, HAND_FINISH, HAND_LOOK_UP, NOTE, ROWS};
        use crate::support::load::Lane;

        #[derive(SimpleObject, Serialize, Deserialize)]
        struct Receipt {
            id: ID,
            amount: i32,
            currency: String,
            note: String,
        }

        impl Receipt {
            fn new(id: impl Into<ID>, amount: i32) -> Self {
                Self { id: id.into(), amount, currency: "EUR".into(), note: NOTE.into() }
            }
        }

        struct Query;

        #[Object]
        impl Query {
            /// (f), with the arguments of the mutations: the engine's own price of a document is the same.
            async fn receipt(&self, ctx: &Context<'_>, key: String, amount: i32, label: String) -> Result<Receipt> {
                drop((amount, label));
                let id: i32 = key.parse()?;
                let pool = ctx.data::<$pool>()?;
                let row = sqlx::query("SELECT id, amount, currency, note FROM receipts WHERE id = $1");
                let row = row.bind(id).fetch_one(pool).await?;
                let (id, amount) = (row.try_get::<i32, _>("id")?.into(), row.try_get("amount")?);
                Ok(Receipt { id, amount, currency: row.try_get("currency")?, note: row.try_get("note")? })
            }
        }

        struct Bare;

        #[Object]
        impl Bare {
            /// (a)
            async fn unprotected(&self, ctx: &Context<'_>, key: String, amount: i32, label: String) -> Result<Receipt> {
                let mut tx = ctx.data::<$pool>()?.begin_with($begin).await?;
                sqlx::query(EFFECT).bind(&label).bind(amount).execute(&mut *tx).await?;
                tx.commit().await?;
                Ok(Receipt::new(key, amount))
            }

            /// (b)
            async fn by_hand(&self, ctx: &Context<'_>, key: String, amount: i32, label: String) -> Result<Receipt> {
                let client = ctx.data::<ClientId>()?.as_str();
                let fingerprint = &Sha256::digest(serde_json::to_vec(&("byHand", amount, &label))?)[..];
                let mut tx = ctx.data::<$pool>()?.begin_with($begin).await?;
                let claim = sqlx::query(HAND_CLAIM).bind(client).bind(&key).bind(fingerprint);
                if claim.execute(&mut *tx).await?.rows_affected() == 0 {
                    let found = sqlx::query(HAND_LOOK_UP).bind(client).bind(&key).fetch_one(&mut *tx).await?;
                    if found.try_get::<Vec<u8>, _>("fingerprint")? != fingerprint {
                        return Err("the key was used for another request".into());
                    }
                    return Ok(serde_json::from_str(found.try_get("response")?)?);
                }
                sqlx::query(EFFECT).bind(&label).bind(amount).execute(&mut *tx).await?;
                let receipt = Receipt::new(&key, amount);
                let response = serde_json::to_string(&receipt)?;
                sqlx::query(HAND_FINISH).bind(client).bind(&key).bind(response).execute(&mut *tx).await?;
                tx.commit().await?;
                Ok(receipt)
            }

            /// (d): committed before and after an effect that is elsewhere.
            async fn around(&self, ctx: &Context<'_>, key: String, amount: i32, label: String) -> Result<Receipt> {
                let pool = ctx.data::<$pool>()?;
                let client = ctx.data::<ClientId>()?.as_str();
                let fingerprint = &Sha256::digest(serde_json::to_vec(&("around", amount, &label))?)[..];
                sqlx::query(HAND_CLAIM).bind(client).bind(&key).bind(fingerprint).execute(pool).await?;
                let receipt = Receipt::new(&key, amount);
                let response = serde_json::to_string(&receipt)?;
                sqlx::query(HAND_FINISH).bind(client).bind(&key).bind(response).execute(pool).await?;
                Ok(receipt)
            }
        }

        struct Protected;

        #[Object]
        impl Protected {
            /// (c)
            async fn transactional(
                &self,
                ctx: &Context<'_>,
                key: IdempotencyKey,
                amount: i32,
                label: String,
            ) -> Result<Receipt> {
                let attempt = ctx.attempt::<$store>()?;
                let mut tx = attempt.transaction().await?;
                sqlx::query(EFFECT).bind(&label).bind(amount).execute(&mut *tx).await?;
                Ok(Receipt::new(key.to_string(), amount))
            }

            /// (e)
            async fn leased(&self, key: IdempotencyKey, amount: i32, label: String) -> Receipt {
                drop(label);
                Receipt::new(key.to_string(), amount)
            }
        }

        fn request(operation: &str, field: &str, key_type: &str, client: &ClientId, key: &str) -> Request {
            let document = format!(
                "{operation} Pay($key: {key_type}!, $amount: Int!, $label: String!) {{
                    {field}(key: $key, amount: $amount, label: $label) {{ id amount currency note }}
                }}"
            );
            let variables = serde_json::json!({ "key": key, "amount": 4900, "label": "order 4711, two of them" });
            Request::new(document).variables(Variables::from_json(variables)).data(client.clone())
        }

        fn mutation(field: &str, key_type: &str, client: &ClientId, key: &str) -> Request {
            request("mutation", field, key_type, client, key)
        }

        /// Makes the tables, fills them, and gives the lanes from (a) to (g).
        pub(crate) async fn lanes(pool: $pool) -> [Lane; 7] {
            pool.execute(sqlx::raw_sql($tables)).await.unwrap();
            for id in 0..i32::try_from(ROWS).unwrap() {
                let row = "INSERT INTO receipts (id, amount, currency, note) VALUES ($1, 4900, 'EUR', $2)";
                sqlx::query(row).bind(id).bind(NOTE).execute(&pool).await.unwrap();
            }
            let store = <$store>::new(pool.clone());
            store.migrate().await.unwrap();
            let bare = Schema::build(Query, Bare, EmptySubscription).data(pool.clone()).finish();
            let queries = Schema::build(Query, EmptyMutation, EmptySubscription).data(pool).finish();
            let idempotency = Idempotency::builder(store)
                .policy("transactional", Policy::transactional())
                .policy("leased", Policy::leased())
                .build()
                .unwrap();
            let protected = Schema::build(Query, Protected, EmptySubscription).extension(idempotency.clone()).finish();
            idempotency.verify(&protected).await.unwrap();
            for key in 0..ROWS {
                let client = &CLIENTS[key % CLIENTS.len()];
                let request = mutation("transactional", "IdempotencyKey", client, &key.to_string());
                execute(&protected, request, false).await;
            }

            let fresh = Arc::new(AtomicUsize::new(0));
            let bare = |letter, field| {
                let (schema, fresh) = (bare.clone(), Arc::clone(&fresh));
                let work = async move |schema: Schema<_, _, _>, request| execute(&schema, request, false).await;
                Lane::new(letter, move || work(schema.clone(), next(&fresh, field, "String")))
            };
            let guarded = |letter, field| {
                let (schema, fresh) = (protected.clone(), Arc::clone(&fresh));
                let work = async move |schema: Schema<_, _, _>, request| execute(&schema, request, false).await;
                Lane::new(letter, move || work(schema.clone(), next(&fresh, field, "IdempotencyKey")))
            };
            let row = Arc::clone(&fresh);
            let query = Lane::new("f", move || {
                let (schema, id) = (queries.clone(), row.fetch_add(1, Ordering::Relaxed) % ROWS);
                let request = request("query", "receipt", "String", &CLIENTS[0], &id.to_string());
                async move { execute(&schema, request, false).await }
            });
            let (again, key) = (protected.clone(), Arc::clone(&fresh));
            let replay = Lane::new("g", move || {
                let (schema, key) = (again.clone(), key.fetch_add(1, Ordering::Relaxed) % ROWS);
                let client = &CLIENTS[key % CLIENTS.len()];
                let request = mutation("transactional", "IdempotencyKey", client, &key.to_string());
                async move { execute(&schema, request, true).await }
            });
            [
                bare("a", "unprotected"),
                bare("b", "byHand"),
                guarded("c", "transactional"),
                bare("d", "around"),
                guarded("e", "leased"),
                query,
                replay,
            ]
        }

        /// As many as a service has at a time, named as hashed tokens are.
        static CLIENTS: LazyLock<Vec<ClientId>> =
            LazyLock::new(|| (0..200).map(|client: u32| ClientId::hashed(client.to_string())).collect());

        fn next(fresh: &AtomicUsize, field: &str, key_type: &str) -> Request {
            let client = &CLIENTS[fresh.fetch_add(1, Ordering::Relaxed) % CLIENTS.len()];
            mutation(field, key_type, client, &Uuid::new_v4().to_string())
        }

        async fn execute(schema: &impl async_graphql::Executor, request: Request, replayed: bool) {
            let response = schema.execute(request).await;
            assert!(response.errors.is_empty(), "{:?}", response.errors);
            assert_eq!(response.extensions.contains_key("idempotency"), replayed);
        }
    };
}

pub(crate) mod postgres {
    lanes!(
        sqlx::PgPool,
        async_graphql_idempotency::PostgresStore,
        "BEGIN",
        r#"
        CREATE TABLE effects (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, label text, amount integer);
        CREATE TABLE by_hand (
            client text COLLATE "C", key text COLLATE "C", fingerprint bytea NOT NULL, response text,
            created_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (client, key)
        );
        CREATE TABLE receipts (id integer PRIMARY KEY, amount integer, currency text, note text);
        "#
    );
}

pub(crate) mod sqlite {
    lanes!(
        sqlx::SqlitePool,
        async_graphql_idempotency::SqliteStore,
        "BEGIN IMMEDIATE",
        r"
        CREATE TABLE effects (id INTEGER PRIMARY KEY, label TEXT, amount INTEGER);
        CREATE TABLE by_hand (
            client TEXT, key TEXT, fingerprint BLOB NOT NULL, response TEXT,
            created_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP, PRIMARY KEY (client, key)
        );
        CREATE TABLE receipts (id INTEGER PRIMARY KEY, amount INTEGER, currency TEXT, note TEXT);
        "
    );
}
