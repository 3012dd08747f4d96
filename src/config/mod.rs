//! `anabranch.toml`, in two stages: as typed (`file`) and as meant (`resolve`).
//!
//! Guarantees: nothing that was written is ignored (an unknown key, a wrong type or a value out of range is
//! an error with its place and its remedy), all problems are told at once, and no error and no `Debug` shows
//! what a reference stood for. Nothing is opened here but the file itself and the files it refers to by
//! `file:`. Only `secret` sees a secret's text.

mod endpoints;
mod error;
mod file;
mod grants;
mod mapping;
mod resolve;
mod secret;
mod section;
mod settings;
mod sinks;
mod source;
mod unit;

use std::{fs, path::Path};

pub use error::{ConfigError, Problem};
pub use mapping::{Mapping, Mappings, resolve_mappings};
pub use resolve::Environment;
pub use settings::{
    BackfillSettings, Config, HttpSettings, LogFormat, LogLevel, LogSettings, MapEntry, MapPolicy, OnFailure,
    PipelineSettings, PluginLimits, PluginSettings, PluginsSettings, QuarantineBounds, SourceSettings,
    TracesSettings,
};
pub use unit::duration;

use crate::{
    model::Secret,
    postgres::{self, ConnectSettings},
};

use error::Problems;

/// The name of slot and publication where the config says none.
pub const DEFAULT_SLOT: &str = "anabranch";

/// Reads the config file at `path`, with the variables of this process.
///
/// # Errors
///
/// The file cannot be read, or anything in it is wrong.
pub fn load(path: &Path) -> Result<Config, ConfigError> {
    let bytes = fs::read(path).map_err(|error| {
        let message =
            format!("cannot be read: {error}; name the config file with --config or ANABRANCH_CONFIG");
        ConfigError::whole(path, message)
    })?;
    let text = String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        let line = error.as_bytes()[..valid].iter().filter(|&&byte| byte == b'\n').count() + 1;
        ConfigError::whole(path, format!("is not UTF-8: see line {line}; save the file as UTF-8"))
    })?;
    parse(path, &text, &|name| std::env::var_os(name))
}

/// Reads a connection string that was given on the command line, completed by the variables of this process.
///
/// # Errors
///
/// It is no connection string; the error names the parameter, never the text.
pub fn connection(url: &Secret) -> Result<ConnectSettings, postgres::Error> {
    ConnectSettings::parse(url.expose(), |name| std::env::var(name).ok())
}

/// Reads a config from its text. Relative paths start from the directory of `path`, which is not read.
///
/// # Errors
///
/// Anything in the text is wrong, or a reference leads nowhere.
pub fn parse(
    path: impl AsRef<Path>,
    text: &str,
    environment: Environment<'_>,
) -> Result<Config, ConfigError> {
    let path = path.as_ref();
    // Editors of Windows put a byte order mark before the text; it means nothing.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let blank = |line: &str| line.trim().is_empty() || line.trim_start().starts_with('#');
    if text.lines().all(blank) {
        let message = "the file is empty; it needs a sink at the least, such as [sink.search] with kind = \
                       \"sqlite\" and path = \"search.db\"";
        return Err(ConfigError::whole(path, message));
    }
    let problems = Problems::default();
    let file = file::read(text, &problems);
    resolve::resolve(path, text, &file, problems, environment)
}

#[cfg(test)]
mod tests;
