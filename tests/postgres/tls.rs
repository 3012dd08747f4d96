//! TLS against servers with certificates of our own making.

use std::{path::Path, process::Command};

use anabranch::postgres::{ErrorKind, Purpose};
use testkit::{Cluster, ClusterOptions, Stop};

use super::{settings, start};

fn openssl(dir: &Path, arguments: &str) {
    let done = Command::new("openssl").current_dir(dir).args(arguments.split(' ')).output().unwrap();
    assert!(done.status.success(), "openssl {arguments}: {}", String::from_utf8_lossy(&done.stderr));
}

/// `ca.crt`, and `<name>.crt` with `<name>.key` signed by it.
fn authority(dir: &Path) {
    openssl(dir, "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=authority -keyout ca.key -out ca.crt");
}

fn issue(dir: &Path, name: &str, extension: &str) {
    openssl(dir, &format!("req -newkey rsa:2048 -nodes -subj /CN={name} -keyout {name}.key -out {name}.csr"));
    std::fs::write(dir.join("ext"), extension).unwrap();
    openssl(
        dir,
        &format!(
            "x509 -req -in {name}.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile ext -out {name}.crt"
        ),
    );
}

async fn tls_cluster(dir: &Path, certificate: &str) -> Cluster {
    let options = ClusterOptions::new()
        .hba("hostssl all certified all cert")
        .hba("hostssl all bound all scram-sha-256")
        .hba("hostnossl all bound all scram-sha-256");
    let cluster = start(options).await;
    let read = |name: &str| std::fs::read(dir.join(name)).unwrap();
    cluster.put_file("server.crt", &read(&format!("{certificate}.crt"))).unwrap();
    cluster.put_file("server.key", &read(&format!("{certificate}.key"))).unwrap();
    cluster.put_file("root.crt", &read("ca.crt")).unwrap();
    cluster
        .configure(&[
            ("ssl", "on"),
            ("ssl_cert_file", "server.crt"),
            ("ssl_key_file", "server.key"),
            ("ssl_ca_file", "root.crt"),
        ])
        .unwrap();
    tokio::task::spawn_blocking(move || {
        cluster.restart(Stop::Fast).unwrap();
        cluster
    })
    .await
    .unwrap()
}

/// What both kinds of connection come to; they must agree.
async fn outcome(text: &str) -> Result<bool, ErrorKind> {
    let settings = settings(text);
    let replication = settings.connect_replication().await;
    match settings.connect(Purpose::Control).await {
        Ok(client) => {
            replication.unwrap();
            let sql = "select ssl from pg_stat_ssl where pid = pg_backend_pid()";
            Ok(client.query_one(sql, &[]).await.unwrap().get(0))
        }
        Err(error) => {
            assert_eq!(replication.unwrap_err().kind(), error.kind(), "{error}");
            Err(error.kind())
        }
    }
}

#[tokio::test]
async fn c094_each_mode_means_what_libpq_means() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    authority(dir);
    issue(dir, "localhost", "subjectAltName=DNS:localhost");
    issue(dir, "certified", "extendedKeyUsage=clientAuth");
    openssl(
        dir,
        "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=other -keyout other.key -out other.crt",
    );
    let cluster = tls_cluster(dir, "localhost").await;
    let port = cluster.port();
    let root = dir.join("ca.crt").display().to_string();
    let other = dir.join("other.crt").display().to_string();
    let text =
        |host: &str, rest: &str| format!("host={host} port={port} user=postgres dbname=postgres {rest}");

    assert_eq!(outcome(&text("127.0.0.1", "sslmode=disable")).await, Ok(false));
    assert_eq!(outcome(&text("127.0.0.1", "")).await, Ok(true));
    assert_eq!(outcome(&text("127.0.0.1", "sslmode=require")).await, Ok(true));
    let trusted = format!("sslrootcert={root}");
    let named = "host=localhost hostaddr=127.0.0.1";
    let full = format!("{named} port={port} user=postgres dbname=postgres sslmode=verify-full {trusted}");
    assert_eq!(outcome(&full).await, Ok(true));
    assert_eq!(outcome(&text("127.0.0.1", &format!("sslmode=verify-ca {trusted}"))).await, Ok(true));
    assert_eq!(
        outcome(&text("127.0.0.1", &format!("sslmode=verify-full {trusted}"))).await,
        Err(ErrorKind::Tls)
    );
    assert_eq!(outcome(&text("127.0.0.1", "sslmode=verify-ca")).await, Err(ErrorKind::Tls), "no such root");
    let wrong = format!("sslmode=verify-ca sslrootcert={other}");
    assert_eq!(outcome(&text("127.0.0.1", &wrong)).await, Err(ErrorKind::Tls));
    let wrong = format!("sslmode=require sslrootcert={other}");
    assert_eq!(outcome(&text("127.0.0.1", &wrong)).await, Err(ErrorKind::Tls), "a root makes require verify");
    let missing = text("127.0.0.1", "sslmode=verify-ca sslrootcert=/nowhere/ca.crt");
    assert_eq!(outcome(&missing).await, Err(ErrorKind::Tls));

    // Client certificates.
    let database = cluster.create_database().await.unwrap();
    database
        .execute("create role certified superuser login; create role bound superuser login password 'secret'")
        .await
        .unwrap();
    let certified = format!("host=127.0.0.1 port={port} user=certified dbname=postgres sslmode=require");
    assert_eq!(outcome(&certified).await, Err(ErrorKind::Authentication));
    let certificate = format!("sslcert={0}/certified.crt sslkey={0}/certified.key", dir.display());
    assert_eq!(outcome(&format!("{certified} {certificate}")).await, Ok(true));

    // Channel binding.
    let bound = format!("host=127.0.0.1 port={port} user=bound password=secret dbname=postgres");
    assert_eq!(outcome(&format!("{bound} sslmode=require channel_binding=require")).await, Ok(true));
    assert_eq!(outcome(&format!("{bound} sslmode=require channel_binding=disable")).await, Ok(true));
    let plain = format!("{bound} sslmode=disable channel_binding=require");
    assert_eq!(outcome(&plain).await, Err(ErrorKind::Authentication));
}

#[tokio::test]
async fn c094_a_self_signed_certificate_is_its_own_root() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    openssl(
        dir,
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=x \
         -addext subjectAltName=IP:127.0.0.1 -keyout ca.key -out ca.crt",
    );
    let cluster = tls_cluster(dir, "ca").await;
    let text = format!(
        "host=127.0.0.1 port={} user=postgres dbname=postgres sslmode=verify-full sslrootcert={}/ca.crt",
        cluster.port(),
        dir.display()
    );
    assert_eq!(outcome(&text).await, Ok(true));
}

#[tokio::test]
async fn c094_require_never_falls_back_to_plain_text() {
    let (cluster, _) = super::shared_database().await;
    let error = settings(&format!("{}?sslmode=require", cluster.url("postgres")))
        .connect(Purpose::Control)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Tls);
    assert!(error.to_string().contains("does not offer TLS"), "{error}");
    assert_eq!(outcome(&format!("{}?sslmode=prefer", cluster.url("postgres"))).await, Ok(false));
}
