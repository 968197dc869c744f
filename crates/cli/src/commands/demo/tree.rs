//! The directory tree that the demo copies.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{Failure, Result};

/// Buffer size for copies and comparisons.
const BUFFER_BYTES: usize = 256 << 10;
/// Limit of files in the tree.
const FILES_MAX: usize = 200_000;

/// Type of an entry.
enum EntryKind {
    Directory,
    File,
    Link(PathBuf),
}

/// A file, directory or symbolic link of the tree.
pub(super) struct Entry {
    /// Path relative to the root of the tree.
    path: PathBuf,
    kind: EntryKind,
    mode: u32,
    pub(super) bytes: u64,
}

/// A directory tree. Directories come before their content.
pub(super) struct Tree {
    pub(super) root: PathBuf,
    pub(super) files: Vec<Entry>,
    pub(super) bytes: u64,
}

impl Tree {
    /// Lists the files below `root`, or of the Rust toolchain, up to `limit` bytes.
    ///
    /// # Errors
    /// If the tree does not exist or is empty.
    pub(super) fn find(
        root: Option<&Path>,
        limit: u64,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<Self> {
        let root = match root {
            Some(root) => root.to_owned(),
            None => toolchain()?,
        };
        let found =
            fs::metadata(&root).map_err(|error| Failure::about(&root, "read the tree", &error))?;
        if !found.is_dir() {
            return Err(Failure::new(format!(
                "{}: is not a directory; give a directory tree",
                root.display()
            )));
        }
        let mut tree = Self { root, files: Vec::new(), bytes: 0 };
        let mut directories = vec![PathBuf::new()];
        while let Some(directory) = directories.pop() {
            if is_stopped() {
                return Err(Failure::new("the demo was interrupted before its first step"));
            }
            tree.add_directory(&directory, limit, &mut directories);
        }
        match tree.bytes {
            0 => Err(Failure::new(format!(
                "{}: contains no readable files; give another directory tree",
                tree.root.display()
            ))),
            _ => Ok(tree),
        }
    }

    /// Adds the content of a directory. Unreadable entries are skipped.
    fn add_directory(&mut self, directory: &Path, limit: u64, directories: &mut Vec<PathBuf>) {
        let Ok(entries) = fs::read_dir(self.root.join(directory)) else { return };
        let mut names: Vec<_> = entries.flatten().map(|entry| entry.file_name()).collect();
        names.sort_unstable();
        for name in names {
            let path = directory.join(name);
            let full = self.root.join(&path);
            let Ok(found) = full.symlink_metadata() else { continue };
            let (kind, bytes) = if found.is_dir() {
                (EntryKind::Directory, 0)
            } else if found.is_symlink() {
                let Ok(target) = fs::read_link(&full) else { continue };
                (EntryKind::Link(target), 0)
            } else if found.is_file() && File::open(&full).is_ok() {
                (EntryKind::File, found.len())
            } else {
                continue;
            };
            if self.bytes + bytes > limit || self.files.len() >= FILES_MAX {
                continue;
            }
            if matches!(kind, EntryKind::Directory) {
                directories.push(path.clone());
            }
            self.bytes += bytes;
            self.files.push(Entry { path, kind, mode: found.permissions().mode() & 0o777, bytes });
        }
    }

    /// Indices of all entries.
    pub(super) fn all(&self) -> Vec<usize> {
        (0..self.files.len()).collect()
    }

    /// Indices of files spread over the tree, with at most `bytes` in total; at least one file.
    pub(super) fn hot(&self, bytes: u64) -> Vec<usize> {
        let small = |entry: &Entry| {
            matches!(entry.kind, EntryKind::File) && (1..=bytes / 4).contains(&entry.bytes)
        };
        let candidates: Vec<usize> =
            (0..self.files.len()).filter(|file| small(&self.files[*file])).collect();
        let total: u64 = candidates.iter().map(|file| self.files[*file].bytes).sum();
        let step = usize::try_from(total / bytes.max(1)).unwrap_or(usize::MAX).max(1);
        let mut taken = Vec::new();
        let mut sum = 0;
        for file in candidates.iter().step_by(step) {
            if sum + self.files[*file].bytes <= bytes {
                sum += self.files[*file].bytes;
                taken.push(*file);
            }
        }
        if taken.is_empty() {
            taken.extend(self.files.iter().position(|entry| entry.bytes > 0));
        }
        taken
    }

    /// Copies an entry to the tree below `to`, and returns its size.
    ///
    /// # Errors
    /// If the entry cannot be read or written.
    pub(super) fn copy(&self, file: usize, to: &Path) -> Result<u64> {
        let entry = &self.files[file];
        let (from, to) = (self.root.join(&entry.path), to.join(&entry.path));
        let failed = |error: std::io::Error| Failure::about(&to, "write the copy", &error);
        match &entry.kind {
            EntryKind::Directory => fs::create_dir(&to).map_err(failed)?,
            EntryKind::Link(target) => symlink(target, &to).map_err(failed)?,
            EntryKind::File => {
                let mut from = open(&from)?;
                let mut to = File::create(&to).map_err(failed)?;
                let mut buffer = vec![0; BUFFER_BYTES];
                let mut left = entry.bytes;
                // Only the bytes found in the listing: the file may be growing.
                while left > 0 {
                    let wanted = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                    let count = read_some(&mut from, &mut buffer[..wanted]).map_err(failed)?;
                    if count == 0 {
                        return Err(Failure::new(format!(
                            "{}: was truncated while it was read; use a tree that does not change",
                            entry.path.display()
                        )));
                    }
                    to.write_all(&buffer[..count]).map_err(failed)?;
                    left -= count as u64;
                }
                to.set_permissions(fs::Permissions::from_mode(entry.mode | 0o200))
                    .map_err(failed)?;
            }
        }
        Ok(entry.bytes)
    }

    /// Compares an entry with its copy in the tree below `with`, and returns its size.
    ///
    /// # Errors
    /// If they differ or cannot be read.
    pub(super) fn compare(&self, file: usize, with: &Path) -> Result<u64> {
        let entry = &self.files[file];
        let (original, copy) = (self.root.join(&entry.path), with.join(&entry.path));
        let failed = |error: std::io::Error| Failure::about(&copy, "read the copy", &error);
        let differs = |how: String| Err(Failure::new(format!("{}: {how}", entry.path.display())));
        match &entry.kind {
            EntryKind::Directory => match copy.symlink_metadata().map_err(failed)?.is_dir() {
                true => {}
                false => return differs("the copy is not a directory".to_owned()),
            },
            EntryKind::Link(target) => match fs::read_link(&copy).map_err(failed)? == *target {
                true => {}
                false => return differs("the copy has another link target".to_owned()),
            },
            EntryKind::File => {
                let length = copy.symlink_metadata().map_err(failed)?.len();
                if length != entry.bytes {
                    return differs(format!(
                        "the copy has {length} bytes instead of {}",
                        entry.bytes
                    ));
                }
                let (mut one, mut other) = (open(&original)?, open(&copy)?);
                let (mut a, mut b) = (vec![0; BUFFER_BYTES], vec![0; BUFFER_BYTES]);
                let mut at = 0;
                while at < entry.bytes {
                    let wanted =
                        a.len().min(usize::try_from(entry.bytes - at).unwrap_or(usize::MAX));
                    let count = read_some(&mut one, &mut a[..wanted]).map_err(failed)?;
                    if count == 0 {
                        return differs(
                            "the original was truncated; use a tree that does not change"
                                .to_owned(),
                        );
                    }
                    other.read_exact(&mut b[..count]).map_err(failed)?;
                    if a[..count] != b[..count] {
                        return differs(format!("the copy differs in the 256 KiB at byte {at}"));
                    }
                    at += count as u64;
                }
            }
        }
        Ok(entry.bytes)
    }
}

fn open(path: &Path) -> Result<File> {
    File::open(path).map_err(|error| Failure::about(path, "open the file", &error))
}

fn read_some(from: &mut File, into: &mut [u8]) -> std::io::Result<usize> {
    loop {
        match from.read(into) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

/// The library directory of the Rust toolchain; without one, a directory of the system.
fn toolchain() -> Result<PathBuf> {
    let asked = Command::new("rustc").args(["--print", "sysroot"]).output();
    let sysroot = asked.ok().filter(|output| output.status.success());
    let sysroot = sysroot.and_then(|output| String::from_utf8(output.stdout).ok());
    let places = sysroot.map(|path| PathBuf::from(path.trim()).join("lib"));
    let others = ["/usr/share", "/usr/lib"].map(PathBuf::from);
    places.into_iter().chain(others).find(|place| place.is_dir()).ok_or_else(|| {
        Failure::usage(
            "no Rust toolchain was found; give a directory tree: `forebay demo DIRECTORY`",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> (tempfile::TempDir, Tree) {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("from");
        fs::create_dir_all(root.join("a/b")).unwrap();
        for (name, len) in [("a/one", 10), ("a/b/two", 600_000), ("three", 1)] {
            fs::write(root.join(name), vec![7; len]).unwrap();
        }
        symlink("a/one", root.join("link")).unwrap();
        let tree = Tree::find(Some(&root), 1 << 20, &|| false).unwrap();
        (directory, tree)
    }

    #[test]
    fn a_changed_copy_is_detected() {
        let (directory, tree) = tree();
        let to = directory.path().join("to");
        fs::create_dir(&to).unwrap();
        assert_eq!(tree.bytes, 600_011);
        for file in tree.all() {
            tree.copy(file, &to).unwrap();
        }
        for file in tree.all() {
            tree.compare(file, &to).unwrap();
        }
        let mut content = fs::read(to.join("a/b/two")).unwrap();
        content[599_999] = 8;
        fs::write(to.join("a/b/two"), content).unwrap();
        fs::remove_file(to.join("link")).unwrap();
        symlink("a/two", to.join("link")).unwrap();
        fs::write(to.join("three"), b"77").unwrap();
        let wrong = tree.all().into_iter().filter(|file| tree.compare(*file, &to).is_err()).count();
        assert_eq!(wrong, 3);
    }

    #[test]
    fn the_limit_bounds_the_tree() {
        let (_directory, tree) = tree();
        let small = Tree::find(Some(&tree.root), 11, &|| false).unwrap();
        assert_eq!(small.bytes, 11);
        assert!(Tree::find(Some(&tree.root), 0, &|| false).is_err());
        assert_eq!(tree.hot(100).iter().map(|file| tree.files[*file].bytes).sum::<u64>(), 11);
    }
}
