//! Random transactions, streamed in blocks while they are open, against the same ones as a server without streaming
//! would send them: each whole, after its commit, without what was rolled back.

use std::collections::BTreeMap;

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
    /// Its own table gets another number of columns.
    Alter(usize),
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
        1 => (1_usize..4).prop_map(Step::Alter),
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

/// What was written: by which (sub)transaction, to which table as of how many columns. Without its transaction id.
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

fn describe(xid: Option<Xid>, (oid, columns): (u32, usize)) -> Msg {
    let columns = (0..columns).map(|at| (at == 0, format!("c{at}of{columns}"), 25, -1)).collect();
    Msg::Relation(xid, oid, "public".into(), format!("t{oid}"), ReplicaIdentity::Default, columns)
}

/// A savepoint, or the transaction itself: its id once it has written, what its table was when it began, and the ids
/// of those that were released into it.
#[derive(Clone, Debug)]
struct Level {
    xid: Option<Xid>,
    columns: usize,
    children: Vec<Xid>,
}

/// A session with its own table.
struct Session {
    oid: u32,
    columns: usize,
    levels: Vec<Level>,
    /// Everything that is not rolled back.
    written: Vec<Written>,
    /// How much of it was streamed.
    streamed: usize,
    blocks: usize,
    described: HashMap<u32, usize>,
}

struct Server {
    sessions: Vec<Session>,
    next_xid: Xid,
    lsn: u64,
    /// What a plain transaction need not describe again.
    described: HashMap<u32, usize>,
    sent: Vec<Msg>,
    /// The same without streaming.
    plain: Vec<Msg>,
}

impl Session {
    fn fresh(&mut self) {
        self.levels = vec![Level { xid: None, columns: self.columns, children: Vec::new() }];
        self.written.clear();
        (self.streamed, self.blocks) = (0, 0);
        self.described.clear();
    }

    fn row(&self, own: bool, seed: u8) -> (u32, usize, Vec<crate::pgoutput::testing::Val>) {
        let (oid, columns) = if own { (self.oid, self.columns) } else { (SHARED, 2) };
        let value = |at: usize| text(&format!("{seed}.{at}").repeat(usize::from(seed % 7) + 1));
        (oid, columns, (0..columns).map(value).collect())
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

    fn stream(&mut self, at: usize) {
        let session = &mut self.sessions[at];
        let Some(top) = session.levels[0].xid else { return };
        if session.streamed == session.written.len() {
            return;
        }
        self.sent.push(Msg::StreamStart(top, session.blocks == 0));
        session.blocks += 1;
        for Written { xid, table, message } in &session.written[session.streamed..] {
            if let Some((oid, columns)) = *table
                && session.described.insert(oid, columns) != Some(columns)
            {
                self.sent.push(describe(Some(*xid), (oid, columns)));
            }
            self.sent.push(with(message.clone(), Some(*xid)));
        }
        session.streamed = session.written.len();
        self.sent.push(Msg::StreamStop);
    }

    fn roll_back(&mut self, at: usize) {
        let session = &mut self.sessions[at];
        if session.levels.len() < 2 {
            return;
        }
        let Level { xid, columns, children } = session.levels.pop().unwrap();
        session.columns = columns;
        let top = session.levels[0].xid;
        for gone in children.into_iter().chain(xid) {
            let streamed = session.written[..session.streamed].iter().any(|written| written.xid == gone);
            let first = session.written.iter().position(|written| written.xid == gone);
            if let Some(first) = first {
                assert!(session.written[first..].iter().all(|w| Some(w.xid) != top), "nested");
                session.written.retain(|written| written.xid != gone);
                session.streamed = session.streamed.min(session.written.len());
            }
            if streamed {
                self.sent.push(Msg::StreamAbort(top.unwrap(), gone, None));
                session.described.clear();
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
            // A plain transaction need not describe again what this one has.
            self.described.extend(&self.sessions[at].described);
        } else {
            let mut needed = |message: &Msg| match message {
                Msg::Relation(_, oid, .., columns) => {
                    self.described.insert(*oid, columns.len()) != Some(columns.len())
                }
                _ => true,
            };
            self.sent.extend(whole.iter().filter(|message| needed(message)).cloned().collect::<Vec<_>>());
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
        }
        session.columns = session.levels[0].columns;
        session.fresh();
    }

    fn step(&mut self, at: usize, step: &Step) {
        match *step {
            Step::Insert(own, seed) => {
                let (oid, columns, row) = self.sessions[at].row(own, seed);
                self.write(at, Some((oid, columns)), Msg::Insert(None, oid, row));
            }
            Step::Update(own, seed) => {
                let (oid, columns, row) = self.sessions[at].row(own, seed);
                let old = (seed % 2 == 0).then(|| (OldKind::Key, row.clone()));
                self.write(at, Some((oid, columns)), Msg::Update(None, oid, old, row));
            }
            Step::Delete(own, seed) => {
                let (oid, columns, row) = self.sessions[at].row(own, seed);
                self.write(at, Some((oid, columns)), Msg::Delete(None, oid, OldKind::Key, row));
            }
            Step::Truncate => {
                let (oid, columns) = (self.sessions[at].oid, self.sessions[at].columns);
                self.write(at, Some((oid, columns)), Msg::Truncate(None, false, false, vec![oid]));
            }
            Step::Alter(columns) => {
                self.xid(at);
                self.sessions[at].columns = columns;
            }
            Step::Savepoint => {
                let level = Level { xid: None, columns: self.sessions[at].columns, children: Vec::new() };
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
            columns: 2,
            levels: vec![Level { xid: None, columns: 2, children: Vec::new() }],
            written: Vec::new(),
            streamed: 0,
            blocks: 0,
            described: HashMap::new(),
        };
        let sessions = (0..sessions).map(session).collect();
        let (sent, plain) = (Vec::new(), Vec::new());
        let mut server = Self { sessions, next_xid: 700, lsn: 0, described: HashMap::new(), sent, plain };
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
