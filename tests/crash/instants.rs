//! Death at each instant: the key ends in the truth, and the effect is there once at the most.

use async_graphql::{Response, Value};
use async_graphql_idempotency::{PostgresStore, SqliteStore, State, store::Filter};
use uuid::Uuid;

use crate::{
    database::PostgresDatabase,
    gateway::Gateway,
    shop::{LEASE, Mutation, Order, Shop, client, dies, schema, send},
};

/// Dies at instant 1, 2, 3 and so on, until the mutation has no more; after each, its client retries.
async fn die_at_every_instant<S: Shop>(store: S, database: String, mutation: Mutation) {
    store.create().await;
    let (gateway, url) = Gateway::start().await;
    let mut instant = 0;
    loop {
        instant += 1;
        let order = Order {
            database: database.clone(),
            gateway: url.clone(),
            mutation,
            key: Uuid::new_v4().to_string(),
            instant,
        };
        let died = dies(&order).await;
        settle_and_judge(&store, &gateway, &Order { instant: 0, ..order }).await;
        if !died {
            break;
        }
    }
    let expected = match mutation {
        Mutation::Hold | Mutation::Resume | Mutation::Release => 20,
        Mutation::Reconciled | Mutation::Transactional => 6,
    };
    assert!(instant >= expected, "only {instant} instants");
}

async fn settle_and_judge<S: Shop>(store: &S, gateway: &Gateway, order: &Order) {
    let (schema, idempotency) = schema(store.clone(), order);
    let sweep = async || {
        let sweeper = idempotency.resume_with(schema.clone(), async |request, _, _| request).backoff(LEASE / 2);
        sweeper.run_once().await.unwrap();
    };
    let holds = |state| order.mutation == Mutation::Hold && state == State::NeedsRecovery;
    // Half of the keys are recovered without their client; what is reconciled always is.
    if order.key.as_bytes()[0].is_multiple_of(2) || order.mutation == Mutation::Reconciled {
        for _ in 0..40 {
            sweep().await;
            let found = store.find(&client(), &key_of(order)).await.unwrap();
            let is_over = |state: State| state.is_finished() || state == State::Released || holds(state);
            if found.is_none_or(|found| is_over(found.record.state)) {
                break;
            }
            tokio::time::sleep(LEASE / 4).await;
        }
    }
    let mut answer = send(&schema, order).await;
    for _ in 0..40 {
        let code = code_of(&answer);
        let is_held = order.mutation == Mutation::Hold && code.as_deref() == Some("IDEMPOTENCY_OUTCOME_UNKNOWN");
        if code.is_none() || is_held {
            break;
        }
        tokio::time::sleep(LEASE / 4).await;
        answer = send(&schema, order).await;
    }
    let again = send(&schema, order).await;
    assert_eq!((&answer.data, &answer.errors), (&again.data, &again.errors), "{order:?}");
    assert!(answer.is_ok() || order.mutation == Mutation::Hold, "{order:?}: {answer:?}");

    let charges = gateway.take_charges();
    let (orders, payments) = (store.rows("orders", &order.key).await, store.rows("payments", &order.key).await);
    match order.mutation {
        Mutation::Resume | Mutation::Release => {
            assert_eq!((charges, orders, payments), (1, 1, 1), "{order:?}: {answer:?}");
        }
        Mutation::Hold => assert!(charges <= 1 && orders <= 1 && payments <= 1, "{charges} {orders} {payments}"),
        Mutation::Reconciled => assert_eq!(charges, 1, "{order:?}: {answer:?}"),
        Mutation::Transactional => assert_eq!((orders, charges), (1, 0), "{order:?}: {answer:?}"),
    }
    if answer.is_ok() && order.mutation == Mutation::Hold {
        assert_eq!((charges, orders, payments), (1, 1, 1));
    }
    sweep().await;
    for record in store.list(&Filter { limit: 1_000, ..Filter::default() }).await.unwrap() {
        assert!(record.state.is_finished() || holds(record.state), "{order:?} left {record:?}");
        assert_eq!(record.request, None, "the stored request goes when the record is settled");
    }
}

fn code_of(answer: &Response) -> Option<String> {
    match answer.errors.first()?.extensions.as_ref()?.get("code")? {
        Value::String(code) => Some(code.clone()),
        _ => None,
    }
}

fn key_of(order: &Order) -> async_graphql_idempotency::IdempotencyKey {
    async_graphql_idempotency::IdempotencyKey::new(order.key.clone()).unwrap()
}

macro_rules! dies_at_every_instant {
    ($($law:ident: $mutation:ident),* $(,)?) => {
        $(mod $law {
            use super::*;

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn postgres() {
                let database = PostgresDatabase::create("crash").await;
                let store = PostgresStore::connect(&database.url).await.unwrap();
                die_at_every_instant(store, database.url.clone(), Mutation::$mutation).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn sqlite() {
                let folder = tempfile::tempdir().unwrap();
                let url = format!("sqlite:{}", folder.path().join("shop.db").display());
                let store = SqliteStore::connect(&url).await.unwrap();
                die_at_every_instant(store, url, Mutation::$mutation).await;
            }
        })*
    };
}

dies_at_every_instant! {
    what_holds_is_charged_once_at_most: Hold,
    what_resumes_is_completed_once: Resume,
    what_releases_never_sticks: Release,
    what_is_reconciled_ends_in_the_truth: Reconciled,
    what_is_transactional_happens_once: Transactional,
}
