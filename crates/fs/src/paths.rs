//! Finds the paths of inodes, for messages about damage.
//!
//! An inode records the directory in which it got its newest name, see
//! [`InodePhys::parent`](crate::format::InodePhys). The name itself is found by reading that
//! directory, once for all inodes in it. Nothing is locked: a concurrent rename may hide a path,
//! and damage may, too.

use forebay_pool::{Cookie, Dataset};
use hashbrown::{HashMap, HashSet};

use crate::attrs::{Dirent, Meta};
use crate::format::FLAVOUR;
use crate::types::{FileKind, Ino};

/// Directory entries read at once.
const BATCH: usize = 256;

/// An inode and its path.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct InodePath {
    /// The inode number.
    pub ino: Ino,
    /// The type of the inode.
    pub kind: FileKind,
    /// The path from the root of the file system. Bytes that are not UTF-8 and control characters
    /// are replaced. `None` if the inode has no name, or if its name is not in the directory of its
    /// newest name.
    pub path: Option<String>,
}

/// An inode on the way to the root.
struct Step {
    kind: FileKind,
    parent: u64,
    /// Name in the parent, if it was found.
    name: Option<String>,
}

/// Finds the paths of the inodes with these object numbers. The result lacks objects that are no
/// inodes, or cannot be read; it is empty if the dataset holds no files.
pub fn paths(dataset: &Dataset, objects: &[u64]) -> HashMap<u64, InodePath> {
    let root = dataset.root_object();
    if dataset.flavour() != FLAVOUR || root == 0 {
        return HashMap::new();
    }
    let mut steps: HashMap<u64, Step> = HashMap::new();
    let mut wanted: Vec<u64> = objects.to_vec();
    // Each round goes one directory up. Each inode is read once, so that a loop ends.
    while !wanted.is_empty() {
        let mut found: HashMap<u64, HashSet<u64>> = HashMap::new();
        for number in wanted.drain(..) {
            if steps.contains_key(&number) {
                continue;
            }
            let Some(step) = step_of(dataset, number) else { continue };
            if number != root && step.parent != 0 {
                found.entry(step.parent).or_default().insert(number);
            }
            steps.insert(number, step);
        }
        for (parent, children) in found {
            for (number, name) in names_in(dataset, parent, &children) {
                if let Some(step) = steps.get_mut(&number) {
                    step.name = Some(name);
                }
            }
            wanted.push(parent);
        }
    }
    let inodes = objects.iter().filter_map(|number| {
        let step = steps.get(number)?;
        let ino = if *number == root { Ino::ROOT } else { Ino(number.saturating_add(2)) };
        let path = path_of(&steps, *number, root);
        Some((*number, InodePath { ino, kind: step.kind, path }))
    });
    inodes.collect()
}

fn step_of(dataset: &Dataset, number: u64) -> Option<Step> {
    let info = dataset.object_info(number).ok()?;
    let meta = Meta::decode(&info.attributes).ok()?;
    Some(Step { kind: meta.kind, parent: meta.parent, name: None })
}

/// The names of some inodes in a directory, as far as it can be read.
fn names_in(dataset: &Dataset, parent: u64, children: &HashSet<u64>) -> Vec<(u64, String)> {
    let mut names = Vec::new();
    let Ok(directory) = dataset.directory(parent) else { return names };
    let mut from = Cookie::START;
    while names.len() < children.len() {
        // The error is in the error log of the pool.
        let Ok(entries) = directory.entries(from, BATCH) else { break };
        let Some(last) = entries.last() else { break };
        from = last.next;
        for entry in &entries {
            if let Ok(Dirent { number, .. }) = Dirent::decode(&entry.value)
                && children.contains(&number)
            {
                names.push((number, readable(&entry.name)));
            }
        }
    }
    names
}

fn readable(name: &[u8]) -> String {
    let text = String::from_utf8_lossy(name);
    let replace = |c: char| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c };
    text.chars().map(replace).collect()
}

fn path_of(steps: &HashMap<u64, Step>, number: u64, root: u64) -> Option<String> {
    let mut names = Vec::new();
    let mut at = number;
    while at != root {
        let step = steps.get(&at)?;
        names.push(step.name.as_deref()?);
        // More names than inodes: a loop.
        if names.len() > steps.len() {
            return None;
        }
        at = step.parent;
    }
    names.push("");
    names.reverse();
    match names.len() {
        1 => Some("/".to_owned()),
        _ => Some(names.join("/")),
    }
}
