//! The end of a history: the world is honest, and every key has to end.

use async_graphql_idempotency::{ClientId, IdempotencyKey, State, Store};

use crate::{
    backend::Backend,
    history::{Act, Oracle, PROCESSES},
    judge::Verdict,
    oracle::effects,
    play::Play,
    process::CONNECTIONS,
    stage::Identity,
};

impl<B: Backend> Play<'_, B> {
    /// Goes on with a mutation until its key has ended.
    pub(crate) async fn finish(&mut self, who: &Identity) -> Result<(), String> {
        for round in 0..10 {
            let process = round % PROCESSES;
            self.ask_for(std::slice::from_ref(who), process);
            self.quiet().await?;
            match self.judge.last(who) {
                Verdict::Final => {
                    // Each connection that was made to a demoted server costs one try.
                    for _ in 0..=CONNECTIONS {
                        self.ask_for(std::slice::from_ref(who), (process + 1) % PROCESSES);
                        self.quiet().await?;
                        if self.judge.last(who) == Verdict::Final {
                            return Ok(());
                        }
                    }
                    return Err(format!("{who:?}: its end was not replayed"));
                }
                Verdict::Reused => return Ok(()),
                Verdict::Open => {}
            }
            self.lapse().await;
            // Also what a resolver that rested until now has sent since.
            self.stage.arrive();
            self.stage.world().oracle = Some(Oracle::Honest);
            self.sweep(process);
            self.quiet().await?;
            if round >= 3 {
                self.complete(who).await;
                self.settle(process, &who.client, &who.key);
                self.quiet().await?;
            }
        }
        Err(format!("{who:?} never ends"))
    }

    /// A person does what is missing, so that it can be told what became of the mutation.
    async fn complete(&self, who: &Identity) {
        let key = IdempotencyKey::new(who.key.clone()).unwrap();
        let client = ClientId::new(who.client.clone()).unwrap();
        let Ok(Some(found)) = self.bench.eye.find(&client, &key).await else { return };
        if found.record.mutation != who.mutation
            || !matches!(found.record.state, State::NeedsRecovery | State::Released)
        {
            return;
        }
        let rows = self.rows(Some(who)).await;
        let effects = effects(&self.stage, who, &rows);
        for (kind, act, name) in self.history.version(false).1 {
            if effects.contains_key(&kind) {
                continue;
            }
            self.judge.note(format!("  a person does {kind} of {who:?}"));
            if act == Act::Local {
                let label = format!("{} {} {} {kind} by hand", who.client, who.key, who.mutation);
                let insert = format!("INSERT INTO effects (label) VALUES ('{label}')");
                B::execute(&self.bench.database, &self.bench.eye, insert).await;
            } else {
                let id = uuid::Uuid::new_v5(&found.record.request_id, name.as_bytes());
                let id = self.stage.used(who, kind).unwrap_or(id);
                self.stage.call(who, kind, id, act != Act::Plain, None).unwrap();
            }
        }
    }
}
