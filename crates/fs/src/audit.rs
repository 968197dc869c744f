//! Consistency check of a file system: names, link counts and objects.

use std::fmt;

use forebay_pool::{Cookie, Wait};
use hashbrown::HashMap;

use crate::attrs::{Dirent, Extras, Meta};
use crate::error::{Error, ErrorKind, Result};
use crate::extras;
use crate::fs::FileSystem;
use crate::reclaim::orphan_number;
use crate::types::FileKind;

/// Directory entries read at once.
const BATCH: usize = 256;
/// Largest number of problems described in the report.
const PROBLEMS_MAX: usize = 100;
/// How many numbers past the largest known one are searched for unreferenced objects.
const SEARCH_AHEAD: u64 = 100_000;

/// The result of an audit.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct AuditReport {
    /// Directories, including the root.
    pub directories: u64,
    /// Inodes other than directories.
    pub others: u64,
    /// Names, without "." and "..".
    pub names: u64,
    /// Inodes in the orphan directory.
    pub orphans: u64,
    /// Descriptions of the first hundred problems.
    pub problems: Vec<String>,
    /// Total number of problems.
    pub problem_count: u64,
}

impl AuditReport {
    /// Whether no problem was found.
    pub fn is_clean(&self) -> bool {
        self.problem_count == 0
    }
}

impl fmt::Display for AuditReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} directories, {} other inodes, {} names, {} orphans: ",
            self.directories, self.others, self.names, self.orphans
        )?;
        if self.is_clean() {
            return f.write_str("no problems");
        }
        write!(f, "{} problems", self.problem_count)?;
        self.problems.iter().try_for_each(|problem| write!(f, "\n  {problem}"))
    }
}

/// An inode that the walk has reached.
struct SeenInode {
    kind: FileKind,
    /// Its stored link count.
    nlink: u32,
    /// Names found so far; for a directory, subdirectories.
    found: u32,
}

struct Audit<'a> {
    fs: &'a FileSystem,
    report: AuditReport,
    seen: HashMap<u64, SeenInode>,
    /// Objects that are spills, not inodes.
    spills: HashMap<u64, ()>,
    /// Directories not read yet.
    pending: Vec<u64>,
}

impl FileSystem {
    /// Walks the tree from the root and checks link counts, types, parents, orphans and the number
    /// of objects. First waits for background work. The file system must not change meanwhile. Uses
    /// about 40 bytes of memory per inode.
    ///
    /// # Errors
    /// An error that ends the audit early. Problems of the file system are in the report.
    pub fn audit(&self) -> Result<AuditReport> {
        self.wait_for_reclaim();
        if self.check_writable().is_ok() {
            // The object count is updated by transaction groups.
            self.pool().sync()?;
        }
        let mut audit = Audit {
            fs: self,
            report: AuditReport::default(),
            seen: HashMap::new(),
            spills: HashMap::new(),
            pending: Vec::new(),
        };
        audit.walk();
        audit.orphans();
        audit.objects();
        Ok(audit.report)
    }
}

impl Audit<'_> {
    fn problem(&mut self, problem: impl fmt::Display) {
        self.report.problem_count += 1;
        if self.report.problems.len() < PROBLEMS_MAX {
            self.report.problems.push(problem.to_string());
        }
    }

    fn walk(&mut self) {
        let root = self.fs.root();
        self.visit(root, FileKind::Directory, root, "the root");
        while let Some(number) = self.pending.pop() {
            if let Err(error) = self.directory(number) {
                self.problem(format_args!("directory {number}: {error}"));
            }
        }
        let mut problems = Vec::new();
        for (number, seen) in &self.seen {
            let wanted = if seen.kind == FileKind::Directory { seen.found + 2 } else { seen.found };
            if seen.nlink != wanted {
                problems.push(format!(
                    "inode {number} has {wanted} links, but its link count is {}",
                    seen.nlink
                ));
            }
        }
        problems.into_iter().for_each(|problem| self.problem(problem));
    }

    /// Reads the entries of a directory, then compares its counts, filters and change buffer with
    /// its leaves.
    fn directory(&mut self, number: u64) -> Result<()> {
        let directory = self.fs.dataset().directory(number)?;
        let mut from = Cookie::START;
        loop {
            let entries = directory.entries(from, BATCH)?;
            let Some(last) = entries.last() else { break };
            from = last.next;
            for entry in &entries {
                self.report.names += 1;
                let name = String::from_utf8_lossy(&entry.name);
                let what = format!("name {name:?} in directory {number}");
                match Dirent::decode(&entry.value) {
                    Ok(dirent) => {
                        if dirent.kind == FileKind::Directory
                            && let Some(seen) = self.seen.get_mut(&number)
                        {
                            seen.found += 1;
                        }
                        self.visit(dirent.number, dirent.kind, number, &what);
                    }
                    Err(error) => self.problem(format_args!("{what}: {error}")),
                }
            }
        }
        directory.audit()?;
        Ok(())
    }

    /// Checks the inode that a name refers to.
    fn visit(&mut self, number: u64, kind: FileKind, parent: u64, what: &str) {
        if let Some(seen) = self.seen.get_mut(&number) {
            seen.found += 1;
            let (same, again) = (seen.kind == kind, kind == FileKind::Directory);
            if !same || again {
                self.problem(format_args!("{what}: another name has the same inode {number}"));
            }
            return;
        }
        let meta = match self.inode(number) {
            Ok(meta) => meta,
            Err(error) => return self.problem(format_args!("{what}: {error}")),
        };
        if meta.kind != kind {
            self.problem(format_args!(
                "{what}: the entry has type {kind:?}, the inode {:?}",
                meta.kind
            ));
        }
        let is_directory = meta.kind == FileKind::Directory;
        if is_directory && meta.parent != parent {
            let says = meta.parent;
            self.problem(format_args!(
                "{what}: the parent of inode {number} is recorded as {says}"
            ));
        }
        let found = u32::from(!is_directory);
        self.seen.insert(number, SeenInode { kind: meta.kind, nlink: meta.nlink, found });
        if is_directory {
            self.report.directories += 1;
            self.pending.push(number);
        } else {
            self.report.others += 1;
        }
    }

    /// Reads an inode and its extras.
    fn inode(&mut self, number: u64) -> Result<Meta> {
        let doing = |error: Error| error.doing(format_args!("inode {number}"));
        let info = self.fs.dataset().object_info(number).map_err(|error| doing(error.into()))?;
        let meta = Meta::decode(&info.attributes).map_err(doing)?;
        if let Extras::Spilled { object, .. } = &meta.extras
            && self.spills.insert(*object, ()).is_some()
        {
            self.problem(format_args!("inode {number} shares its extras with another inode"));
        }
        extras::read(self.fs.dataset(), &meta.extras, Wait::Allowed).map_err(doing)?;
        Ok(meta)
    }

    fn orphans(&mut self) {
        let mut from = Cookie::START;
        loop {
            let entries = match self.fs.orphans().entries(from, BATCH) {
                Ok(entries) => entries,
                Err(error) => return self.problem(format_args!("the orphan directory: {error}")),
            };
            let Some(last) = entries.last() else { return };
            from = last.next;
            for entry in &entries {
                self.orphan(&entry.name);
            }
        }
    }

    fn orphan(&mut self, name: &[u8]) {
        self.report.orphans += 1;
        let Some(number) = orphan_number(name) else {
            let name = String::from_utf8_lossy(name);
            return self.problem(format_args!("{name:?} in the orphan directory is not a number"));
        };
        match self.inode(number) {
            Ok(meta) if meta.nlink > 0 || self.seen.contains_key(&number) => {
                self.problem(format_args!(
                    "inode {number} has names, but is in the orphan directory"
                ));
            }
            Ok(meta) => {
                let seen = SeenInode { kind: meta.kind, nlink: 0, found: 0 };
                self.seen.insert(number, seen);
            }
            Err(error) => self.problem(format_args!("orphan {number}: {error}")),
        }
    }

    /// Compares the reachable objects with the dataset's object count.
    fn objects(&mut self) {
        let known = self.seen.len() as u64 + self.spills.len() as u64 + 1;
        let there = self.fs.dataset().object_count();
        if known >= there {
            if known > there {
                self.problem(format_args!(
                    "{known} objects are in use, but the dataset counts {there}"
                ));
            }
            return;
        }
        let mut missing = there - known;
        let numbers = self.seen.keys().chain(self.spills.keys());
        let end = numbers.max().copied().unwrap_or(0).saturating_add(SEARCH_AHEAD);
        let orphans = self.fs.orphans().number();
        for number in 1..end {
            if missing == 0 {
                return;
            }
            let known = self.seen.contains_key(&number) || self.spills.contains_key(&number);
            if known || number == orphans {
                continue;
            }
            match self.fs.dataset().object_info(number).map_err(Error::from) {
                Ok(_) => {
                    missing -= 1;
                    self.problem(format_args!("object {number} is unreferenced"));
                }
                Err(error) if error.kind() == ErrorKind::Stale => {}
                Err(error) => self.problem(format_args!("object {number}: {error}")),
            }
        }
        if missing > 0 {
            self.problem(format_args!("{missing} more objects are unreferenced"));
        }
    }
}
