//! Postgres's protocol, as much as replication and snapshot reads need: log-in and the simple query protocol.
//! Queries of all other rooms go through `tokio-postgres` ([`Client`](super::Client)).

use std::collections::HashMap;

use bytes::BytesMut;
use postgres_protocol::{
    authentication::{
        md5_hash,
        sasl::{self, ScramSha256},
    },
    message::frontend,
};
use tokio::io::{AsyncWriteExt as _, ReadHalf, WriteHalf};

use super::{
    connect::pinned_options,
    error::{Error, ErrorKind},
    frames::Frames,
    settings::{ChannelBinding, ConnectSettings},
    transport::Transport,
};

/// One row of a simple query, as text.
pub(super) type TextRow = Vec<Option<String>>;

/// A session in the simple query protocol.
pub(super) struct Wire {
    pub(super) read: ReadHalf<Transport>,
    pub(super) write: WriteHalf<Transport>,
    pub(super) frames: Frames,
    pub(super) parameters: HashMap<String, String>,
    pub(super) process_id: i32,
    pub(super) secret_key: i32,
}

impl Wire {
    /// Logs in; `replication` makes it a walsender of the database.
    pub(super) async fn start(
        transport: Transport,
        settings: &ConnectSettings,
        application_name: &str,
        replication: bool,
    ) -> Result<Self, Error> {
        let binding = transport.binding.clone();
        let (read, write) = tokio::io::split(transport);
        let mut wire = Self {
            read,
            write,
            frames: Frames::new(),
            parameters: HashMap::new(),
            process_id: 0,
            secret_key: 0,
        };
        let options = pinned_options(settings);
        let mut parameters = vec![
            ("user", settings.user.as_str()),
            ("database", settings.dbname.as_str()),
            ("client_encoding", "UTF8"),
            ("application_name", application_name),
            ("options", options.as_str()),
        ];
        if replication {
            parameters.push(("replication", "database"));
        }
        let mut out = BytesMut::new();
        frontend::startup_message(parameters, &mut out).map_err(encode)?;
        wire.send(&out).await?;
        wire.authenticate(settings, binding).await?;
        wire.wait_ready().await?;
        Ok(wire)
    }

    pub(super) async fn send(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.write.write_all(bytes).await?;
        self.write.flush().await?;
        Ok(())
    }

    /// The next frame, whatever it is. Cancel-safe.
    pub(super) async fn receive(&mut self) -> Result<(u8, &[u8]), Error> {
        while !self.frames.ready()? {
            self.frames.fill(&mut self.read).await?;
        }
        self.frames.next()?.ok_or_else(|| Error::protocol("a frame was lost"))
    }

    /// The next frame, where it has no more than so many bytes; none where it has more, of which little was read.
    /// Cancel-safe.
    pub(super) async fn receive_within(&mut self, most: usize) -> Result<Option<(u8, &[u8])>, Error> {
        loop {
            if self.frames.announced()?.is_some_and(|length| length > most) {
                return Ok(None);
            }
            if self.frames.ready()? {
                return self.receive().await.map(Some);
            }
            self.frames.fill(&mut self.read).await?;
        }
    }

    async fn authenticate(
        &mut self,
        settings: &ConnectSettings,
        binding: Option<Vec<u8>>,
    ) -> Result<(), Error> {
        let required = settings.channel_binding == ChannelBinding::Require;
        let binding = binding.filter(|_| settings.channel_binding != ChannelBinding::Disable);
        let (code, data) = self.authentication().await?;
        if code != SASL && required {
            return Err(Error::authentication("the server does not use channel binding, which is required"));
        }
        let password = || {
            let missing = || Error::authentication("the server asks for a password and none is given");
            settings.password.as_ref().map(|password| password.expose().as_bytes()).ok_or_else(missing)
        };
        match code {
            OK => return Ok(()),
            CLEARTEXT => self.send_password(password()?).await?,
            MD5 => {
                let salt = data.first_chunk().ok_or_else(|| Error::protocol("the MD5 salt is too short"))?;
                let hash = md5_hash(settings.user.as_bytes(), password()?, *salt);
                self.send_password(hash.as_bytes()).await?;
            }
            SASL => self.authenticate_scram(&data, password()?, binding, required).await?,
            other => {
                return Err(Error::authentication(format!(
                    "the server asks for a method that is not supported (number {other}); use scram-sha-256"
                )));
            }
        }
        match self.authentication().await? {
            (OK, _) => Ok(()),
            (other, _) => Err(Error::protocol(format!("unexpected authentication request {other}"))),
        }
    }

    async fn authenticate_scram(
        &mut self,
        mechanisms: &[u8],
        password: &[u8],
        binding: Option<Vec<u8>>,
        required: bool,
    ) -> Result<(), Error> {
        let offers = |name: &str| mechanisms.split(|byte| *byte == 0).any(|offer| offer == name.as_bytes());
        let (mechanism, binding) = match binding {
            Some(data) if offers(sasl::SCRAM_SHA_256_PLUS) => {
                (sasl::SCRAM_SHA_256_PLUS, sasl::ChannelBinding::tls_server_end_point(data))
            }
            _ if required => {
                return Err(Error::authentication(
                    "channel binding is required, and is possible only under TLS",
                ));
            }
            // "We could have, but you did not offer": lets the server notice that its offer was cut.
            Some(_) => (sasl::SCRAM_SHA_256, sasl::ChannelBinding::unrequested()),
            None => (sasl::SCRAM_SHA_256, sasl::ChannelBinding::unsupported()),
        };
        if !offers(mechanism) {
            return Err(Error::authentication(
                "the server offers no SASL method but ones that are not supported",
            ));
        }
        let mut scram = ScramSha256::new(password, binding);
        let mut out = BytesMut::new();
        frontend::sasl_initial_response(mechanism, scram.message(), &mut out).map_err(encode)?;
        self.send(&out).await?;
        let (code, data) = self.authentication().await?;
        if code != SASL_CONTINUE {
            return Err(Error::protocol("SCRAM was not continued"));
        }
        scram.update(&data).map_err(Error::authentication)?;
        out.clear();
        frontend::sasl_response(scram.message(), &mut out).map_err(encode)?;
        self.send(&out).await?;
        let (code, data) = self.authentication().await?;
        if code != SASL_FINAL {
            return Err(Error::protocol("SCRAM was not finished"));
        }
        scram.finish(&data).map_err(Error::authentication)
    }

    async fn send_password(&mut self, password: &[u8]) -> Result<(), Error> {
        let mut out = BytesMut::new();
        frontend::password_message(password, &mut out).map_err(encode)?;
        self.send(&out).await
    }

    async fn authentication(&mut self) -> Result<(i32, Vec<u8>), Error> {
        loop {
            match self.receive().await? {
                (b'R', body) => {
                    let (code, data) = body
                        .split_first_chunk()
                        .ok_or_else(|| Error::protocol("an authentication request is cut"))?;
                    return Ok((i32::from_be_bytes(*code), data.to_vec()));
                }
                (b'E', body) => return Err(Error::from_fields(body)),
                (b'N' | b'v', _) => {}
                (tag, _) => return Err(unexpected(tag, "log-in")),
            }
        }
    }

    async fn wait_ready(&mut self) -> Result<(), Error> {
        loop {
            match self.receive().await? {
                (b'Z', _) => return Ok(()),
                (b'E', body) => return Err(Error::from_fields(body)),
                (b'K', body) => {
                    let word = |at: usize| {
                        let bytes = body.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
                        bytes
                            .map(i32::from_be_bytes)
                            .ok_or_else(|| Error::protocol("the backend's key is cut"))
                    };
                    let (process_id, secret_key) = (word(0)?, word(4)?);
                    (self.process_id, self.secret_key) = (process_id, secret_key);
                }
                (b'S', body) => {
                    let mut parts = body.split(|byte| *byte == 0).map(String::from_utf8_lossy);
                    let (name, value) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
                    let (name, value) = (name.into_owned(), value.into_owned());
                    self.parameters.insert(name, value);
                }
                (b'N', _) => {}
                (tag, _) => return Err(unexpected(tag, "log-in")),
            }
        }
    }

    /// Sends statements without waiting for what they answer.
    pub(super) async fn send_query(&mut self, sql: &str) -> Result<(), Error> {
        let mut out = BytesMut::new();
        frontend::query(sql, &mut out).map_err(encode)?;
        self.send(&out).await
    }

    /// Runs statements and gives the rows of each. After an error the session is ready for the next.
    /// Not cancel-safe: a session whose query was cancelled has to be dropped.
    pub(super) async fn query(&mut self, sql: &str) -> Result<Vec<Vec<TextRow>>, Error> {
        self.send_query(sql).await?;
        let (mut results, mut rows, mut failure) = (Vec::new(), Vec::new(), None);
        loop {
            match self.receive().await? {
                (b'D', body) => rows.push(text_row(body)?),
                (b'C' | b'I', _) => results.push(std::mem::take(&mut rows)),
                (b'E', body) => failure = Some(Error::from_fields(body)),
                (b'Z', _) => return failure.map_or(Ok(results), Err),
                (b'T' | b'N' | b'S' | b'A', _) => {}
                (tag, _) => return Err(unexpected(tag, "query")),
            }
        }
    }

    /// Has the server parse one statement, which is not carried out.
    pub(super) async fn parse(&mut self, sql: &str) -> Result<(), Error> {
        let mut out = BytesMut::new();
        frontend::parse("", sql, [], &mut out).map_err(encode)?;
        frontend::sync(&mut out);
        self.send(&out).await?;
        let mut failure = None;
        loop {
            match self.receive().await? {
                (b'1' | b'N' | b'S', _) => {}
                (b'E', body) => failure = Some(Error::from_fields(body)),
                (b'Z', _) => return failure.map_or(Ok(()), Err),
                (tag, _) => return Err(unexpected(tag, "parse")),
            }
        }
    }

    /// The cells of a one-row, first-result query.
    pub(super) async fn query_row(&mut self, sql: &str) -> Result<TextRow, Error> {
        let first = self.query(sql).await?.into_iter().flatten().next();
        first.ok_or_else(|| Error::protocol("a query that has one row came back without"))
    }

    /// What is needed to cancel this session's statement from another connection.
    pub(super) fn cancel_key(&self) -> (i32, i32) {
        (self.process_id, self.secret_key)
    }

    /// Says good-bye, as far as the peer still listens.
    pub(super) async fn terminate(mut self) {
        let mut out = BytesMut::new();
        frontend::terminate(&mut out);
        if self.send(&out).await.is_ok() {
            let _ = self.write.shutdown().await;
        }
    }
}

const OK: i32 = 0;
const CLEARTEXT: i32 = 3;
const MD5: i32 = 5;
const SASL: i32 = 10;
const SASL_CONTINUE: i32 = 11;
const SASL_FINAL: i32 = 12;

pub(super) fn encode(error: std::io::Error) -> Error {
    Error::new(ErrorKind::Settings, format!("a message to the server cannot be written: {error}"))
}

pub(super) fn unexpected(tag: u8, during: &str) -> Error {
    Error::protocol(format!(
        "the server sent a message of type `{}` in the middle of a {during}",
        tag.escape_ascii()
    ))
}

/// The cells of a DataRow message; None is NULL.
pub(super) fn cells(body: &[u8]) -> impl Iterator<Item = Result<Option<&[u8]>, Error>> {
    let cut = || Error::protocol("a row is cut");
    let count = body.first_chunk().map_or(0, |count| u16::from_be_bytes(*count));
    let mut rest = body.get(2..).unwrap_or_default();
    (0..count).map(move |_| {
        let (length, after) = rest.split_first_chunk().ok_or_else(cut)?;
        let Ok(length) = usize::try_from(i32::from_be_bytes(*length)) else {
            rest = after;
            return Ok(None);
        };
        let (cell, after) = after.split_at_checked(length).ok_or_else(cut)?;
        rest = after;
        Ok(Some(cell))
    })
}

fn text_row(body: &[u8]) -> Result<TextRow, Error> {
    let text = |cell: &[u8]| {
        let text = std::str::from_utf8(cell).map(str::to_owned);
        text.map_err(|_| Error::protocol("the server sent text that is not UTF-8"))
    };
    cells(body).map(|cell| cell?.map(text).transpose()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cut_rows_are_errors() {
        assert_eq!(text_row(b"\0\x02\0\0\0\x01a\xff\xff\xff\xff").unwrap(), [Some("a".to_owned()), None]);
        assert!(text_row(b"\0\x01\0\0\0\x05ab").is_err());
        assert!(text_row(b"\0\x02\0\0\0\x01a").is_err());
    }
}
