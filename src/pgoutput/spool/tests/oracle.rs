//! Random transactions, streamed in blocks while they are open, against the same ones as a server without streaming
//! would send them: each whole, after its commit, without what was rolled back.

use std::collections::{BTreeMap, BTreeSet};

use proptest::{collection::vec, prelude::*};

use super::*;
use crate::pgoutput::message::OldKind;

/// What a session does.
#[derive(Clone, Debug)]
enum Step {
    Insert(bool, u8),
    Update(bool, u8),
    Delete(bool, u8),
    Truncate,
    /// Its own table gets another shape.
    Alter(usize),
    /// The publication gets another list of columns of the table that all of them write to, whoever has written to it.
    Publish(usize),
    Savepoint,
    Release,
    RollBack,
    Marker(u8),
    /// The server streams what it has of the transaction.
    Stream,
    Commit,
    Abort,
}

fn step() -> impl Strategy<Value = Step> {
    let row = || (any::<bool>(), any::<u8>());
    prop_oneof![
        8 => row().prop_map(|(own, seed)| Step::Insert(own, seed)),
        3 => row().prop_map(|(own, seed)| Step::Update(own, seed)),
        2 => row().prop_map(|(own, seed)| Step::Delete(own, seed)),
        1 => Just(Step::Truncate),
        1 => (1_usize..7).prop_map(Step::Alter),
        3 => (1_usize..7).prop_map(Step::Publish),
        4 => Just(Step::Savepoint),
        2 => Just(Step::Release),
        2 => Just(Step::RollBack),
        1 => any::<u8>().prop_map(Step::Marker),
        4 => Just(Step::Stream),
        2 => Just(Step::Commit),
        1 => Just(Step::Abort),
    ]
}

const SHARED: u32 = 50;

/// What was written: by which (sub)transaction, to which table of which shape. Without its transaction id.
#[derive(Clone, Debug)]
struct Written {
    xid: Xid,
    table: Option<(u32, usize)>,
    message: Msg,
}

fn with(message: Msg, inside: Option<Xid>) -> Msg {
    match message {
        Msg::Insert(_, oid, row) => Msg::Insert(inside, oid, row),
        Msg::Update(_, oid, old, row) => Msg::Update(inside, oid, old, row),
        Msg::Delete(_, oid, kind, row) => Msg::Delete(inside, oid, kind, row),
        Msg::Truncate(_, a, b, oids) => Msg::Truncate(inside, a, b, oids),
        Msg::Logical(_, a, b, c, d) => Msg::Logical(inside, a, b, c, d),
        other => other,
    }
}

/// Shapes differ in their columns, and not always in how many.
fn columns(shape: usize) -> usize {
    1 + shape % 3
}

fn describe(xid: Option<Xid>, (oid, shape): (u32, usize)) -> Msg {
    let columns = (0..columns(shape)).map(|at| (at == 0, format!("c{at}of{shape}"), 25, -1)).collect();
    Msg::Relation(xid, oid, "public".into(), format!("t{oid}"), ReplicaIdentity::Default, columns)
}

/// A savepoint, or the transaction itself: its id once it has written, the shape of its table when it began, and the ids
/// of those that were released into it.
#[derive(Clone, Debug)]
struct Level {
    xid: Option<Xid>,
    shape: usize,
    children: Vec<Xid>,
}

/// A session with its own table.
struct Session {
    oid: u32,
    shape: usize,
    levels: Vec<Level>,
    /// Everything that is not rolled back.
    written: Vec<Written>,
    /// How much of it was streamed.
    streamed: usize,
    blocks: usize,
}

/// What the server remembers of a table: pgoutput's `RelationSyncEntry`. Whatever changes the shape resets it.
#[derive(Debug, Default)]
struct Entry {
    shape: usize,
    /// Rows that come whole need no description.
    sent: bool,
    /// Nor do those of these open transactions.
    streamed: BTreeSet<Xid>,
}

struct Server {
    sessions: Vec<Session>,
    next_xid: Xid,
    lsn: u64,
    /// The shape of the table that all write to.
    shared: usize,
    entries: BTreeMap<u32, Entry>,
    sent: Vec<Msg>,
    /// The same without streaming.
    plain: Vec<Msg>,
}

impl Session {
    fn fresh(&mut self) {
        self.levels = vec![Level { xid: None, shape: self.shape, children: Vec::new() }];
        self.written.clear();
        (self.streamed, self.blocks) = (0, 0);
    }

    fn row(&self, shared: usize, own: bool, seed: u8) -> (u32, usize, Vec<crate::pgoutput::testing::Val>) {
        let (oid, shape) = if own { (self.oid, self.shape) } else { (SHARED, shared) };
        let value = |at: usize| text(&format!("{seed}.{at}").repeat(usize::from(seed % 7) + 1));
        (oid, shape, (0..columns(shape)).map(value).collect())
    }
}

impl Server {
    /// The ids of a session's levels are assigned from the outermost on, when the innermost first writes.
    fn xid(&mut self, session: usize) -> Xid {
        for level in &mut self.sessions[session].levels {
            if level.xid.is_none() {
                self.next_xid += 1;
                level.xid = Some(self.next_xid);
            }
        }
        self.sessions[session].levels.last().unwrap().xid.unwrap()
    }

    fn write(&mut self, session: usize, table: Option<(u32, usize)>, message: Msg) {
        let xid = self.xid(session);
        self.sessions[session].written.push(Written { xid, table, message });
    }

    /// Sends a row, after a description where the server thinks that it takes one (`maybe_send_schema`).
    fn send(&mut self, inside: Option<(Xid, Xid)>, Written { table, message, .. }: &Written) {
        let xid = inside.map(|(_, xid)| xid);
        if let Some((oid, shape)) = *table {
            let entry = self.entries.entry(oid).or_default();
            if entry.shape != shape {
                *entry = Entry { shape, ..Entry::default() };
            }
            let known = match inside {
                Some((top, _)) => !entry.streamed.insert(top),
                None => std::mem::replace(&mut entry.sent, true),
            };
            if !known {
                self.sent.push(describe(xid, (oid, shape)));
            }
        }
        self.sent.push(with(message.clone(), xid));
    }

    /// A streamed transaction ended, or a savepoint of it was rolled back (`cleanup_rel_sync_cache`).
    fn clean_up(&mut self, top: Xid, committed: bool) {
        for entry in self.entries.values_mut() {
            let described = entry.streamed.remove(&top);
            entry.sent |= described && committed;
        }
    }

    fn stream(&mut self, at: usize) {
        let session = &mut self.sessions[at];
        let Some(top) = session.levels[0].xid else { return };
        if session.streamed == session.written.len() {
            return;
        }
        self.sent.push(Msg::StreamStart(top, session.blocks == 0));
        session.blocks += 1;
        let block = session.written[session.streamed..].to_vec();
        session.streamed = session.written.len();
        for written in &block {
            self.send(Some((top, written.xid)), written);
        }
        self.sent.push(Msg::StreamStop);
    }

    fn roll_back(&mut self, at: usize) {
        let session = &mut self.sessions[at];
        if session.levels.len() < 2 {
            return;
        }
        let Level { xid, shape, children } = session.levels.pop().unwrap();
        session.shape = shape;
        let top = session.levels[0].xid;
        for gone in children.into_iter().chain(xid) {
            let session = &mut self.sessions[at];
            let streamed = session.written[..session.streamed].iter().any(|written| written.xid == gone);
            let first = session.written.iter().position(|written| written.xid == gone);
            if let Some(first) = first {
                assert!(session.written[first..].iter().all(|w| Some(w.xid) != top), "nested");
                session.written.retain(|written| written.xid != gone);
                session.streamed = session.streamed.min(session.written.len());
            }
            if streamed {
                self.sent.push(Msg::StreamAbort(top.unwrap(), gone, None));
                self.clean_up(top.unwrap(), false);
            }
        }
    }

    fn commit(&mut self, at: usize) {
        self.lsn += 100;
        let (lsn, end) = (self.lsn, self.lsn + 10);
        let Some(top) = self.sessions[at].levels[0].xid else { return self.sessions[at].fresh() };
        let mut whole = vec![Msg::Begin(lsn, 5_000, top)];
        for Written { table, message, .. } in &self.sessions[at].written {
            whole.extend(table.map(|table| describe(None, table)));
            whole.push(with(message.clone(), None));
        }
        whole.push(Msg::Commit(lsn, end, 5_000));
        if self.sessions[at].blocks > 0 {
            self.stream(at);
            self.sent.push(Msg::StreamCommit(top, lsn, end, 5_000));
            self.clean_up(top, true);
        } else {
            self.sent.push(Msg::Begin(lsn, 5_000, top));
            for written in &std::mem::take(&mut self.sessions[at].written) {
                self.send(None, written);
            }
            self.sent.push(Msg::Commit(lsn, end, 5_000));
        }
        self.plain.extend(whole);
        self.sessions[at].fresh();
    }

    fn abort(&mut self, at: usize) {
        while self.sessions[at].levels.len() > 1 {
            self.roll_back(at);
        }
        let session = &mut self.sessions[at];
        if session.blocks > 0 {
            let top = session.levels[0].xid.unwrap();
            self.sent.push(Msg::StreamAbort(top, top, Some((self.lsn, 5_000))));
            self.clean_up(top, false);
        }
        let session = &mut self.sessions[at];
        session.shape = session.levels[0].shape;
        session.fresh();
    }

    fn step(&mut self, at: usize, step: &Step) {
        match *step {
            Step::Insert(own, seed) => {
                let (oid, shape, row) = self.sessions[at].row(self.shared, own, seed);
                self.write(at, Some((oid, shape)), Msg::Insert(None, oid, row));
            }
            Step::Update(own, seed) => {
                let (oid, shape, row) = self.sessions[at].row(self.shared, own, seed);
                let old = (seed % 2 == 0).then(|| (OldKind::Key, row.clone()));
                self.write(at, Some((oid, shape)), Msg::Update(None, oid, old, row));
            }
            Step::Delete(own, seed) => {
                let (oid, shape, row) = self.sessions[at].row(self.shared, own, seed);
                self.write(at, Some((oid, shape)), Msg::Delete(None, oid, OldKind::Key, row));
            }
            Step::Truncate => {
                let (oid, shape) = (self.sessions[at].oid, self.sessions[at].shape);
                self.write(at, Some((oid, shape)), Msg::Truncate(None, false, false, vec![oid]));
            }
            Step::Alter(shape) => {
                self.xid(at);
                self.sessions[at].shape = shape;
            }
            Step::Publish(shape) => {
                self.shared = shape;
                for entry in self.entries.values_mut() {
                    *entry = Entry { shape: entry.shape, ..Entry::default() };
                }
            }
            Step::Savepoint => {
                let level = Level { xid: None, shape: self.sessions[at].shape, children: Vec::new() };
                self.sessions[at].levels.push(level);
            }
            Step::Release => {
                let levels = &mut self.sessions[at].levels;
                if levels.len() > 1 {
                    let Level { xid, children, .. } = levels.pop().unwrap();
                    let into = levels.last_mut().unwrap();
                    into.children.extend(children.into_iter().chain(xid));
                }
            }
            Step::RollBack => self.roll_back(at),
            // The server names the top-level transaction for a message, whatever level it is of.
            Step::Marker(content) if self.sessions[at].levels.len() == 1 => {
                let message = Msg::Logical(None, true, 7, MARKER_PREFIX.to_vec(), vec![content]);
                self.write(at, None, message);
            }
            Step::Marker(_) => {}
            Step::Stream => self.stream(at),
            Step::Commit => self.commit(at),
            Step::Abort => self.abort(at),
        }
    }

    fn run(sessions: u32, steps: &[(usize, Step)]) -> Self {
        let session = |number| Session {
            oid: 100 + number,
            shape: 1,
            levels: vec![Level { xid: None, shape: 1, children: Vec::new() }],
            written: Vec::new(),
            streamed: 0,
            blocks: 0,
        };
        let sessions = (0..sessions).map(session).collect();
        let (sent, plain) = (Vec::new(), Vec::new());
        let mut server =
            Self { sessions, next_xid: 700, lsn: 0, shared: 1, entries: BTreeMap::new(), sent, plain };
        for (at, step) in steps {
            server.step(at % server.sessions.len(), step);
        }
        server
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, ..ProptestConfig::default() })]
    #[test]
    fn what_is_streamed_comes_to_what_a_server_without_streaming_sends(
        steps in vec((0_usize..3, step()), 0..120),
        limit in prop_oneof![Just(0_usize), 50_usize..2_000, Just(1 << 20)],
    ) {
        let server = Server::run(3, &steps);
        let (mut streamed, mut plain) = (Stage::new(limit), Stage::new(0));
        streamed.feed(&server.sent);
        plain.feed(&server.plain);
        prop_assert_eq!(streamed.events(), plain.events());
        prop_assert_eq!(&streamed.committed, &plain.committed);
        let open: BTreeMap<_, _> = server.sessions.iter().filter(|session| session.blocks > 0)
            .map(|session| (session.levels[0].xid, session.written.len())).collect();
        prop_assert_eq!(streamed.spool.usage().transactions, open.len());
        for xid in streamed.files.keys() {
            prop_assert!(open.contains_key(&Some(*xid)), "the file of {} is left", xid);
        }
    }
}
