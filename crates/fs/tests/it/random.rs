//! Random operations on a file system and the reference model. Results and contents must match.

use std::sync::Arc;

use forebay_fs::{
    Error, ErrorKind, FallocateMode, FileKind, FileSystem, Handle, Ino, NewNode, RenameMode, Seek,
    SetAttr, XattrMode,
};
use proptest::prelude::*;

use crate::common::{Fixture, ME, MIB, list, read, unmount};
use crate::model::{Model, name};

/// An operation and its parameters.
type Step = (u8, u32, u32, u32);

struct Work {
    fixture: Fixture,
    fs: FileSystem,
    model: Model,
    /// Open files: node and handle.
    open: Vec<(usize, Handle)>,
}

fn same<T>(step: &Step, done: Result<T, Error>, wanted: Result<(), ErrorKind>) -> Option<T> {
    match (done, wanted) {
        (Ok(done), Ok(())) => Some(done),
        (Err(error), Err(kind)) if error.kind() == kind => None,
        (Ok(_), Err(kind)) => panic!("{step:?}: it was done, {kind:?} was wanted"),
        (Err(error), wanted) => panic!("{step:?}: {error:?}, {wanted:?} was wanted"),
    }
}

fn pick(list: &[usize], n: u32) -> usize {
    list[n as usize % list.len()]
}

impl Work {
    fn new() -> Self {
        let fixture = Fixture::new(128 * MIB);
        let fs = fixture.mount();
        Self { fixture, fs, model: Model::new(), open: Vec::new() }
    }

    fn ino(&self, node: usize) -> Ino {
        self.model.nodes[node].ino
    }

    fn step(&mut self, step: &Step) {
        let (what, a, b, c) = *step;
        let dirs = self.model.alive(|kind| kind == FileKind::Directory);
        let (dir, other) = (pick(&dirs, a), pick(&dirs, b));
        match what % 20 {
            0..4 => self.make(step, dir, &name(c)),
            4 => {
                let node = pick(&self.model.alive(|_| true), b);
                let done = self.fs.link(self.ino(node), self.ino(dir), &name(c));
                same(step, done, self.model.link(node, dir, &name(c)));
            }
            5 | 6 => {
                let as_dir = what % 20 == 6;
                let done = match as_dir {
                    true => self.fs.rmdir(self.ino(dir), &name(c)),
                    false => self.fs.unlink(self.ino(dir), &name(c)),
                };
                same(step, done, self.model.remove(dir, &name(c), as_dir));
            }
            7..10 => {
                let modes = [RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange];
                let mode = modes[usize::from(what % 20 - 7)];
                let (old, new) = (name(c), name(c / 9));
                let done = self.fs.rename(self.ino(dir), &old, self.ino(other), &new, mode);
                same(step, done, self.model.rename((dir, &old), (other, &new), mode));
            }
            10..14 => self.change_content(step),
            14 => self.change_attributes(step),
            15 => self.change_xattrs(step),
            16 => self.open_or_release(a, b),
            17 if a % 8 == 0 => self.remount(),
            17 => self.fs.pool().sync().unwrap(),
            18 => {
                let node = pick(&self.model.alive(|_| true), a);
                if node != 0 && !self.open.iter().any(|open| open.0 == node) {
                    self.fs.forget(self.ino(node), u64::MAX);
                }
            }
            _ => self.compare(),
        }
    }

    fn make(&mut self, step: &Step, dir: usize, name: &[u8]) {
        let (what, _, b, c) = *step;
        let target = vec![b't'; 1 + (c % 4000) as usize];
        let (kind, content) = match (what % 20, b % 6) {
            (0 | 1, _) => (FileKind::File, &[][..]),
            (2, _) => (FileKind::Directory, &[][..]),
            (_, 0) => (FileKind::Fifo, &[][..]),
            (_, 1) => (FileKind::CharDevice, &[][..]),
            (_, 2) => (FileKind::Socket, &[][..]),
            (_, 3) => (FileKind::Symlink, &b"short"[..]),
            _ => (FileKind::Symlink, &target[..]),
        };
        let mode = if kind == FileKind::Symlink { 0o777 } else { (b % 0o1000) as u16 };
        let target = (kind == FileKind::Symlink).then_some(content);
        let wanted = self.model.make(dir, name, kind, mode, content);
        if kind == FileKind::File {
            let done = self.fs.create(self.ino(dir), name, mode, ME);
            if let Some((entry, handle)) = same(step, done, wanted.map(|_| ())) {
                let node = wanted.expect("it was wanted");
                self.model.nodes[node].ino = entry.attr.ino;
                self.open.push((node, handle));
            }
            return;
        }
        let new = NewNode { kind, mode, rdev: 0x1234, target };
        let done = self.fs.make(self.ino(dir), name, &new, ME);
        if let Some(entry) = same(step, done, wanted.map(|_| ())) {
            self.model.nodes[wanted.expect("it was wanted")].ino = entry.attr.ino;
        }
    }

    /// A regular file that is linked or open.
    fn file(&self, n: u32) -> Option<usize> {
        let mut files = self.model.alive(|kind| kind == FileKind::File);
        files.extend(self.open.iter().map(|open| open.0));
        files.retain(|node| self.model.nodes[*node].kind == FileKind::File);
        (!files.is_empty()).then(|| pick(&files, n))
    }

    fn change_content(&mut self, step: &Step) {
        let (what, a, b, c) = *step;
        let Some(node) = self.file(a) else { return };
        let (ino, handle) = (self.ino(node), Handle(self.ino(node).0));
        let (offset, len) = ((b % 60_000) as usize, (c % 30_000) as usize);
        match what % 20 {
            10 | 11 => {
                let data = vec![(c % 255) as u8 + 1; len];
                let written = self.fs.write(ino, handle, offset as u64, &data, Default::default());
                assert_eq!(written.unwrap(), len, "{step:?}");
                self.model.write(node, offset, &data);
            }
            12 => {
                let set = SetAttr { size: Some(offset as u64), ..SetAttr::default() };
                assert_eq!(self.fs.setattr(ino, &set, ME).unwrap().size, offset as u64);
                self.model.nodes[node].content.resize(offset, 0);
            }
            _ if c % 2 == 0 => {
                let mode = FallocateMode::Punch;
                let (offset64, len64) = (offset as u64, len as u64 + 1);
                self.fs.fallocate(ino, handle, offset64, len64, mode, ME).unwrap();
                self.model.punch(node, offset, len + 1);
            }
            _ => {
                let Some(to) = self.file(b) else { return };
                let source = self.model.nodes[node].content.clone();
                let part = source.get(offset..source.len().min(offset + len)).unwrap_or_default();
                let target = (a % 50_000) as usize;
                let overlaps = node == to && offset.abs_diff(target) < part.len().min(len);
                let done = self.fs.copy_range(
                    ino,
                    offset as u64,
                    self.ino(to),
                    target as u64,
                    len as u64,
                    ME,
                );
                let wanted = if overlaps { Err(ErrorKind::Invalid) } else { Ok(()) };
                if let Some(copied) = same(step, done, wanted) {
                    assert_eq!(copied, part.len() as u64);
                    self.model.write(to, target, part);
                }
            }
        }
    }

    fn change_attributes(&mut self, step: &Step) {
        let (_, a, b, _) = *step;
        let node = pick(&self.model.alive(|_| true), a);
        let mode = (b % 0o10000) as u16;
        let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
        assert_eq!(self.fs.setattr(self.ino(node), &set, ME).unwrap().mode, mode);
        self.model.nodes[node].mode = mode;
    }

    fn change_xattrs(&mut self, step: &Step) {
        let (_, a, b, c) = *step;
        let node = pick(&self.model.alive(|_| true), a);
        let ino = self.ino(node);
        let name = format!("user.{}", b % 4).into_bytes();
        let modes = [XattrMode::Either, XattrMode::Create, XattrMode::Replace];
        match b % 5 {
            4 => {
                let removed = self.model.nodes[node].xattrs.remove(&name);
                let wanted = removed.map(|_| ()).ok_or(ErrorKind::NoAttribute);
                same(step, self.fs.removexattr(ino, &name), wanted);
            }
            _ => {
                let value = vec![b as u8; [0, 10, 200, 5000][c as usize % 4]];
                let mode = modes[c as usize % 3];
                let done = self.fs.setxattr(ino, &name, &value, mode);
                same(step, done, self.model.set_xattr(node, &name, &value, mode));
            }
        }
    }

    fn open_or_release(&mut self, a: u32, b: u32) {
        if a.is_multiple_of(2) && !self.open.is_empty() {
            let (_, handle) = self.open.swap_remove(b as usize % self.open.len());
            self.fs.release(handle);
        } else {
            let node = pick(&self.model.alive(|_| true), b);
            self.open.push((node, self.fs.open(self.ino(node), None).unwrap()));
        }
    }

    fn remount(&mut self) {
        self.compare();
        self.open.clear();
        let new = Fixture {
            device: Arc::clone(&self.fixture.device),
            cache: Arc::clone(&self.fixture.cache),
        };
        let old = std::mem::replace(&mut self.fixture, new);
        // Drop the old one before mounting again.
        let fs = std::mem::replace(&mut self.fs, Fixture::new(16 * MIB).mount());
        unmount(fs);
        drop(old);
        self.fs = self.fixture.mount();
        self.compare();
    }

    fn compare(&self) {
        for node in self.model.alive(|_| true) {
            self.compare_node(node);
        }
        for (node, _) in &self.open {
            self.compare_node(*node);
        }
    }

    fn compare_node(&self, n: usize) {
        let node = &self.model.nodes[n];
        let attr = self.fs.getattr(node.ino).unwrap();
        let found = (attr.ino, attr.kind, attr.mode, attr.nlink);
        assert_eq!(found, (node.ino, node.kind, node.mode, node.nlink));
        match node.kind {
            FileKind::File => {
                assert_eq!(attr.size, node.content.len() as u64);
                assert!(read(&self.fs, node.ino, 0, 200_000) == node.content, "{:?}", node.ino);
                self.compare_holes(node.ino, &node.content);
            }
            FileKind::Symlink => {
                assert_eq!(attr.size, node.content.len() as u64);
                assert_eq!(self.fs.readlink(node.ino).unwrap(), node.content);
            }
            FileKind::Directory => {
                let wanted: Vec<(Vec<u8>, Ino)> = node
                    .names
                    .iter()
                    .map(|(name, child)| (name.clone(), self.ino(*child)))
                    .collect();
                assert_eq!(list(&self.fs, node.ino), wanted);
                self.compare_listing(n);
            }
            FileKind::CharDevice => assert_eq!(attr.rdev, 0x1234),
            _ => assert_eq!(attr.rdev, 0),
        }
        let mut names = self.fs.listxattr(node.ino, || true).unwrap();
        names.sort_unstable();
        assert_eq!(names, node.xattrs.keys().cloned().collect::<Vec<_>>());
        for (name, value) in &node.xattrs {
            assert_eq!(&self.fs.getxattr(node.ino, name).unwrap(), value);
        }
    }

    /// Holes must read as zeros, and nonzero bytes must be in data.
    fn compare_holes(&self, ino: Ino, content: &[u8]) {
        let handle = Handle(ino.0);
        let mut at = 0;
        while at < content.len() as u64 {
            let data = match self.fs.seek(ino, handle, at, Seek::Data) {
                Ok(data) => data,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::NoSuchOffset);
                    content.len() as u64
                }
            };
            assert!(content[at as usize..data as usize].iter().all(|byte| *byte == 0));
            if data == content.len() as u64 {
                return;
            }
            at = self.fs.seek(ino, handle, data, Seek::Hole).unwrap();
            assert!(at > data && at <= content.len() as u64);
        }
    }

    /// Lists one entry at a time with attributes, and looks each name up.
    fn compare_listing(&self, n: usize) {
        let node = &self.model.nodes[n];
        let (mut cookie, mut seen) = (0, Vec::new());
        loop {
            let mut taken = None;
            let mut each = |entry: forebay_fs::DirEntry<'_>, attr: Option<&forebay_fs::Attr>| {
                if taken.is_some() {
                    return false;
                }
                let attr = attr.copied();
                assert!(attr.is_none_or(|attr| attr.ino == entry.ino && attr.kind == entry.kind));
                taken = Some((entry.name.to_vec(), entry.ino, entry.next, attr));
                true
            };
            self.fs.readdirplus(node.ino, Handle(node.ino.0), cookie, &mut each).unwrap();
            let Some((name, ino, next, attr)) = taken else { break };
            assert!(next > cookie);
            cookie = next;
            match &name[..] {
                b"." => assert_eq!(ino, node.ino),
                b".." => assert_eq!(ino, self.ino(node.parent)),
                _ => {
                    assert!(attr.is_some());
                    let entry = self.fs.lookup(node.ino, &name).unwrap();
                    assert_eq!(entry.attr.ino, ino);
                    self.fs.forget(ino, 2);
                    seen.push(name);
                }
            }
        }
        seen.sort_unstable();
        assert_eq!(seen, node.names.keys().cloned().collect::<Vec<_>>());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn a_file_system_does_what_the_model_does(
        steps in proptest::collection::vec(any::<Step>(), 1..250),
    ) {
        let mut work = Work::new();
        for step in &steps {
            work.step(step);
        }
        work.compare();
        for (_, handle) in work.open.drain(..) {
            work.fs.release(handle);
        }
        for node in &work.model.nodes {
            work.fs.forget(node.ino, u64::MAX);
        }
        unmount(work.fs);
        let fs = work.fixture.mount();
        prop_assert_eq!(fs.stats().orphans, 0);
        work.fs = fs;
        work.compare();
        unmount(work.fs);
    }
}
