//! Guests, each built once a run: by the library's own `build`, as `plugin build` does.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    sync::{Mutex, Once},
    time::Duration,
};

use anabranch::{
    model::EntityName,
    plugin::{
        HostSettings, Plugin, PluginHost, Transform,
        build::{BuildOptions, build},
    },
};
use testkit::{command::FileLock, guests::ensure_toolchain, paths};
use tracing_subscriber::{
    Layer as _, filter::Targets, layer::SubscriberExt as _, util::SubscriberInitExt as _,
};

/// Builds a guest of `plugins/`, with settings of its build's environment.
pub fn guest(project: &str, environment: &[(&str, &str)]) -> PathBuf {
    guest_with(project, &[], environment)
}

/// The guest of capabilities, which can do these things.
pub fn capable(features: &[&str]) -> PathBuf {
    guest_with("fixtures/capable", features, &[])
}

fn guest_with(project: &str, features: &[&str], environment: &[(&str, &str)]) -> PathBuf {
    static BUILT: Mutex<BTreeMap<String, PathBuf>> = Mutex::new(BTreeMap::new());
    let mut built = BUILT.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let key = format!("{project} {features:?} {environment:?}");
    if let Some(path) = built.get(&key) {
        return path.clone();
    }
    let guests = paths::target_dir().join("guests");
    // The lock and the directory that testkit's own builds have.
    let _lock = FileLock::hold(&guests.join("build.lock")).unwrap();
    let place = guests.join("plugin-tests").join(built.len().to_string());
    let options = BuildOptions {
        project: paths::repository().join("plugins").join(project),
        output: Some(place),
        features: features.iter().map(|&feature| feature.to_owned()).collect(),
        environment: build_environment(&guests, environment),
    };
    let path = build(&options).unwrap_or_else(|error| panic!("{project}: {error}")).path;
    built.insert(key, path.clone());
    path
}

fn build_environment(guests: &Path, environment: &[(&str, &str)]) -> Vec<(String, OsString)> {
    let mut cargo = std::process::Command::new("cargo");
    ensure_toolchain().unwrap().apply(&mut cargo);
    let toolchain = cargo
        .get_envs()
        .filter_map(|(key, value)| Some((key.to_string_lossy().into_owned(), value?.to_owned())));
    let mut all: Vec<_> = toolchain.collect();
    all.push(("CARGO_TARGET_DIR".to_owned(), guests.join("cargo").into()));
    all.extend(environment.iter().map(|(key, value)| ((*key).to_owned(), OsString::from(value))));
    all
}

pub fn hostile() -> PathBuf {
    guest("fixtures/hostile", &[])
}

/// Settings that make hostile guests fail soon.
pub fn short() -> HostSettings {
    HostSettings {
        memory: 16 << 20,
        call_deadline: Duration::from_secs(2),
        max_output: 4 << 20,
        instances: 2,
        ..HostSettings::default()
    }
}

pub fn host(settings: HostSettings) -> PluginHost {
    PluginHost::new(settings).unwrap()
}

pub fn load(host: &PluginHost, path: &Path) -> Plugin {
    host.load_blocking(path).unwrap_or_else(|error| panic!("{error}"))
}

/// A plugin at work on `public.products`, with settings of a mapping.
pub fn at_work(plugin: &Plugin, settings: &[(&str, &str)]) -> Transform {
    let settings = settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    plugin.transform(&EntityName::new("public", "products"), settings)
}

/// Copies guests into a directory under new names.
pub fn directory(files: &[(&str, &Path)]) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for (name, path) in files {
        fs::copy(path, directory.path().join(name)).unwrap();
    }
    directory
}

thread_local! {
    static TOLD: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Keeps what is logged on the present thread, from now on. One subscriber for all tests of the process: with several,
/// whether a line is of interest depends on who logs first.
pub fn listen() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let lines = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(|| Told);
        let ours = Targets::new().with_target("anabranch", tracing::Level::TRACE);
        tracing_subscriber::registry().with(lines.with_filter(ours)).init();
    });
    TOLD.take();
}

/// What was logged on the present thread since [`listen`].
pub fn told() -> String {
    String::from_utf8(TOLD.take()).unwrap()
}

struct Told;

impl std::io::Write for Told {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        TOLD.with_borrow_mut(|told| told.extend_from_slice(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
