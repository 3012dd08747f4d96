use anabranch::postgres::{ErrorKind, Leadership, Purpose, holder};
use testkit::wait_until;
use tokio_util::sync::CancellationToken;

use super::{DEADLINE, settings, shared_database};

#[tokio::test]
async fn c063_one_leads_and_the_next_follows() {
    let (_, database) = shared_database().await;
    let settings = settings(&database.url);
    let never = CancellationToken::new();
    let first = Leadership::acquire(&settings, "shop", &never).await.unwrap();
    let other = Leadership::acquire(&settings, "shap", &never).await.unwrap();
    let watch = settings.connect(Purpose::Control).await.unwrap();
    let found = holder(&watch, "shop").await.unwrap().unwrap();
    assert_eq!(found.pid, first.pid());
    assert!(found.description.contains("anabranch/leader"), "{}", found.description);
    assert_eq!(
        Leadership::try_acquire(&settings, "shop").await.unwrap().unwrap_err().unwrap().pid,
        first.pid()
    );

    let cancel = CancellationToken::new();
    cancel.cancel();
    let error = Leadership::acquire(&settings, "shop", &cancel).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);

    let waiting = {
        let (settings, never) = (settings.clone(), never.clone());
        tokio::spawn(async move { Leadership::acquire(&settings, "shop", &never).await })
    };
    let sessions = "select count(*)::text from pg_stat_activity where application_name = 'anabranch/leader'
        and datname = current_database()";
    wait_until("the standby to be there", DEADLINE, async || Ok(database.query_text(sessions).await? == "3"))
        .await
        .unwrap();
    first.release().await;
    let second = tokio::time::timeout(DEADLINE, waiting).await.unwrap().unwrap().unwrap();
    assert_eq!(holder(&watch, "shop").await.unwrap().unwrap().pid, second.pid());

    // The end of its session is the end of its leadership.
    let lost = second.lost();
    database.execute(&format!("select pg_terminate_backend({})", second.pid())).await.unwrap();
    let error = tokio::time::timeout(DEADLINE, lost).await.unwrap();
    assert!(error.to_string().contains("leadership is lost"), "{error}");
    assert_eq!(holder(&watch, "shop").await.unwrap(), None);
    assert_eq!(holder(&watch, "shap").await.unwrap().unwrap().pid, other.pid());
}
