//! The command line: one file a command.
//!
//! A command reads the config, calls the room that does the work and shows the result; it decides nothing
//! itself. Results go to stdout, logs and errors to stderr; with `--json` a result or an error is one JSON
//! value on stdout, of a shape that `docs/cli.md` tells. The only room that knows `anyhow`.

mod backfill;
mod check;
mod output;
mod plan;
mod plugin;
mod prepare;
mod quarantine;
mod run;
mod source;
mod status;
mod suspend;
mod widen;

use std::{ffi::OsString, path::PathBuf, process::ExitCode, time::Duration};

use clap::{ArgAction, Args, Parser, Subcommand};

use crate::{
    config::{self, Config, ConfigError, LogFormat, LogLevel, TracesSettings},
    control::{Control, ControlError},
    runtime::{
        RunError, TermError,
        telemetry::{Traces, TracesError},
    },
};

use output::{ErrorShape, Output, ProblemShape};

const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  failed
  2  usage or config
  3  not ready in time
  130  interrupted while it waited";

/// Streams the changes of a Postgres database through WebAssembly transforms to where you want them.
#[derive(Debug, Parser)]
#[command(name = "anabranch", version, after_help = EXIT_CODES, propagate_version = true)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

/// What every command takes.
#[derive(Clone, Debug, Args)]
struct Global {
    /// The config file.
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "ANABRANCH_CONFIG",
        default_value = "anabranch.toml"
    )]
    config: PathBuf,
    /// Show the result as one JSON value.
    #[arg(long, global = true)]
    json: bool,
    /// The form of log lines, in place of the config's.
    #[arg(long, global = true, value_enum, value_name = "FORMAT")]
    log_format: Option<LogFormat>,
    /// Log more: -v for debug, -vv for everything.
    #[arg(short, long, global = true, action = ArgAction::Count)]
    verbose: u8,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Stream and backfill until told to stop.
    Run(run::Arguments),
    /// Check config, plugins and source; change nothing.
    Check(check::Arguments),
    /// Show which mappings would be rebuilt, and why.
    Plan(plan::Arguments),
    /// Show where an installation stands, from its database alone.
    Status(status::Arguments),
    /// Ask for backfills, cancel, watch, wait for and slow them down, with the installation's database alone.
    Backfill(backfill::Arguments),
    /// List, show, replay and drop what could not be processed, with the installation's database alone.
    Quarantine(quarantine::Arguments),
    /// End all streaming, until `resume`: for upgrades of the server, and migrations that a slot blocks.
    Suspend(suspend::SuspendArguments),
    /// Let a suspended installation go on.
    Resume(suspend::ResumeArguments),
    /// Publish all columns of the mapped tables, until `restore`: for migrations that a column list blocks.
    Widen(widen::Arguments),
    /// Let the publication have column lists again.
    Restore(widen::Arguments),
    /// Make, build, look into, test, measure and compare plugins.
    Plugin(plugin::Arguments),
}

/// How a command ended, other than by an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exit {
    /// As asked.
    Done,
    /// It found what stands in the way.
    Failed,
    /// What is asked for cannot be: usage or config.
    Usage,
    /// The time was up before what was waited for.
    NotReady,
    /// Told to stop waiting: 128 + SIGINT.
    Interrupted,
}

impl Exit {
    fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::NotReady => 3,
            Self::Interrupted => 130,
        }
    }
}

/// The user asked for something that cannot be; exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct UsageError(String);

/// What commands share.
#[derive(Debug)]
struct Context {
    global: Global,
    output: Output,
}

impl Context {
    /// Reads the config file and starts logging as it says.
    fn config(&self) -> Result<Config, ConfigError> {
        let config = config::load(&self.global.config)?;
        self.start_logs(config.log.format, config.log.level);
        Ok(config)
    }

    /// The same for a host, which exports traces too.
    fn host_config(&self) -> anyhow::Result<(Config, Traces)> {
        let config = config::load(&self.global.config)?;
        let traces = self.start_telemetry(config.log.format, config.log.level, &config.traces)?;
        Ok((config, traces))
    }

    /// Starts logging, for commands that look at something and end.
    fn start_logs(&self, format: LogFormat, level: LogLevel) {
        // Without a collector nothing can fail, and nothing is left to be finished.
        let _ = self.start_telemetry(format, level, &TracesSettings::default());
    }

    fn start_telemetry(
        &self,
        format: LogFormat,
        level: LogLevel,
        traces: &TracesSettings,
    ) -> Result<Traces, TracesError> {
        let level = match self.global.verbose {
            0 => level,
            1 => level.max(LogLevel::Debug),
            _ => LogLevel::Trace,
        };
        let format = self.global.log_format.unwrap_or(format);
        crate::runtime::telemetry::start(format, level, traces)
    }

    /// Waits for a future on a runtime of its own.
    fn block_on<T>(&self, future: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
        tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(future)
    }
}

/// The value of an argument that limits time.
fn limit(text: &str) -> Result<Duration, String> {
    config::duration(text).ok_or_else(|| "a duration such as 90s, 10m or 1h".to_owned())
}

/// Does something to an installation through a connection that is closed in good order.
fn with_control<T>(
    context: &Context,
    source: &source::SourceArguments,
    work: impl AsyncFnOnce(&Control) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let (connect, installation) = source.resolve(context)?;
    context.block_on(async {
        let control = Control::connect(&connect, installation).await?;
        let done = work(&control).await;
        control.close().await;
        done
    })
}

/// Runs the command that `arguments` ask for; the first of them is the name of the program.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are asked for: stdout and 0. Everything else is usage: stderr and 2.
            let code = u8::try_from(error.exit_code()).unwrap_or(2);
            return if error.print().is_ok() { code.into() } else { ExitCode::FAILURE };
        }
    };
    let output = Output { json: cli.global.json };
    let context = Context { global: cli.global, output };
    let result = match cli.command {
        Command::Run(arguments) => run::run(&context, &arguments),
        Command::Check(arguments) => check::run(&context, &arguments),
        Command::Plan(arguments) => plan::run(&context, &arguments),
        Command::Plugin(arguments) => plugin::run(&context, &arguments),
        Command::Status(arguments) => status::run(&context, &arguments),
        Command::Backfill(arguments) => backfill::run(&context, &arguments),
        Command::Quarantine(arguments) => quarantine::run(&context, &arguments),
        Command::Suspend(arguments) => suspend::suspend(&context, &arguments),
        Command::Resume(arguments) => suspend::resume(&context, &arguments),
        Command::Widen(arguments) => widen::widen(&context, &arguments),
        Command::Restore(arguments) => widen::restore(&context, &arguments),
    };
    match result {
        Ok(exit) => exit.code().into(),
        Err(error) => {
            let (exit, shape) = describe(&error);
            if output.error(&shape).is_err() {
                return ExitCode::FAILURE;
            }
            exit.code().into()
        }
    }
}

/// The exit code and the shape of an error.
fn describe(error: &anyhow::Error) -> (Exit, ErrorShape) {
    let mut problems = Vec::new();
    let mut exit = Exit::Failed;
    for cause in error.chain() {
        if let Some(config) = cause.downcast_ref::<ConfigError>() {
            exit = Exit::Usage;
            problems.extend(problems_of(config));
        } else if let Some(run) = cause.downcast_ref::<RunError>() {
            if let RunError::Term(TermError::Config(config)) = run {
                problems.extend(problems_of(config));
            }
            if run.is_config() {
                exit = Exit::Usage;
            }
        } else if cause.is::<UsageError>()
            || cause
                .downcast_ref::<ControlError>()
                .is_some_and(|error| matches!(error, ControlError::Usage(_)))
        {
            exit = Exit::Usage;
        }
    }
    let kind = if exit == Exit::Usage { "config" } else { "failed" };
    (exit, ErrorShape { kind, message: sentence(error), problems })
}

/// The shapes of what is wrong with a config.
fn problems_of(error: &ConfigError) -> Vec<ProblemShape> {
    let shape = |problem: &config::Problem| ProblemShape {
        file: error.file.display().to_string(),
        line: problem.position.map(|(line, _)| line),
        column: problem.position.map(|(_, column)| column),
        key: problem.key.clone(),
        message: problem.message.clone(),
    };
    error.problems.iter().map(shape).collect()
}

/// An error and its causes in one line. A cause that was told already is not told again.
fn sentence(error: &anyhow::Error) -> String {
    let mut sentence = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if sentence.is_empty() {
            sentence = cause;
        } else if !sentence.contains(&cause) {
            sentence.push_str(": ");
            sentence.push_str(&cause);
        }
    }
    sentence
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn config_errors_are_told_apart() {
        let error = ConfigError { file: "a.toml".into(), problems: Vec::new() };
        let (exit, shape) = describe(&anyhow::Error::from(error).context("cannot start"));
        assert_eq!((exit, shape.kind), (Exit::Usage, "config"));
        let (exit, shape) = describe(&anyhow::anyhow!("no"));
        assert_eq!((exit, shape.kind, shape.message.as_str()), (Exit::Failed, "failed", "no"));
    }
}
