//! Clients as they are: they retry, whatever happens, until the answer is final.

use std::time::Duration;

use serde_json::{Value, json};
use uuid::Uuid;

#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) http: reqwest::Client,
    pub(crate) url: String,
}

#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) replayed: bool,
    pub(crate) text: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    pub(crate) fn data(&self) -> String {
        self.json()["data"].to_string()
    }

    pub(crate) fn code(&self) -> Option<String> {
        self.json()["errors"][0]["extensions"]["code"].as_str().map(str::to_owned)
    }

    fn is_final(&self) -> bool {
        self.json()["errors"][0]["extensions"]["retryable"] != json!(true)
    }
}

pub(crate) fn new_key() -> String {
    Uuid::new_v4().to_string()
}

impl Client {
    pub(crate) fn of(url: &str) -> Self {
        let http = reqwest::Client::builder().timeout(Duration::from_secs(30)).build().unwrap();
        Self { http, url: url.to_owned() }
    }

    pub(crate) async fn try_send(&self, query: &str, variables: Value) -> reqwest::Result<Answer> {
        let body = json!({ "query": query, "variables": variables });
        let answer = self.http.post(&self.url).bearer_auth("tester").json(&body).send().await?;
        let status = answer.status().as_u16();
        let replayed = answer.headers().get("idempotent-replayed").is_some_and(|value| value == "true");
        Ok(Answer { status, replayed, text: answer.text().await? })
    }

    pub(crate) async fn send(&self, query: &str, variables: Value) -> Answer {
        self.try_send(query, variables).await.unwrap()
    }

    pub(crate) async fn open_account(&self) -> String {
        const OPEN: &str =
            r#"mutation ($k: IdempotencyKey!) { openAccount(idempotencyKey: $k, input: { owner: "Ann" }) { id } }"#;
        let answer = self.send(OPEN, json!({ "k": new_key() })).await;
        answer.json()["data"]["openAccount"]["id"].as_str().unwrap_or_else(|| panic!("{}", answer.text)).to_owned()
    }

    pub(crate) async fn try_charge(&self, key: &str, account: &str, amount: i64) -> reqwest::Result<Answer> {
        const CHARGE: &str = "mutation ($k: IdempotencyKey!, $in: ChargeInput!) {
            charge(idempotencyKey: $k, input: $in) { id amount currency status receipt createdAt }
        }";
        self.try_send(CHARGE, json!({ "k": key, "in": { "account": account, "amount": amount } })).await
    }

    pub(crate) async fn charge(&self, key: &str, account: &str, amount: i64) -> Answer {
        self.try_charge(key, account, amount).await.unwrap()
    }

    /// Retries over broken connections and retryable answers; gives up after a time, with the last answer.
    pub(crate) async fn charge_until_final(&self, key: &str, account: &str, amount: i64) -> Answer {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(40);
        loop {
            let answer = self.try_charge(key, account, amount).await;
            let late = tokio::time::Instant::now() > deadline;
            match answer {
                Ok(answer) if answer.is_final() || late => return answer,
                Err(error) if late => panic!("no answer: {error}"),
                Ok(_) | Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    }
}
