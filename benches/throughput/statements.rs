//! The statements of the lanes alone, without the engine and the extension: what is left is the database's.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicI32, Ordering},
    },
    time::Duration,
};

use async_graphql_idempotency::{
    ClientId, IdempotencyKey, OnCrash, PostgresStore, Store,
    claim::ClaimRequest,
    fingerprint::Fingerprint,
    record::Settlement,
    state::Outcome,
    store::{Claimed, From},
};
use sqlx::PgPool;
use uuid::Uuid;

use super::lanes::{EFFECT, HAND_CLAIM, HAND_FINISH, NOTE, ROWS};
use crate::support::load::Lane;

/// From (b) to (g), on the tables that the lanes have made and filled.
pub(crate) async fn lanes(pool: PgPool) -> [Lane; 6] {
    let store = PostgresStore::new(pool.clone());
    for id in 0..ROWS {
        let request = request(id.to_string());
        let from = From::Transaction(None, &request);
        assert!(store.settle(&request.first_owner(), from, &finish()).await.unwrap());
    }
    [
        lane("b", &pool, by_hand),
        lane("c", &store, transactional),
        lane("d", &pool, around),
        lane("e", &store, leased),
        lane("f", &pool, query),
        lane("g", &store, replay),
    ]
}

fn lane<T, F>(name: &'static str, on: &T, work: impl Fn(T, i32) -> F + Send + Sync + 'static) -> Lane
where
    T: Clone + Send + Sync + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let (on, count) = (on.clone(), Arc::new(AtomicI32::new(0)));
    Lane::new(name, move || work(on.clone(), count.fetch_add(1, Ordering::Relaxed)))
}

fn request(key: impl Into<String>) -> ClaimRequest {
    ClaimRequest {
        client: ClientId::hashed("statements"),
        key: IdempotencyKey::new(key.into()).unwrap(),
        mutation: "transactional".into(),
        fingerprint: Fingerprint { version: Fingerprint::VERSION, hash: [7; 32] },
        selection: "id amount currency note".into(),
        request_id: Uuid::new_v4(),
        lease: Duration::from_secs(30),
        retention: Duration::from_hours(24),
        on_crash: OnCrash::Hold,
        request: None,
        resumes: false,
    }
}

fn response() -> String {
    format!(r#"{{"id":"{}","amount":4900,"currency":"EUR","note":"{NOTE}"}}"#, Uuid::nil())
}

fn finish() -> Settlement {
    Settlement::Complete {
        outcome: Outcome::Succeeded,
        response: Some(response().into_bytes()),
        retention: Duration::from_hours(24),
        reason: None,
    }
}

async fn by_hand(pool: PgPool, amount: i32) {
    let (client, key) = (ClientId::hashed("statements"), Uuid::new_v4().to_string());
    let mut tx = pool.begin().await.unwrap();
    let claim = sqlx::query(HAND_CLAIM).bind(client.as_str()).bind(&key).bind(&[7_u8; 32][..]);
    assert_eq!(claim.execute(&mut *tx).await.unwrap().rows_affected(), 1);
    sqlx::query(EFFECT).bind("label").bind(amount).execute(&mut *tx).await.unwrap();
    let finish = sqlx::query(HAND_FINISH).bind(client.as_str()).bind(&key).bind(response());
    finish.execute(&mut *tx).await.unwrap();
    tx.commit().await.unwrap();
}

async fn transactional(store: PostgresStore, amount: i32) {
    let request = request(Uuid::new_v4());
    let Claimed::Taken(mut key) = store.begin(&request).await.unwrap() else {
        panic!("a fresh key was not taken");
    };
    sqlx::query(EFFECT).bind("label").bind(amount).execute(&mut *key.transaction).await.unwrap();
    let from = From::Transaction(Some(key.transaction), &request);
    assert!(store.settle(&key.owner, from, &finish()).await.unwrap());
}

async fn around(pool: PgPool, _: i32) {
    let (client, key) = (ClientId::hashed("statements"), Uuid::new_v4().to_string());
    let claim = sqlx::query(HAND_CLAIM).bind(client.as_str()).bind(&key).bind(&[7_u8; 32][..]);
    claim.execute(&pool).await.unwrap();
    let finish = sqlx::query(HAND_FINISH).bind(client.as_str()).bind(&key).bind(response());
    finish.execute(&pool).await.unwrap();
}

async fn leased(store: PostgresStore, _: i32) {
    let request = request(Uuid::new_v4());
    let Claimed::Taken(key) = store.claim(&request).await.unwrap() else {
        panic!("a fresh key was not taken");
    };
    assert!(store.settle(&key.owner, From::Open, &finish()).await.unwrap());
}

/// One of the rows that the lanes have filled in.
fn row_of(count: i32) -> i32 {
    count.rem_euclid(i32::try_from(ROWS).unwrap())
}

async fn query(pool: PgPool, count: i32) {
    let row = sqlx::query("SELECT id, amount, currency, note FROM receipts WHERE id = $1");
    row.bind(row_of(count)).fetch_one(&pool).await.unwrap();
}

async fn replay(store: PostgresStore, count: i32) {
    let key = IdempotencyKey::new(row_of(count).to_string()).unwrap();
    assert!(store.find(&ClientId::hashed("statements"), &key).await.unwrap().is_some());
}
