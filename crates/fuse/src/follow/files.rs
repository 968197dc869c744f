//! Open files and directories.

use std::collections::HashMap;

use forebay_base::sync::{Arc, Mutex};
use forebay_fs::{Error, FileSystem, Handle, Ino};

use super::groups::Group;
use super::nodes::Node;

/// What is open, by the handle numbers of the kernel.
pub(super) struct Files(Mutex<OpenFiles>);

struct OpenFiles {
    open: HashMap<u64, Arc<OpenFile>>,
    next: u64,
}

/// An open file or directory, in one group.
pub(super) struct OpenFile {
    pub(super) group: Arc<Group>,
    pub(super) ino: Ino,
    pub(super) handle: Handle,
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
        let handle = match node {
            Some(_) => fs.open(ino, None)?,
            None => fs.opendir(ino)?,
        };
        let file = Arc::new(OpenFile { group: Arc::clone(group), ino, handle, node });
        let mut files = self.0.lock();
        let number = files.next;
        files.next += 1;
        files.open.insert(number, file);
        Ok(number)
    }

    pub(super) fn get(&self, number: u64) -> Option<Arc<OpenFile>> {
        self.0.lock().open.get(&number).cloned()
    }

    pub(super) fn release(&self, number: u64) {
        let file = self.0.lock().open.remove(&number);
        // Outside of the lock.
        drop(file);
    }

    /// Moves files to `group` that are the same there. May block.
    pub(super) fn move_to(&self, group: &Arc<Group>) {
        let old: Vec<_> = {
            let files = self.0.lock();
            let elsewhere = files.open.iter().filter(|(_, file)| !Arc::ptr_eq(&file.group, group));
            elsewhere.map(|(number, file)| (*number, Arc::clone(file))).collect()
        };
        for (number, file) in old {
            let Some(node) = &file.node else { continue };
            let (ino, fs) = (file.ino, &group.fs);
            if !fs.version(ino).is_ok_and(|version| Some(version) == node.version) {
                continue;
            }
            let Ok(handle) = fs.open(ino, None) else { continue };
            node.moved_to(group);
            let node = Some(Arc::clone(node));
            let moved = Arc::new(OpenFile { group: Arc::clone(group), ino, handle, node });
            let replaced = {
                let mut files = self.0.lock();
                // It may have been closed meanwhile.
                files.open.get_mut(&number).map(|file| std::mem::replace(file, moved))
            };
            drop(replaced);
        }
    }
}
