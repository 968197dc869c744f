//! Changes of names that come after the content of their files.
//!
//! A rename or a link must not become durable before the content that the file has by then. With the
//! kernel's cache some of that content may be in the kernel, if the file is open: a close writes it. So the
//! kernel writes it first. Direct mounts hold content back only in pages of mappings, which need `msync`.

use forebay_base::sync::Arc;
use forebay_fs::{Error, FileSystem, Ino};
use forebay_pool::without_waiting;

use super::Adapter;
use super::handles::Writers;
use crate::counters::{MountMetrics, Op};

/// Files that get another name.
pub(super) enum RenamedFiles {
    /// By the names that they have.
    Names(Vec<(u64, Vec<u8>)>),
    Inode(u64),
}

impl RenamedFiles {
    /// Those that are open for writing.
    fn maybe_dirty(&self, fs: &FileSystem, writers: &Writers) -> Result<Vec<u64>, Error> {
        let mut files = match self {
            Self::Inode(ino) => vec![*ino],
            Self::Names(names) => {
                let mut files = Vec::new();
                for (parent, name) in names {
                    files.extend(fs.peek(Ino(*parent), name)?.map(|ino| ino.0));
                }
                files
            }
        };
        files.retain(|ino| writers.has(*ino));
        Ok(files)
    }
}

impl Adapter {
    /// Whether the kernel may hold content of these files.
    pub(super) fn may_be_dirty(&self, files: &RenamedFiles) -> bool {
        let maybe_dirty = without_waiting(|| files.maybe_dirty(&self.fs, &self.writers));
        !maybe_dirty.is_ok_and(|maybe_dirty| maybe_dirty.is_empty())
    }

    /// Does `job` once the kernel has written what it holds of these files.
    pub(super) fn after_write_back(
        &self,
        op: Op,
        files: RenamedFiles,
        job: impl FnOnce(&Arc<FileSystem>, &MountMetrics) + Send + 'static,
    ) {
        let writers = self.writers.clone();
        let (write_back, metrics) = (self.write_back.clone(), self.metrics.clone());
        self.defer(op, move |fs, _| {
            // Whoever does the job says what is wrong with the names.
            let maybe_dirty = files.maybe_dirty(fs, &writers).unwrap_or_default();
            let Some((last, others)) = maybe_dirty.split_last() else { return job(fs, &metrics) };
            // One after the other, on one thread.
            others.iter().for_each(|ino| write_back.run_after(*ino, Box::new(|| {})));
            let fs = Arc::clone(fs);
            let job = move || fs.spawn(Box::new(move |fs| job(fs, &metrics)));
            write_back.run_after(*last, Box::new(job));
        });
    }
}
