//! What an answer of the bulk API says of each document.

use std::{borrow::Cow, time::Duration};

use anabranch_sdk::{Failure, http::Response, sink::Delivered};
use serde::Deserialize;

use crate::bulk::Request;

/// What becomes of a request as a whole.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    /// One result for each document of the request.
    Each(Vec<Delivered>),
    /// It is too large for the server: send fewer documents at once.
    TooLarge,
    /// None is known to be accepted.
    Failed(Failure),
}

#[derive(Deserialize)]
struct Bulk<'a> {
    #[serde(borrow)]
    items: Vec<Item<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Item<'a> {
    Index(#[serde(borrow)] Outcome<'a>),
    Delete(#[serde(borrow)] Outcome<'a>),
}

#[derive(Deserialize)]
struct Outcome<'a> {
    status: u16,
    #[serde(borrow, default)]
    error: Option<Problem<'a>>,
}

#[derive(Deserialize)]
struct Problem<'a> {
    #[serde(borrow, rename = "type", default)]
    kind: Cow<'a, str>,
    #[serde(borrow, default)]
    reason: Cow<'a, str>,
    #[serde(borrow, default)]
    caused_by: Option<Cause<'a>>,
}

#[derive(Deserialize)]
struct Cause<'a> {
    #[serde(borrow, default)]
    reason: Cow<'a, str>,
}

/// Reads the answer to a request.
#[must_use]
pub fn read(request: &Request, answer: &Response) -> Answer {
    if answer.status != 200 {
        return match failed(answer) {
            Some(failure) => Answer::Failed(failure),
            None => Answer::TooLarge,
        };
    }
    let bulk: Bulk<'_> = match serde_json::from_slice(&answer.body) {
        Ok(bulk) => bulk,
        Err(error) => {
            let message = format!(
                "the server's answer is none of the bulk API ({error}): is `url` that of OpenSearch or Elasticsearch?"
            );
            return Answer::Failed(Failure::retry("bulk-answer", message));
        }
    };
    if bulk.items.len() != request.documents.len() {
        let message = format!(
            "the server answered {} documents with {} results; nothing is known of any",
            request.documents.len(),
            bulk.items.len()
        );
        return Answer::Failed(Failure::retry("bulk-answer", message));
    }
    Answer::Each(bulk.items.iter().map(result).collect())
}

/// What became of one document.
fn result(item: &Item<'_>) -> Delivered {
    let (outcome, is_delete) = match item {
        Item::Index(outcome) => (outcome, false),
        Item::Delete(outcome) => (outcome, true),
    };
    let (kind, reason) = match &outcome.error {
        Some(problem) => {
            let cause =
                problem.caused_by.as_ref().map(|cause| format!(": {}", cause.reason)).unwrap_or_default();
            (&*problem.kind, format!("{}{cause}", problem.reason))
        }
        None => ("", String::new()),
    };
    let status = outcome.status;
    let said = if reason.is_empty() { format!("status {status}") } else { reason };
    match status {
        200..=299 => Ok(()),
        // There is nothing to be removed, be it that there is no index.
        404 if is_delete => Ok(()),
        // A full disk: it goes away by itself once there is room.
        _ if kind == "cluster_block_exception" => Err(Failure::retry("index-blocked", said)),
        409 => Err(Failure::retry("version-conflict", said)),
        429 | 500..=599 => Err(Failure::retry(format!("http-{status}"), said)),
        401 | 403 => Err(Failure::fatal(
            format!("http-{status}"),
            format!(
                "{said}; the user that `[plugins.opensearch-sink.grants]` names needs the right to write to the index"
            ),
        )),
        404 => Err(Failure::fatal(
            "index-missing",
            format!("{said}; does somebody else remove the index or its alias?"),
        )),
        _ => Err(Failure::poison(if kind.is_empty() { "refused" } else { kind }, said)),
    }
}

/// Why a request failed as a whole; none where it is too large.
#[must_use]
pub fn failed(answer: &Response) -> Option<Failure> {
    let status = answer.status;
    let code = format!("http-{status}");
    let said = reason(answer);
    Some(match status {
        413 => return None,
        408 | 429 | 500..=599 => {
            let failure = Failure::retry(code, format!("the server answered {status}{said}"));
            match answer.header("retry-after").and_then(|text| text.trim().parse().ok()) {
                Some(seconds) => failure.after(Duration::from_secs(seconds)),
                None => failure,
            }
        }
        401 | 403 => Failure::fatal(
            code,
            format!(
                "the server answered {status}{said}: put the credentials that it wants into \
                 `[plugins.opensearch-sink.grants]`, as a header of its origin"
            ),
        ),
        300..=399 => Failure::fatal(
            code,
            format!(
                "the server answered {status}, and redirects are not followed: set `url` to where it leads"
            ),
        ),
        404 | 405 => Failure::fatal(
            code,
            format!("the server answered {status}{said}: is `url` that of OpenSearch or Elasticsearch?"),
        ),
        _ => Failure::poison(code, format!("the server answered {status}{said}")),
    })
}

/// What the server says of an error, cut to a line.
fn reason(answer: &Response) -> String {
    #[derive(Deserialize)]
    struct Told<'a> {
        #[serde(borrow)]
        error: Problem<'a>,
    }
    match serde_json::from_slice::<Told<'_>>(&answer.body) {
        Ok(told) => format!(": {}", told.error.reason.chars().take(500).collect::<String>()),
        Err(_) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use anabranch_sdk::FailureClass;

    use super::*;

    fn read_with(status: u16, headers: &[(&str, &str)], body: &str, documents: usize) -> Answer {
        let request = Request { body: Vec::new(), documents: (0..documents).collect() };
        let headers =
            headers.iter().map(|(name, value)| ((*name).to_owned(), value.as_bytes().to_vec())).collect();
        read(&request, &Response { status, headers, body: body.as_bytes().to_vec() })
    }

    /// Items as the reference of the bulk API shows them.
    #[test]
    fn each_item_has_its_class() {
        let body = r#"{"took":30,"errors":true,"items":[
            {"index":{"_index":"a","_id":"1","_version":1,"result":"created","status":201}},
            {"index":{"_index":"a","_id":"1","result":"updated","status":200}},
            {"delete":{"_index":"a","_id":"2","result":"not_found","status":404}},
            {"delete":{"_index":"b","_id":"2","status":404,"error":{"type":"index_not_found_exception","reason":"no such index [b]"}}},
            {"index":{"_index":"a","_id":"3","status":429,"error":{"type":"es_rejected_execution_exception","reason":"rejected execution of primary operation"}}},
            {"index":{"_index":"a","_id":"3","status":503,"error":{"type":"unavailable_shards_exception","reason":"primary shard is not active"}}},
            {"index":{"_index":"a","_id":"4","status":400,"error":{"type":"mapper_parsing_exception","reason":"failed to parse field [price] of type [long]","caused_by":{"type":"illegal_argument_exception","reason":"For input string: \"x\""}}}},
            {"index":{"_index":"c","_id":"5","status":404,"error":{"type":"index_not_found_exception","reason":"no such index [c]"}}},
            {"index":{"_index":"a","_id":"6","status":403,"error":{"type":"security_exception","reason":"no permissions for [indices:data/write/index]"}}},
            {"index":{"_index":"a","_id":"7","status":409,"error":{"type":"version_conflict_engine_exception","reason":"[7]: version conflict"}}},
            {"index":{"_index":"a","_id":"8","status":403,"error":{"type":"cluster_block_exception","reason":"index [a] blocked by: [FORBIDDEN/12/index read-only / allow delete (api)];"}}}
        ]}"#;
        let Answer::Each(results) = read_with(200, &[], body, 11) else { panic!("no results") };
        let seen: Vec<_> = results
            .iter()
            .map(|result| result.as_ref().err().map(|failure| (failure.class, failure.code.as_str())))
            .collect();
        use FailureClass::{Fatal, Poison, Retry};
        assert_eq!(
            seen,
            [
                None,
                None,
                None,
                None,
                Some((Retry, "http-429")),
                Some((Retry, "http-503")),
                Some((Poison, "mapper_parsing_exception")),
                Some((Fatal, "index-missing")),
                Some((Fatal, "http-403")),
                Some((Retry, "version-conflict")),
                Some((Retry, "index-blocked")),
            ]
        );
        let parsing = results[6].as_ref().unwrap_err();
        assert!(
            parsing.message.contains("[price]") && parsing.message.contains("For input string"),
            "{parsing}"
        );
    }

    #[test]
    fn failures_of_the_whole_have_their_class() {
        let failure = |status, headers: &[(&str, &str)], body| match read_with(status, headers, body, 1) {
            Answer::Failed(failure) => failure,
            other => panic!("{other:?}"),
        };
        let busy = failure(429, &[("Retry-After", "7")], "");
        assert_eq!((busy.class, busy.retry_after), (FailureClass::Retry, Some(Duration::from_secs(7))));
        assert_eq!(failure(503, &[], "").class, FailureClass::Retry);
        let denied = failure(
            401,
            &[],
            r#"{"error":{"type":"security_exception","reason":"missing credentials"},"status":401}"#,
        );
        assert_eq!(denied.class, FailureClass::Fatal);
        assert!(
            denied.message.contains("missing credentials") && denied.message.contains("grants"),
            "{denied}"
        );
        assert_eq!(failure(301, &[], "").class, FailureClass::Fatal);
        assert_eq!(failure(404, &[], "<html>").class, FailureClass::Fatal);
        assert_eq!(failure(400, &[], "").class, FailureClass::Poison);
        assert_eq!(read_with(413, &[], "", 2), Answer::TooLarge);
        for nonsense in ["", "{}", "<html>", r#"{"items":[]}"#, r#"{"items":[{"update":{"status":200}}]}"#] {
            assert_eq!(failure(200, &[], nonsense).class, FailureClass::Retry, "{nonsense}");
        }
    }
}
