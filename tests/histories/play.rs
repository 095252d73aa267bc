//! Plays a history: the world's course. What comes after it is in [`honest`](crate::honest).

use std::{
    collections::BTreeSet,
    panic::AssertUnwindSafe,
    sync::Arc,
    time::{Duration, Instant},
};

use async_graphql::{Request, Response};
use async_graphql_idempotency::{ClientId, IdempotencyKey, Record, Store};
use futures_util::FutureExt;
use tokio::task::JoinHandle;

use crate::{
    backend::Backend,
    history::{Event, History, Keys, Oracle, PROCESSES},
    judge::{Answer, Asked, Judge},
    oracle::{asking, rows},
    process::{Bench, Life, Mode, Process},
    server::{Ask, Number, Server},
    stage::{Identity, Stage},
};

/// A request, or a sweep, that has not ended.
struct Job {
    process: usize,
    number: u64,
    /// The identities of its fields by alias.
    fields: Vec<(String, Identity)>,
    /// Whose end was replayed before this was sent.
    ended: BTreeSet<Identity>,
    handle: JoinHandle<Option<Response>>,
}

pub(crate) struct Play<'a, B: Backend> {
    pub(crate) bench: &'a mut Bench<B>,
    pub(crate) history: Arc<History>,
    pub(crate) stage: Arc<Stage>,
    pub(crate) judge: Judge,
    name: String,
    ask: Ask,
    servers: Vec<Server<B>>,
    jobs: Vec<Job>,
    /// Whoever asked for something.
    asked: BTreeSet<Identity>,
}

/// How long anything may take. It is far above what everything takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// Plays a history to its end. `Err`: the rule that was broken, and all that was seen.
pub(crate) async fn play<B: Backend>(bench: &mut Bench<B>, history: &History) -> Result<(), String> {
    bench.histories += 1;
    let name = format!("h{}", bench.histories);
    let (history, stage) = (Arc::new(history.clone()), Arc::new(Stage::new()));
    let ask = asking::<B>(&bench.database, &bench.eye, &history, &stage);
    let judge = Judge::new(Arc::clone(&history), Arc::clone(&stage));
    let servers = Vec::new();
    let mut play = Play { bench, history, stage, judge, name, ask, servers, jobs: Vec::new(), asked: BTreeSet::new() };
    for process in 0..PROCESSES {
        let server = play.server(process, false);
        play.servers.push(server);
    }
    let played = AssertUnwindSafe(play.course()).catch_unwind().await;
    // What it said was printed where it panicked.
    let played = played.unwrap_or_else(|_panic| Err("the history panicked".to_owned()));
    // Whatever is left of it does not disturb the next one.
    play.stage.be_honest();
    for process in 0..PROCESSES {
        if played.is_err() {
            play.reap(process).await;
        }
        play.servers[process].life.heal();
        play.bench.processes[process].ground.demote(false);
    }
    played.map_err(|broken| format!("{broken}\n{}", play.judge.transcript()))
}

impl<B: Backend> Play<'_, B> {
    fn server(&self, process: usize, second: bool) -> Server<B> {
        let store = self.bench.processes[process].store().clone();
        let life = Arc::new(Life::new(!B::POSTGRES));
        Server::new(store, life, &self.history, second, &self.stage, &self.ask)
    }

    async fn course(&mut self) -> Result<(), String> {
        for event in self.history.course.clone() {
            self.judge.note(format!("{event:?}"));
            self.happen(event).await?;
            self.quiet().await?;
        }
        self.judge.note("the world is honest again".to_owned());
        self.stage.be_honest();
        self.stage.arrive();
        for process in 0..PROCESSES {
            if self.servers[process].life.mode() == Mode::Dead {
                self.reap(process).await;
            }
            self.servers[process].life.heal();
            self.bench.processes[process].ground.demote(false);
        }
        self.quiet().await?;
        for who in self.asked.clone() {
            self.finish(&who).await?;
        }
        let rows = self.rows(None).await;
        self.judge.end(&rows)
    }

    async fn happen(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Send { client, keys, other, process, copies } => {
                for copy in 0..copies {
                    self.send(client, keys, other, (process + copy) % PROCESSES);
                }
            }
            Event::HangUp => {
                let stage = &self.stage;
                let hangs_up = |job: &mut Job| !job.fields.is_empty() && stage.world().rests(job.number);
                for job in self.jobs.extract_if(.., hangs_up) {
                    job.handle.abort();
                    drop(job.handle.await);
                }
            }
            Event::Arm { process, nth, fault } => self.servers[process].life.arm(nth, fault),
            Event::Kill(process) => {
                self.servers[process].life.set(Mode::Dead);
                self.reap(process).await;
            }
            Event::Stop(process) => self.servers[process].life.set(Mode::Stopped),
            Event::Continue(process) => self.servers[process].life.set(Mode::Running),
            Event::Go => self.stage.go(),
            Event::Lapse => self.lapse().await,
            Event::Sweep { process, oracle } => {
                self.stage.world().oracle = Some(oracle);
                self.sweep(process);
            }
            Event::Take { process, client, key } => {
                let (client, key) = (ClientId::new(self.client(client)), IdempotencyKey::new(key_of(key)));
                let operator = self.servers[process].idempotency.operator();
                self.job(process, async move {
                    drop(operator.take(&client.unwrap(), &key.unwrap(), "it takes too long").await);
                });
            }
            Event::Settle { process, client, key } => {
                let (client, key) = (self.client(client), key_of(key));
                self.settle(process, &client, &key);
            }
            Event::Arrive => self.stage.arrive(),
            Event::Deploy(process) => {
                // The old version drains first.
                if self.servers[process].life.mode() == Mode::Running
                    && !self.jobs.iter().any(|job| job.process == process)
                {
                    let second = !self.servers[process].second;
                    let life = Arc::clone(&self.servers[process].life);
                    self.servers[process] = self.server(process, second);
                    life.heal();
                }
            }
            Event::Cut(process) => {
                let ground = &self.bench.processes[process].ground;
                B::cut(&self.bench.database, &self.bench.eye, ground).await;
            }
            Event::Lock => {
                let (database, eye) = (Arc::clone(&self.bench.database), self.bench.eye.clone());
                tokio::spawn(async move { B::lock(&database, &eye).await });
            }
            Event::Demote(process) => self.bench.processes[process].ground.demote(true),
            Event::Promote(process) => self.bench.processes[process].ground.demote(false),
        }
        Ok(())
    }

    fn client(&self, client: usize) -> String {
        format!("{}c{client}", self.name)
    }

    fn send(&mut self, client: usize, keys: Keys, other: bool, process: usize) {
        let mutation = if other { "also" } else { "act" };
        let keys: &[usize] = match keys {
            Keys::First => &[0],
            Keys::Second => &[1],
            Keys::Both => &[0, 1],
            Keys::Swapped => &[1, 0],
            Keys::Twice => &[0, 0],
        };
        let client = self.client(client);
        let who = |key: &usize| Identity { client: client.clone(), key: key_of(*key), mutation: mutation.to_owned() };
        let identities: Vec<_> = keys.iter().map(who).collect();
        self.ask_for(&identities, process);
    }

    pub(crate) fn ask_for(&mut self, identities: &[Identity], process: usize) {
        let number = self.stage.number();
        let fields: Vec<_> = identities.iter().enumerate().map(|(at, who)| (format!("f{at}"), who.clone())).collect();
        let selected = fields.iter().map(|(alias, Identity { key, mutation, .. })| {
            format!(r#"{alias}: {mutation}(idempotencyKey: "{key}") {{ did note below swallowed }}"#)
        });
        let document = format!("mutation {{ {} }}", selected.collect::<Vec<_>>().join(" "));
        let client = ClientId::new(identities[0].client.clone()).unwrap();
        let request = Request::new(&document).data(client).data(Number(number));
        let schema = self.servers[process].schema.clone();
        self.judge.note(format!("  request {number} to {process}: {} {document}", identities[0].client));
        self.asked.extend(identities.iter().cloned());
        let handle = self.bench.processes[process].runtime().spawn(async move { Some(schema.execute(request).await) });
        self.jobs.push(Job { process, number, fields, ended: self.judge.ended(), handle });
    }

    /// Something that is no request.
    fn job(&mut self, process: usize, work: impl Future<Output = ()> + Send + 'static) {
        let number = self.stage.number();
        let handle = self.bench.processes[process].runtime().spawn(async move {
            work.await;
            None
        });
        self.jobs.push(Job { process, number, fields: Vec::new(), ended: BTreeSet::new(), handle });
    }

    pub(crate) fn sweep(&mut self, process: usize) {
        let Server { schema, idempotency, .. } = &self.servers[process];
        let stage = Arc::clone(&self.stage);
        let sweeper = idempotency.resume_with(schema.clone(), move |request, _, _| {
            let number = Number(stage.number());
            async move { request.data(number) }
        });
        let sweeper = sweeper.backoff(Duration::ZERO).patience(Duration::from_millis(50));
        self.job(process, async move { drop(sweeper.run_once().await) });
    }

    /// An operator settles a key truthfully, where that can be known.
    pub(crate) fn settle(&mut self, process: usize, client: &str, key: &str) {
        let Server { schema, idempotency, .. } = &self.servers[process];
        let (schema, idempotency, ask) = (schema.clone(), idempotency.clone(), Arc::clone(&self.ask));
        let (client, key) = (ClientId::new(client).unwrap(), IdempotencyKey::new(key).unwrap());
        let (stage, judge) = (Arc::clone(&self.stage), self.judge.clone());
        self.job(process, async move {
            let Ok(Some(found)) = idempotency.store().find(&client, &key).await else { return };
            stage.world().oracle = Some(Oracle::Honest);
            let found = ask(Record::clone(&found.record)).await;
            judge.note(format!("  an operator finds {found:?}"));
            drop(idempotency.settle(&schema, &client, &key, found, "by hand").await);
        });
    }

    /// A process that has died: nobody hears of its requests any more, and another one takes its place.
    async fn reap(&mut self, process: usize) {
        self.judge.note(format!("  process {process} is dead"));
        self.jobs.retain(|job| job.process != process);
        self.bench.processes[process].end().await;
        self.bench.processes[process] = Process::start(&self.bench.database).await;
        let second = self.servers[process].second;
        self.servers[process] = self.server(process, second);
    }

    /// Waits until every request has ended or can't go on, and judges the answers.
    pub(crate) async fn quiet(&mut self) -> Result<(), String> {
        let begun = Instant::now();
        loop {
            for process in 0..PROCESSES {
                if self.servers[process].life.mode() == Mode::Dead {
                    self.reap(process).await;
                }
            }
            let ended: Vec<_> = self.jobs.extract_if(.., |job| job.handle.is_finished()).collect();
            for job in ended {
                self.answered(job).await?;
            }
            let is_quiet = |job: &Job| {
                let mode = self.servers[job.process].life.mode();
                // A sweep goes on by itself; so does what it runs.
                mode == Mode::Stopped || self.stage.world().rests(job.number)
            };
            if self.jobs.iter().all(is_quiet) {
                return Ok(());
            }
            if begun.elapsed() > PATIENCE {
                let hang: Vec<_> = self.jobs.iter().filter(|job| !is_quiet(job)).map(|job| job.number).collect();
                return Err(format!("requests {hang:?} hang"));
            }
            tokio::time::sleep(Duration::from_micros(500)).await;
        }
    }

    async fn answered(&mut self, job: Job) -> Result<(), String> {
        let response = match job.handle.await {
            Ok(Some(response)) => response,
            Ok(None) => return Ok(()),
            Err(failed) => {
                self.judge.note(format!("  request {} gets no answer: {failed}", job.number));
                let by_history = failed.is_panic()
                    && failed.into_panic().downcast_ref::<&str>().is_some_and(|message| *message == "by the history");
                return if by_history { Ok(()) } else { Err("a request panicked".to_owned()) };
            }
        };
        for (alias, who) in &job.fields {
            let answer = Answer::of(&response, alias)?;
            self.judge.note(format!("  request {} {alias}: {answer:?}", job.number));
            let rows = self.rows(Some(who)).await;
            let is_alone = job.fields.iter().filter(|(_, other)| other == who).count() == 1;
            let asked = Asked { request: is_alone.then_some(job.number), after_end: job.ended.contains(who) };
            self.judge.judge(who, asked, &answer, &rows)?;
        }
        Ok(())
    }

    /// The labels of the rows that were committed.
    pub(crate) async fn rows(&self, who: Option<&Identity>) -> Vec<String> {
        rows::<B>(&self.bench.database, &self.bench.eye, &self.name, who).await
    }

    pub(crate) async fn lapse(&self) {
        let of_history = format!(
            "WHERE client LIKE '{}c%' AND CAST(state AS text) IN ('in_progress', 'needs_recovery', 'settling_succeeded', 'settling_failed')",
            self.name
        );
        let earlier = B::earlier("idempotency_records", "due_at", Duration::from_hours(1));
        B::execute(&self.bench.database, &self.bench.eye, format!("{earlier} {of_history}")).await;
        let looked_at = format!("UPDATE idempotency_records SET look_at = due_at {of_history}");
        B::execute(&self.bench.database, &self.bench.eye, looked_at).await;
    }
}

fn key_of(key: usize) -> String {
    format!("k{key}")
}
