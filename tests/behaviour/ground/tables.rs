//! Tables and rights: made by whoever, partitioned, shared by several services.

use super::*;

const DML: &str = "GRANT SELECT, INSERT, UPDATE, DELETE ON idempotency_records, idempotency_steps, idempotency_marks, effects TO {role}";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_role_that_may_only_read_and_write_the_rows_does_everything() {
    let world = World::<PostgresBackend>::new().await;
    let nothing_else = ["REVOKE CREATE ON SCHEMA public FROM PUBLIC", DML];
    let (pool, role) = pool_of_role(&world, &nothing_else).await;
    let store = PostgresStore::new(pool);
    store.migrate().await.unwrap();
    store.check().await.unwrap();
    conformance::check(&store, &PostgresBackend::effects(&store)).await.unwrap();
    world.execute(format!("REVOKE UPDATE ON idempotency_steps FROM {role}")).await;
    for refused in [store.check().await, store.migrate().await] {
        let Err(StoreError::Misconfigured(missing)) = refused else { panic!("{refused:?}") };
        assert!(missing.to_string().starts_with("the right to UPDATE in idempotency_steps"), "{missing}");
    }
    store.pool().close().await;
    drop_role(&world, &role).await;
    world.done().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_advisory_locks_no_right_to_them_is_needed() {
    let world = World::<PostgresBackend>::new().await;
    let (pool, role) = pool_of_role(&world, &[DML, "GRANT CREATE ON SCHEMA public TO {role}"]).await;
    let functions = world
        .texts(
            "SELECT oid::regprocedure FROM pg_proc WHERE pronamespace = 'pg_catalog'::regnamespace AND proname LIKE '%advisory%'",
        )
        .await;
    assert!(functions.len() > 10, "{functions:?}");
    for function in &functions {
        world.execute(format!("REVOKE EXECUTE ON FUNCTION {function} FROM PUBLIC")).await;
    }
    let store = PostgresStore::new(pool).without_advisory_locks();
    store.migrate().await.unwrap();
    conformance::check(&store, &PostgresBackend::effects(&store)).await.unwrap();
    // And it makes the tables without them.
    world.execute(format!("CREATE SCHEMA own AUTHORIZATION {role}")).await;
    store.clone().schema("own").migrate().await.unwrap();
    store.clone().schema("own").check().await.unwrap();
    store.pool().close().await;
    drop_role(&world, &role).await;
    world.done().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_that_an_application_made_are_recognised() {
    let world = World::<PostgresBackend>::new().await;
    world.execute("CREATE SCHEMA app").await;
    let options = world.database.options().options([("search_path", "app")]);
    let pool = pool(options).await;
    let store = PostgresStore::new(pool.clone());
    let Err(StoreError::Misconfigured(missing)) = store.check().await else { panic!("there are no tables") };
    assert!(missing.to_string().contains("the table idempotency_records"), "{missing}");
    for migration in PostgresStore::MIGRATIONS {
        sqlx::raw_sql(migration).execute(&pool).await.unwrap();
    }
    store.check().await.unwrap();
    store.migrate().await.unwrap();
    assert_eq!(world.number("SELECT count(*) FROM pg_tables WHERE tablename = 'idempotency_migrations'").await, 1);
    let idempotency = Idempotency::builder(store.clone()).build().unwrap();
    let schema = async_graphql::Schema::build(
        crate::support::schema::Query,
        async_graphql::EmptyMutation,
        async_graphql::EmptySubscription,
    );
    let schema = schema.extension(idempotency.clone()).finish();
    assert_eq!(idempotency.verify(&schema).await, Ok(()));
    sqlx::raw_sql("ALTER TABLE idempotency_records DROP COLUMN look_at").execute(&pool).await.unwrap();
    let problems = idempotency.verify(&schema).await.unwrap_err().problems;
    assert_eq!(problems, ["the store lacks the column idempotency_records.look_at"]);
    let Err(StoreError::Misconfigured(missing)) = store.migrate().await else { panic!("a column is missing") };
    assert!(missing.to_string().starts_with("the column idempotency_records.look_at"), "{missing}");
    pool.close().await;
    world.done().await;
}

/// As the documentation of the store shows it.
const PARTITIONED: &str = include_str!("../../../schema/postgres_partitioned.sql");

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_may_be_partitioned_by_a_hash_of_the_client() {
    let world = World::<PostgresBackend>::new().await;
    world.execute("CREATE SCHEMA parts").await;
    let pool = pool(world.database.options().options([("search_path", "parts, public")])).await;
    sqlx::raw_sql(PARTITIONED).execute(&pool).await.unwrap();
    // They have the migrations' columns.
    let columns = |schema: &str| {
        format!(
            "SELECT concat_ws(' ', table_name, ordinal_position, column_name, data_type, udt_name, \
             character_maximum_length, is_nullable, column_default, collation_name) FROM information_schema.columns \
             WHERE table_schema = '{schema}' AND table_name IN ('idempotency_records', 'idempotency_steps', \
             'idempotency_marks') ORDER BY 1"
        )
    };
    let (parts, whole) = (world.texts(columns("parts")).await, world.texts(columns("public")).await);
    assert!(parts.len() > 20, "{parts:?}");
    let unqualified = |column: &String| column.replace("parts.", "");
    assert_eq!(parts.iter().map(unqualified).collect::<Vec<_>>(), whole);
    let store = PostgresStore::new(pool);
    store.migrate().await.unwrap();
    store.check().await.unwrap();
    for store in [store.clone(), store.clone().without_advisory_locks()] {
        conformance::check(&store, &PostgresBackend::effects(&store)).await.unwrap();
    }
    assert_eq!(world.number("SELECT count(*) FROM public.idempotency_records").await, 0);
    let spread = "SELECT count(DISTINCT tableoid) FROM parts.idempotency_records";
    assert!(world.number(spread).await > 1, "the rows are all in one partition");
    store.pool().close().await;
    world.done().await;
}

both!(services_that_share_the_tables_have_namespaces, world, {
    // The same client, the same key.
    let servers = ["orders", "billing", "orders"].map(|name| {
        let store = Faulty::faulty(B::in_namespace(&world.store.inner, name));
        world.server_on(store, Policy::transactional(), |builder| builder)
    });
    let mut answers = Vec::new();
    for server in &servers {
        answers.push(answered(&server.run(document("k")).await));
    }
    assert_eq!(world.effects().await, 2);
    assert!(answers[0] != answers[1] && answers[0] == answers[2], "{answers:?}");
    // A running key of one is nothing to the other.
    let store = Faulty::faulty(B::in_namespace(&world.store.inner, "billing"));
    let other = world.server_on(store, Policy::leased().wait(ms(0)), |builder| builder);
    let first = world.server_on(servers[0].idempotency.store().clone(), Policy::leased(), |builder| builder);
    world.on("act", |_| Box::pin(std::future::pending()));
    let running = first.spawn(document("running"));
    world.until_state("running", "in_progress").await;
    world.on("act", |_| Box::pin(async { Ok(Receipt::new("here")) }));
    assert_eq!(codes(&other.run(document("running")).await), [""; 0]);
    running.abort();
});
