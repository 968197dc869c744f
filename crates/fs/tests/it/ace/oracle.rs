//! The states that `docs/durability.md` allows after a crash.
//!
//! A run is a list of *moments*: states between two changes. A crash leaves the names of one
//! moment, and the content and the times of each file of that moment or of an older one:
//!
//! - **Names** (also attributes, links, symlinks). Not older than the last persistence point of any
//!   kind that had returned. Not newer than the last change that had begun.
//! - **Content.** Not older than the last group, or `fsync` or `fdatasync` of this file, that had
//!   returned. Not newer than the names.
//! - **Order.** Only an `fsync` separates names from content. If the names are newer than the last
//!   `fsync` that had begun, all content and all times are as new as the names. If the names
//!   include a rename, an exchange or a link of a file, its content is not older than that change
//!   (rule 1). If they include a rename of a directory, this holds for all files (rule 2).
//! - **Times.** As content, but `fdatasync` and the two rules do not include them. Of several
//!   changes in one group, the group may have the times of the first.

use std::collections::{BTreeMap, HashMap};

use forebay_fs::{FileKind, Ino};

use super::found::Found;
use super::run::{Moment, Ordered, Persisted, PersistencePoint, Run, Times};
use crate::model::Model;

/// Whether the log was replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Log {
    Replayed,
    /// The state is that of a group.
    Ignored,
}

/// A state, and the device position of the crash that left it.
pub(super) struct Oracle<'a> {
    pub(super) run: &'a Run,
    pub(super) position: usize,
    pub(super) log: Log,
}

impl Oracle<'_> {
    /// # Errors
    /// For each moment, why it does not explain what was found.
    pub(super) fn check(&self, found: &BTreeMap<String, Found>) -> Result<(), String> {
        let least = self.returned(|_| true);
        let begun = |moment: &&Moment| moment.begun <= self.position;
        let most = self.run.moments.iter().take_while(begun).count() - 1;
        let mut reasons = Vec::new();
        for moment in (least..=most).rev() {
            match self.explains(moment, found) {
                Ok(()) => return Ok(()),
                Err(reason) => reasons.push(format!("  moment {moment}: {reason}")),
            }
        }
        Err(format!("no moment from {least} to {most} explains the state:\n{}", reasons.join("\n")))
    }

    /// The newest moment that a persistence point made durable, of those that had returned.
    fn returned(&self, is: impl Fn(&PersistencePoint) -> bool) -> usize {
        let of_txg =
            |point: &&PersistencePoint| self.log == Log::Replayed || point.what == Persisted::All;
        let points = self.run.points.iter().filter(|point| point.done <= self.position);
        points.filter(of_txg).filter(|point| is(point)).map(|point| point.moment).max().unwrap_or(0)
    }

    fn explains(&self, moment: usize, found: &BTreeMap<String, Found>) -> Result<(), String> {
        let names = &self.run.moments[moment].model;
        let nodes = same_names(names, found)?;
        // Only a log that was replayed separates names from content.
        let logged = self.log == Log::Replayed
            && self.run.points.iter().any(|point| {
                point.what != Persisted::All
                    && point.begun <= self.position
                    && point.moment >= moment
            });
        for (path, node) in nodes {
            let inode = &found[&path];
            let least = if logged { self.oldest_content(node, moment) } else { moment };
            let content = |at: usize| &self.run.moments[at].model.nodes[node].content;
            if !(least..=moment).any(|at| *content(at) == inode.content) {
                let what = describe(&inode.content, content(moment));
                return Err(format!("{path} has no content of {least} to {moment}: {what}"));
            }
            let group =
                if logged { self.returned(|point| point.what == Persisted::All) } else { moment };
            self.check_times(node, inode.times, group, moment)
                .map_err(|reason| format!("times of {path}: {reason}"))?;
        }
        Ok(())
    }

    /// The oldest moment whose content the file may have with the names of `moment`.
    fn oldest_content(&self, node: usize, moment: usize) -> usize {
        let persisted = self.returned(|point| match point.what {
            Persisted::All => true,
            Persisted::Node(of) | Persisted::Data(of) => of == node,
        });
        let is_ordered = |at: &usize| match &self.run.moments[*at].ordered {
            Ordered::Nothing => false,
            Ordered::Files(nodes) => nodes.contains(&node),
            Ordered::Everything => true,
        };
        let ordered = (1..=moment).rev().find(is_ordered).map_or(0, |at| at - 1);
        let created = self.run.moments.iter().take_while(|at| at.model.nodes.len() <= node).count();
        persisted.max(ordered).max(created)
    }

    /// Checks the times of a node, with the names of `moment` and no group older than `group`.
    fn check_times(
        &self,
        node: usize,
        (mtime, ctime): Times,
        group: usize,
        moment: usize,
    ) -> Result<(), String> {
        let newest = self.times(node, moment).ok_or("it does not exist")?;
        let changed = |at: &usize| self.times(node, *at) != self.times(node, at - 1);
        let last_change = (1..=group).rev().find(changed).unwrap_or(0);
        // A group has the times of the first change in it, or later ones.
        let groups = self.run.points.iter().filter(|point| point.what == Persisted::All);
        let before = groups.map(|point| point.moment).filter(|at| *at < last_change).max();
        let first_change = (before.unwrap_or(0) + 1..=last_change).find(changed);
        let fsync = self.returned(|point| point.what == Persisted::Node(node));
        let created = (0..=moment).find_map(|at| self.times(node, at)).unwrap_or(newest);
        let (oldest, may_equal) = match first_change.filter(|first| *first > fsync) {
            Some(first) => match self.times(node, first - 1) {
                Some(before) => (before, false),
                None => (created, true),
            },
            None => (self.times(node, fsync).unwrap_or(created), true),
        };
        let is_late = ctime > oldest.1 || may_equal && ctime == oldest.1;
        match is_late && mtime >= oldest.0 && mtime <= newest.0 && ctime <= newest.1 {
            true => Ok(()),
            false => Err(format!("{:?} is not in {oldest:?} to {newest:?}", (mtime, ctime))),
        }
    }

    /// The times of a node; between two changes of one operation those before it.
    fn times(&self, node: usize, moment: usize) -> Option<Times> {
        let known = |moment: &Moment| moment.times.as_ref().map(|times| times.get(&node).copied());
        self.run.moments[..=moment].iter().rev().find_map(known).flatten()
    }
}

/// Compares names, attributes and links. Returns the node of each path.
fn same_names(
    model: &Model,
    found: &BTreeMap<String, Found>,
) -> Result<Vec<(String, usize)>, String> {
    let mut nodes = Vec::new();
    let mut inos: HashMap<usize, Ino> = HashMap::new();
    let mut pending = vec![(String::new(), 0)];
    while let Some((path, at)) = pending.pop() {
        let node = &model.nodes[at];
        let inode = found.get(&path).ok_or_else(|| format!("{path} is missing"))?;
        if (node.kind, node.mode, node.nlink) != (inode.kind, inode.mode, inode.nlink) {
            let found = (inode.kind, inode.mode, inode.nlink);
            return Err(format!("{path} has kind, mode and links {found:?}"));
        }
        if node.xattrs != inode.xattrs {
            return Err(format!("{path} has other extended attributes"));
        }
        if node.kind == FileKind::Symlink && node.content != inode.content {
            return Err(format!("{path} leads to another path"));
        }
        if *inos.entry(at).or_insert(inode.ino) != inode.ino {
            return Err(format!("{path} is another inode than its other names"));
        }
        for (name, child) in &node.names {
            let separator = if path.is_empty() { "" } else { "/" };
            let name = String::from_utf8_lossy(name);
            pending.push((format!("{path}{separator}{name}"), *child));
        }
        nodes.push((path, at));
    }
    let mut distinct: Vec<Ino> = inos.values().copied().collect();
    distinct.sort_unstable();
    distinct.dedup();
    if distinct.len() < inos.len() {
        return Err("two files are one inode".to_owned());
    }
    match found.keys().find(|path| !nodes.iter().any(|(known, _)| known == *path)) {
        Some(path) => Err(format!("{path} should not exist")),
        None => Ok(nodes),
    }
}

fn describe(found: &[u8], newest: &[u8]) -> String {
    let equal = found.iter().zip(newest).take_while(|(one, two)| one == two).count();
    let (found, newest) = (found.len(), newest.len());
    format!("{found} bytes, the newest has {newest}, the first {equal} are equal")
}
