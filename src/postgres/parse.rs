//! The three spellings of a connection: URL, `key=value`, environment. Bytes to names and values only;
//! meaning is given by `settings`.

use std::collections::BTreeMap;

use percent_encoding::percent_decode_str;

use super::error::Error;

/// Parameter names and values as given; the last of a name counts.
#[derive(Default)]
pub(super) struct Parameters(BTreeMap<String, String>);

impl Parameters {
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    fn set(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.0.insert(name.into(), value.into());
    }
}

pub(super) fn read(text: &str) -> Result<Parameters, Error> {
    let text = text.trim();
    for scheme in ["postgres://", "postgresql://"] {
        if let Some(rest) = text.strip_prefix(scheme) {
            return read_url(rest);
        }
    }
    match text.split_once("://") {
        Some((scheme, _)) if scheme.chars().all(|c| c.is_ascii_alphanumeric() || c == '+') => {
            Err(Error::settings(format!("`{scheme}://` is not a Postgres URL; it begins with `postgres://`")))
        }
        _ => read_pairs(text),
    }
}

const ENVIRONMENT: &[(&str, &str)] = &[
    ("PGHOST", "host"),
    ("PGHOSTADDR", "hostaddr"),
    ("PGPORT", "port"),
    ("PGUSER", "user"),
    ("PGPASSWORD", "password"),
    ("PGDATABASE", "dbname"),
    ("PGOPTIONS", "options"),
    ("PGAPPNAME", "application_name"),
    ("PGCONNECT_TIMEOUT", "connect_timeout"),
    ("PGSSLMODE", "sslmode"),
    ("PGSSLNEGOTIATION", "sslnegotiation"),
    ("PGSSLROOTCERT", "sslrootcert"),
    ("PGSSLCERT", "sslcert"),
    ("PGSSLKEY", "sslkey"),
    ("PGCHANNELBINDING", "channel_binding"),
    ("PGTARGETSESSIONATTRS", "target_session_attrs"),
];

/// Fills what the text left out. A host in the text makes the environment's port its own only when the
/// text has none, as in libpq.
pub(super) fn add_environment(p: &mut Parameters, environment: &dyn Fn(&str) -> Option<String>) {
    let named = p.get("host").is_some() || p.get("hostaddr").is_some();
    for (variable, name) in ENVIRONMENT {
        let elsewhere = named && matches!(*name, "host" | "hostaddr");
        if p.get(name).is_none()
            && !elsewhere
            && let Some(value) = environment(variable).filter(|value| !value.is_empty())
        {
            p.set(*name, value);
        }
    }
}

fn decode(text: &str, what: &str) -> Result<String, Error> {
    let bytes = text.as_bytes();
    for (at, _) in text.match_indices('%') {
        let hex = bytes.get(at + 1..at + 3).is_some_and(|pair| pair.iter().all(u8::is_ascii_hexdigit));
        if !hex {
            return Err(Error::settings(format!(
                "the {what} of the connection URL has a `%` without two hex digits after it; write a `%` as `%25`"
            )));
        }
    }
    let text = percent_decode_str(text).decode_utf8();
    let text = text.map_err(|_| Error::settings(format!("the {what} of the connection URL is not UTF-8")))?;
    if text.contains('\0') {
        return Err(Error::settings(format!("the {what} of the connection URL has a zero byte")));
    }
    Ok(text.into_owned())
}

/// `[user[:password]@][host[:port][,…]][/database][?name=value&…]`
fn read_url(rest: &str) -> Result<Parameters, Error> {
    let mut p = Parameters::default();
    let (before, query) = rest.split_once('?').map_or((rest, None), |(a, b)| (a, Some(b)));
    let (authority, path) = before.split_once('/').map_or((before, None), |(a, b)| (a, Some(b)));
    // Caught here, before a piece of a password is taken for a host, a port or a parameter.
    if !authority.contains('@') && rest[authority.len()..].contains('@') {
        return Err(Error::settings(
            "the connection URL has a `/` or `?` before its `@`; write them in user and password as `%2F` and \
             `%3F`, and an `@` elsewhere as `%40`",
        ));
    }
    let (credentials, hosts) = authority.rsplit_once('@').map_or((None, authority), |(a, b)| (Some(a), b));
    if let Some(credentials) = credentials {
        let (user, password) = credentials.split_once(':').map_or((credentials, None), |(a, b)| (a, Some(b)));
        p.set("user", decode(user, "user")?);
        if let Some(password) = password {
            p.set("password", decode(password, "password")?);
        }
    }
    read_hosts(hosts, &mut p)?;
    if let Some(path) = path.filter(|path| !path.is_empty()) {
        p.set("dbname", decode(path, "database")?);
    }
    for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair
            .split_once('=')
            .ok_or_else(|| Error::settings("a parameter after `?` of the connection URL has no `=`"))?;
        let name = decode(name, "query")?;
        let value = decode(value, "query")?;
        // JDBC's spelling, which libpq takes too.
        if name == "ssl" && value == "true" { p.set("sslmode", "require") } else { p.set(name, value) }
    }
    Ok(p)
}

fn read_hosts(text: &str, p: &mut Parameters) -> Result<(), Error> {
    if text.is_empty() {
        return Ok(());
    }
    let (mut names, mut ports) = (Vec::new(), Vec::new());
    for part in text.split(',') {
        let (name, port) = if let Some(bracketed) = part.strip_prefix('[') {
            let (inside, after) = bracketed
                .split_once(']')
                .ok_or_else(|| Error::settings("an IPv6 host of the connection URL has no closing `]`"))?;
            match after.strip_prefix(':') {
                Some(port) => (inside, port),
                None if after.is_empty() => (inside, ""),
                None => return Err(Error::settings("only `:port` may follow the `]` of an IPv6 host")),
            }
        } else {
            match part.split_once(':') {
                Some((_, port)) if port.contains(':') => {
                    return Err(Error::settings(
                        "a host of the connection URL has several `:`; write an IPv6 address in brackets, as `[::1]`",
                    ));
                }
                Some((name, port)) => (name, port),
                None => (part, ""),
            }
        };
        names.push(decode(name, "host")?);
        ports.push(port);
    }
    p.set("host", names.join(","));
    if ports.iter().any(|port| !port.is_empty()) {
        p.set("port", ports.join(","));
    }
    Ok(())
}

/// `name = value` pairs; values may be in single quotes, `\` takes the next character as it is.
fn read_pairs(text: &str) -> Result<Parameters, Error> {
    let mut p = Parameters::default();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let (name, after) = rest.split_once('=').ok_or_else(|| {
            Error::settings("the connection string is neither a `postgres://` URL nor `name=value` pairs")
        })?;
        let name = name.trim();
        if name.is_empty() || name.contains(char::is_whitespace) {
            return Err(Error::settings("a `name=value` pair of the connection string has no proper name"));
        }
        let (value, after) = read_value(after.trim_start(), name)?;
        p.set(name, value);
        rest = after.trim_start();
    }
    Ok(p)
}

fn read_value<'a>(text: &'a str, name: &str) -> Result<(String, &'a str), Error> {
    let quoted = text.starts_with('\'');
    let body = if quoted { &text[1..] } else { text };
    let mut value = String::new();
    let mut chars = body.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => value.extend(chars.next().map(|(_, next)| next)),
            '\'' if quoted => return Ok((value, &body[at + 1..])),
            c if !quoted && c.is_whitespace() => return Ok((value, &body[at..])),
            c => value.push(c),
        }
    }
    if quoted {
        return Err(Error::settings(format!("the value of `{name}` has no closing quote")));
    }
    Ok((value, ""))
}

#[cfg(test)]
mod tests {
    use crate::postgres::settings::{Address, ConnectSettings, Roots, TargetSession, TlsMode};

    const PASSWORD: &str = "p@:/?#%25 'é\\";

    fn parse(text: &str) -> ConnectSettings {
        ConnectSettings::parse(text, |name| (name == "USER").then(|| "me".to_owned())).unwrap()
    }

    fn refuse(text: &str) -> String {
        ConnectSettings::parse(text, |_| Some("x".to_owned()).filter(|_| false)).unwrap_err().to_string()
    }

    fn names(settings: &ConnectSettings) -> Vec<String> {
        settings.hosts.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn c095_the_password_survives_every_spelling() {
        let url =
            parse("postgres://u:p%40%3A%2F%3F%23%2525%20%27%C3%A9%5C@[::1]:5433/shop?options=-c%20a%3Db");
        let pairs =
            parse(r"host=::1 port=5433 user=u dbname=shop options='-c a=b' password='p@:/?#%25 \'é\\'");
        assert_eq!(url, pairs);
        assert_eq!(url.password.as_ref().unwrap().expose(), PASSWORD);
        assert_eq!(names(&url), ["[::1]:5433"]);
        assert_eq!(url.options.as_deref(), Some("-c a=b"));
        let environment = |name: &str| {
            let value = match name {
                "PGHOST" => "::1",
                "PGPORT" => "5433",
                "PGUSER" => "u",
                "PGPASSWORD" => PASSWORD,
                "PGDATABASE" => "shop",
                "PGOPTIONS" => "-c a=b",
                _ => return None,
            };
            Some(value.to_owned())
        };
        assert_eq!(ConnectSettings::parse("", environment).unwrap(), url);
        assert_eq!(ConnectSettings::parse("postgres://", environment).unwrap(), url);
    }

    #[test]
    fn c096_neither_debug_nor_errors_show_the_password() {
        let shown = format!(
            "{:?} {}",
            parse("postgres://u:hunter2@h/d"),
            parse("postgres://u:hunter2@h/d").describe()
        );
        assert!(!shown.contains("hunter2"), "{shown}");
        for text in [
            "postgres://u:hunter2%@h/d",
            "postgres://u:hunter2@h:x/d",
            "postgres://u:hunter2@h/d?ssl_mode=require",
            "mysql://u:hunter2@h/d",
            "user=u password=hunter2 bogus=1",
            "u:hunter2@h",
            "postgres://u:hunter2/x@h/d",
            "postgres://u:hunter2?x=y@h/d",
            "postgres://u:hunter2",
            "user=u password='hunter2",
        ] {
            let error = refuse(text);
            assert!(!error.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn hosts_of_every_kind() {
        assert_eq!(names(&parse("postgres://a:1,b,[::1]:3/d")), ["a:1", "b:5432", "[::1]:3"]);
        assert_eq!(names(&parse("postgres://a,b:7/d")), ["a:5432", "b:7"]);
        assert_eq!(names(&parse("host=a,b port=6")), ["a:6", "b:6"]);
        assert_eq!(names(&parse("postgres://%2Fvar%2Frun/d")), ["/var/run/.s.PGSQL.5432"]);
        assert_eq!(names(&parse("postgres:///d?host=/tmp/x&port=99")), ["/tmp/x/.s.PGSQL.99"]);
        let address = parse("host=db.example hostaddr=10.0.0.1").hosts.remove(0).address;
        assert_eq!(
            address,
            Address::Tcp { name: "db.example".to_owned(), hostaddr: Some("10.0.0.1".parse().unwrap()) }
        );
        assert!(refuse("user=u host=a,b,c port=1,2").contains("ports do not match"));
        assert!(refuse("postgres://u@::1/d").contains("[::1]"));
        assert!(refuse("postgres://u@[::1/d").contains("closing"));
    }

    #[test]
    fn c095_the_text_wins_over_the_environment() {
        let environment =
            |name: &str| Some(format!("env-{name}")).filter(|_| name.starts_with("PGU") || name == "PGHOST");
        let settings = ConnectSettings::parse("postgres://me@here/d", environment).unwrap();
        assert_eq!((settings.user(), names(&settings)), ("me", vec!["here:5432".to_owned()]));
        let settings = ConnectSettings::parse("postgres:///d", environment).unwrap();
        assert_eq!((settings.user(), names(&settings)), ("env-PGUSER", vec!["env-PGHOST:5432".to_owned()]));
    }

    #[test]
    fn c094_modes_mean_what_libpq_means() {
        let mode = |text: &str| (parse(text).tls, parse(text).roots);
        assert_eq!(mode("host=h"), (TlsMode::Prefer, Roots::Unset));
        assert_eq!(mode("host=h sslmode=require"), (TlsMode::Require, Roots::Unset));
        assert_eq!(
            mode("host=h sslmode=require sslrootcert=/ca"),
            (TlsMode::VerifyCa, Roots::File("/ca".into()))
        );
        assert_eq!(mode("host=h sslrootcert=system"), (TlsMode::VerifyFull, Roots::System));
        assert_eq!(mode("postgres://h/d?ssl=true").0, TlsMode::Require);
        assert!(refuse("user=u sslmode=allow").contains("prefer"));
        assert!(refuse("user=u sslmode=VERIFY").contains("verify-full"));
        assert!(refuse("user=u sslmode=require sslrootcert=system").contains("verify-full"));
        assert!(refuse("user=u sslcert=/c").contains("sslkey"));
        assert!(refuse("user=u sslnegotiation=direct").contains("require"));
    }

    #[test]
    fn what_is_not_known_is_refused_by_name() {
        assert_eq!(
            refuse("user=u ssl_mode=require"),
            "connection parameter `ssl_mode` is not supported; did you mean `sslmode`?"
        );
        assert!(refuse("user=u passfile=/x").contains("`passfile`"));
        assert!(refuse("postgres://u@h/d?replication=database").contains("`replication`"));
        assert!(refuse("user=u connect_timeout=soon").contains("connect_timeout"));
        assert_eq!(parse("host=h target_session_attrs=primary").target, TargetSession::ReadWrite);
        assert_eq!(parse("host=h connect_timeout=0").connect_timeout, None);
        assert!(refuse("host=h").contains("PGUSER"));
    }
}
