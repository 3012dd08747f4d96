//! An encoder of pgoutput messages for tests: the server's side, on owned values.

use crate::{
    model::ReplicaIdentity,
    pgoutput::{
        frame::postgres_micros,
        message::{Message, OldKind, Tuple, Value},
    },
};

/// An owned column of a tuple.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Val {
    Null,
    Unchanged,
    Text(Vec<u8>),
    Binary(Vec<u8>),
}

/// Text of a column.
pub(crate) fn text(text: &str) -> Val {
    Val::Text(text.as_bytes().to_vec())
}

/// An owned column of a relation: identity, name, type, modifier.
pub(crate) type Col = (bool, String, u32, i32);

/// An owned [`Message`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Msg {
    Begin(u64, i64, u32),
    Commit(u64, u64, i64),
    Origin(u64, Vec<u8>),
    Relation(Option<u32>, u32, String, String, ReplicaIdentity, Vec<Col>),
    Type(Option<u32>, u32, String, String),
    Insert(Option<u32>, u32, Vec<Val>),
    Update(Option<u32>, u32, Option<(OldKind, Vec<Val>)>, Vec<Val>),
    Delete(Option<u32>, u32, OldKind, Vec<Val>),
    Truncate(Option<u32>, bool, bool, Vec<u32>),
    Logical(Option<u32>, bool, u64, Vec<u8>, Vec<u8>),
    StreamStart(u32, bool),
    StreamStop,
    StreamCommit(u32, u64, u64, i64),
    StreamAbort(u32, u32, Option<(u64, i64)>),
}

fn values(tuple: Tuple<'_>) -> Vec<Val> {
    let owned = |value| match value {
        Value::Null => Val::Null,
        Value::Unchanged => Val::Unchanged,
        Value::Text(bytes) => Val::Text(bytes.to_vec()),
        Value::Binary(bytes) => Val::Binary(bytes.to_vec()),
    };
    tuple.values().map(owned).collect()
}

impl From<Message<'_>> for Msg {
    fn from(message: Message<'_>) -> Self {
        match message {
            Message::Begin { final_lsn, commit_time, xid } => Self::Begin(final_lsn.0, commit_time, xid),
            Message::Commit { commit_lsn, end_lsn, commit_time } => {
                Self::Commit(commit_lsn.0, end_lsn.0, commit_time)
            }
            Message::Origin { commit_lsn, name } => Self::Origin(commit_lsn.0, name.to_vec()),
            Message::Relation(relation) => {
                let columns = relation.columns.iter();
                let columns: Vec<Col> =
                    columns.map(|c| (c.identity, c.name.to_owned(), c.type_oid, c.type_modifier)).collect();
                assert_eq!(columns.len(), relation.columns.len());
                let (namespace, name) = (relation.namespace.to_owned(), relation.name.to_owned());
                Self::Relation(
                    relation.xid,
                    relation.oid,
                    namespace,
                    name,
                    relation.replica_identity,
                    columns,
                )
            }
            Message::Type { xid, oid, namespace, name } => {
                Self::Type(xid, oid, namespace.to_owned(), name.to_owned())
            }
            Message::Insert { xid, relation, new } => Self::Insert(xid, relation, values(new)),
            Message::Update { xid, relation, old, new } => {
                Self::Update(xid, relation, old.map(|old| (old.kind, values(old.tuple))), values(new))
            }
            Message::Delete { xid, relation, old } => {
                Self::Delete(xid, relation, old.kind, values(old.tuple))
            }
            Message::Truncate { xid, cascade, restart_identity, relations } => {
                Self::Truncate(xid, cascade, restart_identity, relations.iter().collect())
            }
            Message::Logical { xid, transactional, lsn, prefix, content } => {
                Self::Logical(xid, transactional, lsn.0, prefix.to_vec(), content.to_vec())
            }
            Message::StreamStart { xid, first_segment } => Self::StreamStart(xid, first_segment),
            Message::StreamStop => Self::StreamStop,
            Message::StreamCommit { xid, commit_lsn, end_lsn, commit_time } => {
                Self::StreamCommit(xid, commit_lsn.0, end_lsn.0, commit_time)
            }
            Message::StreamAbort { xid, subxid, abort } => {
                Self::StreamAbort(xid, subxid, abort.map(|(lsn, time)| (lsn.0, time)))
            }
        }
    }
}

#[derive(Default)]
struct Out(Vec<u8>);

impl Out {
    fn u8(&mut self, value: u8) -> &mut Self {
        self.0.push(value);
        self
    }

    fn u16(&mut self, value: usize) -> &mut Self {
        self.0.extend(u16::try_from(value).unwrap().to_be_bytes());
        self
    }

    fn u32(&mut self, value: u32) -> &mut Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    fn u64(&mut self, value: u64) -> &mut Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    fn time(&mut self, unix: i64) -> &mut Self {
        self.0.extend(postgres_micros(unix).to_be_bytes());
        self
    }

    fn string(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend(bytes);
        self.u8(0)
    }

    fn sized(&mut self, bytes: &[u8]) -> &mut Self {
        self.u32(u32::try_from(bytes.len()).unwrap());
        self.0.extend(bytes);
        self
    }

    fn head(&mut self, kind: u8, xid: Option<u32>) -> &mut Self {
        self.u8(kind);
        if let Some(xid) = xid {
            self.u32(xid);
        }
        self
    }

    fn tuple(&mut self, kind: u8, values: &[Val]) -> &mut Self {
        self.u8(kind).u16(values.len());
        for value in values {
            match value {
                Val::Null => self.u8(b'n'),
                Val::Unchanged => self.u8(b'u'),
                Val::Text(bytes) => self.u8(b't').sized(bytes),
                Val::Binary(bytes) => self.u8(b'b').sized(bytes),
            };
        }
        self
    }
}

fn old_kind(kind: OldKind) -> u8 {
    match kind {
        OldKind::Key => b'K',
        OldKind::Full => b'O',
    }
}

/// The bytes that a server would send.
pub(crate) fn encode(message: &Msg) -> Vec<u8> {
    let mut out = Out::default();
    match message {
        Msg::Begin(lsn, time, xid) => out.u8(b'B').u64(*lsn).time(*time).u32(*xid),
        Msg::Commit(lsn, end, time) => out.u8(b'C').u8(0).u64(*lsn).u64(*end).time(*time),
        Msg::Origin(lsn, name) => out.u8(b'O').u64(*lsn).string(name),
        Msg::Relation(xid, oid, namespace, name, identity, columns) => {
            out.head(b'R', *xid).u32(*oid).string(namespace.as_bytes()).string(name.as_bytes());
            out.u8(match identity {
                ReplicaIdentity::Default => b'd',
                ReplicaIdentity::Nothing => b'n',
                ReplicaIdentity::Full => b'f',
                ReplicaIdentity::Index => b'i',
            });
            out.u16(columns.len());
            for (identity, name, type_oid, modifier) in columns {
                out.u8(u8::from(*identity)).string(name.as_bytes()).u32(*type_oid);
                out.0.extend(modifier.to_be_bytes());
            }
            &mut out
        }
        Msg::Type(xid, oid, namespace, name) => {
            out.head(b'Y', *xid).u32(*oid).string(namespace.as_bytes()).string(name.as_bytes())
        }
        Msg::Insert(xid, relation, new) => out.head(b'I', *xid).u32(*relation).tuple(b'N', new),
        Msg::Update(xid, relation, old, new) => {
            out.head(b'U', *xid).u32(*relation);
            if let Some((kind, old)) = old {
                out.tuple(old_kind(*kind), old);
            }
            out.tuple(b'N', new)
        }
        Msg::Delete(xid, relation, kind, old) => {
            out.head(b'D', *xid).u32(*relation).tuple(old_kind(*kind), old)
        }
        Msg::Truncate(xid, cascade, restart, relations) => {
            out.head(b'T', *xid).u32(u32::try_from(relations.len()).unwrap());
            out.u8(u8::from(*cascade) | u8::from(*restart) << 1);
            for relation in relations {
                out.u32(*relation);
            }
            &mut out
        }
        Msg::Logical(xid, transactional, lsn, prefix, content) => {
            out.head(b'M', *xid).u8(u8::from(*transactional)).u64(*lsn).string(prefix).sized(content)
        }
        Msg::StreamStart(xid, first) => out.u8(b'S').u32(*xid).u8(u8::from(*first)),
        Msg::StreamStop => out.u8(b'E'),
        Msg::StreamCommit(xid, lsn, end, time) => {
            out.u8(b'c').u32(*xid).u8(0).u64(*lsn).u64(*end).time(*time)
        }
        Msg::StreamAbort(xid, subxid, abort) => {
            out.u8(b'A').u32(*xid).u32(*subxid);
            if let Some((lsn, time)) = abort {
                out.u64(*lsn).time(*time);
            }
            &mut out
        }
    };
    out.0
}
