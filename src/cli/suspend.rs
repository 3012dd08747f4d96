//! `suspend` and `resume`: nobody streams in between, whoever starts a host.

use std::time::Duration;

use serde::Serialize;

use crate::control::Suspended;

use super::{Context, Exit, limit, source::SourceArguments, with_control};

#[derive(Debug, clap::Args)]
pub(super) struct SuspendArguments {
    #[command(flatten)]
    source: SourceArguments,
    /// Keep slot and publication: nothing is missed and nothing built again, but the server keeps all WAL.
    #[arg(long)]
    keep_slot: bool,
    /// Why, for those who look at the status.
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// How long the hosts may take to end their work; exit code 3 when they take longer.
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = limit)]
    timeout: Duration,
}

#[derive(Debug, clap::Args)]
pub(super) struct ResumeArguments {
    #[command(flatten)]
    source: SourceArguments,
    /// Empty the destinations before they are built again, where the sinks can.
    #[arg(long)]
    purge: bool,
}

/// The JSON shape of `suspend`.
#[derive(Debug, Serialize)]
struct SuspendShape {
    installation: String,
    /// Whether it was not suspended before.
    new: bool,
    /// Whether a host of this name has ever run in this database.
    known: bool,
    /// Whether nobody streams any more, and what is not kept is gone.
    settled: bool,
    keep_slot: bool,
    reason: Option<String>,
    since: String,
    /// Who leads still, where it is not settled.
    leader: Option<String>,
}

pub(super) fn suspend(context: &Context, arguments: &SuspendArguments) -> anyhow::Result<Exit> {
    let shape = with_control(context, &arguments.source, async |control| {
        let (reason, limit) = (arguments.reason.as_deref(), arguments.timeout);
        let Suspended { new, known, suspension, leader } =
            control.suspend(arguments.keep_slot, reason, limit).await?;
        Ok(SuspendShape {
            installation: control.installation().to_owned(),
            new,
            known,
            settled: suspension.settled,
            keep_slot: suspension.keep_slot,
            reason: suspension.reason,
            since: suspension.since,
            leader: leader.map(|leader| leader.to_string()),
        })
    })?;
    let exit = if shape.settled { Exit::Done } else { Exit::NotReady };
    context.output.result(&shape, suspended)?;
    Ok(exit)
}

fn suspended(shape: &SuspendShape) -> String {
    let SuspendShape { installation, new, known, settled, keep_slot, since, leader, .. } = shape;
    if !settled {
        let who = match leader {
            Some(leader) => format!("{leader} leads and has not ended its work"),
            None => "the server has not let go of the slot".to_owned(),
        };
        return format!(
            "{installation} is to be suspended, but {who}; no other host will stream; suspend again to wait"
        );
    }
    if !known {
        return format!(
            "no host of {installation} has run in this database: if that is its name, hosts that start will idle until \
             `anabranch resume`; otherwise check --url and --slot, and resume it"
        );
    }
    let begun = if *new { "is suspended".to_owned() } else { format!("has been suspended since {since}") };
    if *keep_slot {
        format!(
            "{installation} {begun}: nobody streams; the slot is kept, and the server keeps all WAL from now on (watch \
             retained_bytes in `anabranch status`); `anabranch resume` goes on where it was"
        )
    } else {
        format!(
            "{installation} {begun}: nobody streams; the slot and the publication that Anabranch made are dropped; \
             `anabranch resume` makes them anew and builds every mapped table again"
        )
    }
}

/// The JSON shape of `resume`.
#[derive(Debug, Serialize)]
struct ResumeShape {
    installation: String,
    /// Whether it was suspended.
    resumed: bool,
    purge: bool,
}

pub(super) fn resume(context: &Context, arguments: &ResumeArguments) -> anyhow::Result<Exit> {
    let shape = with_control(context, &arguments.source, async |control| {
        let resumed = control.end_suspension(arguments.purge).await?;
        let installation = control.installation().to_owned();
        Ok(ResumeShape { installation, resumed, purge: arguments.purge && resumed })
    })?;
    context.output.result(&shape, |shape| {
        let installation = &shape.installation;
        if shape.resumed {
            format!("{installation} is resumed: a host that runs takes it up at once")
        } else {
            format!("{installation} is not suspended")
        }
    })?;
    Ok(Exit::Done)
}
