//! The interface's description: in a folder, for tools that read it there, and parsed.

use std::{fs, io, path::Path};

use wit_parser::{PackageId, Resolve, SourceMap};

/// The world of transforms.
pub(super) const WORLD: &str = "transform-plugin";

const FILES: [(&str, &str); 4] = [
    ("types.wit", include_str!("../../../wit/v1/types.wit")),
    ("host.wit", include_str!("../../../wit/v1/host.wit")),
    ("plugin.wit", include_str!("../../../wit/v1/plugin.wit")),
    ("worlds.wit", include_str!("../../../wit/v1/worlds.wit")),
];

/// Writes it into a folder, which is made.
pub(super) fn write(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    FILES.iter().try_for_each(|(name, text)| fs::write(folder.join(name), text))
}

/// Parses it, with further worlds of the same package.
pub(super) fn parse(worlds: &str) -> Result<(Resolve, PackageId), String> {
    let mut sources = SourceMap::new();
    FILES.iter().for_each(|(name, text)| sources.push_str(name, *text));
    sources.push_str("further.wit", worlds);
    let group = sources.parse().map_err(|(_, problem)| problem.to_string())?;
    let mut resolve = Resolve::default();
    let package = resolve.push_group(group).map_err(|problem| problem.to_string())?;
    Ok((resolve, package))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file that was forgotten here would be missing for everybody but Rust.
    #[test]
    fn every_file_of_the_interface_is_there() {
        let mut parts: Vec<_> = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("wit/v1"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.ends_with(".wit"))
            .collect();
        parts.sort();
        let mut here = FILES.map(|(name, _)| name);
        here.sort_unstable();
        assert_eq!(parts, here);
    }
}
