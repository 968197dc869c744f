//! Open files and directories.

use std::collections::HashMap;

use forebay_base::sync::{Arc, Mutex};
use forebay_fs::{Error, FileSystem, Handle, Ino};

use super::groups::Group;
use super::nodes::Node;

/// What is open, by the handle numbers of the kernel.
pub(super) struct Files(Mutex<OpenFiles>);

struct OpenFiles {
    open: HashMap<u64, Slot>,
    next: u64,
}

enum Slot {
    Open(Arc<OpenFile>),
    /// Its group was given up.
    Stale,
}

/// An open file or directory, in one group.
pub(super) struct OpenFile {
    pub(super) group: Arc<Group>,
    pub(super) ino: Ino,
    pub(super) handle: Handle,
    /// Tells whether it is the same in another group.
    version: u64,
    /// Of a file: its node, which moves with it.
    node: Option<Arc<Node>>,
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        self.group.fs.release(self.handle);
    }
}

impl Files {
    pub(super) fn new() -> Self {
        let files = OpenFiles { open: HashMap::new(), next: 1 };
        Self(Mutex::named("follow-files", files))
    }

    /// Opens an inode in a group. `fs` is that of the group.
    pub(super) fn open(
        &self,
        (group, fs): (&Arc<Group>, &FileSystem),
        ino: Ino,
        node: Option<Arc<Node>>,
    ) -> Result<u64, Error> {
        let version = match node.as_ref().and_then(|node| node.version) {
            Some(version) => version,
            None => fs.version(ino)?,
        };
        let handle = open(fs, ino, node.is_some())?;
        let file = Arc::new(OpenFile { group: Arc::clone(group), ino, handle, version, node });
        let mut files = self.0.lock();
        let number = files.next;
        files.next += 1;
        files.open.insert(number, Slot::Open(file));
        Ok(number)
    }

    /// What is open, or the error number.
    pub(super) fn get(&self, number: u64) -> Result<Arc<OpenFile>, i32> {
        match self.0.lock().open.get(&number) {
            Some(Slot::Open(file)) => Ok(Arc::clone(file)),
            Some(Slot::Stale) => Err(libc::ESTALE),
            None => Err(libc::EBADF),
        }
    }

    pub(super) fn release(&self, number: u64) {
        let file = self.0.lock().open.remove(&number);
        // Outside of the lock.
        drop(file);
    }

    /// Moves to `group` what is the same there. May block.
    pub(super) fn move_to(&self, group: &Arc<Group>) {
        let mut old = Vec::new();
        for (number, slot) in &self.0.lock().open {
            match slot {
                Slot::Open(file) if !Arc::ptr_eq(&file.group, group) => {
                    old.push((*number, Arc::clone(file)));
                }
                _ => {}
            }
        }
        for (number, file) in old {
            let (ino, version, fs) = (file.ino, file.version, &group.fs);
            if !fs.version(ino).is_ok_and(|newest| newest == version) {
                continue;
            }
            let node = file.node.clone();
            let Ok(handle) = open(fs, ino, node.is_some()) else { continue };
            if let Some(node) = &node {
                node.moved_to(group);
            }
            let moved = OpenFile { group: Arc::clone(group), ino, handle, version, node };
            let moved = Slot::Open(Arc::new(moved));
            let replaced = match self.0.lock().open.get_mut(&number) {
                Some(slot) => std::mem::replace(slot, moved),
                // It was closed meanwhile.
                None => moved,
            };
            // Outside of the lock.
            drop(replaced);
        }
    }

    /// Gives up what is open in `group`, and returns how much that was.
    pub(super) fn give_up(&self, group: &Arc<Group>) -> usize {
        let mut given_up = Vec::new();
        for slot in self.0.lock().open.values_mut() {
            match slot {
                Slot::Open(file) if Arc::ptr_eq(&file.group, group) => {
                    given_up.push(std::mem::replace(slot, Slot::Stale));
                }
                _ => {}
            }
        }
        // They are released outside of the lock.
        given_up.len()
    }
}

fn open(fs: &FileSystem, ino: Ino, is_file: bool) -> Result<Handle, Error> {
    if is_file { fs.open(ino, None) } else { fs.opendir(ino) }
}
