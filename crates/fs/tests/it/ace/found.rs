//! A file system as a crash left it.

use std::collections::BTreeMap;

use forebay_fs::{FileKind, FileSystem, Ino};

use super::run::Times;
use crate::common::{ROOT, list, read};

/// A name and its inode.
pub(super) struct Found {
    pub(super) ino: Ino,
    pub(super) kind: FileKind,
    pub(super) mode: u16,
    pub(super) nlink: u32,
    pub(super) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Content of a file, path of a symlink.
    pub(super) content: Vec<u8>,
    pub(super) times: Times,
}

/// Reads all names, by path. The root has an empty one.
pub(super) fn read_all(fs: &FileSystem) -> BTreeMap<String, Found> {
    let mut found = BTreeMap::new();
    let mut pending = vec![(String::new(), ROOT)];
    while let Some((path, ino)) = pending.pop() {
        let attr = fs.getattr(ino).expect("its attributes");
        let names = fs.listxattr(ino, || true).expect("names of extended attributes").into_iter();
        let value = |name: Vec<u8>| {
            let value = fs.getxattr(ino, &name).expect("an extended attribute");
            (name, value)
        };
        let content = match attr.kind {
            FileKind::File => read(fs, ino, 0, 4 << 20),
            FileKind::Symlink => fs.readlink(ino).expect("a path"),
            _ => Vec::new(),
        };
        if attr.kind == FileKind::File {
            assert_eq!(content.len() as u64, attr.size, "size of {path}");
        }
        if attr.kind == FileKind::Directory {
            for (name, _) in list(fs, ino) {
                let child = fs.lookup(ino, &name).expect("a name that was listed").attr.ino;
                let name = String::from_utf8(name).expect("a name of this test");
                let separator = if path.is_empty() { "" } else { "/" };
                pending.push((format!("{path}{separator}{name}"), child));
            }
        }
        let inode = Found {
            ino,
            kind: attr.kind,
            mode: attr.mode,
            nlink: attr.nlink,
            xattrs: names.map(value).collect(),
            content,
            times: (attr.mtime, attr.ctime),
        };
        found.insert(path, inode);
    }
    found
}
