//! A database as teams really run it: search paths, roles, row-level security, rights, partitions, settings.

use async_graphql::Error;
use async_graphql_idempotency::{PostgresStore, store::conformance};
use sqlx::{
    AssertSqlSafe, PgPool,
    postgres::{PgConnectOptions, PgPoolOptions},
};

use crate::support::*;

mod settings;
mod tables;
mod times;

type Ours = Faulty<PostgresStore>;

fn document(key: &str) -> String {
    format!(r#"mutation {{ act(idempotencyKey: "{key}") {{ id }} }}"#)
}

/// A pool with options of its own.
async fn pool(options: PgConnectOptions) -> PgPool {
    PgPoolOptions::new().max_connections(4).connect_with(options).await.unwrap()
}

/// A pool of a role that can log in, and has been given these rights.
async fn pool_of_role(world: &World<PostgresBackend>, rights: &[&str]) -> (PgPool, String) {
    let role = format!("role_{}", uuid::Uuid::new_v4().simple());
    world.execute(format!("CREATE ROLE {role} LOGIN")).await;
    for right in rights {
        world.execute(right.replace("{role}", &role)).await;
    }
    (pool(world.database.options().username(&role)).await, role)
}

/// Of a role that `pool_of_role` has made.
async fn drop_role(world: &World<PostgresBackend>, role: &str) {
    world.execute(format!("DROP OWNED BY {role}")).await;
    world.execute(format!("DROP ROLE {role}")).await;
}

/// What the resolver does to its transaction before its effect, in a transactional mutation and in a local step.
fn begins_with(world: &World<PostgresBackend>, statement: String) {
    world.on("act", move |ctx| {
        let statement = statement.clone();
        Box::pin(async move {
            let attempt = ctx.attempt::<Ours>()?;
            let statement = AssertSqlSafe(statement);
            if attempt.is_transactional() {
                let mut held = attempt.transaction().await?;
                sqlx::raw_sql(statement).execute(&mut *held).await?;
                sqlx::raw_sql("INSERT INTO public.effects (label) VALUES ('act')").execute(&mut *held).await?;
            } else {
                let work = async move |connection: &mut sqlx::PgConnection| {
                    sqlx::raw_sql(statement).execute(&mut *connection).await?;
                    sqlx::raw_sql("INSERT INTO public.effects (label) VALUES ('act')").execute(connection).await?;
                    Ok::<_, Error>(())
                };
                attempt.local("act", work).await?;
            }
            Ok(Receipt::new("1"))
        })
    });
}
