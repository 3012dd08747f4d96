//! A limit on answers of the server: a link of which one half is left never answers.

use std::time::Duration;

use super::error::TermError;

/// How long a statement that reads or writes a few rows may take.
pub(super) const ANSWER_LIMIT: Duration = Duration::from_secs(20);

/// What is asked, or the news that there is no answer within `limit`.
///
/// # Errors
/// [`TermError::NoAnswer`], and those of what is asked.
pub(super) async fn answered<T, E: Into<TermError>>(
    what: &'static str,
    limit: Duration,
    asked: impl Future<Output = Result<T, E>>,
) -> Result<T, TermError> {
    match tokio::time::timeout(limit, asked).await {
        Ok(answer) => answer.map_err(Into::into),
        Err(_) => Err(TermError::NoAnswer { what, limit }),
    }
}
