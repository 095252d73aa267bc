//! The work for a document is linear in the document, and no schema makes it exponential. Measured as a ratio between two
//! sizes in one run: four times the size takes less than eight times as long. No database has a part in it, so it is
//! SQLite in memory.

use std::fmt::Write as _;

use async_graphql::{EmptySubscription, Error, Executor, Object, Response, Result, Schema, SimpleObject};

use crate::support::{schema::Query, *};

mod tangled;

fn new_key() -> String {
    uuid::Uuid::new_v4().to_string()
}

/// How long one run takes.
async fn timed(schema: &impl Executor, document: String, judge: impl Fn(&Response)) -> Duration {
    let asked = request(document);
    let begun = Instant::now();
    let response = tokio::time::timeout(Duration::from_secs(20), schema.execute(asked)).await;
    let time = begun.elapsed();
    judge(&response.expect("the document comes to no end"));
    time
}

/// The tests of this file go one after the other: they measure.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Runs two sizes in turn, so that whatever else the machine does is in the way of both; a few times more where the
/// fastest of each are not in proportion yet.
async fn assert_linear(what: &str, small: usize, large: usize, run: impl AsyncFn(usize) -> Duration) {
    assert_eq!(large, 4 * small);
    let _alone = ALONE.lock().await;
    let mut fastest = [Duration::MAX; 2];
    for round in 1..=9 {
        for (time, size) in fastest.iter_mut().zip([small, large]) {
            *time = (*time).min(run(size).await);
        }
        if round >= 5 && fastest[1] < fastest[0] * 8 {
            return;
        }
    }
    panic!("{what}: {small} take {:?}, and {large} take {:?}", fastest[0], fastest[1]);
}

fn succeeded(response: &Response) {
    assert_eq!(codes(response), [""; 0]);
}

#[derive(SimpleObject)]
struct Item {
    id: usize,
}

struct Wide;

struct Answer;

#[Object]
#[allow(unused_variables, reason = "the key is for the extension")]
impl Wide {
    async fn act(&self, idempotency_key: IdempotencyKey) -> Answer {
        Answer
    }

    async fn exempt(&self) -> Answer {
        Answer
    }
}

#[Object]
impl Answer {
    async fn id(&self) -> i32 {
        7
    }

    async fn echo(&self, times: usize) -> usize {
        times
    }

    /// Every other item fails, and its error stays with it.
    async fn items(&self, items: usize) -> Vec<Option<Result<Item>>> {
        let item = |n: usize| if n.is_multiple_of(2) { Ok(Item { id: n }) } else { Err(Error::new("broken")) };
        (0..items).map(|n| Some(item(n))).collect()
    }
}

type WideSchema = Schema<Query, Wide, EmptySubscription>;

async fn wide() -> (World<InMemory>, WideSchema) {
    let world = World::<InMemory>::new().await;
    let policy = Policy::leased().max_response(64 << 20);
    let builder = Idempotency::builder(world.store.clone()).default_policy(policy).exempt("exempt").max_fields(1_000);
    let idempotency = builder.build().unwrap();
    (world, Schema::build(Query, Wide, EmptySubscription).extension(idempotency).finish())
}

/// `a0: field a1: field …`
fn aliases(prefix: &str, fields: usize, field: impl Fn(usize) -> String) -> String {
    (0..fields).fold(String::new(), |mut text, n| {
        let _ = write!(text, "{prefix}{n}: {} ", field(n));
        text
    })
}

fn act(key: &str, below: &str) -> String {
    format!(r#"act(idempotencyKey: "{key}") {{ {below} }}"#)
}

#[tokio::test]
async fn a_document_of_thousands_of_aliases_takes_time_in_proportion() {
    let (world, schema) = wide().await;
    let plain = |_| "id".to_owned();
    let with_arguments = |n| format!("echo(times: {n})");
    for (what, field) in [("plain", plain as fn(usize) -> String), ("with arguments", with_arguments)] {
        let run = async |n: usize| {
            let document = format!("mutation {{ {} }}", act(&new_key(), &aliases("a", n, field)));
            timed(&schema, document, succeeded).await
        };
        assert_linear(&format!("aliases below the field, {what}"), 1_000, 4_000, run).await;
    }
    let beside = async |n: usize| {
        let others = aliases("a", n, |_| "exempt { id }".to_owned());
        timed(&schema, format!("mutation {{ {} {others} }}", act(&new_key(), "id")), succeeded).await
    };
    assert_linear("aliases beside the field", 1_000, 4_000, beside).await;
    world.done().await;
}

/// How long a replay takes of a field that was asked for otherwise the first time.
async fn timed_replay(schema: &WideSchema, first: &str, then: &str, errors: usize) -> Duration {
    let key = new_key();
    let first = schema.execute(request(format!("mutation {{ {} }}", act(&key, first)))).await;
    assert_eq!(first.errors.len(), errors);
    let again = |response: &Response| {
        assert_eq!(response.errors.len(), errors);
        assert!(replayed(response, "act"));
    };
    timed(schema, format!("mutation {{ {} }}", act(&key, then)), again).await
}

#[tokio::test]
async fn a_replay_under_thousands_of_other_aliases_takes_time_in_proportion() {
    let (world, schema) = wide().await;
    let run = async |n: usize| {
        let id = |_| "id".to_owned();
        timed_replay(&schema, &aliases("a", n, id), &aliases("b", n, id), 0).await
    };
    assert_linear("a replay of aliases", 1_250, 5_000, run).await;
    world.done().await;
}

#[tokio::test]
async fn a_replay_of_thousands_of_fields_with_arguments_takes_time_in_proportion() {
    let (world, schema) = wide().await;
    let run = async |n: usize| {
        let echo = |n| format!("echo(times: {n})");
        timed_replay(&schema, &aliases("a", n, echo), &aliases("b", n, echo), 0).await
    };
    assert_linear("a replay of arguments", 1_000, 4_000, run).await;
    world.done().await;
}

#[tokio::test]
async fn thousands_of_errors_below_a_field_take_time_in_proportion() {
    let (world, schema) = wide().await;
    let items = |errors: usize| format!("items(items: {}) {{ id }}", 2 * errors);
    for sibling in ["", "exempt { id }"] {
        let run = async |errors: usize| {
            let document = format!("mutation {{ {} {sibling} }}", act(&new_key(), &items(errors)));
            timed(&schema, document, |response| assert_eq!(response.errors.len(), errors)).await
        };
        assert_linear("errors below the field", 1_000, 4_000, run).await;
    }
    let run =
        async |errors: usize| timed_replay(&schema, &items(errors), &format!("x: {}", items(errors)), errors).await;
    assert_linear("a replay of errors", 1_000, 4_000, run).await;
    world.done().await;
}

#[tokio::test]
async fn a_document_of_many_keys_takes_time_in_proportion() {
    let (world, schema) = wide().await;
    let keys = |n: usize| format!("mutation {{ {} }}", aliases("a", n, |_| act(&new_key(), "id")));
    assert_linear("keys", 100, 400, async |n| timed(&schema, keys(n), succeeded).await).await;
    // More than a document may have are counted, and nothing else.
    let too_many = |told: &Response| {
        assert!(!told.errors.is_empty() && codes(told).iter().all(|code| code == "DOCUMENT_TOO_LARGE"), "{told:?}");
    };
    assert_linear("too many keys", 1_100, 4_400, async |n| timed(&schema, keys(n), too_many).await).await;
    world.done().await;
}
