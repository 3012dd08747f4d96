//! Judges server, database, role and slot.

use super::{
    Code, Findings, PreflightRequest, Severity,
    facts::{Server, Slot},
};
use crate::postgres::{check_slot_name, quote};

pub(super) fn judge(server: &Server, wanted: &PreflightRequest<'_>, findings: &mut Findings) {
    session(server, findings);
    wal_level(server, findings);
    encoding(server, findings);
    rights(server, findings);
    names(wanted, findings);
    let ours = slot(server, wanted, findings);
    room(server, ours, findings);
    timeouts(server, findings);
}

fn session(server: &Server, findings: &mut Findings) {
    if server.standby {
        let what = "the server is a standby, where neither publication nor state can be written; connect to the \
            primary, or list all hosts with target_session_attrs=read-write";
        findings.installation(Severity::Error, Code::Standby, what, None);
    }
    let pinned = [("intervalstyle", "iso_8601"), ("bytea_output", "hex"), ("row_security", "off")];
    if pinned.iter().any(|(name, value)| server.settings.get(*name).is_some_and(|found| found != value)) {
        let what = "the session does not have the settings that it was opened with: a connection pooler is in \
            between, through which neither slot nor lock can work; give the connection string the server's own \
            host and port";
        findings.installation(Severity::Error, Code::Pooler, what, None);
    }
}

fn wal_level(server: &Server, findings: &mut Findings) {
    let level = server.settings.get("wal_level").map_or("unknown", String::as_str);
    if level != "logical" {
        let what = format!(
            "wal_level is `{level}`, and a stream of changes needs `logical`; restart the server after the change \
             (on Amazon RDS: set rds.logical_replication = 1 in the parameter group)"
        );
        let fix = "alter system set wal_level = 'logical'".to_owned();
        findings.installation(Severity::Error, Code::WalLevel, what, Some(fix));
    }
}

fn encoding(server: &Server, findings: &mut Findings) {
    match server.encoding.as_str() {
        "UTF8" => {}
        "SQL_ASCII" => {
            let what = format!(
                "database {} is in SQL_ASCII, where nothing tells which characters the bytes are: the first that \
                 are not UTF-8 would stop the stream; copy the data into a database that is in UTF8",
                server.database
            );
            let fix = format!(
                "create database {} encoding 'UTF8' template template0",
                quote::identifier(&format!("{}_utf8", server.database))
            );
            findings.installation(Severity::Error, Code::Encoding, what, Some(fix));
        }
        other => {
            let what = format!(
                "database {} is in {other}, which the server converts to UTF-8: a character that has no \
                 counterpart would stop the stream",
                server.database
            );
            findings.installation(Severity::Warning, Code::Encoding, what, None);
        }
    }
}

fn rights(server: &Server, findings: &mut Findings) {
    let role = quote::identifier(&server.role);
    if !server.may_replicate {
        let fix = match &server.replication_group {
            Some(group) => format!("grant {} to {role}", quote::identifier(group)),
            None => format!("alter role {role} replication"),
        };
        let what = format!("role {} may not replicate (on Amazon RDS: grant rds_replication)", server.role);
        findings.installation(Severity::Error, Code::ReplicationRight, what, Some(fix));
    }
    match server.state_schema {
        Some(false) => {
            let what =
                format!("role {} may not use the schema anabranch, which keeps the state", server.role);
            let fix = format!("grant usage, create on schema \"anabranch\" to {role}");
            findings.installation(Severity::Error, Code::StateSchema, what, Some(fix));
        }
        None if !server.may_create => {
            let what =
                format!("role {} may not create the schema anabranch, which keeps the state", server.role);
            let fix = format!("create schema \"anabranch\" authorization {role}");
            findings.installation(Severity::Error, Code::StateSchema, what, Some(fix));
        }
        Some(true) | None => {}
    }
}

fn names(wanted: &PreflightRequest<'_>, findings: &mut Findings) {
    if let Err(error) = check_slot_name(wanted.slot) {
        findings.installation(Severity::Error, Code::Name, error.to_string(), None);
    }
    // A longer name is cut by the server without an error.
    if !(1..=63).contains(&wanted.publication.len()) || wanted.publication.contains('\0') {
        let what = format!("`{}` cannot name a publication: 1 to 63 bytes can", wanted.publication);
        findings.installation(Severity::Error, Code::Name, what, None);
    }
}

/// Judges the slot, and gives it where it is ours.
fn slot<'a>(server: &'a Server, wanted: &PreflightRequest<'_>, findings: &mut Findings) -> Option<&'a Slot> {
    let slot = server.slot.as_ref()?;
    let foreign = if slot.plugin.is_none() {
        Some("a physical slot".to_owned())
    } else if slot.database.as_deref() != Some(&server.database) {
        Some(format!("a slot of database {}", slot.database.as_deref().unwrap_or_default()))
    } else if slot.plugin.as_deref() != Some("pgoutput") {
        Some(format!("a slot of the plugin {}", slot.plugin.as_deref().unwrap_or_default()))
    } else {
        slot.temporary.then(|| "a temporary slot of another session".to_owned())
    };
    if let Some(foreign) = foreign {
        let what = format!(
            "slot `{}` exists and is {foreign}; choose another name, or drop it if nothing needs it",
            wanted.slot
        );
        let fix = (!slot.active && !slot.temporary)
            .then(|| format!("select pg_drop_replication_slot({})", quote::literal(wanted.slot)));
        findings.installation(Severity::Error, Code::SlotForeign, what, fix);
        return None;
    }
    if slot.lost {
        let what = format!(
            "slot `{}` has lost WAL that it needs; at the start it is made anew, and every mapped table is \
             backfilled again",
            wanted.slot
        );
        findings.installation(Severity::Warning, Code::SlotLost, what, None);
    }
    Some(slot)
}

/// Room for one more slot and one more walsender, unless ours are among those that there are.
fn room(server: &Server, slot: Option<&Slot>, findings: &mut Findings) {
    let mut full = |setting: &str, used: u32, code: Code, what: &str| {
        let Some(limit) = server.number(setting).filter(|limit| *limit <= i64::from(used)) else { return };
        let what = format!(
            "all {limit} {what} of the server are taken, and one more is needed; free one, or raise {setting} and \
             restart the server"
        );
        let fix = format!("alter system set {setting} = {}", i64::from(used) + 4);
        findings.installation(Severity::Error, code, what, Some(fix));
    };
    if slot.is_none() {
        full(
            "max_replication_slots",
            server.slots,
            Code::SlotsFull,
            "replication slots (max_replication_slots)",
        );
    }
    if !slot.is_some_and(|slot| slot.active) {
        full("max_wal_senders", server.wal_senders, Code::WalSendersFull, "walsenders (max_wal_senders)");
    }
}

/// Limits that are not meant for a session that lasts.
fn timeouts(server: &Server, findings: &mut Findings) {
    let mut warn = |what: String, fix: &str| {
        let fix = Some(fix.to_owned());
        findings.installation(Severity::Warning, Code::ServerSetting, what, fix);
    };
    match server.number("wal_sender_timeout") {
        Some(0) => warn(
            "wal_sender_timeout is 0: the server keeps a stream whose other end is gone, and nobody else can take \
             the slot over"
                .to_owned(),
            "alter system set wal_sender_timeout = '60s'; select pg_reload_conf()",
        ),
        Some(short @ 1..=4999) => warn(
            format!("wal_sender_timeout is {short} ms: a short stall of the network ends the stream"),
            "alter system set wal_sender_timeout = '60s'; select pg_reload_conf()",
        ),
        _ => {}
    }
    if let Some(seconds) = server.number("idle_replication_slot_timeout").filter(|seconds| *seconds > 0) {
        warn(
            format!(
                "idle_replication_slot_timeout is {seconds} s: when Anabranch is stopped for longer, the server \
                 invalidates the slot, and every mapped table has to be backfilled again"
            ),
            "alter system set idle_replication_slot_timeout = 0; select pg_reload_conf()",
        );
    }
    if let Some(millis) = server.number("transaction_timeout").filter(|millis| *millis > 0) {
        let fix = format!("alter role {} set transaction_timeout = 0", quote::identifier(&server.role));
        warn(
            format!(
                "transaction_timeout is {millis} ms: reads of a backfill that take longer end the session"
            ),
            &fix,
        );
    }
}
