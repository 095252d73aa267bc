//! Faults of what an operator sees.

use std::time::Duration;

use async_graphql_idempotency::{State, StoreError, Upkeep, record::Timestamp};

use crate::mutant::{Fault, How};

/// A list with another filter.
macro_rules! filters {
    (|$filter:ident| $change:expr) => {
        How::List(|store, mut $filter| {
            Box::pin(async move {
                $change;
                store.inner.list(&$filter).await
            })
        })
    };
}

/// A list of something else.
macro_rules! lists {
    (|$filter:ident, $records:ident| $change:expr) => {
        How::List(|store, $filter| {
            Box::pin(async move {
                let mut $records = store.inner.list(&$filter).await?;
                $change;
                Ok($records)
            })
        })
    };
}

/// Other steps.
macro_rules! steps {
    (|$steps:ident| $change:expr) => {
        How::Steps(|store, client, key| {
            Box::pin(async move {
                let mut $steps = store.inner.steps(client, key).await?;
                $change;
                Ok($steps)
            })
        })
    };
}

/// Other counts.
macro_rules! counts {
    (|$counts:ident| $change:expr) => {
        How::Count(|store| {
            Box::pin(async move {
                let mut $counts = store.inner.count().await?;
                $change;
                Ok($counts)
            })
        })
    };
}

pub fn faults() -> Vec<Fault> {
    [lists(), others()].concat()
}

fn lists() -> Vec<Fault> {
    vec![
        ("every list is empty", lists!(|_filter, records| records.clear())),
        ("a list is of all states", filters!(|filter| filter.state = None)),
        ("a list is of all mutations", filters!(|filter| filter.mutation = None)),
        ("a list is of all clients", filters!(|filter| filter.client = None)),
        ("a list is of whatever age", filters!(|filter| filter.older_than = None)),
        (
            "a list is of younger records",
            filters!(|filter| {
                filter.older_than = filter.older_than.map(|age| Duration::from_mins(1).saturating_sub(age));
            }),
        ),
        (
            "an age is counted in seconds",
            filters!(|filter| filter.older_than = filter.older_than.map(|age| age * 1000)),
        ),
        ("a list is of whatever length", filters!(|filter| filter.limit = u32::MAX)),
        (
            "a list without a limit is empty",
            lists!(|filter, records| if filter.limit == 0 {
                records.clear();
            }),
        ),
        (
            "a list without a limit has 50 records",
            filters!(|filter| if filter.limit == 0 {
                filter.limit = 50;
            }),
        ),
        (
            "a list without a limit has all records",
            filters!(|filter| if filter.limit == 0 {
                filter.limit = u32::MAX;
            }),
        ),
        ("a list never has more than 100 records", lists!(|_filter, records| records.truncate(100))),
        (
            "a list has one record too many",
            filters!(|filter| if filter.limit > 0 {
                filter.limit += 1;
            }),
        ),
        ("a list begins with the youngest", lists!(|_filter, records| records.reverse())),
        ("a list is in the order of the keys", lists!(|_filter, records| records.sort_by(|a, b| a.key.cmp(&b.key)))),
        (
            "a list with a limit has the youngest",
            How::List(|store, mut filter| {
                Box::pin(async move {
                    let limit = usize::try_from(filter.limit()).unwrap();
                    filter.limit = u32::MAX;
                    let mut records = store.inner.list(&filter).await?;
                    records.drain(..records.len().saturating_sub(limit));
                    Ok(records)
                })
            }),
        ),
        (
            "a list leaves out what is finished",
            lists!(|_filter, records| records.retain(|record| !record.state.is_finished())),
        ),
        ("a list leaves out what is open", lists!(|_filter, records| records.retain(|record| !record.state.is_open()))),
        (
            "a list leaves out what is settling",
            lists!(|_filter, records| {
                records.retain(|record| !matches!(record.state, State::Settling(_)));
            }),
        ),
        (
            "a list leaves out what was given back",
            lists!(|_filter, records| {
                records.retain(|record| record.state != State::Released);
            }),
        ),
        (
            "a list leaves out tombstones",
            lists!(|_filter, records| records.retain(|record| !record.state.is_tombstone())),
        ),
        (
            "what is held is listed once a sweep has come by",
            lists!(|_filter, records| {
                records.retain(|record| record.state != State::NeedsRecovery || record.recoveries > 0);
            }),
        ),
        (
            "a list has no responses",
            lists!(|_filter, records| for record in &mut records {
                record.response = None;
            }),
        ),
        (
            "a list has no kept requests",
            lists!(|_filter, records| for record in &mut records {
                record.request = None;
            }),
        ),
        (
            "a list has no reasons",
            lists!(|_filter, records| for record in &mut records {
                record.reason = None;
            }),
        ),
        (
            "a list has no selections",
            lists!(|_filter, records| for record in &mut records {
                record.selection.clear();
            }),
        ),
    ]
}

fn others() -> Vec<Fault> {
    vec![
        ("no record has steps", steps!(|steps| steps.clear())),
        (
            "the steps of a client are those of all its keys",
            How::Steps(|store, client, key| {
                Box::pin(async move {
                    let mut steps = store.inner.steps(client, key).await?;
                    let filter =
                        async_graphql_idempotency::store::Filter { client: Some(client.clone()), ..Default::default() };
                    for record in store.inner.list(&filter).await? {
                        if &record.key != key {
                            steps.extend(store.inner.steps(client, &record.key).await?);
                        }
                    }
                    Ok(steps)
                })
            }),
        ),
        ("steps are told from the last", steps!(|steps| steps.reverse())),
        ("steps are told by their names", steps!(|steps| steps.sort_by(|a, b| a.name.cmp(&b.name)))),
        ("steps are told by their ends", steps!(|steps| steps.sort_by_key(|step| step.result.is_none()))),
        ("only finished steps are told", steps!(|steps| steps.retain(|step| step.result.is_some()))),
        ("only the first step is told", steps!(|steps| steps.truncate(1))),
        ("nothing is counted", counts!(|counts| counts.clear())),
        ("what is open is not counted", counts!(|counts| counts.retain(|count| !count.state.is_open()))),
        ("what is finished is not counted", counts!(|counts| counts.retain(|count| !count.state.is_finished()))),
        (
            "states are counted together",
            counts!(|counts| {
                counts.dedup_by(|second, first| {
                    let is_same = second.mutation == first.mutation;
                    first.records += if is_same { second.records } else { 0 };
                    is_same
                });
            }),
        ),
        (
            "mutations are counted together",
            counts!(|counts| {
                counts.sort_by_key(|count| count.state.as_str());
                counts.dedup_by(|second, first| {
                    let is_same = second.state == first.state;
                    first.records += if is_same { second.records } else { 0 };
                    is_same
                });
            }),
        ),
        (
            "one is counted less",
            counts!(|counts| for count in &mut counts {
                count.records -= 1;
            }),
        ),
        (
            "no more than one is counted",
            counts!(|counts| for count in &mut counts {
                count.records = 1;
            }),
        ),
        (
            "a count is told since now",
            counts!(|counts| for count in &mut counts {
                count.oldest.0 += 1;
            }),
        ),
        (
            "a count is told since ever",
            counts!(|counts| for count in &mut counts {
                count.oldest = Timestamp(0);
            }),
        ),
        (
            "a state is counted in two",
            counts!(|counts| {
                let twice: Vec<_> = counts.iter().filter(|count| count.records > 1).cloned().collect();
                counts.extend(twice);
            }),
        ),
        (
            "what is set up is told as not",
            How::Check(|_| Box::pin(async { Err(StoreError::Misconfigured("the table idempotency_records".into())) })),
        ),
    ]
}
