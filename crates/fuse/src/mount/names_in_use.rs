//! Names of a file system that the mount table uses.
//!
//! If the server makes the kernel forget the name of a file, the kernel detaches what is mounted on
//! that file, in all mount namespaces, and marks what is mounted from it as deleted. So the names
//! in use have to be known.
//!
//! # Limits
//!
//! Other namespaces are seen by one of their processes each, as far as this user may. A name can be
//! put to use right after the look.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::DeviceNumber;
use super::mountinfo::{self, MountEntry};

/// Paths in the file system with this device number of names that are mount points, or are
/// mounted elsewhere.
///
/// # Errors
///
/// The mount table cannot be read.
pub(crate) fn names_in_use(device: DeviceNumber) -> io::Result<Vec<PathBuf>> {
    let mut names = in_table(&mountinfo::entries()?, device);
    let namespace = |process: &Path| fs::read_link(process.join("ns/mnt"));
    let mut seen = vec![namespace(Path::new("/proc/self"))?];
    for process in fs::read_dir("/proc")?.flatten().map(|entry| entry.path()) {
        // Other files of /proc have none.
        let Ok(other) = namespace(&process) else { continue };
        if seen.contains(&other) {
            continue;
        }
        // The process may have ended. Another one of its namespace may come.
        if let Ok(text) = fs::read(process.join("mountinfo")) {
            seen.push(other);
            names.extend(in_table(&mountinfo::parse(&text), device));
        }
    }
    Ok(names)
}

fn in_table(entries: &[MountEntry], device: DeviceNumber) -> Vec<PathBuf> {
    let by_id: BTreeMap<u64, &MountEntry> = entries.iter().map(|entry| (entry.id, entry)).collect();
    let mut names = Vec::new();
    for entry in entries {
        if entry.device == device {
            names.push(entry.root.clone());
        }
        if let Some(parent) = by_id.get(&entry.parent)
            && parent.device == device
            && let Ok(below) = entry.path.strip_prefix(&parent.path)
        {
            names.push(parent.root.join(below));
        }
    }
    // The root has no name.
    names.retain(|name| name.file_name().is_some());
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_and_what_is_mounted_elsewhere_are_in_use() {
        let table = b"1 0 0:1 / / rw - ext4 x\n\
            2 1 0:7 / /m rw - fuse.forebay a/b\n\
            3 2 0:1 /etc/hosts /m/dir/hosts rw - ext4 x\n\
            4 1 0:7 /sub /elsewhere rw - fuse.forebay a/b\n\
            5 4 0:9 / /elsewhere/in/it rw - tmpfs x\n\
            6 1 0:7 /file /etc/file rw - fuse.forebay a/b\n\
            7 6 0:9 / /etc/file rw - tmpfs x\n\
            8 1 0:9 / /mm rw - tmpfs x\n";
        let names = in_table(&mountinfo::parse(table), (0, 7));
        let wanted = ["/dir/hosts", "/sub", "/sub/in/it", "/file", "/file"];
        assert_eq!(names, wanted.map(PathBuf::from));
        assert_eq!(in_table(&mountinfo::parse(table), (0, 6)), Vec::<PathBuf>::new());
    }
}
