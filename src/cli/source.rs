//! Which installation is meant, for commands that need no more than its database.

use crate::{
    config::{self, Config, LogFormat, LogLevel},
    model::Secret,
    postgres::ConnectSettings,
};

use super::{Context, UsageError};

/// Where the source is: all that commands take which are about no installation.
#[derive(Clone, Debug)]
pub(super) struct UrlArgument {
    url: Option<Secret>,
    /// Whether it stands on the command line: what the environment says is there for all commands.
    typed: bool,
}

#[derive(Clone, Debug, clap::Args)]
pub(super) struct SourceArguments {
    #[command(flatten)]
    url: UrlArgument,
    /// The installation's slot, in place of the config's.
    #[arg(long, value_name = "SLOT")]
    slot: Option<String>,
}

/// The argument's name.
const URL: &str = "url";

#[expect(clippy::unnecessary_wraps, reason = "the shape that clap wants")]
fn secret(text: &str) -> Result<Secret, std::convert::Infallible> {
    Ok(Secret::new(text))
}

impl clap::Args for UrlArgument {
    fn augment_args(command: clap::Command) -> clap::Command {
        let url = clap::Arg::new(URL).long(URL).value_name("URL").value_parser(secret);
        let url = url.env("ANABRANCH_URL").hide_env_values(true);
        command.arg(url.help("The source's connection string; the config file is not read then"))
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl clap::FromArgMatches for UrlArgument {
    fn from_arg_matches(matches: &clap::ArgMatches) -> Result<Self, clap::Error> {
        let typed = matches.value_source(URL) == Some(clap::parser::ValueSource::CommandLine);
        Ok(Self { url: matches.get_one::<Secret>(URL).cloned(), typed })
    }

    fn update_from_arg_matches(&mut self, matches: &clap::ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl SourceArguments {
    /// How to connect, and the installation's name. Logging is started.
    pub(super) fn resolve(&self, context: &Context) -> anyhow::Result<(ConnectSettings, String)> {
        let source = self.url.source(context)?;
        Ok((source.connect, self.slot.clone().unwrap_or(source.slot)))
    }
}

impl UrlArgument {
    /// Whether a connection string is given, so that no config file is needed.
    pub(super) fn is_given(&self) -> bool {
        self.url.is_some()
    }

    /// Whether it is given for this command, which must not ignore it then.
    pub(super) fn is_typed(&self) -> bool {
        self.typed
    }

    /// All that is known of the source. Logging is started.
    pub(super) fn source(&self, context: &Context) -> anyhow::Result<Source> {
        Ok(match &self.url {
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
        })
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
