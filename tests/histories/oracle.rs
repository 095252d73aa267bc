//! Who can be asked what became of a mutation: the rows, the gateway, reconcilers and operators.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use async_graphql::Error;
use async_graphql_idempotency::{Found, Mark, MarkError};
use futures_util::future::BoxFuture;
use serde_json::json;

use crate::{
    backend::Backend,
    history::{History, Oracle},
    server::Ask,
    stage::{CallFate, Identity, Stage, receipt},
};

pub(crate) async fn rows<B: Backend>(
    database: &B::Database,
    eye: &B::Store,
    history: &str,
    who: Option<&Identity>,
) -> Vec<String> {
    let prefix = match who {
        Some(Identity { client, key, mutation }) => format!("{client} {key} {mutation} "),
        None => format!("{history}c"),
    };
    B::texts(database, eye, format!("SELECT label FROM effects WHERE label LIKE '{prefix}%'")).await
}

/// The receipts of what was done for someone, by their kinds.
pub(crate) fn effects(stage: &Stage, who: &Identity, rows: &[String]) -> BTreeMap<usize, BTreeSet<String>> {
    let mut effects: BTreeMap<usize, BTreeSet<String>> = BTreeMap::new();
    for label in rows {
        let words: Vec<_> = label.split(' ').collect();
        if words[..3] == [&who.client, &who.key, &who.mutation] {
            effects.entry(words[3].parse().unwrap()).or_default().insert(label.clone());
        }
    }
    for call in &stage.world().calls {
        if call.who == *who && call.fate == CallFate::Charged {
            effects.entry(call.kind).or_default().insert(receipt(call.kind, call.id));
        }
    }
    effects
}

/// What the history's reconcilers and operators say of a lost attempt.
pub(crate) fn asking<B: Backend>(
    database: &Arc<B::Database>,
    eye: &B::Store,
    history: &Arc<History>,
    stage: &Arc<Stage>,
) -> Ask {
    let (database, eye) = (Arc::clone(database), eye.clone());
    let (history, stage) = (Arc::clone(history), Arc::clone(stage));
    Arc::new(move |record| -> BoxFuture<'static, Found> {
        let (database, eye) = (Arc::clone(&database), eye.clone());
        let (history, stage) = (Arc::clone(&history), Arc::clone(&stage));
        Box::pin(async move {
            let who = Identity {
                client: record.client.as_str().to_owned(),
                key: record.key.as_str().to_owned(),
                mutation: record.mutation.clone(),
            };
            let oracle = stage.world().oracle.unwrap_or(Oracle::Silent);
            let rows = rows::<B>(&database, &eye, "", Some(&who)).await;
            let effects = effects(&stage, &who, &rows);
            let (runs, is_on_its_way) = {
                let world = stage.world();
                (world.runs(&who), world.is_on_its_way(&who))
            };
            let everything = |second| history.version(second).1.iter().all(|(kind, ..)| effects.contains_key(kind));
            match oracle {
                Oracle::Panics => panic!("by the history"),
                Oracle::Late if effects.is_empty() => {
                    if runs || is_on_its_way {
                        stage.world().lied.insert(who);
                    }
                    Found::NotStarted
                }
                Oracle::Silent | Oracle::Late => Found::Unknown,
                // Whoever looks finds a process that still runs, or a call that has left.
                Oracle::Honest | Oracle::HonestFailed if runs || is_on_its_way => Found::Unknown,
                Oracle::Honest if effects.is_empty() && !history.acts.is_empty() => Found::NotStarted,
                Oracle::HonestFailed if effects.is_empty() && !history.acts.is_empty() => {
                    Found::Failed(Error::new("it did not happen").mark(Mark::Final))
                }
                Oracle::Honest | Oracle::HonestFailed if !everything(false) && !everything(true) => Found::Unknown,
                Oracle::Honest | Oracle::HonestFailed => {
                    let did: BTreeSet<_> = effects.into_values().flatten().collect();
                    let mut world = stage.world();
                    // A null stands for an error, which a person does not settle with.
                    let known = world.done.get(&who).filter(|value| !value.is_null()).cloned();
                    world.by_hand.insert(who);
                    let receipt = json!([{ "did": did, "note": "done", "below": 1, "swallowed": 1 }]);
                    Found::Succeeded(known.unwrap_or(receipt))
                }
            }
        })
    })
}
