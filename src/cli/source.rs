//! Which installation is meant, for commands that need no more than its database.

use crate::{
    config::{self, Config, LogFormat, LogLevel},
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
        let source = self.source(context)?;
        Ok((source.connect, source.slot))
    }

    /// All that is known of the source. Logging is started.
    pub(super) fn source(&self, context: &Context) -> anyhow::Result<Source> {
        let source = match &self.url {
            Some(url) => {
                context.start_logs(LogFormat::Text, LogLevel::Info);
                let connect =
                    config::connection(url).map_err(|error| UsageError(format!("--url: {error}")))?;
                let name = config::DEFAULT_SLOT.to_owned();
                Source { connect, slot: name.clone(), publication: name, config: None }
            }
            None => {
                let config = context.config()?;
                Source {
                    connect: config.source.connect.clone(),
                    slot: config.source.slot.clone(),
                    publication: config.source.publication.clone(),
                    config: Some(config),
                }
            }
        };
        let slot = self.slot.clone().unwrap_or_else(|| source.slot.clone());
        Ok(Source { slot, ..source })
    }
}

/// A source that a command was given.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) connect: ConnectSettings,
    /// The installation's name.
    pub(super) slot: String,
    /// Its publication, which need not exist.
    pub(super) publication: String,
    /// The config file, where that named the source.
    pub(super) config: Option<Config>,
}
