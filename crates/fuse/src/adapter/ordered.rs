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
use crate::counters::{Op, Tally};

/// Files that get another name.
pub(super) enum Renamed {
    /// By the names that they have.
    Names(Vec<(u64, Vec<u8>)>),
    Inode(u64),
}

impl Renamed {
    /// Those that are open for writing.
    fn open(&self, fs: &FileSystem, writers: &Writers) -> Result<Vec<u64>, Error> {
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
    pub(super) fn is_held_back(&self, files: &Renamed) -> bool {
        let open = without_waiting(|| files.open(&self.fs, &self.writers));
        !open.is_ok_and(|open| open.is_empty())
    }

    /// Does `job` once the kernel has written what it holds of these files.
    pub(super) fn once_written(
        &self,
        op: Op,
        files: Renamed,
        job: impl FnOnce(&Arc<FileSystem>, &Tally) + Send + 'static,
    ) {
        let writers = self.writers.clone();
        let (write_back, tally) = (self.write_back.clone(), self.tally.clone());
        self.later(op, move |fs, _| {
            // Whoever does the job says what is wrong with the names.
            let open = files.open(fs, &writers).unwrap_or_default();
            let Some((last, others)) = open.split_last() else { return job(fs, &tally) };
            // One after the other, on one thread.
            others.iter().for_each(|ino| write_back.then(*ino, Box::new(|| {})));
            let fs = Arc::clone(fs);
            let job = move || fs.spawn(Box::new(move |fs| job(fs, &tally)));
            write_back.then(*last, Box::new(job));
        });
    }
}
