//! The workers: clients that all send the same charge, with the same key, at the same moment.

use std::sync::Arc;

use async_graphql::{Executor, Request, Response, Value, Variables};
use async_graphql_idempotency::ClientId;
use serde_json::json;
use tokio::{sync::Barrier, task::JoinSet};
use uuid::Uuid;

use crate::report::Report;

const OPEN_ACCOUNT: &str = r#"mutation OpenAccount($key: IdempotencyKey!) {
    openAccount(idempotencyKey: $key, input: {owner: "Storm"}) { id }
}"#;

const CHARGE: &str = "mutation Charge($key: IdempotencyKey!, $account: ID!, $amount: Int!) {
    charge(idempotencyKey: $key, input: {account: $account, amount: $amount}) { id amount status receipt }
}";

pub(super) struct Workers {
    count: usize,
    /// A client of its own for every storm, so that storms on one database don't meet.
    client: ClientId,
    key: String,
    account: String,
}

impl Workers {
    /// Workers with an account to charge for.
    pub(super) async fn new(count: u32, schema: &impl Executor) -> Result<Self, Report> {
        let client = ClientId::hashed(format!("storm {}", Uuid::new_v4()));
        let variables = Variables::from_json(json!({ "key": Uuid::new_v4().to_string() }));
        let request = Request::new(OPEN_ACCOUNT).variables(variables).data(client.clone());
        let opened = schema.execute(request).await.into_result().map_err(|errors| first(&errors))?;
        let account = match &opened.data {
            Value::Object(data) => data.get("openAccount").cloned(),
            _ => None,
        };
        let account = match account {
            Some(Value::Object(account)) => account.get("id").cloned(),
            _ => None,
        };
        let Some(Value::String(account)) = account else {
            return Err(Report::new("no account was opened"));
        };
        Ok(Self { count: count as usize, client, key: Uuid::new_v4().to_string(), account })
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Lets all workers go at once, and gathers their answers.
    pub(super) async fn release(&self, schema: &impl Executor, amount: i64) -> Vec<Response> {
        let start = Arc::new(Barrier::new(self.count));
        let mut running = JoinSet::new();
        for _ in 0..self.count {
            let (schema, request, start) = (schema.clone(), self.request(amount), Arc::clone(&start));
            running.spawn(async move {
                start.wait().await;
                schema.execute(request).await
            });
        }
        running.join_all().await
    }

    /// Sends the charge once.
    pub(super) async fn send(&self, schema: &impl Executor, amount: i64) -> Response {
        schema.execute(self.request(amount)).await
    }

    fn request(&self, amount: i64) -> Request {
        let variables = json!({ "key": self.key, "account": self.account, "amount": amount });
        Request::new(CHARGE).variables(Variables::from_json(variables)).data(self.client.clone())
    }
}

fn first(errors: &[async_graphql::ServerError]) -> Report {
    Report::new(errors.first().map_or("no answer", |error| &error.message))
}
