//! A table of notes, a plugin that fails for those whose text asks for it, and what is asked of the quarantine.
#![allow(dead_code, reason = "a part of it is used")]

use std::time::Duration;

use serde_json::Value;
use testkit::{checker::Destination, guests::Guest, wait_until};

use super::scene::{SOON, Scene};

pub const TO_SQLITE: &str = "[sink.out]\nkind = \"sqlite\"\npath = \"out.db\"\n";
pub const TO_LINES: &str = "[sink.out]\nkind = \"jsonl\"\npath = \"out.jsonl\"\n";

pub fn picky() -> Guest {
    Guest::new("plugins/fixtures/picky")
}

/// The next version, which fails for no row.
pub fn mended() -> Guest {
    picky().version("1.0.1").feature("mended")
}

pub struct Notes {
    pub scene: Scene,
}

impl Notes {
    /// So many good notes, and a host for them that is not started. `map` is added to the mapping, `rest` to the
    /// config.
    pub async fn new(rows: u64, map: &str, rest: &str) -> Self {
        let notes = Self { scene: Scene::new(1, 1).await };
        notes
            .execute(&format!(
                "create table public.notes (id bigint primary key, text text, data json); \
                 insert into public.notes select n, 'good ' || n from generate_series(1, {rows}) as n"
            ))
            .await;
        notes.configure(map, rest);
        notes.scene.plugin("picky", &picky());
        notes
    }

    /// The same with a quarantine and an SQLite file, running and built.
    pub async fn built(rows: u64, map: &str) -> Self {
        let map = format!("on_failure = \"quarantine\"\n{map}");
        let mut notes = Self::new(rows, &map, TO_SQLITE).await;
        notes.start().await;
        notes
    }

    pub fn configure(&self, map: &str, rest: &str) {
        self.scene.config(&format!(
            "{rest}\n[[map]]\nname = \"notes\"\ntable = \"public.notes\"\ntransform = \"picky\"\nsink = \"out\"\n{map}"
        ));
    }

    pub async fn start(&mut self) {
        self.scene.host.start().unwrap();
        self.is_built(1).await;
    }

    pub async fn restart(&mut self) {
        let from = self.scene.host.log_length();
        self.scene.host.start().unwrap();
        self.scene.host.wait_log(from, "streaming", SOON).await.unwrap();
    }

    pub async fn is_built(&self, generation: i64) {
        wait_until("the mapping to be built", SOON, async || {
            let query = "select built from anabranch.mapping where name = 'notes'";
            let built = self.scene.client.query_opt(query, &[]).await?.map(|row| row.get::<_, i64>(0));
            Ok(built >= Some(generation))
        })
        .await
        .unwrap_or_else(|error| panic!("{error:#}\n{}", self.scene.host.log_tail()));
    }

    pub async fn execute(&self, statements: &str) {
        self.scene.client.batch_execute(statements).await.unwrap();
    }

    pub fn destination(&self) -> Destination {
        self.scene.table("notes")
    }

    /// Waits until the destination has the documents of all notes, except that these rows have that of another text, or
    /// none.
    pub async fn settled_but(&self, others: &[(i64, Option<&str>)], mended: bool) {
        let document = format!("jsonb_build_object('text', text, 'mended', {mended}) as document");
        let ids: Vec<i64> = others.iter().map(|(id, _)| *id).collect();
        let mut query =
            format!("select id, {document} from public.notes where not id = any (array{ids:?}::bigint[])");
        for (id, text) in others.iter().filter_map(|(id, text)| Some((id, (*text)?))) {
            query +=
                &format!(" union all select {id}::bigint, {document} from (values ('{text}')) as v (text)");
        }
        self.scene.settled(&query, "notes").await;
    }

    pub async fn settled(&self, mended: bool) {
        self.settled_but(&[], mended).await;
    }

    /// A command; its exit code and what it showed.
    pub fn cli(&self, arguments: &[&str]) -> (i32, String) {
        let arguments = [&["quarantine"], arguments].concat();
        let output = tokio::task::block_in_place(|| self.scene.host.run(&arguments).unwrap());
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code().unwrap_or(-1), text(&output.stdout) + &text(&output.stderr))
    }

    pub fn json(&self, arguments: &[&str]) -> (i32, Value) {
        let (code, text) = self.cli(&[arguments, &["--json"]].concat());
        let value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{code} {error}: {text}"));
        (code, value)
    }

    /// What `list` shows.
    pub fn entries(&self) -> Vec<Value> {
        let (code, list) = self.json(&["list"]);
        assert_eq!(code, 0, "{list}");
        list["entries"].as_array().unwrap().clone()
    }

    /// Keys of rows that are stored as being in quarantine, in order.
    pub async fn keys(&self) -> Vec<String> {
        let query = "select coalesce(array_agg(row_id order by row_id), '{}') from anabranch.quarantine";
        self.scene.client.query_one(query, &[]).await.unwrap().get(0)
    }

    /// Waits until exactly these rows are in quarantine.
    pub async fn quarantined(&self, keys: &[&str]) {
        wait_until(&format!("{keys:?} to be in quarantine"), SOON, async || {
            let found = self.keys().await;
            anyhow::ensure!(found == keys, "{found:?}");
            Ok(true)
        })
        .await
        .unwrap_or_else(|error| panic!("{error:#}\n{}", self.scene.host.log_tail()));
    }

    /// Waits until the mapping fails with an error that has this in it.
    pub async fn fails_with(&self, part: &str) -> String {
        let mut error = String::new();
        wait_until(&format!("an error with {part:?}"), SOON, async || {
            let query = "select coalesce(last_error, '') from anabranch.mapping where name = 'notes'";
            error = self.scene.client.query_one(query, &[]).await?.get(0);
            anyhow::ensure!(error.contains(part), "{error}");
            Ok(true)
        })
        .await
        .unwrap_or_else(|error| panic!("{error:#}\n{}", self.scene.host.log_tail()));
        error
    }

    pub async fn position(&self) -> String {
        self.scene.text("select pg_current_wal_insert_lsn()::text").await
    }

    /// Waits until the slot has passed a position.
    pub async fn passed(&self, position: &str) {
        let passed = format!("confirmed_flush_lsn >= '{position}'::pg_lsn");
        wait_until("the slot to move on", SOON, async || {
            Ok(self.scene.slot(&passed).await.as_deref() == Some("true"))
        })
        .await
        .unwrap_or_else(|error| panic!("{error:#}\n{}", self.scene.host.log_tail()));
    }

    pub async fn held_before(&self, position: &str) -> bool {
        let held = format!("confirmed_flush_lsn < '{position}'::pg_lsn");
        self.scene.slot(&held).await.as_deref() == Some("true")
    }

    /// Something that the file of the SQLite sink is told beside the host.
    pub fn damage(&self, statements: &str) {
        let file = rusqlite::Connection::open(self.scene.host.path("out.db")).unwrap();
        file.busy_timeout(Duration::from_secs(30)).unwrap();
        file.execute_batch(statements).unwrap();
    }
}
