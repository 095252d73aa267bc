//! Schemas whose types refer to one another in more ways than anybody can count.

use std::fmt::Write as _;

use async_graphql::{
    Response, Value,
    dynamic::{Field, FieldFuture, FieldValue, InputObject, InputValue, Object, Scalar, Schema, TypeRef},
};

use super::{assert_linear, new_key, succeeded, timed};
use crate::support::*;

/// The eight fields by which a type refers to others.
const EIGHT: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];

/// What a type's fields are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refers {
    /// The next type: eight times as many ways with each.
    ToTheNext,
    ToItself,
}

type OverMemory = Idempotency<Faulty<<InMemory as Backend>::Store>>;

fn object(name: &str, ty: &str) -> Field {
    Field::new(name, TypeRef::named(ty), |_| FieldFuture::new(async { Ok(Some(FieldValue::owned_any(()))) }))
}

fn number(name: &str) -> Field {
    Field::new(name, TypeRef::named(TypeRef::INT), |_| FieldFuture::new(async { Ok(Some(Value::from(1))) }))
}

/// Input types and object types, each of which refers by eight fields; with a keyed mutation, one below a namespace, and
/// fields without keys that return the graph. `has_keys`: in each of the inputs, too.
fn tangled(world: &World<InMemory>, types: usize, refers: Refers, has_keys: bool) -> (Schema, OverMemory) {
    let idempotency = Idempotency::builder(world.store.clone()).build().unwrap();
    let key = || InputValue::new("idempotencyKey", TypeRef::named_nn("IdempotencyKey"));
    let mut builder = Schema::build("Query", Some("Mutation"), None).register(Scalar::new("IdempotencyKey"));
    for n in 0..types {
        let next = if refers == Refers::ToItself { n } else { (n + 1).min(types - 1) };
        let mut input =
            InputObject::new(format!("In{n}")).field(InputValue::new("number", TypeRef::named(TypeRef::INT)));
        let mut output = Object::new(format!("Out{n}")).field(number("number"));
        if has_keys {
            input = input.field(InputValue::new("key", TypeRef::named("IdempotencyKey")));
        }
        for field in EIGHT {
            input = input.field(InputValue::new(field, TypeRef::named(format!("In{next}"))));
            output = output.field(object(field, &format!("Out{next}")));
        }
        builder = builder.register(input).register(output);
    }
    let act = number("act").argument(key()).argument(InputValue::new("input", TypeRef::named("In0")));
    let space = Object::new("Space").field(number("act").argument(key())).field(object("graph", "Out0"));
    let mutation = Object::new("Mutation").field(act).field(object("graph", "Out0")).field(object("ns", "Space"));
    let query = Object::new("Query").field(object("graph", "Out0"));
    let schema = builder.register(space).register(mutation).register(query).extension(idempotency.clone());
    (schema.finish().unwrap(), idempotency)
}

/// What is expected of a response.
type Judge = fn(&Response);

fn refused(response: &Response) {
    assert_eq!(codes(response), ["MISCONFIGURED"]);
}

#[tokio::test]
async fn no_schema_makes_the_work_exponential() {
    let world = World::<InMemory>::new().await;
    for (refers, has_keys) in
        [(Refers::ToTheNext, false), (Refers::ToItself, false), (Refers::ToTheNext, true), (Refers::ToItself, true)]
    {
        // A mutation with several keys is refused.
        let judge: Judge = if has_keys { refused } else { succeeded };
        let documents: [(&str, Judge); 5] = [
            (r#"act(idempotencyKey: "KEY", input: { a: { b: { number: 1 } } })"#, judge),
            (r#"act(idempotencyKey: "KEY")"#, judge),
            (r#"ns { act(idempotencyKey: "KEY") }"#, succeeded),
            (r#"ns { act(idempotencyKey: "KEY") graph { a { b { number } } } }"#, refused),
            ("graph { a { b { c { number } } } }", refused),
        ];
        let (small, large) = (tangled(&world, 16, refers, has_keys), tangled(&world, 64, refers, has_keys));
        let of = |types| if types == 16 { &small } else { &large };
        for (field, judge) in documents {
            let run = async |types: usize| {
                let document = format!("mutation {{ {} }}", field.replace("KEY", &new_key()));
                timed(&of(types).0, document, judge).await
            };
            assert_linear(&format!("{refers:?}, keys: {has_keys}, {field}"), 16, 64, run).await;
        }
        let verify = async |types: usize| {
            let (schema, idempotency) = of(types);
            let begun = Instant::now();
            let verified = tokio::time::timeout(Duration::from_secs(20), idempotency.verify(schema)).await;
            let time = begun.elapsed();
            let problems = verified.expect("verify comes to no end").unwrap_err().problems;
            assert_eq!(problems.len(), 2 + usize::from(has_keys), "{problems:?}");
            time
        };
        assert_linear(&format!("{refers:?}, keys: {has_keys}, verify"), 16, 64, verify).await;
    }
    world.done().await;
}

/// So many objects: one of each eight has the others below it.
fn objects(left: &mut usize) -> String {
    *left -= 1;
    let mut text = "{ number: 1".to_owned();
    for field in EIGHT.iter().take((*left).min(8)).skip(1) {
        *left -= 1;
        let _ = write!(text, " {field}: {{ number: 1 }}");
    }
    if *left > 0 {
        let _ = write!(text, " a: {}", objects(left));
    }
    text + " }"
}

#[tokio::test]
async fn an_argument_of_hundreds_of_objects_takes_time_in_proportion() {
    let world = World::<InMemory>::new().await;
    let (schema, _) = tangled(&world, 1, Refers::ToItself, false);
    let run = async |n: usize| {
        let document =
            format!(r#"mutation {{ act(idempotencyKey: "{}", input: {}) }}"#, new_key(), objects(&mut n.clone()));
        timed(&schema, document, succeeded).await
    };
    assert_linear("objects in an argument", 100, 400, run).await;
    world.done().await;
}

#[tokio::test]
async fn a_way_through_a_graph_takes_time_in_proportion_to_its_length() {
    let world = World::<InMemory>::new().await;
    let (schema, _) = tangled(&world, 64, Refers::ToTheNext, false);
    for root in ["graph", r#"ns { act(idempotencyKey: "KEY") graph"#] {
        let run = async |depth: usize| {
            let (open, close) = ("h { ".repeat(depth), "}".repeat(depth + 1 + root.matches('{').count()));
            let document = format!("mutation {{ {root} {{ {open} number {close} }}").replace("KEY", &new_key());
            timed(&schema, document, refused).await
        };
        assert_linear(root, 7, 28, run).await;
    }
    world.done().await;
}
