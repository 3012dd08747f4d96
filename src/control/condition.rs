//! Conditions that choose rows: checked before they are stored, so that a slip is told to who made it and not
//! to the leader's log.

use crate::{
    model::EntityName,
    postgres::{self, Client},
};

use super::ControlError;

/// Whether a text is one condition over the columns of a table, as the leader puts it between parentheses.
pub(super) async fn check(client: &Client, entity: &EntityName, text: &str) -> Result<(), ControlError> {
    if let Err(problem) = is_one_expression(text) {
        return Err(ControlError::Usage(format!("the condition cannot be used: {problem}")));
    }
    let failed = postgres::Error::from;
    let name = client
        .query_one("select format('%I.%I', $1::text, $2::text)", &[&entity.schema, &entity.table])
        .await
        .map_err(failed)?;
    let name: &str = name.get(0);
    let limits = "begin read only; set local statement_timeout = '5s'; set local lock_timeout = '5s'";
    client.batch_execute(limits).await.map_err(failed)?;
    // Prepared, so that it can be one statement only; explained, so that nothing is read.
    let explained = client.query(&format!("explain select from {name} where ({text})"), &[]).await;
    let ended = client.batch_execute("rollback").await.map_err(failed);
    if let Err(error) = explained {
        let theirs = error.as_db_error().is_some();
        let error = failed(error);
        if theirs && !error.is_retryable() {
            let said = format!("the condition cannot be used on {entity}: {error}");
            return Err(ControlError::Usage(said));
        }
        return Err(error.into());
    }
    Ok(ended?)
}

/// Whether a text stays inside the parentheses that are put around it.
fn is_one_expression(text: &str) -> Result<(), &'static str> {
    let bytes = text.as_bytes();
    let at = |index: usize| bytes.get(index).copied().unwrap_or(0);
    let (mut open, mut index) = (Vec::new(), 0);
    while index < bytes.len() {
        match at(index) {
            b'\'' | b'"' => index = end_of_quoted(bytes, index).ok_or("a quote is not closed")?,
            b'$' if index == 0 || !is_word(at(index - 1)) => {
                index = end_of_dollar_quoted(text, index).ok_or("a `$` that quotes nothing")?;
            }
            b'-' if at(index + 1) == b'-' => return Err("it has a comment"),
            b'/' if at(index + 1) == b'*' => return Err("it has a comment"),
            b';' => return Err("it has a `;`: one condition is meant, no statement"),
            b'(' => open.push(b')'),
            b'[' => open.push(b']'),
            byte @ (b')' | b']') if open.pop() != Some(byte) => {
                return Err("a parenthesis closes what was not opened");
            }
            _ => {}
        }
        index += 1;
    }
    match open.is_empty() {
        _ if text.trim().is_empty() => Err("it is empty"),
        true => Ok(()),
        false => Err("a parenthesis is not closed"),
    }
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'$' || !byte.is_ascii()
}

/// Where the quote that opens at `start` closes; a doubled one opens the next at once.
fn end_of_quoted(bytes: &[u8], start: usize) -> Option<usize> {
    let quote = bytes[start];
    let escapes = quote == b'\'' && start > 0 && matches!(bytes[start - 1], b'e' | b'E');
    let mut index = start + 1;
    while index < bytes.len() {
        match bytes[index] {
            b'\\' if escapes => index += 1,
            byte if byte == quote => return Some(index),
            _ => {}
        }
        index += 1;
    }
    None
}

/// The same for `$tag$…$tag$`.
fn end_of_dollar_quoted(text: &str, start: usize) -> Option<usize> {
    let rest = &text[start + 1..];
    let tag = rest.find(|c: char| !(c.is_alphanumeric() || c == '_'))?;
    if !rest[tag..].starts_with('$') || rest.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let delimiter = &text[start..start + tag + 2];
    let body = start + delimiter.len();
    text[body..].find(delimiter).map(|at| body + at + delimiter.len() - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_are_whole() {
        for good in [
            "id > 7",
            "(a or b) and c[1] = 2",
            "name = 'it''s; -- ) (' and \"we\"\"ird)\" = 1",
            "name = e'a\\') or (' or b",
            "name = $t$ ) ; $ $t$ and x = $$'$$",
            "a - -1 > 0 and b / 2 = 1",
            "a$b = 1",
        ] {
            assert_eq!(is_one_expression(good), Ok(()), "{good}");
        }
    }

    #[test]
    fn what_would_leave_its_parentheses_is_refused() {
        for bad in [
            "",
            "  ",
            "true) or (true",
            "true); drop table t; --",
            "id > 7 -- all",
            "id /* x */ > 7",
            "name = 'open",
            "(a",
            "a]",
            "(a]",
            "id = $1",
            "name = $t$ open $u$",
            // Without the `e`, a backslash escapes nothing: the quote closes there.
            "name = 'a\\') or (true",
        ] {
            assert!(is_one_expression(bad).is_err(), "{bad}");
        }
    }
}
