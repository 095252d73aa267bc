//! What a query pays for the extension, and what a replay with another selection pays for its projection.

use std::sync::Arc;

use async_graphql::{
    EmptySubscription, Object, Request, Schema, ServerResult, SimpleObject, Value,
    extensions::{Extension, ExtensionContext, ExtensionFactory, NextResolve, ResolveInfo},
};
use async_graphql_idempotency::{ClientId, Idempotency, IdempotencyKey, SqliteStore};

/// An extension that does nothing, in the hook that every field pays for.
pub(crate) struct Nothing;

impl ExtensionFactory for Nothing {
    fn create(&self) -> Arc<dyn Extension> {
        Arc::new(Self)
    }
}

#[async_trait::async_trait]
impl Extension for Nothing {
    async fn resolve(
        &self,
        ctx: &ExtensionContext<'_>,
        info: ResolveInfo<'_>,
        next: NextResolve<'_>,
    ) -> ServerResult<Option<Value>> {
        next.run(ctx, info).await
    }
}

#[derive(Clone, SimpleObject)]
pub(crate) struct Item {
    a: i32,
    b: i32,
    c: i32,
    d: i32,
    e: i32,
    f: String,
    g: String,
    h: String,
    i: String,
    j: String,
}

impl Item {
    fn new(number: i32) -> Self {
        let text = || format!("text {number}");
        Self { a: number, b: 2, c: 3, d: 4, e: 5, f: text(), g: text(), h: text(), i: text(), j: text() }
    }
}

pub(crate) struct Query;

#[Object]
impl Query {
    async fn items(&self, count: i32) -> Vec<Item> {
        (0..count).map(Item::new).collect()
    }
}

pub(crate) struct Mutation;

#[Object]
impl Mutation {
    async fn make(&self, key: IdempotencyKey, count: i32) -> Vec<Item> {
        drop(key);
        (0..count).map(Item::new).collect()
    }
}

pub(crate) type TestSchema = Schema<Query, Mutation, EmptySubscription>;

/// Without an extension, with one that does nothing, with the crate.
pub(crate) async fn schemas() -> [(&'static str, TestSchema); 3] {
    let idempotency = Idempotency::builder(SqliteStore::in_memory().await.unwrap()).build().unwrap();
    let build = || Schema::build(Query, Mutation, EmptySubscription);
    [
        ("no extension", build().finish()),
        ("an extension that does nothing", build().extension(Nothing).finish()),
        ("the crate", build().extension(idempotency).finish()),
    ]
}

/// A query of so many fields, ten of them a list item.
pub(crate) async fn query(schema: &TestSchema, fields: i32) {
    let count = fields / 10;
    let response = schema.execute(format!("{{ items(count: {count}) {{ a b c d e f g h i j }} }}")).await;
    assert!(response.errors.is_empty(), "{:?}", response.errors);
}

/// A mutation of 100 fields; run before, it is a replay.
pub(crate) async fn replay(schema: &TestSchema, selection: &str) {
    let document = format!("mutation {{ make(key: \"key\", count: 10) {{ {selection} }} }}");
    let response = schema.execute(Request::new(document).data(ClientId::new("client").unwrap())).await;
    assert!(response.errors.is_empty(), "{:?}", response.errors);
}
