//! A schema whose resolvers do what the test says.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use async_graphql::{
    Context, EmptySubscription, Enum, Error, ErrorExtensions, Guard, ID, InputObject, Json, MergedObject, Object,
    OneofObject, Result, Schema, SimpleObject, Union, Upload,
};
use async_graphql_idempotency::{Claim, IdempotencyContext, IdempotencyKey};
use futures_util::future::BoxFuture;

use super::{Backend, Faulty};

pub type TestSchema = Schema<Query, Mutation, EmptySubscription>;

/// What a resolver does.
pub type Script = dyn for<'a, 'c> Fn(&'a Context<'c>) -> BoxFuture<'a, Result<Receipt>> + Send + Sync;

/// What each mutation does, by its field name.
#[derive(Clone)]
pub struct Scripts {
    pub own: Arc<Mutex<HashMap<&'static str, Arc<Script>>>>,
    pub default: Arc<Script>,
}

impl Scripts {
    async fn play(&self, ctx: &Context<'_>) -> Result<Receipt> {
        let own = self.own.lock().unwrap().get(ctx.field().name()).cloned();
        own.unwrap_or_else(|| Arc::clone(&self.default))(ctx).await
    }
}

async fn play(ctx: &Context<'_>) -> Result<Receipt> {
    ctx.data::<Scripts>()?.clone().play(ctx).await
}

/// One effect, through the attempt's transaction where there is one.
pub async fn effect<B: Backend>(ctx: &Context<'_>, label: &str) -> Result<()> {
    if let Ok(attempt) = ctx.attempt::<Faulty<B::Store>>()
        && attempt.is_transactional()
    {
        return Ok(B::write(&mut *attempt.transaction().await?, label).await?);
    }
    Ok(B::write_pooled(&ctx.data::<Faulty<B::Store>>()?.inner, label).await?)
}

pub struct Query;

#[Object]
impl Query {
    async fn one(&self) -> i32 {
        1
    }
}

#[derive(Clone, Debug)]
pub struct Receipt {
    pub id: String,
    pub note: Option<String>,
    pub json: serde_json::Value,
    /// The fields below that fail.
    pub fails: bool,
}

impl Receipt {
    pub fn new(id: impl Into<String>) -> Self {
        Self { id: id.into(), note: None, json: serde_json::Value::Null, fails: false }
    }
}

fn broken(what: &str) -> Error {
    Error::new(format!("{what} is broken")).extend_with(|_, e| e.set("code", "BROKEN"))
}

#[Object]
impl Receipt {
    async fn id(&self) -> &str {
        &self.id
    }

    async fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    async fn total(&self) -> f64 {
        // Not ready at once: fields are resolved side by side.
        tokio::task::yield_now().await;
        12.0
    }

    async fn json(&self) -> Json<serde_json::Value> {
        Json(self.json.clone())
    }

    async fn echo(&self, #[graphql(default = 1)] times: usize) -> String {
        self.id.repeat(times)
    }

    /// Thrown to the object above.
    async fn thrown(&self) -> Result<String> {
        if self.fails { Err(broken("thrown")) } else { Ok("whole".into()) }
    }

    /// Swallowed by its own `Option`.
    async fn swallowed(&self) -> Option<Result<String>> {
        Some(if self.fails { Err(broken("swallowed")) } else { Ok("whole".into()) })
    }

    async fn panics(&self) -> bool {
        assert!(self.id.is_empty(), "as the test says");
        true
    }

    async fn child(&self) -> Receipt {
        Receipt { id: format!("{}.child", self.id), ..self.clone() }
    }

    async fn children(&self) -> Vec<Receipt> {
        (0..2)
            .map(|n| Receipt { id: format!("{}.{n}", self.id), fails: self.fails && n == 1, ..self.clone() })
            .collect()
    }

    async fn shapes(&self) -> Vec<Shape> {
        vec![Shape::Circle(Circle { radius: 1 }), Shape::Square(Square { side: 2 })]
    }

    /// How many effects a resolver below the mutation sees through its attempt.
    async fn seen(&self, ctx: &Context<'_>) -> Result<i64> {
        (ctx.data::<Arc<Seen>>()?)(ctx).await
    }
}

pub type Seen = dyn for<'a, 'c> Fn(&'a Context<'c>) -> BoxFuture<'a, Result<i64>> + Send + Sync;

#[derive(SimpleObject)]
pub struct Circle {
    radius: i32,
}

#[derive(SimpleObject)]
pub struct Square {
    side: i32,
}

#[derive(Union)]
pub enum Shape {
    Circle(Circle),
    Square(Square),
}

#[derive(Enum, Clone, Copy, PartialEq, Eq)]
pub enum Colour {
    Red,
    Green,
}

#[derive(InputObject)]
pub struct Values {
    pub id: Option<ID>,
    pub list: Option<Vec<String>>,
    pub colour: Option<Colour>,
    pub float: Option<f64>,
    #[graphql(default = 7)]
    pub number: i32,
    pub text: Option<String>,
    pub any: Option<Json<serde_json::Value>>,
    pub inner: Option<Box<Values>>,
}

#[derive(InputObject)]
pub struct Keyed {
    pub idempotency_key: IdempotencyKey,
    pub amount: Option<i32>,
    pub client_mutation_id: Option<String>,
}

#[derive(OneofObject)]
pub enum Choice {
    Number(i32),
    Text(String),
}

#[derive(Default)]
pub struct Plain;

#[Object]
#[allow(unused_variables, reason = "the tests are about what the crate makes of the arguments")]
impl Plain {
    async fn act(
        &self,
        ctx: &Context<'_>,
        idempotency_key: IdempotencyKey,
        amount: Option<i32>,
        values: Option<Values>,
    ) -> Result<Receipt> {
        play(ctx).await
    }

    async fn other(&self, ctx: &Context<'_>, idempotency_key: IdempotencyKey, amount: Option<i32>) -> Result<Receipt> {
        play(ctx).await
    }

    /// The field's own `Option` swallows its error.
    async fn lenient(&self, ctx: &Context<'_>, idempotency_key: IdempotencyKey) -> Option<Result<Receipt>> {
        Some(play(ctx).await)
    }

    async fn maybe(&self, ctx: &Context<'_>, idempotency_key: IdempotencyKey) -> Result<Option<Receipt>> {
        Ok(Some(play(ctx).await?).filter(|receipt| !receipt.id.is_empty()))
    }

    async fn scalar(&self, ctx: &Context<'_>, idempotency_key: IdempotencyKey) -> Result<Json<serde_json::Value>> {
        Ok(Json(play(ctx).await?.json))
    }

    async fn values(
        &self,
        ctx: &Context<'_>,
        idempotency_key: IdempotencyKey,
        id: Option<ID>,
        list: Option<Vec<String>>,
        colour: Option<Colour>,
        float: Option<f64>,
        #[graphql(default = 7)] number: i32,
        text: Option<String>,
        any: Option<Json<serde_json::Value>>,
        input: Option<Values>,
        choice: Option<Choice>,
    ) -> Result<Receipt> {
        play(ctx).await
    }

    async fn nested(&self, ctx: &Context<'_>, input: Keyed) -> Result<Receipt> {
        play(ctx).await
    }

    async fn upload(&self, ctx: &Context<'_>, idempotency_key: IdempotencyKey, file: Upload) -> Result<Receipt> {
        let mut text = String::new();
        std::io::Read::read_to_string(&mut file.value(ctx)?.content, &mut text)?;
        let mut receipt = play(ctx).await?;
        receipt.note = Some(text);
        Ok(receipt)
    }
}

/// The caller's right, in the request's data.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Right(pub bool);

struct HasRight;

impl Guard for HasRight {
    async fn check(&self, ctx: &Context<'_>) -> Result<()> {
        if ctx.data_opt::<Right>() == Some(&Right(true)) {
            Ok(())
        } else {
            Err(Error::new("no right").extend_with(|_, e| e.set("code", "FORBIDDEN")))
        }
    }
}

#[derive(Default)]
pub struct Late;

#[Object]
#[allow(unused_variables, reason = "the tests are about what the crate makes of the arguments")]
impl Late {
    #[graphql(guard = "HasRight.and(Claim)")]
    async fn late(
        &self,
        ctx: &Context<'_>,
        idempotency_key: IdempotencyKey,
        #[graphql(validator(maximum = 100))] amount: Option<i32>,
    ) -> Result<Receipt> {
        play(ctx).await
    }

    async fn late_inside(
        &self,
        ctx: &Context<'_>,
        idempotency_key: IdempotencyKey,
        amount: Option<i32>,
    ) -> Result<Receipt> {
        HasRight.check(ctx).await?;
        ctx.claim().await?;
        play(ctx).await
    }

    async fn late_never(&self, ctx: &Context<'_>, idempotency_key: IdempotencyKey) -> Result<Receipt> {
        play(ctx).await
    }
}

#[derive(Default)]
pub struct Rest;

#[Object]
impl Rest {
    async fn billing(&self) -> Billing {
        Billing { deeper: true }
    }

    /// Takes no key, and breaks the rules.
    async fn unkeyed(&self, ctx: &Context<'_>) -> Result<Receipt> {
        play(ctx).await
    }

    /// Takes no key either, and the tests exempt it.
    async fn exempt(&self, ctx: &Context<'_>) -> Result<Receipt> {
        play(ctx).await
    }
}

pub struct Billing {
    deeper: bool,
}

#[Object]
#[allow(unused_variables, reason = "the tests are about what the crate makes of the arguments")]
impl Billing {
    async fn charge(&self, ctx: &Context<'_>, idempotency_key: IdempotencyKey, amount: Option<i32>) -> Result<Receipt> {
        play(ctx).await
    }

    async fn deeper(&self) -> Option<Billing> {
        self.deeper.then_some(Billing { deeper: false })
    }
}

#[derive(MergedObject, Default)]
pub struct Mutation(Plain, Late, Rest);
