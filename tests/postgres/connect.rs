use anabranch::postgres::{ErrorKind, Purpose};
use testkit::ClusterOptions;

use super::{settings, shared_database, start};

/// Both kinds of connection reach the same database as the same role.
async fn both(text: &str) {
    let settings = settings(text);
    let client = settings.connect(Purpose::Control).await.unwrap();
    let row = client.query_one("select current_user::text, 1", &[]).await.unwrap();
    assert_eq!(row.get::<_, String>(0), settings.user());
    client.close().await;
    let mut replication = settings.connect_replication().await.unwrap();
    assert!(!replication.identify_system().await.unwrap().system_identifier.is_empty());
    replication.close().await;
}

#[tokio::test]
async fn c095_every_spelling_and_every_password_method() {
    let options = ClusterOptions::new()
        .hba("host all scrammed 127.0.0.1/32 scram-sha-256")
        .hba("host all md5ed 127.0.0.1/32 md5")
        .hba("host all clear 127.0.0.1/32 password");
    let cluster = start(options).await;
    let database = cluster.create_database().await.unwrap();
    let (port, name) = (cluster.port(), &database.name);
    let password = "p@:/?#%25 'é\\";
    database
        .execute(
            "create role scrammed login replication password 'p@:/?#%25 ''é\\';
             create role clear login replication password 'p@:/?#%25 ''é\\';
             set password_encryption = md5; create role md5ed login replication password 'p@:/?#%25 ''é\\'",
        )
        .await
        .unwrap();
    let encoded = "p%40%3A%2F%3F%23%2525%20%27%C3%A9%5C";
    for role in ["scrammed", "md5ed", "clear"] {
        both(&format!("postgres://{role}:{encoded}@127.0.0.1:{port}/{name}")).await;
        both(&format!(r"host=127.0.0.1 port={port} user={role} dbname={name} password='p@:/?#%25 \'é\\'"))
            .await;
    }
    both(&cluster.socket_conninfo(name)).await;
    both(&format!("postgres://postgres@127.0.0.1:1,127.0.0.1:{port}/{name}")).await;
    let url = format!("postgres://127.0.0.1:{port}/{name}");
    let from_environment = anabranch::postgres::ConnectSettings::parse(&url, |variable| match variable {
        "PGUSER" => Some("scrammed".to_owned()),
        "PGPASSWORD" => Some(password.to_owned()),
        _ => None,
    });
    from_environment.unwrap().connect(Purpose::Control).await.unwrap();

    for text in [
        format!("postgres://scrammed:wrong-secret@127.0.0.1:{port}/{name}"),
        format!("postgres://md5ed:wrong-secret@127.0.0.1:{port}/{name}"),
        format!("postgres://scrammed@127.0.0.1:{port}/{name}"),
    ] {
        let settings = settings(&text);
        for error in [
            settings.connect(Purpose::Control).await.unwrap_err(),
            settings.connect_replication().await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::Authentication, "{error}");
            assert!(!format!("{error} {error:?} {settings:?}").contains("wrong-secret"));
        }
    }
}

#[tokio::test]
async fn failures_are_told_in_one_sentence() {
    let (cluster, _) = shared_database().await;
    let fail = async |text: &str| settings(text).connect(Purpose::Control).await.unwrap_err();
    let error = fail(&cluster.url("nowhere")).await;
    assert_eq!((error.kind(), error.sqlstate()), (ErrorKind::NoDatabase, Some("3D000")), "{error}");
    let error = fail("postgres://u@127.0.0.1:1/d").await;
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(error.to_string().contains("nothing listens at 127.0.0.1:1"), "{error}");
    let error = fail("postgres://u@no-such-host.invalid/d").await;
    assert!(error.to_string().contains("no-such-host.invalid"), "{error}");
    let error = fail("host=/nowhere user=u").await;
    assert!(error.to_string().contains("/nowhere/.s.PGSQL.5432"), "{error}");
    let error = fail("postgres://u@127.0.0.1:1,127.0.0.1:2/d").await;
    assert!(
        error.to_string().contains("127.0.0.1:1") && error.to_string().contains("127.0.0.1:2"),
        "{error}"
    );
    // Each host of a list is tried, whatever is wrong with the one before.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent = listener.local_addr().unwrap().port();
    let text = format!(
        "postgres://postgres@127.0.0.1:{silent},127.0.0.1:{}/postgres?connect_timeout=1",
        cluster.port()
    );
    settings(&text).connect(Purpose::Control).await.unwrap();
}

#[tokio::test]
async fn too_many_connections_is_retryable() {
    let cluster =
        start(ClusterOptions::new().setting("max_connections", "5").setting("max_wal_senders", "2")).await;
    let settings = settings(&cluster.url("postgres"));
    let mut held = Vec::new();
    let error = loop {
        match settings.connect(Purpose::Control).await {
            Ok(client) => held.push(client),
            Err(error) => break error,
        }
        assert!(held.len() < 10);
    };
    assert_eq!(error.kind(), ErrorKind::TooManyConnections, "{error}");
    assert!(error.is_retryable());
}

#[tokio::test]
async fn session_settings_win_over_role_database_and_options() {
    let (cluster, database) = shared_database().await;
    let name = &database.name;
    database
        .execute(&format!(
            "create role hostile_{name} superuser login;
             alter role hostile_{name} set datestyle = 'SQL, DMY';
             alter role hostile_{name} set statement_timeout = '5s';
             alter role hostile_{name} set search_path = 'pg_temp';
             alter role hostile_{name} set default_transaction_read_only = on;
             alter database {name} set intervalstyle = 'sql_standard';
             alter database {name} set bytea_output = 'escape';
             alter database {name} set extra_float_digits = -5;
             alter database {name} set timezone = 'Asia/Tokyo';
             alter database {name} set synchronous_commit = off"
        ))
        .await
        .unwrap();
    let text = format!(
        "postgres://hostile_{name}@127.0.0.1:{}/{name}?options=-c%20timezone%3DAsia/Tokyo%20-c%20work_mem%3D5MB",
        cluster.port()
    );
    let client = settings(&text).connect(Purpose::Control).await.unwrap();
    for (setting, value) in [
        ("DateStyle", "ISO, MDY"),
        ("IntervalStyle", "iso_8601"),
        ("TimeZone", "UTC"),
        ("bytea_output", "hex"),
        ("extra_float_digits", "3"),
        ("statement_timeout", "0"),
        ("lock_timeout", "0"),
        ("idle_in_transaction_session_timeout", "0"),
        ("synchronous_commit", "local"),
        ("search_path", "pg_catalog"),
        ("default_transaction_read_only", "off"),
        ("default_transaction_isolation", "read committed"),
        ("client_encoding", "UTF8"),
        ("work_mem", "5MB"),
        ("application_name", "anabranch/control"),
    ] {
        let row = client.query_one("select current_setting($1)", &[&setting]).await.unwrap();
        assert_eq!(row.get::<_, String>(0), value, "{setting}");
    }
}

#[tokio::test]
async fn the_end_of_a_session_is_noticed() {
    let (_, database) = shared_database().await;
    let client = settings(&database.url).connect(Purpose::Control).await.unwrap();
    let pid: i32 = client.query_one("select pg_backend_pid()", &[]).await.unwrap().get(0);
    let ended = client.ended();
    database.execute(&format!("select pg_terminate_backend({pid})")).await.unwrap();
    let error = tokio::time::timeout(super::DEADLINE, ended).await.unwrap();
    assert!(error.is_retryable(), "{error}");
}
