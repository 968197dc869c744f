//! Block devices and files that begin or end as a device of a pool does.

use std::path::{Path, PathBuf};

use forebay_pool::has_label;

/// Prefixes of the names of block devices that hold no pool, or that take long to open.
const SKIPPED: [&str; 4] = ["fd", "ram", "sr", "zram"];

/// Block devices and files of these folders, but not below, that may hold a label. Canonical paths,
/// each once.
pub(crate) fn find(folders: &[PathBuf]) -> Vec<PathBuf> {
    let mut paths = block_devices();
    paths.extend(folders.iter().flat_map(|folder| files(folder)));
    labelled(&paths)
}

/// Those of the paths that may hold a label. Canonical, each once.
pub(crate) fn labelled(paths: &[PathBuf]) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> =
        paths.iter().filter_map(|path| path.canonicalize().ok()).collect();
    paths.sort();
    paths.dedup();
    // A path that cannot be read is not ours to complain about.
    paths.retain(|path| has_label(path).unwrap_or(false));
    drop_loops(&mut paths);
    paths
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let paths = entries.flatten().map(|entry| entry.path());
    // Opening a FIFO would wait.
    paths.filter(|path| path.metadata().is_ok_and(|found| found.is_file())).collect()
}

/// Block devices that no other one is built on, such as a mapping or an array.
fn block_devices() -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir("/sys/class/block") else { return Vec::new() };
    let is_free = |name: &str| {
        let of = |file: &str| Path::new("/sys/class/block").join(name).join(file);
        let size = std::fs::read_to_string(of("size")).unwrap_or_default();
        let has_holders =
            std::fs::read_dir(of("holders")).is_ok_and(|mut holders| holders.next().is_some());
        size.trim() != "0" && !has_holders
    };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let names = names.filter(|name| !SKIPPED.iter().any(|prefix| name.starts_with(prefix)));
    names.filter(|name| is_free(name)).map(|name| Path::new("/dev").join(name)).collect()
}

/// Drops loop devices over files that were found too.
fn drop_loops(paths: &mut Vec<PathBuf>) {
    let all = paths.clone();
    paths.retain(|path| backing_file(path).is_none_or(|file| !all.contains(&file)));
}

/// The file behind a loop device.
fn backing_file(path: &Path) -> Option<PathBuf> {
    let name = path.strip_prefix("/dev").ok()?;
    let file = Path::new("/sys/class/block").join(name).join("loop/backing_file");
    Some(PathBuf::from(std::fs::read_to_string(file).ok()?.trim_end()))
}
