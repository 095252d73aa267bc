//! Other extensions that change what runs, before this one has looked or behind its back.

use async_graphql::{
    Request, ServerResult, Variables,
    extensions::{Extension, ExtensionContext, ExtensionFactory, NextExecute, NextParseQuery, NextPrepareRequest},
    parser::{parse_query, types::ExecutableDocument},
};
use async_trait::async_trait;

use super::{ActsSchema, acts, idempotency, protected_or_refused};
use crate::support::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meddler {
    /// Names another operation, before or after the others have prepared the request.
    NamesBefore(&'static str),
    NamesAfter(&'static str),
    /// Tells another name than that of the operation that runs.
    TellsAnother(&'static str),
    /// Parses something else instead of the request.
    Parses(&'static str),
    /// Lets the request be parsed, and gives something else.
    Replaces(&'static str),
}

impl ExtensionFactory for Meddler {
    fn create(&self) -> Arc<dyn Extension> {
        Arc::new(*self)
    }
}

#[async_trait]
impl Extension for Meddler {
    async fn prepare_request(
        &self,
        ctx: &ExtensionContext<'_>,
        mut request: Request,
        next: NextPrepareRequest<'_>,
    ) -> ServerResult<Request> {
        if let Self::NamesBefore(name) = self {
            request.operation_name = Some((*name).to_owned());
        }
        let mut request = next.run(ctx, request).await?;
        if let Self::NamesAfter(name) = self {
            request.operation_name = Some((*name).to_owned());
        }
        Ok(request)
    }

    async fn parse_query(
        &self,
        ctx: &ExtensionContext<'_>,
        query: &str,
        variables: &Variables,
        next: NextParseQuery<'_>,
    ) -> ServerResult<ExecutableDocument> {
        match self {
            Self::Parses(other) => Ok(parse_query(other).unwrap()),
            Self::Replaces(other) => {
                next.run(ctx, query, variables).await?;
                Ok(parse_query(other).unwrap())
            }
            _ => next.run(ctx, query, variables).await,
        }
    }

    async fn execute(
        &self,
        ctx: &ExtensionContext<'_>,
        name: Option<&str>,
        next: NextExecute<'_>,
    ) -> async_graphql::Response {
        match self {
            Self::TellsAnother(other) => next.run(ctx, Some(other)).await,
            _ => next.run(ctx, name).await,
        }
    }
}

/// A schema whose meddler stands around the extension, or within.
fn meddled<B: Backend>(world: &World<B>, meddler: Meddler, is_outer: bool) -> ActsSchema<B> {
    let idempotency = idempotency(world);
    acts(world, |builder| {
        if is_outer {
            builder.extension(meddler).extension(idempotency)
        } else {
            builder.extension(idempotency).extension(meddler)
        }
    })
}

both!(an_operation_that_is_named_late_is_protected_or_refused, world, {
    const B_ACTS: &str = r#"mutation B { act(idempotencyKey: "k2") }"#;
    for a in ["query A { one }", r#"mutation A { act(idempotencyKey: "k1") }"#, "mutation A { __typename }"] {
        for asked in [Some("A"), None] {
            for (meddler, is_outer, is_seen) in [
                (Meddler::NamesBefore("B"), true, true),
                (Meddler::NamesAfter("B"), true, false),
                (Meddler::NamesBefore("B"), false, true),
                (Meddler::NamesAfter("B"), false, true),
            ] {
                world.afresh().await;
                let case = format!("{a}, {asked:?}, {meddler:?}, outer: {is_outer}");
                let schema = meddled(&world, meddler, is_outer);
                let request = || {
                    let mut request = request(format!("{a} {B_ACTS}"));
                    request.operation_name = asked.map(str::to_owned);
                    request
                };
                let ran = protected_or_refused(&world, &schema, request, &case).await;
                assert_eq!(ran, if is_seen { Ok(()) } else { Err(vec!["MISCONFIGURED".to_owned()]) }, "{case}");
                // It is B's key, or none.
                assert_eq!(
                    world.texts("SELECT key FROM idempotency_records").await.concat(),
                    if is_seen { "k2" } else { "" }
                );
            }
        }
    }
});

both!(an_operation_that_is_told_by_another_name_is_protected_or_refused, world, {
    let document = r#"query A { one } mutation B { act(idempotencyKey: "k") }"#;
    for (is_outer, expected) in [(true, Err(vec!["MISCONFIGURED".to_owned()])), (false, Ok(()))] {
        world.afresh().await;
        let schema = meddled(&world, Meddler::TellsAnother("A"), is_outer);
        let asked = || request(document).operation_name("B");
        let ran = protected_or_refused(&world, &schema, asked, &format!("outer: {is_outer}")).await;
        assert_eq!(ran, expected, "outer: {is_outer}");
    }
});

const OTHER: &str = r#"mutation { b: act(idempotencyKey: "k2") }"#;

both!(a_document_that_was_parsed_elsewhere_is_protected_or_refused, world, {
    for asked in ["{ one }", r#"mutation { a: act(idempotencyKey: "k1") }"#, OTHER] {
        for (meddler, is_outer, is_seen) in [
            (Meddler::Parses(OTHER), true, false),
            (Meddler::Parses(OTHER), false, true),
            (Meddler::Replaces(OTHER), false, true),
        ] {
            world.afresh().await;
            let case = format!("{asked}, {meddler:?}, outer: {is_outer}");
            let schema = meddled(&world, meddler, is_outer);
            let ran = protected_or_refused(&world, &schema, || request(asked), &case).await;
            assert_eq!(ran, if is_seen { Ok(()) } else { Err(vec!["MISCONFIGURED".to_owned()]) }, "{case}");
        }
    }
});

both!(a_document_that_was_replaced_behind_the_extensions_back_is_protected_or_refused, world, {
    let other = r#"mutation { below { b: act(idempotencyKey: "k2") } }"#;
    for replaced_by in [OTHER, other] {
        for asked in [r#"mutation { a: act(idempotencyKey: "k1") }"#, "mutation { __typename }", "{ one }"] {
            world.afresh().await;
            let case = format!("{asked} is replaced by {replaced_by}");
            let schema = meddled(&world, Meddler::Replaces(replaced_by), true);
            let ran = protected_or_refused(&world, &schema, || request(asked), &case).await;
            assert_eq!(ran, Err(vec!["MISCONFIGURED".to_owned()]), "{case}");
        }
    }
});
