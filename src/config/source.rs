//! What `[source]` means: how to connect, names that Postgres takes, and how long to wait for what.

use std::time::Duration;

use crate::{model::Secret, postgres::ConnectSettings};

use super::{
    DEFAULT_SLOT,
    error::At,
    file::SourceTable,
    resolve::{MAX_NAME, Resolver},
    section::Text,
    settings::SourceSettings,
    unit,
};

const SECOND: Duration = Duration::from_secs(1);

impl Resolver<'_> {
    pub(super) fn source(&self, table: &SourceTable) -> Option<SourceSettings> {
        let minute = 60 * SECOND;
        let status_interval =
            self.duration(table.status_interval.as_ref(), 10 * SECOND, SECOND / 10..=60 * minute);
        let silence_limit = self.duration(table.silence_limit.as_ref(), minute, SECOND..=24 * 60 * minute);
        let heartbeat_interval =
            self.duration(table.heartbeat_interval.as_ref(), 30 * SECOND, SECOND..=60 * minute);
        if heartbeat_interval >= silence_limit {
            let typed = table.silence_limit.as_ref().or(table.heartbeat_interval.as_ref());
            let message = format!(
                "silence_limit ({}) must be longer than heartbeat_interval ({}): an idle source is heard by \
                 its heartbeat",
                unit::show_duration(silence_limit),
                unit::show_duration(heartbeat_interval),
            );
            self.complain(&typed.map(|typed| typed.at.clone()).unwrap_or_default(), message);
        }
        let slot = self.slot(table.slot.as_ref());
        let publication = self.publication(table.publication.as_ref());
        let managed = table.manage_publication.as_ref().is_none_or(|typed| typed.value);
        let column_lists = table.column_lists.as_ref().is_some_and(|typed| typed.value);
        if let Some(typed) = table.column_lists.as_ref().filter(|typed| typed.value && !managed) {
            let message = "column_lists = true and manage_publication = false: a publication that is not managed keeps \
                           the column lists that its maker gives it; leave one of the two out";
            self.complain(&typed.at, message.to_owned());
        }
        Some(SourceSettings {
            connect: self.connect(table)?,
            slot,
            publication,
            manage_publication: managed,
            column_lists,
            purge_on_repair: table.purge_on_repair.as_ref().is_some_and(|typed| typed.value),
            failover_slot: table.failover_slot.as_ref().is_none_or(|typed| typed.value),
            status_interval,
            silence_limit,
            heartbeat_interval,
        })
    }

    /// The connection settings; none if they are wrong, which is told.
    fn connect(&self, table: &SourceTable) -> Option<ConnectSettings> {
        let text = match &table.url {
            Some(typed) => self.secret(typed)?,
            None => Secret::new(""),
        };
        let at = match &table.url {
            Some(typed) => typed.at.clone(),
            None => At { offset: None, key: "source".to_owned() },
        };
        self.connect_settings(&text, &at)
    }

    /// What a connection string means; none if it is wrong, which is told.
    pub(super) fn connect_settings(&self, text: &Secret, at: &At) -> Option<ConnectSettings> {
        let environment = |name: &str| (self.references.environment)(name)?.into_string().ok();
        let settings = ConnectSettings::parse(text.expose(), environment);
        settings.map_err(|error| self.complain(at, error.to_string())).ok()
    }

    fn slot(&self, typed: Option<&Text>) -> String {
        let default = DEFAULT_SLOT.to_owned();
        let Some(typed) = typed else { return default };
        let Some(name) = self.plain(typed) else { return default };
        let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        if name.len() > MAX_NAME || !name.chars().all(allowed) {
            let length = typed.value.chars().count();
            let message = format!(
                "`{}` ({length} characters) cannot name a replication slot: lower-case letters, digits and \
                 underscores, at most {MAX_NAME} characters",
                typed.value
            );
            self.complain(&typed.at, message);
        }
        name
    }

    fn publication(&self, typed: Option<&Text>) -> String {
        let default = DEFAULT_SLOT.to_owned();
        let Some(typed) = typed else { return default };
        let Some(name) = self.plain(typed) else { return default };
        if name.len() > MAX_NAME || name.contains('\0') {
            let message =
                format!("`{}` is too long for a publication: at most {MAX_NAME} bytes", typed.value);
            self.complain(&typed.at, message);
        }
        name
    }
}
