//! Where the repository and its build directory are.

use std::env;
use std::path::{Path, PathBuf};

/// The repository's root, as it was when this crate was compiled.
pub fn repository() -> &'static Path {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest)
}

/// The build directory: `CARGO_TARGET_DIR`, else `target` in the repository.
pub fn target_dir() -> PathBuf {
    match env::var_os("CARGO_TARGET_DIR").filter(|dir| !dir.is_empty()) {
        Some(dir) => env::current_dir().unwrap_or_default().join(dir),
        None => repository().join("target"),
    }
}
