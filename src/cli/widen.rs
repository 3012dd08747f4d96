//! `widen` and `restore`: the publication without its column lists, and with them again.

use serde::Serialize;

use super::{Context, Exit, source::SourceArguments, with_control};

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    source: SourceArguments,
}

/// The JSON shape of `widen`.
#[derive(Debug, Serialize)]
struct WidenShape {
    installation: String,
    publication: String,
    /// The tables that had a column list.
    tables: Vec<String>,
}

/// The JSON shape of `restore`.
#[derive(Debug, Serialize)]
struct RestoreShape {
    installation: String,
    publication: String,
    /// Whether its column lists had been taken off.
    restored: bool,
}

pub(super) fn widen(context: &Context, arguments: &Arguments) -> anyhow::Result<Exit> {
    let shape = with_control(context, &arguments.source, async |control| {
        let widened = control.widen().await?;
        Ok(WidenShape {
            installation: control.installation().to_owned(),
            publication: widened.publication,
            tables: widened.tables.iter().map(ToString::to_string).collect(),
        })
    })?;
    context.output.result(&shape, |WidenShape { publication, tables, .. }| {
        let had = match tables.as_slice() {
            [] => "had no column list".to_owned(),
            tables => format!("has all columns of {} now", tables.join(", ")),
        };
        format!("publication {publication} {had}, and gets none until `anabranch restore`")
    })?;
    Ok(Exit::Done)
}

pub(super) fn restore(context: &Context, arguments: &Arguments) -> anyhow::Result<Exit> {
    let shape = with_control(context, &arguments.source, async |control| {
        let restored = control.restore().await?;
        Ok(RestoreShape {
            installation: control.installation().to_owned(),
            publication: restored.publication,
            restored: restored.widened,
        })
    })?;
    context.output.result(&shape, |RestoreShape { publication, restored, .. }| match restored {
        true => format!("the host that leads puts on {publication} the column lists that its config asks for, within seconds"),
        false => format!("publication {publication} is not widened"),
    })?;
    Ok(Exit::Done)
}
