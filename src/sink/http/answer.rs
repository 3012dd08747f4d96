//! What a receiver's answer means.

use std::time::{Duration, SystemTime};

use reqwest::{
    StatusCode,
    header::{HeaderMap, RETRY_AFTER},
};
use serde_json::Value;

use crate::model::FailureClass;

/// The most characters of a receiver's own words that a failure quotes.
const EXCERPT: usize = 200;

/// A final answer to one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Taken, but for these: position in the request, and the receiver's reason.
    Taken(Vec<(usize, String)>),
    /// The receiver blames what is in it.
    Refused(crate::model::Failure),
}

/// What can be done about a status that is not 2xx (RFC 9110, section 15; RFC 6585).
///
/// Statuses that speak of this content are poison: the request is split until the culprit is alone. Those
/// that speak of who asks, where, or how would be the same for any content: fatal.
pub(super) fn class(status: StatusCode) -> FailureClass {
    match status.as_u16() {
        408 | 425 | 429 | 500..=599 => FailureClass::Retry,
        401..=407 | 410 | 411 | 415 | 417 | 421 | 426 | 428 | 431 | 451 => FailureClass::Fatal,
        400..=499 => FailureClass::Poison,
        // Redirects are not followed: the documents would go where the config does not say.
        _ => FailureClass::Fatal,
    }
}

/// What is wrong and what to do, for a status that is not 2xx.
pub(super) fn describe(status: StatusCode, excerpt: &str) -> String {
    let advice = match status.as_u16() {
        300..=399 => "redirects are not followed; set `url` to the final address",
        401 | 403 | 407 => {
            "the receiver does not accept the credentials; look at `headers`, `secrets` and `url`"
        }
        404 | 405 | 410 => "there is no such receiver; look at `url`",
        413 => "the body is too large for the receiver; lower `max_bytes`, or raise its limit",
        415 => "the receiver does not take this kind of body; look at `gzip`",
        408 | 425 | 429 | 500..=599 => "it may pass",
        _ => "the receiver refuses this content",
    };
    let said = if excerpt.is_empty() { String::new() } else { format!(": \"{excerpt}\"") };
    format!("answered {status}{said}; {advice}")
}

/// The beginning of what the receiver wrote, on one line. Secrets must be out of it already: half of one
/// would no longer be known as such.
pub(super) fn excerpt(clean: &str) -> String {
    let text = clean.trim();
    let mut line: String = text.chars().take(EXCERPT).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.chars().nth(EXCERPT).is_some() {
        line.push('…');
    }
    line
}

/// The wait that the receiver asks for: seconds or an HTTP date (RFC 9110, section 10.2.3).
pub(super) fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = httpdate::parse_http_date(text).ok()?;
    Some(date.duration_since(now).unwrap_or_default())
}

/// Reads the optional results in the body of a 2xx: `{"rejected":[{"index":0,"message":"…"}]}`. Anything
/// without a member `rejected` says that all was taken. The reasons are as the receiver wrote them.
///
/// # Errors
/// There is such a member, but it does not say which documents.
pub(super) fn results(body: &[u8], documents: usize) -> Result<Vec<(usize, String)>, String> {
    let Ok(Value::Object(answer)) = serde_json::from_slice(body) else { return Ok(Vec::new()) };
    let list = match answer.get("rejected") {
        None | Some(Value::Null | Value::Bool(false)) => return Ok(Vec::new()),
        Some(Value::Number(count)) if count.as_u64() == Some(0) => return Ok(Vec::new()),
        Some(Value::Array(list)) => list,
        Some(_) => {
            return Err("`rejected` in its answer must be a list of {\"index\", \"message\"}".to_owned());
        }
    };
    let mut rejected = Vec::with_capacity(list.len());
    for item in list {
        let index = item.get("index").and_then(Value::as_u64).and_then(|index| usize::try_from(index).ok());
        let Some(index) = index.filter(|index| *index < documents) else {
            return Err(format!(
                "`rejected` in its answer needs an `index` from 0 to {}",
                documents.saturating_sub(1)
            ));
        };
        let message = item.get("message").and_then(Value::as_str).unwrap_or("rejected by the receiver");
        rejected.push((index, message.to_owned()));
    }
    rejected.sort_by_key(|(index, _)| *index);
    rejected.dedup_by_key(|(index, _)| *index);
    Ok(rejected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_classified() {
        use FailureClass::{Fatal, Poison, Retry};
        let class = |code| class(StatusCode::from_u16(code).unwrap());
        for code in [408, 425, 429, 500, 502, 503, 504, 507, 599] {
            assert_eq!(class(code), Retry, "{code}");
        }
        for code in [301, 302, 307, 308, 401, 403, 404, 405, 410, 415] {
            assert_eq!(class(code), Fatal, "{code}");
        }
        for code in [400, 409, 413, 422, 499] {
            assert_eq!(class(code), Poison, "{code}");
        }
    }

    #[test]
    fn c076_retry_after_is_seconds_or_a_date() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        let read = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, text.parse().unwrap());
            retry_after(&headers, now)
        };
        assert_eq!(read("5"), Some(Duration::from_secs(5)));
        assert_eq!(read("Sun, 06 Nov 1994 08:50:07 GMT"), Some(Duration::from_secs(30)));
        assert_eq!(read("Sun, 06 Nov 1994 08:49:07 GMT"), Some(Duration::ZERO), "past");
        for nonsense in ["soon", "-5", "1.5", ""] {
            assert_eq!(read(nonsense), None, "{nonsense}");
        }
    }

    #[test]
    fn results_are_optional() {
        for all_taken in
            ["", "ok", "[]", "{}", "{\"rejected\":[]}", "{\"rejected\":0}", "{\"rejected\":null}", "\u{0}"]
        {
            assert_eq!(results(all_taken.as_bytes(), 3), Ok(Vec::new()), "{all_taken}");
        }
        let some =
            br#"{"rejected":[{"index":2},{"index":0,"message":"no\nname"},{"index":2,"message":"again"}]}"#;
        let expected = vec![(0, "no\nname".to_owned()), (2, "rejected by the receiver".to_owned())];
        assert_eq!(results(some, 3), Ok(expected));
        for lie in [
            "{\"rejected\":[{\"index\":3}]}",
            "{\"rejected\":[1]}",
            "{\"rejected\":2}",
            "{\"rejected\":[{\"index\":-1}]}",
        ] {
            assert!(results(lie.as_bytes(), 3).is_err(), "{lie}");
        }
    }

    #[test]
    fn words_of_a_receiver_stay_on_a_line() {
        assert_eq!(excerpt(" a\r\n\x1b[31mb "), "a   [31mb");
        assert_eq!(excerpt(&"é".repeat(500)).chars().count(), EXCERPT + 1);
    }
}
