//! The tree of files that the demo copies.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{Failure, Result};

/// Files are copied and compared in pieces of this size.
const PIECE_BYTES: usize = 256 << 10;
/// Files looked at, at most.
const FILES_MAX: usize = 200_000;

/// What a file is.
enum Kind {
    Folder,
    File,
    Link(PathBuf),
}

/// A file of the tree.
pub(super) struct Entry {
    /// From the tree's root.
    path: PathBuf,
    kind: Kind,
    mode: u32,
    pub(super) bytes: u64,
}

/// A tree of files, folders before what is in them.
pub(super) struct Tree {
    pub(super) root: PathBuf,
    pub(super) files: Vec<Entry>,
    pub(super) bytes: u64,
}

impl Tree {
    /// The files below `root`, or of the Rust toolchain, up to `limit` bytes.
    ///
    /// # Errors
    /// If there is no such tree, or nothing in it.
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
                "{}: is no folder; name a tree of files",
                root.display()
            )));
        }
        let mut tree = Self { root, files: Vec::new(), bytes: 0 };
        let mut folders = vec![PathBuf::new()];
        while let Some(folder) = folders.pop() {
            if is_stopped() {
                return Err(Failure::new("the demo was interrupted before it began"));
            }
            tree.take_folder(&folder, limit, &mut folders);
        }
        match tree.bytes {
            0 => Err(Failure::new(format!(
                "{}: nothing that can be read is in it; name another tree",
                tree.root.display()
            ))),
            _ => Ok(tree),
        }
    }

    /// Takes what is in a folder; what cannot be read is passed over.
    fn take_folder(&mut self, folder: &Path, limit: u64, folders: &mut Vec<PathBuf>) {
        let Ok(entries) = fs::read_dir(self.root.join(folder)) else { return };
        let mut names: Vec<_> = entries.flatten().map(|entry| entry.file_name()).collect();
        names.sort_unstable();
        for name in names {
            let path = folder.join(name);
            let full = self.root.join(&path);
            let Ok(found) = full.symlink_metadata() else { continue };
            let (kind, bytes) = if found.is_dir() {
                (Kind::Folder, 0)
            } else if found.is_symlink() {
                let Ok(target) = fs::read_link(&full) else { continue };
                (Kind::Link(target), 0)
            } else if found.is_file() && File::open(&full).is_ok() {
                (Kind::File, found.len())
            } else {
                continue;
            };
            if self.bytes + bytes > limit || self.files.len() >= FILES_MAX {
                continue;
            }
            if matches!(kind, Kind::Folder) {
                folders.push(path.clone());
            }
            self.bytes += bytes;
            self.files.push(Entry { path, kind, mode: found.permissions().mode() & 0o777, bytes });
        }
    }

    /// All files.
    pub(super) fn all(&self) -> Vec<usize> {
        (0..self.files.len()).collect()
    }

    /// Some of the files, spread over the tree, of at most so many bytes together; at least one.
    pub(super) fn hot(&self, bytes: u64) -> Vec<usize> {
        let small = |entry: &Entry| {
            matches!(entry.kind, Kind::File) && (1..=bytes / 4).contains(&entry.bytes)
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

    /// Copies a file to the tree below `to`, and returns its bytes.
    ///
    /// # Errors
    /// If it cannot be read, or not be written.
    pub(super) fn copy(&self, file: usize, to: &Path) -> Result<u64> {
        let entry = &self.files[file];
        let (from, to) = (self.root.join(&entry.path), to.join(&entry.path));
        let failed = |error: std::io::Error| Failure::about(&to, "write the copy", &error);
        match &entry.kind {
            Kind::Folder => fs::create_dir(&to).map_err(failed)?,
            Kind::Link(target) => symlink(target, &to).map_err(failed)?,
            Kind::File => {
                let mut from = open(&from)?;
                let mut to = File::create(&to).map_err(failed)?;
                let mut piece = vec![0; PIECE_BYTES];
                let mut left = entry.bytes;
                // As much as was found: it may be growing.
                while left > 0 {
                    let wanted = piece.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                    let count = read_some(&mut from, &mut piece[..wanted]).map_err(failed)?;
                    if count == 0 {
                        return Err(Failure::new(format!(
                            "{}: became shorter while it was read",
                            entry.path.display()
                        )));
                    }
                    to.write_all(&piece[..count]).map_err(failed)?;
                    left -= count as u64;
                }
                to.set_permissions(fs::Permissions::from_mode(entry.mode | 0o200))
                    .map_err(failed)?;
            }
        }
        Ok(entry.bytes)
    }

    /// Compares a file with its copy in the tree below `with`, and returns its bytes.
    ///
    /// # Errors
    /// If they differ, or cannot be read.
    pub(super) fn compare(&self, file: usize, with: &Path) -> Result<u64> {
        let entry = &self.files[file];
        let (original, copy) = (self.root.join(&entry.path), with.join(&entry.path));
        let failed = |error: std::io::Error| Failure::about(&copy, "read the copy", &error);
        let differs = |how: String| Err(Failure::new(format!("{}: {how}", entry.path.display())));
        match &entry.kind {
            Kind::Folder => match copy.symlink_metadata().map_err(failed)?.is_dir() {
                true => {}
                false => return differs("is no folder any more".to_owned()),
            },
            Kind::Link(target) => match fs::read_link(&copy).map_err(failed)? == *target {
                true => {}
                false => return differs("leads elsewhere".to_owned()),
            },
            Kind::File => {
                let length = copy.symlink_metadata().map_err(failed)?.len();
                if length != entry.bytes {
                    return differs(format!("has {length} bytes instead of {}", entry.bytes));
                }
                let (mut one, mut other) = (open(&original)?, open(&copy)?);
                let (mut a, mut b) = (vec![0; PIECE_BYTES], vec![0; PIECE_BYTES]);
                let mut at = 0;
                while at < entry.bytes {
                    let wanted =
                        a.len().min(usize::try_from(entry.bytes - at).unwrap_or(usize::MAX));
                    let count = read_some(&mut one, &mut a[..wanted]).map_err(failed)?;
                    if count == 0 {
                        return differs("the original became shorter".to_owned());
                    }
                    other.read_exact(&mut b[..count]).map_err(failed)?;
                    if a[..count] != b[..count] {
                        return differs(format!("differs from byte {at} on, or a little after"));
                    }
                    at += count as u64;
                }
            }
        }
        Ok(entry.bytes)
    }
}

fn open(path: &Path) -> Result<File> {
    File::open(path).map_err(|error| Failure::about(path, "open it", &error))
}

fn read_some(from: &mut File, into: &mut [u8]) -> std::io::Result<usize> {
    loop {
        match from.read(into) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

/// The folder of the Rust toolchain; without one, documentation and programs of the system.
fn toolchain() -> Result<PathBuf> {
    let asked = Command::new("rustc").args(["--print", "sysroot"]).output();
    let sysroot = asked.ok().filter(|output| output.status.success());
    let sysroot = sysroot.and_then(|output| String::from_utf8(output.stdout).ok());
    let places = sysroot.map(|path| PathBuf::from(path.trim()).join("lib"));
    let others = ["/usr/share", "/usr/lib"].map(PathBuf::from);
    places.into_iter().chain(others).find(|place| place.is_dir()).ok_or_else(|| {
        Failure::usage(
            "no Rust toolchain is found here; name a tree of files: `forebay demo FOLDER`",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> (tempfile::TempDir, Tree) {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("from");
        fs::create_dir_all(root.join("a/b")).unwrap();
        for (name, len) in [("a/one", 10), ("a/b/two", 600_000), ("three", 1)] {
            fs::write(root.join(name), vec![7; len]).unwrap();
        }
        symlink("a/one", root.join("link")).unwrap();
        let tree = Tree::find(Some(&root), 1 << 20, &|| false).unwrap();
        (folder, tree)
    }

    #[test]
    fn a_copy_is_the_same_until_it_is_changed() {
        let (folder, tree) = tree();
        let to = folder.path().join("to");
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
    fn no_more_than_the_limit_is_taken() {
        let (_folder, tree) = tree();
        let small = Tree::find(Some(&tree.root), 11, &|| false).unwrap();
        assert_eq!(small.bytes, 11);
        assert!(Tree::find(Some(&tree.root), 0, &|| false).is_err());
        assert_eq!(tree.hot(100).iter().map(|file| tree.files[*file].bytes).sum::<u64>(), 11);
    }
}
