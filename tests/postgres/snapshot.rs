use std::time::Duration;

use anabranch::{
    backfill::{Cursor, KeyColumn},
    model::{
        Change, ChangeBatch, EntityName, Lsn, Operation, ReplicaIdentity, Scope, ValueType, document_id,
    },
    postgres::{
        Catalog, ChunkRead, ChunkRequest, ErrorKind, Flush, Purpose, Sight, SnapshotReader, StreamRelation,
    },
};
use testkit::{ClusterOptions, Database, wait_until};

use super::{DEADLINE, settings, shared_database, start};

fn texts(batch: &ChangeBatch) -> Vec<Vec<Option<String>>> {
    let row = |change: &anabranch::model::Change| {
        let row = batch.row(change.new?);
        let text = |at: usize| row.text(at).map(|text| String::from_utf8(text.to_vec()).unwrap());
        Some((0..row.cells.len()).map(text).collect())
    };
    batch.changes.iter().filter_map(row).collect()
}

/// The document ids of rows that were asked for and are not there, in order.
fn gone(batch: &ChangeBatch) -> Vec<String> {
    let deletes = batch.changes.iter().filter(|change| change.operation == Operation::Delete);
    let id = |change: &Change| document_id(batch.relation(change), batch.row(change.old.unwrap())).unwrap();
    let mut gone: Vec<String> = deletes.map(id).collect();
    gone.sort();
    gone
}

/// The cursor behind a page.
fn cursor(chunk: &ChunkRead) -> Option<Cursor> {
    chunk.last.clone().map(|values| Cursor { key: chunk.key.clone(), values })
}

fn request(entity: &EntityName, max_rows: u32) -> ChunkRequest<'_> {
    ChunkRequest {
        entity,
        scope: None,
        columns: None,
        after: None,
        max_rows,
        max_bytes: 1 << 20,
        timeout: None,
    }
}

/// Reads a table to its end in pages of `max_rows`; gives each page's rows.
async fn pages(reader: &mut SnapshotReader, table: &str, max_rows: u32) -> Vec<Vec<Vec<Option<String>>>> {
    scoped_pages(reader, table, max_rows, None).await
}

async fn scoped_pages(
    reader: &mut SnapshotReader,
    table: &str,
    max_rows: u32,
    scope: Option<&Scope>,
) -> Vec<Vec<Vec<Option<String>>>> {
    let entity: EntityName = table.parse().unwrap();
    let mut pages = Vec::new();
    let mut after = None;
    loop {
        let request = ChunkRequest { scope, after: after.as_ref(), ..request(&entity, max_rows) };
        let chunk = reader.read_chunk(&request).await.unwrap();
        after = cursor(&chunk).or(after);
        pages.push(texts(&chunk.batch));
        assert!(pages.len() < 100, "{table} does not end");
        if chunk.exhausted {
            return pages;
        }
    }
}

async fn reader(database: &Database) -> SnapshotReader {
    SnapshotReader::open(&settings(&database.url), "p").await.unwrap()
}

#[tokio::test]
async fn c025_every_ordinary_key_type_is_paged_in_the_servers_order() {
    let (_, database) = shared_database().await;
    database
        .execute(
            "create extension citext schema public;
             create type public.mood as enum ('sad', 'ok', 'happy', 'angry', 'bored', 'calm', 'eager');
             create domain public.small as int check (value < 1000);
             create type public.pair as (a int, b text);
             create collation public.german (provider = icu, locale = 'de-u-kn-true')",
        )
        .await
        .unwrap();
    let n = "generate_series(1, 7) n";
    let moods = "(array['happy','sad','calm','ok','eager','angry','bored'])[n]::public.mood";
    let cases = [
        ("int8", "int8".to_owned(), format!("select n * -1000000000000 from {n}")),
        ("text_c", "text collate \"C\"".to_owned(), format!("select chr(60 + n * 7) || '''\\' from {n}")),
        ("text_de", "text collate public.german".to_owned(), format!("select 'ä' || n * 5 from {n}")),
        ("citext", "public.citext".to_owned(), "select unnest(array['b','A','D','c','e','G','f'])".to_owned()),
        ("bpchar", "char(5)".to_owned(), format!("select 'x' || n from {n}")),
        ("varchar", "varchar(2)".to_owned(), format!("select 'x' || n from {n}")),
        ("uuid", "uuid".to_owned(), format!("select md5(n::text)::uuid from {n}")),
        ("date", "date".to_owned(), "select unnest(array['-infinity','0044-03-15 BC','2024-02-29','1999-01-01','infinity','10000-01-01','2000-01-01'])::date".to_owned()),
        ("tstz", "timestamptz".to_owned(), format!("select '2024-03-31 00:30+00'::timestamptz + n * interval '20 min 1 us' from {n}")),
        ("numeric", "numeric".to_owned(), "select unnest(array['NaN','-1.50','1e30','0','0.000000001','Infinity','-2'])::numeric".to_owned()),
        ("float", "float8".to_owned(), "select unnest(array['NaN','-1.5','1e300','0.1','Infinity','-Infinity','0.30000000000000004'])::float8".to_owned()),
        ("inet", "inet".to_owned(), format!("select ('10.0.0.' || n * 30)::inet from {n}")),
        ("bytea", "bytea".to_owned(), format!("select decode(lpad(to_hex(n * 36), 2, '0'), 'hex') from {n}")),
        ("bool_int", "bool".to_owned(), "select unnest(array[true, false])".to_owned()),
        ("mood", "public.mood".to_owned(), format!("select {moods} from {n}")),
        ("small", "public.small".to_owned(), format!("select n * 3 from {n}")),
        ("pair", "public.pair".to_owned(), format!("select row(n, 'it''s, ' || n)::public.pair from {n}")),
        ("ints", "int[]".to_owned(), format!("select array[n, 8 - n] from {n}")),
        ("interval", "interval".to_owned(), format!("select n * interval '1 mon -1 day' from {n}")),
        ("json", "jsonb".to_owned(), format!("select to_jsonb(n) from {n}")),
        ("range", "int4range".to_owned(), format!("select int4range(n, n + 3) from {n}")),
        ("oid", "oid".to_owned(), format!("select (n * 600000000::bigint)::oid from {n}")),
        ("bits", "varbit".to_owned(), format!("select n::bit(5)::varbit from {n}")),
    ];
    let mut reader = reader(&database).await;
    for (name, ty, values) in cases {
        database
            .execute(&format!("create table public.k_{name} (k {ty} primary key, v int); insert into public.k_{name} (k) {values}"))
            .await
            .unwrap();
        let pages = pages(&mut reader, &format!("public.k_{name}"), 3).await;
        let client = settings(&database.url).connect(Purpose::Control).await.unwrap();
        let expected =
            client.simple_query(&format!("select k from public.k_{name} order by k")).await.unwrap();
        let expected: Vec<_> = expected
            .iter()
            .filter_map(|message| match message {
                tokio_postgres::SimpleQueryMessage::Row(row) => Some(row.get(0).unwrap().to_owned()),
                _ => None,
            })
            .collect();
        let found: Vec<_> = pages.iter().flatten().map(|row| row[0].clone().unwrap()).collect();
        assert_eq!(found, expected, "{name}");
        assert_eq!(pages.len(), if found.len() == 7 { 3 } else { 1 }, "{name}");
    }
}

#[tokio::test]
async fn composite_keys_empty_tables_and_exact_multiples() {
    let (_, database) = shared_database().await;
    database
        .execute(
            r#"create extension citext schema public;
               create type public.mood as enum ('sad', 'ok', 'happy');
               create table public.c ("B col" int, a public.mood, v text, primary key (a, "B col"));
               insert into public.c select n, m from generate_series(1, 4) n, unnest(enum_range(null::public.mood)) m;
               create table public.mixed (t public.citext, n int, primary key (t, n));
               insert into public.mixed select t, n from unnest(array['b', 'A', 'c']) t, generate_series(1, 3) n;
               create table public.empty (id int primary key)"#,
        )
        .await
        .unwrap();
    let mut reader = reader(&database).await;
    let found = pages(&mut reader, "public.c", 4).await;
    assert_eq!(
        found.iter().map(Vec::len).collect::<Vec<_>>(),
        [4, 4, 4, 0],
        "an exact multiple ends with an empty page"
    );
    let keys: Vec<_> = found
        .iter()
        .flatten()
        .map(|row| format!("{} {}", row[1].as_ref().unwrap(), row[0].as_ref().unwrap()))
        .collect();
    assert_eq!(keys[..5], ["sad 1", "sad 2", "sad 3", "sad 4", "ok 1"]);
    let found = pages(&mut reader, "public.mixed", 2).await;
    let keys: Vec<_> = found
        .iter()
        .flatten()
        .map(|row| format!("{}{}", row[0].as_ref().unwrap(), row[1].as_ref().unwrap()))
        .collect();
    assert_eq!(keys, ["A1", "A2", "A3", "b1", "b2", "b3", "c1", "c2", "c3"]);
    assert_eq!(pages(&mut reader, "public.empty", 4).await, [Vec::<Vec<_>>::new()]);
}

#[tokio::test]
async fn a_page_ends_at_its_byte_limit() {
    let (_, database) = shared_database().await;
    database
        .execute("create table public.wide (id int primary key, v text); insert into public.wide select n, repeat('x', 10000) from generate_series(1, 1000) n")
        .await
        .unwrap();
    let mut reader = reader(&database).await;
    let entity = "public.wide".parse().unwrap();
    let request = ChunkRequest { max_bytes: 2_000_000, ..request(&entity, 1000) };
    for _ in 0..2 {
        let chunk = reader.read_chunk(&request).await.unwrap();
        assert!((200..=300).contains(&chunk.batch.changes.len()), "{}", chunk.batch.changes.len());
        assert_eq!(chunk.last, Some(vec![chunk.batch.changes.len().to_string()]));
        assert!(!chunk.exhausted);
    }
}

#[tokio::test]
async fn a_page_has_the_columns_that_are_asked_for_and_the_key() {
    let (_, database) = shared_database().await;
    database
        .execute(
            "create table public.t (a text, id int, big text, kind text, primary key (kind, id));
             insert into public.t values ('a', 1, 'big', 'k'), (null, 2, 'bigger', 'k');
             create publication p for table public.t",
        )
        .await
        .unwrap();
    let mut reader = reader(&database).await;
    let entity = "public.t".parse().unwrap();
    let read = async |reader: &mut SnapshotReader, columns: Option<&[String]>| {
        let chunk = reader.read_chunk(&ChunkRequest { columns, ..request(&entity, 10) }).await.unwrap();
        let names: Vec<_> = chunk.relation.columns.iter().map(|column| column.name.clone()).collect();
        assert_eq!(chunk.relation.key_names().collect::<Vec<_>>(), ["kind", "id"]);
        assert_eq!(chunk.last.as_deref(), Some(&["k".to_owned(), "2".to_owned()][..]));
        (names.join(" "), texts(&chunk.batch))
    };
    let text = |text: &str| Some(text.to_owned());
    // A column that is not there is missed by whoever needs it.
    let (names, rows) = read(&mut reader, Some(&["a".to_owned(), "gone".to_owned()])).await;
    assert_eq!(names, "a id kind");
    assert_eq!(rows, [[text("a"), text("1"), text("k")], [None, text("2"), text("k")]]);
    assert_eq!(read(&mut reader, Some(&[])).await.0, "id kind");
    assert_eq!(read(&mut reader, None).await.0, "a id big kind");
}

#[tokio::test]
async fn c039_c040_pages_have_the_rows_and_columns_of_the_publication() {
    let (cluster, database) = shared_database().await;
    // Row filters and column lists came with 15.
    if cluster.major() < 15 {
        return;
    }
    database
        .execute(
            "create table public.f (id int primary key, region text, secret text, twice int generated always as (id * 2) stored, z text);
             insert into public.f (id, region) select n, case when n % 2 = 0 then 'eu' else 'us' end from generate_series(1, 10) n;
             create publication p for table public.f (id, region, z) where (region = 'eu')",
        )
        .await
        .unwrap();
    let mut reader = reader(&database).await;
    let rows: Vec<_> = pages(&mut reader, "public.f", 3).await.into_iter().flatten().collect();
    assert_eq!(rows.len(), 5);
    assert_eq!(rows[0], [Some("2".to_owned()), Some("eu".to_owned()), None]);
    let keys = [vec!["1".to_owned()], vec!["2".to_owned()]];
    let read = reader.reread(&"public.f".parse().unwrap(), (&keys, None), None).await.unwrap();
    assert_eq!(texts(&read.batch).len(), 1);
}

#[tokio::test]
async fn c015_generated_columns_are_as_in_the_stream() {
    let (cluster, database) = shared_database().await;
    database
        .execute(
            "create table public.g (id int primary key, twice int generated always as (id * 2) stored, z text);
             insert into public.g (id, z) values (1, 'z'); create publication p for table public.g",
        )
        .await
        .unwrap();
    let mut reader = reader(&database).await;
    let one = Some("1".to_owned());
    assert_eq!(pages(&mut reader, "public.g", 3).await, [[[one.clone(), Some("z".to_owned())]]]);
    if cluster.major() >= 18 {
        database.execute("alter publication p set (publish_generated_columns = stored)").await.unwrap();
        assert_eq!(
            pages(&mut reader, "public.g", 3).await,
            [[[one, Some("2".to_owned()), Some("z".to_owned())]]]
        );
    }
}

#[tokio::test]
async fn children_are_tables_of_their_own_and_partitions_are_not() {
    let (_, database) = shared_database().await;
    database
        .execute(
            "create table public.parent (id int primary key); create table public.child () inherits (public.parent);
             insert into public.parent values (1); insert into public.child values (2);
             create table public.root (id int primary key) partition by range (id);
             create table public.leaf partition of public.root for values from (0) to (10);
             insert into public.root values (3);
             create publication p for table only public.parent, public.root with (publish_via_partition_root = true)",
        )
        .await
        .unwrap();
    let mut reader = reader(&database).await;
    assert_eq!(pages(&mut reader, "public.parent", 3).await, [[[Some("1".to_owned())]]]);
    assert_eq!(pages(&mut reader, "public.root", 3).await, [[[Some("3".to_owned())]]]);
}

/// Reads the first page of a table before and the second one after some statements.
async fn go_on_after(table: &str, ddl: &str) -> Result<Vec<Vec<Option<String>>>, ErrorKind> {
    let (_, database) = shared_database().await;
    let data = format!("{table}; insert into public.t select n, n, n from generate_series(1, 5) n");
    database.execute(&data).await.unwrap();
    let mut reader = reader(&database).await;
    let entity = "public.t".parse().unwrap();
    let first = reader.read_chunk(&request(&entity, 2)).await.unwrap();
    database.execute(ddl).await.unwrap();
    let after = cursor(&first);
    let second = reader.read_chunk(&ChunkRequest { after: after.as_ref(), ..request(&entity, 2) }).await;
    second.map(|chunk| texts(&chunk.batch)).map_err(|error| error.kind())
}

#[tokio::test]
async fn c043_a_cursor_survives_renamed_key_columns_and_nothing_else() {
    let table = "create table public.t (a int, b text, v int, primary key (a, b))";
    let renamed = "alter table public.t rename a to \"it's A\"; alter table public.t rename b to a; \
                   alter table public.t rename v to b";
    let rows = go_on_after(table, renamed).await.unwrap();
    assert_eq!(rows, [3, 4].map(|n| vec![Some(n.to_string()); 3]));
    let changed = [
        "alter table public.t alter column b type text collate \"C\"",
        "alter table public.t alter column a type bigint",
        "alter table public.t drop constraint t_pkey, add primary key (b, a)",
        "alter table public.t drop column a, add column a int not null default 1; \
         alter table public.t add primary key (a, b)",
        "alter table public.t rename a to c; alter table public.t rename v to a; \
         alter table public.t drop constraint t_pkey, add primary key (a, b)",
    ];
    for ddl in changed {
        assert_eq!(go_on_after(table, ddl).await, Err(ErrorKind::KeyChanged), "{ddl}");
    }
}

#[tokio::test]
async fn c043_a_described_key_differs_unless_it_was_renamed() {
    let (_, database) = shared_database().await;
    database.execute("create table public.t (id int primary key, v int not null unique)").await.unwrap();
    let client = settings(&database.url).connect(Purpose::Control).await.unwrap();
    let mut catalog = Catalog::new("p");
    let oid = database.query_text("select 'public.t'::regclass::oid::text").await.unwrap();
    let mut describe = async |first: (&str, bool), second: (&str, bool)| {
        let column = |(name, identity): (&str, bool)| (name.to_owned(), 23, identity);
        let message = StreamRelation {
            oid: oid.parse().unwrap(),
            name: "public.t".parse().unwrap(),
            replica_identity: ReplicaIdentity::Default,
            columns: vec![column(first), column(second)],
        };
        catalog.resolve(&client, &message, &[]).await.unwrap()
    };
    let before = describe(("id", true), ("v", false)).await;
    database.execute("alter table public.t rename id to number").await.unwrap();
    let late = describe(("id", true), ("v", false)).await;
    assert!(!late.key_differs(&before), "the catalogue is ahead, and says nothing of these names");
    let renamed = describe(("number", true), ("v", false)).await;
    assert!(!renamed.key_differs(&before));
    assert!(renamed.key_differs(&late), "not known, so taken for another one");
    database.execute("alter table public.t drop constraint t_pkey, add primary key (v)").await.unwrap();
    let moved = describe(("number", false), ("v", true)).await;
    assert!(moved.key_differs(&renamed));
    database
        .execute("alter table public.t rename number to x; alter table public.t rename v to number")
        .await
        .unwrap();
    let renamed_again = describe(("x", false), ("number", true)).await;
    assert!(!renamed_again.key_differs(&moved));
    assert!(renamed_again.key_differs(&renamed), "the same name, another column");
}

#[tokio::test]
async fn scopes_narrow_pages_to_a_condition_or_to_keys() {
    let (cluster, database) = shared_database().await;
    database
        .execute(
            "create extension citext schema public;
             create table public.t (id int primary key, v text); insert into public.t select n, 'v' || n % 3 from generate_series(1, 30) n;
             create table public.c (a text, b int, v text, primary key (b, a)); insert into public.c select 'it''s', n from generate_series(1, 9) n;
             create table public.m (t public.citext, n int, primary key (t, n)); insert into public.m values ('A', 1), ('b', 2), ('c', 3);
             create table public.l (k int[] primary key); insert into public.l values ('{1,2}'), ('{3}'), ('{4,5,6}');
             create publication p for all tables",
        )
        .await
        .unwrap();
    let mut reader = reader(&database).await;
    let condition = |text: &str| Scope::Where(text.to_owned());
    let found =
        scoped_pages(&mut reader, "public.t", 4, Some(&condition("v = 'v1' or id = 3 -- and so on"))).await;
    assert_eq!(found.iter().map(Vec::len).collect::<Vec<_>>(), [4, 4, 3]);
    let keys = |keys: &[&[&str]]| {
        Scope::Keys(keys.iter().map(|key| key.iter().map(|part| (*part).to_owned()).collect()).collect())
    };
    let cases: [(&str, Scope, &[&str]); 6] = [
        ("public.t", keys(&[&["30"], &["2"], &["99"], &["2"], &["7"]]), &["2", "7", "30"]),
        ("public.t", keys(&[]), &[]),
        ("public.c", keys(&[&["3", "it's"], &["2", "its"], &["1", "it's"]]), &["it's", "it's"]),
        ("public.m", keys(&[&["a", "1"], &["B", "2"], &["c", "4"]]), &["A", "b"]),
        ("public.l", keys(&[&["{3}"], &["{4, 5, 6}"]]), &["{3}", "{4,5,6}"]),
        ("public.t", Scope::Keys((-5000..=1).map(|n| vec![n.to_string()]).collect()), &["1"]),
    ];
    for (table, scope, expected) in cases {
        let found = scoped_pages(&mut reader, table, 2, Some(&scope)).await;
        let found: Vec<_> = found.iter().flatten().map(|row| row[0].as_deref().unwrap()).collect();
        assert_eq!(found, expected, "{table} {expected:?}");
    }
    let absent: [(&str, Scope, &[&str]); 4] = [
        ("public.t", keys(&[&["30"], &["2"], &["099"], &["99"]]), &["99"]),
        ("public.c", keys(&[&["3", "it's"], &["2", "i,ts"]]), &["2,i\\,ts"]),
        ("public.m", keys(&[&["a", "1"], &["c", "4"]]), &["c,4"]),
        ("public.l", keys(&[&["{3}"], &["{4, 5}"]]), &["{4,5}"]),
    ];
    for (table, scope, expected) in absent {
        let entity: EntityName = table.parse().unwrap();
        let first =
            reader.read_chunk(&ChunkRequest { scope: Some(&scope), ..request(&entity, 1) }).await.unwrap();
        assert_eq!(gone(&first.batch), expected, "{table}: rows that are not there come with the first page");
        let after = cursor(&first);
        let next = ChunkRequest { scope: Some(&scope), after: after.as_ref(), ..request(&entity, 9) };
        assert!(gone(&reader.read_chunk(&next).await.unwrap().batch).is_empty(), "{table}: and only with it");
    }
    if cluster.major() >= 15 {
        database
            .execute("drop publication p; create publication p for table public.t where (id > 10)")
            .await
            .unwrap();
        let found = scoped_pages(&mut reader, "public.t", 9, Some(&condition("id < 13 or id = 20"))).await;
        assert_eq!(found.iter().flatten().count(), 3, "within the publication's own filter");
    }
}

#[tokio::test]
async fn a_scope_is_one_condition_and_its_keys_are_of_the_tables_key() {
    let (_, database) = shared_database().await;
    database
        .execute("create table public.t (id int primary key); insert into public.t values (1), (2); create table public.other (id int); insert into public.other values (7)")
        .await
        .unwrap();
    let mut reader = reader(&database).await;
    let entity = "public.t".parse().unwrap();
    for text in [
        "true); commit; delete from public.other; select (1",
        "true; select 1",
        "true) union select id from public.other where (true",
        "true union select id from public.other",
        "true limit 1",
        "nothing = 1",
        "/* true",
        "",
    ] {
        let scope = Scope::Where(text.to_owned());
        let read = reader.read_chunk(&ChunkRequest { scope: Some(&scope), ..request(&entity, 10) }).await;
        let error = read.expect_err(text);
        assert!(error.sqlstate().is_some() && error.kind() != ErrorKind::KeyChanged, "{text}: {error}");
    }
    let scope = Scope::Keys(vec![vec!["1".into(), "2".into()]]);
    let error = reader.read_chunk(&ChunkRequest { scope: Some(&scope), ..request(&entity, 10) }).await;
    assert_eq!(
        error.unwrap_err().kind(),
        ErrorKind::Table,
        "no change of the key: that would read again at once"
    );
    assert_eq!(reader.read_chunk(&request(&entity, 10)).await.unwrap().batch.changes.len(), 2);
    assert_eq!(database.query_text("select count(*)::text from public.other").await.unwrap(), "1");
}

#[tokio::test]
async fn errors_leave_the_reader_usable() {
    let (_, database) = shared_database().await;
    database
        .execute("create table public.t (a int, b int, primary key (a)); insert into public.t values (1, 1); create table public.keyless (a int)")
        .await
        .unwrap();
    let mut reader = reader(&database).await;
    let read = async |reader: &mut SnapshotReader, table: &str, after: Option<&Cursor>| {
        let entity = table.parse().unwrap();
        reader.read_chunk(&ChunkRequest { after, ..request(&entity, 10) }).await
    };
    let error = read(&mut reader, "public.gone", None).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Table, "{error}");
    let error = read(&mut reader, "public.keyless", None).await.unwrap_err();
    assert!(error.to_string().contains("add primary key"), "{error}");
    let key = vec![KeyColumn { name: "b".into(), attribute: 2, type_oid: 23, collation: 0 }];
    let cursor = Cursor { key, values: vec!["0".into()] };
    let error = read(&mut reader, "public.t", Some(&cursor)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::KeyChanged, "{error}");
    assert_eq!(read(&mut reader, "public.t", None).await.unwrap().batch.changes.len(), 1);
    let lock = database.connect().await.unwrap();
    lock.batch_execute("begin; lock table public.t").await.unwrap();
    let entity = "public.t".parse().unwrap();
    let timeout = Some(std::time::Duration::from_millis(50));
    let request = ChunkRequest { timeout, ..request(&entity, 10) };
    let error = reader.read_chunk(&request).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
    lock.batch_execute("commit").await.unwrap();
    assert_eq!(reader.read_chunk(&request).await.unwrap().batch.changes.len(), 1);
}

#[tokio::test]
async fn a_rewrite_under_way_is_waited_for_and_not_read_as_empty() {
    let (_, database) = shared_database().await;
    database
        .execute("create table public.t (id int primary key, v int); insert into public.t select n, n from generate_series(1, 10) n")
        .await
        .unwrap();
    let mut reader = reader(&database).await;
    let other = database.connect().await.unwrap();
    other.batch_execute("begin; alter table public.t alter column v type text").await.unwrap();
    let reading = tokio::spawn(async move {
        let entity = "public.t".parse().unwrap();
        reader.read_chunk(&request(&entity, 100)).await.unwrap()
    });
    let waits = "select count(*)::text from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
    wait_until("the page to wait for the lock", DEADLINE, async || {
        Ok(database.query_text(waits).await? == "1")
    })
    .await
    .unwrap();
    other.batch_execute("commit").await.unwrap();
    let chunk = tokio::time::timeout(DEADLINE, reading).await.unwrap().unwrap();
    assert_eq!(chunk.batch.changes.len(), 10);
    assert_eq!(chunk.relation.columns[1].value_type, ValueType::Text);
}

#[tokio::test]
async fn rows_are_read_again_by_key() {
    let (_, database) = shared_database().await;
    database
        .execute("create table public.t (a text, b int, v text, primary key (a, b)); insert into public.t select 'it''s', n, 'v' || n from generate_series(1, 500) n")
        .await
        .unwrap();
    let mut reader = reader(&database).await;
    let entity = "public.t".parse().unwrap();
    let keys: Vec<_> = (100..600).map(|n| vec!["it's".to_owned(), n.to_string()]).collect();
    let read = reader.reread(&entity, (&keys, None), None).await.unwrap();
    assert_eq!(read.batch.changes.len(), 401);
    assert_eq!(texts(&read.batch).iter().filter(|row| row[2] == Some("v100".to_owned())).count(), 1);
    assert_eq!(reader.reread(&entity, (&[], None), None).await.unwrap().batch.changes.len(), 0);
}

#[tokio::test]
async fn markers_do_not_wait_for_a_standby_and_show_in_no_snapshot_of_others() {
    let cluster = start(ClusterOptions::new().setting("synchronous_standby_names", "")).await;
    let database = cluster.create_database().await.unwrap();
    database
        .execute("create table public.t (id int primary key, v text); insert into public.t values (1, 'old')")
        .await
        .unwrap();
    cluster.configure(&[("synchronous_standby_names", "nobody")]).unwrap();
    cluster.reload("synchronous_standby_names", "nobody").await.unwrap();
    // In limbo: in the WAL, and invisible until a standby answers.
    let writer = database.connect().await.unwrap();
    let (xid, made): (String, u32) = {
        let statements = "begin; update public.t set v = 'new'; create table public.made (id int)";
        writer.batch_execute(statements).await.unwrap();
        let asked = "select pg_current_xact_id()::text, 'public.made'::regclass::oid";
        let row = writer.query_one(asked, &[]).await.unwrap();
        (row.get(0), row.get(1))
    };
    let commit = tokio::spawn(async move {
        // Never answered while the standby is missing.
        let _ = writer.batch_execute("commit").await;
    });
    let stuck = "select count(*)::text from pg_stat_activity where wait_event = 'SyncRep'";
    wait_until("the commit to wait for the standby", DEADLINE, async || {
        Ok(database.query_text(stuck).await? == "1")
    })
    .await
    .unwrap();

    let client = settings(&database.url).connect(Purpose::Control).await.unwrap();
    let mark = async |contents: &[&[u8]], flush| {
        tokio::time::timeout(DEADLINE, client.emit_messages(contents, flush)).await.unwrap().unwrap()
    };
    let low = mark(&[b"low"], Flush::WithTheNext).await[0];
    let high = mark(&[b"high", b"another"], Flush::Now).await;
    assert!(low < high[0] && high[0] < high[1]);
    let flushed = database.query_text("select pg_current_wal_flush_lsn()::text").await.unwrap();
    assert!(flushed.parse::<Lsn>().unwrap() > high[1]);
    let xid = u32::try_from(xid.parse::<u64>().unwrap()).unwrap();
    assert!(!client.current_snapshot().await.unwrap().sees(xid));
    let changed = database.query_text("select 'public.t'::regclass::oid::text").await.unwrap();
    assert_eq!(
        client.sight_of(xid, Some(changed.parse().unwrap()), DEADLINE).await.unwrap(),
        Sight::Unaltered
    );
    let soon = Duration::from_millis(100);
    assert_eq!(client.sight_of(xid, Some(made), soon).await.unwrap(), Sight::Unseen);
    assert_eq!(client.sight_of(xid, None, soon).await.unwrap(), Sight::Unseen);
    let entity = "public.t".parse().unwrap();
    let chunk = reader(&database).await.read_chunk(&request(&entity, 10)).await.unwrap();
    assert_eq!(
        texts(&chunk.batch)[0][1],
        Some("old".to_owned()),
        "the chunk tells by its snapshot that it is behind"
    );
    assert!(!chunk.snapshot.sees(xid));
    let (seen, ()) = tokio::join!(client.sight_of(xid, Some(made), DEADLINE), async {
        cluster.configure(&[("synchronous_standby_names", "")]).unwrap();
        cluster.reload("synchronous_standby_names", "").await.unwrap();
    });
    assert_eq!(seen.unwrap(), Sight::Seen);
    commit.await.unwrap();
}

#[tokio::test]
async fn c008_c021_c023_the_catalogue_knows_what_is_asked_for() {
    let (_, database) = shared_database().await;
    database
        .execute(
            "create schema a; create schema b; create extension hstore schema a;
             create type public.nothing as enum ();
             create domain a.d1 as int; create domain a.d2 as a.d1; create domain a.list as a.d2[];
             create type b.hstore as (x int);
             create table a.items (k int, id int, d a.d2, ds a.d2[], l a.list, h a.hstore, fake b.hstore, boxes box[], v int2vector,
               nested jsonb[], f float4, t timestamptz(3), primary key (id, k));
             create table b.items (id int not null unique, x text); alter table b.items replica identity full",
        )
        .await
        .unwrap();
    let client = settings(&database.url).connect(Purpose::Control).await.unwrap();
    let mut catalog = Catalog::new("p");
    let names: Vec<EntityName> =
        ["a.items", "b.items", "a.gone"].iter().map(|name| name.parse().unwrap()).collect();
    let tables = catalog.tables(&client, &names).await.unwrap();
    assert_eq!(tables.len(), 2);
    let a = tables.iter().find(|table| table.name == names[0]).unwrap();
    let relation = catalog.relation(a);
    assert_eq!(relation.key_names().collect::<Vec<_>>(), ["id", "k"], "in key order");
    let integers = || ValueType::Array(Box::new(ValueType::Integer), b',');
    let expected = [
        ValueType::Integer,
        ValueType::Integer,
        ValueType::Integer,
        integers(),
        integers(),
        ValueType::Hstore,
        ValueType::Text,
        ValueType::Array(Box::new(ValueType::Text), b';'),
        ValueType::Text,
        ValueType::Array(Box::new(ValueType::Json), b','),
        ValueType::Float,
        ValueType::TimestampTz,
    ];
    let found: Vec<_> = relation.columns.iter().map(|column| column.value_type.clone()).collect();
    assert_eq!(found, expected);
    let b = tables.iter().find(|table| table.name == names[1]).unwrap();
    assert_eq!(
        catalog.relation(b).key_names().collect::<Vec<_>>(),
        ["id"],
        "under FULL, a unique index will do"
    );

    // A message that is older than the catalogue is believed about its rows.
    let mut message = StreamRelation {
        oid: a.oid,
        name: a.name.clone(),
        replica_identity: ReplicaIdentity::Default,
        columns: vec![("k".into(), 23, true), ("id".into(), 23, true), ("gone".into(), 999_999, false)],
    };
    let resolved = catalog.resolve(&client, &message, &[]).await.unwrap();
    assert_eq!((&resolved.relation.key, &resolved.key_numbers), (&vec![1, 0], &vec![2, 1]));
    assert_eq!(resolved.relation.columns[2].value_type, ValueType::Text);
    message.columns[0].2 = false;
    let resolved = catalog.resolve(&client, &message, &[]).await.unwrap();
    assert_eq!((&resolved.relation.key, &resolved.key_numbers), (&vec![1], &vec![]));
}

/// What has to be asked again once the transaction is seen that a message came in.
#[tokio::test]
async fn a_description_is_settled_where_the_catalogue_could_say_nothing_else() {
    let (_, database) = shared_database().await;
    database
        .execute(
            "create table public.t (id int primary key, v text);
             create table public.two (a int, b int, primary key (b, a));
             create table public.whole (id int primary key); alter table public.whole replica identity full",
        )
        .await
        .unwrap();
    let client = settings(&database.url).connect(Purpose::Control).await.unwrap();
    let mut catalog = Catalog::new("p");
    let mut settled = async |name: &str, identity, columns: &[(&str, u32, bool)]| {
        let oid = database.query_text(&format!("select coalesce(to_regclass('{name}'), 1)::oid::text")).await;
        let column = |&(name, oid, identity): &(&str, u32, bool)| (name.to_owned(), oid, identity);
        let message = StreamRelation {
            oid: oid.unwrap().parse().unwrap(),
            name: name.parse().unwrap(),
            replica_identity: identity,
            columns: columns.iter().map(column).collect(),
        };
        catalog.resolve(&client, &message, &[]).await.unwrap().settled
    };
    let default = ReplicaIdentity::Default;
    assert!(settled("public.t", default, &[("id", 23, true), ("v", 25, false)]).await);
    // Of a table, a column, a type, a key or an identity that is not there.
    assert!(!settled("public.none", default, &[("id", 23, true)]).await);
    assert!(!settled("public.t", default, &[("id", 23, true), ("v", 25, false), ("w", 25, false)]).await);
    assert!(!settled("public.t", default, &[("id", 23, true), ("v", 999_999, false)]).await);
    assert!(!settled("public.t", default, &[("id", 23, false), ("v", 25, true)]).await);
    assert!(!settled("public.t", ReplicaIdentity::Index, &[("id", 23, true), ("v", 25, false)]).await);
    // The message does not tell the order of a key, nor the key where everything is the identity.
    assert!(!settled("public.two", default, &[("a", 23, true), ("b", 23, true)]).await);
    assert!(!settled("public.whole", ReplicaIdentity::Full, &[("id", 23, true)]).await);
}

/// A migration has renamed columns since; what was known of the key has the names of then.
#[tokio::test]
async fn c043_a_key_of_other_names_is_told_by_what_was_known_of_it() {
    let (_, database) = shared_database().await;
    database
        .execute(
            "create table public.two (a int, b int, v int, primary key (b, a));
             create table public.whole (id int primary key, v int); alter table public.whole replica identity full;
             create table public.keyless (v int); alter table public.keyless replica identity full",
        )
        .await
        .unwrap();
    let client = settings(&database.url).connect(Purpose::Control).await.unwrap();
    let mut catalog = Catalog::new("p");
    let mut described = async |name: &str, identity, columns: &[(&str, bool)], earlier: &[KeyColumn]| {
        let oid = database.query_text(&format!("select '{name}'::regclass::oid::text")).await.unwrap();
        let message = StreamRelation {
            oid: oid.parse().unwrap(),
            name: name.parse().unwrap(),
            replica_identity: identity,
            columns: columns.iter().map(|&(name, identity)| (name.to_owned(), 23, identity)).collect(),
        };
        let found = catalog.resolve(&client, &message, earlier).await.unwrap();
        (found.relation.key.clone(), found.key_numbers, found.is_told)
    };
    let column =
        |name: &str, attribute| KeyColumn { name: name.to_owned(), attribute, type_oid: 23, collation: 0 };
    let (default, full) = (ReplicaIdentity::Default, ReplicaIdentity::Full);
    let before = [("old_a", true), ("b", true), ("v", false)];
    let known = [column("b", 2), column("old_a", 1)];
    assert_eq!(described("public.two", default, &before, &known).await, (vec![1, 0], vec![2, 1], true));
    // Without that, the order is a guess, and is said to be one.
    assert_eq!(described("public.two", default, &before, &[]).await, (vec![0, 1], vec![], false));
    let renamed = [("old_id", true), ("v", true)];
    assert_eq!(
        described("public.whole", full, &renamed, &[column("old_id", 1)]).await,
        (vec![0], vec![1], true)
    );
    assert_eq!(described("public.whole", full, &renamed, &[]).await, (vec![], vec![], false));
    // Of another key than the present one; and one whose name is another column's now.
    assert_eq!(described("public.whole", full, &renamed, &[column("v", 2)]).await, (vec![], vec![], false));
    let passed_on = [("old_id", true), ("id", true)];
    let known = [column("old_id", 1)];
    assert_eq!(described("public.whole", full, &passed_on, &known).await, (vec![], vec![], false));
    let as_it_is = [("id", true), ("v", true)];
    assert_eq!(described("public.whole", full, &as_it_is, &[column("v", 2)]).await, (vec![0], vec![1], true));
    assert_eq!(described("public.keyless", full, &[("v", true)], &[]).await, (vec![], vec![], true));
}
