//! What a resolver sets for its transaction holds for what the store writes there too, unless the store puts it back.

use super::*;

/// Every way in which a store writes at the end of an application's transaction.
async fn shapes(store: &PostgresStore) -> [(PostgresStore, Policy); 4] {
    let resume = Policy::leased().on_crash(OnCrash::Resume);
    [
        (store.clone(), Policy::transactional()),
        (store.clone().without_advisory_locks(), Policy::transactional()),
        (store.clone().transaction_pooling(), Policy::transactional()),
        (store.clone(), resume),
    ]
}

/// Runs a mutation once and again in each shape, and wants one effect and a replay.
async fn runs_once(world: &World<PostgresBackend>, store: &PostgresStore, case: &str) {
    for (n, (store, policy)) in shapes(store).await.into_iter().enumerate() {
        world.execute("DELETE FROM public.effects").await;
        let server = world.server_on(Faulty::faulty(store), policy, |builder| builder);
        let document = document(&uuid::Uuid::new_v4().to_string());
        let first = server.run(&document).await;
        assert_eq!(codes(&first), [""; 0], "{case}, shape {n}");
        let again = server.run(&document).await;
        assert!(replayed(&again, "act"), "{case}, shape {n}: {again:?}");
        assert_eq!(world.effects().await, 1, "{case}, shape {n}");
    }
}

/// Runs a mutation twice in each shape, and wants a loud refusal, and nothing that was done.
async fn refuses(world: &World<PostgresBackend>, store: &PostgresStore, case: &str) {
    for (n, (store, policy)) in shapes(store).await.into_iter().enumerate() {
        world.execute("DELETE FROM public.effects").await;
        let server = world.server_on(Faulty::faulty(store), policy, |builder| builder);
        let document = document(&uuid::Uuid::new_v4().to_string());
        for _ in 0..2 {
            let told = server.run(&document).await;
            assert_eq!(codes(&told), ["MISCONFIGURED"], "{case}, shape {n}");
            let extensions = told.errors[0].extensions.as_ref().unwrap();
            assert_eq!(extensions.get("retryable").unwrap().to_string(), "false", "{case}, shape {n}");
            assert_eq!(world.effects().await, 0, "{case}, shape {n}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_resolver_may_set_its_search_path() {
    let world = World::<PostgresBackend>::new().await;
    for tables_there in [false, true] {
        world.execute("CREATE SCHEMA IF NOT EXISTS tenant_a").await;
        if tables_there {
            let url = world.database.options().options([("search_path", "tenant_a")]);
            let elsewhere = PostgresStore::new(pool(url).await);
            elsewhere.clone().schema("tenant_a").migrate().await.unwrap();
            elsewhere.pool().close().await;
        }
        begins_with(&world, "SET LOCAL search_path = tenant_a".to_owned());
        runs_once(&world, &world.store.inner, &format!("tables there: {tables_there}")).await;
        if tables_there {
            assert_eq!(world.number("SELECT count(*) FROM tenant_a.idempotency_records").await, 0);
        }
    }
    world.done().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_resolver_may_set_the_role_if_the_store_is_told() {
    let world = World::<PostgresBackend>::new().await;
    let role = format!("tenant_{}", uuid::Uuid::new_v4().simple());
    world.execute(format!("CREATE ROLE {role}")).await;
    world.execute(format!("GRANT INSERT ON effects TO {role}")).await;
    begins_with(&world, format!("SET LOCAL ROLE {role}"));
    let store = &world.store.inner;
    refuses(&world, store, "not told").await;
    runs_once(&world, &store.clone().keep_settings(["role"]), "told").await;
    drop_role(&world, &role).await;
    world.done().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_resolver_may_set_what_row_level_security_looks_at_if_the_store_is_told() {
    let world = World::<PostgresBackend>::new().await;
    let rights = [
        "GRANT SELECT, INSERT, UPDATE, DELETE ON idempotency_records, idempotency_steps, idempotency_marks, effects TO {role}",
        "ALTER ROLE {role} SET app.tenant = 'records'",
        "ALTER TABLE idempotency_records ENABLE ROW LEVEL SECURITY",
        "CREATE POLICY own ON idempotency_records TO {role} USING (current_setting('app.tenant') = 'records')",
    ];
    let (pool, role) = pool_of_role(&world, &rights).await;
    let store = PostgresStore::new(pool);
    begins_with(&world, "SET LOCAL app.tenant = 'a'".to_owned());
    refuses(&world, &store, "not told").await;
    runs_once(&world, &store.clone().keep_settings(["app.tenant"]), "told").await;
    store.pool().close().await;
    drop_role(&world, &role).await;
    world.done().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn timeouts_that_a_team_sets_end_a_wait_and_lose_nothing() {
    let world = World::<PostgresBackend>::new().await;
    let options = world.database.options().options([("lock_timeout", "50ms"), ("statement_timeout", "200ms")]);
    let store = PostgresStore::new(pool(options).await);
    conformance::check(&store, &PostgresBackend::effects(&store)).await.unwrap();
    begins_with(&world, "SELECT 1".to_owned());
    runs_once(&world, &store, "short timeouts").await;
    store.pool().close().await;
    world.done().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rule_that_breaks_at_commit_is_the_mutations_own_error() {
    let world = World::<PostgresBackend>::new().await;
    world.execute("CREATE TABLE parents (id integer PRIMARY KEY)").await;
    world.execute("CREATE TABLE children (parent integer REFERENCES parents DEFERRABLE INITIALLY DEFERRED)").await;
    begins_with(&world, "INSERT INTO public.children VALUES (7)".to_owned());
    for (n, (store, policy)) in shapes(&world.store.inner).await.into_iter().enumerate() {
        let server = world.server_on(Faulty::faulty(store), policy, |builder| builder);
        let key = uuid::Uuid::new_v4().to_string();
        for _ in 0..2 {
            let told = server.run(document(&key)).await;
            assert_eq!(codes(&told), ["COMMIT_REFUSED"], "shape {n}");
            let extensions = told.errors[0].extensions.as_ref().unwrap();
            assert_eq!(extensions.get("retryable").unwrap().to_string(), "false", "shape {n}");
            assert_eq!(world.effects().await, 0, "shape {n}");
        }
        // The data is mended: the same key runs.
        world.execute("INSERT INTO parents VALUES (7)").await;
        assert_eq!(codes(&server.run(document(&key)).await), [""; 0], "shape {n}");
        assert_eq!(world.effects().await, 1, "shape {n}");
        world.execute("DELETE FROM children").await;
        world.execute("DELETE FROM parents").await;
        world.execute("DELETE FROM effects").await;
    }
    world.done().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_of_which_the_server_does_not_know_is_settled_by_the_record() {
    let world = World::<PostgresBackend>::new().await;
    world
        .execute(
            "CREATE FUNCTION unknown() RETURNS trigger LANGUAGE plpgsql AS \
             $$ BEGIN RAISE EXCEPTION 'nobody knows' USING ERRCODE = '40003'; END $$",
        )
        .await;
    world
        .execute(
            "CREATE CONSTRAINT TRIGGER unknown AFTER INSERT ON effects DEFERRABLE INITIALLY DEFERRED \
             FOR EACH ROW EXECUTE FUNCTION unknown()",
        )
        .await;
    begins_with(&world, "SELECT 1".to_owned());
    for (n, (store, policy)) in shapes(&world.store.inner).await.into_iter().enumerate() {
        let is_transactional = n < 3;
        let server = world.server_on(Faulty::faulty(store), policy, |builder| builder);
        let key = uuid::Uuid::new_v4().to_string();
        let told = server.run(document(&key)).await;
        // The record of a transaction says that it was undone; of a step nobody can say it.
        let expected = if is_transactional { "ROLLED_BACK" } else { "OUTCOME_UNKNOWN" };
        assert_eq!(codes(&told), [expected], "shape {n}");
        assert_eq!(world.state(&key).await, if is_transactional { "none" } else { "needs_recovery" }, "shape {n}");
        assert_eq!(world.effects().await, 0, "shape {n}");
        if is_transactional {
            world.execute("ALTER TABLE effects DISABLE TRIGGER unknown").await;
            assert_eq!(codes(&server.run(document(&key)).await), [""; 0], "shape {n}");
            assert_eq!(world.effects().await, 1, "shape {n}");
            world.execute("DELETE FROM effects").await;
            world.execute("ALTER TABLE effects ENABLE TRIGGER unknown").await;
        }
    }
    world.done().await;
}
