//! What stands in the answer, below the field or beside its value, and what it says about the key.

use std::marker::PhantomData;

use async_graphql::{Context, EmptySubscription, Error, ErrorExtensions, Object, Result, Schema, SimpleObject};

use crate::support::{schema::Query, *};

fn coded(code: &str) -> Error {
    Error::new("refused").extend_with(|_, e| e.set("code", code))
}

/// An error by a word: a mark's, or a code's.
fn refused(word: &str) -> Error {
    Mark::parse(word).map_or_else(|| coded(word), |mark| coded("MARKED").mark(mark))
}

#[derive(SimpleObject)]
struct Charge {
    id: String,
}

struct Summary {
    refusal: String,
}

#[Object]
impl Summary {
    async fn charged(&self) -> i32 {
        1
    }

    /// Thrown to the field above.
    async fn thrown(&self) -> Result<i32> {
        Err(refused(&self.refusal))
    }

    async fn swallowed(&self) -> Option<Result<i32>> {
        Some(Err(refused(&self.refusal)))
    }
}

struct Charges<B>(PhantomData<B>);

/// The first item has charged when the second is refused.
#[Object]
impl<B: Backend> Charges<B> {
    async fn charge_many(
        &self,
        ctx: &Context<'_>,
        idempotency_key: IdempotencyKey,
        refusal: String,
    ) -> Vec<Result<Charge>> {
        let charged = effect::<B>(ctx, "charge").await.map(|()| Charge { id: idempotency_key.to_string() });
        vec![charged, Err(refused(&refusal))]
    }

    async fn charge_some(
        &self,
        ctx: &Context<'_>,
        idempotency_key: IdempotencyKey,
        refusal: String,
    ) -> Vec<Option<Result<Charge>>> {
        let charged = effect::<B>(ctx, "charge").await.map(|()| Charge { id: idempotency_key.to_string() });
        vec![Some(charged), Some(Err(refused(&refusal))), None]
    }

    #[allow(unused_variables, reason = "the key is for the extension")]
    async fn charge_all(&self, ctx: &Context<'_>, idempotency_key: IdempotencyKey, refusal: String) -> Result<Summary> {
        effect::<B>(ctx, "charge").await?;
        Ok(Summary { refusal })
    }
}

both!(an_error_of_an_item_or_below_the_field_never_gives_the_charge_back, world, {
    let fields = [
        ("chargeMany", "{ id }", r#"["FIELD",1]"#),
        ("chargeSome", "{ id }", r#"["FIELD",1]"#),
        ("chargeAll", "{ charged thrown }", r#"["FIELD","thrown"]"#),
        ("chargeAll", "{ charged swallowed }", r#"["FIELD","swallowed"]"#),
    ];
    for policy in [Policy::leased(), Policy::leased().on_crash(OnCrash::Resume), Policy::transactional()] {
        let idempotency = Idempotency::builder(world.store.clone()).default_policy(policy).build().unwrap();
        let builder = Schema::build(Query, Charges::<B>(PhantomData), EmptySubscription);
        let schema = world.schema(builder, &world.store, &idempotency);
        for (field, selection, path) in fields {
            for refusal in ["BAD_USER_INPUT", "FORBIDDEN", "DECLINED", "release", "final", "unknown"] {
                for sibling in ["", r#" chargeAll(idempotencyKey: "KEY2", refusal: "") { charged }"#] {
                    let key = uuid::Uuid::new_v4().to_string();
                    let document = format!(
                        r#"mutation {{ FIELD: {field}(idempotencyKey: "KEY", refusal: "{refusal}") {selection}{sibling} }}"#
                    )
                    .replace("KEY", &key);
                    let before = world.effects().await;
                    let first = schema.execute(request(&document)).await;
                    let told = if Mark::parse(refusal).is_some() { "MARKED" } else { refusal };
                    assert_eq!(code(&first), told, "{document}");
                    assert_eq!(serde_json::to_string(&first.errors[0].path).unwrap(), path, "{document}");
                    let effects = 1 + i64::from(!sibling.is_empty());
                    assert_eq!(world.effects().await - before, effects, "{document}");
                    assert_eq!(world.state(&key).await, "succeeded", "{document}");
                    let again = schema.execute(request(&document)).await;
                    assert_eq!(answered(&again), answered(&first), "{document}");
                    assert!(replayed(&again, "FIELD"), "{document}");
                    assert_eq!(world.effects().await - before, effects, "{document}");
                }
            }
        }
    }
});

/// Returns a payload that says what went wrong, with a mark or without, and goes well from the second call on. What it
/// wrote before it knew stays only where it is left standing.
fn payload<B: Backend>(world: &World<B>, mutation: &'static str, mark: Option<Mark>) -> Arc<AtomicUsize> {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    world.on(mutation, move |ctx| {
        let goes_well = counted.fetch_add(1, Ordering::SeqCst) > 0;
        Box::pin(async move {
            let attempt = ctx.attempt::<Faulty<B::Store>>()?;
            let out_of_stock = || Receipt { note: Some("out of stock".into()), ..Receipt::new("") };
            if attempt.is_transactional() {
                effect::<B>(ctx, mutation).await?;
            } else {
                let written = attempt.local("order", async |connection| {
                    B::write(connection, mutation).await?;
                    if goes_well { Ok(()) } else { Err(Error::new("out of stock")) }
                });
                // The step is undone; the payload tells of it.
                assert_eq!(written.await.is_ok(), goes_well);
            }
            if goes_well {
                return Ok(Receipt::new("fine"));
            }
            if let Some(mark) = mark {
                ctx.mark(mark)?;
            }
            Ok(Receipt { id: "-".into(), ..out_of_stock() })
        })
    });
    calls
}

both!(a_payload_says_what_its_mark_says, world, {
    let errors = r#"{"id":"-","note":"out of stock"}"#;
    for (is_transactional, policy) in [(false, Policy::leased()), (true, Policy::transactional())] {
        let server = world.server(policy);
        for mutation in ["act", "maybe", "lenient", "late", "lateInside"] {
            for (mark, state, told, effects) in [
                (None, "succeeded", "", i64::from(is_transactional)),
                (Some(Mark::Final), "succeeded", "", i64::from(is_transactional)),
                (Some(Mark::Release), if is_transactional { "none" } else { "released" }, "", 0),
                (Some(Mark::Unknown), "needs_recovery", "OUTCOME_UNKNOWN", 0),
            ] {
                let (state, told) = match (is_transactional, mark) {
                    (true, Some(Mark::Unknown)) => ("none", "ROLLED_BACK"),
                    _ => (state, told),
                };
                for sibling in ["", r#" z: other(idempotencyKey: "KEY2") { id }"#] {
                    let case = format!("{mutation}, {mark:?}, transactional: {is_transactional}{sibling}");
                    world.execute("DELETE FROM effects").await;
                    let calls = payload(&world, mutation, mark);
                    let key = uuid::Uuid::new_v4().to_string();
                    let document =
                        format!(r#"mutation {{ {mutation}(idempotencyKey: "KEY") {{ id note }}{sibling} }}"#)
                            .replace("KEY", &key);
                    let first = server.run(&document).await;
                    assert_eq!(code(&first), told, "{case}");
                    assert_eq!(answered(&first).contains(errors), told.is_empty(), "{case}: {}", answered(&first));
                    assert_eq!(world.state(&key).await, state, "{case}");
                    let rows = format!("SELECT count(*) FROM effects WHERE label = '{mutation}'");
                    assert_eq!(world.number(&rows).await, effects, "{case}");
                    let again = server.run(&document).await;
                    let runs = state == "none" || state == "released";
                    assert_eq!(calls.load(Ordering::SeqCst), if runs { 2 } else { 1 }, "{case}");
                    if runs {
                        assert!(answered(&again).contains(r#"{"id":"fine","note":null}"#), "{case}");
                        assert_eq!((world.number(&rows).await, world.state(&key).await.as_str()), (1, "succeeded"));
                    } else {
                        assert_eq!(answered(&again).contains(errors), told.is_empty(), "{case}");
                        assert_eq!((code(&again).as_str(), world.number(&rows).await), (told, effects), "{case}");
                    }
                    assert_eq!(replayed(&again, mutation), state == "succeeded", "{case}");
                }
            }
        }
    }
});

both!(the_mark_of_an_error_goes_before_the_one_beside_it, world, {
    for policy in [Policy::leased(), Policy::transactional()] {
        let server = world.server(policy);
        for (beside, on_the_error, state) in [
            (Mark::Final, Some(Mark::Release), "none"),
            (Mark::Release, Some(Mark::Final), "failed"),
            (Mark::Final, None, "failed"),
            (Mark::Release, None, "none"),
        ] {
            let key = uuid::Uuid::new_v4().to_string();
            world.on("act", move |ctx| {
                Box::pin(async move {
                    ctx.mark(beside)?;
                    let error = coded("DECLINED");
                    Err(on_the_error.map_or_else(|| error.clone(), |mark| error.clone().mark(mark)))
                })
            });
            let told = server.run(format!(r#"mutation {{ act(idempotencyKey: "{key}") {{ id }} }}"#)).await;
            assert_eq!(code(&told), "DECLINED");
            assert_eq!(world.state(&key).await, state, "{beside:?}, {on_the_error:?}");
        }
    }
});

/// What an error is that a resolver adds by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Added {
    word: &'static str,
    has_path: bool,
}

fn adds<B: Backend>(world: &World<B>, mutation: &'static str, added: Added, id: &'static str) {
    world.on(mutation, move |ctx| {
        Box::pin(async move {
            effect::<B>(ctx, mutation).await?;
            let error = refused(added.word).into_server_error(ctx.item.pos);
            ctx.add_error(if added.has_path { ctx.set_error_path(error) } else { error });
            Ok(Receipt::new(id))
        })
    });
}

both!(an_error_beside_a_value_leaves_the_value_a_value, world, {
    for policy in [Policy::leased(), Policy::transactional()] {
        let server = world.server(policy);
        for mutation in ["act", "maybe", "lenient", "late"] {
            for word in ["FORBIDDEN", "DECLINED", "release", "final", "unknown"] {
                for (has_path, sibling) in
                    [(true, ""), (false, ""), (true, r#" z: other(idempotencyKey: "KEY2") { id }"#)]
                {
                    let added = Added { word, has_path };
                    let key = uuid::Uuid::new_v4().to_string();
                    adds(&world, mutation, added, "1");
                    let document =
                        format!(r#"mutation {{ {mutation}(idempotencyKey: "KEY") {{ id note }}{sibling} }}"#)
                            .replace("KEY", &key);
                    let case = format!("{document} {added:?}");
                    let rows = format!("SELECT count(*) FROM effects WHERE label = '{mutation}'");
                    let before = world.number(&rows).await;
                    let first = server.run(&document).await;
                    assert_eq!(code(&first), if Mark::parse(word).is_some() { "MARKED" } else { word }, "{case}");
                    assert!(answered(&first).contains(r#"{"id":"1","note":null}"#), "{case}");
                    assert_eq!(world.number(&rows).await - before, 1, "{case}");
                    assert_eq!(world.state(&key).await, "succeeded", "{case}");
                    let again = server.run(&document).await;
                    assert_eq!(answered(&again), answered(&first), "{case}");
                    assert!(replayed(&again, mutation), "{case}");
                    assert_eq!(world.number(&rows).await - before, 1, "{case}");
                }
            }
        }
    }
});

both!(an_error_in_the_place_of_a_value_leaves_no_row_behind, world, {
    let rows = "SELECT count(*) FROM effects WHERE label = 'maybe'";
    for (policy, word, state) in [
        (Policy::transactional(), "FORBIDDEN", "none"),
        (Policy::transactional(), "DECLINED", "none"),
        (Policy::transactional(), "release", "none"),
        (Policy::transactional(), "unknown", "none"),
        (Policy::transactional(), "final", "failed"),
        (Policy::leased(), "FORBIDDEN", "none"),
        (Policy::leased(), "release", "none"),
        (Policy::leased(), "DECLINED", "failed"),
        (Policy::leased(), "final", "failed"),
        (Policy::leased(), "unknown", "needs_recovery"),
    ] {
        let is_transactional = format!("{policy:?}").contains("Transactional");
        let server = world.server(policy);
        for sibling in ["", r#" z: other(idempotencyKey: "KEY2") { id }"#] {
            let key = uuid::Uuid::new_v4().to_string();
            // Nullable, and null: the error that it added is its own.
            adds(&world, "maybe", Added { word, has_path: true }, "");
            let document =
                format!(r#"mutation {{ maybe(idempotencyKey: "KEY") {{ id }}{sibling} }}"#).replace("KEY", &key);
            let before = world.number(rows).await;
            let first = server.run(&document).await;
            let told = if Mark::parse(word).is_some() { "MARKED" } else { word };
            assert_eq!(code(&first), told, "{document} {word}");
            assert!(answered(&first).contains(r#"{"maybe":null"#), "{document}");
            assert_eq!(world.state(&key).await, state, "{document} {word}");
            assert_eq!(world.number(rows).await - before, i64::from(!is_transactional), "{document} {word}");
            if state == "failed" {
                let again = server.run(&document).await;
                assert_eq!(answered(&again), answered(&first), "{document} {word}");
                assert!(replayed(&again, "maybe"), "{document} {word}");
            }
        }
    }
});
