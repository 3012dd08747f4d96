//! The words of Anabranch: plain data that every other room speaks, without I/O.
//!
//! Layer 0. Nothing here may import from another room, name a runtime or do I/O. Rows and documents are
//! kept in arenas ([`ChangeBatch`], [`Documents`]): one buffer a batch, spans into it, no allocation a row.

mod change;
mod document;
mod enrichment;
mod failure;
mod identity;
mod lsn;
mod outcome;
mod place;
mod redactor;
mod relation;
mod revision;
mod scope;
mod secret;
mod snapshot;
mod value;

pub use change::{Cell, Change, ChangeBatch, Operation, Origin, RowSpan, RowText, RowView, TransactionInfo};
pub use document::{DocumentEntry, DocumentOperation, DocumentView, Documents};
pub use enrichment::{QueryRows, QueryStatement};
pub use failure::{Failure, FailureClass};
pub use identity::{document_id, push_document_id};
pub use lsn::{Lsn, ParseLsnError};
pub use outcome::{EmittedDocument, Extent, Outcome, Outcomes};
pub use place::{Beside, ParsePlaceError, Place};
pub use redactor::Redactor;
pub use relation::{Column, EntityName, ParseEntityError, Relation, ReplicaIdentity};
pub use revision::{Description, Encoding, PluginKind, Revision};
pub use scope::Scope;
pub use secret::Secret;
pub use snapshot::{ParseSnapshotError, Snapshot, Xid};
pub use value::ValueType;
