//! A process: it can stop, go on, and die at every call of its store.

use std::{
    future::pending,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use async_graphql_idempotency::StoreError;
use tokio::{runtime::Runtime, sync::watch};

use crate::{
    backend::{Backend, Ground},
    history::{Fault, PROCESSES},
    watched::{Moment, Watch},
};

/// Whether a process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Running,
    Stopped,
    Dead,
}

/// What befalls the process, as its store sees it.
pub(crate) struct Life {
    mode: watch::Sender<Mode>,
    armed: Mutex<Option<Armed>>,
    /// Whether the database has one writer. A process that is stopped while it holds it would stop everybody; it dies.
    one_writer: bool,
    /// The transactions that it has, or is about to get.
    transactions: AtomicUsize,
}

struct Armed {
    /// Calls that still go well.
    left: usize,
    fault: Fault,
    /// Whether the call is under way that it comes after.
    under_way: bool,
}

impl Life {
    pub(crate) fn new(one_writer: bool) -> Self {
        Self {
            mode: watch::Sender::new(Mode::Running),
            armed: Mutex::default(),
            one_writer,
            transactions: AtomicUsize::new(0),
        }
    }

    pub(crate) fn mode(&self) -> Mode {
        *self.mode.borrow()
    }

    pub(crate) fn set(&self, mode: Mode) {
        let holds_writer = self.one_writer && self.transactions.load(Ordering::SeqCst) > 0;
        let mode = if mode == Mode::Stopped && holds_writer { Mode::Dead } else { mode };
        self.mode.send_if_modified(|now| {
            let changes = *now != Mode::Dead && *now != mode;
            if changes {
                *now = mode;
            }
            changes
        });
    }

    pub(crate) fn arm(&self, nth: usize, fault: Fault) {
        *self.armed.lock().unwrap() = Some(Armed { left: nth, fault, under_way: false });
    }

    /// Everything goes well from now on.
    pub(crate) fn heal(&self) {
        self.armed.lock().unwrap().take();
        self.set(Mode::Running);
    }

    /// Goes on once the process runs; a dead one never does.
    pub(crate) async fn pass(&self) {
        let mut mode = self.mode.subscribe();
        while *mode.borrow_and_update() != Mode::Running {
            if mode.changed().await.is_err() {
                pending::<()>().await;
            }
        }
    }

    /// The fault that comes with a call: before it, or after it.
    fn strikes(&self, before: bool) -> Option<Fault> {
        let mut armed = self.armed.lock().unwrap();
        let coming = armed.as_mut()?;
        let is_after = matches!(coming.fault, Fault::DieAfter | Fault::StopAfter);
        let strikes = match (before, is_after) {
            (true, _) if coming.left > 0 => {
                coming.left -= 1;
                false
            }
            (true, true) => {
                coming.under_way = true;
                false
            }
            (true, false) => true,
            (false, _) => coming.under_way,
        };
        if strikes { armed.take().map(|armed| armed.fault) } else { None }
    }

    fn befall(&self, fault: Fault) {
        match fault {
            Fault::DieBefore | Fault::DieAfter => self.set(Mode::Dead),
            Fault::StopBefore | Fault::StopAfter => self.set(Mode::Stopped),
            Fault::Undone | Fault::LostBefore | Fault::LostAfter => {}
        }
    }
}

impl Watch for Life {
    async fn called(&self, _verb: &'static str) -> Option<(Moment, StoreError)> {
        self.pass().await;
        let fault = self.strikes(true)?;
        self.befall(fault);
        self.pass().await;
        match fault {
            Fault::Undone => Some((Moment::Before, StoreError::Undone("it could not be reached".into()))),
            Fault::LostBefore => Some((Moment::Before, StoreError::InDoubt("the connection broke".into()))),
            Fault::LostAfter => Some((Moment::After, StoreError::InDoubt("the connection broke".into()))),
            Fault::DieBefore | Fault::DieAfter | Fault::StopBefore | Fault::StopAfter => None,
        }
    }

    async fn answered(&self, _verb: &'static str) {
        if let Some(fault) = self.strikes(false) {
            self.befall(fault);
        }
        self.pass().await;
    }

    fn begins(&self, verb: &'static str) {
        if matches!(verb, "begin" | "transaction") {
            self.transactions.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn ends(&self, verb: &'static str, gives_transaction: bool) {
        let was_open = matches!(verb, "begin" | "transaction" | "commit" | "roll back" | "checkpoint in transaction");
        if was_open && !gives_transaction {
            self.transactions.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// Of each process.
pub(crate) const CONNECTIONS: u32 = 4;

/// A runtime, and a pool that lives in it.
pub(crate) struct Process<B: Backend> {
    pub(crate) runtime: Option<Runtime>,
    pub(crate) store: Option<B::Store>,
    /// Its way to the database.
    pub(crate) ground: Arc<Ground>,
}

impl<B: Backend> Process<B> {
    pub(crate) async fn start(database: &Arc<B::Database>) -> Self {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).enable_all().build().unwrap();
        let (database, ground) = (Arc::clone(database), Arc::new(Ground::default()));
        let way = Arc::clone(&ground);
        let store = runtime.spawn(async move { B::open_on(&database, CONNECTIONS, &way).await }).await.unwrap();
        Self { runtime: Some(runtime), store: Some(store), ground }
    }

    /// Ends it with everything that it runs. Its connections break.
    pub(crate) async fn end(&mut self) {
        let (runtime, store) = (self.runtime.take(), self.store.take());
        let ended = tokio::task::spawn_blocking(move || {
            if let Some(runtime) = runtime {
                runtime.shutdown_timeout(std::time::Duration::from_secs(2));
            }
            drop(store);
        });
        ended.await.unwrap();
    }

    pub(crate) fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().unwrap()
    }

    pub(crate) fn store(&self) -> &B::Store {
        self.store.as_ref().unwrap()
    }
}

/// A database and processes, which outlive a history.
pub(crate) struct Bench<B: Backend> {
    pub(crate) database: Arc<B::Database>,
    /// A store of the judge's own.
    pub(crate) eye: B::Store,
    pub(crate) processes: Vec<Process<B>>,
    pub(crate) histories: u64,
}

impl<B: Backend> Bench<B> {
    pub(crate) async fn new() -> Self {
        let database = Arc::new(B::database().await);
        let eye = B::open(&database, 2).await;
        let mut processes = Vec::new();
        for _ in 0..PROCESSES {
            processes.push(Process::start(&database).await);
        }
        Self { database, eye, processes, histories: 0 }
    }

    pub(crate) async fn end(mut self) {
        for process in &mut self.processes {
            process.end().await;
        }
        B::close(&self.eye).await;
        if let Ok(database) = Arc::try_unwrap(self.database) {
            B::drop(database).await;
        }
    }
}
