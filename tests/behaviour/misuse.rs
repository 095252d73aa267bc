//! Resolvers that use the crate in a way that can't work: told by a code, logged with the cure, and never stored, so that
//! the deployment that repairs them can go on. (That a transaction's guard can't outlive its resolver is for the compiler
//! to say: see the doctest of `Attempt`.)

use std::io;

use async_graphql::{Context, Error, Response, Result};
use async_graphql_idempotency::{PostgresStore, SqliteStore};
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::fmt::MakeWriter;

use crate::support::{
    world::{CLIENT, client},
    *,
};

mod away;
mod transaction;

const DOCUMENT: &str = r#"mutation { act(idempotencyKey: "k") { id } }"#;

/// What this thread logs as an error.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Log {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

impl Log {
    pub(crate) fn listen() -> (Self, DefaultGuard) {
        let log = Self::default();
        let subscriber = tracing_subscriber::fmt().with_max_level(tracing::Level::ERROR).with_ansi(false);
        let subscriber = subscriber.with_writer(log.clone()).finish();
        (log, tracing::subscriber::set_default(subscriber))
    }

    /// What was logged since the last time.
    pub(crate) fn take(&self) -> String {
        String::from_utf8(std::mem::take(&mut *self.0.lock().unwrap())).unwrap()
    }
}

/// Makes a test of each backend that runs in one thread, whose log it hears.
macro_rules! heard {
    ($law:ident) => {
        mod $law {
            use super::*;

            #[tokio::test]
            async fn postgres() {
                super::$law::<PostgresBackend>().await;
            }

            #[tokio::test]
            async fn sqlite() {
                super::$law::<SqliteBackend>().await;
            }
        }
    };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Misuse {
    /// The store itself, where the extension has one around it.
    OtherStore,
    OtherBackend,
    TransactionUnderLease,
    LocalUnderTransaction,
    RemoteUnderTransaction,
    TransactionTwice,
    StepTwice,
    StepNotNamed,
    Unreadable,
}

impl Misuse {
    const LEASED: [Self; 6] = [
        Self::OtherStore,
        Self::OtherBackend,
        Self::TransactionUnderLease,
        Self::StepTwice,
        Self::StepNotNamed,
        Self::Unreadable,
    ];
    const TRANSACTIONAL: [Self; 5] = [
        Self::OtherStore,
        Self::OtherBackend,
        Self::LocalUnderTransaction,
        Self::RemoteUnderTransaction,
        Self::TransactionTwice,
    ];

    async fn commit<B: Backend>(self, ctx: &Context<'_>) -> Result<()> {
        let nothing = async |_: &mut _| Ok::<_, Error>(());
        match self {
            Self::OtherStore => drop(ctx.attempt::<B::Store>()?),
            Self::OtherBackend if B::POSTGRES => drop(ctx.attempt::<Faulty<SqliteStore>>()?),
            Self::OtherBackend => drop(ctx.attempt::<Faulty<PostgresStore>>()?),
            _ => {}
        }
        let attempt = ctx.attempt::<Faulty<B::Store>>()?;
        match self {
            Self::OtherStore | Self::OtherBackend => unreachable!("refused above"),
            Self::TransactionUnderLease => drop(attempt.transaction().await?),
            Self::LocalUnderTransaction => attempt.local("a", nothing).await?,
            Self::RemoteUnderTransaction => attempt.remote("a", async |_| Ok::<_, Error>(())).await?,
            Self::TransactionTwice => {
                let mut held = attempt.transaction().await?;
                B::write(&mut held, "act").await?;
                drop(ctx.attempt::<Faulty<B::Store>>()?.transaction().await?);
            }
            // A step that was undone, and is tried again.
            Self::StepTwice => {
                let undone = attempt.local("a", async |_: &mut _| Err::<(), _>(Error::new("undone"))).await;
                assert!(undone.is_err());
                attempt.local("a", nothing).await?;
            }
            Self::StepNotNamed => attempt.local("unheard of", nothing).await?,
            Self::Unreadable => drop(attempt.local("a", async |_: &mut _| Ok::<_, Error>(f64::NAN)).await?),
        }
        panic!("{self:?} was let pass");
    }

    /// What the log has to say about it.
    fn cure(self) -> &'static str {
        match self {
            Self::OtherStore | Self::OtherBackend => "ask for it with the store that the extension was built with",
            Self::TransactionUnderLease => "use a local step, or give it a transactional policy",
            Self::LocalUnderTransaction | Self::RemoteUnderTransaction => {
                "work on its transaction, or give it a leased policy"
            }
            Self::TransactionTwice => "drop the first guard, or pass it on",
            Self::StepTwice => "give each its own name",
            Self::StepNotNamed => "add it to Policy::steps",
            Self::Unreadable => "its type must survive JSON",
        }
    }
}

fn extension(response: &Response, name: &str) -> String {
    response.errors[0].extensions.as_ref().and_then(|e| e.get(name)).unwrap().to_string()
}

/// The resolver misuses the crate, behind a charge or not, and tells of it as it is or in other words; until it is mended.
fn misuses<B: Backend>(world: &World<B>, misuse: Misuse, is_charged: bool, in_other_words: bool) -> Arc<AtomicUsize> {
    let is_mended = Arc::new(AtomicUsize::new(0));
    let (mended, gateway) = (Arc::clone(&is_mended), world.gateway.clone());
    world.on("act", move |ctx| {
        let (is_mended, gateway) = (mended.load(Ordering::SeqCst) == 1, gateway.clone());
        Box::pin(async move {
            if is_charged {
                let attempt = ctx.attempt::<Faulty<B::Store>>()?;
                attempt.remote("charge", async |id| Ok::<_, Error>(gateway.charge(id))).await?;
            }
            if !is_mended {
                let told = misuse.commit::<B>(ctx).await;
                if in_other_words { told.map_err(|_| Error::new("internal"))? } else { told? }
            }
            effect::<B>(ctx, "act").await?;
            Ok(Receipt::new("mended"))
        })
    });
    is_mended
}

async fn misuse_is_told_logged_and_never_stored<B: Backend>() {
    let world = World::<B>::new().await;
    let (log, _listening) = Log::listen();
    let leased = |on_crash| Policy::leased().on_crash(on_crash);
    let policies = [
        (leased(OnCrash::Hold), &Misuse::LEASED[..]),
        (leased(OnCrash::Resume), &Misuse::LEASED[..]),
        (leased(OnCrash::Release), &Misuse::LEASED[..]),
        (Policy::transactional(), &Misuse::TRANSACTIONAL[..]),
    ];
    for (policy, misuses_of_it) in policies {
        let is_transactional = misuses_of_it.len() == Misuse::TRANSACTIONAL.len();
        let resumes = format!("{policy:?}").contains("on_crash: Resume");
        let holds = !is_transactional && format!("{policy:?}").contains("on_crash: Hold");
        for &misuse in misuses_of_it {
            for (is_charged, in_other_words) in [(false, false), (false, true), (true, false), (true, true)] {
                if is_charged && is_transactional {
                    continue;
                }
                let case = format!("{misuse:?}, charged: {is_charged}, in other words: {in_other_words}, {policy:?}");
                world.afresh().await;
                let is_mended = misuses(&world, misuse, is_charged, in_other_words);
                let policy =
                    if misuse == Misuse::StepNotNamed { policy.clone().steps(["charge"]) } else { policy.clone() };
                let server = world.server(policy.clone());

                let told = server.run(DOCUMENT).await;
                assert_eq!(code(&told), "MISCONFIGURED", "{case}");
                assert_eq!(
                    (extension(&told, "httpStatus"), extension(&told, "retryable")),
                    ("500".into(), "false".into())
                );
                let logged = log.take();
                assert!(logged.contains("ERROR") && logged.contains(misuse.cure()), "{case}: {logged}");
                assert!(logged.contains("mutation=act"), "{case}: {logged}");

                // Free where nothing can have happened, else held.
                let is_free = is_transactional || resumes && !is_charged;
                let state = world.state("k").await;
                assert!(
                    if is_free { ["none", "released"].contains(&state.as_str()) } else { state == "needs_recovery" },
                    "{case}: {state}"
                );
                assert_eq!((world.effects().await, world.gateway.charges()), (0, usize::from(is_charged)), "{case}");

                is_mended.store(1, Ordering::SeqCst);
                let mended = world.server(policy);
                if holds {
                    assert_eq!(code(&mended.run(DOCUMENT).await), "OUTCOME_UNKNOWN", "{case}");
                    let (me, key) = (client(CLIENT), IdempotencyKey::new("k").unwrap());
                    mended.idempotency.settle(&mended.schema, &me, &key, Found::NotStarted, "mended").await.unwrap();
                }
                let done = mended.run(DOCUMENT).await;
                assert_eq!(answered(&done), r#"{"act":{"id":"mended"}} []"#, "{case}");
                assert_eq!(world.state("k").await, "succeeded", "{case}");
                assert_eq!((world.effects().await, world.gateway.charges()), (1, usize::from(is_charged)), "{case}");
            }
        }
    }
    world.done().await;
}

heard!(misuse_is_told_logged_and_never_stored);

async fn an_attempt_where_none_is_under_way_is_told_and_logged<B: Backend>() {
    let world = World::<B>::new().await;
    let (log, _listening) = Log::listen();
    let server = world.server(Policy::leased());
    for (field, at) in [("exempt", "exempt"), (r#"lateNever(idempotencyKey: "k")"#, "lateNever")] {
        world.on(at, |ctx| {
            Box::pin(async move { Ok(Receipt::new(ctx.attempt::<Faulty<B::Store>>()?.number().to_string())) })
        });
        let told = server.run(format!("mutation {{ {field} {{ id }} }}")).await;
        assert_eq!(code(&told), "MISCONFIGURED", "{field}");
        let logged = log.take();
        assert!(logged.contains("no attempt is under way here"), "{field}: {logged:?}");
    }
    assert_eq!(world.records().await, 0);
    world.done().await;
}

heard!(an_attempt_where_none_is_under_way_is_told_and_logged);

both!(misuse_below_the_field_is_not_stored_either, world, {
    // A child asks a leased mutation for a transaction.
    for (on_crash, state) in [(OnCrash::Hold, "needs_recovery"), (OnCrash::Release, "needs_recovery")] {
        world.execute("DELETE FROM idempotency_records").await;
        let server = world.server(Policy::leased().on_crash(on_crash));
        let told = server.run(r#"mutation { act(idempotencyKey: "k") { id seen } }"#).await;
        assert_eq!(code(&told), "MISCONFIGURED", "{on_crash:?}");
        assert_eq!(world.state("k").await, state, "{on_crash:?}: its repair would be replayed the fault");
    }
});
