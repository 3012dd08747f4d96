//! Which installation is meant, for commands that need no more than its database.

use crate::{
    config::{self, LogFormat, LogLevel},
    model::Secret,
    postgres::ConnectSettings,
};

use super::{Context, UsageError};

#[derive(Clone, Debug, clap::Args)]
pub(super) struct SourceArguments {
    /// The source's connection string; the config file is not read then.
    #[arg(long, env = "ANABRANCH_URL", hide_env_values = true, value_name = "URL", value_parser = secret)]
    url: Option<Secret>,
    /// The installation's slot, in place of the config's.
    #[arg(long, value_name = "SLOT")]
    slot: Option<String>,
}

#[expect(clippy::unnecessary_wraps, reason = "the shape that clap wants")]
fn secret(text: &str) -> Result<Secret, std::convert::Infallible> {
    Ok(Secret::new(text))
}

impl SourceArguments {
    /// Whether a connection string is given, so that no config file is needed.
    pub(super) fn is_given(&self) -> bool {
        self.url.is_some()
    }

    /// How to connect, and the installation's name. Logging is started.
    pub(super) fn resolve(&self, context: &Context) -> anyhow::Result<(ConnectSettings, String)> {
        let (connect, slot) = match &self.url {
            Some(url) => {
                context.start_logs(LogFormat::Text, LogLevel::Info);
                let connect =
                    config::connection(url).map_err(|error| UsageError(format!("--url: {error}")))?;
                (connect, config::DEFAULT_SLOT.to_owned())
            }
            None => {
                let config = context.config()?;
                (config.source.connect, config.source.slot)
            }
        };
        Ok((connect, self.slot.clone().unwrap_or(slot)))
    }
}
