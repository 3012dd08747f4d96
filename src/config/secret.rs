//! References to what does not belong into a file: `${ENV}` and `file:path`.
//!
//! The only room that sees the text of a secret. A [`ReferenceError`] names the variable or the file that a
//! reference names, never what was found there.

use std::{
    ffi::OsString,
    fs,
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use crate::model::Secret;

/// A file larger than this holds no password, key or certificate.
const MAX_FILE: u64 = 1 << 20;

/// Why a reference could not be followed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReferenceError {
    #[error("the environment variable `{0}` is not set")]
    Missing(String),
    #[error("the environment variable `{0}` is not UTF-8")]
    VariableNotText(String),
    #[error("`${{` without `}}`; write `$$` for a dollar sign")]
    Unclosed,
    #[error("`${{{0}}}` does not name an environment variable; write `$$` for a dollar sign")]
    NoName(String),
    #[error("the file {path} cannot be read: {source}", path = path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("the file {path} is larger than 1 MiB; a secret is not", path = .0.display())]
    TooLarge(PathBuf),
    #[error("the file {path} is not UTF-8", path = .0.display())]
    FileNotText(PathBuf),
}

/// Follows references: into an environment, and into files relative to a directory.
pub(super) struct References<'a> {
    pub(super) environment: &'a dyn Fn(&str) -> Option<OsString>,
    pub(super) base: &'a Path,
}

impl References<'_> {
    /// Replaces each `${NAME}` by the variable's value and `$$` by `$`.
    pub(super) fn plain(&self, typed: &str) -> Result<String, ReferenceError> {
        let mut text = String::with_capacity(typed.len());
        let mut rest = typed;
        while let Some(at) = rest.find('$') {
            text.push_str(&rest[..at]);
            let after = &rest[at + 1..];
            if let Some(escaped) = after.strip_prefix('$') {
                text.push('$');
                rest = escaped;
            } else if let Some(name) = after.strip_prefix('{') {
                let (name, remaining) = name.split_once('}').ok_or(ReferenceError::Unclosed)?;
                text.push_str(&self.variable(name)?);
                rest = remaining;
            } else {
                text.push('$');
                rest = after;
            }
        }
        text.push_str(rest);
        Ok(text)
    }

    /// Like [`References::plain`]; a text that begins with `file:` stands for that file's content, without
    /// the line end that editors put after it.
    pub(super) fn secret(&self, typed: &str) -> Result<Secret, ReferenceError> {
        let Some(path) = typed.strip_prefix("file:") else {
            return self.plain(typed).map(Secret::new);
        };
        let path = self.base.join(self.plain(path)?);
        let unreadable = |source| ReferenceError::Unreadable { path: path.clone(), source };
        let mut bytes = Vec::new();
        // What a file says of its own length may be wrong: devices and pipes say 0.
        let limited = fs::File::open(&path).and_then(|file| file.take(MAX_FILE + 1).read_to_end(&mut bytes));
        limited.map_err(unreadable)?;
        if bytes.len() as u64 > MAX_FILE {
            return Err(ReferenceError::TooLarge(path));
        }
        let text = String::from_utf8(bytes).map_err(|_| ReferenceError::FileNotText(path))?;
        let line = text.strip_suffix('\n').unwrap_or(&text);
        Ok(Secret::new(line.strip_suffix('\r').unwrap_or(line).to_owned()))
    }

    fn variable(&self, name: &str) -> Result<String, ReferenceError> {
        let starts = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        if !starts || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
            return Err(ReferenceError::NoName(name.to_owned()));
        }
        let value = (self.environment)(name).ok_or_else(|| ReferenceError::Missing(name.to_owned()))?;
        value.into_string().map_err(|_| ReferenceError::VariableNotText(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with<T>(run: impl FnOnce(&References<'_>) -> T) -> T {
        let environment = |name: &str| match name {
            "USER" => Some("ada".into()),
            "EMPTY" => Some(OsString::new()),
            "TRICKY" => Some("${USER}$$".into()),
            _ => None,
        };
        run(&References { environment: &environment, base: Path::new(".") })
    }

    #[test]
    fn variables_are_replaced_once() {
        let plain = |text: &str| with(|references| references.plain(text)).unwrap();
        assert_eq!(plain("a-${USER}-${EMPTY}b"), "a-ada-b");
        assert_eq!(plain("${TRICKY}"), "${USER}$$", "a value is not read again");
        assert_eq!(plain("pa$$word $${USER} $5 $"), "pa$word ${USER} $5 $");
        assert_eq!(plain("é${USER}é"), "éadaé");
    }

    #[test]
    fn broken_references_name_what_they_name() {
        let error = |text: &str| with(|references| references.plain(text)).unwrap_err().to_string();
        assert_eq!(error("${NOPE}"), "the environment variable `NOPE` is not set");
        assert_eq!(error("a ${USER"), "`${` without `}`; write `$$` for a dollar sign");
        assert!(error("${}").contains("`${}` does not name"), "{}", error("${}"));
        assert!(error("${A-B}").contains("`${A-B}`"));
    }

    #[test]
    fn a_file_gives_its_line() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("key"), "s3cret\r\n").unwrap();
        fs::write(folder.path().join("raw"), [0xff]).unwrap();
        let environment = |_: &str| None;
        let references = References { environment: &environment, base: folder.path() };
        assert_eq!(references.secret("file:key").unwrap().expose(), "s3cret");
        assert!(references.secret("file:nope").unwrap_err().to_string().contains("nope cannot be read"));
        assert!(references.secret("file:raw").unwrap_err().to_string().contains("not UTF-8"));
        // Without end, though it says that it has no byte.
        let endless = references.secret("file:/dev/zero").unwrap_err().to_string();
        assert!(endless.contains("larger than 1 MiB"), "{endless}");
    }
}
