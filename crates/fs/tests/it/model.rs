//! Reference model: a simple file tree in memory that predicts the result of each operation.

use std::collections::BTreeMap;

use forebay_fs::{ErrorKind, FileKind, Ino, RenameMode, XattrMode};

/// Names used by the random work.
pub(crate) fn name(n: u32) -> Vec<u8> {
    match n % 9 {
        8 => vec![b'z'; 255],
        7 => vec![0xff, 1, b' ', b'\n'],
        n => format!("name{n}").into_bytes(),
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) ino: Ino,
    pub(crate) kind: FileKind,
    pub(crate) mode: u16,
    pub(crate) nlink: u32,
    pub(crate) parent: usize,
    pub(crate) names: BTreeMap<Vec<u8>, usize>,
    pub(crate) content: Vec<u8>,
    pub(crate) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// The tree. Nodes are identified by index; the root is 0.
#[derive(Clone)]
pub(crate) struct Model {
    pub(crate) nodes: Vec<Node>,
}

type Outcome<T = ()> = Result<T, ErrorKind>;

impl Model {
    pub(crate) fn new() -> Self {
        let mut model = Self { nodes: Vec::new() };
        model.push(FileKind::Directory, 0o755, 0, Vec::new());
        model.nodes[0].ino = Ino::ROOT;
        model
    }

    fn push(&mut self, kind: FileKind, mode: u16, parent: usize, content: Vec<u8>) -> usize {
        let nlink = if kind == FileKind::Directory { 2 } else { 1 };
        let (names, xattrs) = (BTreeMap::new(), BTreeMap::new());
        self.nodes.push(Node { ino: Ino(0), kind, mode, nlink, parent, names, content, xattrs });
        self.nodes.len() - 1
    }

    /// Linked nodes of the selected types.
    pub(crate) fn alive(&self, is: impl Fn(FileKind) -> bool) -> Vec<usize> {
        (0..self.nodes.len())
            .filter(|n| self.nodes[*n].nlink > 0 && is(self.nodes[*n].kind))
            .collect()
    }

    fn is_dir(&self, n: usize) -> bool {
        self.nodes[n].kind == FileKind::Directory
    }

    pub(crate) fn find(&self, dir: usize, name: &[u8]) -> Option<usize> {
        self.nodes[dir].names.get(name).copied()
    }

    pub(crate) fn make(
        &mut self,
        dir: usize,
        name: &[u8],
        kind: FileKind,
        mode: u16,
        content: &[u8],
    ) -> Outcome<usize> {
        if self.find(dir, name).is_some() {
            return Err(ErrorKind::Exists);
        }
        let inherits = kind == FileKind::Directory && self.nodes[dir].mode & 0o2000 != 0;
        let mode = if inherits { mode | 0o2000 } else { mode };
        let node = self.push(kind, mode, dir, content.to_vec());
        self.nodes[dir].names.insert(name.to_vec(), node);
        self.nodes[dir].nlink += u32::from(self.is_dir(node));
        Ok(node)
    }

    pub(crate) fn link(&mut self, node: usize, dir: usize, name: &[u8]) -> Outcome {
        if self.is_dir(node) {
            return Err(ErrorKind::NotPermitted);
        }
        if self.find(dir, name).is_some() {
            return Err(ErrorKind::Exists);
        }
        self.nodes[dir].names.insert(name.to_vec(), node);
        self.nodes[node].nlink += 1;
        Ok(())
    }

    fn removable(&self, node: usize, as_dir: bool) -> Outcome {
        match (self.is_dir(node), as_dir) {
            (false, true) => Err(ErrorKind::NotADirectory),
            (true, false) => Err(ErrorKind::IsADirectory),
            _ if self.nodes[node].names.is_empty() => Ok(()),
            _ => Err(ErrorKind::NotEmpty),
        }
    }

    fn lose(&mut self, node: usize, dir: usize) {
        if self.is_dir(node) {
            self.nodes[node].nlink = 0;
            self.nodes[dir].nlink -= 1;
        } else {
            self.nodes[node].nlink -= 1;
        }
    }

    pub(crate) fn remove(&mut self, dir: usize, name: &[u8], as_dir: bool) -> Outcome {
        let node = self.find(dir, name).ok_or(ErrorKind::NotFound)?;
        self.removable(node, as_dir)?;
        self.nodes[dir].names.remove(name);
        self.lose(node, dir);
        Ok(())
    }

    fn is_above(&self, node: usize, mut below: usize) -> bool {
        loop {
            if below == node {
                return true;
            }
            if below == 0 {
                return false;
            }
            below = self.nodes[below].parent;
        }
    }

    fn place(&mut self, dir: usize, name: &[u8], node: usize) {
        self.nodes[dir].names.insert(name.to_vec(), node);
        if self.is_dir(node) {
            self.nodes[dir].nlink += 1;
            self.nodes[node].parent = dir;
        }
    }

    fn take(&mut self, dir: usize, name: &[u8]) {
        if let Some(node) = self.nodes[dir].names.remove(name) {
            self.nodes[dir].nlink -= u32::from(self.is_dir(node));
        }
    }

    pub(crate) fn rename(
        &mut self,
        (from, name): (usize, &[u8]),
        (to, new): (usize, &[u8]),
        mode: RenameMode,
    ) -> Outcome {
        let source = self.find(from, name).ok_or(ErrorKind::NotFound)?;
        let target = self.find(to, new);
        match (mode, target) {
            (RenameMode::NoReplace, Some(_)) => return Err(ErrorKind::Exists),
            (RenameMode::Exchange, None) => return Err(ErrorKind::NotFound),
            (_, Some(target)) if target == source => return Ok(()),
            (RenameMode::Replace, Some(target)) => self.removable(target, self.is_dir(source))?,
            _ => {}
        }
        if from != to && self.is_dir(source) && self.is_above(source, to) {
            return Err(ErrorKind::Invalid);
        }
        if let (RenameMode::Exchange, Some(target)) = (mode, target) {
            if from != to && self.is_dir(target) && self.is_above(target, from) {
                return Err(ErrorKind::Invalid);
            }
            self.take(from, name);
            self.take(to, new);
            self.place(from, name, target);
            self.place(to, new, source);
            return Ok(());
        }
        if let Some(target) = target {
            self.nodes[to].names.remove(new);
            self.lose(target, to);
        }
        self.take(from, name);
        self.place(to, new, source);
        Ok(())
    }

    pub(crate) fn write(&mut self, node: usize, offset: usize, data: &[u8]) {
        let content = &mut self.nodes[node].content;
        let end = offset + data.len();
        if !data.is_empty() && content.len() < end {
            content.resize(end, 0);
        }
        if !data.is_empty() {
            content[offset..end].copy_from_slice(data);
        }
    }

    pub(crate) fn punch(&mut self, node: usize, offset: usize, len: usize) {
        let content = &mut self.nodes[node].content;
        let end = (offset + len).min(content.len());
        if offset < end {
            content[offset..end].fill(0);
        }
    }

    pub(crate) fn set_xattr(
        &mut self,
        node: usize,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Outcome {
        let xattrs = &mut self.nodes[node].xattrs;
        match (mode, xattrs.contains_key(name)) {
            (XattrMode::Create, true) => Err(ErrorKind::Exists),
            (XattrMode::Replace, false) => Err(ErrorKind::NoAttribute),
            _ => {
                xattrs.insert(name.to_vec(), value.to_vec());
                Ok(())
            }
        }
    }
}
