use anabranch::postgres::{ErrorKind, Purpose, blockers, check_slot_name, create_slot, drop_slot, find_slot};
use testkit::wait_until;
use tokio_util::sync::CancellationToken;

use super::{DEADLINE, settings, shared_database};

#[tokio::test]
async fn c061_the_creation_names_what_it_waits_for_and_can_be_given_up() {
    let (_, database) = shared_database().await;
    database.execute("create table public.t (id int)").await.unwrap();
    let mut other = database.connect().await.unwrap();
    let open = other.transaction().await.unwrap();
    open.batch_execute("insert into public.t values (1)").await.unwrap();
    let holder: i32 = open.query_one("select pg_backend_pid()", &[]).await.unwrap().get(0);

    let settings = settings(&database.url);
    let watch = settings.connect(Purpose::Control).await.unwrap();
    let cancel = CancellationToken::new();
    let creation = {
        let (settings, cancel, name) = (settings.clone(), cancel.clone(), database.name.clone());
        tokio::spawn(async move {
            let watch = settings.connect(Purpose::Control).await.unwrap();
            create_slot(&settings, &watch, &name, false, &cancel).await
        })
    };
    let walsender =
        "select pid from pg_stat_activity where datname = current_database() and backend_type = 'walsender'";
    wait_until("the creation to wait for the transaction", DEADLINE, async || {
        let Some(row) = watch.query_opt(walsender, &[]).await? else { return Ok(false) };
        let list = blockers(&watch, row.get(0)).await?;
        Ok(list
            .iter()
            .any(|blocker| blocker.pid == holder && blocker.description.contains("idle in transaction")))
    })
    .await
    .unwrap();
    cancel.cancel();
    let error = tokio::time::timeout(DEADLINE, creation).await.unwrap().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
    assert_eq!(find_slot(&watch, &database.name).await.unwrap(), None);
    wait_until("the walsender to be gone", DEADLINE, async || {
        Ok(watch.query_opt(walsender, &[]).await?.is_none())
    })
    .await
    .unwrap();

    open.commit().await.unwrap();
    let never = CancellationToken::new();
    let created = create_slot(&settings, &watch, &database.name, false, &never).await.unwrap();
    let slot = find_slot(&watch, &database.name).await.unwrap().unwrap();
    assert_eq!(slot.plugin.as_deref(), Some("pgoutput"));
    assert_eq!(slot.confirmed, Some(created.consistent_point));
    assert!(drop_slot(&watch, &database.name).await.unwrap());
    assert!(!drop_slot(&watch, &database.name).await.unwrap());
}

#[tokio::test]
async fn c020_slots_are_named_exactly() {
    let (_, database) = shared_database().await;
    let settings = settings(&database.url);
    let client = settings.connect(Purpose::Control).await.unwrap();
    let (name, like) = (format!("{}_a_b", database.name), format!("{}_axb", database.name));
    let never = CancellationToken::new();
    create_slot(&settings, &client, &like, false, &never).await.unwrap();
    assert_eq!(find_slot(&client, &name).await.unwrap(), None);
    assert!(!drop_slot(&client, &name).await.unwrap());
    assert!(drop_slot(&client, &like).await.unwrap());
}

#[tokio::test]
async fn c019_the_server_agrees_about_names() {
    let (_, database) = shared_database().await;
    let settings = settings(&database.url);
    let client = settings.connect(Purpose::Control).await.unwrap();
    let never = CancellationToken::new();
    for name in ["1abc".to_owned(), "x".repeat(63)] {
        check_slot_name(&name).unwrap();
        create_slot(&settings, &client, &name, false, &never).await.unwrap();
        assert!(drop_slot(&client, &name).await.unwrap());
    }
    let error = create_slot(&settings, &client, "Abc", false, &never).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Settings);
}
