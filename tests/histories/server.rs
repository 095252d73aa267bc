//! The server of a process: a schema whose mutation does what its history says.

use std::{marker::PhantomData, sync::Arc, time::Duration};

use async_graphql::{Context, EmptySubscription, Error, Object, Result, Schema, ServerError, SimpleObject};
use async_graphql_idempotency::{
    Attempt, ClientId, Found, Idempotency, IdempotencyContext, IdempotencyKey, Mark, MarkError, OnCrash, Policy, Record,
};
use futures_util::future::BoxFuture;
use uuid::Uuid;

use crate::{
    backend::Backend,
    history::{Act, History, Kind, Refusal, Tail, What},
    process::Life,
    stage::{Identity, Stage, refusal},
    watched::Watched,
};

pub(crate) type Watching<B> = Watched<<B as Backend>::Store, Life>;

/// The lease of every attempt; nothing lapses by itself while a history runs.
pub(crate) const LEASE: Duration = Duration::from_mins(2);

pub(crate) type AppSchema = Schema<Query, Mutation, EmptySubscription>;

pub(crate) struct Server<B: Backend> {
    pub(crate) schema: AppSchema,
    pub(crate) idempotency: Idempotency<Watching<B>>,
    pub(crate) life: Arc<Life>,
    pub(crate) second: bool,
}

/// Asks whoever knows, for a history's reconciler.
pub(crate) type Ask = Arc<dyn Fn(Record) -> BoxFuture<'static, Found> + Send + Sync>;

impl<B: Backend> Server<B> {
    pub(crate) fn new(
        store: B::Store,
        life: Arc<Life>,
        history: &Arc<History>,
        second: bool,
        stage: &Arc<Stage>,
        ask: &Ask,
    ) -> Self {
        let (kind, script) = history.version(second);
        let policy = match kind {
            Kind::Transactional => Policy::transactional(),
            Kind::Hold => Policy::leased(),
            Kind::Resume => Policy::leased().on_crash(OnCrash::Resume),
            Kind::Release => Policy::leased().on_crash(OnCrash::Release),
        };
        let mut policy = policy.lease(LEASE).wait(Duration::from_millis(20));
        if history.late {
            policy = policy.late();
        }
        if history.named && kind != Kind::Transactional {
            policy = policy.steps(script.iter().map(|(_, _, name)| name.clone()));
        }
        let mut builder = Idempotency::builder(Watched::new(store, Arc::clone(&life)))
            .store_timeout(Duration::from_secs(2))
            .default_policy(policy);
        for mutation in ["act", "also"] {
            let ask = Arc::clone(ask);
            builder = builder.reconcile(mutation, move |record| ask(record));
        }
        let idempotency = builder.build().unwrap();
        let resolver = Resolver::<B> {
            stage: Arc::clone(stage),
            life: Arc::clone(&life),
            history: Arc::clone(history),
            script,
            backend: PhantomData,
        };
        let schema = Schema::build(Query, Mutation, EmptySubscription)
            .extension(idempotency.clone())
            .data(Box::new(resolver) as Box<dyn Resolve>)
            .finish();
        Self { schema, idempotency, life, second }
    }
}

pub(crate) struct Query;

#[Object]
impl Query {
    async fn nothing(&self) -> bool {
        true
    }
}

pub(crate) struct Mutation;

#[Object]
impl Mutation {
    async fn act(&self, ctx: &Context<'_>, idempotency_key: IdempotencyKey) -> Result<Option<Receipts>> {
        resolve(ctx, "act", &idempotency_key).await
    }

    async fn also(&self, ctx: &Context<'_>, idempotency_key: IdempotencyKey) -> Result<Option<Receipts>> {
        resolve(ctx, "also", &idempotency_key).await
    }
}

type Receipts = Vec<Result<Option<Receipt>>>;

/// The number of a request, in its data.
#[derive(Clone, Copy)]
pub(crate) struct Number(pub(crate) u64);

#[derive(SimpleObject)]
#[graphql(complex)]
pub(crate) struct Receipt {
    /// A receipt for each effect.
    did: Vec<String>,
    note: String,
    #[graphql(skip)]
    tail: Tail,
}

#[async_graphql::ComplexObject]
impl Receipt {
    async fn below(&self) -> Result<i32> {
        if self.tail == Tail::Below { Err(Error::new("below")) } else { Ok(1) }
    }

    async fn swallowed(&self) -> Option<Result<i32>> {
        Some(if self.tail == Tail::Swallowed { Err(Error::new("swallowed")) } else { Ok(1) })
    }
}

async fn resolve(ctx: &Context<'_>, mutation: &str, key: &IdempotencyKey) -> Result<Option<Receipts>> {
    let who = Identity {
        client: ctx.data::<ClientId>()?.as_str().to_owned(),
        key: key.as_str().to_owned(),
        mutation: mutation.to_owned(),
    };
    let request = ctx.data::<Number>()?.0;
    ctx.data::<Box<dyn Resolve>>()?.resolve(ctx, who, request).await
}

/// A resolver of whichever store.
trait Resolve: Send + Sync {
    fn resolve<'a>(
        &'a self,
        ctx: &'a Context<'a>,
        who: Identity,
        request: u64,
    ) -> BoxFuture<'a, Result<Option<Receipts>>>;
}

struct Resolver<B: Backend> {
    stage: Arc<Stage>,
    life: Arc<Life>,
    history: Arc<History>,
    script: Vec<(usize, Act, String)>,
    backend: PhantomData<fn() -> B>,
}

/// One run of the resolver.
struct Run<'a, B: Backend> {
    of: &'a Resolver<B>,
    attempt: Attempt<'a, Watching<B>>,
    who: Identity,
    request: u64,
    number: u32,
}

impl<B: Backend> Resolve for Resolver<B> {
    fn resolve<'a>(
        &'a self,
        ctx: &'a Context<'a>,
        who: Identity,
        request: u64,
    ) -> BoxFuture<'a, Result<Option<Receipts>>> {
        Box::pin(async move {
            self.life.pass().await;
            let (run, _running) = self.stage.begins(&who);
            if let Some(at_the_door) = self.history.door(run).filter(|_| !self.stage.is_honest()) {
                return Err(refusal(at_the_door));
            }
            if self.history.late {
                ctx.claim().await?;
            }
            let attempt = ctx.attempt::<Watching<B>>()?;
            let run = Run::<B> { of: self, attempt, who, request, number: run };
            let did = run.acts().await?;
            run.end(ctx, did)
        })
    }
}

impl<B: Backend> Run<'_, B> {
    async fn acts(&self) -> Result<Vec<String>> {
        let script = &self.of.script;
        let mut did = Vec::new();
        let mut rest = &script[..];
        if let ([first, second, others @ ..], true) =
            (rest, self.of.history.together && !self.attempt.is_transactional())
        {
            let (first, second) = tokio::try_join!(self.act(first), self.act(second))?;
            did.extend([first, second]);
            rest = others;
        }
        for act in rest {
            did.push(self.act(act).await?);
        }
        self.troubles(self.of.history.acts.len()).await?;
        // The order in which the effects are told is always the same.
        did.sort();
        Ok(did)
    }

    /// What goes wrong at a place; what of it is for the gateway.
    async fn troubles(&self, at: usize) -> Result<Option<What>> {
        let mut gateway = None;
        for what in self.of.history.troubles(self.number, at) {
            if self.of.stage.is_honest() {
                break;
            }
            match what {
                What::Pause if self.attempt.is_transactional() && !B::POSTGRES => {}
                What::Pause => {
                    self.of.stage.rest(self.request).await;
                    self.of.life.pass().await;
                }
                What::AskId => _ = self.attempt.request_id(),
                What::Error => return Err(Error::new("plain")),
                What::Final => return Err(Error::new("final").mark(Mark::Final)),
                What::Unknown => return Err(Error::new("unknown").mark(Mark::Unknown)),
                What::Refusal(kind) => return Err(refusal(kind)),
                What::Door(_) => {}
                What::Panic => panic!("by the history"),
                What::Refused | What::CallLost | What::AnswerLost | What::Delayed => gateway = Some(what),
            }
        }
        Ok(gateway)
    }

    async fn act(&self, (kind, act, name): &(usize, Act, String)) -> Result<String> {
        let _acting = self.of.stage.acts(self.request);
        let trouble = self.troubles(*kind).await?;
        let Self { of: Resolver { stage, life, .. }, attempt, who, request, number } = self;
        let label = format!("{} {} {} {kind} {request} {number}", who.client, who.key, who.mutation);
        let label = &label;
        let write = async |connection: &mut <Watching<B> as async_graphql_idempotency::Store>::Connection| {
            B::write(connection, label).await.map(|()| label.clone()).map_err(|_| Error::new("database"))
        };
        let call = async |id: Uuid, is_step: bool| {
            life.pass().await;
            let answer = stage.call(who, *kind, id, is_step, trouble);
            life.pass().await;
            answer
        };
        match act {
            _ if attempt.is_transactional() => {
                let mut transaction = attempt.transaction().await?;
                write(&mut transaction).await
            }
            Act::Local => attempt.local(name, write).await,
            Act::Remote => attempt.remote(name, |id| call(id, true)).await,
            Act::RemoteWithLookup => {
                let lookup = async |id| Ok(stage.lookup(*kind, id));
                attempt.remote_with_lookup(name, lookup, |id| call(id, true)).await
            }
            Act::Plain => call(Uuid::new_v4(), false).await,
        }
    }

    fn end(&self, ctx: &Context<'_>, did: Vec<String>) -> Result<Option<Receipts>> {
        let tail = self.of.history.tail;
        let receipt = |did, note: &str| Ok(Some(Receipt { did, note: note.to_owned(), tail }));
        let at_first = self.number < 2 && !self.of.stage.is_honest();
        match tail {
            Tail::Undone if at_first => {
                ctx.mark(Mark::Release)?;
                return Ok(Some(vec![receipt(Vec::new(), "undone")]));
            }
            Tail::Doubt if at_first => ctx.mark(Mark::Unknown)?,
            Tail::Final => ctx.mark(Mark::Final)?,
            Tail::Item(kind) => return Ok(Some(vec![receipt(did, "done"), Err(item(kind))])),
            Tail::Beside => ctx.add_error(ctx.set_error_path(ServerError::new("beside", None))),
            Tail::Undone | Tail::Doubt | Tail::Value | Tail::Below | Tail::Swallowed => {}
        }
        Ok(Some(vec![receipt(did, "done")]))
    }
}

/// The error of an item, which says nothing about the whole.
fn item(kind: Refusal) -> Error {
    let mut error = refusal(kind);
    "an item".clone_into(&mut error.message);
    error
}
