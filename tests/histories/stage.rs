//! What the world knows of one history, apart from its database: the gateway, the resolvers' runs, and who rests.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
};

use async_graphql::{Error, ErrorExtensions};
use async_graphql_idempotency::{Mark, MarkError};
use tokio::sync::watch;
use uuid::Uuid;

use crate::history::{Oracle, Refusal, What};

/// Who asked for what: the unit of which each effect may be there once.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Identity {
    pub(crate) client: String,
    pub(crate) key: String,
    pub(crate) mutation: String,
}

/// A call that the gateway was sent, whether or not it came.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) who: Identity,
    pub(crate) kind: usize,
    pub(crate) id: Uuid,
    /// Whether the gateway can tell a repetition by the id.
    pub(crate) is_step: bool,
    pub(crate) fate: CallFate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallFate {
    Charged,
    Refused,
    Lost,
    OnItsWay,
}

#[derive(Default)]
pub(crate) struct World {
    pub(crate) calls: Vec<Call>,
    runs: BTreeMap<Identity, u32>,
    /// The requests of the acts that are under way, and of what rests.
    acting: Vec<u64>,
    resting: Vec<u64>,
    /// Whose resolvers run.
    running: Vec<Identity>,
    pub(crate) oracle: Option<Oracle>,
    /// Of whom a reconciler said something that it could not know.
    pub(crate) lied: BTreeSet<Identity>,
    /// Whose key was settled by someone else than its attempt.
    pub(crate) by_hand: BTreeSet<Identity>,
    /// Whose clients know that it is done, and with what.
    pub(crate) done: BTreeMap<Identity, serde_json::Value>,
}

impl World {
    /// Whether nothing of a request goes on by itself: with two acts at a time, both rest or have ended.
    pub(crate) fn rests(&self, request: u64) -> bool {
        let count = |list: &[u64]| list.iter().filter(|other| **other == request).count();
        let resting = count(&self.resting);
        resting > 0 && resting >= count(&self.acting)
    }

    pub(crate) fn runs(&self, who: &Identity) -> bool {
        self.running.contains(who)
    }

    pub(crate) fn is_on_its_way(&self, who: &Identity) -> bool {
        self.calls.iter().any(|call| call.who == *who && call.fate == CallFate::OnItsWay)
    }
}

/// One history's world.
pub(crate) struct Stage {
    world: Mutex<World>,
    /// Nothing goes wrong any more.
    honest: watch::Sender<bool>,
    /// Raised when what rests goes on.
    go: watch::Sender<u64>,
    requests: AtomicU64,
}

impl Stage {
    pub(crate) fn new() -> Self {
        Self {
            world: Mutex::default(),
            honest: watch::Sender::new(false),
            go: watch::Sender::new(0),
            requests: AtomicU64::new(0),
        }
    }

    pub(crate) fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap()
    }

    pub(crate) fn number(&self) -> u64 {
        self.requests.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn is_honest(&self) -> bool {
        *self.honest.borrow()
    }

    pub(crate) fn be_honest(&self) {
        self.honest.send_replace(true);
        self.go();
    }

    pub(crate) fn go(&self) {
        self.go.send_modify(|rounds| *rounds += 1);
    }

    /// A resolver begins; which run of its mutation this is. It has ended when the guard is dropped.
    pub(crate) fn begins(&self, who: &Identity) -> (u32, Listed<'_, Identity>) {
        let listed = self.list(|world| &mut world.running, who.clone());
        let mut world = self.world();
        let run = world.runs.entry(who.clone()).or_default();
        *run += 1;
        (*run - 1, listed)
    }

    /// An act begins. It has ended when the guard is dropped.
    pub(crate) fn acts(&self, request: u64) -> Listed<'_, u64> {
        self.list(|world| &mut world.acting, request)
    }

    fn list<T: Clone + PartialEq>(&self, list: fn(&mut World) -> &mut Vec<T>, item: T) -> Listed<'_, T> {
        list(&mut self.world()).push(item.clone());
        Listed { stage: self, list, item }
    }

    /// Rests until what rests goes on.
    pub(crate) async fn rest(&self, request: u64) {
        let mut go = self.go.subscribe();
        if self.is_honest() {
            return;
        }
        let _resting = self.list(|world| &mut world.resting, request);
        go.changed().await.ok();
    }

    /// The gateway gets a call, or does not. Its receipt.
    pub(crate) fn call(
        &self,
        who: &Identity,
        kind: usize,
        id: Uuid,
        is_step: bool,
        trouble: Option<What>,
    ) -> Result<String, Error> {
        let fate = match trouble {
            Some(What::Refused) => CallFate::Refused,
            Some(What::CallLost) => CallFate::Lost,
            Some(What::Delayed) => CallFate::OnItsWay,
            _ => CallFate::Charged,
        };
        self.world().calls.push(Call { who: who.clone(), kind, id, is_step, fate });
        match trouble {
            Some(What::Refused) if is_step => Err(refusal(Refusal::Mark)),
            Some(What::Refused | What::CallLost | What::AnswerLost | What::Delayed) => Err(Error::new("no answer")),
            _ => Ok(receipt(kind, id)),
        }
    }

    /// The id that the gateway knows an effect by.
    pub(crate) fn used(&self, who: &Identity, kind: usize) -> Option<Uuid> {
        self.world().calls.iter().find(|call| call.who == *who && call.kind == kind).map(|call| call.id)
    }

    /// What the gateway says of an id.
    pub(crate) fn lookup(&self, kind: usize, id: Uuid) -> Option<String> {
        let world = self.world();
        let charged = world.calls.iter().any(|call| call.id == id && call.fate == CallFate::Charged);
        charged.then(|| receipt(kind, id))
    }

    pub(crate) fn arrive(&self) {
        for call in &mut self.world().calls {
            if call.fate == CallFate::OnItsWay {
                call.fate = CallFate::Charged;
            }
        }
    }
}

/// What the gateway charged for, however often.
pub(crate) fn receipt(kind: usize, id: Uuid) -> String {
    format!("{kind}: {id}")
}

/// "Nothing happened."
pub(crate) fn refusal(refusal: Refusal) -> Error {
    let error = Error::new("refused");
    match refusal {
        Refusal::Code => error.extend_with(|_, values| values.set("code", "FORBIDDEN")),
        Refusal::Mark => error.mark(Mark::Release),
    }
}

/// Something that stands in a list of the world until it ends or is dropped.
pub(crate) struct Listed<'a, T: PartialEq> {
    stage: &'a Stage,
    list: fn(&mut World) -> &mut Vec<T>,
    item: T,
}

impl<T: PartialEq> Drop for Listed<'_, T> {
    fn drop(&mut self) {
        let mut world = self.stage.world();
        let list = (self.list)(&mut world);
        let at = list.iter().position(|item| *item == self.item).unwrap();
        list.swap_remove(at);
    }
}
