//! Orders name changes after the content of their files.
//!
//! A rename or link must not become durable before the content that the file has at that time. With
//! the kernel cache, part of that content may be dirty pages in the kernel if the file is open; a
//! close flushes them. So these pages are flushed first. Without the kernel cache only mappings
//! have dirty pages, and those need `msync`.

use forebay_base::waits;
use forebay_fs::{Error, FileSystem, Ino};

use super::Adapter;
use super::handles::Writers;
use crate::counters::{MountMetrics, Op};
use crate::transport::Caller;

/// Files that get another name.
pub(super) enum RenamedFiles {
    /// By their current names.
    Names(Vec<(u64, Vec<u8>)>),
    Inode(u64),
}

impl RenamedFiles {
    /// Returns those that are open for writing.
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
    /// Whether the kernel may have dirty pages of these files.
    pub(super) fn may_be_dirty(&self, files: &RenamedFiles) -> bool {
        let maybe_dirty = files.maybe_dirty(&self.non_blocking, &self.writers);
        !maybe_dirty.is_ok_and(|maybe_dirty| maybe_dirty.is_empty())
    }

    /// Runs `job` after the dirty pages of these files are flushed. If it cannot be known which
    /// files they are, `job` gets the error and must not go on.
    pub(super) fn after_write_back(
        &self,
        caller: Caller,
        op: Op,
        files: RenamedFiles,
        job: impl FnOnce(&FileSystem, &MountMetrics, Result<(), Error>) + Send + 'static,
    ) {
        let writers = self.writers.clone();
        let (write_back, metrics) = (self.write_back.clone(), self.metrics.clone());
        self.defer(caller.pid, op, move |fs, _| {
            let maybe_dirty = match files.maybe_dirty(fs, &writers) {
                Ok(maybe_dirty) => maybe_dirty,
                Err(error) => return job(fs, &metrics, Err(error)),
            };
            let Some((last, others)) = maybe_dirty.split_last() else {
                return job(fs, &metrics, Ok(()));
            };
            // The write-back thread runs its jobs in order.
            others.iter().for_each(|ino| write_back.run_after(*ino, Box::new(|| {})));
            let (fs, operation) = (fs.clone(), waits::carry());
            let job = move || {
                fs.spawn(Box::new(move |fs| {
                    operation.resume();
                    job(fs, &metrics, Ok(()));
                }));
            };
            write_back.run_after(*last, Box::new(job));
        });
    }
}
