//! Random transactions against a list that was made without any arena.

use proptest::{collection::vec, prelude::*};

use super::*;

/// Something that a transaction does to one of three tables.
#[derive(Clone, Debug)]
enum Step {
    /// Makes the table have another number of columns, or ignored; described before its next row.
    Alter(usize, usize),
    Insert(usize, u8),
    Update(usize, u8, bool, bool),
    Delete(usize, u8),
    Truncate(Vec<usize>),
    /// The caller takes what there is.
    Take,
}

fn step() -> impl Strategy<Value = Step> {
    let table = 0_usize..3;
    prop_oneof![
        1 => (table.clone(), 0_usize..5).prop_map(|(table, columns)| Step::Alter(table, columns)),
        4 => (table.clone(), any::<u8>()).prop_map(|(table, seed)| Step::Insert(table, seed)),
        4 => (table.clone(), any::<u8>(), any::<bool>(), any::<bool>())
            .prop_map(|(table, seed, old, toast)| Step::Update(table, seed, old, toast)),
        2 => (table.clone(), any::<u8>()).prop_map(|(table, seed)| Step::Delete(table, seed)),
        1 => vec(table, 1..4).prop_map(Step::Truncate),
        2 => Just(Step::Take),
    ]
}

/// A table as the imagined server has it. Table 0 has identity FULL, the others DEFAULT; the first column is
/// the key; 0 columns stand for a table that the caller ignores.
#[derive(Clone)]
struct Table {
    columns: usize,
    described: bool,
}

struct Server {
    tables: Vec<Table>,
    messages: Vec<Option<Msg>>,
    expected: Vec<Event>,
    lsn: u64,
    sequence: u32,
}

impl Server {
    fn identity(table: usize) -> ReplicaIdentity {
        if table == 0 { ReplicaIdentity::Full } else { ReplicaIdentity::Default }
    }

    fn columns(&self, table: usize) -> Vec<String> {
        let columns = self.tables[table].columns;
        (0..columns.max(1)).map(|at| if at == 0 { "k".into() } else { format!("c{at}of{columns}") }).collect()
    }

    fn oid(table: usize) -> u32 {
        10 + u32::try_from(table).unwrap()
    }

    fn describe(&mut self, table: usize) {
        if std::mem::replace(&mut self.tables[table].described, true) {
            return;
        }
        let columns = self.columns(table);
        let columns: Vec<_> = columns.iter().map(String::as_str).collect();
        let name = format!("{}{table}", if self.tables[table].columns == 0 { "ignored" } else { "t" });
        self.messages.push(Some(relation(Self::oid(table), &name, Self::identity(table), &columns)));
    }

    /// Column values from a seed: NULL, empty, long.
    fn row(&self, table: usize, seed: u8) -> (Vec<Val>, Vec<Seen>) {
        let value = |at: usize| match (usize::from(seed) + at) % 4 {
            0 if at > 0 => (Val::Null, Seen::Null),
            1 if at > 0 => (text(""), seen("")),
            _ => {
                let value = format!("{seed}.{at}").repeat(usize::from(seed % 5) + 1);
                (text(&value), seen(&value))
            }
        };
        (0..self.columns(table).len()).map(value).unzip()
    }

    fn event(&mut self, table: usize, operation: Operation, new: Option<Vec<Seen>>, old: Option<Vec<Seen>>) {
        let sequence = self.sequence;
        self.sequence += 1;
        if self.tables[table].columns > 0 {
            let (columns, table) = (self.columns(table), format!("public.t{table}"));
            let commit_lsn = Lsn(self.lsn);
            self.expected.push(Event { commit_lsn, sequence, operation, table, columns, new, old });
        }
    }

    /// The old row as the server sends it, and as it must be seen.
    fn old(&self, table: usize, seed: u8) -> (OldKind, Vec<Val>, Vec<Seen>) {
        let (mut sent, mut seen) = self.row(table, seed);
        if Self::identity(table) == ReplicaIdentity::Full {
            return (OldKind::Full, sent, seen);
        }
        sent[1..].fill(Val::Null);
        seen[1..].fill(Seen::Unknown);
        (OldKind::Key, sent, seen)
    }

    fn update(&mut self, table: usize, seed: u8, with_old: bool, toast: bool) {
        let old = with_old.then(|| self.old(table, seed.wrapping_add(1)));
        let (mut sent, mut new) = self.row(table, seed);
        if toast && let (Some(sent), Some(new)) = (sent.last_mut(), new.last_mut()) {
            *sent = Val::Unchanged;
            let text = old.as_ref().and_then(|(_, _, seen)| seen.last().cloned());
            *new = text.filter(|text| matches!(text, Seen::Text(_))).unwrap_or(Seen::Unchanged);
        }
        let (old, old_seen) = old.map(|(kind, sent, seen)| ((kind, sent), seen)).unzip();
        self.messages.push(Some(Msg::Update(None, Self::oid(table), old, sent)));
        self.event(table, Operation::Update, Some(new), old_seen);
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Alter(table, columns) => {
                self.tables[*table] = Table { columns: *columns, described: false };
            }
            Step::Take => self.messages.push(None),
            Step::Insert(table, seed) => {
                self.describe(*table);
                let (sent, new) = self.row(*table, *seed);
                self.messages.push(Some(Msg::Insert(None, Self::oid(*table), sent)));
                self.event(*table, Operation::Insert, Some(new), None);
            }
            Step::Update(table, seed, old, toast) => {
                self.describe(*table);
                self.update(*table, *seed, *old, *toast);
            }
            Step::Delete(table, seed) => {
                self.describe(*table);
                let (kind, sent, old) = self.old(*table, *seed);
                self.messages.push(Some(Msg::Delete(None, Self::oid(*table), kind, sent)));
                self.event(*table, Operation::Delete, None, Some(old));
            }
            Step::Truncate(tables) => {
                tables.iter().for_each(|table| self.describe(*table));
                let oids = tables.iter().map(|table| Self::oid(*table)).collect();
                self.messages.push(Some(Msg::Truncate(None, false, false, oids)));
                tables.iter().for_each(|table| self.event(*table, Operation::Truncate, None, None));
            }
        }
    }

    fn run(transactions: &[Vec<Step>]) -> Self {
        let tables = vec![Table { columns: 3, described: false }; 3];
        let mut server = Self { tables, messages: vec![], expected: vec![], lsn: 0, sequence: 0 };
        for steps in transactions {
            server.lsn += 100;
            server.sequence = 0;
            server.messages.push(Some(begin(server.lsn)));
            steps.iter().for_each(|step| server.step(step));
            server.messages.push(Some(commit(server.lsn)));
        }
        server
    }
}

/// What every batch promises, given the position that the batches before it reached.
fn check(batch: &ChangeBatch, open: bool) -> Result<(), TestCaseError> {
    let last = batch.transactions.len().checked_sub(1);
    for (at, info) in batch.transactions.iter().enumerate() {
        let whole = batch.ends_at_commit || Some(at) != last;
        prop_assert_eq!(info.end_lsn, if whole { Lsn(info.commit_lsn.0 + 1) } else { Lsn::ZERO });
        prop_assert_eq!(info.xid, 70 + u32::try_from(info.commit_lsn.0).unwrap());
    }
    prop_assert!(batch.ends_at_commit || open);
    prop_assert!(batch.transactions.is_sorted_by_key(|info| info.commit_lsn));
    Ok(())
}

proptest! {
    #[test]
    fn what_is_assembled_is_what_happened(transactions in vec(vec(step(), 0..8), 0..6)) {
        let server = Server::run(&transactions);
        let mut assembler = Assembler::new();
        let mut assembled = Vec::new();
        let mut ends = Vec::new();
        let mut counted = 0;
        for message in server.messages.iter().chain([&None]) {
            match message {
                Some(message) => {
                    if let Handled::Committed(committed) = feed(&mut assembler, message).unwrap() {
                        counted += committed.changes;
                    }
                }
                None => {
                    let empty = assembler.is_empty();
                    let batch = assembler.take();
                    prop_assert_eq!(empty, batch.changes.is_empty() && batch.transactions.is_empty());
                    check(&batch, assembler.in_transaction())?;
                    assembled.extend(events(&batch));
                    ends.extend(batch.transactions.iter().map(|info| info.end_lsn).filter(|end| *end > Lsn::ZERO));
                }
            }
        }
        prop_assert_eq!(assembler.position(), Lsn(if server.lsn > 0 { server.lsn + 1 } else { 0 }));
        prop_assert_eq!(counted, u64::try_from(server.expected.len()).unwrap());
        // The end of every transaction that changed something is told exactly once, in order.
        let mut changed: Vec<_> = server.expected.iter().map(|event| Lsn(event.commit_lsn.0 + 1)).collect();
        changed.dedup();
        prop_assert_eq!(ends, changed);
        prop_assert_eq!(assembled, server.expected);
    }
}
