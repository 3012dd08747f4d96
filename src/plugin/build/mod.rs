//! `plugin build`: from a project in Rust, JavaScript, TypeScript, Python, Go or C to a component.
//!
//! One file a language; `embed` makes components of what compilers for WASI link, with the help of `wasi_stub`. Each calls the language's own tools, in the versions that the project pins, and gives the
//! bytes of a component; here it is judged as at load and written by rename. Blocks; the tools' messages go to
//! standard error. Must never: install anything, or write into a project elsewhere than to the output.

mod c;
mod embed;
mod go;
mod javascript;
mod python;
mod rust;
mod wasi_stub;
mod wit;

use std::{
    ffi::OsString,
    fmt, fs, io,
    path::{Path, PathBuf},
};

use super::artifact::{Refusal, Shape, judge};

/// What to build.
#[derive(Clone, Debug, Default)]
pub struct BuildOptions {
    /// The project's folder: that of its Cargo.toml, package.json, pyproject.toml, go.mod or plugin.toml.
    pub project: PathBuf,
    /// The file to write (it ends with `.wasm`), or the folder to write `<name>.wasm` to; `dist` in the
    /// project's folder if none.
    pub output: Option<PathBuf>,
    /// Cargo features to build with; Rust only.
    pub features: Vec<String>,
    /// Settings of the environment for the tools, beside this process's own.
    pub environment: Vec<(String, OsString)>,
}

/// A component was built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Built {
    /// Where it is.
    pub path: PathBuf,
    /// Its size in bytes.
    pub size: usize,
    /// What its names say of it.
    pub shape: Shape,
}

/// A language that plugins are written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    /// Rust.
    Rust,
    /// JavaScript or TypeScript.
    JavaScript,
    /// Python.
    Python,
    /// C.
    C,
    /// Go.
    Go,
}

impl Language {
    /// All of them, in the order in which projects are recognised.
    pub const ALL: [Self; 5] = [Self::Rust, Self::JavaScript, Self::Python, Self::Go, Self::C];

    /// The file by which a project of it is recognised.
    #[must_use]
    pub fn manifest(self) -> &'static str {
        match self {
            Self::Rust => "Cargo.toml",
            Self::JavaScript => "package.json",
            Self::Python => "pyproject.toml",
            Self::C => "plugin.toml",
            Self::Go => "go.mod",
        }
    }

    /// The language of the project in a folder.
    #[must_use]
    pub fn of(project: &Path) -> Option<Self> {
        Self::ALL.into_iter().find(|language| project.join(language.manifest()).is_file())
    }
}

impl fmt::Display for Language {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rust => "Rust",
            Self::JavaScript => "JavaScript",
            Self::Python => "Python",
            Self::C => "C",
            Self::Go => "Go",
        })
    }
}

/// A component could not be built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// No project.
    #[error(
        "{} has no Cargo.toml, package.json, pyproject.toml, go.mod or plugin.toml; give the folder of a plugin's project, \
         or make one with `anabranch plugin new`", .0.display()
    )]
    NoProject(PathBuf),
    /// Cargo features, and no cargo.
    #[error("{} is a {language} project; --features are cargo's, for Rust", project.display())]
    Features {
        /// The project.
        project: PathBuf,
        /// Its language.
        language: Language,
    },
    /// A program is missing.
    #[error("`{program}` cannot be run: {problem}; {install}")]
    Program {
        /// The program.
        program: String,
        /// What is wrong.
        problem: io::Error,
        /// What to do.
        install: &'static str,
    },
    /// The standard library for Rust's target is missing.
    #[error("this Rust cannot build for {0} yet: run `rustup target add {0}`")]
    NoTarget(&'static str),
    /// Something that the project's own tools need is missing or too old.
    #[error("{}: {problem}", project.display())]
    Tools {
        /// The project.
        project: PathBuf,
        /// What, and what to do.
        problem: String,
    },
    /// The manifest does not say what is needed.
    #[error("{}: {problem}", path.display())]
    Manifest {
        /// The manifest.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// A tool said why, on standard error.
    #[error("{tool} could not build {}; see above", project.display())]
    Failed {
        /// The tool.
        tool: &'static str,
        /// The project.
        project: PathBuf,
    },
    /// Nothing that could be a component came out.
    #[error("{} built no `cdylib`; add `[lib]` with `crate-type = [\"cdylib\"]` to its Cargo.toml", .0.display())]
    NoLibrary(PathBuf),
    /// The linked module has no interface.
    #[error("{} became no component: {problem}; does it declare a transform?", project.display())]
    NoComponent {
        /// The project.
        project: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// It became a component that no host would load.
    #[error("what {} became is no plugin: {refusal}", project.display())]
    Refused {
        /// The project.
        project: PathBuf,
        /// Why.
        refusal: Refusal,
    },
    /// The file system said no.
    #[error("{}: {problem}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong.
        problem: io::Error,
    },
}

impl BuildError {
    fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |problem| Self::Io { path, problem }
    }
}

/// What a language's tools made.
struct Made {
    /// The plugin's name, for the file.
    name: String,
    component: Vec<u8>,
}

/// Builds a plugin and writes `<name>.wasm`. The messages of the tools go to standard error.
///
/// # Errors
/// See [`BuildError`]; nothing is written then.
pub fn build(options: &BuildOptions) -> Result<Built, BuildError> {
    let project = &options.project;
    let no_project = || BuildError::NoProject(project.clone());
    let language = Language::of(project).ok_or_else(no_project)?;
    if language != Language::Rust && !options.features.is_empty() {
        return Err(BuildError::Features { project: project.clone(), language });
    }
    let manifest = project.join(language.manifest()).canonicalize().map_err(|_| no_project())?;
    let Made { name, component } = match language {
        Language::Rust => rust::build(options, &manifest),
        Language::JavaScript => javascript::build(options, &manifest),
        Language::Python => python::build(options, &manifest),
        Language::C => c::build(options, &manifest),
        Language::Go => go::build(options, &manifest),
    }?;
    let shape =
        judge(&component).map_err(|refusal| BuildError::Refused { project: project.clone(), refusal })?;
    let output = options.output.clone().unwrap_or_else(|| project.join("dist"));
    let is_file = output.extension().is_some_and(|extension| extension == "wasm");
    let path = if is_file { output } else { output.join(format!("{name}.wasm")) };
    write(&path, &component).map_err(BuildError::io(&path))?;
    Ok(Built { path, size: component.len(), shape })
}

/// By rename, so that a running host never sees half of it.
fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(directory)?;
    let file = tempfile::Builder::new()
        .prefix(".building-")
        .permissions(fs::Permissions::from_mode(0o644))
        .tempfile_in(directory)?;
    fs::write(file.path(), bytes)?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

/// The version that the environment demands in place of the project's own, so that one source can be built in
/// several versions (for tests and demonstrations). The Rust SDK reads the same variable when it is compiled.
fn demanded_version(options: &BuildOptions) -> Option<String> {
    Some(variable(options, "ANABRANCH_PLUGIN_VERSION")?.to_string_lossy().into_owned())
}

/// A variable of the tools' environment.
fn variable(options: &BuildOptions, name: &str) -> Option<OsString> {
    let given = options.environment.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
    given.or_else(|| std::env::var_os(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn project(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(folder.path().join(name), text).unwrap();
        }
        folder
    }

    fn failure(folder: &Path, features: &[&str]) -> String {
        let options = BuildOptions {
            project: folder.to_owned(),
            features: features.iter().map(|&feature| feature.to_owned()).collect(),
            ..BuildOptions::default()
        };
        build(&options).unwrap_err().to_string()
    }

    #[test]
    fn a_folder_without_a_project_is_named() {
        let error = failure(Path::new("/nowhere"), &[]);
        assert!(
            error.contains("/nowhere has no Cargo.toml, package.json, pyproject.toml, go.mod or plugin.toml"),
            "{error}"
        );
    }

    #[test]
    fn features_are_for_rust() {
        let error = failure(project(&[("package.json", "{}")]).path(), &["mended"]);
        assert!(error.contains("is a JavaScript project") && error.contains("--features"), "{error}");
    }

    #[test]
    fn manifests_that_say_too_little_are_named() {
        for (manifest, text, words) in [
            ("package.json", "{", "package.json: "),
            ("package.json", r#"{"version":"1.0.0"}"#, "has no `name`"),
            ("package.json", r#"{"name":"a","version":7}"#, "expected a string"),
            ("package.json", r#"{"name":"a","version":"1.0.0","main":"gone.js"}"#, "gone.js"),
            ("plugin.toml", "name = \"a\"", "missing field `version`"),
            ("plugin.toml", "name = \"a\"\nversion = \"1.0.0\"\nsrc = \"x\"", "unknown field `src`"),
            ("plugin.toml", "name = \"a\"\nversion = \"1.0.0\"", "there is no anabranch-sdk/anabranch.h"),
            ("go.mod", "go 1.24\n", "has no line `module"),
            ("pyproject.toml", "[project", "pyproject.toml: "),
            ("pyproject.toml", "", "has no `[project]`"),
            ("pyproject.toml", "[project]\nname = \"a\"", "has no `version`"),
            ("pyproject.toml", "[project]\nname = \"a-b\"\nversion = \"1.0.0\"", "a_b.py"),
        ] {
            let error = failure(project(&[(manifest, text)]).path(), &[]);
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
