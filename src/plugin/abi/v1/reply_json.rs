//! Replies in JSON (`wit/v1/payload-json.md`).

use std::{borrow::Cow, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::value::RawValue;

use super::reply::{Answers, Problem, ReplyProblem, guest_failure};
use crate::{
    model::{EmittedDocument, FailureClass},
    plugin::json,
};

/// Reads a whole reply.
pub(super) fn read(reply: &[u8], answers: &mut Answers<'_>) -> Result<(), ReplyProblem> {
    answers.begin(reply.len())?;
    let text = simdutf8::compat::from_utf8(reply)
        .map_err(|error| ReplyProblem::at(error.valid_up_to(), "not UTF-8"))?;
    let mut state = State { text, answers, problem: None };
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let read = deserializer.deserialize_seq(&mut state);
    if let Some(problem) = state.problem.take() {
        return Err(problem);
    }
    read.and_then(|()| deserializer.end())
        .map_err(|error| ReplyProblem::at(offset(text, &error), error.to_string()))
}

/// Where in a text an error lies.
pub(super) fn offset(text: &str, error: &serde_json::Error) -> usize {
    let lines = text.split_inclusive('\n').take(error.line().saturating_sub(1));
    lines.map(str::len).sum::<usize>() + error.column().saturating_sub(1)
}

struct State<'t, 'a, 'b> {
    text: &'t str,
    answers: &'a mut Answers<'b>,
    /// Set when reading stops for another reason than the text's form.
    problem: Option<ReplyProblem>,
}

impl<'t> State<'t, '_, '_> {
    fn stop<E: Error>(&mut self, result: Result<(), ReplyProblem>) -> Result<(), E> {
        result.map_err(|problem| {
            self.problem = Some(problem);
            E::custom("stopped")
        })
    }

    /// Where a part of the text lies in it.
    fn span(&self, part: &str) -> (u32, u32) {
        let start = part.as_ptr() as usize - self.text.as_ptr() as usize;
        (u32::try_from(start).unwrap_or(u32::MAX), u32::try_from(part.len()).unwrap_or(u32::MAX))
    }

    #[expect(clippy::ptr_arg, reason = "a borrowed name lies in the text, an unescaped one does not")]
    fn name(&mut self, name: &Cow<'t, str>) -> (u32, u32) {
        match name {
            Cow::Borrowed(part) => self.span(part),
            Cow::Owned(unescaped) => self.answers.extra(unescaped.as_bytes()),
        }
    }

    fn document(&mut self, first: usize, document: &RawDocument<'t>) -> Option<Problem> {
        let body = document.document.get();
        // Its form was checked while it was read; its depth was not.
        if memchr::memchr2_iter(b'[', b'{', body.as_bytes()).nth(json::DEPTH).is_some()
            && let Err(error) = json::validate(body)
        {
            return Some(Problem::Json(error));
        }
        if document.id.as_deref().is_some_and(str::is_empty) {
            return Some(Problem::EmptyId);
        }
        let emitted = EmittedDocument {
            id: document.id.as_ref().map(|id| self.name(id)),
            destination: document.destination.as_ref().map(|destination| self.name(destination)),
            body: self.span(body),
        };
        self.answers.document(first, emitted)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawDocument<'t> {
    #[serde(borrow, default, deserialize_with = "name")]
    id: Option<Cow<'t, str>>,
    #[serde(borrow, default, deserialize_with = "name")]
    destination: Option<Cow<'t, str>>,
    #[serde(borrow)]
    document: &'t RawValue,
}

/// A string that is borrowed where it has no escapes, which `Option<Cow>` by itself never is.
fn name<'t, D: Deserializer<'t>>(deserializer: D) -> Result<Option<Cow<'t, str>>, D::Error> {
    #[derive(Deserialize)]
    struct Name<'t>(#[serde(borrow)] Cow<'t, str>);
    Ok(Option::<Name<'t>>::deserialize(deserializer)?.map(|Name(name)| name))
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum RawClass {
    Retry,
    Poison,
    Fatal,
}

impl From<RawClass> for FailureClass {
    fn from(class: RawClass) -> Self {
        match class {
            RawClass::Retry => Self::Retry,
            RawClass::Poison => Self::Poison,
            RawClass::Fatal => Self::Fatal,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFailure<'t> {
    class: RawClass,
    #[serde(borrow)]
    code: Cow<'t, str>,
    #[serde(borrow)]
    message: Cow<'t, str>,
}

/// The list of outcomes.
impl<'t> Visitor<'t> for &mut State<'t, '_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of outcomes")
    }

    fn visit_seq<A: SeqAccess<'t>>(self, mut items: A) -> Result<(), A::Error> {
        while items.next_element_seed(OneOutcome(&mut *self))?.is_some() {}
        Ok(())
    }
}

struct OneOutcome<'s, 't, 'a, 'b>(&'s mut State<'t, 'a, 'b>);

impl<'t> DeserializeSeed<'t> for OneOutcome<'_, 't, '_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'t>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'t> Visitor<'t> for OneOutcome<'_, 't, '_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"delete\", \"skip\", {\"emit\":[…]} or {\"failed\":{…}}")
    }

    fn visit_str<E: Error>(self, word: &str) -> Result<(), E> {
        let given = match word {
            "delete" => self.0.answers.delete(),
            "skip" => self.0.answers.skip(),
            _ => return Err(E::invalid_value(serde::de::Unexpected::Str(word), &self)),
        };
        self.0.stop(given)
    }

    fn visit_map<A: MapAccess<'t>>(self, mut entries: A) -> Result<(), A::Error> {
        let key: Option<Cow<'t, str>> = entries.next_key()?;
        match key.as_deref() {
            Some("emit") => {
                let first = self.0.answers.begin_emit();
                let problem = entries.next_value_seed(Documents { state: &mut *self.0, first })?;
                let reply = self.0.text.as_bytes();
                let ended = self.0.answers.end_emit(first, reply, problem);
                self.0.stop(ended)?;
            }
            Some("failed") => {
                let RawFailure { class, code, message } = entries.next_value()?;
                let failed = self.0.answers.failed(guest_failure(class.into(), &code, &message));
                self.0.stop(failed)?;
            }
            Some(other) => return Err(A::Error::unknown_field(other, &["emit", "failed"])),
            None => return Err(A::Error::custom("an empty object is no outcome")),
        }
        match entries.next_key::<IgnoredAny>()? {
            None => Ok(()),
            Some(_) => Err(A::Error::custom("an outcome has one key")),
        }
    }
}

/// The documents of one emit.
struct Documents<'s, 't, 'a, 'b> {
    state: &'s mut State<'t, 'a, 'b>,
    first: usize,
}

impl<'t> DeserializeSeed<'t> for Documents<'_, 't, '_, '_> {
    type Value = Option<Problem>;

    fn deserialize<D: Deserializer<'t>>(self, deserializer: D) -> Result<Option<Problem>, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'t> Visitor<'t> for Documents<'_, 't, '_, '_> {
    type Value = Option<Problem>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of documents")
    }

    fn visit_seq<A: SeqAccess<'t>>(self, mut items: A) -> Result<Option<Problem>, A::Error> {
        let mut problem = None;
        while let Some(document) = items.next_element::<RawDocument<'t>>()? {
            if problem.is_none() {
                problem = self.state.document(self.first, &document);
            }
        }
        Ok(problem)
    }
}
