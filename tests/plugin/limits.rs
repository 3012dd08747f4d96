//! Limits that no single guest of the fixtures meets: many memories and tables, all instances together, lines and documents
//! of one call, and what leaks from call to call.

use std::{fs, path::PathBuf, time::Duration};

use anabranch::{
    model::{FailureClass, Outcome},
    plugin::{FaultKind, HostSettings},
};
use testkit::paths::repository;
use wit_component::{ComponentEncoder, StringEncoding, embed_component_metadata};

use crate::{
    guests::{at_work, guest, host, hostile, listen, load, short, told},
    rows::{all, notes, product, products},
};

const DESCRIPTION: &[u8] = br#"{"name":"many","version":"1.0.0","kind":"transform"}"#;

fn leb(mut number: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let low = u8::try_from(number & 0x7f).unwrap();
        number >>= 7;
        bytes.push(if number > 0 { low | 0x80 } else { low });
        if number == 0 {
            return bytes;
        }
    }
}

/// A vector of the binary format: how many, then each.
fn vector(items: &[Vec<u8>]) -> Vec<u8> {
    [leb(items.len()), items.concat()].concat()
}

fn section(id: u8, content: &[u8]) -> Vec<u8> {
    [vec![id], leb(content.len()), content.to_vec()].concat()
}

/// A transform by hand, with `memories` further memories of so many pages and `tables` tables of so many elements.
fn many(memories: (usize, usize), tables: (usize, usize)) -> PathBuf {
    const I32: u8 = 0x7f;
    let function =
        |parameters: usize| [vec![0x60], vector(&vec![vec![I32]; parameters]), vector(&[vec![I32]])].concat();
    let body = |code: &[u8]| [leb(code.len() + 2), vec![0], code.to_vec(), vec![0x0b]].concat();
    let export =
        |name: &str, kind: u8, at: u8| [leb(name.len()), name.as_bytes().to_vec(), vec![kind, at]].concat();
    let mut memory = vec![vec![0, 1]];
    memory.extend(vec![[vec![0], leb(memories.1)].concat(); memories.0]);
    let table = vec![[vec![0x70, 0], leb(tables.1)].concat(); tables.0];
    let text = [&64u32.to_le_bytes()[..], &u32::try_from(DESCRIPTION.len()).unwrap().to_le_bytes()].concat();
    let data = |at: usize, bytes: &[u8]| {
        [vec![0, 0x41], leb(at), vec![0x0b], leb(bytes.len()), bytes.to_vec()].concat()
    };
    let mut module = b"\0asm\x01\0\0\0".to_vec();
    module.extend(section(1, &vector(&[function(0), function(2), function(4)])));
    module.extend(section(3, &vector(&[vec![0], vec![1], vec![2]])));
    module.extend(section(4, &vector(&table)));
    module.extend(section(5, &vector(&memory)));
    module.extend(section(
        7,
        &vector(&[
            export("anabranch:plugin/describe@1.0.0#describe", 0, 0),
            export("anabranch:plugin/transform@1.0.0#transform", 0, 1),
            export("cabi_realloc", 0, 2),
            export("memory", 2, 0),
        ]),
    ));
    // The description's place; a crash; a place for what is passed.
    let codes = [body(&[0x41, 16]), body(&[0x00]), body(&[vec![0x41], vec![0x80, 0x10]].concat())];
    module.extend(section(10, &vector(&codes)));
    // Below 64 as it is written; above it would need a sign.
    module.extend(section(
        11,
        &vector(&[
            data(16, &text),
            [vec![0, 0x41, 0xc0, 0x00, 0x0b], leb(DESCRIPTION.len()), DESCRIPTION.to_vec()].concat(),
        ]),
    ));

    let mut resolve = wit_parser::Resolve::default();
    let (package, _) = resolve.push_dir(repository().join("wit/v1")).unwrap();
    let world = resolve.select_world(&[package], Some("transform-plugin")).unwrap();
    embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8).unwrap();
    let encoder = ComponentEncoder::default().validate(false).module(&module).unwrap();
    let component = { encoder }.encode().unwrap();
    let directory = tempfile::tempdir().unwrap().keep();
    let path = directory.join("many.wasm");
    fs::write(&path, component).unwrap();
    path
}

#[test]
fn c084_many_memories_and_tables_are_one_sum() {
    let host = host(short());
    let refused = |memories, tables| {
        let path = many(memories, tables);
        let loaded = host.load_blocking(&path).map_err(|error| error.to_string());
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
        loaded.map(|plugin| plugin.revision().name.clone())
    };
    assert_eq!(refused((0, 0), (0, 0)), Ok("many".to_owned()), "as such it is a plugin");
    assert_eq!(refused((50, 4), (50, 1000)), Ok("many".to_owned()));
    // 64 pages are 4 MiB, 400 000 elements 3 MiB: each is little, ten of them are more than 16 MiB.
    for (memories, tables) in [((10, 64), (0, 0)), ((0, 0), (10, 400_000)), ((2, 64), (3, 400_000))] {
        let error = refused(memories, tables).unwrap_err();
        let named = error.contains("the limit for one instance is 16.0 MiB (`[plugins] memory_limit`)");
        assert!(named, "{memories:?} {tables:?}: {error}");
    }
    let error = refused((0, 0), (1, 2_000_000)).unwrap_err();
    assert!(error.contains("a table of 2000000 elements, the limit is 1048576 (fixed)"), "{error}");
    assert_eq!(host.memory(), 0, "nothing of them is left");
}

#[tokio::test(flavor = "multi_thread")]
async fn all_instances_together_have_a_limit() {
    let host = host(HostSettings { total_memory: 6 << 20, instances: 1, ..short() });
    let (greedy, other) = (load(&host, &hostile()), load(&host, &guest("product-search", &[])));
    let batch = notes(&[("1", "a")]);
    // One call alone wants more than all may have.
    let fault = at_work(&greedy, &[("behave", "allocate")]).call(&batch, &[0]).await.unwrap_err();
    assert!(matches!(fault.kind(), FaultKind::Memory(_)), "{fault}");
    assert_eq!((fault.class(), fault.code()), (FailureClass::Retry, "plugin-total-memory"));
    let text = fault.to_string();
    assert!(text.contains("the limit is 6.0 MiB (`[plugins] total_memory`)"), "{text}");
    assert_eq!(host.memory(), 0, "what it held is free again");
    // What leaks from call to call does so in an instance, and each call may have one of its own.
    let leaking = at_work(&greedy, &[("behave", "leak")]);
    for call in 0..300 {
        leaking.call(&batch, &[0]).await.unwrap_or_else(|fault| panic!("{call}: {fault}"));
        assert!(host.memory() <= 6 << 20, "{}", host.memory());
    }

    // What is idle goes when another plugin needs the memory.
    while host.memory() < 5 << 20 {
        leaking.call(&batch, &[0]).await.unwrap();
    }
    let mut rows = crate::rows::batch(&products());
    for id in 0..2000 {
        product(&mut rows, id, true);
    }
    at_work(&other, &[]).call(&rows, &all(&rows)).await.unwrap();
    assert_eq!(greedy.instances().live, 0);
    assert!(host.memory() <= 6 << 20, "{}", host.memory());
    assert_eq!(batch.changes.len(), 1);
}

#[tokio::test]
async fn c086_one_call_has_so_many_lines_however_long_it_takes() {
    listen();
    let settings = HostSettings { log_lines: 7, call_deadline: Duration::from_millis(2500), ..short() };
    let plugin = load(&host(settings), &hostile());
    let batch = notes(&[("1", "a")]);
    let fault = at_work(&plugin, &[("behave", "pester")]).call(&batch, &[0]).await.unwrap_err();
    assert!(matches!(fault.kind(), FaultKind::Deadline(_)), "{fault}");
    drop(plugin);
    let text = told();
    let lines = text.lines().filter(|line| line.contains("a line that nobody reads")).count();
    assert_eq!(lines, 7, "in more than two seconds");
    let dropped = text.lines().find(|line| line.contains("dropped=")).unwrap();
    assert!(dropped.contains("limit=7") && dropped.contains("`[plugins] log_lines`"), "{dropped}");
}

#[tokio::test(flavor = "multi_thread")]
async fn c084_one_call_has_so_many_documents() {
    let host = host(HostSettings { max_documents: 5, ..short() });
    let plugin = load(&host, &hostile());
    let rows: Vec<String> = (0..300).map(|at| at.to_string()).collect();
    let rows: Vec<_> = rows.iter().map(|id| (id.as_str(), "a")).collect();
    let batch = notes(&rows);
    let transform = at_work(&plugin, &[("behave", "several")]);
    let selection = all(&batch);
    let fault = transform.call(&batch, &selection).await.unwrap_err();
    assert_eq!(fault.code(), "plugin-too-many-documents");
    assert!(
        fault.to_string().contains("more than 500 documents in one call") && fault.may_be_one_change(),
        "{fault}"
    );
    // In parts it is not too much.
    assert_eq!(transform.call(&batch, &selection[..100]).await.unwrap().documents.len(), 500);
    let outcomes = transform.call_isolating(&batch, &selection).await.unwrap();
    assert_eq!(outcomes.documents.len(), 1500);
    assert!(outcomes.outcomes.iter().all(|outcome| matches!(outcome, Outcome::Emit { count: 5, .. })));
}

/// Calls a guest that forgets something in each of its calls.
async fn leak(behave: &str, calls: usize, bound: usize) {
    let host = host(HostSettings { memory: 64 << 20, instances: 2, ..short() });
    let plugin = load(&host, &hostile());
    let transform = at_work(&plugin, &[("behave", behave)]);
    let batch = notes(&[("1", "a")]);
    let mut most = 0;
    for call in 0..calls {
        transform.call(&batch, &[0]).await.unwrap_or_else(|fault| panic!("call {call}: {fault}"));
        most = most.max(host.memory());
    }
    // An instance is replaced after ten thousand calls, or when half of its memory is taken.
    assert!(most < bound, "{most} bytes after {calls} calls");
    assert_eq!(plugin.instances().discarded, 0);
}

/// A kilobyte a call: instances are replaced by their calls, after some ten megabytes each.
#[tokio::test(flavor = "multi_thread")]
async fn c085_memory_stays_flat_over_calls_that_leak() {
    leak("leak-little", 25_000, 16 << 20).await;
}

/// As much as a million of those calls leak, in fewer: instances are replaced by their memory.
#[tokio::test(flavor = "multi_thread")]
async fn c085_memory_stays_flat_over_a_gigabyte_that_leaks() {
    leak("leak", 16_384, 34 << 20).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a minute: the same over a million calls"]
async fn c085_memory_stays_flat_over_a_million_calls_that_leak() {
    leak("leak-little", 1_000_000, 16 << 20).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_is_old_is_replaced() {
    let host = host(HostSettings { recycle_after: Duration::ZERO, instances: 1, ..short() });
    let plugin = load(&host, &hostile());
    let transform = at_work(&plugin, &[("behave", "leak")]);
    let batch = notes(&[("1", "a")]);
    for _ in 0..3 {
        transform.call(&batch, &[0]).await.unwrap();
        assert_eq!((plugin.instances().live, host.memory()), (0, 0), "none is kept");
    }
    assert_eq!(plugin.instances().discarded, 0, "and none is at fault");
}
