//! The primary is killed, and its synchronous standby is promoted.

use std::{fmt::Debug, time::Duration};

use serde_json::Value;
use tokio::time::{Instant, sleep};

use crate::{
    ALONE,
    buyers::{Market, Sale, random},
    member::{self, Member},
    process::{Gateway, Setup},
    proxy::Proxy,
};

const KILLS: usize = 4;
const BUYERS: i64 = 6;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_primary_dies_every_key_is_charged_once_and_keeps_its_answer() {
    let _alone = ALONE.lock().await;
    let Some(mut primary) = Member::first(true).await else { return };
    let mut standby = primary.standby().await;
    let address = Proxy::start(primary.address()).await;
    let gateway = Gateway::start();
    let options = ["--lease", "2s", "--wait", "500ms", "--sweep-every", "300ms"];
    let setup = Setup::new(&member::url(address.port), &gateway, &options);
    let servers = [setup.start(), setup.start()];
    let market = Market::open([&servers[0].url, &servers[1].url]).await;
    gateway.latency(40).await;
    let buyers: Vec<_> = (0..BUYERS).map(|number| market.buyer(number)).collect();
    for kill in 0..KILLS {
        sleep(Duration::from_millis(1_000 + u64::try_from(random(1_000)).unwrap())).await;
        let refusals = market.refusals();
        primary.kill();
        // The address moves before the standby takes writes, or after.
        if kill % 2 == 0 {
            address.lead_to(standby.address());
            sleep(Duration::from_millis(300)).await;
        }
        standby.promote().await;
        sleep(Duration::from_millis(200)).await;
        address.lead_to(standby.address());
        primary = standby;
        standby = primary.standby().await;
        assert!(market.refusals() > refusals, "nobody noticed that the primary died");
    }
    sleep(Duration::from_secs(1)).await;
    market.close();
    let mut sales = Vec::new();
    for buyer in buyers {
        sales.extend(buyer.await.unwrap());
    }
    eprintln!("{} keys, {KILLS} kills, refused meanwhile: {:?}", sales.len(), market.codes());
    assert!(sales.iter().all(|sale| sale.answer.code().is_none()), "a key was refused for good: {:?}", market.codes());
    nothing_is_left_open(&primary).await;
    each_was_charged_once(&sales, &gateway, &primary).await;
    for sale in &sales {
        market.holds(sale).await;
    }
}

/// No key is stuck: whatever was lost is found again, without its client.
async fn nothing_is_left_open(primary: &Member) {
    let deadline = Instant::now() + Duration::from_secs(30);
    let open = "SELECT count(*) FROM idempotency_records WHERE state <> 'succeeded'";
    while primary.number(open).await > 0 {
        assert!(Instant::now() < deadline, "a key is stuck");
        sleep(Duration::from_millis(100)).await;
    }
}

/// The gateway, the rows and the records tell the same story: that of the clients.
async fn each_was_charged_once(sales: &[Sale], gateway: &Gateway, primary: &Member) {
    let charges = gateway.charges().await;
    let at_gateway = charges.iter().map(|charge| (charge["amount"].as_i64().unwrap(), text(&charge["id"])));
    let told = sales.iter().map(|Sale { amount, answer, .. }| {
        let charge = &answer.json()["data"]["charge"];
        assert_eq!((charge["amount"].as_i64(), text(&charge["status"])), (Some(*amount), "SUCCEEDED".to_owned()));
        (*amount, text(&charge["receipt"]))
    });
    agree(at_gateway, told.clone(), "the gateway's charges");

    let mut connection = primary.connect().await;
    let rows = "SELECT amount, coalesce(receipt, '') FROM charges WHERE status <> 'pending'";
    let rows: Vec<(i64, String)> = sqlx::query_as(rows).fetch_all(&mut connection).await.unwrap();
    agree(rows.into_iter(), told, "the rows");
    assert_eq!(primary.number("SELECT count(*) FROM charges WHERE status = 'pending'").await, 0);
    let records = "SELECT key, state::text FROM idempotency_records WHERE mutation = 'charge'";
    let records: Vec<(String, String)> = sqlx::query_as(records).fetch_all(&mut connection).await.unwrap();
    agree(records.into_iter(), sales.iter().map(|sale| (sale.key.clone(), "succeeded".to_owned())), "the records");
    let request_ids = "SELECT count(DISTINCT request_id) FROM idempotency_records WHERE mutation = 'charge'";
    assert_eq!(usize::try_from(primary.number(request_ids).await), Ok(sales.len()));
    let resumed = primary.number("SELECT count(*) FROM idempotency_records WHERE attempt > 1").await;
    eprintln!("{} charges, {resumed} of them by a later attempt", charges.len());
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Both have the same, and nothing twice.
fn agree<T: Ord + Debug>(found: impl Iterator<Item = T>, told: impl Iterator<Item = T>, whose: &str) {
    let (mut found, mut told): (Vec<_>, Vec<_>) = (found.collect(), told.collect());
    found.sort();
    told.sort();
    let count = found.len();
    found.dedup();
    assert_eq!(found.len(), count, "{whose}: some are there twice");
    let wrong: Vec<_> = found.iter().filter(|one| told.binary_search(one).is_err()).collect();
    let missing: Vec<_> = told.iter().filter(|one| found.binary_search(one).is_err()).collect();
    assert!(wrong.is_empty() && missing.is_empty(), "{whose}: {wrong:?} are wrong, {missing:?} are missing");
}
