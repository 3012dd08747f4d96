//! Takes secrets out of what others say.

use std::{fmt, sync::Arc};

use super::Failure;

/// The shortest text that is taken for a secret: shorter ones stand in ordinary words, too.
const SECRET: usize = 8;

/// Takes the values of a plugin's settings out of what it says: it was given them, and may repeat them. Shows none of
/// them by itself.
///
/// The address of a server (`https://search.example.com:9200`) is no secret, and errors have to say it; of a URL with
/// more in it, all of it and its parts are.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Redactor(Arc<[String]>);

impl Redactor {
    /// For these values.
    #[must_use]
    pub fn new<'a>(values: impl IntoIterator<Item = &'a String>) -> Self {
        let mut secrets: Vec<String> = values.into_iter().flat_map(|value| forms(value)).collect();
        secrets.retain(|secret| secret.len() >= SECRET);
        // A value that is part of another one must not spoil it.
        secrets.sort_by(|one, other| other.len().cmp(&one.len()).then_with(|| one.cmp(other)));
        secrets.dedup();
        Self(secrets.into())
    }

    /// The text without them.
    #[must_use]
    pub fn clean(&self, text: String) -> String {
        self.0.iter().fold(text, |text, secret| {
            if text.contains(secret.as_str()) { text.replace(secret.as_str(), "***") } else { text }
        })
    }

    /// The failure without them.
    #[must_use]
    pub fn clean_failure(&self, failure: Failure) -> Failure {
        Failure { code: self.clean(failure.code), message: self.clean(failure.message), ..failure }
    }
}

impl fmt::Debug for Redactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secrets]")
    }
}

/// A value as it may be repeated: as it is, as Rust and JSON quote it, and in the parts that a URL has.
fn forms(value: &str) -> Vec<String> {
    let Some((user, rest)) = parts_of_url(value) else {
        return vec![value.to_owned(), value.escape_debug().to_string()];
    };
    let mut forms = vec![user.to_owned()];
    forms.extend(user.split_once(':').map(|(_, password)| password.to_owned()));
    if !user.is_empty() || !rest.trim_matches('/').is_empty() {
        forms.push(value.to_owned());
        forms.extend(rest.split(['?', '#']).map(str::to_owned));
        forms.extend(rest.split(['?', '#', '&', '=']).map(str::to_owned));
    }
    forms
}

/// What stands before the `@` of a URL, and behind its host and port; none for other texts.
fn parts_of_url(value: &str) -> Option<(&str, &str)> {
    let rest = value.strip_prefix("https://").or_else(|| value.strip_prefix("http://"))?;
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, rest) = rest.split_at(end);
    Some((authority.rsplit_once('@').map_or("", |(user, _)| user), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cleaned(values: &[&str], text: &str) -> String {
        let values: Vec<String> = values.iter().map(|value| (*value).to_owned()).collect();
        Redactor::new(&values).clean(text.to_owned())
    }

    #[test]
    fn c096_what_a_plugin_repeats_of_its_settings_is_taken_out() {
        let values = ["token-1234", "token-1234-longer", "en"];
        assert_eq!(cleaned(&values, "en: token-1234-longer, token-1234"), "en: ***, ***");
        assert_eq!(
            cleaned(&["marker\"4711"], r#"{"key":"marker\"4711"} marker"4711"#),
            r#"{"key":"***"} ***"#
        );
        let redactor = Redactor::new(&["marker-4711".to_owned()]);
        assert_eq!(format!("{redactor:?}"), "[secrets]");
    }

    #[test]
    fn c096_an_address_may_be_told_and_what_else_is_in_a_url_may_not() {
        let text = "POST http://search:9200/_bulk: refused";
        assert_eq!(cleaned(&["http://search:9200"], text), text);
        assert_eq!(cleaned(&["http://search:9200/"], text), text);
        let url = "https://user:marker-pass@search:9200/hooks/marker-path?key=marker-key";
        let text = "POST https://search:9200/hooks/marker-path failed for marker-pass: key=marker-key, marker-key; user:marker-pass";
        assert_eq!(cleaned(&[url], text), "POST https://search:9200*** failed for ***: ***, ***; ***");
        assert_eq!(cleaned(&[url], &format!("no {url}")), "no ***");
    }
}
