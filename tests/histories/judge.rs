//! The judge: knows the gateway, the rows and the answers, and nothing else.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
};

use async_graphql::{PathSegment, Response};
use serde_json::Value;

use crate::{
    history::{Act, Change, History, Kind},
    oracle::effects,
    server::LEASE,
    stage::{Identity, Stage},
};

/// What a client was told of one field.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    data: Value,
    /// Messages, and paths below the field.
    errors: Vec<(String, String)>,
    own: Option<Own>,
    replayed: bool,
}

/// The field's own error.
#[derive(Clone, Debug)]
struct Own {
    message: String,
    code: Option<String>,
    retry_after: Option<u64>,
}

impl Answer {
    pub(crate) fn of(response: &Response, alias: &str) -> Result<Self, String> {
        let data = response.data.clone().into_json().map_err(|error| error.to_string())?;
        let data = data.get(alias).cloned().unwrap_or_default();
        let is_here = |path: &[PathSegment]| matches!(path.first(), Some(PathSegment::Field(first)) if first == alias);
        let (mut errors, mut own) = (Vec::new(), None);
        for error in response.errors.iter().filter(|error| error.path.is_empty() || is_here(&error.path)) {
            let extension = |name: &str| {
                let value = error.extensions.as_ref()?.get(name)?.clone();
                value.into_json().ok()
            };
            if error.path.len() <= 1 && data.is_null() {
                own = Some(Own {
                    message: error.message.clone(),
                    code: extension("code").and_then(|code| code.as_str().map(str::to_owned)),
                    retry_after: extension("retryAfterMs").and_then(|after| after.as_u64()),
                });
            } else {
                errors.push((error.message.clone(), format!("{:?}", error.path.get(1..).unwrap_or_default())));
            }
        }
        let marks = response.extensions.get("idempotency").and_then(|marks| marks.clone().into_json().ok());
        let replayed = marks.is_some_and(|marks| marks[alias]["replayed"] == true);
        Ok(Self { data, errors, own, replayed })
    }
}

/// What was asked for.
#[derive(Clone, Copy)]
pub(crate) struct Asked {
    /// The request, where it has one field for the key.
    pub(crate) request: Option<u64>,
    /// Whether the mutation's end had been replayed before.
    pub(crate) after_end: bool,
}

/// Where a mutation stands, after its last answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Open,
    Final,
    /// The key is another mutation's.
    Reused,
}

#[derive(Clone)]
pub(crate) struct Judge {
    history: Arc<History>,
    stage: Arc<Stage>,
    memory: Arc<Mutex<Memory>>,
}

#[derive(Default)]
struct Memory {
    transcript: Vec<String>,
    last: BTreeMap<Identity, Verdict>,
    /// The errors beside what is done.
    beside: BTreeMap<Identity, Vec<(String, String)>>,
    failed: BTreeMap<Identity, String>,
    /// Whose end was replayed: it is stored.
    stored: BTreeSet<Identity>,
}

impl Judge {
    pub(crate) fn new(history: Arc<History>, stage: Arc<Stage>) -> Self {
        Self { history, stage, memory: Arc::default() }
    }

    pub(crate) fn note(&self, line: String) {
        if std::env::var("HISTORY_TRACE").is_ok() {
            eprintln!("{:?} {line}", std::thread::current().id());
        }
        self.memory.lock().unwrap().transcript.push(line);
    }

    pub(crate) fn transcript(&self) -> String {
        self.memory.lock().unwrap().transcript.join("\n")
    }

    pub(crate) fn last(&self, who: &Identity) -> Verdict {
        self.memory.lock().unwrap().last.get(who).copied().unwrap_or(Verdict::Open)
    }

    /// Whose end was replayed: it is stored.
    pub(crate) fn ended(&self) -> BTreeSet<Identity> {
        self.memory.lock().unwrap().stored.clone()
    }

    /// Whether an answer is true, now that it is given.
    pub(crate) fn judge(&self, who: &Identity, asked: Asked, answer: &Answer, rows: &[String]) -> Result<(), String> {
        self.each_effect_once(who, rows)?;
        let verdict = match &answer.own {
            None if answer.data.is_null() && answer.errors.is_empty() => Err("null, and no error".to_owned()),
            None => self.value(who, asked, answer, rows),
            Some(own) if own.code.as_ref().is_some_and(|code| code.starts_with("IDEMPOTENCY_")) => {
                refused(asked, own, rows)
            }
            Some(own) => self.failed(who, own, answer.replayed, rows),
        };
        let verdict = verdict.map_err(|broken| format!("{who:?}: {broken}"))?;
        let mut memory = self.memory.lock().unwrap();
        memory.last.insert(who.clone(), verdict);
        if answer.replayed {
            memory.stored.insert(who.clone());
        }
        Ok(())
    }

    /// "Done", or a payload that says that nothing happened.
    fn value(&self, who: &Identity, asked: Asked, answer: &Answer, rows: &[String]) -> Result<Verdict, String> {
        let receipt = &answer.data[0];
        if receipt["note"] == "undone" {
            nothing_by(asked.request, rows)?;
            return if answer.replayed { Err("what did not happen is replayed".to_owned()) } else { Ok(Verdict::Open) };
        }
        let effects: BTreeSet<_> = effects(&self.stage, who, rows).into_values().flatten().collect();
        for done in receipt["did"].as_array().into_iter().flatten() {
            if !effects.contains(done.as_str().unwrap_or_default()) {
                return Err(format!("{done} is told as done, and is not there"));
            }
        }
        let (known, by_hand) = {
            let mut world = self.stage.world();
            let by_hand = world.by_hand.contains(who);
            if by_hand && world.done.get(who).is_some_and(serde_json::Value::is_null) {
                world.done.remove(who);
            }
            let known = world.done.entry(who.clone()).or_insert_with(|| answer.data.clone()).clone();
            (known, by_hand)
        };
        let mut memory = self.memory.lock().unwrap();
        if let Some(failed) = memory.failed.get(who) {
            return Err(format!("it is done, and was told as failed: {failed}"));
        }
        if known != answer.data {
            return Err(format!("it was done as {known}"));
        }
        let beside = memory.beside.entry(who.clone()).or_insert_with(|| answer.errors.clone());
        if *beside != answer.errors && !by_hand {
            return Err(format!("it was done with {beside:?}"));
        }
        Ok(Verdict::Final)
    }

    /// An error of the resolver's own.
    fn failed(&self, who: &Identity, own: &Own, replayed: bool, rows: &[String]) -> Result<Verdict, String> {
        let message = own.message.as_str();
        match message {
            "refused" | "unknown" if replayed => return Err("it is not final, and replayed".to_owned()),
            "refused" | "unknown" => return Ok(Verdict::Open),
            "plain" | "no answer" | "database" | "final" | "it did not happen" => {}
            _ => return Err("an error without a code".to_owned()),
        }
        if !replayed {
            return Ok(Verdict::Open);
        }
        if let Some(done) = self.stage.world().done.get(who) {
            return Err(format!("it is told as failed, and was done as {done}"));
        }
        // "Failed", by whoever does not know better: then nothing of what is a step is there.
        if !matches!(message, "final" | "it did not happen") && !self.stage.world().lied.contains(who) {
            let effects = effects(&self.stage, who, rows);
            if let Some(kind) = effects.keys().find(|kind| self.act(**kind) != Act::Plain) {
                return Err(format!("it is told as failed, and {kind} is there"));
            }
        }
        let mut memory = self.memory.lock().unwrap();
        let first = memory.failed.entry(who.clone()).or_insert_with(|| message.to_owned());
        if first == message { Ok(Verdict::Final) } else { Err(format!("it had failed with {first}")) }
    }

    /// No kind of effect is there twice, whatever the steps are called, and each step has one request id.
    fn each_effect_once(&self, who: &Identity, rows: &[String]) -> Result<(), String> {
        let is_harmless = self.history.kind == Kind::Release || self.stage.world().lied.contains(who);
        for (kind, effects) in effects(&self.stage, who, rows) {
            let is_plain = self.act(kind) == Act::Plain;
            if effects.len() > 1 && !(is_plain && is_harmless) {
                return Err(format!("{who:?}: {kind} was done twice: {effects:?}"));
            }
        }
        let mut ids: BTreeMap<usize, BTreeSet<_>> = BTreeMap::new();
        for call in self.stage.world().calls.iter().filter(|call| call.is_step && call.who == *who) {
            ids.entry(call.kind).or_default().insert(call.id);
        }
        match ids.iter().find(|(_, ids)| ids.len() > 1) {
            Some((kind, ids)) => Err(format!("{who:?}: the gateway knows {kind} by {ids:?}")),
            None => Ok(()),
        }
    }

    fn act(&self, kind: usize) -> Act {
        match self.history.change {
            Change::Added(act) if kind == self.history.acts.len() => act,
            _ => self.history.acts[kind],
        }
    }

    /// What holds once every key has ended.
    pub(crate) fn end(&self, rows: &[String]) -> Result<(), String> {
        let asked: Vec<_> = self.memory.lock().unwrap().last.keys().cloned().collect();
        for who in &asked {
            self.each_effect_once(who, rows)?;
        }
        // One key is one mutation's.
        let memory = self.memory.lock().unwrap();
        for who in asked.iter().filter(|who| memory.last[*who] == Verdict::Reused) {
            let other = asked
                .iter()
                .find(|other| (&other.client, &other.key) == (&who.client, &who.key) && other.mutation != who.mutation);
            if other.is_none_or(|other| memory.last[other] != Verdict::Final) {
                return Err(format!("{who:?} was told of another use of its key, and there is none"));
            }
        }
        Ok(())
    }
}

/// An answer of the crate's own.
fn refused(asked: Asked, own: &Own, rows: &[String]) -> Result<Verdict, String> {
    match own.code.as_deref().unwrap_or_default().trim_start_matches("IDEMPOTENCY_") {
        "IN_PROGRESS" => {
            let lease = u64::try_from(LEASE.as_millis()).unwrap();
            match own.retry_after {
                Some(after) if (1..=lease).contains(&after) => Ok(Verdict::Open),
                other => Err(format!("in progress, to be tried again after {other:?}")),
            }
        }
        "KEY_REUSED" if asked.after_end => Err("its own end was replayed".to_owned()),
        "KEY_REUSED" => Ok(Verdict::Reused),
        "OUTCOME_UNKNOWN" if asked.after_end => Err("unknown, and its end was replayed".to_owned()),
        "OUTCOME_UNKNOWN" | "STORE_UNAVAILABLE" => Ok(Verdict::Open),
        "ROLLED_BACK" => nothing_by(asked.request, rows).map(|()| Verdict::Open),
        code => Err(format!("{code} where it can't be: {}", own.message)),
    }
}

/// Whatever a request did was undone.
fn nothing_by(request: Option<u64>, rows: &[String]) -> Result<(), String> {
    let Some(request) = request.map(|request| request.to_string()) else { return Ok(()) };
    match rows.iter().find(|label| label.split(' ').nth(4) == Some(&request)) {
        Some(label) => Err(format!("nothing happened, it is told, and there is {label}")),
        None => Ok(()),
    }
}
