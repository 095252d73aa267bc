//! A key that a person settles: what is settled is an answer that the mutation could have given, under the selection
//! that was asked for, or it is refused.

use std::marker::PhantomData;

use async_graphql::{EmptySubscription, Enum, Interface, Object, Result, Schema, SimpleObject, Union};
use serde_json::json;

use crate::support::{
    schema::Query,
    world::{CLIENT, client},
    *,
};

#[derive(Clone, Copy, PartialEq, Eq, Enum)]
enum Method {
    Card,
    Transfer,
}

#[derive(SimpleObject)]
struct Paid {
    id: String,
    method: Method,
    note: Option<String>,
    lines: Vec<Line>,
}

#[derive(SimpleObject)]
struct Line {
    amount: i32,
}

#[derive(SimpleObject)]
struct Refused {
    id: String,
    reasons: Vec<Option<String>>,
}

#[derive(Union)]
enum Payment {
    Paid(Paid),
    Refused(Refused),
}

#[derive(Interface)]
#[graphql(field(name = "id", ty = "&String"))]
enum Identified {
    Paid(Paid),
    Refused(Refused),
}

fn lost<T>() -> T {
    panic!("in the middle of it")
}

struct Payments<B>(PhantomData<B>);

#[Object]
#[allow(unused_variables, reason = "the key is for the extension")]
impl<B: Backend> Payments<B> {
    async fn pay(&self, idempotency_key: IdempotencyKey) -> Result<Payment> {
        lost()
    }

    async fn maybe(&self, idempotency_key: IdempotencyKey) -> Option<Identified> {
        lost()
    }

    async fn plain(&self, idempotency_key: IdempotencyKey) -> Result<Paid> {
        lost()
    }
}

both!(what_is_settled_by_hand_is_an_answer_of_the_mutation_or_is_refused, world, {
    let idempotency = Idempotency::builder(world.store.clone()).build().unwrap();
    let builder = Schema::build(Query, Payments::<B>(PhantomData), EmptySubscription);
    let schema = world.schema(builder, &world.store, &idempotency);
    let me = client(CLIENT);
    // What was asked, what is settled, and what a retry gets; or the words that say where it does not fit.
    let cases = [
        // Exactly what was asked for, and `__typename` is known.
        ("plain { id method }", json!({ "id": "1", "method": "CARD" }), Ok(r#"{"id":"1","method":"CARD"}"#)),
        ("plain { __typename id }", json!({ "id": "1" }), Ok(r#"{"__typename":"Paid","id":"1"}"#)),
        ("plain { kind: __typename id }", json!({ "id": "1" }), Ok(r#"{"kind":"Paid","id":"1"}"#)),
        // The alias, or the field's own name.
        ("plain { a: id b: id }", json!({ "a": "1", "b": "1" }), Ok(r#"{"a":"1","b":"1"}"#)),
        ("plain { lines { amount } }", json!({ "lines": [{ "amount": 3 }] }), Ok(r#"{"lines":[{"amount":3}]}"#)),
        ("plain { note }", json!({ "note": null }), Ok(r#"{"note":null}"#)),
        // No null where there can be none, nothing that is missing, no word that the enum does not have.
        ("plain { id }", json!(null), Err("null")),
        ("plain { id }", json!({ "id": null }), Err("id")),
        ("plain { id method }", json!({ "id": "1" }), Err("method")),
        ("plain { method }", json!({ "method": "COINS" }), Err("method")),
        ("plain { lines { amount } }", json!({ "lines": [null] }), Err("lines")),
        ("plain { lines { amount } }", json!({ "lines": { "amount": 3 } }), Err("lines")),
        ("plain { id }", json!("1"), Err("answer")),
        ("plain { id }", json!([{ "id": "1" }]), Err("answer")),
        ("maybe { id }", json!(null), Ok("null")),
        // Of an abstract type the value has to say which it is.
        ("maybe { __typename id }", json!({ "id": "1" }), Err("__typename")),
        (
            "maybe { __typename id }",
            json!({ "__typename": "Refused", "id": "1" }),
            Ok(r#"{"__typename":"Refused","id":"1"}"#),
        ),
        ("maybe { __typename id }", json!({ "__typename": "Line", "id": "1" }), Err("one of Paid, Refused")),
        (
            "pay { __typename ... on Paid { method } ... on Refused { reasons } }",
            json!({ "__typename": "Refused", "reasons": ["no money", null] }),
            Ok(r#"{"__typename":"Refused","reasons":["no money",null]}"#),
        ),
        (
            "pay { __typename ... on Paid { method } ... on Refused { reasons } }",
            json!({ "__typename": "Refused", "method": "CARD" }),
            Err("reasons"),
        ),
    ];
    for (n, (asked, value, expected)) in cases.into_iter().enumerate() {
        let key = IdempotencyKey::new(format!("k{n}")).unwrap();
        let (name, selection) = asked.split_once(' ').unwrap();
        let document = format!(r#"mutation {{ {name}(idempotencyKey: "{key}") {selection} }}"#);
        assert_eq!(code(&schema.execute(request(&document)).await), "OUTCOME_UNKNOWN", "{asked}");
        let settled = idempotency.settle(&schema, &me, &key, Found::Succeeded(value.clone()), "by hand").await;
        let again = schema.execute(request(&document)).await;
        match expected {
            Ok(answer) => {
                assert!(settled.is_ok(), "{asked}: {value}: {settled:?}");
                assert_eq!(answered(&again), format!(r#"{{"{name}":{answer}}} []"#), "{asked}: {value}");
            }
            Err(words) => {
                assert!(
                    matches!(&settled, Err(SettleError::Unusable(why)) if why.contains(words)),
                    "{asked}: {value}: {settled:?}"
                );
                assert_eq!(code(&again), "OUTCOME_UNKNOWN", "{asked}: {value}");
            }
        }
    }
});
