//! The steps of a workload, their text, and their effect on the reference model.

use std::fmt;
use std::str::FromStr;

use forebay_fs::{FileKind, RenameMode, XattrMode};

use crate::model::Model;

/// What a step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Verb {
    Create,
    Mkdir,
    Symlink,
    /// A symlink whose path does not fit into the inode.
    SymlinkLong,
    /// Writes past the end and leaves a hole.
    Write,
    Append,
    /// Appends more than fits into a block of the log.
    AppendLarge,
    /// Overwrites the border of two records.
    Overwrite,
    /// Writes over the end with `O_DSYNC`.
    WriteDsync,
    Fallocate,
    FallocateKeep,
    Punch,
    Zero,
    ZeroKeep,
    Shorten,
    Lengthen,
    Setxattr,
    /// Sets a value that does not fit into the inode.
    SetxattrLong,
    Removexattr,
    Chmod,
    Link,
    Rename,
    Replace,
    Exchange,
    Unlink,
    Rmdir,
    Fsync,
    Fdatasync,
    /// Commits a transaction group.
    Commit,
    /// Begins to commit a transaction group, which waits for its first write until the next group
    /// or the end. Other steps happen meanwhile, in the next group.
    CommitBegin,
}

use Verb::*;

/// Each verb with its text and its number of paths.
const VERBS: [(Verb, &str, usize); 30] = [
    (Create, "create", 1),
    (Mkdir, "mkdir", 1),
    (Symlink, "symlink", 1),
    (SymlinkLong, "symlink-long", 1),
    (Write, "write", 1),
    (Append, "append", 1),
    (AppendLarge, "append-large", 1),
    (Overwrite, "overwrite", 1),
    (WriteDsync, "write-dsync", 1),
    (Fallocate, "fallocate", 1),
    (FallocateKeep, "fallocate-keep", 1),
    (Punch, "punch", 1),
    (Zero, "zero", 1),
    (ZeroKeep, "zero-keep", 1),
    (Shorten, "shorten", 1),
    (Lengthen, "lengthen", 1),
    (Setxattr, "setxattr", 1),
    (SetxattrLong, "setxattr-long", 1),
    (Removexattr, "removexattr", 1),
    (Chmod, "chmod", 1),
    (Link, "link", 2),
    (Rename, "rename", 2),
    (Replace, "replace", 2),
    (Exchange, "exchange", 2),
    (Unlink, "unlink", 1),
    (Rmdir, "rmdir", 1),
    (Fsync, "fsync", 1),
    (Fdatasync, "fdatasync", 1),
    (Commit, "commit", 0),
    (CommitBegin, "commit-begin", 0),
];

/// Changes of the content of a file.
pub(super) const CONTENT: [Verb; 12] = [
    Write,
    Append,
    AppendLarge,
    Overwrite,
    WriteDsync,
    Fallocate,
    FallocateKeep,
    Punch,
    Zero,
    ZeroKeep,
    Shorten,
    Lengthen,
];
/// Changes of the attributes of a file or directory.
pub(super) const ATTRIBUTES: [Verb; 4] = [Setxattr, SetxattrLong, Removexattr, Chmod];

impl Verb {
    fn row(self) -> &'static (Verb, &'static str, usize) {
        VERBS.iter().find(|row| row.0 == self).expect("a row for each verb")
    }

    pub(super) fn text(self) -> &'static str {
        self.row().1
    }

    /// Whether it only makes earlier changes durable.
    pub(super) fn is_persistence(self) -> bool {
        matches!(self, Fsync | Fdatasync | Commit | CommitBegin)
    }

    /// Offset and length of the change of a file of this size.
    pub(super) fn range(self, size: u64) -> (u64, u64) {
        match self {
            Write => (size + 5000, 3000),
            Append => (size, 3000),
            AppendLarge => (size, 300_000),
            Overwrite => (6000, 4000),
            WriteDsync => (size.saturating_sub(500), 1000),
            Fallocate | FallocateKeep => (size.saturating_sub(1000), 6000),
            Punch => (0, 8700),
            Zero | ZeroKeep => (size.saturating_sub(3000), 6000),
            Shorten => (0, size / 2),
            Lengthen => (0, size + 9000),
            _ => panic!("{} changes no content", self.text()),
        }
    }
}

/// An operation, or a request that makes changes durable.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Step {
    pub(super) verb: Verb,
    /// Paths from the root, without a slash in front.
    pub(super) paths: Vec<String>,
}

impl Step {
    pub(super) fn new(verb: Verb, paths: &[&str]) -> Self {
        Self { verb, paths: paths.iter().map(|path| (*path).to_owned()).collect() }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.verb.text())?;
        self.paths.iter().try_for_each(|path| write!(f, " {path}"))
    }
}

/// A sequence of steps.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Workload(pub(super) Vec<Step>);

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, step) in self.0.iter().enumerate() {
            write!(f, "{}{step}", if at > 0 { "; " } else { "" })?;
        }
        Ok(())
    }
}

impl FromStr for Workload {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let step = |text: &str| {
            let mut words = text.split_whitespace();
            let verb = words.next().unwrap_or_default();
            let paths: Vec<&str> = words.collect();
            let row = VERBS.iter().find(|row| row.1 == verb && row.2 == paths.len());
            row.map(|row| Step::new(row.0, &paths)).ok_or_else(|| format!("{text:?} is no step"))
        };
        text.split(';').map(step).collect::<Result<_, _>>().map(Self)
    }
}

/// The bytes that step `at` writes.
pub(super) fn data(at: usize, len: u64) -> Vec<u8> {
    // Run by run: the reference model asks for them so often that a byte at a time takes a seventh
    // of all time.
    const RUN: u64 = 7;
    let (start, mut bytes) = ((at as u8 + 1).wrapping_mul(31), Vec::with_capacity(len as usize));
    for run in 0..len.div_ceil(RUN) {
        bytes.resize(len.min((run + 1) * RUN) as usize, start ^ run as u8);
    }
    bytes
}

/// The value of an extended attribute that step `at` sets, or the path of a symlink.
pub(super) fn value(verb: Verb, at: usize) -> Vec<u8> {
    let len = if matches!(verb, SetxattrLong | SymlinkLong) { 1500 } else { 20 };
    vec![b'a' + at as u8; len]
}

/// The name of the extended attribute that a verb changes.
pub(super) fn xattr(verb: Verb) -> &'static [u8] {
    if verb == SetxattrLong { b"user.long" } else { b"user.x" }
}

/// Mode that step `at` sets.
pub(super) fn mode(at: usize) -> u16 {
    0o600 | (at as u16 + 1)
}

/// The directory and the name in a path.
pub(super) fn parent<'p>(model: &Model, path: &'p str) -> Option<(usize, &'p [u8])> {
    let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
    let dir = find(model, above)?;
    (model.nodes[dir].kind == FileKind::Directory).then_some((dir, name.as_bytes()))
}

/// The node with this path.
pub(super) fn find(model: &Model, path: &str) -> Option<usize> {
    path.split('/')
        .filter(|name| !name.is_empty())
        .try_fold(0, |dir, name| model.find(dir, name.as_bytes()))
}

/// The states that step number `at` leads to, one after another: most steps are one change. `None`
/// if the step is not possible.
pub(super) fn apply(step: &Step, at: usize, model: &Model) -> Option<Vec<Model>> {
    let mut next = model.clone();
    let first = step.paths.first().map(String::as_str);
    match step.verb {
        Commit | CommitBegin => return Some(Vec::new()),
        Fsync | Fdatasync => return find(model, first?).map(|_| Vec::new()),
        Create => make(&mut next, first?, FileKind::File, 0o644, b"")?,
        Mkdir => make(&mut next, first?, FileKind::Directory, 0o755, b"")?,
        Symlink | SymlinkLong => {
            make(&mut next, first?, FileKind::Symlink, 0o777, &value(step.verb, at))?;
        }
        Unlink | Rmdir => {
            let (dir, name) = parent(model, first?)?;
            next.remove(dir, name, step.verb == Rmdir).ok()?;
        }
        Link => {
            let (dir, name) = parent(model, &step.paths[1])?;
            next.link(find(model, first?)?, dir, name).ok()?;
        }
        Rename | Replace | Exchange => {
            let (from, to) = (parent(model, first?)?, parent(model, &step.paths[1])?);
            let replaces = find(model, &step.paths[1]).is_some();
            if replaces != (step.verb != Rename) || from == to {
                return None;
            }
            next.rename(from, to, rename_mode(step.verb)).ok()?;
        }
        Setxattr | SetxattrLong | Removexattr | Chmod => {
            let node = find(model, first?)?;
            match step.verb {
                Chmod => next.nodes[node].mode = mode(at),
                Removexattr => drop(next.nodes[node].xattrs.remove(xattr(step.verb))?),
                verb => {
                    let value = value(verb, at);
                    next.set_xattr(node, xattr(verb), &value, XattrMode::Either).ok()?;
                }
            }
        }
        _ => return change_content(step, at, next),
    }
    Some(vec![next])
}

/// The state after step number `at`, which is possible.
pub(super) fn state_after(step: &Step, at: usize, model: &Model) -> Model {
    let mut states = apply(step, at, model).expect("it is possible");
    states.pop().unwrap_or_else(|| model.clone())
}

pub(super) fn rename_mode(verb: Verb) -> RenameMode {
    match verb {
        Rename => RenameMode::NoReplace,
        Replace => RenameMode::Replace,
        _ => RenameMode::Exchange,
    }
}

fn make(model: &mut Model, path: &str, kind: FileKind, mode: u16, content: &[u8]) -> Option<()> {
    let (dir, name) = parent(model, path)?;
    model.make(dir, name, kind, mode, content).ok().map(|_| ())
}

fn change_content(step: &Step, at: usize, mut next: Model) -> Option<Vec<Model>> {
    let node = find(&next, &step.paths[0])?;
    if next.nodes[node].kind != FileKind::File {
        return None;
    }
    let size = next.nodes[node].content.len();
    let (offset, len) = step.verb.range(size as u64);
    let end = (offset + len) as usize;
    let resized = |model: &mut Model, size: usize| model.nodes[node].content.resize(size, 0);
    match step.verb {
        Punch | ZeroKeep => next.punch(node, offset as usize, len as usize),
        Fallocate => resized(&mut next, size.max(end)),
        FallocateKeep => {}
        Shorten | Lengthen => resized(&mut next, end),
        Zero => {
            // Two changes; see docs/durability.md.
            next.punch(node, offset as usize, len as usize);
            let mut second = next.clone();
            resized(&mut second, size.max(end));
            return Some(vec![next, second]);
        }
        _ => next.write(node, offset as usize, &data(at, len)),
    }
    Some(vec![next])
}
