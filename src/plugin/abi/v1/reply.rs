//! Replies of guests: what both encodings share. Nothing that a guest says is taken on trust.

use std::iter::Peekable;

use crate::{
    model::{EmittedDocument, Failure, FailureClass, Outcome, Outcomes},
    plugin::{host::log::clean, json},
};

/// Bounds of one call's reply.
#[derive(Clone, Copy, Debug)]
pub(in crate::plugin) struct ReplyLimits {
    /// Bytes of the reply.
    pub(in crate::plugin) bytes: usize,
    /// Documents of one outcome.
    pub(in crate::plugin) documents: usize,
}

impl ReplyLimits {
    /// Documents of one reply. Each takes far more memory than the few bytes that it may have.
    fn all_documents(&self) -> usize {
        self.documents.saturating_mul(100)
    }
}

/// The reply as a whole is of no use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::plugin) enum ReplyProblem {
    Malformed {
        at: usize,
        problem: String,
    },
    Count {
        outcomes: usize,
    },
    /// More documents than one call may have.
    Documents {
        limit: usize,
    },
    TooLarge {
        bytes: usize,
    },
}

impl ReplyProblem {
    pub(super) fn at(at: usize, problem: impl Into<String>) -> Self {
        Self::Malformed { at, problem: problem.into() }
    }
}

/// A failure that a guest gave, fit for logs.
pub(super) fn guest_failure(class: FailureClass, code: &str, message: &str) -> Failure {
    Failure::new(class, clean(code), clean(message))
}

/// Where outcomes of replies are gathered, in the order of the changes. Some changes the host answers itself.
#[derive(Debug)]
pub(in crate::plugin) struct Answers<'a> {
    outcomes: &'a mut Outcomes,
    limits: ReplyLimits,
    /// Of the reply that is read: where its bytes begin in [`Outcomes::bytes`].
    base: u32,
    /// Of the reply that is read: bytes that are not in it, such as unescaped ids.
    extra: Vec<u8>,
    /// How many bytes the reply has.
    reply: u32,
    /// How many documents there were before it.
    documents: usize,
    /// It has more documents than it may have.
    overflows: bool,
    /// How many outcomes the reply has had.
    given: usize,
    expected: usize,
    /// The host's own answers, each with the number of sent changes that come before it.
    host: Peekable<std::vec::IntoIter<(u32, Outcome)>>,
}

fn span(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}

impl<'a> Answers<'a> {
    pub(in crate::plugin) fn new(
        outcomes: &'a mut Outcomes,
        limits: ReplyLimits,
        expected: usize,
        host: Vec<(u32, Outcome)>,
    ) -> Self {
        let (base, documents) = (span(outcomes.bytes.len()), outcomes.documents.len());
        Self {
            outcomes,
            limits,
            base,
            extra: Vec::new(),
            reply: 0,
            documents,
            overflows: false,
            given: 0,
            expected,
            host: host.into_iter().peekable(),
        }
    }

    /// Begins a reply of so many bytes.
    pub(super) fn begin(&mut self, reply: usize) -> Result<(), ReplyProblem> {
        let fits = reply <= self.limits.bytes && u32::try_from(reply + self.base as usize).is_ok();
        if !fits {
            return Err(ReplyProblem::TooLarge { bytes: reply });
        }
        self.reply = span(reply);
        Ok(())
    }

    fn outcome(&mut self, outcome: Outcome) -> Result<(), ReplyProblem> {
        if self.given == self.expected {
            self.given += 1;
            return Err(ReplyProblem::Count { outcomes: self.given });
        }
        self.host_answers();
        self.given += 1;
        self.outcomes.outcomes.push(outcome);
        Ok(())
    }

    /// Takes the host's answers to the changes before the next one that was sent.
    #[inline]
    fn host_answers(&mut self) {
        while let Some((_, outcome)) = self.host.next_if(|(before, _)| *before as usize <= self.given) {
            self.outcomes.outcomes.push(outcome);
        }
    }

    /// The guest announced this many outcomes.
    pub(super) fn announce(&mut self, outcomes: usize) -> Result<(), ReplyProblem> {
        if outcomes == self.expected { Ok(()) } else { Err(ReplyProblem::Count { outcomes }) }
    }

    pub(super) fn delete(&mut self) -> Result<(), ReplyProblem> {
        self.outcome(Outcome::Delete)
    }

    pub(super) fn skip(&mut self) -> Result<(), ReplyProblem> {
        self.outcome(Outcome::Skip)
    }

    pub(super) fn failed(&mut self, failure: Failure) -> Result<(), ReplyProblem> {
        self.outcome(Outcome::Failed(failure))
    }

    /// Begins an emit; gives the number of documents before it.
    pub(super) fn begin_emit(&mut self) -> usize {
        self.outcomes.documents.len()
    }

    /// Adds a document, by spans relative to the reply (or of [`Answers::extra`]).
    #[inline]
    pub(super) fn document(&mut self, first: usize, document: EmittedDocument) -> Option<Problem> {
        if self.outcomes.documents.len() - first >= self.limits.documents {
            return Some(Problem::TooMany(self.limits.documents));
        }
        if self.outcomes.documents.len() - self.documents >= self.limits.all_documents() {
            self.overflows = true;
            return Some(Problem::TooMany(self.limits.all_documents()));
        }
        let place = |(start, len): (u32, u32)| (start + self.base, len);
        self.outcomes.documents.push(EmittedDocument {
            id: document.id.map(place),
            destination: document.destination.map(place),
            body: place(document.body),
        });
        None
    }

    /// Keeps bytes that are not in the reply; their span is as if they followed it.
    pub(super) fn extra(&mut self, bytes: &[u8]) -> (u32, u32) {
        let start = self.reply + span(self.extra.len());
        self.extra.extend_from_slice(bytes);
        (start, span(bytes.len()))
    }

    /// Ends an emit: with a problem of its own the change fails, and no other.
    pub(super) fn end_emit(
        &mut self,
        first: usize,
        reply: &[u8],
        problem: Option<Problem>,
    ) -> Result<(), ReplyProblem> {
        if self.overflows {
            return Err(ReplyProblem::Documents { limit: self.limits.all_documents() });
        }
        let count = self.outcomes.documents.len() - first;
        let problem = problem.or_else(|| match count {
            0 => Some(Problem::NoDocuments),
            1 => None,
            _ => self.twice(first, reply).then_some(Problem::Twice),
        });
        match problem {
            None => self.outcome(Outcome::Emit { first: span(first), count: span(count) }),
            Some(problem) => {
                self.outcomes.documents.truncate(first);
                self.failed(Failure::new(FailureClass::Poison, problem.code(), problem.to_string()))
            }
        }
    }

    /// Whether two documents from `first` on have the same destination and id.
    fn twice(&self, first: usize, reply: &[u8]) -> bool {
        let documents = &self.outcomes.documents[first..];
        let text = |span: Option<(u32, u32)>| {
            span.map(|(start, len)| {
                let start = (start - self.base) as usize;
                let (bytes, start) =
                    if start < reply.len() { (reply, start) } else { (&self.extra[..], start - reply.len()) };
                bytes.get(start..start + len as usize).unwrap_or_default()
            })
        };
        let mut names: Vec<_> = documents.iter().map(|d| (text(d.destination), text(d.id))).collect();
        names.sort_unstable();
        names.windows(2).any(|pair| pair[0] == pair[1])
    }

    /// Ends the reply, whose bytes are kept.
    pub(super) fn finish(&mut self, reply: Vec<u8>) -> Result<(), ReplyProblem> {
        if self.given != self.expected {
            return Err(ReplyProblem::Count { outcomes: self.given });
        }
        self.host_answers();
        if self.outcomes.bytes.is_empty() {
            self.outcomes.bytes = reply;
        } else {
            self.outcomes.bytes.extend_from_slice(&reply);
        }
        self.outcomes.bytes.append(&mut self.extra);
        Ok(())
    }
}

/// One outcome is of no use; the others are.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Problem {
    #[error("the plugin emitted no document; answer delete (this row has none) or skip (leave it as it is)")]
    NoDocuments,
    #[error("the plugin emitted two documents with the same destination and id")]
    Twice,
    #[error(
        "the plugin emitted more than {0} documents for one change (`[plugins] max_documents`): emit fewer, or raise it"
    )]
    TooMany(usize),
    #[error("the plugin emitted a document that is not JSON, {0}")]
    Json(#[from] json::JsonError),
    #[error("the plugin emitted {0} that is not UTF-8")]
    Utf8(&'static str),
    #[error("the plugin emitted an empty id")]
    EmptyId,
}

impl Problem {
    fn code(&self) -> &'static str {
        match self {
            Self::NoDocuments => "plugin-no-documents",
            Self::Twice => "plugin-same-id",
            Self::TooMany(_) => "plugin-too-many-documents",
            Self::Json(_) => "plugin-invalid-document",
            Self::Utf8(_) => "plugin-not-utf8",
            Self::EmptyId => "plugin-empty-id",
        }
    }
}
